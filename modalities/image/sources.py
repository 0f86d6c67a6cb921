"""Where labelled pictures come from: Parquet files as the Hub serves them, or a folder for each class."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from zoo.class_folders import class_folders, files_in, split_names, split_root
from zoo.errors import DataError, require
from zoo.finetune.hub_data import data_name

__all__ = ["FolderSource", "Item", "ParquetSource", "ParquetTable", "Source", "class_names", "encoded", "stamps_sha256"]
__all__ += ["SUFFIXES", "open_source", "parquet_files", "read_file", "source_name"]

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp"})


@dataclass(frozen=True)
class Item:
    """One encoded picture: `name` says which (file, or file and row), `read()` gives its bytes."""

    name: str
    label: int
    read: Callable[[], bytes]


class Source(Protocol):
    """Labelled pictures, in a fixed order."""

    path: Path
    name: str
    sha256: str
    class_names: list[str] | None

    def __len__(self) -> int:
        """Number of pictures."""

    def __iter__(self) -> Iterator[Item]:
        """The pictures in order."""


def open_source(data: Path, split: str) -> Source:
    """Finds the pictures of one split.

    Args:
        data: A folder with `<split>.parquet`, `<split>-*.parquet` or `<split>/<class>/...`, or a Parquet file; of the
            split `"train"` also a folder with the folders of the classes themselves.
        split: Name of the split.

    Raises:
        DataError: If nothing is found; says what was looked for.
    """
    if files := parquet_files(data, split):
        return ParquetSource(files, name=source_name(data))
    if data.is_file():
        raise DataError(f"{data}: expected a .parquet file or a folder")
    if (root := split_root(data, split)) is not None:
        return FolderSource(root, name=source_name(data))
    raise DataError(f"{data}: no split {split!r}; expected {split}.parquet or {split}/<class>/<pictures> in it")


def source_name(data: Path) -> str:
    """What a data set is called: its folder or file."""
    return data.stem if data.is_file() else data_name(data)


def parquet_files(data: Path, split: str) -> list[Path]:
    """The Parquet files of a split in a folder, or such a file itself; none if there are none.

    Raises:
        DataError: If `data` does not exist.
    """
    if not data.exists():
        raise DataError(f"no such data: {data}")
    if data.is_file():
        return [data] if data.suffix == ".parquet" else []
    for name in split_names(split):
        for pattern in (f"{name}.parquet", f"{name}-*.parquet", f"data/{name}-*.parquet"):  # The last: as the Hub has.
            if files := sorted(data.glob(pattern)):
                return files
    return []


class ParquetTable:
    """Parquet files with certain columns, read a few rows at a time.

    Args:
        files: Of one split, in order.
        name: Of the data set.
        columns: Columns there must be.
        optional: Columns that are read where there are.

    Columns that data sets of the Hub call otherwise (`img`, `labels`) have their name here in the records.
    """

    def __init__(self, files: list[Path], name: str, columns: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
        require("pyarrow", extra="data")
        import pyarrow
        import pyarrow.parquet as pq

        self.path, self.name, self._files = files[0] if len(files) == 1 else files[0].parent, name, files
        try:
            opened = [pq.ParquetFile(f) for f in files]
            there = [{c.name: pyarrow.types.is_nested(c.type) for c in f.schema_arrow} for f in opened]
            self._count = sum(f.metadata.num_rows for f in opened)
            self.schema = opened[0].schema_arrow
            self.metadata: dict[bytes, bytes] | None = self.schema.metadata
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"{self.path}: not a readable Parquet file ({error})") from error
        found = {column: _column(column, there) for column in (*columns, *optional)}
        if missing := [column for column in columns if found[column] is None]:
            raise DataError(f"{self.path}: no column {missing[0]!r}; expected {', '.join(columns)}")
        self._columns = {stored: column for column, stored in found.items() if stored is not None}
        digests = [_file_sha256(f) for f in files]
        self.sha256 = digests[0] if len(files) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()

    def __len__(self) -> int:
        return self._count

    def stored_name(self, column: str) -> str:
        """What a column is called in the files."""
        return next(stored for stored, name in self._columns.items() if name == column)

    def records(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """A name for messages and the values of every row.

        Raises:
            DataError: If a file is damaged.
        """
        import pyarrow
        import pyarrow.parquet as pq

        for path in self._files:
            row = 0
            try:
                for batch in pq.ParquetFile(path).iter_batches(batch_size=256, columns=list(self._columns)):
                    for record in batch.to_pylist():
                        yield f"{path} row {row}", {self._columns[key]: value for key, value in record.items()}
                        row += 1
            except (pyarrow.ArrowException, OSError) as error:
                raise DataError(f"{path}: damaged after row {row} ({error})") from error


# Name here -> name elsewhere, and whether that column is a struct or list.
_OTHER_NAMES = {"image": ("img", True), "label": ("labels", False)}


def _column(name: str, there: list[dict[str, bool]]) -> str | None:
    """What a column is called in all of the files, or `None`; a list of labels is no other name of a label."""
    if all(name in columns for columns in there):
        return name
    other, nested = _OTHER_NAMES.get(name, ("", False))
    return other if other and all(columns.get(other) is nested for columns in there) else None


class ParquetSource(ParquetTable):
    """Parquet files with a column `image`, struct(bytes, path), and an integer column `label`.

    Class names are taken from the `huggingface` metadata when a file has them.
    """

    def __init__(self, files: list[Path], name: str) -> None:
        super().__init__(files, name, ("image", "label"))
        self.class_names = class_names(self.metadata, self.stored_name("label"))

    def __iter__(self) -> Iterator[Item]:
        for name, record in self.records():
            label = record["label"]
            if not isinstance(label, int) or label < 0 or (self.class_names and label >= len(self.class_names)):
                raise DataError(f"{name}: label {label!r} is not a class number")
            yield Item(name, label, partial(encoded, record["image"]))


class FolderSource:
    """A folder with one sub-folder of pictures for each class; classes are in the order of their sorted names."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        classes = class_folders(path)
        self._files = [(file, label) for label, folder in enumerate(classes) for file in files_in(folder, SUFFIXES)]
        if not self._files:
            raise DataError(f"{path}: no pictures; expected {path.name}/<class>/<pictures>")
        self.class_names: list[str] | None = [p.name for p in classes]
        self.sha256 = stamps_sha256(path, [f for f, _ in self._files])

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[Item]:
        for path, label in self._files:
            yield Item(str(path), label, partial(read_file, path))


def read_file(path: Path) -> bytes:
    """The bytes of a file.

    Raises:
        DataError: If it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot be read ({error})") from error


def encoded(image: Any) -> bytes:
    """The bytes of a cell of a column `image`; none where it holds none."""
    data = image.get("bytes") if isinstance(image, dict) else image
    return data if isinstance(data, bytes) else b""


def stamps_sha256(root: Path, files: Iterable[Path]) -> str:
    """A fingerprint of files by name, size and time of change: hashing the contents would read a large set twice.

    Args:
        root: What the names are relative to; files may lie elsewhere.
        files: In the order that counts.
    """
    facts = [(os.path.relpath(f, root), f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def class_names(metadata: dict[bytes, bytes] | None, column: str) -> list[str] | None:
    """Names of the classes in a column (of labels or lists of them) by the `huggingface` metadata; `None` if absent."""
    try:
        feature = json.loads((metadata or {})[b"huggingface"])["info"]["features"][column]
        names = feature.get("feature", feature)["names"]
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return names if isinstance(names, list) and all(isinstance(n, str) for n in names) else None
