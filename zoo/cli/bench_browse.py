"""`zoo bench browse`: how soon the try-it panel answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from zoo.cli.bench_tables import print_table

__all__ = ["browse"]


def browse(
    name: Annotated[
        str, typer.Argument(help="Image model whose weights are in this package.")
    ] = "pape-vit-t-imagenette",
    size: Annotated[int | None, typer.Option(help="Longer side of the input in pixels; by default as trained.")] = None,
    image: Annotated[Path | None, typer.Option(help="Picture file; by default one is made.")] = None,
    threads: Annotated[int, typer.Option(help="Threads of PyTorch on the CPU.")] = 1,
    repeats: Annotated[int, typer.Option(help="Requests of each kind.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole result as JSON.")] = False,
) -> None:
    """Time requests to the local server of `zoo browse` over HTTP: a prediction, and the bias of a patch."""
    from zoo.bench.browse import measure

    result = measure(name, size=size, image=image, cpu_threads=threads, repeats=repeats)
    if as_json:
        print(json.dumps(result, indent=2))
        return
    labels = {"predict": "prediction", "bias": "bias of a patch"}
    cells = [[labels[key], f"{t['median_ms']:.1f}", f"{t['p90_ms']:.1f}"] for key, t in result["timings"].items()]
    title = f"{name}, {result['size']} px, one picture over HTTP; loading took {result['load_ms']:.0f} ms"
    print_table(title, ["", "median (ms)", "90 % (ms)"], cells, result["environment"])
    if result["size"] == 112:
        verdict = "reached" if result["timings"]["predict"]["p90_ms"] <= result["goal_ms"] else "missed"
        print(f"goal of {result['goal_ms'] / 1000:g} s for a picture at 112 px: {verdict}")
