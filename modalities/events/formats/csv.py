"""Events as text: one line each, with or without a line of names."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Generator
from typing import BinaryIO

import numpy as np

from modalities.events.formats.base import Block, Options, Recording, to_block, to_us
from modalities.events.formats.columns import name_columns, polarity, unit_of
from zoo.errors import DataError
from zoo.tables import is_number, parse_rows

__all__ = ["open_csv"]

_LINES = 2**16
_MAX_LINE = 4096


def open_csv(file: BinaryIO, name: str, options: Options) -> Recording:
    """Opens text with a line of t, x, y, p for each event, separated by commas, semicolons, tabs or blanks.

    The first line may hold the names (`t`, `x`, `y`, `p` and usual variants; a time with its unit as `t_us`); without
    it `columns` must say them, since `x,y,p,t` and `t,x,y,p` are both common. Lines that start with # or % are
    comments; `%geometry:W,H` is the size of the sensor. Whole times are microseconds unless `unit` or the name says
    otherwise, times with a fraction must have a unit. Polarity is 0 and 1, or -1 and 1.
    """
    text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline=None)
    width = height = None
    skipped, first = 0, ""
    while line := text.readline(_MAX_LINE):
        if geometry := re.match(r"%\s*geometry\s*:\s*(\d+)\s*,\s*(\d+)", line):
            width, height = int(geometry[1]), int(geometry[2])
        if line.strip() and line[0] not in "#%":
            first = line.strip()
            break
        skipped += 1
    text.detach()
    separator = next((mark for mark in (",", ";", "\t") if mark in first), None)
    cells = first.split(separator)
    has_names = bool(first) and not all(is_number(cell) for cell in cells)
    columns, stated = name_columns(cells if has_names else (options.columns or "").split(","))
    if first and set(columns) != set("txyp"):
        if has_names:
            raise DataError(f"{name}: the first line {first[:60]!r} is neither numbers nor names of t, x, y and p")
        raise DataError(f'{name}: no line of names; pass columns=, for example columns="t,x,y,p"')
    skipped += has_names

    def blocks() -> Generator[Block, None, None]:
        file.seek(0)
        lines = io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline=None)
        try:
            yield from _blocks(lines)
        finally:
            lines.detach()

    def _blocks(lines: io.TextIOWrapper) -> Generator[Block, None, None]:
        number = skipped
        for _ in range(skipped):
            lines.readline(_MAX_LINE)
        dtype = None
        while part := [line for line in itertools.islice(iter(lambda: lines.readline(_MAX_LINE), ""), _LINES)]:
            kept = [line for line in part if line.strip() and line[0] not in "#%"]
            if dtype is None and kept:
                whole = re.fullmatch(r"\s*[+-]?\d+\s*", kept[0].split(separator)[columns["t"]])
                dtype = np.dtype([("t", np.int64 if whole else np.float64), ("x", "i4"), ("y", "i4"), ("p", "i4")])
            if dtype is None or not kept:
                number += len(part)
                continue
            good, damage = parse_rows(kept, dtype, [columns[key] for key in "txyp"], separator)
            if len(good):
                unit = unit_of(dtype["t"], options.unit, name, stated=stated)
                yield to_block(to_us(good["t"], unit, name), good["x"], good["y"], polarity(good["p"], name))
            if damage is not None:
                # The same text may come twice: the bad line is found among all by counting those kept.
                at = [i for i, line in enumerate(part) if line.strip() and line[0] not in "#%"][len(good)]
                raise DataError(f"{name}: line {number + at + 1}: {part[at].strip()[:60]!r} is no event ({damage})")
            number += len(part)

    return Recording("csv", width, height, blocks)
