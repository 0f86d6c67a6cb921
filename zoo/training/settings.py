"""Dataclasses from plain mappings (YAML), strictly: unknown keys and wrong types are errors that name the key."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from zoo.errors import ConfigError

__all__ = ["check", "field_names", "parse", "read_settings", "unknown_key"]

T = TypeVar("T")


def read_settings(config: str | Path, built_in: Mapping[str, Path], kind: str) -> tuple[Path, dict[str, Any]]:
    """Reads a YAML mapping from a file, or from a built-in one by name.

    Args:
        config: Path of a YAML file, or a key of `built_in`.
        built_in: Name -> file.
        kind: What it is, for error messages, such as `"recipe"`.

    Returns:
        Its path and its values.

    Raises:
        ConfigError: If there is no such file or name, or it holds no mapping.
    """
    path = Path(config)
    if not path.is_file():
        if str(config) not in built_in:
            raise ConfigError(f"no {kind} {str(config)!r}: give a YAML file or one of {', '.join(sorted(built_in))}")
        path = built_in[str(config)]
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: not a readable YAML file: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: a {kind} is a mapping of keys to values")
    return path, values


def check(key: str, value: object, good: bool, expected: str) -> None:
    """Refuses a value of a recipe.

    Raises:
        ConfigError: If it is not `good`.
    """
    if not good:
        raise ConfigError(f"recipe: {key} must be {expected}, got {value!r}")


def field_names(*classes: type) -> list[str]:
    """Names of the fields of dataclasses that a mapping may set, in order."""
    return [f.name for c in classes for f in dataclasses.fields(c) if f.init and not f.metadata.get("internal")]


def unknown_key(key: object, known: list[str], where: str) -> ConfigError:
    """The error for a key that is not known; names the nearest one."""
    near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(sorted(known))}"
    return ConfigError(f"{where}: unknown key {key!r}; {hint}")


def parse(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """Builds dataclass `cls` from `values`, checking names and types.

    Whole numbers are taken for floats, and so is text such as `1e-3`, which YAML 1.1 reads as a string.

    Args:
        cls: A dataclass whose field types are str, int, float, bool, dict, tuples of those, or `| None`; a
            dataclass among the values is taken as it is.
        values: Keys and values.
        where: What the values come from, for the error text.

    Raises:
        ConfigError: For an unknown key, a missing one, or a value of the wrong type.
    """
    known = field_names(cls)
    hints = typing.get_type_hints(cls)
    for key in values:
        if key not in known:
            raise unknown_key(key, known, where)
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and field.name not in values:
            raise ConfigError(f"{where}: key {field.name!r} is missing")
    return cls(**{key: _convert(value, hints[key], key, where) for key, value in values.items()})


def _convert(value: Any, hint: Any, key: str, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        (inner,) = [a for a in arguments if a is not type(None)]
        return _convert(value, inner, key, where)
    if origin is tuple and arguments[1:] == (Ellipsis,):
        if isinstance(value, (list, tuple)):
            return tuple(_convert(item, arguments[0], key, where) for item in value)
        raise ConfigError(f"{where}: {key} must be a list, got {value!r}")
    if origin is tuple:
        if isinstance(value, (list, tuple)) and len(value) == len(arguments):
            return tuple(_convert(v, a, key, where) for v, a in zip(value, arguments, strict=True))
        raise ConfigError(f"{where}: {key} must be a list of {len(arguments)} values, got {value!r}")
    if origin is dict or hint is dict:
        if isinstance(value, Mapping) and all(isinstance(k, str) for k in value):
            return dict(value)
        raise ConfigError(f"{where}: {key} must be a mapping, got {value!r}")
    if hint is float and not isinstance(value, bool):
        try:
            return float(value)
        except (TypeError, ValueError):
            pass
    elif isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    expected = {float: "a number", int: "a whole number", bool: "true or false", str: "text"}.get(hint, hint.__name__)
    raise ConfigError(f"{where}: {key} must be {expected}, got {value!r}")
