"""Numbers in lines of text: parsed in blocks, and at a bad line what is before it and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

__all__ = ["is_number", "parse_rows"]


def is_number(cell: str) -> bool:
    """Says whether a cell of a table is a number (also nan and inf)."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def parse_rows(
    lines: list[str], dtype: np.dtype, columns: Sequence[int] | None, separator: str | None
) -> tuple[np.ndarray, str | None]:
    """Parses lines of numbers.

    Args:
        lines: Without comments and empty lines.
        dtype: Structured, a field for each column; or of one number, for rows of equal length.
        columns: Which columns to take; `None` takes all.
        separator: Between them; `None` is blanks and tabs.

    Returns:
        What the lines before the first bad one hold, (n,) structured or (n, columns); and what is wrong with that one,
        or `None`.
    """
    axes: Literal[1, 2] = 1 if dtype.names else 2

    def load(part: list[str]) -> np.ndarray:
        if not part:
            return np.empty(0, dtype) if axes == 1 else np.empty((0, len(columns or ())), dtype)
        return np.loadtxt(part, dtype, delimiter=separator, usecols=columns, comments=None, ndmin=axes)

    try:
        return load(lines), None
    except (ValueError, IndexError, OverflowError) as error:
        problem = str(error)
    low, high = 0, len(lines)  # The first `low` lines are good, the first `high` are not.
    while high - low > 1:
        middle = (low + high) // 2
        try:
            load(lines[:middle])
            low = middle
        except (ValueError, IndexError, OverflowError):
            high = middle
    return load(lines[:low]), problem.partition(";")[0]
