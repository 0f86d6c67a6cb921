"""Augmentation of events before they become tokens.

Every augmentation draws from the generator it is given and from nothing else. The order of events and their times stay;
events that leave the sensor are dropped, and boxes follow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from modalities.events.datasets.base import EventSample
from zoo.errors import ConfigError

__all__ = [
    "GESTURE_MIRROR",
    "AreaDrop",
    "Augmentation",
    "EventDrop",
    "Flip",
    "Rotate",
    "Shear",
    "Shift",
    "TimeDrop",
    "Zoom",
    "augment",
]

GESTURE_MIRROR = {1: 2, 2: 1, 3: 6, 6: 3, 4: 5, 5: 4}
"""DvsGesture's classes (from 0) in a mirror: left and right hand, and the direction in which an arm turns."""

VISIBLE = 0.25
"""Boxes of which a smaller share than this stays visible are dropped."""


class Augmentation(Protocol):
    """Changes a sample at random."""

    def __call__(self, sample: EventSample, rng: np.random.Generator) -> EventSample:
        """A changed sample, or the same one; the result depends on the arguments alone."""


@dataclass(frozen=True)
class Flip:
    """Mirrors columns.

    Attributes:
        probability: How often.
        mirror: Class -> class in the mirror, where it is another.
    """

    probability: float = 0.5
    mirror: Mapping[int, int] = field(default_factory=dict)

    def __call__(self, sample: EventSample, rng: np.random.Generator) -> EventSample:
        if rng.random() >= self.probability:
            return sample
        width = sample.size[1]
        boxes = sample.boxes.copy()
        boxes[:, [0, 2]] = width - sample.boxes[:, [2, 0]]
        labels = np.array([self.mirror.get(label, label) for label in sample.labels.tolist()], np.int64)
        return EventSample(
            replace(sample.events, x=(width - 1) - sample.events.x),
            self.mirror.get(sample.label, sample.label),
            boxes,
            labels,
        )


class _Affine:
    """A linear map about the centre of the sensor and a shift; of neighbours in a list only the product is applied."""

    def matrix(self, rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
        """float64 (2, 3): (x, y), in pixels from the centre, to where they go."""
        raise NotImplementedError

    def __call__(self, sample: EventSample, rng: np.random.Generator) -> EventSample:
        return _move(sample, self.matrix(rng, sample.size))


@dataclass(frozen=True)
class Shift(_Affine):
    """Moves by a whole number of pixels, up to `pixels` in each direction; nothing comes back on the other side."""

    pixels: int

    def matrix(self, rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
        """See `_Affine`."""
        x, y = rng.integers(-self.pixels, self.pixels + 1, 2)
        return np.array([[1.0, 0.0, x], [0.0, 1.0, y]])


@dataclass(frozen=True)
class Rotate(_Affine):
    """Turns by up to `degrees` either way."""

    degrees: float

    def matrix(self, rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
        """See `_Affine`."""
        angle = math.radians(rng.uniform(-self.degrees, self.degrees))
        cos, sin = math.cos(angle), math.sin(angle)
        return np.array([[cos, -sin, 0.0], [sin, cos, 0.0]])


@dataclass(frozen=True)
class Shear(_Affine):
    """Moves a row to the side by up to `amount` times its distance from the centre."""

    amount: float

    def matrix(self, rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
        """See `_Affine`."""
        return np.array([[1.0, rng.uniform(-self.amount, self.amount), 0.0], [0.0, 1.0, 0.0]])


@dataclass(frozen=True)
class Zoom(_Affine):
    """Scales columns and rows, each by a factor from 1 - `amount` to 1 + `amount`."""

    amount: float

    def matrix(self, rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
        """See `_Affine`."""
        x, y = rng.uniform(1 - self.amount, 1 + self.amount, 2)
        return np.array([[x, 0.0, 0.0], [0.0, y, 0.0]])


@dataclass(frozen=True)
class AreaDrop:
    """Drops the events of a rectangle, each of whose sides is up to `share` of the sensor's."""

    share: float

    def __call__(self, sample: EventSample, rng: np.random.Generator) -> EventSample:
        height, width = sample.size
        sides = rng.uniform(0, self.share, 2) * (width, height)
        left, top = rng.uniform(0, (width, height) - sides)
        right, bottom = left + sides[0], top + sides[1]
        x, y = sample.events.x, sample.events.y
        inside = (x >= left) & (x < right) & (y >= top) & (y < bottom)
        kept = replace(sample, events=sample.events[~inside])
        x1, y1, x2, y2 = sample.boxes.T
        hidden = np.clip(np.minimum(x2, right) - np.maximum(x1, left), 0, None)
        hidden = hidden * np.clip(np.minimum(y2, bottom) - np.maximum(y1, top), 0, None)
        return _with_boxes(kept, sample.boxes, (x2 - x1) * (y2 - y1) - hidden, (x2 - x1) * (y2 - y1))


@dataclass(frozen=True)
class TimeDrop:
    """Drops the events of a stretch of up to `share` of the time; boxes stay."""

    share: float

    def __call__(self, sample: EventSample, rng: np.random.Generator) -> EventSample:
        length, start = rng.uniform(0, self.share), rng.random()
        t = sample.events.t_us
        if not len(t):
            return sample
        first, last = int(t[0]), int(t[-1])
        begin = first + round(start * (1 - length) * (last - first))
        ends = np.searchsorted(t, (begin, begin + round(length * (last - first))))
        keep = np.ones(len(t), np.bool_)
        keep[slice(*ends)] = False
        return replace(sample, events=sample.events[keep])


@dataclass(frozen=True)
class EventDrop:
    """Drops a share of all events at random, itself drawn from 0 to `share`; boxes stay."""

    share: float

    def __call__(self, sample: EventSample, rng: np.random.Generator) -> EventSample:
        share = rng.uniform(0, self.share)
        return replace(sample, events=sample.events[rng.random(len(sample.events), np.float32) >= share])


def augment(sample: EventSample, steps: Sequence[Augmentation], rng: np.random.Generator) -> EventSample:
    """Applies augmentations in order; neighbouring moves are joined, so that pixels are rounded once.

    Args:
        sample: What to change; it is left as it is.
        steps: Augmentations.
        rng: Of all draws.
    """
    joined: np.ndarray | None = None
    for step in steps:
        if isinstance(step, _Affine):
            matrix = np.vstack([step.matrix(rng, sample.size), (0.0, 0.0, 1.0)])
            joined = matrix if joined is None else matrix @ joined
            continue
        if joined is not None:
            sample, joined = _move(sample, joined[:2]), None
        sample = step(sample, rng)
    return sample if joined is None else _move(sample, joined[:2])


def _move(sample: EventSample, matrix: np.ndarray) -> EventSample:
    height, width = sample.size
    centre = np.array([(width - 1) / 2, (height - 1) / 2])
    offset = matrix[:, 2] + centre - matrix[:, :2] @ centre
    (a, b), (c, d) = matrix[:, :2].astype(np.float32)
    x, y = sample.events.x.astype(np.float32), sample.events.y.astype(np.float32)
    # Rounded down after half a pixel is added: what is left of the sensor must not become column 0.
    moved_x = np.floor(a * x + b * y + np.float32(offset[0] + 0.5)).astype(np.int32)
    moved_y = np.floor(c * x + d * y + np.float32(offset[1] + 0.5)).astype(np.int32)
    inside = (moved_x >= 0) & (moved_x < width) & (moved_y >= 0) & (moved_y < height)
    moved = replace(sample, events=replace(sample.events, x=moved_x, y=moved_y)[inside])
    if not len(sample.boxes):
        return moved
    # Edges of pixels are half a pixel from their centres. The box about the four moved corners.
    corners = sample.boxes[:, [[0, 1], [2, 1], [0, 3], [2, 3]]].astype(np.float64) - 0.5
    corners = corners @ matrix[:, :2].T + offset + 0.5
    whole = np.concatenate([corners.min(1), corners.max(1)], 1)
    cut = whole.clip(0, [width, height, width, height])
    areas = [np.prod(np.clip(b[:, 2:] - b[:, :2], 0, None), 1) for b in (cut, whole)]
    return _with_boxes(moved, cut.astype(np.float32), *areas)


def _with_boxes(sample: EventSample, boxes: np.ndarray, visible: np.ndarray, whole: np.ndarray) -> EventSample:
    keep = (visible > 0) & (visible >= VISIBLE * whole)
    return replace(sample, boxes=boxes[keep], labels=sample.labels[keep])


def check_share(name: str, value: float) -> None:
    """Refuses a share that is none.

    Raises:
        ConfigError: If it is not in [0, 1].
    """
    if not 0 <= value <= 1:
        raise ConfigError(f"recipe: {name} must be in [0, 1], got {value!r}")
