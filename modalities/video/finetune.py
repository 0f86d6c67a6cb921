"""Fine-tuning classifiers of videos: which data are understood, what is wrong with them, and settings for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modalities.video.datasets.find import dataset_at, open_videos
from modalities.video.read import open_clip
from zoo.class_folders import has_split
from zoo.errors import DataError
from zoo.finetune.checks import check_classes, check_folders, check_samples
from zoo.finetune.found import Found, held_share, measured_on, no_layout
from zoo.finetune.report import Report
from zoo.reading import VIDEO_SUFFIXES

__all__ = ["LAYOUTS", "examine"]

LAYOUTS = (
    "class folders: <class>/<videos>, or train/<class>/<videos> with or without val/<class>/<videos>",
    "the layouts of UCF101 (ucfTrainTestlist/), HMDB51 (testTrainMulti_7030_splits/) and Kinetics (train.csv)",
)


def examine(
    data: Path, config: Mapping[str, Any], report: Report, *, size: int | None, skip_bad: bool, quiet: bool
) -> Found:
    """Finds and checks videos with a class each; arguments as for `modalities.image.finetune.examine`.

    Raises:
        DataError: If the layout is not known.
    """
    kind = dataset_at(data) if data.is_dir() else None
    if kind is None:
        raise no_layout(data, "video classification", LAYOUTS)
    own = False  # A validation split of its own.
    if kind == "folders":
        counts, lengths = check_folders(data, report, VIDEO_SUFFIXES, _frames, skip_bad=skip_bad, quiet=quiet)
        train, own = counts.get("train", Counter()), has_split(data, "val")
        frames = config["data"].get("frames", 1)
        if short := [length for length in lengths if length < frames]:
            report.note(
                f"videos of fewer than {frames} frames, whose clips are shorter", *(f"{n} frames" for n in short)
            )
    else:
        train = Counter()
        try:
            videos = open_videos(data, "train", kind)
            train = check_samples(report, videos, lambda index: _frames(videos.files[index]), skip_bad, quiet)
            own = kind == "ucf101"
            if kind == "kinetics":
                open_videos(data, "val", kind)
                own = True
        except DataError as error:
            if not train:
                report.error("lists or files that cannot be used", str(error))
        check_classes(report, train, None)
    total = sum(train.values())
    share = 0.0 if own else held_share(total)
    settings: dict[str, Any] = {
        "dataset": kind,
        "dev_by_class": share,
        "keep_damaged": skip_bad,
        "crop_scale": [0.6, 1.0],
        "label_smoothing": 0.1,
        "workers": 4,
        "memory_gib": 2.0,
        "model_options": {"input_size": size} if size else {},
    }
    told = measured_on(own, share)
    kept = round(total * (1 - share))
    return Found(f"videos ({kind})", "video-classification", "dev_top1", kept, tuple(train), told, settings, 8)


def _frames(path: Path) -> int:
    """Frames of a video, all of which are decoded."""
    return sum(1 for _ in open_clip(path, errors="raise").frames())
