"""Where pictures with boxes come from: Parquet files as the Hub serves them, or COCO annotations and pictures."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from modalities.image.packing import PictureSource
from modalities.image.sources import (
    ParquetTable,
    class_names,
    encoded,
    parquet_files,
    read_file,
    source_name,
    stamps_sha256,
)
from zoo.class_folders import split_names
from zoo.errors import DataError

__all__ = ["BoxedItem", "CocoSource", "Objects", "ParquetBoxes", "find_coco", "find_picture", "open_boxed_source"]

_MAX_CATEGORY = 100_000


@dataclass(frozen=True, eq=False)
class Objects:
    """The objects of one picture.

    Attributes:
        boxes: float32 (n, 4), x1, y1, x2, y2 in pixels of the picture as stored in its file.
        labels: int64 (n,).
        crowd: bool (n,), True for boxes around a group.
        area: float32 (n,) in square pixels; NaN where it is that of the box.
        size: (height, width) of the picture that the annotations state, or `None`.
    """

    boxes: np.ndarray
    labels: np.ndarray
    crowd: np.ndarray
    area: np.ndarray
    size: tuple[int, int] | None = None


@dataclass(frozen=True, eq=False)
class BoxedItem:
    """One encoded picture with its objects."""

    name: str
    objects: Objects
    read: Callable[[], bytes]


def open_boxed_source(data: Path, split: str, *, category_ids: bool = False) -> PictureSource:
    """Finds pictures with boxes.

    Args:
        data: A folder with `<split>.parquet` (or `<split>-*.parquet`), see `ParquetBoxes` and
            `modalities.image.hub_boxes`; or with `annotations/instances_<split>*.json`,
            `instances_<split>*.json` or `<split>/_annotations.coco.json`, and the pictures in `<split>*/`,
            `images/<split>*/`, `images/` or beside the annotations; or with the `data.yaml` of YOLO's layout; or such a
            file itself.
        split: Name of the split.
        category_ids: Labels are the category ids of COCO annotations as they are, with unused ones between, and not
            the categories numbered from 0 without gaps.

    Raises:
        DataError: If nothing is found or the annotations are not good; says what is wrong.
    """
    if files := parquet_files(data, split):
        if category_ids:
            raise DataError(f"{data}: category_ids is for COCO annotations; a Parquet file has labels alone")
        from modalities.image.hub_boxes import HubBoxes, has_objects

        return HubBoxes.open(data, split) if has_objects(files) else ParquetBoxes(files, source_name(data))
    from modalities.image.yolo_source import YoloSource, find_yaml

    if (yaml := find_yaml(data)) is not None:
        return YoloSource(yaml, source_name(data), split)
    if data.is_file():
        return CocoSource(data, source_name(data), category_ids=category_ids)
    if (annotations := find_coco(data, split)) is not None:
        return CocoSource(annotations, source_name(data), category_ids=category_ids)
    raise DataError(
        f"{data}: no split {split!r}; expected {split}.parquet (columns image, boxes, labels; or image, objects), "
        f"COCO's annotations/instances_{split}*.json with pictures in {split}*/, or YOLO's data.yaml"
    )


def find_coco(data: Path, split: str) -> Path | None:
    """The COCO annotations of a split in a folder, if there are any.

    Raises:
        DataError: If there are several.
    """
    for name in split_names(split):
        patterns = (f"annotations/instances_{name}*.json", f"instances_{name}*.json", f"{name}/_annotations.coco.json")
        for pattern in patterns:
            found = sorted(data.glob(pattern))
            if len(found) > 1:
                names = ", ".join(path.name for path in found)
                raise DataError(
                    f"{data}: several annotations for split {split!r}: {names}; give one of them as the data"
                )
            if found:
                return found[0]
    return None


class ParquetBoxes(ParquetTable):
    """Parquet files with columns `image` (bytes, path), `boxes` (lists of x1, y1, x2, y2 in pixels) and `labels`.

    Columns `iscrowd`, `area`, `width`, `height` and `image_id` are used where there are. Class names are taken from
    the `huggingface` metadata.
    """

    def __init__(self, files: list[Path], name: str) -> None:
        optional = ("iscrowd", "area", "width", "height", "image_id")
        super().__init__(files, name, ("image", "boxes", "labels"), optional)
        self.class_names = class_names(self.metadata, "labels")

    def __iter__(self) -> Iterator[BoxedItem]:
        seen: set[object] = set()
        for name, record in self.records():
            if (identity := record.get("image_id")) is not None:
                if identity in seen:
                    raise DataError(f"{name}: image_id {identity!r:.60} occurs twice")
                seen.add(identity)
            sides = record.get("height"), record.get("width")
            objects = _objects(
                name,
                record["boxes"] or [],
                record["labels"] or [],
                record.get("iscrowd"),
                record.get("area"),
                None if None in sides else (int(sides[0] or 0), int(sides[1] or 0)),
                len(self.class_names) if self.class_names else None,
            )
            yield BoxedItem(name, objects, partial(encoded, record["image"]))


class CocoSource:
    """COCO annotations and their pictures, in the order of the file.

    Args:
        path: The JSON file.
        name: Of the data set.
        category_ids: See `open_boxed_source`.

    Raises:
        DataError: If the file is not such annotations: not JSON, ids that occur twice or are not there, boxes that are
            not four numbers, or pictures outside of the folder.
    """

    def __init__(self, path: Path, name: str, *, category_ids: bool = False) -> None:
        self.path, self.name = path, name
        try:
            text = path.read_bytes()
            values = json.loads(text)
            images, annotations, categories = (values[key] for key in ("images", "annotations", "categories"))
            self._read(images, annotations, categories, category_ids)
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error})") from error
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            if isinstance(error, DataError):
                raise
            reason = f"{type(error).__name__}: {error}"
            raise DataError(f"{path}: not COCO annotations of boxes ({reason:.120})") from error
        files = [found for image in self._images if (found := _find(path, image["file_name"])) is not None]
        facts = (hashlib.sha256(text).hexdigest(), stamps_sha256(path.parent, files), category_ids)
        self.sha256 = hashlib.sha256(repr(facts).encode()).hexdigest()

    def _read(self, images: Any, annotations: Any, categories: Any, category_ids: bool) -> None:
        names = _by_id(categories, "category", self.path)
        order = sorted(names)
        if category_ids:
            if order and not 0 <= order[0] <= order[-1] <= _MAX_CATEGORY:
                raise DataError(f"{self.path}: category ids must lie in 0..{_MAX_CATEGORY} for category_ids")
            order = list(range(order[-1] + 1)) if order else []
        self.class_names: list[str] | None = [str(names[i]["name"]) if i in names else f"unused {i}" for i in order]
        if not order:
            raise DataError(f"{self.path}: no categories")
        self._label = {identity: index for index, identity in enumerate(order) if identity in names}
        by_image = _by_id(images, "picture", self.path)
        self._images = list(by_image.values())
        for image in self._images:
            file = Path(str(image["file_name"]))
            if file.is_absolute() or ".." in file.parts:
                raise DataError(f"{self.path}: file_name {str(file)!r:.80} leaves the folder of the pictures")
        _by_id(annotations, "annotation", self.path)
        self._annotations: dict[Any, list[Mapping[str, Any]]] = {identity: [] for identity in by_image}
        for one in annotations:
            if one["image_id"] not in self._annotations:
                raise DataError(
                    f"{self.path}: annotation {one['id']} is of picture {one['image_id']}, which is not there"
                )
            if one["category_id"] not in self._label:
                raise DataError(
                    f"{self.path}: annotation {one['id']} is of category {one['category_id']}, which is not there"
                )
            self._annotations[one["image_id"]].append(one)

    def __len__(self) -> int:
        return len(self._images)

    def __iter__(self) -> Iterator[BoxedItem]:
        for image in self._images:
            name = f"{self.path.name}: {image['file_name']}"
            own = self._annotations[image["id"]]
            corners = [(x, y, x + width, y + height) for x, y, width, height in (_numbers(one, name) for one in own)]
            size = (int(image["height"]), int(image["width"])) if "height" in image and "width" in image else None
            objects = _objects(
                name,
                corners,
                [self._label[one["category_id"]] for one in own],
                [one.get("iscrowd", 0) for one in own],
                [one.get("area", float("nan")) for one in own],
                size,
                len(self.class_names or []),
            )
            yield BoxedItem(name, objects, partial(find_picture, self.path, image["file_name"]))


def _folders(annotations: Path) -> list[Path]:
    """Where pictures may be: `train2017` for `instances_train2017.json`, beside the file and one folder up."""
    split = re.sub(r"^instances_|\.json$", "", annotations.name)
    roots = [annotations.parent] + ([annotations.parent.parent] if annotations.parent.name == "annotations" else [])
    return [root / part for root in roots for part in (split, f"images/{split}", "images", ".")]


def _find(annotations: Path, file_name: str) -> Path | None:
    return next((path for folder in _folders(annotations) if (path := folder / file_name).is_file()), None)


def find_picture(annotations: Path, file_name: str) -> bytes:
    """The bytes of a picture that COCO annotations name.

    Raises:
        DataError: If it is not there, or lies outside of the folders where pictures may be.
    """
    if Path(file_name).is_absolute() or ".." in Path(file_name).parts:
        raise DataError("the name leaves the folder of the pictures")
    path = _find(annotations, file_name)
    if path is None:
        looked = ", ".join(str(folder) for folder in _folders(annotations) if folder.is_dir())
        raise DataError(f"the picture is missing; looked in {looked}")
    return read_file(path)


def _by_id(values: Any, what: str, path: Path) -> dict[Any, Mapping[str, Any]]:
    found: dict[Any, Mapping[str, Any]] = {}
    for value in values:
        if value["id"] in found:
            raise DataError(f"{path}: {what} id {value['id']!r:.60} occurs twice")
        found[value["id"]] = value
    return found


def _numbers(annotation: Mapping[str, Any], name: str) -> Sequence[float]:
    box = annotation.get("bbox")
    good = isinstance(box, list) and len(box) == 4
    if not good or any(isinstance(v, bool) or not isinstance(v, (int, float)) for v in box or []):
        raise DataError(f"{name}: annotation {annotation['id']}: bbox must be four numbers, got {box!r:.80}")
    return box  # type: ignore[return-value]


def _objects(
    name: str,
    boxes: Sequence[Sequence[float]],
    labels: Sequence[int],
    crowd: Sequence[int] | None,
    area: Sequence[float] | None,
    size: tuple[int, int] | None,
    classes: int | None,
) -> Objects:
    """Checks what can be checked without the picture.

    Raises:
        DataError: If shapes do not fit, a coordinate is not finite, or a label is not a class.
    """
    count = len(boxes)
    try:
        corners = np.array(boxes, dtype=np.float64).reshape(count, 4)
        numbers = np.array(labels, dtype=np.int64)
        groups = np.zeros(count, dtype=bool) if crowd is None else np.array(crowd, dtype=bool)
        areas = np.full(count, np.nan) if area is None else np.array(area, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(
            f"{name}: boxes, labels, iscrowd or area are not numbers of the right shape ({error})"
        ) from error
    if not (numbers.shape == groups.shape == areas.shape == (count,)):
        raise DataError(f"{name}: {count} boxes, {len(numbers)} labels, {len(groups)} iscrowd and {len(areas)} area")
    if not np.isfinite(corners).all():
        raise DataError(f"{name}: a box has coordinates that are not finite")
    if count and (numbers.min() < 0 or (classes is not None and numbers.max() >= classes)):
        bad = int(numbers.min()) if numbers.min() < 0 else int(numbers.max())
        raise DataError(f"{name}: label {bad} is not a class number" + (f" of 0..{classes - 1}" if classes else ""))
    return Objects(corners.astype(np.float32), numbers, groups, areas.astype(np.float32), size)
