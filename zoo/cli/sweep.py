"""`zoo sweep`: a list of training runs by one recipe, and their table."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["sweep"]


def sweep(
    config: Annotated[str, typer.Argument(help="Sweep: a YAML file, or a built-in name such as comparison.")],
    data: Annotated[str | None, typer.Option(help="Folder with training and validation data.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the sweep; one process per GPU may share it.")] = Path("sweep"),
    only: Annotated[str | None, typer.Option(help="Names of runs, as rope,pape; by default all.")] = None,
    max_minutes: Annotated[float | None, typer.Option(help="Start no run that would end after this time.")] = None,
    table: Annotated[bool, typer.Option("--table", help="Train nothing: print the table of what is done.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bars.")] = False,
) -> None:
    """Train and measure many settings by one recipe; goes on where it was interrupted."""
    from zoo.errors import ConfigError
    from zoo.reproduce_report import markdown
    from zoo.training.sweep import load_sweep, run_sweep, summarise

    plan = load_sweep(config)
    if not table:
        if data is None and plan.data is None:
            raise ConfigError("no data: give --data DIR, or --table to print what is done")
        names = [name.strip() for name in (only or "").split(",") if name.strip()]
        run_sweep(
            plan,
            data,
            out,
            only=names,
            max_minutes=max_minutes,
            quiet=quiet,
            say=lambda text: print(text, file=sys.stderr, flush=True),
        )
    rows = summarise(out, plan)
    print(json.dumps({"sweep": config, "rows": rows}, indent=2) if as_json else markdown(rows, plan.metrics[0]))
