"""Prophesee files: the common text header, DAT, and RAW in EVT 2.0 and 2.1 (EVT 3.0 has a module of its own)."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import BinaryIO

import numpy as np

from modalities.events.formats.base import Block, Options, Recording, Unwrap, header_lines, records, to_block
from zoo.errors import ConfigError, DataError

__all__ = [
    "DAT_RECORD",
    "Header",
    "dat_block",
    "detect_prophesee",
    "open_dat",
    "open_evt2",
    "open_evt21",
    "read_header",
]

DAT_RECORD = np.dtype([("t", "<u4"), ("data", "<u4")])
_CD_TYPES = (0, 12)  # Event2d and EventCD: the same layout.
_EVT = {"2": "evt2", "2.0": "evt2", "evt2": "evt2", "2.1": "evt21", "evt21": "evt21"}
_EVT |= {"3": "evt3", "3.0": "evt3", "evt3": "evt3"}
# Older headers name the camera and not its size.
_PLUGINS = {"gen31": (640, 480), "gen3": (640, 480), "gen41": (1280, 720), "gen4": (1280, 720)}
_PLUGINS |= {"imx636": (1280, 720), "imx646": (1280, 720), "genx320": (320, 320)}
_EVT2_TYPES = np.isin(np.arange(16), (0x0, 0x1, 0x8, 0xA, 0xE, 0xF))


class Header(dict[str, str]):
    """Entries of a `%` header: first word to the rest, keys in lower case."""

    @property
    def evt(self) -> str | None:
        """`"evt2"`, `"evt21"`, `"evt3"` or `None`; a version that is not read gives its own name."""
        stated = self.get("format", "").partition(";")[0].strip() or self.get("evt", "")
        return _EVT.get(stated.lower(), stated) if stated else None

    @property
    def parameters(self) -> dict[str, str]:
        """What follows the format after semicolons, for example height and width."""
        pairs = (item.partition("=") for item in self.get("format", "").split(";")[1:])
        return {key.strip().lower(): value.strip() for key, _, value in pairs}

    def size(self, name: str) -> tuple[int | None, int | None]:
        """(width, height), or (None, None) where the header does not say.

        Raises:
            DataError: If it states something that is no size.
        """
        stated = self.parameters
        width, height = stated.get("width", self.get("width")), stated.get("height", self.get("height"))
        if width is None and (geometry := self.get("geometry")):
            width, _, height = geometry.lower().partition("x")
        if width is not None and height is not None:
            if not (width.strip().isdigit() and height.strip().isdigit() and int(width) and int(height)):
                raise DataError(f"{name}: the header states a size of {width!r} x {height!r}")
            return int(width), int(height)
        plugin = self.get("plugin_name", "").lower()
        return next((size for key, size in _PLUGINS.items() if re.search(rf"{key}(?![0-9])", plugin)), (None, None))


def read_header(file: BinaryIO, name: str) -> Header:
    """Reads the header; leaves the file at the first byte of data.

    Raises:
        DataError: If there is none or it is cut.
    """
    header = Header()
    for line in header_lines(file, b"%", name, end="end"):
        key, _, value = line.partition(" ")
        header[key.lower()] = value.strip()
    if not header:
        raise DataError(f"{name}: no header of lines that start with %")
    return header


def detect_prophesee(head: bytes, suffix: str, name: str) -> str:
    """Tells DAT from the RAW versions by the header."""
    import io

    header = read_header(io.BytesIO(head), name)
    if header.evt in ("evt2", "evt21", "evt3"):
        return str(header.evt)
    if header.evt is not None:
        raise DataError(f"{name}: the header says {header.evt!r}; EVT 2.0, 2.1 and 3.0 are read")
    if suffix == ".dat" or header.get("data", "").lower().startswith("file") or "version" in header:
        return "dat"
    raise DataError(f'{name}: the header does not say which EVT version follows; pass format="evt2", "evt21" or "evt3"')


def open_dat(file: BinaryIO, name: str, options: Options) -> Recording:
    """Opens Prophesee DAT version 2: two bytes for type and size of an event, then 32-bit times in us and data.

    Times wrap after 71.6 minutes: a step back by more than half of that is taken as a wrap. The size of the sensor is
    that of the header, if it has one (that of N-Cars has not).
    """
    header = read_header(file, name)
    version = header.get("version", "2")
    if version != "2":
        raise DataError(f"{name}: DAT version {version!r}; version 2 is read")
    kind = file.read(2)
    if len(kind) < 2:
        raise DataError(f"{name}: truncated before the type of the events")
    if kind[0] not in _CD_TYPES or kind[1] != DAT_RECORD.itemsize:
        raise DataError(
            f"{name}: events of type {kind[0]} and {kind[1]} bytes; expected type 0 or 12 (polarity events), 8 bytes"
        )
    start = file.tell()

    def blocks() -> Generator[Block, None, None]:
        file.seek(start)
        unwrap = Unwrap(32)
        for raw in records(file, DAT_RECORD, name):
            yield dat_block(raw, unwrap(raw["t"]))

    return Recording("dat", *header.size(name), blocks)


def dat_block(raw: np.ndarray, t_us: np.ndarray) -> Block:
    """Events from the records of a DAT file and their times."""
    data = raw["data"]
    return to_block(t_us, data & 0x3FFF, data >> 14 & 0x3FFF, (data >> 28) > 0)


def open_evt2(file: BinaryIO, name: str, options: Options) -> Recording:
    """Opens Prophesee RAW EVT 2.0: 32-bit words, time in a high word (28 bits) and 6 bits of each event.

    Events before the first time word have no time and are left out, with a warning. The time wraps after 4.8 hours.
    """

    def split(words: np.ndarray) -> tuple[np.ndarray, np.ndarray, None]:
        return words >> 28, words, None

    return _open_evt(file, name, "evt2", np.dtype("<u4"), split)


def open_evt21(file: BinaryIO, name: str, options: Options) -> Recording:
    """Opens Prophesee RAW EVT 2.1: 64-bit words of EVT 2.0 fields and a mask of up to 32 pixels from x on.

    The header's `endianness` says which half comes first (`legacy`: the mask is the upper half); without it both are
    tried on the first words, and an error asks for `endianness` if that does not decide it.
    """
    position = file.tell()
    stated = options.endianness or read_header(file, name).parameters.get("endianness")
    if stated not in (None, "little", "legacy"):
        kind: type[Exception] = ConfigError if options.endianness else DataError
        raise kind(f'{name}: endianness {stated!r}; "little" and "legacy" are read')
    file.seek(position)
    if stated is None:
        read_header(file, name)
        stated = _layout(np.frombuffer(data := file.read(2**16), "<u8", len(data) // 8), name)
        file.seek(position)
    legacy = stated == "legacy"

    def split(words: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        low, high = (words & 0xFFFFFFFF).astype(np.uint32), (words >> 32).astype(np.uint32)
        fields, mask = (low, high) if legacy else (high, low)
        return fields >> 28, fields, mask

    return _open_evt(file, name, "evt21", np.dtype("<u8"), split)


def _layout(words: np.ndarray, name: str) -> str:
    """Which half of the 64-bit words holds the fields: that where all types are known and time goes on."""
    fits = []
    for layout, fields in (("little", words >> 32), ("legacy", words & 0xFFFFFFFF)):
        kinds, times = fields >> 28, (fields & 0xFFFFFFF)[fields >> 28 == 8].astype(np.int64)
        if _EVT2_TYPES[kinds.astype(np.intp)].all() and len(times) and (np.diff(times) >= 0).all():
            fits.append(layout)
    if len(words) and len(fits) != 1:
        raise DataError(
            f'{name}: the header does not say how the words are laid out; pass endianness="little" or "legacy"'
        )
    return fits[0] if fits else "little"


def _open_evt(file: BinaryIO, name: str, kind: str, word: np.dtype, split: Callable) -> Recording:
    header = read_header(file, name)
    start = file.tell()
    notes: list[str] = []

    def blocks() -> Generator[Block, None, None]:
        file.seek(start)
        unwrap, high, done, lost = Unwrap(28), -1, 0, 0
        for words in records(file, word, name, what="word"):
            types, fields, mask = split(words)
            bad = ~_EVT2_TYPES[types.astype(np.intp)]
            stop = int(bad.argmax()) if bad.any() else len(words)
            damage = f"{name}: word {done + stop} is of type {int(types[stop])}" if stop < len(words) else None
            types, fields, mask = types[:stop], fields[:stop], None if mask is None else mask[:stop]
            done += stop
            is_time = types == 8
            highs = np.concatenate(([high], unwrap(fields[is_time] & 0xFFFFFFF)))
            rows = np.flatnonzero(types <= 1)
            highs_of = highs[np.cumsum(is_time)[rows]]
            high = int(highs[-1])
            known = highs_of >= 0
            rows, highs_of = rows[known], highs_of[known]
            lost += int((~known).sum())
            data = fields[rows]
            t = highs_of << 6 | (data >> 22 & 0x3F).astype(np.int64)
            x, y, p = data >> 11 & 0x7FF, data & 0x7FF, types[rows] == 1
            if mask is not None:
                of, bit = np.nonzero(mask[rows, None] >> np.arange(32, dtype=np.uint32) & 1)
                t, x, y, p = t[of], x[of] + bit.astype(np.uint32), y[of], p[of]
            yield to_block(t, x, y, p)
            if damage:
                raise DataError(f"{damage}, which {kind} does not have: damaged, or of another version")
        if lost:
            notes.append(f"{lost} words before the first time word were left out")

    return Recording(kind, *header.size(name), blocks, notes)
