"""Kinetics (Kay et al. 2017 and later): videos of 400, 600 or 700 actions, cut from addresses that partly are gone."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from modalities.video.datasets.base import VideoSet, read_table, split_of
from zoo.errors import DataError
from zoo.reading import VIDEO_SUFFIXES

__all__ = ["Kinetics", "table_of"]

_COLUMNS = ("label", "youtube_id", "time_start", "time_end", "split")
_FILES = {"train": ("train",), "val": ("val", "validate", "validation"), "test": ("test",)}
_FOLDERS = ("", "annotations")


class Kinetics(VideoSet):
    """One split of a Kinetics set.

    The folder holds `{train,val,test}.csv` (also in `annotations`, or named such as `kinetics400_val.csv`) with the
    columns label, youtube_id, time_start, time_end and split, and videos `<youtube_id>_<start>_<end>.mp4` with times of
    six digits, in `<split>` or `<split>/<class>`. Videos that are not there are left out: there is a warning with their
    number, `missing`.

    Args:
        data: The folder.
        split: `"train"`, `"val"` or `"test"`.
        errors: See `VideoSet`.

    Raises:
        ConfigError: If there is no such split.
        DataError: If there is no table or it is wrong, no video is there, or the split has no labels.
    """

    def __init__(self, data: str | os.PathLike[str], split: str = "train", *, errors: str | None = None) -> None:
        root, split = Path(data).expanduser(), split_of(split)
        table = table_of(root, split)
        if table is None:
            raise DataError(f"{root}: no table of the split {split}, such as {_FILES[split][0]}.csv")
        rows = []
        for row in read_table(table, _COLUMNS):
            start, end = row["time_start"], row["time_end"]
            whole = _whole(start) and _whole(end)
            if not row["label"] or not whole or Path(row["youtube_id"]).name != row["youtube_id"]:
                raise DataError(f"{table}: expected a label, an id and times in whole seconds, got {dict(row)!r:.160}")
            rows.append((row["label"], f"{row['youtube_id']}_{int(float(start)):06}_{int(float(end)):06}"))
        class_names = sorted({label for label, _ in rows})
        # All splits have the same classes, but a part of a split may lack some: then those of the training table count.
        training = table_of(root, "train")
        if training is not None and training != table:
            class_names = sorted({row["label"] for row in read_table(training, ("label",))} | set(class_names))
        there = _videos(root, split)
        numbers = {label: number for number, label in enumerate(class_names)}
        videos = [(there[stem], numbers[label]) for label, stem in rows if stem in there]
        missing = len(rows) - len(videos)
        if missing and videos:
            warnings.warn(f"{root}: {missing} of {len(rows)} videos of the split {split} are not there", stacklevel=2)
        super().__init__("kinetics", root, split, videos, class_names, [table], errors=errors, missing=missing)


def table_of(root: Path, split: str) -> Path | None:
    """The table of a split, if there is one."""
    for folder in _FOLDERS:
        for name in _FILES[split]:
            if (root / folder / f"{name}.csv").is_file():
                return root / folder / f"{name}.csv"
            if found := sorted((root / folder).glob(f"kinetics*_{name}.csv")):
                return found[0]
    return None


def _videos(root: Path, split: str) -> dict[str, Path]:
    """Videos by name without suffix, in the folders of a split and in the folders of classes there."""
    found: dict[str, Path] = {}
    for name in _FILES[split]:
        folder = root / name
        for path in sorted((*folder.glob("*.*"), *folder.glob("*/*.*"))):
            if path.suffix.lower() in VIDEO_SUFFIXES:
                found.setdefault(path.stem, path)
    return found


def _whole(text: str) -> bool:
    try:
        return 0 <= float(text) < 1e6 and float(text) == int(float(text))
    except (ValueError, OverflowError):
        return False
