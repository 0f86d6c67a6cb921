"""`zoo bench`: how long predictions and models take, and what each position encoding costs a block and attention."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from zoo.cli.bench_browse import browse
from zoo.cli.bench_driving import driving
from zoo.cli.bench_events import events
from zoo.cli.bench_points import points
from zoo.cli.bench_tables import how, known, number, print_attention, print_goals, print_table, step_name

__all__ = ["bench"]

bench = typer.Typer(
    help="Measure speed: single-picture latency, whole models, the cost of position encodings, event tokens, clouds, "
    "key frames, the try-it panel.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

bench.command("browse")(browse)
bench.command("events")(events)
bench.command("points")(points)
bench.command("driving")(driving)

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
    print_table(title, ["", "median (ms)", "90 % (ms)"], cells, result["environment"])


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
            number(row["memory_ratio"], ".2f"),
        ]
        for row in result["rows"]
    ]
    what = "attention" if attention else "block"
    title = f"{what}, {step_name(train)}, width {dim}, {heads} heads, {dtype}{how(compiled, graphs)}"
    heading = ["tokens", "batch", "encoding", "median (ms)", "90 % (ms)", "time / none", "frame (ms)", "memory / none"]
    print_table(title, *known(heading, cells), result["environment"])
    print_goals(result)


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
        print_attention(result)
        print_goals(result, otherwise=f"no goal of this project is for such a run: they are for {CONDITIONS}")
    if out is not None:  # Last: a disk that is full must not cost the numbers.
        _write(out, result)
    if plot is not None:
        from zoo.viz import save

        save(attention_figure(result), plot)


@bench.command("model")
def model(
    models: Annotated[
        str, typer.Option(help="Comma-separated names, timm:NAME for timm's; the baseline is always measured.")
    ] = "none-vit-b-in1k,rope-vit-b-in1k,pape-vit-b-in1k,"
    "timm:vit_base_patch16_rope_224,timm:vit_base_patch16_rope_mixed_224",
    baseline: Annotated[
        str | None, typer.Option(help="What the others are compared with; by default timm's ViT-B/16.", metavar="NAME")
    ] = None,
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
    """Time image classifiers and detectors without weights, next to timm's ViT-B/16 with absolute positions."""
    from zoo.bench.model import measure, parse_models, parse_pixels
    from zoo.cli.eval import _write

    result = measure(
        models=parse_models(models, baseline),
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
                number(row["memory_mib"], ",.0f"),
                number(row["memory_ratio"], ".2f"),
            ]
            for row in result["rows"]
            if not row["refused"]
        ]
        heading = ["size", "batch", "model", "parameters (M)", "images/s", "median (ms)", "90 % (ms)", "time / first"]
        heading += ["memory (MiB)", "memory / first"]
        title = f"models, {step_name(train)}, {dtype}{how(compiled, graphs)}"
        print_table(title, *known(heading, cells), result["environment"])
        for row in result["rows"]:
            if row["refused"]:
                print(f"not run: {row['model']} at {row['size']} px: {row['refused'][:200]}")
        print_goals(result)
    if out is not None:
        _write(out, result)


@bench.command("tiles")
def tiles(
    encoding: Annotated[str, typer.Option(help="Position encoding that our kernels run, or none.")] = "pape",
    kernel: Annotated[str, typer.Option(help="forward, or of backward: queries or keys.")] = "forward",
    tiles: Annotated[
        str, typer.Option(help="Comma-separated QUERIESxKEYSxWARPSxSTAGES, and xREGISTERS if they are bounded.")
    ] = "128x64x8x3,128x64x4x3,64x64x4x3",
    grids: Annotated[str, typer.Option(help="Sides of square token grids; a class token is added.")] = "14,32,64",
    heads: Annotated[int, typer.Option(help="Attention heads.")] = 12,
    head_dim: Annotated[int, typer.Option(help="Width of a head.")] = 64,
    batch: Batch = None,
    device: Device = None,
    dtype: Dtype = "bfloat16",
    repeats: Repeats = 15,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Time attention with one Triton kernel in other tiles, from CUDA graphs: to choose tiles for another GPU."""
    from zoo.bench.block import parse_grids, parse_names
    from zoo.bench.tiles import measure, parse_tiles
    from zoo.cli.eval import _write

    parse_names(encoding)
    result = measure(
        encoding=encoding,
        kernel=kernel,
        tiles=parse_tiles(tiles),
        grids=parse_grids(grids),
        heads=heads,
        head_dim=head_dim,
        batch=batch,
        device=device,
        dtype=dtype,
        repeats=repeats,
    )
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        cells = [
            [
                f"{row['grid']} x {row['grid']} + 1",
                str(row["batch"]),
                row["tiles"],
                number(row["median_ms"], ".3f"),
                number(row["p90_ms"], ".3f"),
                number(row["ratio"], ".3f") or "does not compile",
            ]
            for row in result["rows"]
        ]
        heading = ["tokens", "batch", "tiles", "median (ms)", "90 % (ms)", "time / own tiles"]
        step = step_name(result["step"] == "train")
        title = f"attention alone, {step}, {encoding}, kernel {kernel}, {dtype}, CUDA graphs"
        print_table(title, heading, cells, result["environment"])
    if out is not None:
        _write(out, result)
