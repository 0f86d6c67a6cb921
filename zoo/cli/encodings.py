"""`zoo encodings`: the position encodings and their properties."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Annotated

import typer

__all__ = ["encodings"]

_MARKS = ("translation", "rotation", "directional", "decay", "content")


def encodings(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the position encodings, with what is known about each.

    translation, rotation: logits do not change when all coordinates move or turn together. directional: left and right
    may differ. decay: attention falls with distance by construction. content: the position term depends on content.
    Encodings of kind fold run on any attention kernel.
    """
    from zoo.encodings import encodings as names
    from zoo.encodings.facts import FACTS

    rows = [{"name": name, **dataclasses.asdict(FACTS[name])} for name in names()]
    if as_json:
        print(json.dumps(rows, indent=2))
    elif sys.stdout.isatty():
        _print_table(rows)
    else:
        for row in rows:
            print("\t".join(_cell(key, value) for key, value in row.items()))


def _cell(key: str, value: object) -> str:
    return ("yes" if value else "no") if key in _MARKS else str(value)


def _print_table(rows: list[dict[str, object]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for column in rows[0]:
        table.add_column(column, no_wrap=column == "name")
    for row in rows:
        table.add_row(*(("yes" if value else "") if key in _MARKS else str(value) for key, value in row.items()))
    Console().print(table)
