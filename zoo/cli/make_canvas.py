"""`zoo make-canvas`: makes the semi-synthetic detection set of moving N-MNIST digits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["make_canvas"]


def make_canvas(
    data: Annotated[Path, typer.Option(help="N-MNIST: a folder with Train and Test, or a tar archive of it.")],
    out: Annotated[Path, typer.Option(help="New folder, in the layout of GEN1.")],
    train: Annotated[int, typer.Option(min=1, help="Recordings of the split.")] = 1500,
    val: Annotated[int, typer.Option(min=1, help="Recordings of the split.")] = 150,
    test: Annotated[int, typer.Option(min=1, help="Recordings of the split.")] = 300,
    seed: Annotated[int, typer.Option(min=0, help="Of all draws.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Make semi-synthetic event recordings with boxes: real N-MNIST digits moved on a 304 x 240 canvas."""
    from modalities.events.canvas import CanvasOptions, make_canvas

    options = CanvasOptions(train=train, val=val, test=test, seed=seed)
    digests = make_canvas(data, out, options, quiet=quiet)
    for split, digest in digests.items():
        print(f"{out / split}: {getattr(options, split)} recordings, sha256 {digest}")
