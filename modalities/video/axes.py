"""Options of position encodings that act on some of the axes (time, row, column) alone. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zoo.encodings import split_name, split_options

__all__ = ["AXES", "SPACE", "TIME", "for_axes"]

AXES = 3  # time, row, column
TIME, SPACE = (0,), (1, 2)
_BY_AXIS = ("extent", "factor")  # Options with a value for each axis.


def for_axes(encoding: str, options: Mapping[str, Any] | None, axes: Sequence[int]) -> tuple[str, dict[str, Any]]:
    """Name and options of the attention encoding of a specification for some of the axes.

    Args:
        encoding: A name, or `"token+other"`; token encodings act on all axes at once, before the blocks.
        options: Its options, for all axes.
        axes: Which of `AXES`.

    Returns:
        The name, and the options in which lists with a value for each axis have those of `axes` alone.

    Raises:
        ConfigError: If the encoding is unknown.
    """
    chosen = split_options(encoding, options)[1]
    for key in _BY_AXIS:
        value = chosen.get(key)
        if isinstance(value, (list, tuple)) and len(value) == AXES:
            chosen[key] = [value[axis] for axis in axes]
    return split_name(encoding)[1], chosen
