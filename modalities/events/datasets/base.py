"""What all event data sets offer: recordings with one class each (clips), or with boxes at times (scenes)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from modalities.events.events import Events
from zoo.errors import DataError
from zoo.files import files_sha256

__all__ = ["ClipSet", "EventSample", "SceneSet", "TimedBoxes", "as_recorded", "files_sha256"]


def _no_boxes() -> np.ndarray:
    return np.zeros((0, 4), np.float32)


def _no_labels() -> np.ndarray:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class EventSample:
    """One sample as augmentations take and return it.

    Attributes:
        events: In order of time, within a sensor of known size.
        label: Class of the whole sample, of classifiers; -1 where there is none.
        boxes: float32 (n, 4): x1, y1, x2, y2 in pixels of the sensor, of detectors.
        labels: int64 (n,) class of each box.
        start_us: Start of the sample in the clock of its events, see `modalities.events.prepare`.
        end_us: Its end, such as the time of the boxes.
    """

    events: Events
    label: int = -1
    boxes: np.ndarray = field(default_factory=_no_boxes)
    labels: np.ndarray = field(default_factory=_no_labels)
    start_us: int | None = None
    end_us: int | None = None

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the sensor.

        Raises:
            DataError: If the events do not know it.
        """
        height, width = self.events.size
        if height is None or width is None:
            raise DataError(f"{self.events.name}: the size of the sensor is not known; pass width= and height=")
        return height, width


@dataclass(frozen=True, eq=False)
class TimedBoxes:
    """Boxes of one recording, true or detected, in order of time.

    Attributes:
        t_us: int64 (n,) microseconds from the start of the recording.
        boxes: float32 (n, 4): x1, y1, x2, y2 in pixels.
        labels: int64 (n,) class of each.
        scores: float32 (n,); 1 for true boxes.
    """

    t_us: np.ndarray
    boxes: np.ndarray
    labels: np.ndarray
    scores: np.ndarray

    def __post_init__(self) -> None:
        count = len(self.t_us)
        shapes = {"boxes": (count, 4), "labels": (count,), "scores": (count,)}
        if any(getattr(self, name).shape != shape for name, shape in shapes.items()):
            raise DataError("timed boxes: t_us, labels and scores must be (n,) and boxes (n, 4)")

    def __len__(self) -> int:
        return len(self.t_us)

    def __getitem__(self, index: Any) -> TimedBoxes:
        """A part: a slice, a mask or indices."""
        return TimedBoxes(self.t_us[index], self.boxes[index], self.labels[index], self.scores[index])

    @classmethod
    def of(cls, t_us: Any, boxes: Any, labels: Any, scores: Any = None) -> TimedBoxes:
        """Casts arrays and brings them into the order of time; boxes of one time stay in their order.

        Args:
            t_us: (n,) whole numbers.
            boxes: (n, 4).
            labels: (n,) whole numbers.
            scores: (n,), or `None` for true boxes.
        """
        times = np.asarray(t_us, np.int64).reshape(-1)
        order = np.argsort(times, kind="stable")
        given = np.ones(len(times), np.float32) if scores is None else np.asarray(scores, np.float32)
        corners = np.asarray(boxes, np.float32).reshape(-1, 4)
        return cls(times, corners, np.asarray(labels, np.int64).reshape(-1), given)[order]

    @staticmethod
    def concatenate(parts: Sequence[TimedBoxes]) -> TimedBoxes:
        """Joins boxes of one recording; none give none."""
        if not parts:
            return TimedBoxes.of([], [], [])
        arrays = ([getattr(part, name) for part in parts] for name in ("t_us", "boxes", "labels", "scores"))
        return TimedBoxes.of(*(np.concatenate(array) for array in arrays))


class EventSet(Protocol):
    """Samples in a fixed order; reading one keeps no other in memory."""

    name: str
    path: Path
    sha256: str
    class_names: list[str]
    width: int
    height: int

    def __len__(self) -> int:
        """Number of samples."""

    def read(self, index: int) -> Events:
        """The events of one sample, in order of time."""

    def read_all(self, indices: Iterable[int]) -> Iterator[tuple[int, Events]]:
        """Index and events of several samples, in the order that reads every file once."""

    def sample(self, index: int, events: Events) -> EventSample:
        """What `read` gave for a sample, with all that is known of it."""


class ClipSet(EventSet, Protocol):
    """Recordings of one class each; times count from the start of the clip.

    Attributes:
        labels: int64 (N,).
    """

    labels: np.ndarray


class SceneSet(EventSet, Protocol):
    """A sample is a time that has boxes, and the events of a window before it; times are those of the recording.

    Attributes:
        recordings: (N,) number of the recording of each sample.
        times_us: int64 (N,) time of the boxes of each.
        truth: True boxes of each recording, those of the samples and no others.
    """

    recordings: np.ndarray
    times_us: np.ndarray
    truth: list[TimedBoxes]


def as_recorded(events: Events, width: int, height: int, errors: str) -> Events:
    """Events of a file with the size of the data set's sensor, in order of time.

    Raises:
        DataError: If the file states another sensor, or an event is outside (with `errors="keep"` such are left out).
    """
    if events.width is not None and (events.width, events.height) != (width, height):
        raise DataError(
            f"{events.name}: a sensor of {events.width} x {events.height} pixels, the data set's has {width} x {height}"
        )
    inside = (events.x >= 0) & (events.x < width) & (events.y >= 0) & (events.y < height)
    if not inside.all():
        if errors != "keep":
            raise DataError(f"{events.name}: {int((~inside).sum())} events outside {width} x {height} pixels")
        events = events[inside]
    return replace(events, width=width, height=height).sorted()
