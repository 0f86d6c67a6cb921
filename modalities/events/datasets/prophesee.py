"""GEN1 and 1Mpx (Prophesee): a DAT file for each recording, and its boxes in a NumPy file beside it.

A recording without boxes or boxes without a recording are a `DataError`. Boxes out of the order of time are sorted.
Boxes at times without events are kept: the sample has no events. A window takes what there is, be it less than asked.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from modalities.events.datasets.base import EventSample, TimedBoxes
from modalities.events.datasets.dat import DatWindows
from modalities.events.events import Events
from modalities.events.presets import DIGITS, GEN1_LABELS
from modalities.events.protocol import ALL_BOXES, GEN1_PROTOCOL, MPX1_PROTOCOL, BoxProtocol
from zoo.errors import ConfigError, DataError
from zoo.files import files_sha256

__all__ = ["CANVAS_FILE", "KINDS", "BoxedRecordings", "DetectionKind", "read_boxes"]

SPLITS = ("train", "val", "test")
CANVAS_FILE = "canvas.json"
"""In the folder of a semi-synthetic set: how it was made."""


@dataclass(frozen=True)
class DetectionKind:
    """What is fixed about a data set.

    Attributes:
        width: Columns of the sensor.
        height: Rows of the sensor.
        class_names: Of the classes that are used.
        classes: Number of classes in the files; those from `len(class_names)` on are left out.
        protocol: Which boxes count.
    """

    width: int
    height: int
    class_names: tuple[str, ...]
    classes: int
    protocol: BoxProtocol


KINDS = {
    "gen1": DetectionKind(304, 240, GEN1_LABELS, 2, GEN1_PROTOCOL),
    # Of seven classes (with truck, bus, sign and light) the field trains and scores the first three.
    "1mpx": DetectionKind(1280, 720, ("pedestrian", "two wheeler", "car"), 7, MPX1_PROTOCOL),
    "nmnist-canvas": DetectionKind(304, 240, DIGITS, 10, ALL_BOXES),
}


class BoxedRecordings:
    """One split of a data set in the layout of GEN1; see `modalities.events.datasets.base.SceneSet`.

    Boxes are clipped to the frame and filtered by the protocol; the samples are the times that still have boxes.

    Args:
        data: Folder with `train`, `val` and `test`, each with `*_td.dat` and `*_bbox.npy` (sub-folders are searched).
        split: One of these.
        kind: A key of `KINDS`.
        window_us: Microseconds of events before the boxes; `None` for no bound.
        window_events: Events before the boxes; `None` for no bound.
        half: Events and boxes at half the resolution (common for 1Mpx); the protocol is halved too.
        training: Leave out boxes that only training leaves out; by default for the split `"train"`.
        errors: `"keep"` takes of a damaged recording what can be decoded.

    Attributes:
        window: (window_us, window_events) of what is read next.

    Raises:
        ConfigError: If there is no such split or kind, or the window is empty.
        DataError: If the layout is another, or boxes cannot be used; names the file.
    """

    def __init__(
        self,
        data: Path,
        split: str = "train",
        *,
        kind: str = "gen1",
        window_us: int | None = None,
        window_events: int | None = 500_000,
        half: bool = False,
        training: bool | None = None,
        errors: str = "raise",
    ) -> None:
        if kind not in KINDS or split not in SPLITS:
            raise ConfigError(
                f"expected a kind of {', '.join(KINDS)} and a split of {', '.join(SPLITS)}, got {kind!r} and {split!r}"
            )
        if any(bound is not None and bound < 1 for bound in (window_us, window_events)):
            raise ConfigError(f"a window has 1 us and 1 event or more, not {window_us} and {window_events}")
        self.kind, self._shrink, self._errors = KINDS[kind], 2 if half else 1, errors
        self.protocol = self.kind.protocol.scaled(1 / self._shrink)
        self.width, self.height = self.kind.width // self._shrink, self.kind.height // self._shrink
        self.path, self.name, self.class_names = data, data.resolve().name, list(self.kind.class_names)
        self.window = window_us, window_events
        self.files = _recordings(data, split)
        training = split == "train" if training is None else training
        self.truth, recordings, times = [], [], []
        for number, (_, table) in enumerate(self.files):
            boxes = self._usable(read_boxes(table, self.kind.classes), training)
            self.truth.append(boxes)
            times.append(np.unique(boxes.t_us))
            recordings.append(np.full(len(times[-1]), number))
        self.recordings, self.times_us = np.concatenate(recordings), np.concatenate(times)
        if not len(self.times_us):
            raise DataError(f"{data / split}: no box is left after the filters of the protocol ({self.protocol})")
        self.sha256 = files_sha256(data, (file for pair in self.files for file in pair))
        # A file stays open for its next sample; few at a time, since systems bound the number.
        self._open = functools.lru_cache(maxsize=64)(self._opened)

    def _opened(self, number: int) -> DatWindows:
        return DatWindows(self.files[number][0], self.kind.width, self.kind.height, self._errors)

    def _usable(self, boxes: TimedBoxes, training: bool) -> TimedBoxes:
        boxes = boxes[boxes.labels < len(self.class_names)]
        shrunk = TimedBoxes(boxes.t_us, boxes.boxes / np.float32(self._shrink), boxes.labels, boxes.scores)
        shrunk = self.protocol.clipped(shrunk, self.width, self.height)
        if training:
            shrunk = self.protocol.without_huge(shrunk, self.width)
        return self.protocol.filtered(shrunk)

    def __len__(self) -> int:
        return len(self.times_us)

    def read(self, index: int) -> Events:
        """The events of the window before the time of the boxes; times are those of the recording."""
        windows = self._open(int(self.recordings[index]))
        events = windows.before(int(self.times_us[index]), *self.window)
        return _halved(events) if self._shrink == 2 else events

    def read_all(self, indices: Iterable[int]) -> Iterator[tuple[int, Events]]:
        """Index and events of several samples."""
        return ((index, self.read(index)) for index in indices)

    def sample(self, index: int, events: Events) -> EventSample:
        """Events of a window with its boxes."""
        truth, time = self.truth[self.recordings[index]], int(self.times_us[index])
        chosen = slice(*np.searchsorted(truth.t_us, (time, time + 1)))
        return EventSample(events, boxes=truth.boxes[chosen], labels=truth.labels[chosen], end_us=time)


def _halved(events: Events) -> Events:
    """Every 2 x 2 pixels become one; all events stay."""
    height, width = events.size
    assert height is not None and width is not None
    inside = (events.x < width // 2 * 2) & (events.y < height // 2 * 2)
    events = events[inside]
    return Events(
        *(events.t_us, events.x // 2, events.y // 2, events.p),
        width=width // 2,
        height=height // 2,
        name=events.name,
        path=events.path,
        format=events.format,
    )


def _recordings(data: Path, split: str) -> list[tuple[Path, Path]]:
    """Recordings of a split and their boxes, by name."""
    root = data / split
    dats = {f.name.removesuffix("_td.dat"): f for f in sorted(root.rglob("*_td.dat"))}
    tables = {f.name.removesuffix("_bbox.npy"): f for f in sorted(root.rglob("*_bbox.npy"))}
    if not dats and not tables:
        raise DataError(f"{root}: no recordings; expected *_td.dat and *_bbox.npy in it")
    for name in sorted(dats.keys() ^ tables.keys()):
        found, missing = (dats[name], "_bbox.npy") if name in dats else (tables[name], "_td.dat")
        raise DataError(f"{found}: there is no {name}{missing} that belongs to it")
    return [(dats[name], tables[name]) for name in sorted(dats)]


def read_boxes(path: Path, classes: int) -> TimedBoxes:
    """Reads the boxes of one recording: a structured array with the fields `t` or `ts`, x, y, w, h and class_id.

    Fields are taken by name, so that both layouts in use are read; others (track, confidence) are passed over.

    Args:
        path: A `.npy` file.
        classes: Number of classes that may occur.

    Returns:
        Boxes in order of time.

    Raises:
        DataError: If a field is missing, a number is not finite or a class does not exist.
    """
    try:
        table: Any = np.load(path, allow_pickle=False)
        names = table.dtype.names or ()
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: no readable NumPy file ({error})") from error
    time = next((name for name in ("t", "ts") if name in names), None)
    missing = [name for name in ("x", "y", "w", "h", "class_id") if name not in names]
    if table.ndim != 1 or time is None or missing:
        raise DataError(f"{path}: expected an array (n,) with the fields t or ts, x, y, w, h and class_id, has {names}")
    x, y, w, h = (table[name].astype(np.float64) for name in "xywh")
    corners = np.stack([x, y, x + w, y + h], 1)
    if not np.isfinite(corners).all():
        raise DataError(f"{path}: box {int((~np.isfinite(corners)).any(1).argmax())} has a number that is not finite")
    labels = table["class_id"].astype(np.int64)
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise DataError(f"{path}: class {int(labels.max())}; expected one of 0 to {classes - 1}")
    return TimedBoxes.of(table[time].astype(np.int64), corners, labels)


def kind_of(data: Path) -> str | None:
    """The key of `KINDS` that a folder looks like, or `None`: by the file of a canvas set, else by the sensor."""
    if (data / CANVAS_FILE).is_file():
        try:
            facts = json.loads((data / CANVAS_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"{data / CANVAS_FILE}: cannot be read ({error})") from error
        if isinstance(facts, dict) and facts.get("dataset") in KINDS:
            return str(facts["dataset"])
        raise DataError(f"{data / CANVAS_FILE}: does not say which data set it is")
    from modalities.events.read import open_events

    first = next((f for split in SPLITS for f in sorted((data / split).rglob("*_td.dat"))), None)
    if first is None:
        return None
    reader = open_events(first, format="dat")
    return "1mpx" if (reader.width, reader.height) == (1280, 720) else "gen1"
