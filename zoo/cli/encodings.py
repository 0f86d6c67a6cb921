"""`zoo encodings`: the position encodings and their properties."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

__all__ = ["encodings"]

_MARKS = ("translation", "rotation", "directional", "decay", "content")
_HEADINGS = {
    "translation": "transl.",
    "rotation": "rot.",
    "directional": "direct.",
    "parameters_added": "parameters added",
    "parameters_vit_b16": "ViT-B/16",
    "fast_kernels": "fast kernels",
}


def encodings(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the position encodings, with what is known about each.

    translation, rotation: logits do not change when all coordinates move or turn together. directional: left and right
    may differ. decay: attention falls with distance by construction. content: the position term depends on content.

    Kinds: token is added to the features once; fold maps q and k; group maps q, k, v and the output (and takes camera
    poses); score is added to the logits.

    parameters added: per layer (kind token: once), for feature width C, H heads of width D, p axes and the defaults in
    brackets; then in numbers for ViT-B/16. fast kernels: whether fused attention kernels run it unchanged, or up to
    which grid in 16 bit. extend: methods of context extension that apply, see `zoo eval --extend`.
    """
    from zoo.encodings import encodings as names
    from zoo.encodings.facts import facts_row

    rows = [facts_row(name) for name in names()]
    if as_json:
        print(json.dumps(rows, indent=2))
    elif sys.stdout.isatty():
        _print_table(rows)
    else:
        for row in rows:
            print("\t".join(_cell(key, value) for key, value in row.items()))


def _cell(key: str, value: object) -> str:
    return ("yes" if value else "no") if key in _MARKS else str(value)


def _print_table(rows: list[dict[str, str | bool | int]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    for column in rows[0]:
        number = column == "parameters_vit_b16"
        whole = number or column in ("name", "kind", *_MARKS)
        heading = _HEADINGS.get(column, column)
        table.add_column(heading, no_wrap=whole, overflow="fold", justify="right" if number else "left")
    for row in rows:
        cells = {key: "" if value is False else _cell(key, value) for key, value in row.items()}
        cells["parameters_vit_b16"] = f"{row['parameters_vit_b16']:,}"
        table.add_row(*cells.values())
    Console().print(table)
