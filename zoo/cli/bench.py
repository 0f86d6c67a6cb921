"""`zoo bench`: how long predictions and models take, and what each position encoding costs a block and attention."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["bench"]

bench = typer.Typer(
    help="Measure speed: single-picture latency, whole models, and the cost of each position encoding.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; by default CUDA where there is one.")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16 or float16.")]
Threads = Annotated[int, typer.Option(help="Threads of PyTorch on the CPU.")]
Repeats = Annotated[int, typer.Option(help="Samples of each timing.")]
Batch = Annotated[int | None, typer.Option(help="Samples; by default about 16,384 tokens on CUDA, 1 on the CPU.")]
Train = Annotated[bool, typer.Option("--train", help="Forward and backward instead of inference.")]
Compile = Annotated[bool, typer.Option("--compile", help="Measure under torch.compile.")]
Graphs = Annotated[
    bool, typer.Option("--graphs", help="Time CUDA graphs of the calls, which leaves out the launches from Python.")
]
Out = Annotated[Path | None, typer.Option(help="Write the whole result to this JSON file.")]
Json = Annotated[bool, typer.Option("--json", help="Print the whole result as JSON.")]


# Columns of words; others hold numbers.
_WORDS = ("encoding", "kernel", "runs", "model")


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
    batch: Batch = None,
    attention: Annotated[
        bool, typer.Option("--attention", help="Only the attention module, without norms and MLP.")
    ] = False,
    train: Train = False,
    compiled: Compile = False,
    graphs: Graphs = False,
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
        graphs=graphs,
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
            _number(row["memory_ratio"], ".2f"),
        ]
        for row in result["rows"]
    ]
    what = "attention" if attention else "block"
    title = f"{what}, {_step(train)}, width {dim}, {heads} heads, {dtype}{_how(compiled, graphs)}"
    heading = ["tokens", "batch", "encoding", "median (ms)", "90 % (ms)", "time / none", "frame (ms)", "memory / none"]
    _print_table(title, *_known(heading, cells), result["environment"])
    _print_goals(result)


@bench.command("attention")
def attention(
    encodings: Annotated[
        str, typer.Option(help="Comma-separated; `none` with the default kernel is always measured.")
    ] = "none,rope,pope,pape,pape-ri,alibi,lookhere",
    kernels: Annotated[
        str | None, typer.Option(help="Comma-separated kernels to force, auto for the default one; by default all.")
    ] = None,
    grids: Annotated[str, typer.Option(help="Sides of square token grids; a class token is added.")] = "14,32,64",
    packed: Annotated[
        bool, typer.Option("--packed", help="Also packed samples of 200 to 1800 tokens (32 of them on CUDA, else 4).")
    ] = False,
    heads: Annotated[int, typer.Option(help="Attention heads.")] = 12,
    head_dim: Annotated[int, typer.Option(help="Width of a head.")] = 64,
    batch: Batch = None,
    train: Train = False,
    both: Annotated[bool, typer.Option("--both", help="Inference, then forward and backward.")] = False,
    compiled: Compile = False,
    graphs: Graphs = False,
    device: Device = None,
    dtype: Dtype = "float32",
    threads: Threads = 2,
    repeats: Repeats = 15,
    error_tokens: Annotated[int, typer.Option(help="Longest sample whose errors are computed.")] = 1100,
    out: Out = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the ratios: .png, .svg or .pdf.")] = None,
    as_json: Json = False,
) -> None:
    """Time the core of attention (encoding and kernel, no projections) next to attention without positions.

    Every encoding is measured with every kernel, which says why where it does not run a call. TFLOP/s count the
    products of heads of --head-dim, whatever an encoding makes of it. Errors are relative to float64 (Frobenius norm).
    """
    from zoo.bench.attention import KERNELS, measure, parse_kernels
    from zoo.bench.block import parse_grids, parse_names
    from zoo.bench.goals import CONDITIONS
    from zoo.bench.plots import attention_figure, check_figure_path
    from zoo.cli.eval import _write

    if plot is not None:
        check_figure_path(plot)
    result = measure(
        encodings=parse_names(encodings),
        kernels=KERNELS if kernels is None else parse_kernels(kernels),
        grids=parse_grids(grids),
        packed=packed,
        heads=heads,
        head_dim=head_dim,
        batch=batch,
        steps=("inference", "train") if both else ("train",) if train else ("inference",),
        compiled=compiled,
        graphs=graphs,
        device=device,
        dtype=dtype,
        cpu_threads=threads,
        repeats=repeats,
        error_tokens=error_tokens,
    )
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        _print_attention(result)
        _print_goals(result, otherwise=f"no goal of this project is for such a run: they are for {CONDITIONS}")
    if out is not None:  # Last: a disk that is full must not cost the numbers.
        _write(out, result)
    if plot is not None:
        from zoo.viz import save

        save(attention_figure(result), plot)


@bench.command("model")
def model(
    models: Annotated[
        str, typer.Option(help="Comma-separated names, timm:NAME for timm's; timm's ViT-B/16 is always measured.")
    ] = "none-vit-b-in1k,rope-vit-b-in1k,pape-vit-b-in1k,"
    "timm:vit_base_patch16_rope_224,timm:vit_base_patch16_rope_mixed_224",
    sizes: Annotated[str, typer.Option(help="Sides of square inputs in pixels.")] = "224,512,1024",
    batch: Batch = None,
    train: Train = False,
    compiled: Compile = False,
    graphs: Graphs = False,
    device: Device = None,
    dtype: Dtype = "float32",
    threads: Threads = 2,
    repeats: Repeats = 10,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Time image classifiers without weights, next to timm's ViT-B/16 with absolute positions."""
    from zoo.bench.model import measure, parse_models, parse_pixels
    from zoo.cli.eval import _write

    result = measure(
        models=parse_models(models),
        sizes=parse_pixels(sizes),
        batch=batch,
        train=train,
        compiled=compiled,
        graphs=graphs,
        device=device,
        dtype=dtype,
        cpu_threads=threads,
        repeats=repeats,
    )
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        cells = [
            [
                f"{row['size']} px",
                str(row["batch"]),
                row["model"],
                f"{row['parameters'] / 1e6:.1f}",
                f"{row['images_per_s']:,.1f}",
                f"{row['median_ms']:.1f}",
                f"{row['p90_ms']:.1f}",
                f"{row['ratio']:.2f}",
                _number(row["memory_mib"], ",.0f"),
                _number(row["memory_ratio"], ".2f"),
            ]
            for row in result["rows"]
        ]
        heading = ["size", "batch", "model", "parameters (M)", "images/s", "median (ms)", "90 % (ms)", "time / timm"]
        heading += ["memory (MiB)", "memory / timm"]
        title = f"classifiers, {_step(train)}, {dtype}{_how(compiled, graphs)}"
        _print_table(title, *_known(heading, cells), result["environment"])
        _print_goals(result)
    if out is not None:
        _write(out, result)


def _print_attention(result: dict[str, Any]) -> None:
    for step in ("inference", "train"):
        rows = [row for row in result["rows"] if row[step]]
        if not rows:
            continue
        cells = []
        for row in rows:
            figures, errors = row[step], row[step]["errors"] or {}
            qkv = [errors[name] for name in ("dq", "dk", "dv") if errors.get(name) is not None]
            cells.append(
                [
                    row["workload"],
                    str(row["batch"]),
                    row["encoding"],
                    row["kernel"],
                    figures["runs"],
                    f"{figures['median_ms']:.2f}",
                    f"{figures['p90_ms']:.2f}",
                    f"{figures['ratio']:.2f}",
                    f"{figures['alone_ratio']:.2f}",
                    f"{figures['tflops']:.3g}",
                    _number(figures["memory_mib"], ",.0f"),
                    _number(figures["memory_ratio"], ".2f"),
                    _number(errors.get("output"), ".1e"),
                    _number(max(qkv, default=None), ".1e"),
                    _number(errors.get("parameters"), ".1e"),
                ]
            )
        heading = [
            "tokens",
            "batch",
            "encoding",
            "kernel",
            "runs",
            "median (ms)",
            "90 % (ms)",
            "time / none",
            "attention alone / none",
            "TFLOP/s",
        ]
        heading += ["memory (MiB)", "memory / none", "error", "of dq, dk, dv", "of weights"]
        how = f"{result['dtype']}{_how(result['compiled'], result['graphs'])}"
        title = f"attention core, {_step(step == 'train')}, {result['heads']} heads of {result['head_dim']}, {how}"
        _print_table(title, *_known(heading, cells), result["environment"])
    _print_refused(result["rows"])


def _print_refused(rows: list[dict[str, Any]]) -> None:
    """One line for each reason: all encodings that a kernel refuses for it, on all workloads alike."""
    encodings: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        if row["refused"]:
            why = row["refused"].partition("cannot run this call: ")[2] or row["refused"]
            encodings.setdefault((row["kernel"], why, row["workload"]), []).append(row["encoding"])
    workloads: dict[tuple[str, str, str], list[str]] = {}
    for (kernel, why, workload), names in encodings.items():
        workloads.setdefault((kernel, ", ".join(names), why), []).append(workload)
    for (kernel, refused, why), where in workloads.items():
        print(f"not run with {kernel}: {refused} ({', '.join(where)}): {why}")


def _print_goals(result: dict[str, Any], otherwise: str = "") -> None:
    for goal in result["goals"]:
        met = "met" if goal["met"] else "not met"
        print(f"goal for pape: {goal['goal']} at most {goal['limit']:.2f}; measured {goal['measured']:.3f}: {met}")
    if not result["goals"] and otherwise:
        print(otherwise)


def _how(compiled: bool, graphs: bool) -> str:
    return (", compiled" if compiled else "") + (", CUDA graphs" if graphs else "")


def _step(train: bool) -> str:
    return "train step" if train else "inference"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"


def _known(heading: list[str], cells: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Leaves out columns without a figure: peak memory is only known on CUDA, for example."""
    kept = [index for index in range(len(heading)) if any(row[index] for row in cells)]
    return [heading[index] for index in kept], [[row[index] for index in kept] for row in cells]


def _print_table(title: str, heading: list[str], cells: list[list[str]], made: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for index, name in enumerate(heading):
        table.add_column(name, justify="left" if index == 0 or name in _WORDS else "right")
    for row in cells:
        table.add_row(*row)
    console = Console()
    if not console.is_terminal:  # A file has no width: wide enough that no cell wraps.
        console = Console(width=200)
    console.print(table)
    used = f"CUDA {made['cuda']}" if made["cuda"] else f"{made['threads']} threads"
    print(f"{made['device']}, PyTorch {made['torch']}, {used}, Python {made['python']}")
