"""Calling a model with what a modality makes for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["call_model"]


def call_model(model: Callable[..., Any], inputs: Any) -> Any:
    """Runs a model.

    Args:
        model: A network, or what stands for it (compiled, distributed).
        inputs: Its one argument; or a tuple of its arguments, such as clips, their lengths and their times.
    """
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)
