"""`zoo convert`: official PaPE checkpoints into folders of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["convert"]


def convert(
    source: Annotated[Path, typer.Argument(help="Folder with the official config.json and model.pt.")],
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    install: Annotated[
        bool, typer.Option("--install", help="Also install it in the cache under its registry name.")
    ] = False,
) -> None:
    """Convert an official PaPE checkpoint, so that `local-dir:OUT` (or, installed, its name) loads it."""
    import importlib

    folder = importlib.import_module("zoo.convert").convert(source, out, install=install)
    print(f"local-dir:{folder}")
