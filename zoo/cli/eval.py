"""`zoo eval`: accuracy of a classifier, COCO metrics of a detector, mean IoU of a segmenter."""

from __future__ import annotations

import importlib
import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["eval_"]


# Modality and task -> "module:function" that reads the data, measures, and gives a report with "results".
_EVALUATIONS = {
    ("image", "classification"): "zoo.evaluate:evaluate_data",
    ("image", "detection"): "zoo.evaluate_detection:evaluate_detector_data",
    ("events", "classification"): "modalities.events.evaluate:evaluate_events",
    ("events", "detection"): "modalities.events.evaluate:evaluate_events",
    ("points", "classification"): "modalities.points.evaluate:evaluate_points",
    ("points", "segmentation"): "modalities.points.evaluate:evaluate_points",
}
_MOST_CLASSES = 10  # That a table shows.
# Before the name of a class, the metric that is its own, and what that is called.
_BY_CLASS = {"map/": "mAP", "iou/": "IoU"}
_OPTIONAL = {"top5", "macc", "top1_voted", "top1_so3"}  # Left out where no row has them.
# Columns of the table: key of a result and heading.
_COLUMNS = {
    "classification": (
        ("top1", "top-1 (%)"),
        ("top5", "top-5 (%)"),
        ("macc", "class mean (%)"),
        ("top1_voted", "voted (%)"),
        ("top1_so3", "turned (%)"),
    ),
    "segmentation": (
        ("miou", "mIoU (%)"),
        ("miou_voted", "voted (%)"),
        ("macc", "class mean (%)"),
        ("accuracy", "accuracy (%)"),
    ),
    "detection": (
        ("map", "mAP (%)"),
        ("ap50", "AP50"),
        ("ap75", "AP75"),
        ("ap_small", "small"),
        ("ap_medium", "medium"),
        ("ap_large", "large"),
        ("ar", "AR"),
    ),
}


def eval_(
    name: Annotated[str, typer.Argument(help="Model name, as for `zoo predict`.")],
    data: Annotated[
        str,
        typer.Option(help="Folder with the split: Parquet, class folders, COCO files, an event or a point data set."),
    ],
    split: Annotated[
        str, typer.Option(help="Which split; event and point data sets have test, and most val.")
    ] = "validation",
    sizes: Annotated[
        str | None, typer.Option(help="Of image models: sides in pixels, as 112,224 or 480x640 (height x width).")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Samples at a time; by default by size.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first samples.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; by default CUDA where there is one.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    extend: Annotated[
        str | None,
        typer.Option(help="Context extension above the training size: pi, ntk, dynamic-ntk, yarn or rescale."),
    ] = None,
    factor: Annotated[
        str, typer.Option(help="Its factor at every size above the training size; auto: size / training size.")
    ] = "auto",
    skip_bad: Annotated[
        bool,
        typer.Option("--skip-bad", help="Leave out damaged pictures; of damaged recordings take what can be decoded."),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Write the results to this JSON file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Measure the accuracy of a classifier, COCO metrics of a detector, or mean IoU of a segmenter of point clouds."""
    sides, number = _parse_sizes(sizes), _parse_factor(factor, extend)

    import torch

    import zoo
    from zoo.card_facts import training_seed
    from zoo.errors import ConfigError

    seed = training_seed(name)
    command = shlex.join(["zoo", *sys.argv[1:]])
    target = device or ("cuda" if torch.cuda.is_available() else "cpu")
    model = zoo.load(name, device=target)
    kind = (model.config["modality"], model.config["task"])
    if kind not in _EVALUATIONS:
        known = ", ".join(map(" ".join, _EVALUATIONS))
        raise ConfigError(f"{name}: no evaluation for {' '.join(kind)}; there is one for {known}")
    module, function = _EVALUATIONS[kind].split(":")
    report = getattr(importlib.import_module(module), function)(
        model,
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
    # What a card needs to know of weights in a folder, which may be gone by then.
    report |= {"model": model.config["name"], **({} if seed is None else {"seed": seed})}
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        _print_table(report, "points" if kind[0] == "points" else "size (px)")
    if out is not None:  # Last: a disk that is full must not cost the numbers.
        _write(out, report)


def _parse_sizes(text: str | None) -> list[int | tuple[int, int]] | None:
    from zoo.errors import ConfigError

    if text is None:
        return None
    found: list[int | tuple[int, int]] = []
    for part in filter(None, map(str.strip, text.split(","))):
        sides = part.split("x")
        if len(sides) > 2 or not all(side.isdecimal() and int(side) for side in sides):
            raise ConfigError(f"--sizes takes whole numbers of pixels such as 112,224 or 480x640, got {text!r}")
        found.append((int(sides[0]), int(sides[1])) if len(sides) == 2 else int(sides[0]))
    if not found:
        raise ConfigError(f"--sizes takes whole numbers of pixels such as 112,224 or 480x640, got {text!r}")
    return found


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


def _print_table(report: dict[str, Any], size: str) -> None:
    from rich.console import Console
    from rich.table import Table

    title = f"{report['name']} on {report['dataset']} {report['split']}, {report['images']} samples, {report['dtype']}"
    table = Table(title=title, title_justify="left")
    known = {key for row in report["results"] for key in row}
    every = _COLUMNS[report.get("task", "classification")]
    columns = [(key, text) for key, text in every if key in known or key not in _OPTIONAL]
    extended = any("extend" in row for row in report["results"])
    for heading in (size, *(text for _, text in columns), "per s", *(["extension"] if extended else [])):
        table.add_column(heading, justify="right")
    for row in report["results"]:
        sides = row["size"] if isinstance(row["size"], int) else " x ".join(map(str, row["size"]))
        values = [f"{row[key]:.2f}" if key in row else "-" for key, _ in columns]
        cells = [str(sides), *values, f"{row['images_per_s']:,.0f}"]
        if extended:
            factors = dict.fromkeys(f"{factor:.3g}" for factor in row["factor"])
            cells.append(f"{row['extend']} {' x '.join(factors)}")
        table.add_row(*cells)
    Console().print(table)
    for prefix, metric in _BY_CLASS.items():
        if 0 < sum(key.startswith(prefix) for key in known) <= _MOST_CLASSES:
            _print_classes(report["results"], prefix, metric, size)


def _print_classes(results: list[dict[str, Any]], prefix: str, metric: str, size: str) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"{metric} (%) by class", title_justify="left")
    keys = list(dict.fromkeys(key for row in results for key in row if key.startswith(prefix)))
    for heading in (size, *(escape(key.removeprefix(prefix)) for key in keys)):
        table.add_column(heading, justify="right")
    for row in results:
        sides = row["size"] if isinstance(row["size"], int) else " x ".join(map(str, row["size"]))
        table.add_row(str(sides), *(f"{row[key]:.2f}" if key in row else "-" for key in keys))
    Console().print(table)
