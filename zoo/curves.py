"""Accuracy over input size, read from result files, tables of sweeps and records of models."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.config_file import parse_json
from zoo.errors import ConfigError, DataError, UnknownModelError

__all__ = ["Curve", "chosen", "common_trained_size", "read_curves"]

_LARGEST = 65_536  # Size in pixels, as in `DataConfig`.


@dataclass(frozen=True)
class Curve:
    """Top-1 accuracy of one model over input sizes.

    Attributes:
        name: Model name.
        points: Size in pixels (side of a square) -> top-1 accuracy in percent.
    """

    name: str
    points: dict[int, float]


def read_curves(sources: Iterable[str | os.PathLike[str]]) -> list[Curve]:
    """Reads curves from evaluation result files and from the records of registered models.

    Args:
        sources: Result files of `zoo eval --out FILE.json`, tables of `zoo sweep NAME --table --json`, or model names
            whose record holds measurements; the models that a record compares with are included.

    Returns:
        Curves in the order of the sources; a name that comes again adds its sizes to the first.

    Raises:
        DataError: If a file cannot be read or is not a result file, or a record holds no measurement.
        UnknownModelError: If a source is neither a file nor a recorded name.
    """
    merged: dict[str, dict[int, float]] = {}
    for source in sources:
        path = Path(source)
        if path.is_file() or path.suffix == ".json":
            found: Iterator[tuple[str, Any, Any]] = _from_results(path)
        else:
            found = _from_record(str(source))
        for name, size, top1 in found:
            merged.setdefault(name, {})[_size(size, source)] = _percent(top1, source)
    return [Curve(name, dict(sorted(points.items()))) for name, points in merged.items()]


def chosen(models: Sequence[Curve], names: str | None) -> list[Curve]:
    """The curves of these names (separated by commas), in that order; all of them for `None`.

    Raises:
        DataError: If there is no curve of a name.
    """
    if names is None:
        return list(models)
    known = {curve.name: curve for curve in models}
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    missing = [name for name in wanted if name not in known]
    if missing or not wanted:
        raise DataError(f"no curve is called {(missing or [names])[0]!r}; there are: {', '.join(known)}")
    return [known[name] for name in wanted]


def _from_results(path: Path) -> Iterator[tuple[str, Any, Any]]:
    try:
        content = parse_json(path.read_bytes(), str(path))
    except (OSError, ConfigError) as error:
        raise DataError(f"{path}: not a readable JSON file ({error})") from error
    if isinstance(content, dict) and isinstance(content.get("rows"), list):  # The table of a sweep.
        yield from _from_sweep(content["rows"], path)
        return
    rows = content.get("results") if isinstance(content, dict) else None
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path}: not a result file; expected what `zoo eval NAME --out FILE.json` writes")
    for row in rows:
        yield str(content.get("name", path.stem)), row.get("size"), row.get("top1")


def _from_sweep(table: list[Any], path: Path) -> Iterator[tuple[str, Any, Any]]:
    for row in table:
        try:
            name = row["name"] if row["extend"] == "none" else f"{row['name']} with {row['extend']}"
            points = [(size, top1["mean"]) for size, top1 in row["top1"].items()]
        except (TypeError, KeyError, AttributeError):
            raise DataError(
                f"{path}: not a result file; expected what `zoo eval --out` or `zoo sweep --table --json` writes"
            ) from None
        for size, top1 in points:
            yield str(name), size, top1


def _from_record(name: str) -> Iterator[tuple[str, Any, Any]]:
    import yaml

    import hub_cards
    from zoo.card_text import compared_name, compared_sizes

    path = Path(hub_cards.__path__[0]) / name / "record.yaml"
    if Path(name).name != name or not path.is_file():
        raise UnknownModelError(f"{name!r} is neither a result file nor a model with a record")
    record = yaml.safe_load(path.read_text(encoding="utf-8"))
    rows = record.get("evaluation") or []
    # A detector's numbers are of other metrics: it has no curve.
    measured = [row for row in rows if row.get("metric", "top1") == "top1" and "extend" not in row]
    compared = [row for row in record.get("comparison") or [] if compared_sizes(row)]
    if not measured and not compared:
        raise DataError(f"{name}: its record holds no measured top-1 accuracy")
    for row in measured:
        yield name, row.get("size"), row.get("value")
    for other in compared:
        for size, top1 in compared_sizes(other).items():
            yield compared_name(other), size, top1


def _size(value: Any, source: object) -> int:
    try:
        size = int(value)
    except (TypeError, ValueError, OverflowError):
        size = 0
    if not 1 <= size <= _LARGEST:
        raise DataError(f"{source}: a size must be a positive number of pixels up to {_LARGEST}, got {value!r:.80}")
    return size


def _percent(value: Any, source: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
        raise DataError(f"{source}: top-1 accuracy must be a number from 0 to 100, got {value!r:.80}")
    return float(value)


def common_trained_size(models: Iterable[Curve]) -> int | None:
    """The size in pixels that all these registered models were trained at, or `None` if that is not one size."""
    from zoo import registry

    sizes: set[int | None] = set()
    for curve in models:
        try:
            config = registry.entry(curve.name.split(" (")[0]).config
            sizes.update(registry.architecture(config).data_config(config["data"]).input_size[1:])
        except UnknownModelError:
            sizes.add(None)
    return sizes.pop() if len(sizes) == 1 else None
