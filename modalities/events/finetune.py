"""Fine-tuning on events: which data are understood, what is wrong with them, and settings for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from modalities.events.datasets.find import dataset_at, open_clips, open_scenes
from modalities.events.datasets.folders import SUFFIXES, sensor_of
from modalities.events.read import read_events
from zoo.class_folders import has_split
from zoo.errors import DataError
from zoo.finetune.checks import check_classes, check_folders, check_samples
from zoo.finetune.found import Found, held_share, measured_on, no_layout
from zoo.finetune.report import Report

__all__ = ["examine", "examine_scenes"]

LAYOUTS = (
    "class folders: <class>/<recordings>, or train/<class>/<recordings> with or without val/<class>/<recordings>",
    "the layouts of N-MNIST (Train/<digit>/*.bin, or an archive) and DvsGesture (trials_to_train.txt)",
)
SCENES = ("the layout of GEN1 and 1Mpx: train/*_td.dat with *_bbox.npy, with or without val/",)


def examine(
    data: Path, config: Mapping[str, Any], report: Report, *, size: int | None, skip_bad: bool, quiet: bool
) -> Found:
    """Finds and checks recordings with a class each; arguments as for `modalities.image.finetune.examine`.

    Raises:
        DataError: If the layout is not known.
    """
    _no_size(size)
    kind = dataset_at(data) if data.exists() else None
    if kind not in ("nmnist", "dvsgesture", "folders"):
        raise no_layout(data, "event classification", LAYOUTS)
    own, sensor, train = False, None, Counter[str]()
    if kind == "folders":
        counts, sensors = check_folders(data, report, SUFFIXES, _sensor, skip_bad=skip_bad, quiet=quiet)
        train, own = counts.get("train", Counter()), has_split(data, "val")
        sensor = sensors[0] if sensors else None
        if other := [found for found in sensors if found != sensor]:
            report.error("recordings of another sensor than the first", *(f"{w} x {h} pixels" for w, h in other))
    else:
        try:
            clips = open_clips(data, "train", kind, errors="keep" if skip_bad else "raise")
            train = check_samples(report, clips, clips.read, skip_bad, quiet)
            own, sensor = kind == "dvsgesture", (clips.width, clips.height)
        except DataError as error:
            report.error("lists or files that cannot be used", str(error))
        check_classes(report, train, None)
    total = sum(train.values())
    share = 0.0 if own else held_share(total)
    settings = {"dataset": kind, "dev_by_class": share, "label_smoothing": 0.1, **_common(config, report, sensor)}
    settings |= {"keep_damaged": skip_bad}
    told = measured_on(own, share)
    kept = round(total * (1 - share))
    return Found(f"recordings ({kind})", "event-classification", "dev_top1", kept, tuple(train), told, settings, 32)


def examine_scenes(
    data: Path, config: Mapping[str, Any], report: Report, *, size: int | None, skip_bad: bool, quiet: bool
) -> Found:
    """Finds and checks recordings with boxes; arguments as for `modalities.image.finetune.examine`.

    Raises:
        DataError: If the layout is not known.
    """
    _no_size(size)
    kind = dataset_at(data) if data.is_dir() else None
    if kind in (None, "nmnist", "dvsgesture", "folders"):
        raise no_layout(data, "event detection", SCENES)
    names: list[str] = []
    count, recordings, sensor = 0, 0, None
    validated = (data / "val").is_dir()
    for split in ("train", "val") if validated else ("train",):
        try:
            scenes = open_scenes(data, split, kind, errors="keep" if skip_bad else "raise")
        except DataError as error:
            report.error("recordings or boxes that cannot be used", str(error))
            continue
        labels = np.concatenate([boxes.labels for boxes in scenes.truth])
        here = {name for number, name in enumerate(scenes.class_names) if (labels == number).any()}
        if split == "train":
            names, sensor, trained = scenes.class_names, (scenes.width, scenes.height), here
            count, recordings = len(scenes), len(scenes.truth)
            for name in (name for name in names if name not in here):
                report.note("classes without boxes in training", name)
        else:
            for name in sorted(here - trained):
                report.error("classes in validation that are not in training", name)
        check_samples(report, scenes, scenes.read, skip_bad, quiet)
    if not validated and recordings < 2:
        report.error("nothing can be held out to validate on", f"{recordings} recording in training, and no val/")
    share = 0.0 if validated else max(held_share(count), 1 / max(recordings, 1))
    settings = {"dataset": kind, "dev_fraction": share, "keep_damaged": skip_bad, **_common(config, report, sensor)}
    told = measured_on(validated, share, "the recordings")
    kept = round(count * (1 - share))
    return Found(
        f"scenes ({kind})", "event-detection", "dev_map", kept, tuple(names), told, settings, 8, new_head=False
    )


def _common(config: Mapping[str, Any], report: Report, sensor: tuple[int, int] | None) -> dict[str, Any]:
    """Settings of both tasks; a model for another sensor is made one for that of the data."""
    stated = config["data"]["width"], config["data"]["height"]
    options: dict[str, Any] = {}
    if sensor is not None and sensor != stated:
        report.note("the model's sensor differs and becomes that of the data", f"{stated} -> {sensor} (width, height)")
        options = {"input_size": [sensor[1], sensor[0]]}
    return {"model_options": options, "workers": 4, "event_drop": 0.2, "time_drop": 0.1, "zoom": 0.1}


def _no_size(size: int | None) -> None:
    from zoo.errors import ConfigError

    if size is not None:
        raise ConfigError("size: that of event models is the sensor's, which follows from the data")


def _sensor(path: Path) -> tuple[int, int]:
    """(width, height) of the sensor of a recording, all events of which are read."""
    events = read_events(path, name=str(path), path=path)
    if not len(events):
        raise DataError("holds no events")
    return sensor_of(path)
