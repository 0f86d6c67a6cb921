"""Which data set a folder or file holds."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from modalities.points.datasets.base import PointSet
from modalities.points.datasets.indoor import S3DIS, ScanNet, ScanNetArrays
from modalities.points.datasets.modelnet import ModelNetArrays, ModelNetMeshes, ModelNetSampled
from modalities.points.datasets.outdoor import AirborneTiles, KittiFrames, SemanticKITTI
from zoo.errors import ConfigError, DataError
from zoo.npy import read_members

__all__ = ["DATASETS", "open_dataset"]

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
}


def open_dataset(
    data: str | os.PathLike[str], split: str, dataset: str = "auto", *, errors: str = "raise", **options: Any
) -> PointSet:
    """Opens one split of a data set; `dataset[i]` reads a cloud, whose field `label` holds the classes.

    Args:
        data: Its folder or file.
        split: For example `"train"`; those of each data set are with its class.
        dataset: One of `DATASETS`; `"auto"` tells by the layout.
        errors: `"raise"`, or `"keep"` what can be decoded of damaged files.
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
    kind = _looks_like(root) if dataset == "auto" else dataset
    try:
        opened: PointSet = DATASETS[kind](root, split, errors=errors, **options)
    except TypeError as error:
        raise ConfigError(f"{kind}: an option it does not have ({error})") from error
    return opened


def _looks_like(root: Path) -> str:
    if root.is_file():
        return _file_like(root)
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
    raise DataError(
        f"{root}: no known layout; expected <class>/train/*.off (modelnet), modelnet40_train.txt (modelnet-sampled), "
        "scans/<id> (scannet), <split>/<scene>/coord.npy (scannet-arrays), Area_<k>/<room> (s3dis), sequences/<XX> "
        "(semantickitti) or training/velodyne (kitti)"
    )


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
