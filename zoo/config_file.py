"""Reading and checking `config.json`: bounded work on files from strangers, and a versioned schema.

Nothing in a configuration is executed, imported or opened: architectures and encodings are looked up in fixed tables.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import warnings
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any

from zoo import registry
from zoo.errors import ConfigError, WeightsError

__all__ = [
    "SCHEMA_VERSION",
    "check_config",
    "dump_config",
    "open_regular",
    "parse_json",
    "read_config",
    "read_json",
    "regular_file_size",
]

SCHEMA_VERSION = 1
MAX_JSON_BYTES = 1 << 20
MAX_DEPTH = 12
MAX_PARAMETERS = 4_000_000_000
MAX_SIZE = 1 << 20  # No width, depth or count of a model is larger.

REQUIRED = ("schema_version", "modality", "task", "architecture", "model")
KNOWN = ("schema_version", "name", "modality", "task", "architecture", "model", "data", "labels")


def regular_file_size(path: Path) -> int:
    """Size of a file in bytes, without opening it (a pipe or device would block or never end).

    Raises:
        WeightsError: If there is no such file, or it is not a regular one.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise WeightsError(f"cannot read {path}: {reason}") from None
    if not stat.S_ISREG(status.st_mode):
        raise WeightsError(f"cannot read {path}: not a regular file")
    return status.st_size


def open_regular(path: Path) -> BufferedReader:
    """Opens a regular file for reading bytes.

    Raises:
        WeightsError: If it is not one, or may not be read.
    """
    regular_file_size(path)
    try:
        return open(path, "rb")
    except OSError as error:
        raise WeightsError(f"cannot read {path}: {error.strerror or error}") from None


def parse_json(data: bytes, where: str) -> Any:
    """Parses JSON strictly: UTF-8, no duplicate keys, no NaN or infinity, nesting of at most `MAX_DEPTH`.

    Args:
        data: The text.
        where: What it is, for messages.

    Raises:
        ConfigError: If any of this does not hold.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"key {twice!r:.60} appears twice")
        return found

    def refuse(token: str) -> Any:
        raise ValueError(f"{token} is not JSON")

    def finite(token: str) -> float:
        value = float(token)
        if not math.isfinite(value):
            raise ValueError(f"the number {token[:30]} is out of range")
        return value

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=unique, parse_constant=refuse, parse_float=finite)
    except RecursionError:
        raise ConfigError(f"{where} is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where} is not UTF-8 text (byte {error.start})") from None
    except ValueError as error:
        raise ConfigError(f"{where} is not valid JSON: {error}") from None
    if _depth(value) > MAX_DEPTH:
        raise ConfigError(f"{where} is nested too deeply (more than {MAX_DEPTH} levels)")
    return value


def _depth(value: Any) -> int:
    """Levels of nesting, counted without recursion."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            break
        children: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                children.extend(item.values())
            elif isinstance(item, list):
                children.extend(item)
        level = children
    return depth


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object of at most 1 MiB.

    Raises:
        WeightsError: If there is no such file.
        ConfigError: If it is too large or not a valid JSON object.
    """
    if regular_file_size(path) > MAX_JSON_BYTES:
        raise ConfigError(f"{path} is larger than 1 MiB: not a configuration")
    with open_regular(path) as file:
        data = file.read(MAX_JSON_BYTES + 1)
    value = parse_json(data, str(path))
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds a JSON {type(value).__name__}; expected an object")
    return value


def read_config(path: Path) -> dict[str, Any]:
    """Reads and checks a `config.json`, as `check_config` does."""
    return check_config(read_json(path), where=str(path))


def check_config(config: dict[str, Any], where: str = "config") -> dict[str, Any]:
    """Checks the frame of a configuration: version, known keys, types, labels, and the size of the model.

    What the model and the preprocessing may hold in detail is checked by their builders.

    Args:
        config: Parsed `config.json`.
        where: What it is, for messages.

    Returns:
        The configuration without unknown keys (a `UserWarning` names them), with `name`, `data` and `labels` filled in.

    Raises:
        ConfigError: If it is not a configuration of this library, of a newer version, or has unusable values.
    """
    version = config.get("schema_version")
    if version is None:
        hint = ""
        if "positional" in config and "dataset" in config:
            hint = "; it looks like an official PaPE checkpoint: convert it with `zoo convert FOLDER OUT`"
        raise ConfigError(f"{where} has no schema_version, so it does not describe a model of pape-zoo{hint}")
    if type(version) is not int or version < 1:
        raise ConfigError(f"{where}: schema_version is {version!r:.60}, expected {SCHEMA_VERSION}")
    if version > SCHEMA_VERSION:
        raise ConfigError(
            f"{where} has schema_version {version}; this pape-zoo reads up to {SCHEMA_VERSION}: upgrade pape-zoo"
        )
    missing = [key for key in REQUIRED if key not in config]
    if missing:
        raise ConfigError(f"{where} lacks {', '.join(missing)}")
    unknown = sorted(key for key in config if key not in KNOWN)
    if unknown:
        warnings.warn(f"{where}: unknown keys ignored: {', '.join(f'{key:.40}' for key in unknown)}", stacklevel=3)

    checked = {key: config[key] for key in KNOWN if key in config}
    for key in ("model", "data"):
        if not isinstance(checked.setdefault(key, {}), dict):
            raise ConfigError(f"{where}: {key} must be an object, got {checked[key]!r:.60}")
    for key in ("modality", "task", "architecture", "name"):
        value = checked.setdefault(key, "unnamed" if key == "name" else None)
        if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", value):
            raise ConfigError(f"{where}: {key} must be a name of letters, digits, '.', '_', '-'; got {value!r:.60}")
    if (task := registry.architecture(checked).task) != checked["task"]:
        name = checked["architecture"]
        raise ConfigError(f"{where}: architecture {name} is for {task}, not for task {checked['task']!r}")
    _check_size(checked, where)
    checked["labels"] = _check_labels(checked.get("labels"), checked["model"]["num_classes"], where)
    return checked


def _check_size(config: dict[str, Any], where: str) -> None:
    model = config["model"]
    for key in registry.architecture(config).sizes:
        value = model.get(key)
        low = 0 if key == "num_classes" else 1  # Without classes there is no head.
        if type(value) is not int or not low <= value <= MAX_SIZE:
            raise ConfigError(f"{where}: model.{key} must be an integer from {low} to {MAX_SIZE}, got {value!r:.60}")
    if not isinstance(model.get("encoding"), str):
        raise ConfigError(f"{where}: model.encoding must be a string, got {model.get('encoding')!r:.60}")
    options = model.setdefault("encoding_options", {})
    if not isinstance(options, dict):
        raise ConfigError(f"{where}: model.encoding_options must be an object, got {options!r:.60}")
    try:
        count = registry.architecture(config).count_parameters(model)
    except (TypeError, AttributeError):
        raise ConfigError(f"{where}: model.encoding_options has a value of the wrong type: {options!r:.100}") from None
    if count > MAX_PARAMETERS:
        raise ConfigError(f"{where} describes a model of {count:.3g} parameters; the bound is {MAX_PARAMETERS:.0e}")


def _check_labels(labels: Any, num_classes: int, where: str) -> list[str] | None:
    if labels is None:
        return None
    if not isinstance(labels, list) or len(labels) != num_classes:
        raise ConfigError(f"{where}: labels must be null or a list of {num_classes} names")
    for label in labels:
        # Control characters would reach the terminal.
        if not isinstance(label, str) or not 0 < len(label) <= 500 or not label.isprintable():
            raise ConfigError(f"{where}: labels must be short printable strings, got {label!r:.60}")
    return labels


def dump_config(config: Mapping[str, Any]) -> str:
    """The text of a `config.json`.

    Raises:
        ConfigError: If a value cannot be written as JSON.
    """
    try:
        return json.dumps(config, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the configuration cannot be written as JSON: {error}") from None
