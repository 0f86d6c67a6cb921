"""OFF (Geomview meshes, ModelNet): vertices and faces as text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from modalities.points.formats.base import Decoded, Options, remaining, triangles, whole_number
from zoo.errors import DataError
from zoo.tables import parse_rows

__all__ = ["decode_off"]

_LINE = 2**16
_LINES = 2**16


def decode_off(file: BinaryIO, name: str, options: Options) -> Decoded:
    """Reads OFF, COFF (colours), NOFF (normals) and CNOFF; polygons become fans of triangles.

    Files of ModelNet whose counts stand in the first line without a space (`OFF3514 3546 0`) are read. Comments start
    with #. The vertices are the points; `Points.sample` draws points from the surface.
    """
    lines = _lines(file)
    first = next(lines, "")
    match = re.match(r"(ST)?(C)?(N)?OFF(.*)", first, re.DOTALL)
    if match is None:
        raise DataError(f"{name}: the first line {first[:40]!r} is not OFF, COFF or NOFF")
    _, coloured, with_normals, rest = match.groups()
    if rest.strip().upper().startswith("BINARY"):
        raise DataError(f"{name}: binary OFF is not read; convert it to text")
    counts = (rest if rest.strip() else next(lines, "")).split()
    if len(counts) < 2:
        raise DataError(f"{name}: truncated or damaged: the line of counts is {' '.join(counts)[:40]!r}")
    vertices = options.check_count(whole_number(counts[0], "the count of vertices", name), name)
    faces = whole_number(counts[1], "the count of faces", name)
    if faces < 0:
        raise DataError(f"{name}: the header says {faces} faces: damaged")
    if vertices * 6 > remaining(file) + _LINE:  # "0 0 0\n" is the shortest.
        raise DataError(f"{name}: truncated: {remaining(file)} bytes cannot hold the {vertices} vertices it says")
    width = 6 if with_normals else 3
    parts: list[np.ndarray] = []
    damage = None
    done = 0
    while done < vertices and damage is None:
        block = [line for _, line in zip(range(min(_LINES, vertices - done)), lines, strict=False)]
        if not block:
            damage = f"{name}: truncated: {done} of the {vertices} vertices are there"
            break
        columns = None if coloured else list(range(width))
        rows, problem = parse_rows(block, np.dtype(np.float64), columns, None)
        if len(rows) and (rows.shape[1] < width or (parts and rows.shape[1] != parts[0].shape[1])):
            raise DataError(f"{name}: the vertices have {rows.shape[1]} numbers; expected {width} and a colour")
        if len(rows):
            parts.append(rows)
        done += len(rows)
        if problem is not None:
            damage = f"{name}: vertex {done}: {block[len(rows)].strip()[:60]!r} is no vertex ({problem})"
    table = np.concatenate(parts) if parts else np.empty((0, width))
    decoded = Decoded(np.ascontiguousarray(table[:, :3]), damage=damage)
    if with_normals:
        decoded.fields["normal"] = np.ascontiguousarray(table[:, 3:6])
    if coloured and table.shape[1] >= width + 3:
        colour = table[:, width : width + 3]
        whole = bool(
            ((colour == np.floor(colour)) & (colour >= 0) & (colour <= 255)).all() and colour.max(initial=0) > 1
        )
        decoded.fields["rgb"] = colour.astype(np.uint8) if whole else np.ascontiguousarray(colour)
    if damage is None:
        decoded.faces, decoded.damage = _faces(lines, faces, vertices, name)
    return decoded


def _faces(lines: Iterator[str], count: int, vertices: int, name: str) -> tuple[np.ndarray | None, str | None]:
    found: dict[int, list[list[int]]] = {}
    damage = None
    for done in range(count):
        line = next(lines, None)
        if line is None:
            damage = f"{name}: truncated: {done} of the {count} faces are there"
            break
        words = line.split()
        try:
            size = int(words[0])
            corners = [int(word) for word in words[1 : 1 + size]]
        except (ValueError, IndexError):
            size, corners = -1, []
        if size < 1 or len(corners) != size or not all(0 <= corner < vertices for corner in corners):
            damage = f"{name}: face {done}: {line.strip()[:60]!r} is no face of the {vertices} vertices"
            break
        if size >= 3:
            found.setdefault(size, []).append(corners)
    return triangles([np.array(rows, np.int64) for _, rows in sorted(found.items())], vertices), damage


def _lines(file: BinaryIO) -> Iterator[str]:
    while raw := file.readline(_LINE):
        line = raw.decode("ascii", "replace").partition("#")[0].strip()
        if line:
            yield line
