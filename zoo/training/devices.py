"""What a run sets up in its process: accelerate, and the precision of matrix products."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from zoo.errors import ConfigError, require
from zoo.sharing import WAIT
from zoo.training.recipe import Recipe

__all__ = ["accelerator_for", "matmul_precision"]


@contextmanager
def accelerator_for(recipe: Recipe) -> Iterator[Any]:
    """The `Accelerator` of accelerate for a recipe: one process, or one of those that `accelerate launch` has started.

    Raises:
        ConfigError: If the device is not there.
        MissingDependencyError: If accelerate is not installed.
    """
    accelerate = require("accelerate", extra="train")
    from accelerate.state import AcceleratorState

    if recipe.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device cuda: PyTorch finds no CUDA device here; use device: cpu or auto")
    mixed = "bf16" if recipe.precision == "bf16" else "no"
    AcceleratorState._reset_state(reset_partial_state=True)  # or a second run in this process could not differ
    try:
        # Said outright, since accelerate joins CPU processes only when told to.
        cpu = recipe.device == "cpu" or not torch.cuda.is_available()
        wait = accelerate.InitProcessGroupKwargs(timeout=WAIT)
        yield accelerate.Accelerator(mixed_precision=mixed, cpu=cpu, kwargs_handlers=[wait])
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)


@contextmanager
def matmul_precision() -> Iterator[None]:
    """Lets float32 products run as TF32 where the device has it; restores the setting after."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
