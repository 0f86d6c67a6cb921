"""Our own measurements, read when asked for from `comparison.json` and the records of `hub_cards`. Imports no torch.

A table of `rules.yaml` becomes rows of plain data, one for each number: encoding, options of the encoding, extension,
size, condition, metric, value, standard deviation and number of seeds where there are several, and `kind`: `"trained"`
(as in training), `"changed"` (another size or condition) or `"turned"` (inputs turned at random).
"""

from __future__ import annotations

import fnmatch
import functools
import importlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from zoo import registry
from zoo.advice.rules import load_rules
from zoo.cards import read_record
from zoo.errors import ConfigError

__all__ = ["comparison", "comparison_path", "measured", "measured_file", "tables"]

# Keys of a training recipe that do not change what is learned.
_FREE = ("workers", "compile", "checkpoint_every", "checkpoint_seconds", "log_every")


def comparison_path() -> Path:
    """Where `comparison.json` is, see `measured_file`."""
    return measured_file("comparison.json", "the measured comparison")


def measured_file(name: str, what: str) -> Path:
    """Where a file of measurements is: in the installed package `hub_cards`, in a checkout in `docs`.

    Args:
        name: Of the file.
        what: It is, for the error.

    Raises:
        ConfigError: If it is at neither place.
    """
    package = Path(next(iter(importlib.import_module("hub_cards").__path__)))
    places = (package / name, package.parent / "docs" / name)
    for path in places:
        if path.is_file():
            return path
    looked = " and ".join(map(str, places))
    raise ConfigError(f"{what} is not in this installation (looked for {looked})")


@functools.cache
def comparison() -> list[dict[str, Any]]:
    """The rows of the sweep `comparison` as they were written; not to be changed.

    Raises:
        ConfigError: If the file is missing or damaged.
    """
    path = comparison_path()
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
        return [dict(row) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None


@functools.cache
def _records() -> dict[str, dict[str, Any]]:
    names = registry.list_models()
    found = {name: read_record(name) for name in names}
    return {name: record for name, record in found.items() if record is not None}


@functools.cache
def tables() -> dict[str, dict[str, Any]]:
    """Table id -> its description in `rules.yaml` with `rows` and, where names were left aside, `left_aside`."""
    made = {}
    for table in load_rules()["tables"]:
        rows, aside = _rows(table)
        made[table["id"]] = {**table, "lower": table.get("lower", False), "rows": rows, "left_aside": aside}
    return made


def measured(tokens: str) -> list[dict[str, Any]]:
    """The tables about such tokens, also those without rows so far."""
    return [table for table in tables().values() if tokens in table["tokens"]]


def _rows(table: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    if table.get("comparison"):
        return _of_comparison(), []
    metrics = [table["metric"], *([table["turned"]] if "turned" in table else [])]
    if "card" in table:
        record = _records().get(table["card"], {"comparison": []})
        found = [(item["name"], item["evaluation"]) for item in record["comparison"] if "evaluation" in item]
        return _of_cards(found, metrics), []
    if "models" in table:
        names = [name for name in table["models"] if name in _records()]
    else:
        names = fnmatch.filter(_records(), table["cards"])
    same, other = _same_recipe(names)
    return _of_cards([(name, _records()[name]["evaluation"]) for name in same], metrics), other


def _of_comparison() -> list[dict[str, Any]]:
    rows = []
    trained = min(int(size) for row in comparison() for size in row["top1"])  # All were trained at the smallest.
    for row in comparison():
        entry, given = registry.entry(row["model"]), row["model_options"]
        rows += [
            {
                "encoding": given.get("encoding", entry.encoding),
                "options": given.get("encoding_options", {}),
                "extend": None if row["extend"] == "none" else row["extend"],
                "model": row["model"],
                "size": int(size),
                "times": int(size) / trained,
                "condition": None,
                "metric": "top1",
                "kind": "trained" if int(size) == trained else "changed",
                "value": number["mean"],
                "std": number["std"],
                "seeds": len(row["seeds"]),
            }
            for size, number in row["top1"].items()
        ]
    return rows


def _of_cards(found: Iterable[tuple[str, list[dict[str, Any]]]], metrics: list[str]) -> list[dict[str, Any]]:
    rows = []
    for name, evaluation in found:
        numbers = [number for number in evaluation if number["metric"] in metrics]
        if not numbers:
            continue
        first = numbers[0]
        for number in numbers:
            times = _longest(number["size"]) / _longest(first["size"])
            same = number["size"] == first["size"] and number.get("condition") == first.get("condition")
            kind = "turned" if number["metric"] != metrics[0] else "trained" if same else "changed"
            rows.append(
                {
                    "encoding": registry.entry(name).encoding,
                    "options": {},
                    "extend": number.get("extend"),
                    "model": name,
                    "size": number["size"],
                    "times": times,
                    "condition": number.get("condition"),
                    "metric": number["metric"],
                    "kind": kind,
                    "value": number["value"],
                    "std": number.get("std"),
                    "seeds": number.get("seeds") or len(number.get("runs", {})) or 1,
                }
            )
    return rows


def _longest(size: int | list[int]) -> int:
    return size if isinstance(size, int) else max(size)


def _same_recipe(names: list[str]) -> tuple[list[str], list[str]]:
    """Names trained by the recipe that most were trained by, and the others."""

    def recipe(name: str) -> str:
        training = _records()[name]["training"]
        settings = {key: value for key, value in training["recipe"].items() if key not in _FREE}
        return json.dumps([training["epochs"], settings], sort_keys=True, default=str)

    each = {name: recipe(name) for name in names}
    if not each:
        return [], []
    common = Counter(each.values()).most_common(1)[0][0]
    return [n for n in names if each[n] == common], [n for n in names if each[n] != common]
