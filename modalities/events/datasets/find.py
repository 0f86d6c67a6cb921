"""Which data set a folder holds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from modalities.events.datasets.base import ClipSet, SceneSet
from modalities.events.datasets.dvsgesture import LISTS, DvsGesture
from modalities.events.datasets.folders import SUFFIXES, EventFolders
from modalities.events.datasets.nmnist import NMNIST
from modalities.events.datasets.prophesee import KINDS, BoxedRecordings, kind_of
from zoo.class_folders import holds_classes
from zoo.errors import ConfigError, DataError

__all__ = ["CLIPS", "DATASETS", "dataset_at", "open_clips", "open_dataset", "open_scenes"]

CLIPS: dict[str, type[NMNIST] | type[DvsGesture] | type[EventFolders]] = {
    "nmnist": NMNIST,
    "dvsgesture": DvsGesture,
    "folders": EventFolders,
}
DATASETS = (*CLIPS, *KINDS)


def open_dataset(
    data: str | os.PathLike[str], split: str, dataset: str = "auto", *, errors: str = "raise", **window: Any
) -> ClipSet | SceneSet:
    """Opens one split of a data set.

    Args:
        data: Its folder, or for N-MNIST an archive.
        split: `"train"`, `"val"` or `"test"`.
        dataset: One of `DATASETS`; `"auto"` tells by the layout.
        errors: `"raise"`, or `"keep"` what can be decoded of damaged recordings.
        **window: `window_us`, `window_events` and `half`, for scenes; see `BoxedRecordings`.

    Raises:
        ConfigError: If there is no such data set or split.
        DataError: If the data are not there or have another layout.
    """
    root = Path(data).expanduser()
    if dataset != "auto" and dataset not in DATASETS:
        raise ConfigError(f"dataset must be auto or one of {', '.join(DATASETS)}, not {dataset!r}")
    if not root.exists():
        raise DataError(f"no such data: {root}")
    found = dataset_at(root) if dataset == "auto" else dataset
    if found is None:
        raise DataError(
            f"{root}: no known layout; expected Train/<digit>/*.bin (nmnist), trials_to_train.txt (dvsgesture), "
            "train/*_td.dat with *_bbox.npy (gen1, 1mpx), or <class>/<recordings>, also in train/ (folders)"
        )
    if found in KINDS:
        return BoxedRecordings(root, split, kind=found, errors=errors, **window)
    return CLIPS[found](root, split, errors=errors)


def open_clips(data: str | os.PathLike[str], split: str, dataset: str = "auto", *, errors: str = "raise") -> ClipSet:
    """Opens one split of a data set for classification; see `open_dataset`."""
    opened = open_dataset(data, split, dataset, errors=errors)
    if not isinstance(opened, (NMNIST, DvsGesture, EventFolders)):
        raise DataError(f"{data}: recordings with boxes; a classifier needs one of {', '.join(CLIPS)}")
    return opened


def open_scenes(
    data: str | os.PathLike[str], split: str, dataset: str = "auto", *, errors: str = "raise", **window: Any
) -> BoxedRecordings:
    """Opens one split of a data set for detection; see `open_dataset`."""
    opened = open_dataset(data, split, dataset, errors=errors, **window)
    if not isinstance(opened, BoxedRecordings):
        raise DataError(f"{data}: recordings without boxes; a detector needs one of {', '.join(KINDS)}")
    return opened


def dataset_at(root: Path) -> str | None:
    """The data set that a folder or archive looks like, or `None`."""
    if root.is_file() or (root / "Train").is_dir() or (root / "Test").is_dir():
        return "nmnist"
    if any((root / name).is_file() for name in LISTS.values()):
        return "dvsgesture"
    kind = kind_of(root)
    return "folders" if kind is None and holds_classes(root, SUFFIXES) else kind
