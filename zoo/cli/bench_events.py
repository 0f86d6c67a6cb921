"""`zoo bench events`: how many events a second the tokenizer takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from zoo.cli.bench_tables import print_table

__all__ = ["events"]


def events(
    recording: Annotated[Path | None, typer.Argument(help="Event file; by default events are made.")] = None,
    count: Annotated[int, typer.Option("--events", help="Events made.")] = 10_000_000,
    width: Annotated[int, typer.Option(help="Columns of the sensor.")] = 1280,
    height: Annotated[int, typer.Option(help="Rows of the sensor.")] = 720,
    rate: Annotated[float, typer.Option(help="Events a second of those made.")] = 20e6,
    patch_size: Annotated[int, typer.Option(help="Side of a patch in pixels.")] = 16,
    threshold: Annotated[int, typer.Option(help="Events of a token.")] = 256,
    refractory_us: Annotated[int, typer.Option(help="Refractory period; 0 is measured too.")] = 100_000,
    piece: Annotated[int, typer.Option(help="Events of a piece in the streaming form.")] = 100_000,
    repeats: Annotated[int, typer.Option(help="Samples of each timing.")] = 5,
    out: Annotated[Path | None, typer.Option(help="Write the whole result to this JSON file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole result as JSON.")] = False,
) -> None:
    """Time the spiking-patches tokenizer on one core, whole and in pieces, and the reading of a file."""
    from zoo.bench.events import measure

    result = measure(
        recording,
        count=count,
        width=width,
        height=height,
        rate=rate,
        patch_size=patch_size,
        threshold=threshold,
        refractory_us=refractory_us,
        piece=piece,
        repeats=repeats,
    )
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        cells = [
            [
                row["what"],
                f"{row['refractory_us']}",
                f"{row['tokens']}",
                f"{row['median_ms']:.1f}",
                f"{row['p90_ms']:.1f}",
                f"{row['million_events_per_s']:.1f}",
            ]
            for row in result["rows"]
        ]
        columns, rows = result["size"]
        title = (
            f"{result['source']}: {result['events']} events in {result['seconds']:.3g} s on {columns} x {rows} pixels"
        )
        heading = ["form", "refractory (us)", "tokens", "median (ms)", "90 % (ms)", "million events/s"]
        print_table(title, heading, cells, result["environment"])
        if result["read"] is not None:
            print(f"read at {result['read']:.1f} million events/s")
        slowest = min(row["million_events_per_s"] for row in result["rows"])
        verdict = "reached" if slowest >= result["goal"] else "missed"
        print(f"goal of {result['goal']:g} million events/s on one core: {verdict}")
    if out is not None:
        from zoo.cli.eval import _write

        _write(out, result)
