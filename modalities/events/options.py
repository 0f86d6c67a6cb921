"""Recipe keys of training on events."""

from __future__ import annotations

from dataclasses import dataclass

from modalities.events.augment import (
    GESTURE_MIRROR,
    AreaDrop,
    Augmentation,
    EventDrop,
    Flip,
    Rotate,
    Shear,
    Shift,
    TimeDrop,
    Zoom,
)
from modalities.events.datasets.find import DATASETS
from zoo.training.holdout import check_held_out
from zoo.training.settings import check

__all__ = ["ClassificationOptions", "DetectionOptions", "EventOptions"]


@dataclass(frozen=True)
class EventOptions:
    """Keys of classification and detection alike; what an augmentation does says `modalities.events.augment`.

    Attributes:
        dataset: One of `modalities.events.datasets.DATASETS`, or `"auto"` to tell by the layout.
        keep_damaged: Take of damaged recordings what can be decoded, with a warning, instead of stopping.
        memory_gib: What the events of the training samples may take in memory; further ones are read each time.
        max_tokens: Places of a sample in a batch, of longer samples the latest tokens stay; `None` = enough for all.
        workers: Threads that augment and tokenize.
        flip: Probability of a flip.
        rotate: Largest angle in degrees.
        shear: Largest shear.
        zoom: Largest change of size, as a share.
        shift: Largest shift in pixels.
        area_drop: Largest sides of the dropped rectangle, as a share of the sensor's.
        time_drop: Longest dropped stretch of time, as a share.
        event_drop: Largest share of events dropped at random.
    """

    dataset: str = "auto"
    keep_damaged: bool = False
    memory_gib: float = 16.0
    max_tokens: int | None = None
    workers: int = 8
    flip: float = 0.0
    rotate: float = 0.0
    shear: float = 0.0
    zoom: float = 0.0
    shift: int = 0
    area_drop: float = 0.0
    time_drop: float = 0.0
    event_drop: float = 0.0

    def __post_init__(self) -> None:
        check("dataset", self.dataset, self.dataset in ("auto", *DATASETS), f"auto or one of {', '.join(DATASETS)}")
        check("memory_gib", self.memory_gib, self.memory_gib >= 0, "0 or more")
        check("workers", self.workers, 1 <= self.workers <= 256, "between 1 and 256")
        if self.max_tokens is not None:
            check("max_tokens", self.max_tokens, self.max_tokens >= 1, "at least 1 or null")
        for key in ("flip", "area_drop", "time_drop", "event_drop"):
            check(key, getattr(self, key), 0 <= getattr(self, key) <= 1, "in [0, 1]")
        check("zoom", self.zoom, 0 <= self.zoom < 1, "in [0, 1)")
        check("rotate", self.rotate, 0 <= self.rotate <= 180, "between 0 and 180 degrees")
        check("shear", self.shear, 0 <= self.shear <= 10, "between 0 and 10")
        check("shift", self.shift, 0 <= self.shift <= 4096, "between 0 and 4096 pixels")

    def augmentations(self, dataset: str) -> list[Augmentation]:
        """The augmentations that are on, in the order in which they are drawn.

        Args:
            dataset: Which data set: the classes of DvsGesture have others in the mirror.
        """
        mirror = GESTURE_MIRROR if dataset == "dvsgesture" else {}
        every: list[tuple[float, Augmentation]] = [
            (self.flip, Flip(self.flip, mirror)),
            (self.rotate, Rotate(self.rotate)),
            (self.shear, Shear(self.shear)),
            (self.zoom, Zoom(self.zoom)),
            (self.shift, Shift(self.shift)),
            (self.area_drop, AreaDrop(self.area_drop)),
            (self.time_drop, TimeDrop(self.time_drop)),
            (self.event_drop, EventDrop(self.event_drop)),
        ]
        return [step for amount, step in every if amount]


@dataclass(frozen=True)
class ClassificationOptions(EventOptions):
    """Keys of event classification.

    Attributes:
        dev_count: Training samples held out for model selection, where the data set has no validation split.
        dev_by_class: The same as a share of the samples of each class; only one of the two may be set.
        label_smoothing: Share of the target spread over all classes.
    """

    dev_count: int = 0
    dev_by_class: float = 0.0
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_held_out(self)
        check("label_smoothing", self.label_smoothing, 0 <= self.label_smoothing < 1, "in [0, 1)")


@dataclass(frozen=True)
class DetectionOptions(EventOptions):
    """Keys of event detection; the window of events is that of the model's data configuration.

    Attributes:
        half: Events and boxes at half the resolution (1Mpx); the model's sensor must be that.
        dev_fraction: Share of the training recordings held out for model selection, where there is no folder `val`.
    """

    half: bool = False
    dev_fraction: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_held_out(self)
