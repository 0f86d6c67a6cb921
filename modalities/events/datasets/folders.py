"""Recordings of one's own: a folder for each class."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from modalities.events.datasets.base import EventSample, as_recorded
from modalities.events.events import Events
from modalities.events.read import open_events, read_events
from zoo.class_folders import labelled_files
from zoo.errors import DataError
from zoo.files import files_sha256

__all__ = ["SUFFIXES", "EventFolders"]

SUFFIXES = (".aedat", ".aedat4", ".bin", ".csv", ".dat", ".h5", ".hdf5", ".npy", ".npz", ".raw")
_NMNIST = (34, 34)


class EventFolders:
    """One split of `<split>/<class>/<recordings>`, or all of `<class>/<recordings>` as the split `train`.

    All recordings are of one sensor: that which the first one states. See `modalities.events.datasets.base.ClipSet`.

    Args:
        data: The folder.
        split: `"train"`, `"val"` or `"test"`.
        errors: `"keep"` takes of a damaged recording what can be decoded.

    Raises:
        DataError: If there are no recordings, or the first does not state its sensor.
    """

    def __init__(self, data: Path, split: str = "train", *, errors: str = "raise") -> None:
        self.path, self.name, self._errors = data, data.resolve().name, errors
        self.files, self.class_names = labelled_files(data, split, SUFFIXES)
        self.labels = np.array([label for _, label in self.files], np.int64)
        self.width, self.height = sensor_of(self.files[0][0])
        self.sha256 = files_sha256(self.path, (file for file, _ in self.files))

    def __len__(self) -> int:
        return len(self.files)

    def read(self, index: int) -> Events:
        """The events of one recording."""
        file, _ = self.files[index]
        events = read_events(file, name=str(file), path=file, errors=self._errors)
        return as_recorded(events, self.width, self.height, self._errors)

    def read_all(self, indices: Iterable[int]) -> Iterator[tuple[int, Events]]:
        """Index and events of several recordings."""
        return ((index, self.read(index)) for index in indices)

    def sample(self, index: int, events: Events) -> EventSample:
        """Events of a recording with its class."""
        return EventSample(events, int(self.labels[index]))


def sensor_of(file: Path) -> tuple[int, int]:
    """(width, height) of the sensor that a recording states; that of N-MNIST for its files.

    Raises:
        DataError: If it states none.
    """
    reader = open_events(file)
    if reader.width is not None and reader.height is not None:
        return reader.width, reader.height
    if reader.format == "nmnist":
        return _NMNIST
    raise DataError(f"{file}: does not state the size of its sensor, so that it is not known for the data set")
