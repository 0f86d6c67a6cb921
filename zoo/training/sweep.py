"""Sweeps: a list of training runs by one recipe, each measured at several sizes, and a table over all of them.

A sweep is a YAML file with the fields of `Sweep`. Its runs go into one folder; several processes (one per GPU, or more)
may work on the same folder, each taking the next run that nobody has taken, and a sweep that was interrupted goes on
where it was.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from zoo.card_metrics import MAIN_METRICS, digits, heading, unit
from zoo.errors import ConfigError, ZooError
from zoo.evaluations import evaluation
from zoo.files import write_whole
from zoo.training.recipe import task_class
from zoo.training.sweep_claims import claim
from zoo.training.sweep_plan import Run, Sweep, built_in_sweeps, load_sweep
from zoo.training.sweep_results import RESULT_SUFFIX, summarise

__all__ = ["Run", "Sweep", "built_in_sweeps", "check_metrics", "load_sweep", "run_sweep", "summarise"]

# Of the record of a training run.
_KEPT = ("epochs", "steps", "device", "compiled", "duration_s", "final_train_loss", "parameters", "date", "versions")


def run_sweep(
    sweep: Sweep,
    data: str | None,
    out: str | Path,
    *,
    only: Sequence[str] = (),
    max_minutes: float | None = None,
    device: str | None = None,
    quiet: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> list[Path]:
    """Trains and measures the runs that are not done yet.

    A run leaves `OUT/NAME-SEED/` (what `zoo train` writes) and `OUT/NAME-SEED.json`: setting, seed, record of the
    training, and under the name of each metric its values by extension and size. A run that fails is reported and the
    next one is tried.

    Args:
        sweep: What to do.
        data: Folder with the data of training and measurement; `None` where they are made up.
        out: Folder of the sweep; several processes may share it.
        only: Names of runs; empty for all.
        max_minutes: Start no run that would end after this time, going by the longest so far; `None` for no limit.
        device: `"cpu"` or `"cuda"`; `None` leaves it to the recipe, and measures on CUDA where there is one.
        quiet: Show no progress bars.
        say: Gets a line when a run starts, ends or fails.

    Returns:
        The results files written here.

    Raises:
        ConfigError: If the sweep or its recipe cannot be used.
        ZooError: At the end, naming the runs that failed; or if a signal asked to stop.
    """
    folder = Path(out)
    check_metrics(sweep, data)
    folder.mkdir(parents=True, exist_ok=True)
    began, longest = time.monotonic(), 0.0
    written, failed = [], []
    for run, seed in sweep.jobs(only):
        stem = f"{run.name}-{seed}"
        if max_minutes is not None and time.monotonic() - began + longest > 60 * max_minutes:
            say(f"{stem}: not started, {max_minutes:g} minutes are nearly over")
            break
        with claim(folder, stem, say) as mine:
            if not mine:
                continue
            start = time.monotonic()
            say(f"{stem}: training")
            try:
                result = _train_and_measure(sweep, run, seed, data, folder / stem, quiet, device)
            except _Stopped as stop:
                raise ZooError(f"{stem}: stopped by {stop}; the same command goes on from here") from None
            except Exception as error:  # One setting must not cost the others.
                failed.append(stem)
                say(f"{stem}: failed ({type(error).__name__}: {' '.join(str(error).split())[:300]})")
                continue
            seconds = time.monotonic() - start
            path = folder / f"{stem}{RESULT_SUFFIX}"
            write_whole(path, json.dumps({**result, "seconds": round(seconds, 1)}, indent=2) + "\n")
            written.append(path)
            longest = max(longest, seconds)
            values = ", ".join(f"{size}: {value:g}" for size, value in result[sweep.metrics[0]]["none"].items())
            main = sweep.metrics[0]
            say(f"{stem}: {heading(main)} ({unit(main)}) at size {values} ({seconds:.0f} s)")
    if failed:
        raise ZooError(f"{len(failed)} runs failed: {', '.join(failed)}")
    return written


class _Stopped(Exception):
    """A training run that a signal stopped."""


def check_metrics(sweep: Sweep, data: str | None) -> None:
    """Refuses a sweep whose models nothing measures, or not by its metrics.

    Raises:
        ConfigError: If there is no such recipe, evaluation or metric.
    """
    kind = task_class(sweep.recipe_of(sweep.runs[0], 0, data, Path()).task)
    evaluation(kind.modality, kind.task, f"sweep of recipe {sweep.recipe}")
    known = MAIN_METRICS[kind.task]
    if missing := [metric for metric in sweep.metrics if metric not in known]:
        raise ConfigError(
            f"sweep: recipe {sweep.recipe} is for {kind.modality} {kind.task}, whose metrics are {', '.join(known)}; "
            f"not {missing[0]}: set metrics"
        )


def _train_and_measure(
    sweep: Sweep, run: Run, seed: int, data: str | None, folder: Path, quiet: bool, device: str | None
) -> dict[str, Any]:
    import torch

    import zoo
    from zoo.training.loop import train

    recipe = sweep.recipe_of(run, seed, data, folder, device)
    torch.compiler.reset()  # Each setting compiles anew; what did not change comes from the compiler's cache on disk.
    trained = train(recipe, resume=folder.exists(), quiet=quiet, command=None)
    if not trained.finished:
        raise _Stopped(trained.reason)
    record = json.loads((folder / "train_record.json").read_text(encoding="utf-8"))
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    model: Any = zoo.load(f"local-dir:{folder}", device=where)
    tables: dict[str, dict[str, dict[str, float]]] = {metric: {} for metric in sweep.metrics}
    conditions: dict[str, str] = {}
    own = sweep.trained_size or max(model.data_config.input_size[1:])
    larger = [size for size in sweep.sizes if size > own]
    for method in sweep.methods(run, seed):
        sizes = list(sweep.sizes) if method == "none" else larger  # Elsewhere an extension changes nothing.
        if method != "none" and sweep.sizes and not larger:
            continue
        report = evaluation(model.config["modality"], model.config["task"], run.name)(
            model,
            sweep.data or data,
            split=sweep.split,
            sizes=sizes or None,
            limit=sweep.limit,
            dtype=sweep.dtype,
            quiet=quiet,
            extend=None if method == "none" else method,
        )
        for metric, table in tables.items():
            table[method] = {str(row["size"]): round(row[metric], digits(metric)) for row in report["results"]}
        conditions |= {str(row["size"]): row["condition"] for row in report["results"] if "condition" in row}
    return {
        "name": run.name,
        "model": run.model,
        "model_options": run.model_options(),
        "settings": sweep.settings_of(run),
        "seed": seed,
        "recipe": sweep.recipe,
        "dataset": report["dataset"],
        "split": report["split"],
        "images": report["images"],
        "data_sha256": {"train": record["data"]["sha256"], "validation": report["data_sha256"]},
        "dtype": sweep.dtype,
        **({"dry_run": True} if sweep.dry else {}),
        **({"conditions": conditions} if conditions else {}),
        "training": {key: record.get(key) for key in _KEPT},
        **tables,
    }
