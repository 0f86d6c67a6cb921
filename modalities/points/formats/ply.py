"""PLY (Stanford polygons): ascii and binary of both byte orders, any types, elements and lists in any order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np

from modalities.points.formats.base import (
    Decoded,
    Options,
    from_columns,
    remaining,
    split_table,
    take_records,
    triangles,
    whole_number,
)
from zoo.errors import DataError
from zoo.tables import parse_rows

__all__ = ["decode_ply"]

_TYPES = {"char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4"}
_TYPES |= {"float": "f4", "double": "f8", "int8": "i1", "uint8": "u1", "int16": "i2", "uint16": "u2", "int32": "i4"}
_TYPES |= {"uint32": "u4", "float32": "f4", "float64": "f8", "int64": "i8", "uint64": "u8"}
_ORDERS = {"ascii": "=", "binary_little_endian": "<", "binary_big_endian": ">"}
_MAX_HEADER = 2**16
_MAX_LINE = 2**16
_LINES = 2**16
_FACE_LISTS = ("vertex_indices", "vertex_index")


@dataclass
class _Element:
    """Element of the header: properties as (name, type) or, of a list, (name, type of the count, type of the items)."""

    name: str
    count: int
    properties: list[tuple[str, ...]] = field(default_factory=list)

    @property
    def has_lists(self) -> bool:
        return any(len(item) == 3 for item in self.properties)

    def dtype(self, order: str) -> np.dtype:
        return np.dtype([(item[0], order + item[1]) for item in self.properties])


def decode_ply(file: BinaryIO, name: str, options: Options) -> Decoded:
    """Reads the vertices with all their scalar properties; list properties of vertices are passed over.

    Faces become triangles (polygons are cut into fans) where the element `face` follows the vertices; an error in them
    leaves the vertices whole. Elements before the vertices are skipped. Comments go to `info["comments"]`.
    """
    form, elements, comments = _header(file, name)
    order = _ORDERS[form]
    table: np.ndarray | None = None
    damage, faces = None, None
    for element in elements:
        if element.name == "vertex" and table is None:
            options.check_count(element.count, name)
            table, damage = _rows(file, element, order, form, name)
            if damage:
                break
        elif table is None:
            _, damage = _polygons(file, element, order, form, name, keep=False)
            if damage:
                raise DataError(damage)
        elif element.name == "face" and faces is None:
            polygons, _ = _polygons(file, element, order, form, name, keep=True)
            faces = triangles(polygons, len(table))
            break
        else:  # What comes between and after is of no use.
            if _polygons(file, element, order, form, name, keep=False)[1]:
                break
    if table is None:
        raise DataError(f"{name}: has no element vertex; its elements are {', '.join(e.name for e in elements)}")
    decoded = from_columns(split_table(table), name)
    decoded.damage, decoded.faces = damage, faces
    if comments:
        decoded.info["comments"] = tuple(comments)
    return decoded


def _header(file: BinaryIO, name: str) -> tuple[str, list[_Element], list[str]]:
    form, elements, comments = "", list[_Element](), list[str]()
    size = 0
    while True:
        raw = file.readline(_MAX_LINE)
        size += len(raw)
        if size > _MAX_HEADER or not raw.endswith(b"\n"):
            raise DataError(f"{name}: truncated or damaged header: no end_header within it")
        line = raw.decode("ascii", "replace").strip()
        words = line.split()
        if not words or words[0] == "ply":
            continue
        if words[0] == "end_header":
            break
        if words[0] in ("comment", "obj_info"):
            comments.append(line.partition(" ")[2])
        elif words[0] == "format" and len(words) == 3 and words[1] in _ORDERS:
            form = words[1]
        elif words[0] == "element" and len(words) == 3:
            count = whole_number(words[2], f"the count of {words[1]}", name)
            if count < 0:
                raise DataError(f"{name}: the header says {count} {words[1]}: damaged")
            elements.append(_Element(words[1], count))
        elif words[0] == "property" and elements and len(words) in (3, 5):
            _add_property(elements[-1], words, name)
        else:
            raise DataError(f"{name}: damaged header: {line[:60]!r}")
    if not form:
        raise DataError(f"{name}: the header has no format; expected one of {', '.join(_ORDERS)}")
    return form, elements, comments


def _add_property(element: _Element, words: list[str], name: str) -> None:
    kinds = words[2:4] if len(words) == 5 and words[1] == "list" else [words[1]]
    if any(kind not in _TYPES for kind in kinds) or (len(words) == 5) != (len(kinds) == 2):
        raise DataError(f"{name}: damaged header: {' '.join(words)[:60]!r} is no property")
    if len(kinds) == 2 and _TYPES[kinds[0]][0] not in "iu":
        raise DataError(f"{name}: the count of the list {words[-1]} must be of a whole type, not {kinds[0]}")
    if any(item[0] == words[-1] for item in element.properties):
        raise DataError(f"{name}: the property {words[-1]} is declared twice")
    element.properties.append((words[-1], *(_TYPES[kind] for kind in kinds)))


def _scalars(element: _Element) -> _Element:
    return _Element(element.name, element.count, [item for item in element.properties if len(item) == 2])


def _rows(file: BinaryIO, element: _Element, order: str, form: str, name: str) -> tuple[np.ndarray, str | None]:
    """Scalar properties of an element as a structured array, and what is wrong after its rows."""
    if form == "ascii":
        return _ascii_rows(file, element, name)
    if not element.has_lists:
        return take_records(file, element.dtype(order), element.count, name)
    dtype = _scalars(element).dtype(order)
    rows = bytearray()
    done = 0
    for done in range(element.count):  # noqa: B007 (used after the loop)
        row = bytearray()
        if (damage := _skip_row(file, element, order, row)) is not None:
            break
        rows += row
    else:
        return np.frombuffer(bytes(rows), dtype) if dtype.itemsize else np.empty(0, dtype), None
    return np.frombuffer(bytes(rows), dtype), f"{name}: {damage}: {done} of the {element.count} points are there"


def _skip_row(file: BinaryIO, element: _Element, order: str, row: bytearray) -> str | None:
    """Reads one binary row with lists, adds its scalars to `row`; says what is wrong."""
    for item in element.properties:
        size = int(item[1][1:])
        data = file.read(size)
        if len(data) < size:
            return "truncated"
        if len(item) == 2:
            row += data
            continue
        count = int(np.frombuffer(data, order + item[1])[0])
        bytes_of_list = count * int(item[2][1:])
        if count < 0 or bytes_of_list > remaining(file):
            return f"truncated or damaged (a list of {count})"
        file.seek(bytes_of_list, 1)
    return None


def _ascii_rows(file: BinaryIO, element: _Element, name: str) -> tuple[np.ndarray, str | None]:
    # Behind a list nothing has a fixed place in the line.
    fixed = []
    for item in element.properties:
        if len(item) == 3:
            break
        fixed.append(item)
    if not {"x", "y", "z"} <= {item[0].lower() for item in fixed}:
        raise DataError(f"{name}: a vertex must have x, y and z, before any list; it has {element.properties}")
    dtype = _Element("", 0, fixed).dtype("=")
    parts, done = [], 0
    damage = None
    while done < element.count and damage is None:
        lines = _lines(file, min(_LINES, element.count - done))
        if not lines:
            damage = f"{name}: truncated: {done} of the {element.count} points are there"
            break
        rows, problem = _parse(lines, dtype)
        parts.append(rows)
        done += len(rows)
        if problem is not None:
            damage = f"{name}: vertex {done}: {lines[len(rows)].strip()[:60]!r} is no point ({problem})"
    return np.concatenate(parts) if parts else np.empty(0, dtype), damage


def _parse(lines: list[str], dtype: np.dtype) -> tuple[np.ndarray, str | None]:
    return parse_rows(lines, dtype, list(range(len(dtype.names or ()))), None)


def _lines(file: BinaryIO, count: int) -> list[str]:
    """The next lines that are not empty, at most so many."""
    lines: list[str] = []
    while len(lines) < count and (line := file.readline(_MAX_LINE)):
        if line.strip():
            lines.append(line.decode("ascii", "replace"))
    return lines


def _polygons(
    file: BinaryIO, element: _Element, order: str, form: str, name: str, *, keep: bool
) -> tuple[list[np.ndarray], str | None]:
    """Reads an element that is not the vertices; its polygons when `keep`, and what is wrong."""
    wanted = next((item for item in element.properties if len(item) == 3 and item[0] in _FACE_LISTS), None)
    keep = keep and wanted is not None
    short = f"{name}: truncated inside the element {element.name}"
    if form == "ascii":
        return _ascii_polygons(file, element, keep, short)
    if not element.has_lists:
        size = element.count * element.dtype(order).itemsize
        if size > remaining(file):
            return [], short
        file.seek(size, 1)
        return [], None
    if keep and (found := _triangles_only(file, element, order)) is not None:
        return [found], None
    found_by_size: dict[int, list[np.ndarray]] = {}
    for _ in range(element.count):
        start = file.tell()
        if _skip_row(file, element, order, bytearray()) is not None:
            return _stacked(found_by_size), short
        if keep:
            end = file.tell()
            file.seek(start)
            corners = _corners(file, element, order)
            found_by_size.setdefault(len(corners), []).append(corners)
            file.seek(end)
    return _stacked(found_by_size), None


def _stacked(found: dict[int, list[np.ndarray]]) -> list[np.ndarray]:
    return [np.stack(corners) for size, corners in sorted(found.items()) if size >= 3]


def _corners(file: BinaryIO, element: _Element, order: str) -> np.ndarray:
    for item in element.properties:
        data = file.read(int(item[1][1:]))
        if len(item) == 2:
            continue
        count = int(np.frombuffer(data, order + item[1])[0])
        values = np.frombuffer(file.read(count * int(item[2][1:])), order + item[2])
        if item[0] in _FACE_LISTS:
            return values.astype(np.int64)
    return np.empty(0, np.int64)


def _triangles_only(file: BinaryIO, element: _Element, order: str) -> np.ndarray | None:
    """All faces at once where each is a triangle and has no other list; else `None`, and the file as it was."""
    lists = [item for item in element.properties if len(item) == 3]
    if len(lists) != 1:
        return None
    parts: list[tuple] = []
    for item in element.properties:
        if len(item) == 2:
            parts.append((item[0], order + item[1]))
        else:
            parts += [("#", order + item[1]), (item[0], order + item[2], (3,))]
    dtype = np.dtype(parts)
    start = file.tell()
    if element.count * dtype.itemsize <= remaining(file):
        table = np.frombuffer(file.read(element.count * dtype.itemsize), dtype)
        if (table["#"] == 3).all():
            return table[lists[0][0]].astype(np.int64)
    file.seek(start)
    return None


def _ascii_polygons(file: BinaryIO, element: _Element, keep: bool, short: str) -> tuple[list[np.ndarray], str | None]:
    found: dict[int, list[np.ndarray]] = {}
    done = 0
    leading = 0
    for item in element.properties:
        if len(item) == 3:
            keep = keep and item[0] in _FACE_LISTS  # Only the first list has a fixed place.
            break
        leading += 1
    while done < element.count:
        lines = _lines(file, min(_LINES, element.count - done))
        if not lines:
            return _stacked(found), short
        done += len(lines)
        for line in lines if keep else []:
            words = line.split()[leading:]
            try:
                corners = np.array([int(word) for word in words[1 : 1 + int(words[0])]], np.int64)
            except (ValueError, IndexError, OverflowError):
                return _stacked(found), f"{short}: {line.strip()[:60]!r} is no face"
            found.setdefault(len(corners), []).append(corners)
    return _stacked(found), None
