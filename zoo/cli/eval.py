"""`zoo eval`: accuracy of a classifier at several picture sizes."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["eval_"]


def eval_(
    name: Annotated[str, typer.Argument(help="Model name, as for `zoo predict`.")],
    data: Annotated[str, typer.Option(help="Folder with <split>.parquet or <split>/<class>/<pictures>.")],
    split: Annotated[str, typer.Option(help="Which split.")] = "validation",
    sizes: Annotated[str | None, typer.Option(help="Sides in pixels, as 112,224; by default the model's.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Pictures at a time; by default by size.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first pictures.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; by default CUDA where there is one.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    extend: Annotated[
        str | None,
        typer.Option(help="Context extension above the training size: pi, ntk, dynamic-ntk, yarn or rescale."),
    ] = None,
    factor: Annotated[
        str, typer.Option(help="Its factor at every size above the training size; auto: size / training size.")
    ] = "auto",
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out damaged pictures.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the results to this JSON file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Measure top-1 and top-5 accuracy at several picture sizes."""
    sides, number = _parse_sizes(sizes), _parse_factor(factor, extend)

    import torch

    import zoo
    from zoo.evaluate import evaluate_data

    command = shlex.join(["zoo", *sys.argv[1:]])
    target = device or ("cuda" if torch.cuda.is_available() else "cpu")
    report = evaluate_data(
        zoo.load(name, device=target),
        data,
        split=split,
        sizes=sides,
        name=name,
        batch_size=batch_size,
        limit=limit,
        dtype=dtype,
        extend=extend,
        factor=number,
        skip_bad=skip_bad,
        quiet=quiet,
        command=command,
    )
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        _print_table(report)
    if out is not None:  # Last: a disk that is full must not cost the numbers.
        _write(out, report)


def _parse_sizes(text: str | None) -> list[int] | None:
    from zoo.errors import ConfigError

    if text is None:
        return None
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and int(part) for part in parts):
        raise ConfigError(f"--sizes takes whole numbers of pixels such as 112,224, got {text!r}")
    return [int(part) for part in parts]


def _parse_factor(text: str, method: str | None) -> float | None:
    from zoo.errors import ConfigError

    if text == "auto":
        return None
    if method is None:
        raise ConfigError("--factor is that of a context extension: give --extend too")
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"--factor takes auto or a number of 1 or more, got {text!r}") from None


def _write(path: Path, report: dict[str, Any]) -> None:
    from zoo.errors import ConfigError
    from zoo.files import write_whole

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(report, indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error


def _print_table(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    title = f"{report['name']} on {report['dataset']} {report['split']}, {report['images']} pictures, {report['dtype']}"
    table = Table(title=title, title_justify="left")
    extended = any("extend" in row for row in report["results"])
    for heading in ("size (px)", "top-1 (%)", "top-5 (%)", "images/s", *(["extension"] if extended else [])):
        table.add_column(heading, justify="right")
    for row in report["results"]:
        cells = [str(row["size"]), f"{row['top1']:.2f}", f"{row['top5']:.2f}", f"{row['images_per_s']:,.0f}"]
        if extended:
            factors = dict.fromkeys(f"{factor:.3g}" for factor in row["factor"])
            cells.append(f"{row['extend']} {' x '.join(factors)}")
        table.add_row(*cells)
    Console().print(table)
