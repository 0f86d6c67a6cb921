"""Which data set a folder holds."""

from __future__ import annotations

import os
from pathlib import Path

from modalities.video.datasets import hmdb51, ucf101
from modalities.video.datasets.base import VideoSet
from modalities.video.datasets.folders import VideoFolders
from modalities.video.datasets.hmdb51 import HMDB51
from modalities.video.datasets.kinetics import Kinetics, table_of
from modalities.video.datasets.ucf101 import UCF101
from zoo.class_folders import holds_classes
from zoo.errors import ConfigError, DataError
from zoo.reading import VIDEO_SUFFIXES

__all__ = ["DATASETS", "dataset_at", "open_videos"]

DATASETS = ("ucf101", "hmdb51", "kinetics", "folders")


def open_videos(
    data: str | os.PathLike[str],
    split: str,
    dataset: str = "auto",
    *,
    fold: int = 1,
    validation: bool = True,
    errors: str | None = None,
) -> VideoSet:
    """Opens one split of a data set.

    Args:
        data: Its folder.
        split: `"train"`, `"val"` or `"test"`.
        dataset: One of `DATASETS`; `"auto"` tells by the layout.
        fold: Official split of UCF101 and HMDB51.
        validation: Of UCF101: hold the validation groups out of `train`.
        errors: Of damaged files: `"raise"`, or `"keep"` what can be decoded, with a warning (the default).

    Raises:
        ConfigError: If there is no such data set, split or fold.
        DataError: If the data are not there or have another layout.
    """
    root = Path(data).expanduser()
    if dataset != "auto" and dataset not in DATASETS:
        raise ConfigError(f"dataset must be auto or one of {', '.join(DATASETS)}, not {dataset!r:.60}")
    if not root.is_dir():
        raise DataError(f"no such data: {root}")
    found = dataset_at(root) if dataset == "auto" else dataset
    if found is None:
        raise DataError(
            f"{root}: no known layout; expected ucfTrainTestlist/classInd.txt (ucf101), testTrainMulti_7030_splits/ "
            "(hmdb51), train.csv, val.csv or test.csv (kinetics), or <class>/<videos>, also in train/ (folders)"
        )
    if found == "ucf101":
        return UCF101(root, split, fold=fold, validation=validation, errors=errors)
    if found == "hmdb51":
        return HMDB51(root, split, fold=fold, errors=errors)
    return (VideoFolders if found == "folders" else Kinetics)(root, split, errors=errors)


def dataset_at(root: Path) -> str | None:
    """The data set that a folder looks like, or `None`."""
    if any((root / name / "classInd.txt").is_file() for name in ucf101.LISTS):
        return "ucf101"
    if any((root / name).is_dir() for name in hmdb51.LISTS[:2]):
        return "hmdb51"
    if any(table_of(root, split) for split in ("train", "val", "test")):
        return "kinetics"
    if holds_classes(root, VIDEO_SUFFIXES):
        return "folders"
    return None
