"""`zoo export`: models as ONNX or torch.export files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["export"]


def export(
    name: Annotated[str, typer.Argument(help="Model name, as for `zoo predict`: image classifier or detector, video.")],
    to: Annotated[Path, typer.Option(help="File to write: .onnx, or .pt2 for torch.export.")],
    size: Annotated[
        str | None,
        typer.Option(help="Only for this size, a side in pixels or HEIGHTxWIDTH; by default the graph takes any."),
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32 or float16.")] = "float32",
    int8: Annotated[
        bool, typer.Option("--int8", help="Linear layers in 8 bit, activations scaled as they come; measure the loss.")
    ] = False,
) -> None:
    """Write a model as a graph for other programs, that takes batches and pictures of any size.

    What it takes and gives, preprocessing and labels are in the file. It is compared with the model before it is
    written. Measure it as the model itself: zoo eval FILE --data DIR
    """
    import importlib

    from zoo.cli.eval import parse_sizes

    sides = parse_sizes(size, "--size")
    if sides is not None and len(sides) != 1:
        from zoo.errors import ConfigError

        raise ConfigError(f"--size takes one size, got {size!r}")
    write = importlib.import_module("zoo.export").export
    print(write(name, to, size=None if sides is None else sides[0], dtype=dtype, int8=int8))
