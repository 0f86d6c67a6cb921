"""`zoo bench driving`: how long a driving model takes for one key frame."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from zoo.cli.bench_tables import print_table

__all__ = ["driving"]


def driving(
    name: Annotated[str, typer.Argument(help="A driving model.")] = "pape-fusion-n-simdrive",
    dataroot: Annotated[
        str | None, typer.Option(help="A data set in the format of nuScenes; by default a key frame is simulated.")
    ] = None,
    sample: Annotated[str | None, typer.Option(metavar="TOKEN", help="Its key frame; by default the first.")] = None,
    version: Annotated[str | None, typer.Option(help="Folder of tables, as v1.0-mini, if there are several.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; by default CUDA where there is one.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    threads: Annotated[int, typer.Option(help="Threads of PyTorch on the CPU.")] = 2,
    repeats: Annotated[int, typer.Option(help="Samples of each timing.")] = 5,
    out: Annotated[Path | None, typer.Option(help="Write the whole result to this JSON file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole result as JSON.")] = False,
) -> None:
    """Time one key frame after loading: the whole path (files to boxes), reading, and the network alone."""
    from zoo.bench.driving import measure

    result = measure(
        name,
        dataroot,
        sample=sample,
        version=version,
        device=device,
        dtype=dtype,
        cpu_threads=threads,
        repeats=repeats,
    )
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        labels = {"predict": "whole path", "read": "reading files and resizing", "forward": "network alone"}
        cells = [[labels[key], f"{t['median_ms']:.0f}", f"{t['p90_ms']:.0f}"] for key, t in result["timings"].items()]
        what = f"{result['cameras']} cameras, {result['points']:,} points, {dtype}, one key frame ({result['source']})"
        print_table(f"{name}, {what}", ["", "median (ms)", "90 % (ms)"], cells, result["environment"])
        if device == "cpu" or not result["environment"]["cuda"]:
            seconds = result["timings"]["predict"]["median_ms"] / 1e3
            reached = "reached" if seconds < result["limit_s"] else "missed"
            print(f"below {result['limit_s']:g} s, asked of size n on two cores: {seconds:.2f} s, {reached}")
    if out is not None:
        from zoo.cli.eval import _write

        _write(out, result)
