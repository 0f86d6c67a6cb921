"""What all point data sets offer: clouds in a fixed order, each with a class of its own or of every point."""

from __future__ import annotations

import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from modalities.points.formats.base import MAX_POINTS
from modalities.points.points import Points
from modalities.points.read import read_points
from zoo.errors import ConfigError, DataError
from zoo.files import files_sha256
from zoo.npy import damage, read_array

__all__ = [
    "IGNORED",
    "ClassifiedSet",
    "FileSet",
    "PointSet",
    "load_npy",
    "lookup",
    "read_member",
    "require_file",
    "require_folder",
    "require_split",
]

IGNORED = 255
"""Label of points that belong to no class of the task."""

MAX_MEMBER = 2**30
"""Most bytes of one file taken from an archive."""


class PointSet(Protocol):
    """Clouds with a class for every point; reading one keeps no other in memory.

    Attributes:
        name: For reports.
        path: Folder or file of the data.
        split: Which part of the data set.
        class_names: In the order of the labels.
        sha256: Identifies the files.
    """

    name: str
    path: Path
    split: str
    class_names: tuple[str, ...]
    sha256: str

    def __len__(self) -> int:
        """Number of clouds."""

    def __getitem__(self, index: int) -> Points:
        """A cloud; its field `label` int64 (N,) holds classes, or `IGNORED`."""


class ClassifiedSet(PointSet, Protocol):
    """Clouds of one class each.

    Attributes:
        labels: int64 (clouds,) class of each; a cloud's field `label` repeats it for every point.
    """

    labels: np.ndarray


class FileSet(ABC):
    """A data set of one file, or group of files, for each cloud; the base of those that are.

    Args:
        path: Folder of the data set.
        split: Which part; already checked.
        files: What identifies each cloud, in order.
        errors: `"keep"` takes of a damaged file what can be decoded.

    Raises:
        DataError: If there is no file, or one cannot be read.
    """

    name = "points"
    class_names: tuple[str, ...] = ()

    def __init__(self, path: Path, split: str, files: Sequence[Path], errors: str = "raise") -> None:
        self.path, self.split, self.files, self._errors = path, split, list(files), errors
        if not self.files:
            raise DataError(f"{path}: no clouds of the split {split}")
        self.sha256 = files_sha256(path, self._identifying())

    def _identifying(self) -> Iterable[Path]:
        """Files that make the content; by default those of the clouds."""
        return self.files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Points:
        file = self.files[_checked(index, len(self))]
        return self._read(file, index % len(self))

    @abstractmethod
    def _read(self, file: Path, index: int) -> Points:
        """One cloud with its labels."""

    def _points(self, file: Path, format: str | None = None, **options: str) -> Points:
        return read_points(file, name=str(file), path=file, errors=self._errors, format=format, **options)


def _checked(index: int, count: int) -> int:
    if not -count <= index < count:
        raise IndexError(f"no cloud {index} of {count}")
    return index


def require_split(split: str, splits: Iterable[str], name: str) -> None:
    """Raises `ConfigError` unless the data set has this split."""
    splits = list(splits)
    if split not in splits:
        raise ConfigError(f"{name} has the splits {', '.join(splits)}, not {split!r:.60}")


def require_folder(path: Path, what: str) -> Path:
    """Returns a folder; a `DataError` says what should be there."""
    if not path.is_dir():
        raise DataError(f"no such data: {path}; expected a folder with {what}")
    return path


def require_file(path: Path, what: str) -> Path:
    """Returns a file; a `DataError` says what should be there."""
    if not path.is_file():
        raise DataError(f"no such file: {path}; expected {what}")
    return path


def lookup(raw: np.ndarray, classes: Mapping[int, int], *, strict: str | None = None) -> np.ndarray:
    """Maps codes of a file to classes; codes that are in no mapping become `IGNORED`.

    Args:
        raw: Whole numbers (N,), not negative ones are ignored alike.
        classes: Code -> class.
        strict: Refuses codes that are in no mapping, in the name of this file.

    Returns:
        int64 (N,).

    Raises:
        DataError: With `strict`, if a code is not known.
    """
    codes, places = np.unique(raw, return_inverse=True)
    known = [int(code) in classes for code in codes]
    if strict is not None and not all(known):
        unknown = [int(code) for code, fine in zip(codes, known, strict=True) if not fine]
        raise DataError(f"{strict}: labels {unknown[:8]} are not of this data set")
    found = np.array([classes.get(int(code), IGNORED) for code in codes], np.int64)
    return found[places.reshape(-1)] if len(codes) else np.empty(0, np.int64)


def load_npy(path: Path) -> np.ndarray:
    """An array of an .npy, without pickles and of bounded size.

    Raises:
        DataError: If it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return read_array(file, str(path), "the array", max_bytes=MAX_POINTS * 24)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def read_member(archive: zipfile.ZipFile, member: str, name: str) -> bytes:
    """The bytes of one file of an archive, of bounded size.

    Raises:
        DataError: If it is damaged or too large.
    """
    info = archive.getinfo(member)
    if info.file_size > MAX_MEMBER:
        raise DataError(f"{name}: {member} has {info.file_size} bytes; at most {MAX_MEMBER} are read")
    with damage(name, member):
        return archive.read(info)  # Never more than the size that was checked: zipfile stops there.
