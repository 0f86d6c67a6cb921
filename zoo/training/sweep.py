"""Sweeps: a list of training runs by one recipe, each measured at several sizes, and a table over all of them.

A sweep is a YAML file with the fields of `Sweep`. Its runs go into one folder; several processes (one per GPU) may work
on the same folder, each taking the next run that nobody has taken, and a sweep that was interrupted goes on where it
was.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zoo.errors import ConfigError, ZooError
from zoo.files import write_whole
from zoo.training.recipe import Recipe, load_recipe
from zoo.training.settings import parse, read_settings

__all__ = ["Run", "Sweep", "built_in_sweeps", "load_sweep", "run_sweep", "summarise"]

RESULT_SUFFIX, CLAIM_SUFFIX = ".json", ".taken"
RESULT_KEYS = ("name", "model", "model_options", "seed", "recipe", "dataset", "images", "dtype", "training", "top1")


@dataclasses.dataclass(frozen=True)
class Run:
    """One setting of a sweep, with one training run per seed.

    Attributes:
        name: Names its files and its row; of letters, digits and `+-_.`.
        model: Registered name that is trained.
        seeds: Seeds of its runs.
        encoding: Another position encoding than that of the model.
        encoding_options: Options of the encoding.
        extend: Methods of context extension that the run of the first seed is measured with, beside none.
    """

    name: str
    model: str
    seeds: tuple[int, ...] = (0,)
    encoding: str | None = None
    encoding_options: dict[str, Any] | None = None
    extend: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.name or not all(c.isalnum() or c in "+-_." for c in self.name) or self.name.startswith("."):
            raise ConfigError(f"sweep: a run's name has letters, digits and + - _ . only, got {self.name!r:.60}")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ConfigError(f"sweep: run {self.name}: seeds must be different whole numbers, at least one")

    def model_options(self) -> dict[str, Any]:
        """Keyword arguments for `zoo.load`."""
        options = {"encoding": self.encoding, "encoding_options": self.encoding_options}
        return {key: value for key, value in options.items() if value is not None}


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What a sweep does.

    Attributes:
        recipe: Name or path of the recipe of all runs.
        runs: Settings, the most important first.
        sizes: Sides in pixels at which every run is measured.
        dtype: Of the measurement, see `zoo.evaluate.evaluate`.
        settings: Recipe keys that replace those of the file.
    """

    recipe: str
    runs: tuple[Run, ...]
    sizes: tuple[int, ...]
    dtype: str = "float32"
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)

    def jobs(self, only: Sequence[str] = ()) -> list[tuple[Run, int]]:
        """Runs and seeds in the order of work: all first seeds, then all second ones, and so on.

        Raises:
            ConfigError: If `only` names a run that is not there.
        """
        known = [run.name for run in self.runs]
        if missing := [name for name in only if name not in known]:
            raise ConfigError(f"sweep: no run {missing[0]!r}; its runs: {', '.join(known)}")
        runs = [run for run in self.runs if not only or run.name in only]
        rounds = max(len(run.seeds) for run in runs)
        return [(run, run.seeds[turn]) for turn in range(rounds) for run in runs if turn < len(run.seeds)]


def built_in_sweeps() -> dict[str, Path]:
    """Name -> file of the sweeps that come with the modalities."""
    import modalities

    files = sorted(path for root in modalities.__path__ for path in Path(root).glob("*/sweeps/*.yaml"))
    return {path.stem: path for path in files}


def load_sweep(config: str | Path) -> Sweep:
    """Reads a sweep.

    Args:
        config: Path of a YAML file, or the name of a built-in sweep.

    Raises:
        ConfigError: If there is no such sweep, or it is not a good one.
    """
    path, values = read_settings(config, built_in_sweeps(), "sweep")
    if not isinstance(values.get("runs"), list) or not values["runs"]:
        raise ConfigError(f"{path}: a sweep is a mapping with a list of runs")
    rows = [row if isinstance(row, Mapping) else {} for row in values["runs"]]
    runs = tuple(parse(Run, row, f"{path}: run {i + 1}") for i, row in enumerate(rows))
    if len({run.name for run in runs}) != len(runs):
        raise ConfigError(f"{path}: two runs have the same name")
    return parse(Sweep, {**values, "runs": runs}, str(path))


def run_sweep(
    sweep: Sweep,
    data: str,
    out: str | Path,
    *,
    only: Sequence[str] = (),
    max_minutes: float | None = None,
    quiet: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> list[Path]:
    """Trains and measures the runs that are not done yet.

    A run leaves `OUT/NAME-SEED/` (what `zoo train` writes) and `OUT/NAME-SEED.json`: setting, seed, record of the
    training and top-1 by size, without and with each extension. A run that fails is reported and the next one is tried.

    Args:
        sweep: What to do.
        data: Folder with the training and validation data.
        out: Folder of the sweep; several processes may share it.
        only: Names of runs; empty for all.
        max_minutes: Start no run that would end after this time, going by the longest so far; `None` for no limit.
        quiet: Show no progress bars.
        say: Gets a line when a run starts, ends or fails.

    Returns:
        The results files written here.

    Raises:
        ConfigError: If the sweep or its recipe cannot be used.
        ZooError: At the end, naming the runs that failed.
    """
    folder = Path(out)
    task = _recipe(sweep, sweep.runs[0], 0, data, folder).task
    if task != "image-classification":
        raise ConfigError(
            f"sweep: it measures top-1 of image classifiers; recipe {sweep.recipe} is for {task}: run `zoo train` and "
            "`zoo eval` for each setting"
        )
    folder.mkdir(parents=True, exist_ok=True)
    began, longest = time.monotonic(), 0.0
    written, failed = [], []
    for run, seed in sweep.jobs(only):
        stem = f"{run.name}-{seed}"
        if max_minutes is not None and time.monotonic() - began + longest > 60 * max_minutes:
            say(f"{stem}: not started, {max_minutes:g} minutes are nearly over")
            break
        with _claim(folder, stem) as mine:
            if not mine:
                continue
            start = time.monotonic()
            say(f"{stem}: training")
            try:
                result = _train_and_measure(sweep, run, seed, data, folder / stem, quiet)
            except Exception as error:  # One setting must not cost the others.
                failed.append(stem)
                say(f"{stem}: failed ({type(error).__name__}: {' '.join(str(error).split())[:300]})")
                continue
            path = folder / f"{stem}{RESULT_SUFFIX}"
            write_whole(path, json.dumps(result, indent=2) + "\n")
            written.append(path)
            longest = max(longest, time.monotonic() - start)
            tops = ", ".join(f"{size} px {top:.1f}" for size, top in result["top1"]["none"].items())
            say(f"{stem}: {tops} ({time.monotonic() - start:.0f} s)")
    if failed:
        raise ZooError(f"{len(failed)} runs failed: {', '.join(failed)}")
    return written


@contextmanager
def _claim(folder: Path, stem: str) -> Iterator[bool]:
    """Takes a run for this process, unless it is done or taken."""
    claim = folder / f"{stem}{CLAIM_SUFFIX}"
    if (folder / f"{stem}{RESULT_SUFFIX}").exists():
        yield False
        return
    try:
        os.close(os.open(claim, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        yield False
        return
    try:
        yield True
    finally:
        claim.unlink(missing_ok=True)


def _train_and_measure(sweep: Sweep, run: Run, seed: int, data: str, folder: Path, quiet: bool) -> dict[str, Any]:
    import torch

    import zoo
    from zoo.evaluate import evaluate_data
    from zoo.training.loop import train

    recipe = _recipe(sweep, run, seed, data, folder)
    torch.compiler.reset()  # Each setting compiles anew; what did not change comes from the compiler's cache on disk.
    train(recipe, resume=folder.exists(), quiet=quiet, command=None)
    record = json.loads((folder / "train_record.json").read_text(encoding="utf-8"))
    model = zoo.load(f"local-dir:{folder}", device="cuda" if torch.cuda.is_available() else "cpu")
    top1: dict[str, dict[str, float]] = {}
    larger = [size for size in sweep.sizes if size > max(model.data_config.input_size[1:])]
    for method in ("none", *(run.extend if seed == run.seeds[0] else ())):
        report = evaluate_data(
            model,
            data,
            sizes=list(sweep.sizes) if method == "none" else larger,  # Elsewhere an extension changes nothing.
            dtype=sweep.dtype,
            quiet=quiet,
            extend=None if method == "none" else method,
        )
        top1[method] = {str(row["size"]): round(row["top1"], 2) for row in report["results"]}
    kept = ("epochs", "device", "compiled", "duration_s", "final_train_loss", "parameters", "date", "versions")
    return {
        "name": run.name,
        "model": run.model,
        "model_options": run.model_options(),
        "seed": seed,
        "recipe": sweep.recipe,
        "dataset": report["dataset"],
        "images": report["images"],
        "data_sha256": {"train": record["data"]["sha256"], "validation": report["data_sha256"]},
        "dtype": sweep.dtype,
        "training": {key: record.get(key) for key in kept},
        "top1": top1,
    }


def _recipe(sweep: Sweep, run: Run, seed: int, data: str, folder: Path) -> Recipe:
    options = {**sweep.settings.get("model_options", {}), **run.model_options()}
    own = {"model": run.model, "data": data, "output": str(folder), "seed": seed, "model_options": options}
    return load_recipe(sweep.recipe, {**sweep.settings, **own})


def summarise(folder: str | Path, sweep: Sweep) -> list[dict[str, Any]]:
    """One row per setting and extension, in the order of the sweep, from the results files in a folder.

    Returns:
        `{"name", "model", "model_options", "recipe", "extend", "seeds", "dataset", "images", "dtype", "training",
        "top1": {size: {"mean", "std"}}}`; the sample standard deviation over seeds is `None` for one seed, and
        `training` is the record of the first seed.

    Raises:
        ConfigError: If a results file is damaged, or there is none.
    """
    rows = []
    for run in sweep.runs:
        results = [_read(path) for seed in run.seeds if (path := Path(folder) / f"{run.name}-{seed}.json").is_file()]
        for method in ("none", *run.extend):
            measured = [result for result in results if result["top1"].get(method)]
            if not measured:
                continue
            first = measured[0]
            tables = [result["top1"][method] for result in measured]
            row = {key: first[key] for key in ("name", "model", "model_options", "recipe")}
            row |= {"extend": method, "seeds": [result["seed"] for result in measured]}
            row |= {key: first[key] for key in ("dataset", "images", "dtype", "training")}
            rows.append({**row, "top1": {size: _spread([table[size] for table in tables]) for size in tables[0]}})
    if not rows:
        raise ConfigError(f"{folder}: no results of this sweep yet")
    return rows


def _read(path: Path) -> dict[str, Any]:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        missing = [key for key in RESULT_KEYS if key not in result]
        if missing or not isinstance(result["top1"].get("none"), dict):
            raise KeyError(missing or "none")
        return dict(result)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: not a results file of a sweep ({type(error).__name__})") from None


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    mean = sum(values) / len(values)
    if len(values) < 2:
        return {"mean": round(mean, 2), "std": None}
    return {
        "mean": round(mean, 2),
        "std": round(math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1)), 2),
    }
