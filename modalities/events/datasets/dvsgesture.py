"""DvsGesture (Amir et al. 2017): AEDAT 3.1 recordings of a DVS128, each with a table of gestures and their times."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from modalities.events.datasets.base import EventSample, as_recorded
from modalities.events.events import Events
from modalities.events.presets import DVSGESTURE_LABELS
from modalities.events.read import open_events
from zoo.errors import ConfigError, DataError
from zoo.files import files_sha256

__all__ = ["VAL_USERS", "DvsGesture"]

VAL_USERS = frozenset({21, 22, 23})
"""Training subjects held out for validation."""

LISTS = {"train": "trials_to_train.txt", "val": "trials_to_train.txt", "test": "trials_to_test.txt"}
_COLUMNS = ["class", "startTime_usec", "endTime_usec"]


@dataclass(frozen=True)
class _Clip:
    file: int
    label: int
    start: int
    end: int


class DvsGesture:
    """One split of DvsGesture; see `modalities.events.datasets.base.ClipSet`.

    A clip has the events from the start of a gesture to before its end; times count from its start. A gesture without
    events is a clip without events. Gestures may overlap and be in any order.

    Args:
        data: Folder with `trials_to_train.txt`, `trials_to_test.txt`, `userXX_LIGHT.aedat` and
            `userXX_LIGHT_labels.csv` (classes from 1, start and end in microseconds).
        split: `"train"` (the listed subjects without 21 to 23), `"val"` (those) or `"test"`.
        errors: `"keep"` takes of a damaged recording what can be decoded.

    Raises:
        ConfigError: If there is no such split.
        DataError: If a listed file is missing, or a table is damaged; names it.
    """

    width = height = 128

    def __init__(self, data: Path, split: str = "train", *, errors: str = "raise") -> None:
        if split not in LISTS:
            raise ConfigError(f"DvsGesture has the splits {', '.join(LISTS)}, not {split!r}")
        self.path, self.name, self._errors = data, data.resolve().name, errors
        self.files = _listed(data / LISTS[split])
        if split != "test":
            self.files = [f for f in self.files if (_user(f) in VAL_USERS) == (split == "val")]
        if not self.files:
            raise DataError(f"{data / LISTS[split]}: lists no recording of the split {split!r}")
        tables = [file.with_name(f"{file.stem}_labels.csv") for file in self.files]
        for file in (*self.files, *tables):
            if not file.is_file():
                raise DataError(f"{file} is missing; {LISTS[split]} lists its recording")
        self._clips = [clip for number, table in enumerate(tables) for clip in _clips(table, number)]
        if not self._clips:
            raise DataError(f"{data}: the tables of the split {split!r} list no gesture")
        self.labels = np.array([clip.label for clip in self._clips], np.int64)
        self.class_names = list(DVSGESTURE_LABELS)
        self.sha256 = files_sha256(data, (*self.files, *tables))

    def __len__(self) -> int:
        return len(self._clips)

    def read(self, index: int) -> Events:
        """The events of one clip; reads the recording up to its end."""
        ((_, events),) = self.read_all([index])
        return events

    def read_all(self, indices: Iterable[int]) -> Iterator[tuple[int, Events]]:
        """Index and events of several clips, recording by recording; holds the clips of one of them in memory."""
        wanted: dict[int, list[int]] = defaultdict(list)
        for index in indices:
            wanted[self._clips[index].file].append(index)
        for number, of_file in wanted.items():
            yield from self._of_file(self.files[number], of_file)

    def sample(self, index: int, events: Events) -> EventSample:
        """Events of a clip with its class."""
        clip = self._clips[index]
        return EventSample(events, clip.label, start_us=0, end_us=clip.end - clip.start)

    def _of_file(self, file: Path, indices: list[int]) -> Iterator[tuple[int, Events]]:
        parts: dict[int, list[Events]] = {index: [] for index in indices}
        last = max(self._clips[index].end for index in indices)
        empty: Events | None = None
        for piece in open_events(file, errors=self._errors, format="aedat3").chunks():
            piece = as_recorded(piece, self.width, self.height, self._errors)
            empty = piece[:0]
            for index in indices:
                clip = self._clips[index]
                start, end = np.searchsorted(piece.t_us, (clip.start, clip.end))
                if end > start:  # A copy, so that the piece need not stay.
                    parts[index].append(piece[np.arange(start, end)])
            if len(piece) and piece.t_us[0] >= last:
                break
        if empty is None:  # Only with errors="keep", which has warned.
            zero = np.zeros(0, np.int32)
            empty = Events(np.zeros(0, np.int64), zero, zero, np.zeros(0, np.bool_), name=str(file), path=file)
            empty = replace(empty, width=self.width, height=self.height)
        for index in indices:
            events = Events.concatenate([empty, *parts[index]])
            yield index, replace(events.sorted(), t_us=events.sorted().t_us - self._clips[index].start)


def _user(file: Path) -> int:
    found = re.match(r"user(\d+)_", file.name)
    if found is None:
        raise DataError(f"{file}: expected a name such as user01_fluorescent.aedat")
    return int(found.group(1))


def _listed(path: Path) -> list[Path]:
    """The recordings that a list names, beside it; names only, so that a list cannot lead elsewhere."""
    try:
        lines = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}); expected a list of recordings, one a line") from error
    for line in lines:
        if not re.fullmatch(r"user\d+_\w+\.aedat", line):
            raise DataError(f"{path}: {line!r:.80} is no recording such as user01_fluorescent.aedat")
    return [path.parent / line for line in lines]


def _clips(table: Path, file: int) -> list[_Clip]:
    clips = []
    try:
        with table.open(newline="", encoding="utf-8") as stream:
            rows = csv.reader(stream)
            if [cell.strip() for cell in next(rows, [])] != _COLUMNS:
                raise DataError(f"{table}: expected the columns {','.join(_COLUMNS)}")
            for number, row in enumerate(rows, 2):
                if not row:
                    continue
                try:
                    label, start, end = (int(cell) for cell in row)
                except ValueError:
                    raise DataError(f"{table} line {number}: expected three whole numbers, found {row!r:.80}") from None
                if not 1 <= label <= len(DVSGESTURE_LABELS) or not 0 <= start < end < 2**62:
                    raise DataError(
                        f"{table} line {number}: class {label}, {start} to {end} us; expected a class from 1 to "
                        f"{len(DVSGESTURE_LABELS)} and a start before the end"
                    )
                clips.append(_Clip(file, label - 1, start, end))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{table}: cannot be read ({error})") from error
    return clips
