"""`zoo bench points`: what a batch of clouds of different lengths costs, and how long one cloud takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from zoo.cli.bench_tables import print_table, step_name

__all__ = ["points"]


def points(
    name: Annotated[str, typer.Argument(help="A model for point clouds.")] = "pape-ptv3-n-modelnet10",
    lengths: Annotated[str, typer.Option(help="Points of the clouds of the batch.")] = "40,1000,30000",
    count: Annotated[int, typer.Option("--points", help="Points of the single cloud.")] = 1024,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; by default CUDA where there is one.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    threads: Annotated[int, typer.Option(help="Threads of PyTorch on the CPU.")] = 2,
    repeats: Annotated[int, typer.Option(help="Samples of each timing.")] = 10,
    train: Annotated[bool, typer.Option("--train", help="Forward and backward instead of inference.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the whole result to this JSON file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole result as JSON.")] = False,
) -> None:
    """Time clouds of different lengths in one batch and one by one, and a single cloud."""
    from zoo.bench.points import measure
    from zoo.bench.timing import parse_whole

    result = measure(
        name,
        lengths=parse_whole(lengths, "lengths", highest=10_000_000, example="40,1000,30000"),
        points=count,
        device=device,
        dtype=dtype,
        cpu_threads=threads,
        repeats=repeats,
        train=train,
    )
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        cells = [
            [row["what"], f"{row['together_ms']:.1f}", f"{row['apart_ms']:.1f}", f"{row['ratio']:.2f}"]
            for row in result["rows"]
        ]
        shown = ", ".join(f"{length:,}" for length in result["lengths"])
        title = f"{name}, {step_name(train)}, {dtype}: clouds of {shown} points"
        heading = ["what is timed", "in one batch (ms)", "one by one (ms)", "ratio"]
        print_table(title, heading, cells, result["environment"])
        worst = max(row["ratio"] for row in result["rows"])
        limit, single = result["limits"]["ratio"], result["single"]
        print(f"at most {limit:g} times one by one: {'reached' if worst <= limit else 'missed'}")
        print(
            f"one cloud of {single['points']:,} points: {single['median_ms']:.1f} ms (90 %: {single['p90_ms']:.1f} ms)"
        )
    if out is not None:
        from zoo.cli.eval import _write

        _write(out, result)
