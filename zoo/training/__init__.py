"""Training and fine-tuning: recipe, loop, checkpoints, metrics. Attributes are looked up when used (no torch here)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zoo.training.loop import TrainResult, train
    from zoo.training.recipe import Recipe, load_recipe

__all__ = ["Recipe", "TrainResult", "load_recipe", "train"]

_LAZY = {
    "Recipe": "zoo.training.recipe",
    "TrainResult": "zoo.training.loop",
    "load_recipe": "zoo.training.recipe",
    "train": "zoo.training.loop",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'zoo.training' has no attribute {name!r}")
