"""Lets a name be both a submodule and a public function, as in `zoo.convert(...)` and `zoo/convert.py`.

The import system binds a submodule to its package's attribute, which would hide a function of the same name.
"""

from __future__ import annotations

import sys
import types
from typing import Any

__all__ = ["make_callable"]


def make_callable(module_name: str, function_name: str) -> None:
    """Makes calling the module `module_name` call its function `function_name`."""
    module = sys.modules[module_name]

    class CallableModule(types.ModuleType):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return getattr(self, function_name)(*args, **kwargs)

    module.__class__ = CallableModule
