"""N-MNIST (Orchard et al. 2015): a folder for each digit, a file for each recording of 34 x 34 pixels."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

import numpy as np

from modalities.events.datasets.base import EventSample, as_recorded
from modalities.events.events import Events
from modalities.events.read import read_events
from zoo.errors import ConfigError, DataError
from zoo.files import cache_folder, files_sha256

__all__ = ["NMNIST", "unpacked"]

SPLITS = {"train": "Train", "test": "Test"}
MAX_FILE = 2**24
"""Most bytes of one recording taken from an archive; the longest of N-MNIST have about 40 kB."""
MAX_ARCHIVE = 2**32
"""Most bytes taken from an archive; all of N-MNIST has about 1.2 GB."""


class NMNIST:
    """One side of N-MNIST; see `modalities.events.datasets.base.ClipSet`.

    Samples are in the order of digit and file name. An empty recording is a `DataError` where it is read.

    Args:
        data: Folder with `Train/<digit>/*.bin` and `Test/<digit>/*.bin`, or a tar archive of it.
        split: `"train"` or `"test"`.
        errors: `"keep"` takes of a damaged recording what can be decoded.

    Raises:
        ConfigError: If there is no such split.
        DataError: If the layout is another; says what was expected.
    """

    width = height = 34

    def __init__(self, data: Path, split: str = "train", *, errors: str = "raise") -> None:
        if split not in SPLITS:
            raise ConfigError(f"N-MNIST has the splits train and test, not {split!r}")
        self.path, self._errors = unpacked(data), errors
        self.name = data.resolve().name.partition(".")[0]
        root = self.path / SPLITS[split]
        folders = sorted(p for p in root.iterdir() if p.is_dir()) if root.is_dir() else []
        if [p.name for p in folders] != [str(digit) for digit in range(10)]:
            raise DataError(f"{data}: expected {SPLITS[split]}/0 to {SPLITS[split]}/9 in it, with *.bin files")
        self.files = [(file, int(p.name)) for p in folders for file in sorted(p.glob("*.bin"))]
        if not self.files:
            raise DataError(f"{root}: no *.bin files in the folders of the digits")
        self.labels = np.array([label for _, label in self.files], np.int64)
        self.class_names = [str(digit) for digit in range(10)]
        self.sha256 = files_sha256(self.path, (file for file, _ in self.files))

    def __len__(self) -> int:
        return len(self.files)

    def read(self, index: int) -> Events:
        """The events of one recording; times are those of the file, which start near 0."""
        file, _ = self.files[index]
        size = {"width": self.width, "height": self.height}
        events = read_events(file, name=str(file), path=file, errors=self._errors, format="nmnist", **size)
        return as_recorded(events, self.width, self.height, self._errors)

    def read_all(self, indices: Iterable[int]) -> Iterator[tuple[int, Events]]:
        """Index and events of several recordings."""
        return ((index, self.read(index)) for index in indices)

    def sample(self, index: int, events: Events) -> EventSample:
        """Events of a recording with its class."""
        return EventSample(events, int(self.labels[index]), start_us=0)


def unpacked(data: Path) -> Path:
    """The folder itself, or that into which an archive has been unpacked, in the cache.

    Of an archive only `Train/<digit>/*.bin` and `Test/<digit>/*.bin` are taken, and of those only plain files; other
    names, links and paths that lead elsewhere are passed over.

    Raises:
        DataError: If there is no such folder or archive, or it is damaged or too large.
    """
    if data.is_dir():
        return data
    if not data.is_file():
        raise DataError(f"no such data: {data}; expected a folder with Train and Test, or a tar archive of it")
    with data.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    folder = cache_folder("events") / f"{data.name.partition('.')[0]}-{digest}"
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise DataError(f"cannot unpack {data} to {folder.parent} ({error}); set ZOO_CACHE") from error
    try:
        if not _unpack(data, temporary):
            raise DataError(f"{data}: holds no recording Train/<digit>/*.bin or Test/<digit>/*.bin")
        try:
            os.replace(temporary, folder)
        except OSError:  # Another process unpacked it meanwhile.
            if not folder.is_dir():
                raise
    except (OSError, EOFError, tarfile.TarError) as error:
        raise DataError(f"{data}: cannot be unpacked ({error})") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _unpack(data: Path, folder: Path) -> int:
    count = total = 0
    with tarfile.open(data) as archive:
        for member in archive:
            parts = PurePosixPath(member.name).parts[-3:]
            wanted = len(parts) == 3 and parts[0] in SPLITS.values() and parts[1] in set("0123456789")
            if not member.isfile() or not wanted or not parts[2].endswith(".bin"):
                continue
            total += member.size
            if member.size > MAX_FILE or total > MAX_ARCHIVE:
                raise DataError(f"{data}: {member.name} has {member.size} bytes, {total} with those before: too large")
            source = archive.extractfile(member)
            assert source is not None  # A plain file has contents.
            target = folder.joinpath(*parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            with source, target.open("wb") as file:
                shutil.copyfileobj(source, file)
            count += 1
    return count
