"""What a LAZ file says of its compressed chunks, checked before the decompressor takes memory for it."""

from __future__ import annotations

import struct
from typing import BinaryIO

from modalities.points.formats.base import bytes_behind
from zoo.errors import DataError

__all__ = ["points_in_whole_chunks"]

# Layers of the items of layered compression by type: point, RGB, RGB and NIR, wave packet; of extra bytes one each.
_LAYERS = {10: 9, 11: 1, 12: 2, 13: 1}
_EXTRA_BYTES = 14
_LAYERED = 3
_FIXED = struct.Struct("<HHBBHIIqqH")
_CHUNK_TABLE = struct.Struct("<II")


def points_in_whole_chunks(file: BinaryIO, start: int, settings: bytes, count: int, size: int, name: str) -> int:
    """Counts the points of the chunks that are there as a whole.

    A chunk of layered compression (point formats 6 to 10) holds its first point, a count, the bytes of each layer and
    the layers; the decompressor takes as much memory as those numbers say. Older chunks have no such numbers.

    Args:
        file: Its position does not change.
        start: Where the points start.
        settings: Data of the variable record of LASzip.
        count: Points that the header states.
        size: Bytes of a point that the header states.
        name: What errors call the file.

    Returns:
        `count`, or fewer where the file ends early.

    Raises:
        DataError: If the settings contradict the header, or the table of chunks claims what the file cannot hold.
    """
    damaged = f"{name}: damaged: the settings of its compression contradict its header"
    if len(settings) < _FIXED.size:
        raise DataError(damaged)
    compressor, *_, items = _FIXED.unpack_from(settings)
    if len(settings) < _FIXED.size + 6 * items:
        raise DataError(damaged)
    kinds = [struct.unpack_from("<HHH", settings, _FIXED.size + 6 * index) for index in range(items)]
    if sum(width for _, width, _ in kinds) != size:
        raise DataError(damaged)
    here = file.tell()
    try:
        end = bytes_behind(file, 0)
        file.seek(start)
        table = int.from_bytes(file.read(8), "little", signed=True)
        if 0 < table <= end - _CHUNK_TABLE.size:
            file.seek(table)
            _, chunks = _CHUNK_TABLE.unpack(file.read(_CHUNK_TABLE.size))
            if chunks * size > end:  # Each starts with a point as it is.
                raise DataError(f"{name}: damaged: {chunks} chunks of points in {end} bytes")
        if compressor != _LAYERED:
            return count
        layers = 0
        for kind, width, _ in kinds:
            layers += width if kind == _EXTRA_BYTES else _LAYERS.get(kind, 0)
        return _walk(file, start + 8, end, layers, count, size)
    finally:
        file.seek(here)


def _walk(file: BinaryIO, position: int, end: int, layers: int, count: int, size: int) -> int:
    done = 0
    head = struct.Struct(f"<{layers + 1}I")
    while done < count:
        file.seek(position + size)
        data = file.read(head.size)
        if len(data) < head.size:
            break
        points, *widths = head.unpack(data)
        position += size + head.size + sum(widths)
        if position > end or points == 0:
            break
        done += points
    return min(done, count)
