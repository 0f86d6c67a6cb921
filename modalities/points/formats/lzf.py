"""LZF decompression, as LibLZF's format describes it: literal runs and copies from what is already there."""

from __future__ import annotations

__all__ = ["MAX_RATIO", "decompress"]

MAX_RATIO = 132
"""A copy of at most 264 bytes takes at least two; a claim beyond that is damage or a trap (three bytes of it, 88)."""


def decompress(data: bytes, size: int) -> bytes:
    """Decompresses to exactly `size` bytes.

    A control byte below 32 is followed by that many bytes, and one more, taken as they are. Otherwise its upper three
    bits are a length less two (seven: a further byte is added to it), its lower five with the byte behind are a
    distance less one, backwards from the end of what is there.

    Args:
        data: Compressed.
        size: Bytes it should give.

    Raises:
        ValueError: If it is damaged, ends early, or gives another size.
    """
    if size > MAX_RATIO * len(data):
        raise ValueError(f"{len(data)} bytes cannot hold {size}")
    out = bytearray()
    at, end = 0, len(data)
    while at < end:
        control = data[at]
        at += 1
        if control < 32:
            stop = at + control + 1
            if stop > end:
                raise ValueError("ends inside a run")
            out += data[at:stop]
            at = stop
        else:
            length = control >> 5
            if at + (length == 7) >= end:
                raise ValueError("ends inside a copy")
            if length == 7:
                length += data[at]
                at += 1
            length += 2
            distance = (control & 31) << 8 | data[at]
            at += 1
            start = len(out) - distance - 1
            if start < 0:
                raise ValueError("a copy from before the start")
            if distance + 1 >= length:
                out += out[start : start + length]
            else:  # The copy overlaps itself: what it copies repeats.
                out += (bytes(out[start:]) * (length // (distance + 1) + 1))[:length]
        if len(out) > size:
            raise ValueError(f"gives more than {size} bytes")
    if len(out) != size:
        raise ValueError(f"gives {len(out)} bytes, not {size}")
    return bytes(out)
