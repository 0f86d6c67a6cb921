"""A folder for each class, in folders of the splits or not: the layout of data of one's own in every modality."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from zoo.errors import DataError

__all__ = [
    "class_folders",
    "files_in",
    "has_split",
    "holds_classes",
    "labelled_files",
    "split_folders",
    "split_names",
    "split_root",
]

_SPLITS = ("train", "validation", "val", "valid", "test")
# A split may be called otherwise on disk.
_ALIASES = {"validation": ("validation", "val", "valid"), "val": ("val", "validation", "valid")}


def split_names(split: str) -> tuple[str, ...]:
    """What a split may be called on disk."""
    return _ALIASES.get(split, (split,))


def class_folders(path: Path) -> list[Path]:
    """The sub-folders of a folder in the order of the classes; hidden ones are none."""
    return sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))


def split_folders(path: Path) -> list[str]:
    """Names of the sub-folders that are splits and not classes."""
    return [p.name for p in class_folders(path) if p.name in _SPLITS]


def has_split(root: Path, split: str) -> bool:
    """Whether a folder of class folders has a folder of this split."""
    return any((root / name).is_dir() for name in split_names(split))


def files_in(folder: Path, suffixes: Collection[str]) -> list[Path]:
    """The files of these suffixes (lower case) in a folder and below it, in order; hidden ones are none."""
    found = (f for f in sorted(folder.rglob("*")) if f.suffix.lower() in suffixes and not f.name.startswith("."))
    return [f for f in found if f.is_file()]


def split_root(root: Path, split: str) -> Path | None:
    """The folder that holds the class folders of a split: its own; of `"train"` also `root`, without split folders."""
    for name in split_names(split):
        if (root / name).is_dir():
            return root / name
    return root if split == "train" and not split_folders(root) and class_folders(root) else None


def holds_classes(root: Path, suffixes: Collection[str]) -> bool:
    """Whether a folder has files of these suffixes in class folders, of a training split or its own."""
    train = split_root(root, "train")
    return train is not None and any(files_in(folder, suffixes) for folder in class_folders(train))


def labelled_files(root: Path, split: str, suffixes: Collection[str]) -> tuple[list[tuple[Path, int]], list[str]]:
    """The files of one split with the numbers of their classes, and the names of the classes.

    Classes are those of the training split, in the order of their names.

    Args:
        root: With `<split>/<class>/<files>`, or `<class>/<files>` that are all for training.
        split: `"train"`, `"val"` (a folder may call it `validation`) or `"test"`.
        suffixes: Of the files, lower case with the dot.

    Raises:
        DataError: If there is no such split or no such file, or a class that the training split does not have.
    """
    folder, train = split_root(root, split), split_root(root, "train")
    if folder is None:
        raise DataError(f"{root}: no split {split!r}; expected {split}/<class>/<files>")
    classes = [p.name for p in class_folders(train or folder)]
    numbers = {name: number for number, name in enumerate(classes)}
    if strange := [p.name for p in class_folders(folder) if p.name not in numbers]:
        raise DataError(f"{folder}: class {strange[0]!r:.60} is not in the training split ({', '.join(classes)[:100]})")
    found = [(file, numbers[p.name]) for p in class_folders(folder) for file in files_in(p, suffixes)]
    if not found:
        kinds = ", ".join(sorted(suffixes)[:12])
        raise DataError(f"{folder}: no files with a known suffix in the folders of its classes ({kinds}, ...)")
    return found, classes
