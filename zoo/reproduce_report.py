"""The report of a reproduction: our numbers, the paper's, and what differs, as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zoo.card_metrics import digits, heading, smaller_is_better, unit
from zoo.card_tables import table
from zoo.training.recipe import load_recipe
from zoo.training.sweep_plan import Paper, Sweep
from zoo.training.sweep_results import Measured, spread

__all__ = ["markdown", "report_of", "undone"]

DRY_RUN = (
    "**Dry run: networks of one block, two steps of training and two samples. It shows that everything runs; the "
    "numbers mean nothing.**"
)


def markdown(rows: Sequence[dict[str, Any]], metric: str = "top1") -> str:
    """The table of `zoo.training.sweep.summarise`: mean over seeds, and the standard deviation where there is one."""
    sizes = sorted({size for row in rows for size in row[metric]}, key=int)
    body = []
    for row in rows:
        cells = [_cell(row[metric].get(size), metric) for size in sizes]
        body.append([row["name"], _extension(row["extend"]), str(len(row["seeds"])), *cells])
    return table(["Encoding", "Extension", "Seeds", *sizes], body)


def report_of(name: str, sweep: Sweep, rows: Sequence[Measured], left: Sequence[str]) -> str:
    """The whole report.

    Args:
        name: Of the sweep.
        sweep: What was done.
        rows: What was measured.
        left: Runs that are not done.

    Returns:
        Markdown: heading, a table for each metric (the paper's numbers beside ours in the first), and what must be
        known to read them.
    """
    about, first = sweep.about, rows[0].results[0]
    parts = [f"# {name}" + (f": {about.reproduces}" if about else "")]
    if sweep.dry:
        parts.append(DRY_RUN)
    for metric in sweep.metrics:
        better = "smaller" if smaller_is_better(metric) else "larger"
        named = heading(metric)[0].upper() + heading(metric)[1:]
        parts.append(f"{named} ({unit(metric)}), {better} is better, by {about.size if about else 'size'}:")
        parts.append(_compared(sweep, rows, metric))
    parts.append(
        f"Ours: mean ± sample standard deviation over n seeds; measured on {first['dataset']}"
        + (f", split {first['split']}" if "split" in first else "")
        + f", in {first['dtype']}. Recipe `{sweep.recipe}`"
        + (f", trained at size {sweep.trained_size:,}." if sweep.trained_size else ".")
    )
    if about:
        parts.append(f"Difference in setting: {' '.join(about.difference.split())}")
    parts.append(_time(rows))
    if left:
        parts.append(f"Not done: {', '.join(left)}.")
    return "\n\n".join(parts) + "\n"


def undone(sweep: Sweep, done: set[str], only: Sequence[str] = ()) -> list[str]:
    """Runs without a result, as NAME-SEED, in the order of work.

    Args:
        sweep: With all runs.
        done: Those with one.
        only: Names of runs; empty for all.
    """
    return [stem for run, seed in sweep.jobs(only) if (stem := f"{run.name}-{seed}") not in done]


def _compared(sweep: Sweep, rows: Sequence[Measured], metric: str) -> str:
    main = metric == sweep.metrics[0]
    sizes = sorted({size for row in rows for size in row.values(metric)}, key=int)
    body = []
    for row in rows:
        values = row.values(metric)
        cells = [_cell(spread(values[size], metric) if size in values else None, metric) for size in sizes]
        own = row.extend == "none"  # The paper's number is of the setting as it is.
        compared = [_published(row.run.paper if own else None), "; ".join(_remarks(sweep, row))]
        body.append([row.run.name, _extension(row.extend), str(len(row.seeds)), *cells, *(compared if main else [])])
    more = ["Paper", "Remarks"] if main else []
    return table(["Setting", "Extension", "n", *(f"{int(size):,}" for size in sizes), *more], body)


def _remarks(sweep: Sweep, row: Measured) -> list[str]:
    """What sets a row apart: fewer seeds, shorter training, and what the sweep says of it."""
    found, planned = [], row.run.seeds if sweep.extend_every_seed or row.extend == "none" else row.run.seeds[:1]
    if len(row.seeds) < len(planned):
        found.append(f"{len(row.seeds)} of {len(planned)} seeds")
    elif len(row.seeds) == 1:
        found.append("one seed")
    whole = load_recipe(sweep.recipe).epochs
    epochs = {result["training"].get("epochs") for result in row.results}
    if not sweep.dry and epochs != {whole}:
        found.append(f"{' or '.join(map(str, sorted(epochs, key=str)))} of {whole} epochs")
    if not sweep.dry and (steps := sweep.settings_of(row.run).get("steps")):
        found.append(f"{steps:,} steps")
    if row.run.note and row.extend == "none":
        found.append(row.run.note)
    paper = row.run.paper
    if paper is not None and row.extend == "none":
        if paper.value is not None and not paper.comparable:
            found.append("the paper's number does not compare")
        if paper.note:
            found.append(f"paper: {paper.note}")
    return found


def _time(rows: Sequence[Measured]) -> str:
    results = {(row.run.name, result["seed"]): result for row in rows for result in row.results}
    devices = ", ".join(sorted({str(result["training"].get("device")) for result in results.values()}))
    seconds = [result.get("seconds") for result in results.values()]
    if None not in seconds:
        spent, what = sum(filter(None, seconds)), "training and measuring"
    else:  # Results of older versions.
        spent, what = sum(result["training"].get("duration_s") or 0 for result in results.values()), "training alone"
    time = f"{spent / 60:,.1f} minutes" if spent >= 60 else f"{spent:.0f} s"
    return f"Runs done: {len(results)}, in {time} one after the other ({what}; {devices})."


def _published(paper: Paper | None) -> str:
    """As published, without digits that nobody measured."""
    if paper is None or paper.value is None:
        return ""
    return f"{paper.value:g}" + ("" if paper.std is None else f" ± {paper.std:g}")


def _cell(value: dict[str, float | None] | None, metric: str) -> str:
    """Mean and deviation; a digit less than is kept."""
    if value is None:
        return ""
    places = digits(metric) - 1
    deviation = "" if value["std"] is None else f" ± {value['std']:.{places}f}"
    return f"{value['mean']:.{places}f}{deviation}"


def _extension(method: str) -> str:
    return "" if method == "none" else method
