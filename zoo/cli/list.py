"""`zoo list`: the registered names."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

__all__ = ["list_"]


def list_(
    pattern: Annotated[str, typer.Argument(help="Shell pattern, such as 'pape-*'.")] = "*",
    modality: Annotated[str | None, typer.Option(help="Only this kind of input, such as image.")] = None,
    task: Annotated[str | None, typer.Option(help="Only this task, such as classification.")] = None,
    encoding: Annotated[str | None, typer.Option(help="Only this position encoding, such as pape.")] = None,
    weights: Annotated[str | None, typer.Option(help="embedded, hub, release, none, or any (all but none).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the registered models and where their weights are."""
    from zoo.registry import entry, list_models

    names = list_models(pattern, modality=modality, task=task, encoding=encoding, weights=weights)
    rows = [
        {
            "name": item.name,
            "modality": item.modality,
            "task": item.task,
            "encoding": item.encoding,
            "parameters": item.parameters,
            "weights": item.weights,
        }
        for item in map(entry, names)
    ]
    if as_json:
        print(json.dumps(rows, indent=2))
    elif not rows:
        print("no model matches; `zoo list` alone shows all", file=sys.stderr)
    elif sys.stdout.isatty():
        _print_table(rows)
    else:
        for row in rows:
            print("\t".join(str(value) for value in row.values()))


def _print_table(rows: list[dict[str, object]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for column in rows[0]:
        table.add_column(column, justify="right" if column == "parameters" else "left", no_wrap=column == "name")
    for row in rows:
        cells = {**row, "parameters": f"{row['parameters']:,}"}
        table.add_row(*map(str, cells.values()), style=None if row["weights"] != "none" else "dim")
    Console().print(table)
