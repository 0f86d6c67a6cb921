"""The exception hierarchy: everything pape-zoo raises on purpose derives from `ZooError`."""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = [
    "ConfigError",
    "DataError",
    "HubError",
    "MissingDependencyError",
    "UnknownModelError",
    "WeightsError",
    "ZooError",
    "require",
]


class ZooError(Exception):
    """Base of all errors of this library; the message is one line meant for the user."""


class DataError(ZooError, ValueError):
    """An input (picture, tensor, file) cannot be used; the message names it and says what is wrong."""


class ConfigError(ZooError, ValueError):
    """A configuration or option has a value that cannot be used."""


class WeightsError(ZooError):
    """Weights are absent, damaged, unsafe or do not fit the model."""


class HubError(ZooError):
    """The Hugging Face Hub refused something or cannot be reached."""


class UnknownModelError(ZooError, LookupError):
    """A model name is not registered; the message names the nearest ones."""


class MissingDependencyError(ZooError, ImportError):
    """An optional dependency is not installed; the message gives the exact install command."""


def require(module: str, extra: str) -> ModuleType:
    """Imports an optional dependency where it is used.

    Args:
        module: Import name, for example `"accelerate"`.
        extra: The extra of this distribution that installs it.

    Raises:
        MissingDependencyError: If the import fails; says why, and names the `pip install` line.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        absent = isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == package
        why = "is not installed" if absent else f"cannot be imported ({' '.join(str(error).split())})"
        raise MissingDependencyError(f"{module} is needed here and {why}: pip install 'pape-zoo[{extra}]'") from error
