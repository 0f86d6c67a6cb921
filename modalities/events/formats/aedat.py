"""AEDAT 2.0 (jAER) and 3.1 (cAER; the original DvsGesture)."""

from __future__ import annotations

import re
import struct
from collections.abc import Generator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from modalities.events.formats.base import Block, Options, Recording, Unwrap, header_lines, records, to_block
from zoo.errors import ConfigError, DataError

__all__ = ["open_aedat2", "open_aedat3"]

_RECORD_2 = np.dtype([("address", ">u4"), ("t", ">u4")])
_RECORD_3 = np.dtype([("data", "<u4"), ("t", "<i4")])
# event type, source, event size, offset of the time, overflows of the time, capacity, number, valid
_PACKET_3 = struct.Struct("<hhiiiiii")
_POLARITY_3 = 1
MAX_PACKET = 2**28
"""Largest packet taken from a file, in bytes, compressed or not."""


@dataclass(frozen=True)
class _Camera:
    width: int
    height: int
    davis: bool


_CAMERAS = {
    "dvs128": _Camera(128, 128, davis=False),
    "davis128": _Camera(128, 128, davis=True),
    "davis240": _Camera(240, 180, davis=True),
    "davis346": _Camera(346, 260, davis=True),
    "davis640": _Camera(640, 480, davis=True),
}


def _camera(text: str) -> _Camera | None:
    """The camera a name stands for, for example `eu.seebetter.ini.chips.davis.DAVIS240C`."""
    found = re.search(r"(?:dvs|davis)\d+", text.lower())
    return _CAMERAS.get(found.group()) if found else None


def open_aedat2(file: BinaryIO, name: str, options: Options) -> Recording:
    """Opens AEDAT 2.0: big-endian 32-bit address and 32-bit time in us.

    How an address holds x, y and polarity depends on the camera: that of the header's AEChip, or `camera`. The three
    are taken as the address has them, as iniVation's description and other readers do: row 0 is the lowest of the
    picture in this format, and a set bit is ON (jAER's scripts read the bit of a DVS128 the other way round and mirror
    columns). Words that are no polarity events (frames, IMU, external) are left out. Times wrap after 71.6 minutes.
    """
    lines = header_lines(file, b"#", name)
    chip = next((line.partition(":")[2].strip() for line in lines if line.lower().startswith("aechip")), "")
    if options.camera is not None and options.camera not in _CAMERAS:
        raise ConfigError(f"camera must be one of {', '.join(_CAMERAS)}, not {options.camera!r}")
    camera = _CAMERAS[options.camera] if options.camera else _camera(chip)
    if camera is None:
        stated = f"the camera {chip!r} is not known" if chip else "the header does not name the camera (AEChip)"
        raise DataError(f"{name}: {stated}; pass camera= one of {', '.join(_CAMERAS)}")
    start = file.tell()

    def blocks() -> Generator[Block, None, None]:
        file.seek(start)
        unwrap = Unwrap(32)
        for raw in records(file, _RECORD_2, name):
            address = raw["address"].astype(np.uint32)
            # Bits 31 (frames and IMU) and 10 (external) of a DAVIS, 15 (external) of a DVS128. The times
            # of all words go into the count of wraps.
            of_events = address & (0x80000400 if camera.davis else 0xFFFF8000) == 0
            t, address = unwrap(raw["t"])[of_events], address[of_events]
            if camera.davis:
                yield to_block(t, address >> 12 & 0x3FF, address >> 22 & 0x1FF, address >> 11 & 1)
            else:
                yield to_block(t, address >> 1 & 0x7F, address >> 8 & 0x7F, address & 1)

    return Recording("aedat2", camera.width, camera.height, blocks)


def open_aedat3(file: BinaryIO, name: str, options: Options) -> Recording:
    """Opens AEDAT 3.x as cAER writes it: packets of a 28-byte header and events of 8 bytes, uncompressed.

    Packets other than polarity events are passed over, and so are events marked invalid. Times are 31 bits and the
    packet's count of overflows.
    """
    lines = header_lines(file, b"#", name, end="!END-HEADER")
    if "!END-HEADER" not in lines[-1:]:
        raise DataError(f"{name}: the header has no end (#!END-HEADER)")
    kind = next((line.partition(":")[2].strip().upper() for line in lines if line.lower().startswith("format")), "RAW")
    if kind not in ("RAW", "PNGFRAMES"):  # The latter compresses frames only.
        raise DataError(f"{name}: events are stored as {kind!r}; RAW is read")
    sources = [camera for line in lines if line.lower().startswith("source") and (camera := _camera(line))]
    start = file.tell()
    width, height = (sources[0].width, sources[0].height) if len(sources) == 1 else (None, None)

    def blocks() -> Generator[Block, None, None]:
        file.seek(start)
        number = 0
        while head := file.read(_PACKET_3.size):
            where = f"{name}: packet {number}"
            if len(head) < _PACKET_3.size:
                raise DataError(f"{where}: truncated: {len(head)} of the {_PACKET_3.size} bytes of its header")
            kind, _, size, _, overflow, capacity, count, _ = _PACKET_3.unpack(head)
            if size < 1 or not 0 <= count <= capacity or overflow < 0 or size * capacity > MAX_PACKET:
                raise DataError(f"{where}: damaged: {count} of {capacity} events of {size} bytes, overflow {overflow}")
            if kind & 0x7FFF == _POLARITY_3 and (kind != _POLARITY_3 or size != _RECORD_3.itemsize):
                raise DataError(f"{where}: polarity events of {size} bytes or compressed; expected 8 bytes, plain")
            data = file.read(size * capacity)
            if kind == _POLARITY_3:
                raw = np.frombuffer(data, _RECORD_3, min(count, len(data) // size))
                valid = raw["data"] & 1 == 1
                word, t = raw["data"][valid], raw["t"][valid].astype(np.int64)
                yield to_block(t + (overflow << 31), word >> 17, word >> 2 & 0x7FFF, word >> 1 & 1)
            if len(data) < size * capacity:
                raise DataError(f"{where}: truncated: {len(data)} of its {size * capacity} bytes")
            number += 1

    return Recording("aedat3", width, height, blocks)
