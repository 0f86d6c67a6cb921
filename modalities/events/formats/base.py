"""What all decoders share: blocks of events, the facts of a recording, fixed-size records, counters that wrap."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from zoo.errors import ConfigError, DataError

__all__ = ["BLOCK", "UNITS", "Block", "Options", "Recording", "Unwrap", "header_lines", "records", "to_block", "to_us"]

BLOCK = 2**18
"""Records decoded at a time; with the widest vector words (32 events each) a block stays below 200 MiB."""

MAX_HEADER = 2**20

UNITS = {"ns": (1, 1000), "us": (1, 1), "ms": (1000, 1), "s": (1_000_000, 1)}
"""Unit of time -> microseconds as a fraction."""


class Block(NamedTuple):
    """A few events: t_us int64, x and y int32, p bool, all (N,)."""

    t_us: np.ndarray
    x: np.ndarray
    y: np.ndarray
    p: np.ndarray


@dataclass(frozen=True)
class Options:
    """What the caller says about a file that it may not say itself.

    Attributes:
        width: Columns of the sensor; replaces what the file says.
        height: Rows of the sensor; likewise.
        unit: Unit of the times in tables and HDF5: `"ns"`, `"us"`, `"ms"` or `"s"`.
        columns: Columns of a table without header, for example `"t,x,y,p"`.
        camera: For AEDAT 2.0 without AEChip: `"dvs128"`, `"davis240"` or `"davis346"`.
        stream: For AEDAT 4.0 with several event streams: the number of one.
        endianness: For EVT2.1 without that entry: `"little"` or `"legacy"` (32-bit halves swapped).
    """

    width: int | None = None
    height: int | None = None
    unit: str | None = None
    columns: str | None = None
    camera: str | None = None
    stream: int | None = None
    endianness: str | None = None

    def __post_init__(self) -> None:
        for name in ("width", "height"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ConfigError(f"{name} must be a positive number of pixels, not {value!r}")
        if (self.width is None) != (self.height is None):
            raise ConfigError("pass both width= and height=, or neither")
        if self.unit is not None and self.unit not in UNITS:
            raise ConfigError(f"unit must be one of {', '.join(UNITS)}, not {self.unit!r}")


@dataclass
class Recording:
    """An opened file: what its header says, and its events.

    Attributes:
        format: Name of the format.
        width: Columns of the sensor, if the file says.
        height: Rows of the sensor, if the file says.
        blocks: Yields the events; raises `DataError` where the file is damaged, after what is before.
        notes: What was left out, as sentences for a warning; complete once `blocks` has ended.
        start_us: When the recording began, in its clock, if the format says.
    """

    format: str
    width: int | None
    height: int | None
    blocks: Callable[[], Generator[Block, None, None]]
    notes: list[str] = field(default_factory=list)
    start_us: int | None = None


def to_block(t_us: Any, x: Any, y: Any, p: Any) -> Block:
    """Casts to the types of a block; coordinates beyond int32 become -1 or the largest, both outside every sensor."""
    return Block(np.asarray(t_us).astype(np.int64, copy=False), _int32(x), _int32(y), np.asarray(p).astype(np.bool_))


def _int32(values: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype.kind in "iu" and (array.dtype.itemsize > 4 or array.dtype == np.uint32):
        array = array.clip(-1 if array.dtype.kind == "i" else 0, 2**31 - 1)
    return array.astype(np.int32, copy=False)


def header_lines(file: BinaryIO, mark: bytes, name: str, end: str | None = None) -> list[str]:
    """Reads the lines that start with `mark`, up to and with the line `end`; leaves the file after them.

    Raises:
        DataError: If the header does not end within 1 MiB or within the file.
    """
    lines: list[str] = []
    size = 0
    while True:
        position = file.tell()
        head = file.read(len(mark))
        if head != mark:
            file.seek(position)
            return lines
        line = head + file.readline(2**16)
        size += len(line)
        if not line.endswith(b"\n"):
            raise DataError(f"{name}: truncated inside the header" if len(line) < 2**16 else f"{name}: no text header")
        if size > MAX_HEADER:
            raise DataError(f"{name}: the header is longer than {MAX_HEADER} bytes")
        lines.append(line[len(mark) :].decode("utf-8", "replace").strip())
        if end is not None and lines[-1] == end:
            return lines


def records(file: BinaryIO, dtype: np.dtype, name: str, what: str = "event") -> Iterator[np.ndarray]:
    """Yields blocks of whole records to the end of the file.

    Raises:
        DataError: After the last whole record, if bytes are left over.
    """
    done = 0
    while data := file.read(dtype.itemsize * BLOCK):
        whole, rest = divmod(len(data), dtype.itemsize)
        if whole:
            yield np.frombuffer(data, dtype, whole)
        done += whole
        if rest:
            raise DataError(f"{name}: truncated: it ends with {rest} of the {dtype.itemsize} bytes of {what} {done}")


class Unwrap:
    """Undoes the wrapping of a counter of so many bits, over the blocks of a file.

    A step back by more than half the range is a wrap; smaller ones are left, to be reported. A step forward by more
    than 15/16 of the range is a value from before the last wrap.
    """

    def __init__(self, bits: int) -> None:
        self._span = 1 << bits
        self._last: int | None = None
        self._wraps = 0

    def __call__(self, raw: np.ndarray) -> np.ndarray:
        """Maps (N,) raw values to int64 (N,)."""
        values = raw.astype(np.int64)
        if not len(values):
            return values
        before = values[0] if self._last is None else self._last
        steps = np.diff(values, prepend=before)
        wraps = (steps < -(self._span // 2)).astype(np.int64)
        wraps -= steps > self._span // 16 * 15
        wraps = self._wraps + np.cumsum(wraps)
        self._last, self._wraps = int(values[-1]), int(wraps[-1])
        return values + wraps * self._span


def to_us(t: np.ndarray, unit: str, name: str) -> np.ndarray:
    """Converts times to int64 microseconds; fractions are rounded to the nearest.

    Raises:
        DataError: If a time is NaN, infinite or too large.
    """
    times, over = UNITS[unit]
    if t.dtype.kind == "f":
        with np.errstate(all="ignore"):
            scaled = np.rint(t.astype(np.float64) * times / over)
        if not (np.abs(scaled) < 2.0**62).all():
            raise DataError(f"{name}: a time is NaN, infinite or too large")
        return scaled.astype(np.int64)
    if len(t) and max(-int(t.min()), int(t.max())) >= 2**62 // times:
        raise DataError(f"{name}: a time is too large for microseconds")
    whole = t.astype(np.int64)
    return (whole + over // 2) // over if over > 1 else whole * times
