"""`zoo reproduce`: a sweep from its data to the table and the figure, with the paper's numbers beside ours."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.errors import ConfigError, MissingDependencyError, ZooError
from zoo.files import write_whole
from zoo.reproduce_report import report_of, undone
from zoo.training.sweep import check_metrics, run_sweep
from zoo.training.sweep_plan import Sweep, built_in_sweeps, load_sweep
from zoo.training.sweep_results import gather, summarise
from zoo.training.sweep_workers import run_side_by_side

__all__ = ["Report", "described", "reproduce", "reproductions", "time_text", "write_report"]

TABLE, RESULTS, PLOT, DRY_FOLDER = "table.md", "results.json", "plot.png", "dry-run"


@dataclass(frozen=True)
class Report:
    """What was written.

    Attributes:
        table: The Markdown of `table.md`.
        files: `table.md`, `results.json`, and `plot.png` where there are several sizes.
        note: Why there is no figure, or `None`.
    """

    table: str
    files: tuple[Path, ...]
    note: str | None = None


def reproductions() -> dict[str, Sweep]:
    """Name -> built-in sweep, of those that say what they reproduce."""
    sweeps = {name: load_sweep(name) for name in built_in_sweeps()}
    return {name: sweep for name, sweep in sweeps.items() if sweep.about is not None}


def described(name: str, sweep: Sweep) -> dict[str, Any]:
    """What `zoo reproduce` lists of a sweep, as plain values."""
    about = sweep.about
    needs = about.needs if about else None
    return {
        "name": name,
        "reproduces": about.reproduces if about else "",
        "data": None if needs is None else {"files": list(needs.files), "source": needs.source},
        "licence": None if needs is None else needs.licence,
        "runs": {run.name: list(run.seeds) for run in sweep.runs},
        "trainings": len(sweep.jobs()),
        "minutes": about.minutes if about else None,
        "minutes_note": about.minutes_note if about else "",
    }


def time_text(sweep: Sweep) -> str:
    """The time estimate in words."""
    about = sweep.about
    if about is None or about.minutes is None:
        return "not measured"
    note = f" ({about.minutes_note})" if about.minutes_note else ""
    return f"about {about.minutes:g} minutes on one H200, one run after the other{note}"


def reproduce(
    config: str,
    data: str | None = None,
    out: str | Path | None = None,
    *,
    jobs: int = 1,
    only: Sequence[str] = (),
    max_minutes: float | None = None,
    device: str | None = None,
    table_only: bool = False,
    dry_run: bool = False,
    quiet: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """Trains and measures what is missing, and writes the report of what there is.

    Args:
        config: Name of a built-in sweep, or path of a YAML file.
        data: File or folder that the sweep needs.
        out: Folder of the runs and the report; `None` = `reproduce/NAME`. A dry run goes into its folder `dry-run`.
        jobs: Runs that are made side by side.
        only: Names of runs to make; empty for all.
        max_minutes: See `zoo.training.sweep.run_sweep`.
        device: See there.
        table_only: Train nothing.
        dry_run: See `Sweep.dry_sweep`.
        quiet: Show no progress bars.
        say: Gets a line about what happens.

    Raises:
        ConfigError: If there is no such sweep or run, its data are missing, or nothing is done yet.
        ZooError: After the report is written, if runs failed or a signal asked to stop.
    """
    name, sweep = Path(config).stem, load_sweep(config)
    folder = Path(out) if out is not None else Path("reproduce") / name
    if jobs < 1:
        raise ConfigError(f"jobs must be at least 1, got {jobs}")
    sweep, folder = (sweep.dry_sweep(), folder / DRY_FOLDER) if dry_run else (sweep, folder)
    problem: ZooError | None = None
    if not table_only:
        missing = undone(sweep, _done(folder, sweep), only)
        source = _checked_data(name, sweep, data) if missing else data
        check_metrics(sweep, source)
        # The estimate is of whole runs.
        time = "" if dry_run else f"; time for all: {time_text(sweep)}"
        say(f"{name}: {len(missing)} of {len(sweep.jobs(only))} runs to do, in {folder}{time}")
        arguments: dict[str, Any] = {"only": only, "max_minutes": max_minutes, "quiet": quiet}
        try:
            if min(jobs, len(missing)) > 1:
                workers = min(jobs, len(missing))
                run_side_by_side(sweep, source, folder, workers, device=device, say=say, **{**arguments, "quiet": True})
            elif missing:
                run_sweep(sweep, source, folder, device=device, say=say, **arguments)
        except ZooError as error:  # What is done makes a table all the same.
            problem = error
    if problem is not None and not _done(folder, sweep):
        raise problem
    report = write_report(name, sweep, folder)
    if problem is not None:
        say(report.table)
        raise problem
    return report


def write_report(name: str, sweep: Sweep, folder: Path) -> Report:
    """Writes `table.md`, `results.json` and, where there are several sizes, `plot.png` from what is done.

    Raises:
        ConfigError: If there are no results, or damaged ones.
    """
    rows = gather(folder, sweep)
    table = report_of(name, sweep, rows, undone(sweep, _done(folder, sweep)))
    command = f"zoo reproduce {name if name in built_in_sweeps() else f'{name}.yaml'}"
    facts: dict[str, Any] = {"sweep": name, "command": command + ("" if sweep.data else " --data DIR") + " --out OUT"}
    facts |= {"dry_run": True} if sweep.dry else {}
    facts["rows"] = summarise(folder, sweep, runs=True)
    files = [folder / TABLE, folder / RESULTS]
    write_whole(files[0], table)
    write_whole(files[1], json.dumps(facts, indent=2) + "\n")
    if max(len(row.values(sweep.metrics[0])) for row in rows) < 2:
        return Report(table, tuple(files))
    try:
        from zoo.reproduce_figure import figure_of
        from zoo.viz import save

        files.append(save(figure_of(sweep, rows, name + (" (dry run)" if sweep.dry else "")), folder / PLOT))
    except MissingDependencyError as error:
        return Report(table, tuple(files), f"no figure: {error}")
    return Report(table, tuple(files))


def _done(folder: Path, sweep: Sweep) -> set[str]:
    stems = {f"{run.name}-{seed}" for run, seed in sweep.jobs()}
    return {stem for stem in stems if (folder / f"{stem}.json").is_file()}


def _checked_data(name: str, sweep: Sweep, data: str | None) -> str | None:
    """The data, which must be there if the sweep needs some."""
    needs = sweep.about.needs if sweep.about else None
    if sweep.data is not None:
        if data is not None:
            raise ConfigError(f"{name}: its data are made up ({sweep.data}): leave --data out")
        return None
    where = "" if needs is None else f" ({' or '.join(needs.files)}; from {needs.source}; licence: {needs.licence})"
    if data is None:
        raise ConfigError(f"{name} needs data{where}: give --data PATH")
    path = Path(data)
    if not path.exists():
        raise ConfigError(f"no such file or folder: {path}; {name} needs data{where}")
    if path.is_dir() and needs is not None and not any(any(path.glob(pattern)) for pattern in needs.files):
        raise ConfigError(f"{path}: the data of {name} are not in this folder{where}")
    return data
