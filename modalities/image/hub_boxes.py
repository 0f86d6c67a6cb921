"""Boxes as data sets of the Hub have them: Parquet files with a column `objects` that holds `bbox` and a category.

`objects` is a struct of lists or a list of structs; `bbox` is x, y, width, height in pixels, as in COCO. The category
is called `category`, `categories`, `category_id`, `label` or `labels`: numbers of classes, whose names are in the
`huggingface` metadata, or the names themselves. `iscrowd` and `area` are used where there are.

Some data sets have x1, y1, x2, y2 in `bbox`, and nothing in the files says so. They are recognised by boxes that lie in
their picture only so, and refused; `corner_columns` rewrites them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from modalities.image.detection_sources import BoxedItem, Objects
from modalities.image.sources import ParquetTable, encoded, parquet_files, source_name
from zoo.errors import ConfigError, DataError, require

__all__ = ["BoxForm", "HubBoxes", "HubRow", "as_corners", "corner_columns", "has_objects"]

BOX = "bbox"
CATEGORIES = ("category", "categories", "category_id", "label", "labels")
CROWDS = ("iscrowd", "is_crowd")
_SPLITS = ("train", "validation", "test")
_ROUNDING = 1.0  # Pixels by which a box may leave its picture and still be in it.


def has_objects(files: Sequence[Path]) -> bool:
    """Whether Parquet files have a column `objects`, and not `boxes` and `labels`, which go first.

    Raises:
        DataError: If the first of them is not readable.
    """
    require("pyarrow", extra="data")
    import pyarrow
    import pyarrow.parquet as pq

    try:
        names = pq.read_schema(files[0]).names
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{files[0]}: not a readable Parquet file ({error})") from error
    return "objects" in names and not {"boxes", "labels"} <= set(names)


@dataclass(frozen=True)
class HubRow:
    """A row as it is in the files.

    Attributes:
        name: For messages.
        objects: (box, category, crowd, area) each, nothing checked; crowd and area may be `None`.
        size: (height, width) that the row states.
        image: The cell of the picture.
        identity: The cell `image_id`.
        uneven: What is wrong if the lists of boxes and categories differ in length; `objects` is empty then.
    """

    name: str
    objects: list[tuple[Any, Any, Any, Any]]
    size: tuple[int, int] | None
    image: Any
    identity: Any = None
    uneven: str | None = None


class HubBoxes(ParquetTable):
    """One split of such a data set.

    Args:
        files: Of the split, in order.
        name: Of the data set.
        others: Files of the other splits: names in the place of numbers are numbered over all splits.

    Raises:
        DataError: If a column or field is missing, or a file is not readable.
    """

    def __init__(self, files: list[Path], name: str, others: Sequence[Path] = ()) -> None:
        super().__init__(files, name, ("image", "objects"), ("width", "height", "image_id"))
        fields = _fields(self.schema, self.path)
        self.category = next((key for key in CATEGORIES if key in fields), "")
        if BOX not in fields or not self.category:
            wanted = f"of categories ({', '.join(CATEGORIES)})" if BOX in fields else repr(BOX)
            raise DataError(f"{self.path}: objects has no field {wanted}; it has {', '.join(fields) or 'none'}")
        self._crowd = next((key for key in CROWDS if key in fields), "")
        self.class_names: list[str] | None = _stated_names(self.metadata, self.category)
        if fields[self.category]:
            self.class_names = _written_names([*files, *others], self.category)
            self.sha256 = hashlib.sha256(repr((self.sha256, self.class_names)).encode()).hexdigest()
        self._numbers = {text: number for number, text in enumerate(self.class_names or ())}

    @classmethod
    def open(cls, data: Path, split: str) -> HubBoxes:
        """The split of a folder, or a file."""
        files = parquet_files(data, split)
        every = [] if data.is_file() else [file for name in _SPLITS for file in parquet_files(data, name)]
        return cls(files, source_name(data), [file for file in every if file not in files])

    def label(self, category: Any) -> int | None:
        """The class number of a category, or `None` if there is none."""
        if isinstance(category, str):
            return self._numbers.get(category)
        good = isinstance(category, int) and not isinstance(category, bool) and category >= 0
        return category if good and (self.class_names is None or category < len(self.class_names)) else None

    def rows(self) -> Iterator[HubRow]:
        """The rows, unchecked.

        Raises:
            DataError: If a file is damaged.
        """
        keys = (BOX, self.category, self._crowd, "area")
        for name, record in self.records():
            found, uneven = record["objects"], None
            if isinstance(found, dict):
                boxes, categories, *others = (found.get(key) or [] for key in keys)
                if len(boxes) != len(categories):
                    uneven, boxes, categories = f"{len(boxes)} {BOX}, {len(categories)} {self.category}", [], []
                filled = [values if len(values) == len(boxes) else [None] * len(boxes) for values in others]
                objects = list(zip(boxes, categories, *filled, strict=True))
            else:
                objects = [tuple((one or {}).get(key) for key in keys) for one in found or []]
            sides = record.get("height"), record.get("width")
            size = None if None in sides else (int(sides[0] or 0), int(sides[1] or 0))
            yield HubRow(name, objects, size, record["image"], record.get("image_id"), uneven)

    def __iter__(self) -> Iterator[BoxedItem]:
        seen: set[object] = set()
        for row in self.rows():
            if row.identity is not None:
                if row.identity in seen:
                    raise DataError(f"{row.name}: image_id {row.identity!r:.60} occurs twice")
                seen.add(row.identity)
            stored, labels, crowd, area = self.checked(row)
            objects = Objects(as_corners(stored).astype(np.float32), labels, crowd, area.astype(np.float32), row.size)
            yield BoxedItem(row.name, objects, partial(encoded, row.image))

    def checked(self, row: HubRow) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The objects of a row: boxes as stored float64 (n, 4), labels int64, crowd bool and area float64, all (n,).

        Raises:
            DataError: If a box or category cannot be used.
        """
        if row.uneven:
            raise DataError(f"{row.name}: objects has lists of different lengths: {row.uneven}")
        labels = []
        for box, category, _, _ in row.objects:
            if (reason := _bad_box(box)) is not None:
                raise DataError(f"{row.name}: {BOX} {reason}, got {box!r:.80}")
            if (label := self.label(category)) is None:
                known = f" of 0..{len(self.class_names) - 1}" if self.class_names else " number"
                raise DataError(f"{row.name}: {self.category} {category!r:.60} is not a class{known}")
            labels.append(label)
        boxes, _, crowds, areas = zip(*row.objects, strict=True) if row.objects else ((), (), (), ())
        return (
            np.array(boxes, dtype=np.float64).reshape(-1, 4),
            np.array(labels, dtype=np.int64),
            np.array([bool(crowd) for crowd in crowds], dtype=bool),
            np.array([np.nan if area is None else area for area in areas], dtype=np.float64),
        )

    def check_form(self, items: Sequence[BoxedItem], sizes: np.ndarray) -> None:
        """Refuses boxes that can only be x1, y1, x2, y2.

        Args:
            items: All pictures.
            sizes: (N, 2) their heights and widths.

        Raises:
            DataError: If so; says what to do.
        """
        form = BoxForm(self.path)
        for item, (height, width) in zip(items, sizes.tolist(), strict=True):
            form.add(item.objects.boxes, height, width)
        if (problem := form.problem()) is not None:
            raise DataError(problem)


class BoxForm:
    """Gathers evidence on whether boxes are x, y, width, height or x1, y1, x2, y2.

    A box counts for a form if it lies in its picture by that one alone, and the form with more of them is right: boxes
    drawn beyond the edge are few beside those whose width is less than x, which are no x1, y1, x2, y2.

    Args:
        path: Of the data, for the message.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sides = self._corners = self._boxes = self._shares = 0
        self._example = ""

    def add(self, boxes: np.ndarray, height: int, width: int) -> None:
        """Takes note of the boxes of a picture.

        Args:
            boxes: (n, 4) x1, y1, x2, y2 as they follow from x, y, width, height.
            height: Of the picture, in pixels.
            width: The same.
        """
        limit = np.array([width, height, width, height]) + _ROUNDING
        given = np.asarray(boxes, dtype=np.float64)
        raw = np.concatenate((given[:, :2], given[:, 2:] - given[:, :2]), axis=1)  # As stored.
        in_sides, in_corners = _inside(given, limit), _inside(raw, limit)
        only = in_corners & ~in_sides
        self._boxes += len(raw)
        self._shares += int((np.abs(raw) <= 1).all(axis=1).sum())
        self._sides += int((in_sides & ~in_corners).sum())
        self._corners += int(only.sum())
        if only.any() and not self._example:
            self._example = f"{np.round(raw[only][0], 1).tolist()} in a picture of {width} x {height}"

    def problem(self) -> str | None:
        """What is wrong and what to do, or `None`."""
        if self._boxes and self._shares == self._boxes:
            return (
                f"{self.path}: all numbers of {BOX} are 1 or less: they seem to be shares of the picture's sides; "
                "expected x, y, width, height in pixels"
            )
        if self._corners <= self._sides:
            return None
        source = self.path if self.path.is_dir() else self.path.parent
        call = f"corner_columns({str(source)!r}, 'OUT')"
        return (
            f"{self.path}: {BOX} must be x1, y1, x2, y2: as x, y, width, height {self._corners} boxes leave their "
            f"picture ({self._example}); write them as columns that say so: "
            f'python -c "from modalities.image.hub_boxes import corner_columns; {call}", and give OUT as the data'
        )


def as_corners(boxes: np.ndarray | Sequence[Sequence[float]]) -> np.ndarray:
    """Boxes x, y, width, height as x1, y1, x2, y2, float64 (n, 4)."""
    found = np.array(boxes, dtype=np.float64).reshape(-1, 4)
    return np.concatenate((found[:, :2], found[:, :2] + found[:, 2:]), axis=1)


def corner_columns(data: str | os.PathLike[str], out: str | os.PathLike[str]) -> list[Path]:
    """Rewrites a data set whose `bbox` is x1, y1, x2, y2, with columns `image`, `boxes` and `labels`, which say that.

    Args:
        data: Folder with the Parquet files of all splits.
        out: New folder.

    Returns:
        The files that were written, one for each split.

    Raises:
        ConfigError: If `out` is there and holds something, or cannot be written.
        DataError: If the data are not such, or a box or category cannot be used.
    """
    data, out = Path(data), Path(out)
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"{out} is there already and not empty: give a new folder")
    splits = [split for split in _SPLITS if parquet_files(data, split)]
    if not splits:
        raise DataError(f"{data}: no Parquet files of a split {', '.join(_SPLITS)}")
    written = []
    for split in splits:
        source = HubBoxes.open(data, split)
        written.append(_write_corners(source, out / f"{split}.parquet"))
    return written


def _write_corners(source: HubBoxes, path: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns = [("image", image), ("boxes", pa.list_(pa.list_(pa.float32()))), ("labels", pa.list_(pa.int64()))]
    columns += [("iscrowd", pa.list_(pa.bool_())), ("area", pa.list_(pa.float32()))]
    schema = pa.schema(columns)
    if source.class_names:
        labels = {"feature": {"names": source.class_names, "_type": "ClassLabel"}, "_type": "Sequence"}
        schema = schema.with_metadata({"huggingface": json.dumps({"info": {"features": {"labels": labels}}})})
    partial_path = path.with_suffix(".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(partial_path, schema) as writer:
            for row in source.rows():
                cells = [values.tolist() for values in source.checked(row)]
                record = dict(zip(schema.names, [{"bytes": encoded(row.image), "path": None}, *cells], strict=True))
                writer.write_table(pa.Table.from_pylist([record], schema))
        partial_path.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        partial_path.unlink(missing_ok=True)
    return path


def _inside(corners: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """Which rows x1, y1, x2, y2 are a box in a picture, bool (n,)."""
    parts = (corners[:, 2:] > corners[:, :2], corners >= -_ROUNDING, corners <= limit)
    return np.asarray(np.concatenate(parts, axis=1).all(axis=1))


def _bad_box(box: Any) -> str | None:
    """Why this is no box, or `None`."""
    if not isinstance(box, list) or len(box) != 4 or not all(isinstance(value, (int, float)) for value in box):
        return "must be four numbers"
    return None if np.isfinite(box).all() else "has coordinates that are not finite"


def _fields(schema: Any, path: Path) -> dict[str, bool]:
    """The fields of `objects`, and whether their values are text."""
    from pyarrow import types

    kind = schema.field("objects").type
    single = _is_list(kind)
    struct = kind.value_type if single else kind
    if not types.is_struct(struct):
        raise DataError(f"{path}: objects is {kind!s:.80}; expected a struct of lists, or a list of structs")
    found = {}
    for field in (struct.field(index) for index in range(struct.num_fields)):
        inner = field.type if single else (field.type.value_type if _is_list(field.type) else None)
        if inner is None and field.name in (BOX, *CATEGORIES):
            raise DataError(f"{path}: objects.{field.name} is {field.type!s:.80}; expected a list, one for each object")
        if inner is not None and types.is_dictionary(inner):
            inner = inner.value_type
        found[field.name] = inner is not None and (types.is_string(inner) or types.is_large_string(inner))
    return found


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _stated_names(metadata: dict[bytes, bytes] | None, category: str) -> list[str] | None:
    """Names of the classes by the `huggingface` metadata, in the forms that its versions have for lists."""
    try:
        feature = _element(json.loads((metadata or {})[b"huggingface"])["info"]["features"]["objects"])
        names = _element(feature[category])["names"]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        return None
    return names if isinstance(names, list) and names and all(isinstance(n, str) for n in names) else None


def _element(feature: Any) -> Any:
    """What a list is of: `[x]`, or `x` in `{"feature": x, "_type": "Sequence"}` (or `"List"`)."""
    while isinstance(feature, list) or "feature" in feature:
        feature = feature[0] if isinstance(feature, list) else feature["feature"]
    return feature


def _written_names(files: Sequence[Path], category: str) -> list[str]:
    """The categories that occur in files, which are text, in order."""
    import pyarrow
    import pyarrow.parquet as pq

    names: set[str] = set()
    for path in files:
        try:
            for batch in pq.ParquetFile(path).iter_batches(batch_size=1024, columns=["objects"]):
                for found in batch.column(0).to_pylist():
                    several = found if isinstance(found, list) else []
                    own = found.get(category) if isinstance(found, dict) else [one[category] for one in several if one]
                    names |= {one for one in own or () if isinstance(one, str)}
        except (pyarrow.ArrowException, OSError, KeyError) as error:
            raise DataError(f"{path}: not a readable Parquet file with objects ({error})") from error
    return sorted(names)
