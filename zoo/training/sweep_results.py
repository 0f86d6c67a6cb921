"""Results files of a sweep, and what they come to over seeds."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zoo.card_metrics import digits
from zoo.errors import ConfigError
from zoo.training.sweep_plan import Run, Sweep

__all__ = ["RESULT_SUFFIX", "Measured", "gather", "spread", "summarise"]

RESULT_SUFFIX = ".json"
_KEYS = ("name", "model", "model_options", "seed", "recipe", "dataset", "images", "dtype", "training")
# What a row has only where its results have it, as those of decoders.
_MORE = ("settings", "split", "conditions")


@dataclasses.dataclass(frozen=True)
class Measured:
    """What was measured of one setting with one extension: a row of the table.

    Attributes:
        run: The setting.
        extend: Method of context extension, or `"none"`.
        results: Contents of the results files, by seed in the order of the sweep; at least one.
    """

    run: Run
    extend: str
    results: tuple[dict[str, Any], ...]

    @property
    def seeds(self) -> list[int]:
        """Seeds of the results."""
        return [result["seed"] for result in self.results]

    def values(self, metric: str) -> dict[str, list[float]]:
        """Size -> values of a metric, one for each seed; sizes that one of the seeds lacks are left out."""
        tables = [result[metric][self.extend] for result in self.results]
        return {size: [table[size] for table in tables] for size in tables[0] if all(size in t for t in tables)}


def gather(folder: str | Path, sweep: Sweep) -> list[Measured]:
    """What there is of each setting and extension, in the order of the sweep.

    Raises:
        ConfigError: If a results file is damaged or of other settings, or there is none.
    """
    rows = []
    for run in sweep.runs:
        paths = [Path(folder) / f"{run.name}-{seed}{RESULT_SUFFIX}" for seed in run.seeds]
        results = [_read(path, sweep, run) for path in paths if path.is_file()]
        for method in ("none", *run.extend):
            measured = tuple(result for result in results if result[sweep.metrics[0]].get(method))
            if measured:
                rows.append(Measured(run, method, measured))
    if not rows:
        raise ConfigError(f"{folder}: no results of this sweep yet")
    return rows


def summarise(folder: str | Path, sweep: Sweep, *, runs: bool = False) -> list[dict[str, Any]]:
    """One row per setting and extension, in the order of the sweep, from the results files in a folder.

    Args:
        folder: Of the sweep.
        sweep: Whose results to take.
        runs: Also state the value of each seed: `"runs": {seed: value}` beside mean and standard deviation.

    Returns:
        `{"name", "model", "model_options", "recipe", "extend", "seeds", "dataset", "images", "dtype", "training",
        METRIC: {size: {"mean", "std"}}}`, with every metric of the sweep under its name; the sample standard deviation
        over seeds is `None` for one seed, and `training` is the record of the first seed. Results that state them also
        give `settings` (recipe keys that are not those of the recipe), `split`, and `conditions` (size -> what it is).

    Raises:
        ConfigError: If a results file is damaged or of other settings, or there is none.
    """
    rows = []
    for row in gather(folder, sweep):
        first = row.results[0]
        found = {key: first[key] for key in ("name", "model", "model_options", "recipe")}
        found |= {"extend": row.extend, "seeds": row.seeds}
        found |= {key: first[key] for key in ("dataset", "images", "dtype", "training")}
        found |= {key: first[key] for key in _MORE if key in first}
        for metric in sweep.metrics:
            found[metric] = {
                size: spread(values, metric)
                | ({"runs": dict(zip(map(str, row.seeds), values, strict=True))} if runs else {})
                for size, values in row.values(metric).items()
            }
        rows.append(found)
    return rows


def _read(path: Path, sweep: Sweep, run: Run) -> dict[str, Any]:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        missing = [key for key in (*_KEYS, *sweep.metrics) if key not in result]
        if missing or not all(isinstance(result[metric].get("none"), dict) for metric in sweep.metrics):
            raise KeyError(missing or "none")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: not a results file of a sweep ({type(error).__name__})") from None
    if result.get("dry_run", False) != sweep.dry:
        raise ConfigError(f"{path}: {'not ' if sweep.dry else ''}of a dry run: choose another --out")
    settings = json.loads(json.dumps(sweep.settings_of(run)))
    if result.get("settings", settings) != settings:  # Files of older versions do not say.
        raise ConfigError(f"{path}: the sweep has other settings for {run.name} now: delete it or choose another --out")
    return dict(result)


def spread(values: Sequence[float], metric: str) -> dict[str, Any]:
    """Mean and sample standard deviation, which is `None` of one value."""
    places, mean = digits(metric), sum(values) / len(values)
    if len(values) < 2:
        return {"mean": round(mean, places), "std": None}
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return {"mean": round(mean, places), "std": round(deviation, places)}
