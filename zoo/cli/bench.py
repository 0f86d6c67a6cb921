"""`zoo bench`: how long a prediction takes, and what each position encoding costs a block."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

__all__ = ["bench"]

bench = typer.Typer(
    help="Measure speed: single-picture latency, and the cost of each position encoding.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; by default CUDA where there is one.")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16 or float16.")]
Threads = Annotated[int, typer.Option(help="Threads of PyTorch on the CPU.")]
Repeats = Annotated[int, typer.Option(help="Samples of each timing.")]
Json = Annotated[bool, typer.Option("--json", help="Print the whole result as JSON.")]


@bench.command("predict")
def predict(
    name: Annotated[str, typer.Argument(help="Model name, as for `zoo predict`.")],
    size: Annotated[int | None, typer.Option(help="Side of the square input in pixels.")] = None,
    image: Annotated[str | None, typer.Option(help="Picture file; by default one is made.")] = None,
    untrained: Annotated[bool, typer.Option("--untrained", help="Do not load weights; the time is the same.")] = False,
    device: Device = None,
    dtype: Dtype = "float32",
    threads: Threads = 2,
    repeats: Repeats = 30,
    as_json: Json = False,
) -> None:
    """Time one prediction after loading: the whole path (decode to top-k) and the network alone."""
    from zoo.bench.predict import predict as measure

    result = measure(
        name,
        size=size,
        device=device,
        dtype=dtype,
        cpu_threads=threads,
        repeats=repeats,
        image=image,
        pretrained=not untrained,
    )
    if as_json:
        print(json.dumps(result, indent=2))
        return
    rows, columns = result["size"]
    labels = {"predict": "whole path", "forward": "network alone"}
    cells = [[labels[key], f"{t['median_ms']:.1f}", f"{t['p90_ms']:.1f}"] for key, t in result["timings"].items()]
    title = f"{name}, {columns} x {rows} px, {dtype}, one picture"
    _print_table(title, ["", "median (ms)", "90 % (ms)"], cells, result["environment"])


@bench.command("block")
def block(
    encodings: Annotated[str, typer.Option(help="Comma-separated; `none` is always measured.")] = "rope,alibi,pape",
    grids: Annotated[str, typer.Option(help="Sides of square token grids; a class token is added.")] = "14,32,64",
    dim: Annotated[int, typer.Option(help="Feature width.")] = 768,
    heads: Annotated[int, typer.Option(help="Attention heads.")] = 12,
    mlp_dim: Annotated[int, typer.Option(help="Width of the MLP.")] = 3072,
    batch: Annotated[
        int | None, typer.Option(help="Samples; by default about 16,384 tokens on CUDA, 1 on the CPU.")
    ] = None,
    attention: Annotated[
        bool, typer.Option("--attention", help="Only the attention module, without norms and MLP.")
    ] = False,
    train: Annotated[bool, typer.Option("--train", help="Forward and backward instead of inference.")] = False,
    compiled: Annotated[bool, typer.Option("--compile", help="Measure under torch.compile.")] = False,
    device: Device = None,
    dtype: Dtype = "float32",
    threads: Threads = 2,
    repeats: Repeats = 15,
    as_json: Json = False,
) -> None:
    """Time a transformer block per position encoding, next to the same block without positions.

    The frame is what follows from the coordinates alone; it is made once per forward for all blocks.
    """
    from zoo.bench.block import BlockShape, measure, parse_grids, parse_names

    result = measure(
        BlockShape(dim=dim, heads=heads, mlp_dim=mlp_dim, attention_only=attention),
        encodings=parse_names(encodings),
        grids=parse_grids(grids),
        batch=batch,
        train=train,
        compiled=compiled,
        device=device,
        dtype=dtype,
        cpu_threads=threads,
        repeats=repeats,
    )
    if as_json:
        print(json.dumps(result, indent=2))
        return
    cells = [
        [
            f"{row['grid']} x {row['grid']} + 1",
            str(row["batch"]),
            row["encoding"],
            f"{row['median_ms']:.2f}",
            f"{row['p90_ms']:.2f}",
            f"{row['ratio']:.2f}",
            f"{row['frame_ms']:.2f}",
            "" if row["memory_ratio"] is None else f"{row['memory_ratio']:.2f}",
        ]
        for row in result["rows"]
    ]
    what = "attention" if attention else "block"
    step = "train step" if train else "inference"
    title = f"{what}, {step}, width {dim}, {heads} heads, {dtype}{', compiled' if compiled else ''}"
    heading = ["tokens", "batch", "encoding", "median (ms)", "90 % (ms)", "time / none", "frame (ms)", "memory / none"]
    if all(not row[-1] for row in cells):  # Peak memory is only known on CUDA.
        heading, cells = heading[:-1], [row[:-1] for row in cells]
    _print_table(title, heading, cells, result["environment"])


def _print_table(title: str, heading: list[str], cells: list[list[str]], made: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for index, name in enumerate(heading):
        table.add_column(name, justify="left" if index == 0 or name == "encoding" else "right")
    for row in cells:
        table.add_row(*row)
    console = Console()
    if not console.is_terminal:  # A file has no width: wide enough that no cell wraps.
        console = Console(width=120)
    console.print(table)
    used = f"CUDA {made['cuda']}" if made["cuda"] else f"{made['threads']} threads"
    print(f"{made['device']}, PyTorch {made['torch']}, {used}, Python {made['python']}")
