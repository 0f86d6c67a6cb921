"""Which data set a folder or file holds."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from modalities.points.datasets.base import PointSet
from modalities.points.datasets.folders import PointFolders
from modalities.points.datasets.indoor import S3DIS, ScanNet, ScanNetArrays
from modalities.points.datasets.modelnet import ModelNetArrays, ModelNetMeshes, ModelNetSampled
from modalities.points.datasets.outdoor import AirborneTiles, KittiFrames, SemanticKITTI
from modalities.points.formats import SUFFIXES
from zoo.class_folders import holds_classes
from zoo.errors import ConfigError, DataError
from zoo.npy import read_members

__all__ = ["DATASETS", "dataset_at", "open_dataset"]

DATASETS: dict[str, Callable[..., Any]] = {
    "modelnet": ModelNetMeshes,
    "modelnet-sampled": ModelNetSampled,
    "modelnet-arrays": ModelNetArrays,
    "scannet": ScanNet,
    "scannet-arrays": ScanNetArrays,
    "s3dis": S3DIS,
    "semantickitti": SemanticKITTI,
    "kitti": KittiFrames,
    "als": AirborneTiles,
    "folders": PointFolders,
}
_OF_ONE_FILE = ("modelnet-arrays", "kitti", "als")


def open_dataset(
    data: str | os.PathLike[str],
    split: str,
    dataset: str = "auto",
    *,
    errors: str = "raise",
    draw: int | None = None,
    **options: Any,
) -> PointSet:
    """Opens one split of a data set; `dataset[i]` reads a cloud, whose field `label` holds the classes.

    Args:
        data: Its folder or file; for a set that is one .npz or .zip also the folder that holds it alone.
        split: For example `"train"`; those of each data set are with its class.
        dataset: One of `DATASETS`; `"auto"` tells by the layout.
        errors: `"raise"`, or `"keep"` what can be decoded of damaged files.
        draw: Points of a cloud where those of the data set are drawn from meshes: what a model takes. `None`: 1,024.
        **options: Of the data set, such as `num_points` of ModelNet's meshes or `test_area` of S3DIS.

    Raises:
        ConfigError: If there is no such data set, split or option.
        DataError: If the data are not there or have another layout.
    """
    root = Path(data).expanduser()
    if dataset != "auto" and dataset not in DATASETS:
        raise ConfigError(f"dataset must be auto or one of {', '.join(DATASETS)}, not {dataset!r:.60}")
    if errors not in ("raise", "keep"):
        raise ConfigError(f'errors must be "raise" or "keep", not {errors!r}')
    if not root.exists():
        raise DataError(f"no such data: {root}")
    if dataset in ("auto", *_OF_ONE_FILE):
        root = _one_file(root)
    kind = _looks_like(root) if dataset == "auto" else dataset
    if kind in ("modelnet", "folders") and draw is not None:
        options = {"num_points": draw, **options}
    try:
        opened: PointSet = DATASETS[kind](root, split, errors=errors, **options)
    except TypeError as error:
        raise ConfigError(f"{kind}: an option it does not have ({error})") from error
    return opened


def dataset_at(data: Path) -> str | None:
    """The data set that a folder or file looks like, or `None`."""
    root = data.expanduser()
    try:
        return _looks_like(_one_file(root)) if root.exists() else None
    except DataError:
        return None


def _one_file(root: Path) -> Path:
    """The only .npz, else the only .zip, of a folder that is no layout itself; else what was given."""
    if not root.is_dir() or _folder_like(root) is not None:
        return root
    for suffix in (".npz", ".zip"):
        if found := sorted(path for path in root.glob(f"*{suffix}") if path.is_file()):
            return found[0] if len(found) == 1 else root
    return root


def _looks_like(root: Path) -> str:
    kind = _file_like(root) if root.is_file() else _folder_like(root)
    if kind is None:
        raise DataError(
            f"{root}: no known layout; expected <class>/train/*.off (modelnet), modelnet40_train.txt "
            "(modelnet-sampled), scans/<id> (scannet), <split>/<scene>/coord.npy (scannet-arrays), Area_<k>/<room> "
            "(s3dis), sequences/<XX> (semantickitti), training/velodyne (kitti), one .npz (modelnet-arrays, als), or "
            "<class>/<clouds>, also in train/ (folders)"
        )
    return kind


def _folder_like(root: Path) -> str | None:
    if any((root / f"modelnet{count}_train.txt").is_file() for count in (10, 40)):
        return "modelnet-sampled"
    if (root / "sequences").is_dir() or (root / "dataset" / "sequences").is_dir():
        return "semantickitti"
    if any((root / f"Area_{area}").is_dir() for area in range(1, 7)):
        return "s3dis"
    if (root / "scans").is_dir():
        return "scannet"
    if any((root / side / "velodyne").is_dir() for side in ("training", "testing")):
        return "kitti"
    if next(root.glob("*/*/coord.npy"), None) is not None:
        return "scannet-arrays"
    if next(root.glob("*/train/*.off"), None) is not None or next(root.glob("*/test/*.off"), None) is not None:
        return "modelnet"
    if holds_classes(root, SUFFIXES):
        return "folders"
    return None


def _file_like(path: Path) -> str:
    if path.suffix.lower() == ".zip":
        return "kitti"
    with path.open("rb") as file:
        _, headers = read_members(file, str(path))
    if "train_xyz" in headers or "test_xyz" in headers:
        return "modelnet-arrays"
    if any(key.endswith("_xyz_m") for key in headers):
        return "als"
    raise DataError(f"{path}: no known data set; it holds {', '.join(list(headers)[:8])}")
