"""Prophesee RAW EVT 3.0: 16-bit words that change a state (time, row, base column) and events that use it."""

from __future__ import annotations

from collections.abc import Generator
from typing import BinaryIO

import numpy as np

from modalities.events.formats.base import Block, Options, Recording, Unwrap, records, to_block
from modalities.events.formats.prophesee import read_header
from zoo.errors import DataError

__all__ = ["open_evt3"]

_Y, _X, _BASE, _VECT_12, _VECT_8, _LOW, _HIGH = 0x0, 0x2, 0x3, 0x4, 0x5, 0x6, 0x8
_KNOWN = np.isin(np.arange(16), (0x0, 0x2, 0x3, 0x4, 0x5, 0x6, 0x7, 0x8, 0xA, 0xE, 0xF))
_WIDTHS = np.zeros(16, np.int64)
_WIDTHS[[_VECT_12, _VECT_8]] = 12, 8


def open_evt3(file: BinaryIO, name: str, options: Options) -> Recording:
    """Opens Prophesee RAW EVT 3.0.

    Time is TIME_HIGH (12 bits) and TIME_LOW (12 bits). Only TIME_HIGH says when 4096 us have passed: sensors let
    TIME_LOW step back by some microseconds, which is no wrap. A new TIME_HIGH starts at 0 until its TIME_LOW comes.
    TIME_HIGH wraps after 16.8 s: a step back by more than half of that is taken as a wrap. Events before the first
    TIME_HIGH, row or base column are left out, with a warning.
    """
    header = read_header(file, name)
    start = file.tell()
    notes: list[str] = []

    def blocks() -> Generator[Block, None, None]:
        file.seek(start)
        state, done, lost = _State(), 0, 0
        for words in records(file, np.dtype("<u2"), name, what="word"):
            bad = ~_KNOWN[words >> 12]
            stop = int(bad.argmax()) if bad.any() else len(words)
            block, missing = state.decode(words[:stop])
            lost += missing
            done += stop
            yield block
            if stop < len(words):
                kind = int(words[stop]) >> 12
                raise DataError(
                    f"{name}: word {done} is of type {kind}, which evt3 does not have: damaged, or of another version"
                )
        if lost:
            notes.append(f"{lost} words before the first time, row or base column were left out")

    return Recording("evt3", *header.size(name), blocks, notes)


class _State:
    """What the words of a block change and the next block starts with; -1 is not yet known."""

    def __init__(self) -> None:
        self._unwrap = Unwrap(12)
        self._high = self._low = self._y = self._base = -1
        self._base_p = self._has_base = False

    def decode(self, words: np.ndarray) -> tuple[Block, int]:
        """Decodes one block; also counts the event words that lacked a part of the state."""
        kind, value = words >> 12, (words & 0xFFF).astype(np.int64)
        # TIME_HIGH, and whether the last TIME_LOW was before it changed.
        of_high = np.flatnonzero(kind == _HIGH)
        highs = np.concatenate(([self._high], self._unwrap(value[of_high])))
        high = highs[np.cumsum(kind == _HIGH)]
        changed = of_high[highs[1:] != highs[:-1]]
        low = _latest(kind == _LOW, value, self._low)
        reset = np.zeros(len(words), np.bool_)
        reset[changed] = True
        low = np.where(_last(reset) > _last(kind == _LOW), 0, low)
        y = _latest(kind == _Y, value & 0x7FF, self._y)
        # Vectors start where the last base and the vectors since then lead.
        is_base = kind == _BASE
        advance = np.cumsum(_WIDTHS[kind])
        before = advance - _WIDTHS[kind]
        base = _latest(is_base, (value & 0x7FF) - advance, self._base)
        base_p = _latest(is_base, value >> 11, int(self._base_p)).astype(np.bool_)
        has_base = (_last(is_base) >= 0) | self._has_base
        rows = np.flatnonzero((kind == _X) | (kind == _VECT_12) | (kind == _VECT_8))
        single = kind[rows] == _X
        known = (high[rows] >= 0) & (y[rows] >= 0) & (single | has_base[rows])
        rows, single, lost = rows[known], single[known], int((~known).sum())
        x0 = np.where(single, value[rows] & 0x7FF, base[rows] + before[rows])
        p0 = np.where(single, value[rows] >> 11, base_p[rows]).astype(np.bool_)
        mask = np.where(single, 1, value[rows] & ((1 << np.maximum(_WIDTHS[kind[rows]], 1)) - 1)).astype(np.uint16)
        of, bit = np.nonzero(mask[:, None] >> np.arange(12, dtype=np.uint16) & 1)
        t = (high[rows] << 12) + np.maximum(low[rows], 0)
        block = to_block(t[of], x0[of] + bit, y[rows][of], p0[of])
        if len(words):
            self._high, self._low, self._y = int(high[-1]), int(low[-1]), int(y[-1])
            self._base, self._base_p = int(base[-1] + advance[-1]), bool(base_p[-1])
            self._has_base = bool(has_base[-1])
        return block, lost


def _last(mask: np.ndarray) -> np.ndarray:
    """Index of the last True up to each place, -1 before the first."""
    index = np.where(mask, np.arange(len(mask)), -1)
    return np.maximum.accumulate(index)


def _latest(mask: np.ndarray, values: np.ndarray, start: int) -> np.ndarray:
    """The last of `values` where `mask` is set, up to each place; `start` before the first."""
    return np.concatenate(([start], values[mask]))[np.cumsum(mask)]
