"""Fine-tuning on point clouds: which data are understood, what is wrong with them, and settings for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from modalities.points.data_config import PointDataConfig
from modalities.points.datasets.find import dataset_at, open_dataset
from modalities.points.formats import SUFFIXES
from modalities.points.points import Points
from modalities.points.prepare import make_features
from modalities.points.read import read_points
from zoo.class_folders import has_split
from zoo.errors import DataError
from zoo.finetune.checks import check_classes, check_folders, check_samples
from zoo.finetune.found import Found, held_share, measured_on, no_layout
from zoo.finetune.report import Report

__all__ = ["examine", "examine_points"]

LAYOUTS = (
    "class folders: <class>/<clouds or meshes>, or train/<class>/... with or without val/<class>/...",
    "the layouts of ModelNet (<class>/train/*.off, modelnet40_train.txt, or one .npz)",
)
SEGMENTED = (
    "the layouts of ScanNet (scans/<id>, or <split>/<scene>/coord.npy), S3DIS (Area_<k>/<room>) and SemanticKITTI "
    "(sequences/<XX>)",
    "labelled airborne tiles in one .npz",
)
_CLASSIFIED = ("modelnet", "modelnet-sampled", "modelnet-arrays", "folders")
_WITHOUT_LABELS = ("kitti",)


def examine(
    data: Path, config: Mapping[str, Any], report: Report, *, size: int | None, skip_bad: bool, quiet: bool
) -> Found:
    """Finds and checks clouds with a class each; arguments as for `modalities.image.finetune.examine`.

    `size` is the number of points. Damaged clouds are always errors.

    Raises:
        DataError: If the layout is not known.
    """
    kind = dataset_at(data)
    if kind not in _CLASSIFIED:
        raise no_layout(data, "point classification", LAYOUTS)
    own, train, expected = False, Counter[str](), PointDataConfig.from_dict(config["data"])
    if kind == "folders":
        counts, points = check_folders(data, report, SUFFIXES, partial(_points, own=expected), quiet=quiet)
        train, own = counts.get("train", Counter()), has_split(data, "val")
        wanted = size or config["data"].get("num_points") or 1024
        if few := [count for count in points if 0 < count < wanted]:
            report.note(f"clouds of fewer than {wanted} points, some of which are taken again", *map(str, few))
    else:
        try:
            clouds: Any = open_dataset(data, "train", kind)
            train = check_samples(report, clouds, lambda index: _check_fields(clouds[index], expected), False, quiet)
        except DataError as error:
            report.error("lists or files that cannot be used", str(error))
        check_classes(report, train, None)
    total = sum(train.values())
    share = 0.0 if own else held_share(total)
    settings = {
        "dataset": kind,
        "num_points": size,
        "dev_by_class": share,
        "label_smoothing": 0.1,
        "scale": [0.8, 1.25],
        "shift": 0.1,
        "jitter": 0.01,
    }
    told = measured_on(own, share)
    kept = round(total * (1 - share))
    return Found(f"clouds ({kind})", "point-classification", "dev_top1", kept, tuple(train), told, settings, 32)


def examine_points(
    data: Path, config: Mapping[str, Any], report: Report, *, size: int | None, skip_bad: bool, quiet: bool
) -> Found:
    """Finds and checks clouds with a class for each point; arguments as for `examine`.

    Raises:
        DataError: If the layout is not known.
    """
    kind = dataset_at(data)
    if kind is None or kind in (*_CLASSIFIED, *_WITHOUT_LABELS):
        raise no_layout(data, "point segmentation", SEGMENTED)
    expected = PointDataConfig.from_dict(config["data"])
    ignored = int(config["data"].get("ignore_label", 255))
    names: tuple[str, ...] = ()
    count, own, seen = 0, False, Counter[int]()
    try:
        clouds: Any = open_dataset(data, "train", kind)
        names, count = tuple(clouds.class_names), len(clouds)

        def classes(index: int) -> None:
            cloud = clouds[index]
            _check_fields(cloud, expected)
            labels, found = np.unique(cloud.fields["label"], return_counts=True)
            seen.update(dict(zip(labels.tolist(), found.tolist(), strict=True)))

        check_samples(report, clouds, classes, False, quiet)
        if "val" in clouds.splits:
            open_dataset(data, "val", kind)
            own = True
    except DataError as error:
        if not count:
            report.error("lists or files that cannot be used", str(error))
    present = [number for number in range(len(names)) if seen[number] and number != ignored]
    if count and len(present) < 2:
        report.error("a segmenter needs points of two classes or more, found", ", ".join(names[n] for n in present))
    for number in (number for number in range(len(names)) if number not in present):
        report.note("classes without points in training", names[number])
    share = 0.0 if own or count < 2 else max(held_share(count), 1 / count)
    if count == 1 and not own:
        report.note("one cloud and no validation split: the last weights are kept", str(data))
    settings: dict[str, Any] = {
        "dataset": kind,
        "num_points": size or config["data"].get("num_points") or 8192,
        "dev_fraction": share,
        "crops": max(200, 4 * count),
        "scale": [0.9, 1.1],
        "flip": 0.5,
        "rotate": 180.0,
    }
    if not own and not share:
        settings |= {"select": None, "patience": 0, "eval_every": 0}
    told = measured_on(own, share, "the clouds")
    crops = int(settings["crops"])
    return Found(f"labelled clouds ({kind})", "point-segmentation", "dev_miou", crops, names, told, settings, 8)


def _points(path: Path, own: PointDataConfig) -> int:
    """Points of a cloud; 0 for a mesh, of which any number can be drawn."""
    points = read_points(path, name=str(path), path=path)
    _check_fields(points if points.faces is None else points.sample(1), own)
    return 0 if points.faces is not None else len(points)


def _check_fields(points: Points, own: PointDataConfig) -> None:
    """Refuses a cloud without what the model takes of every point.

    Raises:
        DataError: Says what is absent.
    """
    first = points[:1]
    try:
        make_features(first.xyz, first.fields, own)
    except DataError as error:
        raise DataError(f"{points.name}: {error}") from error
