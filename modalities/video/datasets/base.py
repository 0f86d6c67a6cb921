"""What all video data sets offer: files with one class each."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from modalities.video.read import ClipReader, open_clip
from zoo.errors import ConfigError, DataError
from zoo.files import files_sha256

__all__ = [
    "SPLITS",
    "VideoSet",
    "check_fold",
    "class_folders",
    "read_lines",
    "read_table",
    "split_of",
]

SPLITS = ("train", "val", "test")
_LARGEST = 2**28  # bytes of a list or table


class VideoSet:
    """One split of a data set, in a fixed order.

    Args:
        name: Of the data set.
        root: Its folder.
        split: One of `SPLITS`.
        videos: File and class of each video.
        class_names: In the order of the classes.
        tables: Lists that say what belongs to the split.
        errors: What readers do with damaged files, see `modalities.video.open_clip`.
        missing: Videos that the lists name and that are not there.

    Attributes:
        labels: int64 (N,).
        files: The N files.
        sha256: Identifies the files.

    Raises:
        DataError: If there are none.
    """

    def __init__(
        self,
        name: str,
        root: Path,
        split: str,
        videos: Sequence[tuple[Path, int]],
        class_names: Sequence[str],
        tables: Sequence[Path] = (),
        *,
        errors: str | None = None,
        missing: int = 0,
    ) -> None:
        if not videos:
            lost = f" ({missing} are listed, none is there)" if missing else ""
            raise DataError(f"{root}: {name} has no videos in the split {split}{lost}")
        self.name, self.path, self.split, self.missing = name, root, split, missing
        self.files = [file for file, _ in videos]
        self.labels = np.array([label for _, label in videos], np.int64)
        self.class_names = list(class_names)
        self._tables, self._errors = list(tables), errors
        self._sha256: str | None = None

    def __len__(self) -> int:
        return len(self.files)

    @property
    def sha256(self) -> str:
        """Identifies the files of the split by name, size and both ends."""
        if self._sha256 is None:
            self._sha256 = files_sha256(self.path, (*self.files, *self._tables))
        return self._sha256

    def reader(self, index: int) -> ClipReader:
        """The video with a number, to be read."""
        return open_clip(self.files[index], errors=self._errors)


def split_of(split: str) -> str:
    """The name that is used here for a split; `"validation"` is `"val"`.

    Raises:
        ConfigError: If there is no such split.
    """
    split = {"validation": "val"}.get(split, split)
    if split not in SPLITS:
        raise ConfigError(f"split must be one of {', '.join(SPLITS)}, not {split!r:.60}")
    return split


def check_fold(fold: int) -> None:
    """Refuses a number that is not one of the three official splits.

    Raises:
        ConfigError: If it is something else.
    """
    if isinstance(fold, bool) or fold not in (1, 2, 3):
        raise ConfigError(f"fold must be 1, 2 or 3, the official splits, not {fold!r:.60}")


def class_folders(root: Path, candidates: Sequence[str], class_names: Sequence[str], name: str) -> Path:
    """The folder that holds a folder for each class.

    Args:
        root: Of the data set.
        candidates: Names of folders in it where they may be.
        class_names: Names of the folders looked for; one that is there is enough.
        name: Of the data set, for the error.

    Raises:
        DataError: If there is none.
    """
    for folder in (*(root / candidate for candidate in candidates), root):
        if any((folder / label).is_dir() for label in class_names):
            return folder
    where = " or ".join(f"{candidate}/<class>/" for candidate in candidates)
    raise DataError(f"{root}: no folders of {name} classes such as {class_names[0]}; expected {where} or <class>/")


def read_lines(path: Path) -> list[str]:
    """The lines of a list that are not empty, without blanks around them.

    Raises:
        DataError: If it cannot be read.
    """
    try:
        if path.stat().st_size > _LARGEST:
            raise DataError(f"{path}: larger than any list of videos")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def read_table(path: Path, columns: Sequence[str]) -> Iterator[Mapping[str, str]]:
    """Rows of a CSV file with a heading.

    Args:
        path: The file.
        columns: That it must have.

    Raises:
        DataError: If it cannot be read or lacks a column.
    """
    reader = csv.DictReader(read_lines(path))
    if lacks := [column for column in columns if column not in (reader.fieldnames or ())]:
        raise DataError(f"{path}: lacks the column {' and '.join(lacks)}; it has {reader.fieldnames!r:.120}")
    try:
        for number, row in enumerate(reader, start=2):
            if any(row[column] is None for column in columns):
                raise DataError(f"{path}: line {number} is incomplete")
            yield row
    except csv.Error as error:
        raise DataError(f"{path}: not a CSV file ({error})") from error
