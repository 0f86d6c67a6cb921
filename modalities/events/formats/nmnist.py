"""N-MNIST binary files: 40 bits an event, big endian, no header."""

from __future__ import annotations

from collections.abc import Generator
from typing import BinaryIO

import numpy as np

from modalities.events.formats.base import Block, Options, Recording, Unwrap, records, to_block
from zoo.errors import DataError

__all__ = ["open_nmnist"]

_RECORD = np.dtype((np.uint8, (5,)))
# N-MNIST and DVS128: the two cameras whose recordings are passed around in this format.
_SIZES = (34, 128)


def open_nmnist(file: BinaryIO, name: str, options: Options) -> Recording:
    """Opens the format of N-MNIST: x, y, then polarity (1 bit) and time in us (23 bits).

    The file has no header. Its sensor is 34 x 34 if all events lie in it, else 128 x 128 (DVS128 recordings are
    stored this way too), which takes one pass over the coordinates; larger ones need width and height. Time wraps
    every 8.4 s: a step back by more than half of that is taken as a wrap.
    """
    start = file.tell()
    width, height = options.width, options.height
    if width is None or height is None:
        width = height = _sensor(file, name)

    def blocks() -> Generator[Block, None, None]:
        file.seek(start)
        unwrap = Unwrap(23)
        for raw in records(file, _RECORD, name):
            wide = raw.astype(np.int32)
            t = (wide[:, 2] & 0x7F) << 16 | wide[:, 3] << 8 | wide[:, 4]
            yield to_block(unwrap(t), wide[:, 0], wide[:, 1], raw[:, 2] >> 7)

    # The clock of N-MNIST starts with the recording, a few ms before the first event; that of a DVS128 may not.
    return Recording("nmnist", width, height, blocks, start_us=0 if (width, height) == (34, 34) else None)


def _sensor(file: BinaryIO, name: str) -> int:
    largest = 0
    try:
        for raw in records(file, _RECORD, name):
            largest = max(largest, int(raw[:, :2].max()))
    except DataError:  # A rest at the end is reported when the events are read.
        pass
    for size in _SIZES:
        if largest < size:
            return size
    raise DataError(
        f"{name}: a coordinate of {largest} is outside the 34 x 34 pixels of N-MNIST and 128 x 128 of a DVS128; "
        "pass width= and height= if the camera is larger, or it is no file of this format"
    )
