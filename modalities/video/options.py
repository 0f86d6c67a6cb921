"""Recipe keys of training on video."""

from __future__ import annotations

from dataclasses import dataclass

from modalities.video.datasets.find import DATASETS
from zoo.training.holdout import check_held_out
from zoo.training.settings import check

__all__ = ["MotionOptions", "VideoOptions"]


@dataclass(frozen=True)
class VideoOptions:
    """Recipe keys of task `video-classification`.

    Attributes:
        dataset: One of `modalities.video.datasets.DATASETS`, or `"auto"`: by the layout.
        fold: Official split of UCF101 and HMDB51, 1 to 3.
        dev_count: Training videos held out for model selection; 0 takes the validation split of UCF101, and of Kinetics
            where there is a `val.csv`, and of class folders where there is `val/`.
        dev_by_class: The same as a share of the videos of each class; only one of the two may be set.
        crop_scale: Bounds on the share of a frame's area that a random crop keeps, the same for all frames of a clip;
            [1, 1] prepares training clips as those of the evaluation.
        crop_ratio: Bounds on its aspect ratio, relative to that of the input.
        flip: Probability of a horizontal flip.
        label_smoothing: Share of the target spread over all classes.
        keep_damaged: Use what can be decoded of damaged files instead of stopping.
        workers: Threads that decode.
        memory_gib: Decoded clips kept in memory, where every epoch has the same frames; 0 for none.
    """

    dataset: str = "auto"
    fold: int = 1
    dev_count: int = 0
    dev_by_class: float = 0.0
    crop_scale: tuple[float, float] = (1.0, 1.0)
    crop_ratio: tuple[float, float] = (0.75, 4 / 3)
    flip: float = 0.5
    label_smoothing: float = 0.0
    keep_damaged: bool = True
    workers: int = 8
    memory_gib: float = 0.0

    def __post_init__(self) -> None:
        names = ("auto", *DATASETS)
        check("dataset", self.dataset, self.dataset in names, f"one of {', '.join(names)}")
        check("fold", self.fold, self.fold in (1, 2, 3), "1, 2 or 3")
        check_held_out(self)
        low, high = self.crop_scale
        check("crop_scale", self.crop_scale, 0 < low <= high <= 1, "two ascending numbers in (0, 1]")
        check("crop_ratio", self.crop_ratio, 0 < self.crop_ratio[0] <= self.crop_ratio[1], "two ascending numbers")
        check("flip", self.flip, 0 <= self.flip <= 1, "in [0, 1]")
        check("label_smoothing", self.label_smoothing, 0 <= self.label_smoothing < 1, "in [0, 1)")
        check("workers", self.workers, 1 <= self.workers <= 1024, "1 to 1024")
        check("memory_gib", self.memory_gib, 0 <= self.memory_gib < 1e6, "0 or more")


@dataclass(frozen=True)
class MotionOptions:
    """Recipe keys of task `video-motion`.

    Attributes:
        dev_count: Training pictures that no training clip is made of, for model selection.
        store_size: Side to which pictures are resized and cropped when packed; `None` keeps them.
        skip_bad: Leave out damaged pictures instead of stopping.
        brightness: Largest factor, and its inverse, that the pixels of a clip are multiplied by.
        label_smoothing: Share of the target spread over all classes.
    """

    dev_count: int = 0
    store_size: int | None = None
    skip_bad: bool = False
    brightness: float = 1.0
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        check("dev_count", self.dev_count, self.dev_count >= 0, "0 or more")
        size = self.store_size
        check("store_size", size, size is None or 1 <= size <= 4096, "between 1 and 4096 or null")
        check("brightness", self.brightness, 1 <= self.brightness <= 10, "between 1 and 10")
        check("label_smoothing", self.label_smoothing, 0 <= self.label_smoothing < 1, "in [0, 1)")
