"""`zoo browse`: the models on pages in a browser, with a panel to try those whose weights are in this package."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["browse"]


def browse(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")] = 8000,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
    build: Annotated[
        Path | None, typer.Option(help="Only write the site to this folder, to be opened as files or served.")
    ] = None,
) -> None:
    """Browse the models, choose an encoding, look at measurements; served here, also try models.

    Nothing is loaded from elsewhere, and nobody but this machine is answered.
    """
    from zoo.site.build import build as build_site

    if build is not None:
        print(build_site(build))
        return
    from zoo.site.server import serve

    with tempfile.TemporaryDirectory(prefix="zoo-browse-") as folder:
        print("building the pages ...", file=sys.stderr)
        build_site(Path(folder))
        serve(Path(folder), port, not no_open)
