"""`zoo.finetune`: a model for data of one's own, from a folder to a folder that `zoo.load` takes."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from zoo._callable_module import make_callable

if TYPE_CHECKING:
    from zoo.finetune.run import check, finetune, make_recipe, plan

__all__ = ["check", "finetune", "make_recipe", "plan"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("zoo.finetune.run"), name)
    raise AttributeError(f"module 'zoo.finetune' has no attribute {name!r}")


make_callable(__name__, "finetune")
