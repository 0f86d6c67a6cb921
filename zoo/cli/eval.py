"""`zoo eval`: accuracy of a classifier, metrics of a detector, mean IoU of a segmenter, likelihood of a decoder."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["eval_", "parse_sizes"]


_MOST_CLASSES = 10  # That a table shows.
# Before the name of a class, the metric that is its own, and what that is called.
_BY_CLASS = {"map/": "mAP", "iou/": "IoU"}
# Columns of the table: key of a result and heading; those that no row has are left out.
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
        ("nds", "NDS (%)"),
        ("mate", "mATE (m)"),
        ("mase", "mASE (1 - IoU)"),
        ("maoe", "mAOE (rad)"),
        ("mave", "mAVE (m/s)"),
        ("maae", "mAAE (1 - acc)"),
        ("ap50", "AP50"),
        ("ap75", "AP75"),
        ("ap_small", "small"),
        ("ap_medium", "medium"),
        ("ap_large", "large"),
        ("ar", "AR"),
    ),
    "generation": (
        ("nll", "NLL (nats/token)"),
        ("nll_frame", "NLL (nats/frame)"),
        ("perplexity", "perplexity"),
        ("accuracy", "accuracy (%)"),
        ("exact", "no fault (%)"),
    ),
}
# What sizes are, other than sides in pixels.
_SIZES = {"points": "points", "sequence": "size"}


def eval_(
    name: Annotated[str, typer.Argument(help="Model name, as for `zoo predict`; or a file of `zoo export`.")],
    data: Annotated[
        str,
        typer.Option(
            help="Folder with the split: Parquet, class folders, COCO files, videos, events, clouds, nuScenes, music, "
            "text or DNA; the name of a made-up task, such as index; or hf-hub:ORG/NAME of Parquet files."
        ),
    ],
    split: Annotated[
        str,
        typer.Option(
            help="Which split; data sets have train and test, and most val (HMDB51, N-MNIST, ModelNet and ALS-3 have "
            "none)."
        ),
    ] = "validation",
    sizes: Annotated[
        str | None,
        typer.Option(
            help="Of models of images and camera motions: sides in pixels, as 112,224 or 480x640 (height x width). "
            "Of segmenters of clouds: points seen at once, as 8192. Of decoders: tokens, columns or pictures."
        ),
    ] = None,
    clips: Annotated[
        int | None, typer.Option(min=1, help="Of video models: clips of each video; by default 1.")
    ] = None,
    crops: Annotated[
        int | None, typer.Option(help="Of video models: crops of each clip, 1 or 3; by default 1.")
    ] = None,
    fold: Annotated[
        int | None, typer.Option(help="Of UCF101 and HMDB51: the official split, 1 to 3; by default 1.")
    ] = None,
    drop: Annotated[
        str | None,
        typer.Option(
            help="Of driving models: also measure without sensors, as CAM_FRONT,cameras,lidar; names joined by + are "
            "switched off at once; each: every sensor in turn."
        ),
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
    """Measure a model: accuracy of classifiers, COCO metrics of detectors, mean IoU of segmenters of point clouds.

    Image models are measured at several sizes; models of camera motions as trained, and on clips that are longer,
    larger, or at other frame rates; detectors of driving scenes by the metrics of nuScenes; decoders by the negative
    log-likelihood of tokens, and as long as in training and longer.
    """
    sides, number = parse_sizes(sizes), _parse_factor(factor, extend)

    import torch

    import zoo
    from zoo.card_facts import training_seed
    from zoo.errors import ConfigError
    from zoo.evaluations import evaluation
    from zoo.finetune.hub_data import fetched
    from zoo.sharing import launched
    from zoo.sources import is_exported

    seed = training_seed(name)
    command = shlex.join(["zoo", *sys.argv[1:]])
    exported = is_exported(name)  # Such a file has a dtype of its own, and is mostly for the CPU.
    if exported and dtype != "float32":
        raise ConfigError(f"--dtype {dtype}: an exported file computes in its own: export it with --dtype")
    target = device or ("cuda" if torch.cuda.is_available() and not exported else "cpu")
    with launched(target) as (share, own):
        model = zoo.load(name, device=own)
        kind = (model.config["modality"], model.config["task"])
        report = evaluation(*kind, name)(
            model,
            fetched(data),
            split=split,
            sizes=sides,
            name=name,
            batch_size=batch_size,
            limit=limit,
            dtype=dtype,
            extend=extend,
            factor=number,
            skip_bad=skip_bad,
            quiet=quiet or share.rank > 0,
            command=command,
            share=share,
            **_own_settings("video", kind[0], clips=clips, crops=crops, fold=fold),
            **_own_settings("driving", kind[0], drop=None if drop is None else list(filter(None, drop.split(",")))),
        )
    if share.rank:
        return  # The first process says and writes what all of them know.
    # What a card needs to know of weights in a folder, which may be gone by then.
    report |= {"model": model.config["name"], **({} if seed is None else {"seed": seed})}
    if exported:
        report["dtype"] = model.graph["weights"]
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        _print_table(report, _SIZES.get(kind[0], "size (px)"))
    if out is not None:  # Last: a disk that is full must not cost the numbers.
        _write(out, report)


def _own_settings(owner: str, modality: str, **settings: Any) -> dict[str, Any]:
    """The settings that were given, which models of one modality alone have."""
    from zoo.errors import ConfigError

    given = {key: value for key, value in settings.items() if value is not None}
    if given and modality != owner:
        raise ConfigError(f"--{next(iter(given))} is for {owner} models, this is a model for {modality}")
    return given


def parse_sizes(text: str | None, option: str = "--sizes") -> list[int | tuple[int, int]] | None:
    """Sizes of an option: whole numbers, and heights x widths.

    Raises:
        ConfigError: If it holds anything else.
    """
    from zoo.errors import ConfigError

    if text is None:
        return None
    found: list[int | tuple[int, int]] = []
    for part in filter(None, map(str.strip, text.split(","))):
        sides = part.split("x")
        if len(sides) > 2 or not all(side.isdecimal() and int(side) for side in sides):
            raise ConfigError(f"{option} takes whole numbers such as 112,224 or 480x640, got {text!r}")
        found.append((int(sides[0]), int(sides[1])) if len(sides) == 2 else int(sides[0]))
    if not found:
        raise ConfigError(f"{option} takes whole numbers such as 112,224 or 480x640, got {text!r}")
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
    columns = [(key, text) for key, text in every if key in known]
    extended, varied = "extend" in known, "condition" in known
    more = [*(["extension"] if extended else []), *(["measured on"] if varied else [])]
    for heading in (size, *(text for _, text in columns), "per s", *more):
        table.add_column(heading, justify="right")
    for row in report["results"]:
        sides = row["size"] if isinstance(row["size"], int) else " x ".join(map(str, row["size"]))
        values = [f"{row[key]:.2f}" if key in row else "-" for key, _ in columns]
        cells = [str(sides), *values, _rate(row["images_per_s"])]
        if extended:
            factors = dict.fromkeys(f"{factor:.3g}" for factor in row["factor"])
            cells.append(f"{row['extend']} {' x '.join(factors)}")
        if varied:
            cells.append(str(row.get("condition", "")))
        table.add_row(*cells)
    Console().print(table)
    for prefix, metric in _BY_CLASS.items():
        if 0 < sum(key.startswith(prefix) for key in known) <= _MOST_CLASSES:
            _print_classes(report["results"], prefix, metric, size)


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 10 else f"{per_s:.2g}"  # Of key frames a CPU does less than one a second.


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
