"""Where labelled pictures come from: Parquet files as the Hub serves them, or a folder for each class."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from zoo.errors import DataError, require

__all__ = ["FolderSource", "Item", "ParquetSource", "Source", "open_source"]

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp"})
# A split may be called otherwise on disk.
_ALIASES = {"validation": ("validation", "val", "valid"), "val": ("val", "validation", "valid")}


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
        data: A folder with `<split>.parquet`, `<split>-*.parquet` or `<split>/<class>/...`, or a Parquet file.
        split: Name of the split.

    Raises:
        DataError: If nothing is found; says what was looked for.
    """
    if not data.exists():
        raise DataError(f"no such data: {data}")
    if data.is_file():
        if data.suffix != ".parquet":
            raise DataError(f"{data}: expected a .parquet file or a folder")
        return ParquetSource([data], name=data.stem)
    names = _ALIASES.get(split, (split,))
    for name in names:
        if files := [*sorted(data.glob(f"{name}.parquet")), *sorted(data.glob(f"{name}-*.parquet"))]:
            return ParquetSource(files, name=data.resolve().name)
    for name in names:
        if (data / name).is_dir():
            return FolderSource(data / name, name=data.resolve().name)
    raise DataError(f"{data}: no split {split!r}; expected {split}.parquet or {split}/<class>/<pictures> in it")


class ParquetSource:
    """Parquet files with a column `image`, struct(bytes, path), and an integer column `label`.

    Class names are taken from the `huggingface` metadata when a file has them.
    """

    def __init__(self, files: list[Path], name: str) -> None:
        require("pyarrow", extra="data")
        import pyarrow
        import pyarrow.parquet as pq

        self.path, self.name, self._files = files[0] if len(files) == 1 else files[0].parent, name, files
        try:
            opened = [pq.ParquetFile(f) for f in files]
            columns = {tuple(n for n in ("image", "label") if n not in f.schema_arrow.names) for f in opened}
            self._count = sum(f.metadata.num_rows for f in opened)
            self.class_names = _class_names(opened[0].schema_arrow.metadata)
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"{self.path}: not a readable Parquet file ({error})") from error
        if missing := [n for c in columns for n in c]:
            raise DataError(f"{self.path}: no column {missing[0]!r}; expected image (bytes, path) and label")
        digests = [_file_sha256(f) for f in files]
        self.sha256 = digests[0] if len(files) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Item]:
        import pyarrow
        import pyarrow.parquet as pq

        for path in self._files:
            row = 0
            try:
                for batch in pq.ParquetFile(path).iter_batches(batch_size=256, columns=["image", "label"]):
                    for record in batch.to_pylist():
                        yield self._item(record, f"{path} row {row}")
                        row += 1
            except (pyarrow.ArrowException, OSError) as error:
                raise DataError(f"{path}: damaged after row {row} ({error})") from error

    def _item(self, record: dict[str, Any], name: str) -> Item:
        image, label = record["image"], record["label"]
        data = image.get("bytes") if isinstance(image, dict) else image
        if not isinstance(label, int) or label < 0 or (self.class_names and label >= len(self.class_names)):
            raise DataError(f"{name}: label {label!r} is not a class number")
        return Item(name, label, lambda: data if isinstance(data, bytes) else b"")


class FolderSource:
    """A folder with one sub-folder of pictures for each class; classes are in the order of their sorted names."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        classes = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
        self._files = [
            (f, label)
            for label, folder in enumerate(classes)
            for f in sorted(folder.rglob("*"))
            if f.suffix.lower() in SUFFIXES and f.is_file()
        ]
        if not self._files:
            raise DataError(f"{path}: no pictures; expected {path.name}/<class>/<pictures>")
        self.class_names: list[str] | None = [p.name for p in classes]
        # By name, size and time of change: hashing the contents would read a large data set twice.
        facts = [(str(f.relative_to(path)), f.stat().st_size, f.stat().st_mtime_ns) for f, _ in self._files]
        self.sha256 = hashlib.sha256(repr(facts).encode()).hexdigest()

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[Item]:
        for path, label in self._files:
            yield Item(str(path), label, partial(_read_file, path))


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot be read ({error})") from error


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _class_names(metadata: dict[bytes, bytes] | None) -> list[str] | None:
    try:
        names = json.loads((metadata or {})[b"huggingface"])["info"]["features"]["label"]["names"]
    except (KeyError, TypeError, ValueError):
        return None
    return names if isinstance(names, list) and all(isinstance(n, str) for n in names) else None
