"""PCD (Point Cloud Library): ascii, binary and binary_compressed, any types, counts and padding."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from modalities.points.formats.base import (
    Decoded,
    Options,
    from_columns,
    remaining,
    split_table,
    take_records,
    whole_number,
)
from modalities.points.formats.lzf import decompress
from zoo.errors import DataError
from zoo.tables import parse_rows

__all__ = ["decode_pcd"]

_KINDS = {"I": "i", "U": "u", "F": "f"}
_SIZES = {"i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (4, 8)}
_MAX_HEADER = 2**16
_MAX_POINT = 2**16  # bytes
_LINES = 2**16


@dataclass
class _Header:
    fields: list[tuple[str, str, int]]  # (name, type, count); padding has the name "_"
    width: int
    height: int
    viewpoint: tuple[float, ...]
    points: int
    data: str

    def dtype(self) -> np.dtype:
        """Of one point, with a name of its own for each padding."""
        parts: list[tuple] = []
        for index, (name, kind, count) in enumerate(self.fields):
            parts.append((f"_{index}" if name == "_" else name, "<" + kind, *(() if count == 1 else ((count,),))))
        return np.dtype(parts)

    def columns(self, table: np.ndarray) -> dict[str, np.ndarray]:
        """Columns without padding."""
        dtype = self.dtype()
        hidden = {key for key, field in zip(dtype.names or (), self.fields, strict=True) if field[0] == "_"}
        return {key: values for key, values in split_table(table).items() if key not in hidden}


def decode_pcd(file: BinaryIO, name: str, options: Options) -> Decoded:
    """Reads a PCD 0.5 to 0.7.

    Fields of several values become (N, count), packed `rgb` and `rgba` become uint8 `rgb` (and `alpha`), padding is
    left out. `info["viewpoint"]` holds tx, ty, tz, qw, qx, qy, qz of the sensor, which is not applied to the points;
    an organised cloud has `info["organised"]`, its (height, width). Invalid points of organised clouds are NaN: see
    `modalities.points.read`.
    """
    header = _read_header(file, name)
    options.check_count(header.points, name)
    dtype = header.dtype()
    if header.data == "ascii":
        table, damage = _ascii(file, header, name)
    elif header.data == "binary":
        table, damage = take_records(file, dtype, header.points, name)
    else:
        table, damage = _compressed(file, header, name), None
    decoded = from_columns(header.columns(table), name, packed=True)
    decoded.damage = damage
    decoded.info["viewpoint"] = header.viewpoint
    if header.height > 1 and damage is None:
        decoded.info["organised"] = (header.height, header.width)
    return decoded


def _read_header(file: BinaryIO, name: str) -> _Header:
    found: dict[str, list[str]] = {}
    size = 0
    while "DATA" not in found:
        raw = file.readline(_MAX_HEADER)
        size += len(raw)
        if size > _MAX_HEADER or not raw.endswith(b"\n"):
            raise DataError(f"{name}: truncated or damaged header: no line DATA within it")
        words = raw.decode("ascii", "replace").split()
        if words and not words[0].startswith("#"):
            found[words[0].upper()] = words[1:]
    if missing := [key for key in ("FIELDS", "SIZE", "TYPE") if not found.get(key)]:
        raise DataError(f"{name}: the header has no {', '.join(missing)}")
    names = found["FIELDS"]
    counts = found.get("COUNT") or ["1"] * len(names)
    if not len(names) == len(found["SIZE"]) == len(found["TYPE"]) == len(counts):
        raise DataError(f"{name}: damaged header: FIELDS, SIZE, TYPE and COUNT differ in length")
    plain = [key for key in names if key != "_"]
    if len(set(plain)) != len(plain):
        raise DataError(f"{name}: damaged header: a field is declared twice: {' '.join(plain)[:80]}")
    fields = []
    for key, size_text, kind, count_text in zip(names, found["SIZE"], found["TYPE"], counts, strict=True):
        letter = _KINDS.get(kind.upper(), "")
        width = whole_number(size_text, f"the size of {key}", name)
        count = whole_number(count_text, f"the count of {key}", name)
        if width not in _SIZES.get(letter, ()) or not 0 < count <= _MAX_POINT:
            raise DataError(f"{name}: damaged header: the field {key} of type {kind}, size {width}, count {count}")
        fields.append((key, f"{letter}{width}", count))
    if sum(int(kind[1:]) * count for _, kind, count in fields) > _MAX_POINT:
        raise DataError(f"{name}: damaged header: a point is longer than {_MAX_POINT} bytes")
    width, height = (whole_number((found.get(key) or [""])[0], key, name) for key in ("WIDTH", "HEIGHT"))
    points = whole_number(found["POINTS"][0], "POINTS", name) if found.get("POINTS") else width * height
    if width < 0 or height < 0 or points != width * height:
        raise DataError(f"{name}: damaged header: WIDTH {width} times HEIGHT {height} is not POINTS {points}")
    data = (found["DATA"] or [""])[0].lower()
    if data not in ("ascii", "binary", "binary_compressed"):
        raise DataError(f"{name}: DATA is {data[:40]!r}; expected ascii, binary or binary_compressed")
    try:
        viewpoint = tuple(float(word) for word in found.get("VIEWPOINT") or ["0", "0", "0", "1", "0", "0", "0"])
    except ValueError:
        viewpoint = ()
    if len(viewpoint) != 7:
        raise DataError(f"{name}: damaged header: VIEWPOINT has seven numbers")
    return _Header(fields, width, height, viewpoint, points, data)


def _ascii(file: BinaryIO, header: _Header, name: str) -> tuple[np.ndarray, str | None]:
    dtype = header.dtype()
    # One column of the text for each value; whole numbers are parsed as such, since float64 cannot hold 64 bits.
    flat = np.dtype([(f"f{i}", kind) for i, kind in enumerate(k for _, k, n in header.fields for _ in range(n))])
    parts, done = [], 0
    damage = None
    while done < header.points and damage is None:
        lines: list[str] = []
        while len(lines) < min(_LINES, header.points - done) and (raw := file.readline(_MAX_HEADER)):
            if raw.strip():
                lines.append(raw.decode("ascii", "replace"))
        if not lines:
            damage = f"{name}: truncated: {done} of the {header.points} points are there"
            break
        rows, problem = parse_rows(lines, flat, list(range(len(flat.names or ()))), None)
        parts.append(rows)
        done += len(rows)
        if problem is not None:
            damage = f"{name}: point {done}: {lines[len(rows)].strip()[:60]!r} is no point ({problem})"
    rows = np.concatenate(parts) if parts else np.empty(0, flat)
    return np.ascontiguousarray(rows).view(dtype), damage


def _compressed(file: BinaryIO, header: _Header, name: str) -> np.ndarray:
    sizes = file.read(8)
    if len(sizes) < 8:
        raise DataError(f"{name}: truncated before the compressed points")
    packed, unpacked = struct.unpack("<II", sizes)
    dtype = header.dtype()
    if unpacked != dtype.itemsize * header.points:
        raise DataError(f"{name}: damaged: {unpacked} bytes for {header.points} points of {dtype.itemsize}")
    if packed > remaining(file):
        raise DataError(f"{name}: truncated: {remaining(file)} of the {packed} bytes of compressed points are there")
    try:
        data = decompress(file.read(packed), unpacked)
    except ValueError as error:
        raise DataError(f"{name}: the compressed points are damaged: {error}") from error
    # Stored field by field: all x, all y, ...
    table = np.empty(header.points, dtype)
    start = 0
    for key in dtype.names or ():
        part = dtype[key]
        stop = start + part.itemsize * header.points
        table[key] = np.frombuffer(data[start:stop], part, header.points) if header.points else 0
        start = stop
    return table
