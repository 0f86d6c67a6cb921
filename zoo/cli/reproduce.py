"""`zoo reproduce`: published tables, from data to table and plot."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from zoo.training.sweep_plan import Sweep

__all__ = ["reproduce"]


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(help="Such as index, or the YAML file of a sweep; without a name all are listed."),
    ] = None,
    data: Annotated[str | None, typer.Option(help="File or folder with its data, where it needs some.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of runs, table and plot; by default reproduce/NAME.")] = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="Runs side by side, each in a process; they take turns at the GPUs.")
    ] = 1,
    only: Annotated[str | None, typer.Option(help="Names of runs, as rope,pape; by default all.")] = None,
    max_minutes: Annotated[float | None, typer.Option(help="Start no run that would end after this time.")] = None,
    device: Annotated[Literal["cpu", "cuda"] | None, typer.Option(help="By default CUDA where there is one.")] = None,
    table: Annotated[bool, typer.Option("--table", help="Train nothing: table and plot of what is done.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="A small network, two steps and two samples of every run, in OUT/dry-run.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: the list, or the rows of the table.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bars.")] = False,
) -> None:
    """Make a published table again, from data to table.md, results.json and plot.png; the paper's numbers beside ours.

    What is done already is not made again, so that the same command goes on where it was interrupted.
    """
    from zoo import reproduce as tables

    if name is None:
        known = tables.reproductions()
        if as_json:
            print(json.dumps([tables.described(key, sweep) for key, sweep in known.items()], indent=2))
        else:
            print("\n\n".join(_listed(key, sweep) for key, sweep in known.items()))
        return
    made = tables.reproduce(
        name,
        data,
        out,
        jobs=jobs,
        only=[part.strip() for part in (only or "").split(",") if part.strip()],
        max_minutes=max_minutes,
        device=device,
        table_only=table,
        dry_run=dry_run,
        quiet=quiet,
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )
    print(made.files[1].read_text(encoding="utf-8") if as_json else made.table, end="")
    print(f"wrote {', '.join(map(str, made.files))}", file=sys.stderr)
    if made.note:
        print(made.note, file=sys.stderr)


def _listed(name: str, sweep: Sweep) -> str:
    """A few lines about a reproduction."""
    from zoo.reproduce import time_text

    about = sweep.about
    assert about is not None
    needs = about.needs
    data = "none needed, made up" if needs is None else f"{' or '.join(needs.files)}, from {needs.source}"
    runs = ", ".join(run.name + (f" x {len(run.seeds)}" if len(run.seeds) > 1 else "") for run in sweep.runs)
    licence = "" if needs is None else f"\n  licence:  {needs.licence}"
    return (
        f"{name}\n  of:       {about.reproduces}\n  data:     {data}{licence}\n"
        f"  runs:     {len(sweep.jobs())}: {runs}\n  time:     {time_text(sweep)}"
    )
