"""Differences and distances between pairs of tokens, a block of query rows at a time, for additive encodings.

Legend: B batch, N tokens, H heads, p coordinate axes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zoo.coordinates import Coordinates
from zoo.encodings.base import Frame, algebra_dtype, number_option
from zoo.errors import ConfigError

__all__ = ["PairFrame", "axis_option", "choice_option", "pair_frame"]


@dataclass(frozen=True)
class PairFrame(Frame):
    """What additive encodings take from coordinates.

    Attributes:
        values: (B or 1, N, p) centred coordinates in float32 or float64; zero for tokens without a position.
        positioned: Bool (B or 1, N), which tokens have a position; `None` when all do.
    """

    values: Tensor
    positioned: Tensor | None

    def differences(self, rows: slice) -> Tensor:
        """D = r_i - r_j, query minus key: (B or 1, rows, N, p)."""
        return self.values[:, rows].unsqueeze(2) - self.values.unsqueeze(1)

    def distances(self, rows: slice, order: int = 2) -> Tensor:
        """Distances |r_i - r_j|: (B or 1, rows, N).

        Args:
            rows: Queries.
            order: Of the norm: 2 Euclidean, 1 Manhattan.
        """
        return torch.linalg.vector_norm(self.differences(rows), ord=order, dim=-1)

    def settle(self, bias: Tensor, rows: slice) -> Tensor:
        """Sets the bias (B or 1, H or 1, rows, N) to 0 in rows and columns of tokens without a position."""
        if self.positioned is None:
            return bias
        known = self.positioned[:, rows].unsqueeze(2) & self.positioned.unsqueeze(1)
        return bias.masked_fill(~known.unsqueeze(1), 0.0)


def pair_frame(coords: Coordinates, dtype: torch.dtype) -> PairFrame:
    """The frame of a score encoding: centred coordinates; differences follow block by block.

    Args:
        coords: Coordinates of the tokens.
        dtype: Dtype of the attention kernel; the algebra is float32, or float64 if one of the two is.
    """
    values, positioned = coords.centred(algebra_dtype(coords.values.dtype, dtype)), coords.positioned
    if coords.packed:
        values = values.unsqueeze(0)
        positioned = None if positioned is None else positioned.unsqueeze(0)
    return PairFrame("score", values, positioned)


def choice_option(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Checks an option with named values.

    Raises:
        ConfigError: If the value is none of them.
    """
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        known = ", ".join(repr(choice) for choice in choices)
        raise ConfigError(f"encoding option {name!r} must be one of {known}, got {value!r:.60}")


def axis_option(
    name: str, value: Any, coord_dim: int, *, low: float, high: float, integer: bool = False
) -> tuple[float, ...]:
    """Checks a numeric option that is one number for all axes or a list of one per axis.

    Returns:
        One number per axis.

    Raises:
        ConfigError: If a number is out of [low, high] or their count is not that of the axes.
    """
    numbers = list(value) if isinstance(value, (list, tuple)) else [value] * coord_dim
    if len(numbers) != coord_dim:
        raise ConfigError(
            f"encoding option {name!r} needs one number, or one for each of {coord_dim} axes: {value!r:.60}"
        )
    return tuple(number_option(name, number, low=low, high=high, integer=integer) for number in numbers)
