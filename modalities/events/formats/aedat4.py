"""AEDAT 4.0 (DV): a text line, a header and packets in FlatBuffers, compressed with LZ4 or Zstandard or not at all.

The few tables needed are read from their layout directly, so that damage has a place and decompression a bound.
"""

from __future__ import annotations

import struct
import xml.etree.ElementTree as ElementTree
from collections.abc import Generator
from typing import BinaryIO

import numpy as np

from modalities.events.formats.aedat import MAX_PACKET
from modalities.events.formats.base import Block, Options, Recording, to_block
from zoo.errors import DataError, require

__all__ = ["open_aedat4"]

_EVENT = np.dtype(
    {"names": ["t", "x", "y", "p"], "formats": ["<i8", "<i2", "<i2", "u1"], "offsets": [0, 8, 10, 12], "itemsize": 16}
)
_MAX_HEADER = 2**24
_COMPRESSION = ("none", "lz4", "lz4", "zstd", "zstd")


def open_aedat4(file: BinaryIO, name: str, options: Options) -> Recording:
    """Opens AEDAT 4.0; frames, IMU and triggers are passed over. Times are microseconds since 1970.

    A file that was not closed properly has no table of packets at its end: its packets are read to the end of the
    file. With several event streams `stream` must say which.
    """
    version = file.readline(64)
    prefix = file.read(4)
    size = int.from_bytes(prefix, "little")
    if not version.endswith(b"\n") or len(prefix) < 4 or size > _MAX_HEADER:
        raise DataError(f"{name}: truncated or damaged header")
    header = file.read(size)
    if len(header) < size:
        raise DataError(f"{name}: truncated inside the header: {len(header)} of {size} bytes")
    try:
        compression, table, text = _read_header(header)
        streams = _event_streams(text)
    except (struct.error, ElementTree.ParseError, ValueError) as error:
        raise DataError(f"{name}: damaged header ({error})") from error
    if not 0 <= compression < len(_COMPRESSION):
        raise DataError(f"{name}: compression {compression} is not known")
    if options.stream is None and len(streams) > 1:
        raise DataError(f"{name}: {len(streams)} event streams; pass stream= one of {', '.join(map(str, streams))}")
    stream = next(iter(streams), None) if options.stream is None else options.stream
    if stream is None or stream not in streams:
        raise DataError(f"{name}: no event stream{'' if stream is None else f' {stream}'}; it has {list(streams)}")
    start, method = file.tell(), _COMPRESSION[compression]

    def blocks() -> Generator[Block, None, None]:
        file.seek(start)
        number = 0
        while table < 0 or file.tell() < table:
            where = f"{name}: packet {number}"
            head = file.read(8)
            if not head and table < 0:
                return
            if len(head) < 8:
                raise DataError(f"{where}: truncated: {len(head)} of the 8 bytes of its header")
            of, length = struct.unpack("<ii", head)
            if not 0 < length <= MAX_PACKET:
                raise DataError(f"{where}: damaged: a length of {length} bytes")
            data = file.read(length)
            if len(data) < length:
                raise DataError(f"{where}: truncated: {len(data)} of its {length} bytes")
            if of == stream:
                yield _events(_decompress(data, method, where), where)
            number += 1

    return Recording("aedat4", *streams[stream], blocks)


def _read_header(data: bytes) -> tuple[int, int, str]:
    """The IOHeader: compression, position of the table of packets (-1: none), description in XML."""
    if data[4:8] != b"IOHE":
        raise ValueError("it is no IOHeader")
    root = struct.unpack_from("<I", data)[0]
    compression, table, text = (_field(data, root, number) for number in range(3))
    return (
        struct.unpack_from("<i", data, compression)[0] if compression else 0,
        struct.unpack_from("<q", data, table)[0] if table else -1,
        _vector(data, text, 1).decode("utf-8", "replace") if text else "",
    )


def _event_streams(text: str) -> dict[int, tuple[int | None, int | None]]:
    """Number of each event stream -> (width, height)."""
    streams: dict[int, tuple[int | None, int | None]] = {}
    for node in ElementTree.fromstring(text).iter("node"):
        label = node.get("name", "")
        own = {item.get("key"): (item.text or "").strip() for item in node.findall("attr")}
        if label.isdigit() and own.get("typeIdentifier") == "EVTS":
            inner = {item.get("key"): (item.text or "").strip() for item in node.findall("node/attr")}
            size = [int(inner[key]) if inner.get(key, "").isdigit() else None for key in ("sizeX", "sizeY")]
            streams[int(label)] = (size[0], size[1]) if None not in size else (None, None)
    return streams


def _field(data: bytes, table: int, number: int) -> int:
    """Position of a field of a FlatBuffers table, 0 if it is absent."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    if vtable < 0:
        raise ValueError("a table outside the buffer")
    slot = 4 + 2 * number
    if slot + 2 > struct.unpack_from("<H", data, vtable)[0]:
        return 0
    offset = struct.unpack_from("<H", data, vtable + slot)[0]
    return table + offset if offset else 0


def _vector(data: bytes, position: int, item: int) -> bytes:
    """Bytes of the vector that a field points to."""
    start = position + struct.unpack_from("<I", data, position)[0]
    length = struct.unpack_from("<I", data, start)[0] * item
    if start + 4 + length > len(data):
        raise ValueError("a vector longer than the buffer")
    return data[start + 4 : start + 4 + length]


def _events(data: bytes, where: str) -> Block:
    """Decodes one size-prefixed EventPacket."""
    try:
        if data[8:12] != b"EVTS":
            raise ValueError("it holds no events")
        elements = _field(data, 4 + struct.unpack_from("<I", data, 4)[0], 0)
        raw = np.frombuffer(_vector(data, elements, _EVENT.itemsize) if elements else b"", _EVENT)
    except (struct.error, ValueError) as error:
        raise DataError(f"{where}: damaged ({error})") from error
    return to_block(raw["t"], raw["x"], raw["y"], raw["p"])


def _decompress(data: bytes, method: str, where: str) -> bytes:
    if method == "none":
        return data
    try:
        if method == "lz4":
            lz4 = require("lz4.frame", extra="events").LZ4FrameDecompressor()
            plain = lz4.decompress(data, max_length=MAX_PACKET)
            complete = lz4.eof
        else:
            zstd = require("zstandard", extra="events").ZstdDecompressor().decompressobj(read_across_frames=False)
            size = require("zstandard", extra="events").get_frame_parameters(data).content_size
            if size > MAX_PACKET and size not in (2**64 - 1, 2**64 - 2):  # Unknown, or an error.
                raise DataError(f"{where}: it unpacks to {size} bytes, the limit is {MAX_PACKET}")
            plain = zstd.decompress(data)
            complete = zstd.eof
    except (RuntimeError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{where}: damaged ({error})") from error
    except Exception as error:
        if type(error).__name__ != "ZstdError":
            raise
        raise DataError(f"{where}: damaged ({error})") from error
    if not complete:
        raise DataError(f"{where}: damaged, or more than {MAX_PACKET} bytes when unpacked")
    return bytes(plain)
