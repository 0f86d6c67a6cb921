"""Augmentation of events before they become tokens.

An augmentation draws a change from a generator and from nothing else; `draw` joins the changes of several into one, and
that goes over the events once. Moves come first, in their order, and are joined, so that pixels are rounded once; then
events are dropped. The order of events and their times stay, events that leave the sensor are dropped, boxes follow.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from modalities.events.datasets.base import EventSample
from modalities.events.events import Events

__all__ = [
    "GESTURE_MIRROR",
    "AreaDrop",
    "Augmentation",
    "Change",
    "EventDrop",
    "Flip",
    "Rotate",
    "Shear",
    "Shift",
    "TimeDrop",
    "Zoom",
    "draw",
]

GESTURE_MIRROR = {1: 2, 2: 1, 3: 6, 6: 3, 4: 5, 5: 4}
"""DvsGesture's classes (from 0) in a mirror: left and right hand, and the direction in which an arm turns."""

VISIBLE = 0.25
"""Boxes of which a smaller share than this stays visible are dropped."""

_STAY = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0))


class Change(NamedTuple):
    """What is done to one sample.

    Attributes:
        matrix: (x, y), in pixels from the centre of the sensor, to where they go: two rows of three numbers.
        mirror: Class -> class, where it becomes another.
        areas: (x1, y1, x2, y2) in pixels, after the move, in which events are dropped.
        pauses: (start, end), as shares of the time from the first event to the last, in which events are dropped.
        drop: Share of the other events that is dropped.
        seed: Decides which.
    """

    matrix: tuple[tuple[float, ...], ...] = _STAY
    mirror: Mapping[int, int] = MappingProxyType({})
    areas: tuple[tuple[float, float, float, float], ...] = ()
    pauses: tuple[tuple[float, float], ...] = ()
    drop: float = 0.0
    seed: int = 0

    def __call__(self, sample: EventSample) -> EventSample:
        """The changed sample; the one given is left as it is."""
        height, width = sample.size
        moves = self.matrix != _STAY
        (a, b, c), (d, e, f) = self.matrix
        # Of the centre, since the matrix counts from there.
        x, y = (width - 1) / 2, (height - 1) / 2
        affine = (a, b, c + x - a * x - b * y, d, e, f + y - d * x - e * y)
        label = self.mirror.get(sample.label, sample.label)
        labels = sample.labels
        if self.mirror and len(labels):
            labels = np.array([self.mirror.get(one, one) for one in labels.tolist()], np.int64)
        sample = replace(sample, events=self._events(sample.events, affine, width, height), label=label, labels=labels)
        if len(sample.boxes) and moves:
            sample = _move_boxes(sample, affine, width, height)
        for area in self.areas if len(sample.boxes) else ():
            sample = _hide_boxes(sample, area)
        return sample

    def _events(self, events: Events, affine: tuple[float, ...], width: int, height: int) -> Events:
        t = events.t_us
        if not len(t):
            return events
        first, length = int(t[0]), int(t[-1]) - int(t[0])
        pauses = [(first + round(start * length), first + round(end * length)) for start, end in self.pauses]
        out = [np.empty_like(a) for a in (t, events.x, events.y, events.p)]
        count = _kernel()(
            *(t, events.x, events.y, events.p, *out),
            *(np.array(affine), width, height),
            np.array(self.areas, np.float64).reshape(-1, 4),
            np.array(pauses, np.int64).reshape(-1, 2),
            np.uint64(min(self.drop, 1.0) * 2**32),
            np.uint64(self.seed),
        )
        moved_t, moved_x, moved_y, moved_p = (a[:count] for a in out)
        return replace(events, t_us=moved_t, x=moved_x, y=moved_y, p=moved_p)


class Augmentation(Protocol):
    """Draws changes of one kind."""

    def __call__(self, rng: np.random.Generator, size: tuple[int, int]) -> Change:
        """One change, for a sensor of `size` (height, width); it depends on the arguments alone."""


@dataclass(frozen=True)
class Flip:
    """Mirrors columns, with a probability; `mirror` maps classes to what they are in the mirror."""

    probability: float = 0.5
    mirror: Mapping[int, int] = field(default_factory=dict)

    def __call__(self, rng: np.random.Generator, size: tuple[int, int]) -> Change:
        """See `Augmentation`."""
        if rng.random() >= self.probability:
            return Change()
        return Change(matrix=((-1.0, 0.0, 0.0), (0.0, 1.0, 0.0)), mirror=self.mirror)


@dataclass(frozen=True)
class Shift:
    """Moves by whole pixels, up to `pixels` in each direction; nothing comes back on the other side."""

    pixels: int

    def __call__(self, rng: np.random.Generator, size: tuple[int, int]) -> Change:
        """See `Augmentation`."""
        x, y = rng.integers(-self.pixels, self.pixels + 1, 2).tolist()
        return Change(matrix=((1.0, 0.0, float(x)), (0.0, 1.0, float(y))))


@dataclass(frozen=True)
class Rotate:
    """Turns by up to `degrees` either way."""

    degrees: float

    def __call__(self, rng: np.random.Generator, size: tuple[int, int]) -> Change:
        """See `Augmentation`."""
        angle = math.radians(rng.uniform(-self.degrees, self.degrees))
        cos, sin = math.cos(angle), math.sin(angle)
        return Change(matrix=((cos, -sin, 0.0), (sin, cos, 0.0)))


@dataclass(frozen=True)
class Shear:
    """Moves rows to the side, by up to `amount` times their distance from the centre."""

    amount: float

    def __call__(self, rng: np.random.Generator, size: tuple[int, int]) -> Change:
        """See `Augmentation`."""
        return Change(matrix=((1.0, rng.uniform(-self.amount, self.amount), 0.0), (0.0, 1.0, 0.0)))


@dataclass(frozen=True)
class Zoom:
    """Scales columns and rows, each by a factor from 1 - `amount` to 1 + `amount`."""

    amount: float

    def __call__(self, rng: np.random.Generator, size: tuple[int, int]) -> Change:
        """See `Augmentation`."""
        x, y = rng.uniform(1 - self.amount, 1 + self.amount, 2).tolist()
        return Change(matrix=((x, 0.0, 0.0), (0.0, y, 0.0)))


@dataclass(frozen=True)
class AreaDrop:
    """Drops the events of a rectangle, each of whose sides is up to `share` of the sensor's."""

    share: float

    def __call__(self, rng: np.random.Generator, size: tuple[int, int]) -> Change:
        """See `Augmentation`."""
        height, width = size
        across, down, left, top = rng.random(4).tolist()
        across, down = self.share * across * width, self.share * down * height
        left, top = left * (width - across), top * (height - down)
        return Change(areas=((left, top, left + across, top + down),))


@dataclass(frozen=True)
class TimeDrop:
    """Drops the events of a stretch of up to `share` of the time; boxes stay."""

    share: float

    def __call__(self, rng: np.random.Generator, size: tuple[int, int]) -> Change:
        """See `Augmentation`."""
        length, start = rng.random(2).tolist()
        length *= self.share
        return Change(pauses=((start * (1 - length), start * (1 - length) + length),))


@dataclass(frozen=True)
class EventDrop:
    """Drops a share of all events, itself drawn from 0 to `share`; boxes stay."""

    share: float

    def __call__(self, rng: np.random.Generator, size: tuple[int, int]) -> Change:
        """See `Augmentation`."""
        return Change(drop=self.share * rng.random(), seed=int(rng.integers(2**63)))


def draw(steps: Sequence[Augmentation], rng: np.random.Generator, size: tuple[int, int]) -> Change:
    """Draws one change from several augmentations.

    Args:
        steps: In the order of their draws and moves.
        rng: Of all draws.
        size: (height, width) of the sensor.
    """
    joined = Change()
    for step in steps:
        new = step(rng, size)
        classes = {**{key: key for key in new.mirror}, **joined.mirror}
        joined = Change(
            _product(new.matrix, joined.matrix),
            {key: new.mirror.get(value, value) for key, value in classes.items()},
            joined.areas + new.areas,
            joined.pauses + new.pauses,
            1 - (1 - joined.drop) * (1 - new.drop),
            joined.seed ^ new.seed,
        )
    return joined


def _product(after: Any, before: Any) -> tuple[tuple[float, ...], ...]:
    """The map that does `before` and then `after`; in plain numbers, which is faster at this size."""
    (g, h, i), (j, k, m) = before
    return tuple((a * g + b * j, a * h + b * k, a * i + b * m + c) for a, b, c in after)


def _move_boxes(sample: EventSample, affine: tuple[float, ...], width: int, height: int) -> EventSample:
    """The upright box about the four moved corners, as far as it is on the sensor."""
    a, b, c, d, e, f = affine
    # Edges of pixels are half a pixel from their centres, which the map is about.
    corners = sample.boxes[:, [[0, 1], [2, 1], [0, 3], [2, 3]]].astype(np.float64) - 0.5
    corners = corners @ np.array([[a, d], [b, e]]) + (c + 0.5, f + 0.5)
    whole = np.concatenate([corners.min(1), corners.max(1)], 1)
    cut = whole.clip(0, [width, height, width, height])
    return _kept(sample, cut.astype(np.float32), _area(cut), _area(whole))


def _hide_boxes(sample: EventSample, area: tuple[float, float, float, float]) -> EventSample:
    low, high = np.array(area[:2] * 2), np.array(area[2:] * 2)
    whole = _area(sample.boxes)
    hidden = _area(sample.boxes.clip(low, high))
    return _kept(sample, sample.boxes, whole - hidden, whole)


def _area(boxes: np.ndarray) -> np.ndarray:
    sides = np.clip(boxes[:, 2:].astype(np.float64) - boxes[:, :2], 0, None)
    return sides[:, 0] * sides[:, 1]


def _kept(sample: EventSample, boxes: np.ndarray, visible: np.ndarray, whole: np.ndarray) -> EventSample:
    keep = (visible > 0) & (visible >= VISIBLE * whole)
    return replace(sample, boxes=boxes[keep], labels=sample.labels[keep])


@functools.cache
def _kernel() -> Callable[..., int]:
    from modalities.events.tokenizer import compiled

    return compiled(_change)


def _change(
    t: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    p: np.ndarray,
    out_t: np.ndarray,
    out_x: np.ndarray,
    out_y: np.ndarray,
    out_p: np.ndarray,
    affine: np.ndarray,
    width: int,
    height: int,
    areas: np.ndarray,
    pauses: np.ndarray,
    drop: Any,
    seed: Any,
) -> int:
    """Moves events and writes those that stay; returns their number. `drop` is a share of 2^32."""
    a, b, c, d, e, f = affine
    made = 0
    for i in range(len(t)):
        stays = True
        for k in range(len(pauses)):
            if pauses[k, 0] <= t[i] < pauses[k, 1]:
                stays = False
        if drop and stays:
            # splitmix64 of the number of the event: the same for every order of the work.
            z = seed + np.uint64(i + 1) * np.uint64(0x9E3779B97F4A7C15)
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            stays = (z ^ (z >> np.uint64(31))) >> np.uint64(32) >= drop
        if not stays:
            continue
        # Half a pixel is added and the rest cut off below: what is left of the sensor must not become column 0.
        column = math.floor(a * x[i] + b * y[i] + c + 0.5)
        row = math.floor(d * x[i] + e * y[i] + f + 0.5)
        if column < 0 or row < 0 or column >= width or row >= height:
            continue
        for k in range(len(areas)):
            if areas[k, 0] <= column < areas[k, 2] and areas[k, 1] <= row < areas[k, 3]:
                stays = False
        if stays:
            out_t[made], out_x[made], out_y[made], out_p[made] = t[i], column, row, p[i]
            made += 1
    return made
