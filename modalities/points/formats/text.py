"""Points as text: one line each, with or without a line of names (XYZ, PTS, ASC, TXT, CSV)."""

from __future__ import annotations

import itertools
from typing import BinaryIO

import numpy as np

from modalities.points.formats.base import Decoded, Options, from_columns, whole_number
from zoo.errors import ConfigError, DataError
from zoo.tables import is_number, parse_rows

__all__ = ["decode_text", "split_line"]

_LINES = 2**16
_LONGEST = 4096
_COMMENTS = ("#", "//", "%", ";")
_MAX_COLUMNS = 256


def split_line(line: str) -> tuple[list[str], str | None]:
    """Cells of a line, and what separates them: a comma, a semicolon, a tab, or `None` for blanks."""
    separator = next((mark for mark in (",", ";", "\t") if mark in line), None)
    return [cell.strip() for cell in line.strip().split(separator)], separator


def decode_text(file: BinaryIO, name: str, options: Options) -> Decoded:
    """Reads a line of numbers for each point, separated by commas, semicolons, tabs or blanks.

    Names of the columns are those of `columns`, or of the line before the first numbers where it names x, y and z,
    also as a comment (`//X Y Z R G B`). Without names, three columns are x, y, z; four have an intensity behind; six a
    colour when all are whole numbers of 0..255, or a normal when all have length 1; seven are x, y, z, intensity and
    colour when the last three are whole numbers of 0..255 (PTS); others are called `column_3`, `column_4`, ... A first
    line of one whole number is the count of points (PTS). Lines that start with #, // or % are comments. Numbers are
    read in double precision.
    """
    count, names, line, skipped = _start(file, name)
    if not line:
        return Decoded(np.empty((0, 3)))
    cells, separator = split_line(line)
    if len(cells) > _MAX_COLUMNS:
        raise DataError(f"{name}: {len(cells)} columns; at most {_MAX_COLUMNS} are read")
    if options.columns is not None:
        names = [part.strip() for part in options.columns.split(",")]
        if len(names) != len(cells) or not {"x", "y", "z"} <= {part.lower() for part in names}:
            raise ConfigError(f"columns= must name x, y and z, and all {len(cells)} columns of {name}: {cells[:8]}")
    if len(cells) < 3 or not all(map(is_number, cells)):
        raise DataError(f"{name}: line {skipped + 1}: {line.strip()[:60]!r} is no point: at least x, y and z")
    if count is not None:
        options.check_count(count, name)
    table, damage = _table(file, line, len(cells), separator, skipped, name, options)
    if damage is None and count is not None and count != len(table):
        damage = f"{name}: truncated: {len(table)} of the {count} points are there"
        if len(table) > count:
            raise DataError(f"{name}: the first line says {count} points, {len(table)} are there")
    if names is None or len(names) != len(cells):
        names = _guess(table)
    columns = {key: table[:, index] for index, key in enumerate(names) if key != "_"}
    decoded = from_columns(columns, name)
    for key, values in decoded.fields.items():
        decoded.fields[key] = _narrow(key, values)
    decoded.damage = damage
    return decoded


def _start(file: BinaryIO, name: str) -> tuple[int | None, list[str] | None, str, int]:
    """The count if stated, names if there are, the first line of numbers, and how many lines are before it."""
    count, names, skipped = None, None, 0
    while raw := file.readline(_LONGEST):
        line = raw.decode("utf-8-sig", "replace")
        text = line.strip()
        bare = text.lstrip("#/%; ") if text.startswith(_COMMENTS) else text
        cells = split_line(bare)[0]
        if {"x", "y", "z"} <= {cell.lower().strip('"') for cell in cells}:
            names = [cell.strip('"') for cell in cells]
            if len(set(names)) != len(names):
                raise DataError(f"{name}: a column is named twice: {bare[:80]!r}")
        elif text and not text.startswith(_COMMENTS):
            if len(cells) > 1 or count is not None or not is_number(text):
                return count, names, line, skipped
            count = whole_number(text, "the count of points in the first line", name)
        skipped += 1
    return count, names, "", skipped


def _table(
    file: BinaryIO, first: str, width: int, separator: str | None, skipped: int, name: str, options: Options
) -> tuple[np.ndarray, str | None]:
    parts, done, number = [], 0, skipped
    lines = itertools.chain([first], iter(lambda: file.readline(_LONGEST).decode("utf-8", "replace"), ""))
    while block := list(itertools.islice(lines, _LINES)):
        places = [i for i, line in enumerate(block) if line.strip() and not line.lstrip().startswith(_COMMENTS)]
        rows, problem = parse_rows([block[i] for i in places], np.dtype(np.float64), None, separator)
        if problem is None and len(rows) and rows.shape[1] != width:
            rows, problem = rows[:0], f"{rows.shape[1]} columns, {width} before"
        if len(rows):
            parts.append(rows)
        done += len(rows)
        if done > options.max_points:
            raise DataError(f"{name}: more than {options.max_points} points; pass max_points= for more")
        if problem is not None:
            at = places[len(rows)]
            bad = block[at].strip()[:60]
            return _joined(parts, width), f"{name}: line {number + at + 1}: {bad!r} is no point ({problem})"
        number += len(block)
    return _joined(parts, width), None


def _joined(parts: list[np.ndarray], width: int) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty((0, width))


def _guess(table: np.ndarray) -> list[str]:
    width = table.shape[1]
    names = ["x", "y", "z", *(f"column_{index}" for index in range(3, width))]
    if width == 4:
        names[3] = "intensity"
    elif width in (6, 7):
        last = table[:, -3:]
        if ((last == np.floor(last)) & (last >= 0) & (last <= 255)).all() and last.max(initial=0) > 1:
            names[-3:] = ["red", "green", "blue"]
            if width == 7:
                names[3] = "intensity"
        elif width == 6 and (np.abs(np.linalg.norm(last, axis=1) - 1) < 0.01).all():
            names[-3:] = ["nx", "ny", "nz"]
    return names


def _narrow(key: str, values: np.ndarray) -> np.ndarray:
    """Colours of whole numbers become uint8 or uint16, labels and classes whole numbers."""
    if key not in ("rgb", "label", "classification") or not len(values):
        return values
    if not ((values == np.floor(values)) & (np.abs(values) < 2**31)).all():
        return values
    if key != "rgb":
        return values.astype(np.int64)
    low, high = values.min(), values.max()
    return values if low < 0 or high <= 1 or high >= 2**16 else values.astype(np.uint8 if high < 256 else np.uint16)
