"""Fine-tuning detectors on pictures: which data are understood, what is wrong with them, and settings for them."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from modalities.image.detection_data import open_packed_boxes
from modalities.image.detection_sources import find_coco, find_picture
from modalities.image.finetune import picture_size
from modalities.image.hub_boxes import BoxForm, HubBoxes, as_corners, has_objects
from modalities.image.sources import ParquetTable, class_names, encoded, parquet_files, read_file, source_name
from modalities.image.yolo_source import YoloSource, find_yaml, label_file, parse_lines
from zoo.data_config import DataConfig
from zoo.errors import DataError
from zoo.finetune.checks import Copies, each, report_names
from zoo.finetune.found import Found, held_share, measured_on, no_layout
from zoo.finetune.report import Report

__all__ = ["LAYOUTS", "examine"]

LAYOUTS = (
    "COCO: annotations/instances_train*.json (or train/_annotations.coco.json) and its pictures",
    "YOLO: data.yaml with train, val and names; pictures in images/, a text file for each in labels/",
    "Parquet with columns image, boxes (x1, y1, x2, y2 in pixels) and labels: train.parquet or train-*.parquet",
    "Parquet as the Hub has it, with columns image and objects (bbox: x, y, width, height in pixels; and category)",
    "a packed set (meta.json)",
)
_OUTSIDE = 1.0  # Pixels beyond the edge that are put down to rounding.


@dataclass
class _Raw:
    """A picture with its boxes as they are in the files, nothing checked but their form."""

    name: str
    boxes: np.ndarray  # float64 (n, 4) x1, y1, x2, y2
    labels: list[str]
    read: Callable[[], bytes]
    shares: bool = False  # Boxes are shares of the sides and not pixels.
    stated: tuple[int, int] | None = None
    crowd: list[bool] = field(default_factory=list)


@dataclass(frozen=True)
class _Split:
    names: list[str]
    pictures: Callable[[], Iterator[_Raw]]
    form: BoxForm | None = None  # Where the files do not say what the numbers of a box are.


def examine(
    data: Path, config: Mapping[str, Any], report: Report, *, size: int | None, skip_bad: bool, quiet: bool
) -> Found:
    """Finds and checks pictures with boxes; arguments as for `modalities.image.finetune.examine`.

    Raises:
        DataError: If the layout is not known.
    """
    if (data / "meta.json").is_file():
        packed = open_packed_boxes(data)
        layout, count, validated = "packed pictures", len(packed), False
        names = packed.class_names or [str(number) for number in range(packed.num_classes)]
    else:
        layout, opener = _layout(data)
        splits = _opened(report, opener)
        validated, names = "val" in splits, splits["train"].names if "train" in splits else []
        count = _check(report, splits, skip_bad, quiet) if splits else 0
    share = 0.0 if validated else held_share(count)
    own = DataConfig.from_dict(config["data"]).input_size[1:]
    side = (size, size) if size else own
    settings: dict[str, Any] = {
        "image_size": [size, size] if size else None,
        "store_size": [math.ceil(1.5 * s) for s in side],
        "skip_bad": skip_bad,
        "dev_split": "validation" if validated else None,
        "dev_by_class": share,
        "scale": [0.6, 1.6],
        "clip": 10.0,
        "eval_every": 5,
    }
    told = measured_on(validated, share, "the pictures of each class")
    kept = round(count * (1 - share))
    return Found(layout, "image-detection", "dev_map", kept, tuple(names), told, settings, 16, new_head=False)


def _layout(data: Path) -> tuple[str, Callable[[str, Report], _Split | None]]:
    """What the data are, and what opens a split of them (`None` where it is absent)."""
    if data.exists():
        if files := parquet_files(data, "train"):
            if has_objects(files):
                return "Parquet files with objects", partial(_hub, data)
            return "Parquet files with boxes", partial(_parquet, data)
        if find_yaml(data) is not None:
            return "YOLO", partial(_yolo, data)
        if data.suffix == ".json" or (data.is_dir() and find_coco(data, "train") is not None):
            return "COCO", partial(_coco, data)
    raise no_layout(data, "object detection", LAYOUTS)


def _opened(report: Report, opener: Callable[[str, Report], _Split | None]) -> dict[str, _Split]:
    splits = {}
    for split in ("train", "val"):
        try:
            if (found := opener(split, report)) is not None:
                splits[split] = found
        except DataError as error:
            report.error("annotations that cannot be used", str(error))
    return splits


def _check(report: Report, splits: Mapping[str, _Split], skip_bad: bool, quiet: bool) -> int:
    """Checks everything; gives the number of usable training pictures."""
    copies, usable = Copies(), Counter[str]()
    objects: dict[str, Counter[str]] = {}
    bad = report.note if skip_bad else report.error
    for split, found in splits.items():
        own = objects[split] = Counter({name: 0 for name in found.names})
        for raw, result in each(found.pictures(), _decoded, f"checking {split}", quiet):
            if isinstance(result, DataError):
                bad("pictures that are missing or cannot be read", f"{raw.name}: {result}")
                continue
            (height, width), content = result
            copies.add(split, raw.name, None, content)
            if raw.stated not in (None, (height, width)):
                bad("pictures of another size than their annotations say", f"{raw.name}: {width} x {height}")
                continue
            usable[split] += 1
            if found.form is not None:
                found.form.add(raw.boxes, height, width)
            own.update(_check_boxes(report, raw, height, width))
        if found.form is not None and (problem := found.form.problem()) is not None:
            report.error("boxes in another form", problem)
    copies.report(report)
    train = splits["train"].names if "train" in splits else []
    report_names(report, train)
    if "train" in splits and not sum(objects["train"].values()):
        report.error("no boxes to train on", "in all of the training pictures")
    for name in (name for name in train if not objects["train"][name]):
        report.note("classes without boxes in training", name)
    trained, validated = (objects.get(split, Counter[str]()) for split in ("train", "val"))
    for name in (n for n, count in validated.items() if count and not trained[n]):
        report.error("classes in validation that are not in training", name)
    return usable["train"]


def _check_boxes(report: Report, raw: _Raw, height: int, width: int) -> list[str]:
    """Classes of the boxes that will be used."""
    used = []
    if not len(raw.boxes):
        report.note("pictures without boxes", raw.name)
    scale = np.array([width, height, width, height]) if raw.shares else np.ones(4)
    for box, label in zip(raw.boxes * scale, raw.labels, strict=True):
        where = f"{raw.name}: {label} {np.round(box, 1).tolist()} in {width} x {height}"
        cut = box.clip(0, [width, height, width, height])
        if not np.isfinite(box).all():
            report.error("boxes with numbers that are not finite", where)
        elif not (box[2:] > box[:2]).all():
            report.note("boxes without area, which are left out", where)
        elif not (cut[2:] > cut[:2]).all():
            report.note("boxes outside of their picture, which are left out", where)
        else:
            used.append(label)
            if np.abs(cut - box).max() > _OUTSIDE:
                report.note("boxes that reach beyond their picture, which are cut", where)
    return used


def _decoded(raw: _Raw) -> tuple[tuple[int, int], bytes]:
    content = raw.read()
    return picture_size(content), content


def _yolo(data: Path, split: str, report: Report) -> _Split | None:
    path = find_yaml(data)
    assert path is not None
    try:
        source = YoloSource(path, source_name(data), "validation" if split == "val" else split)
    except DataError as error:
        if split == "val" and "no split" in str(error):
            return None
        raise
    names = source.class_names or []

    def pictures() -> Iterator[_Raw]:
        for file in source.files:
            boxes, labels, wrong = parse_lines(label_file(file), len(names))
            report.error("lines of label files that are no boxes", *wrong) if wrong else None
            if not label_file(file).is_file():
                report.note("pictures without a label file, taken as without objects", str(file))
            yield _Raw(str(file), boxes, [names[label] for label in labels], partial(read_file, file), shares=True)

    return _Split(names, pictures)


def _parquet(data: Path, split: str, report: Report) -> _Split | None:
    files = parquet_files(data, "validation" if split == "val" else split)
    if not files or (split == "val" and data.is_file()):
        return None
    table = ParquetTable(files, source_name(data), ("image", "boxes", "labels"), ("width", "height"))
    stated = class_names(table.metadata, "labels")
    names: list[str] = list(stated or [])

    def pictures() -> Iterator[_Raw]:
        for name, record in table.records():
            boxes, labels = record["boxes"] or [], record["labels"] or []
            if len(boxes) != len(labels):
                report.error("pictures with another number of labels than boxes", f"{name}: {len(labels)} {len(boxes)}")
                continue
            kept: list[tuple[Sequence[float], str]] = []
            for box, label in zip(boxes, labels, strict=True):
                if not _four(box):
                    report.error("boxes that are not four numbers", f"{name}: {box!r:.60}")
                elif not isinstance(label, int) or label < 0 or (stated and label >= len(stated)):
                    report.error("labels that are missing or no class number", f"{name}: {label!r:.40}")
                else:
                    kept.append((box, stated[label] if stated else str(label)))
            sides = record.get("height"), record.get("width")
            size = None if None in sides else (int(sides[0] or 0), int(sides[1] or 0))
            yield _raw(name, kept, partial(encoded, record["image"]), size)

    return _Split(names, pictures)


def _hub(data: Path, split: str, report: Report) -> _Split | None:
    split = "validation" if split == "val" else split
    if not parquet_files(data, split) or (split == "validation" and data.is_file()):
        return None
    source = HubBoxes.open(data, split)
    names = source.class_names

    def pictures() -> Iterator[_Raw]:
        seen: set[Any] = set()
        for row in source.rows():
            if row.identity is not None and row.identity in seen:
                report.error("ids of pictures that occur twice", f"{row.name}: {row.identity!r:.40}")
            seen.add(row.identity)
            if row.uneven:
                report.error("pictures with another number of categories than boxes", f"{row.name}: {row.uneven}")
                continue
            kept: list[tuple[Sequence[float], str]] = []
            for box, category, _, _ in row.objects:
                if (label := source.label(category)) is None:
                    report.error("categories that are missing or no class", f"{row.name}: {category!r:.40}")
                elif not _four(box):
                    report.error("boxes that are not four numbers", f"{row.name}: {box!r:.60}")
                else:
                    corners: list[float] = as_corners([box])[0].tolist()
                    kept.append((corners, names[label] if names else str(label)))
            yield _raw(row.name, kept, partial(encoded, row.image), row.size)

    return _Split(list(names or []), pictures, BoxForm(source.path))


def _coco(data: Path, split: str, report: Report) -> _Split | None:
    path = data if data.is_file() else find_coco(data, "validation" if split == "val" else split)
    if path is None or (split == "val" and data.is_file()):
        return None
    try:
        values = json.loads(path.read_bytes())
        images, annotations = list(values["images"]), list(values["annotations"])
        names = {one["id"]: str(one["name"]) for one in sorted(values["categories"], key=lambda one: one["id"])}
        listed = [(one["id"], str(one["file_name"])) for one in images]
        own: dict[Any, list[Any]] = {identity: [] for identity, _ in listed}
        owners = [(one["id"], one["image_id"], one["category_id"]) for one in annotations]
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: not COCO annotations of boxes ({type(error).__name__}: {error!s:.80})") from error
    for what, identities in (("pictures", [i for i, _ in listed]), ("annotations", [i for i, _, _ in owners])):
        if twice := [i for i, count in Counter(identities).items() if count > 1]:
            report.error(f"ids of {what} that occur twice", *map(str, twice))
    for one, (identity, image, category) in zip(annotations, owners, strict=True):
        where = f"{path.name}: annotation {identity}"
        if image not in own:
            report.error("annotations of pictures that are not listed", f"{where} of picture {image!r:.40}")
        elif category not in names:
            report.error("annotations without a known category", f"{where} of category {category!r:.40}")
        elif not _four(one.get("bbox")):
            report.error("boxes that are not four numbers", f"{where}: {one.get('bbox')!r:.60}")
        else:
            own[image].append(one)

    def pictures() -> Iterator[_Raw]:
        for one, (identity, name) in zip(images, listed, strict=True):
            kept = []
            for annotation in own[identity]:
                x, y, width, height = annotation["bbox"]
                kept.append(([x, y, x + width, y + height], names[annotation["category_id"]]))
            known = isinstance(one.get("height"), int) and isinstance(one.get("width"), int)
            size = (one["height"], one["width"]) if known else None
            yield _raw(f"{path.name}: {name}", kept, partial(find_picture, path, name), size)

    return _Split(list(names.values()), pictures)


def _four(box: Any) -> bool:
    numbers = isinstance(box, list) and len(box) == 4
    return numbers and all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in box)


def _raw(
    name: str, kept: Sequence[tuple[Sequence[float], str]], read: Callable[[], bytes], size: tuple[int, int] | None
) -> _Raw:
    boxes = np.array([box for box, _ in kept], np.float64).reshape(-1, 4)
    return _Raw(name, boxes, [label for _, label in kept], read, stated=size)
