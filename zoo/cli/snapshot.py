"""`zoo snapshot`: weights of an unfinished training run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["snapshot"]


def snapshot(
    run: Annotated[Path, typer.Argument(help="Folder of a stopped run (--out of zoo train).")],
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
) -> None:
    """Write the weights of an unfinished run as a folder that local-dir:OUT loads, to look at or measure."""
    from zoo.training.snapshot import snapshot as write

    folder, step = write(run, out)
    print(f"local-dir:{folder} (step {step}; the run is not finished)")
