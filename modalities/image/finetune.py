"""Fine-tuning classifiers of pictures: which data are understood, what is wrong with them, and settings for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modalities.image.data import open_packed
from modalities.image.sources import SUFFIXES, ParquetTable, class_names, encoded, parquet_files, source_name
from zoo.class_folders import has_split, holds_classes, split_folders
from zoo.data_config import DataConfig
from zoo.errors import DataError
from zoo.finetune.checks import Copies, check_classes, check_folders, each
from zoo.finetune.found import Found, held_share, measured_on, no_layout
from zoo.finetune.report import Report
from zoo.reading import read

__all__ = ["LAYOUTS", "examine", "picture_size"]

LAYOUTS = (
    "class folders: <class>/<pictures>, or train/<class>/<pictures> with or without val/<class>/<pictures>",
    "Parquet as the Hub has it: train.parquet or train-*.parquet, also in data/, with columns image and label",
    "a packed set (meta.json)",
)
_SMALL = 500  # Samples up to which each picture has a draw of its own.
Size = tuple[int, int]


def examine(
    data: Path, config: Mapping[str, Any], report: Report, *, size: int | None, skip_bad: bool, quiet: bool
) -> Found:
    """Finds and checks labelled pictures.

    Args:
        data: The folder or file.
        config: Of the model.
        report: Gets what is wrong.
        size: Side in pixels to train at; `None` for the model's.
        skip_bad: Damaged pictures are left out.
        quiet: Show no progress bar.

    Raises:
        DataError: If the layout is not known.
    """
    validated: bool
    if (data / "meta.json").is_file():
        packed = open_packed(data)
        names = packed.class_names or [str(number) for number in range(packed.num_classes)]
        train = Counter({name: int((packed.labels == number).sum()) for number, name in enumerate(names)})
        check_classes(report, train, None)
        layout, validated, sizes = "packed pictures", False, [(int(h), int(w)) for h, w in packed.shapes]
    elif data.exists() and parquet_files(data, "train"):
        train, validated, sizes = _parquet(data, report, skip_bad, quiet)
        layout = "Parquet files"
    elif data.is_dir() and holds_classes(data, SUFFIXES):
        counts, sizes = check_folders(data, report, SUFFIXES, picture_size, skip_bad=skip_bad, quiet=quiet)
        train, validated = counts.get("train", Counter()), has_split(data, "val")
        layout = "class folders" + (f" in {', '.join(split_folders(data))}" if split_folders(data) else "")
    else:
        raise no_layout(data, "image classification", LAYOUTS)
    total = sum(train.values())
    share = 0.0 if validated else held_share(total)
    side = size or min(DataConfig.from_dict(config["data"]).input_size[1:])
    if small := [s for s in sizes if min(s) < side]:
        report.note(f"pictures smaller than {side} px, which are enlarged", *(f"{w} x {h}" for h, w in small))
    few = total <= _SMALL
    settings: dict[str, Any] = {
        "image_size": size,
        "store_size": _stored(sizes, side),
        "skip_bad": skip_bad,
        "dev_split": "validation" if validated else None,
        "dev_by_class": share,
        "crop_scale": [0.7 if few else 0.4, 1.0],
        "augmentation": "jitter",
        "color_jitter": [0.1 if few else 0.3] * 3,
        "augment_group": 1 if few else 8,
        "mixup": 0.0 if few else 0.2,
        "cutmix": 0.0 if few else 0.5,
        "label_smoothing": 0.1,
    }
    told = measured_on(validated, share)
    kept = round(total * (1 - share))
    return Found(layout, "image-classification", "dev_top1", kept, tuple(train), told, settings)


def picture_size(source: Path | bytes) -> Size:
    """(height, width) of a picture, which is decoded for it.

    Raises:
        DataError: If it cannot be.
    """
    rgb = read(source, kind="image").rgb
    return rgb.shape[0], rgb.shape[1]


def _stored(sizes: list[Size], side: int) -> int | None:
    """Side to which pictures are resized when packed: a little more than a crop needs; `None` for equal small ones."""
    most = -(-side * 5 // 4)
    return None if len(set(sizes)) <= 1 and min(sizes, default=(0, 0)) <= (most, most) else most


def _parquet(data: Path, report: Report, skip_bad: bool, quiet: bool) -> tuple[Counter[str], bool, list[Size]]:
    """Samples of each class in training, whether there is a validation split, and the sizes of training pictures."""
    counts: dict[str, Counter[str]] = {}
    copies, sizes, validated = Copies(), [], data.is_dir() and bool(parquet_files(data, "validation"))
    bad = report.note if skip_bad else report.error
    for split in ("train", "validation") if validated else ("train",):
        table = ParquetTable(parquet_files(data, split), source_name(data), ("image", "label"))
        names = class_names(table.metadata, table.stored_name("label"))
        own = counts[split] = Counter({name: 0 for name in names or ()})
        for (name, record), result in each(table.records(), _decoded, f"checking {split}", quiet):
            label = record["label"]
            if not isinstance(label, int) or label < 0 or (names and label >= len(names)):
                report.error("labels that are missing or no class number", f"{name}: {label!r:.40}")
                continue
            if isinstance(result, DataError):
                bad("pictures that cannot be read", f"{name}: {result}")
                continue
            key = names[label] if names else str(label)
            own[key] += 1
            copies.add("train" if split == "train" else "val", name, key, encoded(record["image"]))
            if split == "train":
                sizes.append(result)
        if names is None:  # Numbers that do not occur are classes all the same.
            last = max(map(int, own), default=-1)
            counts[split] = Counter({str(number): own.get(str(number), 0) for number in range(last + 1)})
    copies.report(report)
    check_classes(report, counts["train"], counts.get("validation"))
    return counts["train"], validated, sizes


def _decoded(item: tuple[str, dict[str, Any]]) -> Size:
    return picture_size(encoded(item[1]["image"]))
