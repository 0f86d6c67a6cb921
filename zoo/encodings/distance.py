"""Differences and distances between pairs of tokens, a block of query rows at a time, for additive encodings.

Legend: B batch, N tokens, H heads, p coordinate axes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from zoo.coordinates import Coordinates
from zoo.encodings.base import Frame, algebra_dtype, number_option
from zoo.encodings.terms import Distances
from zoo.errors import ConfigError

__all__ = [
    "DifferenceScore",
    "Lattice",
    "Modification",
    "PairFrame",
    "PairIndex",
    "axis_option",
    "choice_option",
    "distance_terms",
    "pair_frame",
]

# (score, b, h, i, j) -> score with the bias of query i on key j added, for index tensors: see `zoo.kernels.flex`.
Modification = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Lattice:
    """A plane of tokens, row by row: number `prefix + y columns + x` lies at `start + y down + x across`.

    Attributes:
        prefix: Tokens without a position in front.
        rows: h.
        columns: w.
        across: (p,) from a token to the next of its row.
        down: (p,) from a token to that of the next row.
    """

    prefix: int
    rows: int
    columns: int
    across: Tensor
    down: Tensor

    @classmethod
    def of(cls, values: Tensor, positioned: Tensor | None) -> Lattice | None:
        """The plane of coordinates (N, p), or `None` if they make none; it looks at them, which synchronises a GPU."""
        prefix = 0
        if positioned is not None:
            prefix = int((~positioned).sum())
            if bool(positioned[:prefix].any()):
                return None
        values = values[prefix:]
        count = len(values)
        if count < 4:
            return None
        steps, rounding = values.diff(dim=0), 4 * torch.finfo(values.dtype).eps * values.abs().max()
        turns = ((steps - steps[0]).abs() > 2 * rounding).any(dim=1).nonzero()
        columns = int(turns[0]) + 1 if len(turns) else count
        if columns == count:  # Tokens in a line can be cut into rows of any length.
            columns = next(size for size in range(math.isqrt(count), 0, -1) if count % size == 0)
        if columns == 1 or count % columns:
            return None
        rows = count // columns
        across = (values[columns - 1] - values[0]) / (columns - 1)
        down = (values[-columns] - values[0]) / (rows - 1)
        lattice = cls(prefix, rows, columns, across, down)
        expected = values[0] + lattice._displacements(range(rows), range(columns))
        return lattice if bool(((values - expected).abs() <= rounding).all()) else None

    def displacements(self) -> Tensor:
        """A query at 0, then keys at all displacements, from the most negative: (1, 1 + (2h - 1)(2w - 1), p)."""
        keys = self._displacements(range(1 - self.rows, self.rows), range(1 - self.columns, self.columns))
        return torch.cat([torch.zeros_like(keys[:1]), keys]).unsqueeze(0)

    def _displacements(self, rows: range, columns: range) -> Tensor:
        y, x = (torch.arange(r.start, r.stop, dtype=self.across.dtype).unsqueeze(1) for r in (rows, columns))
        return ((y * self.down).unsqueeze(1) + x * self.across).flatten(0, 1)


@dataclass(frozen=True)
class PairFrame(Frame):
    """What additive encodings take from coordinates.

    Attributes:
        values: (B or 1, N, p) centred coordinates in float32 or float64; zero for tokens without a position.
        positioned: Bool (B or 1, N), which tokens have a position; `None` when all do.
    """

    values: Tensor
    positioned: Tensor | None

    @property
    def axes(self) -> int:
        """Coordinate axes p."""
        return self.values.shape[-1]

    @cached_property
    def lattice(self) -> Lattice | None:
        """The plane that the tokens of all samples fill, if they do; found once for all layers."""
        if self.values.shape[0] != 1 or (self.positioned is not None and self.positioned.shape[0] != 1):
            return None
        return Lattice.of(self.values[0], None if self.positioned is None else self.positioned[0])

    def displaced(self) -> PairFrame:
        """A query at 0 and keys at all displacements of the lattice, which must be there."""
        assert self.lattice is not None
        return replace(self, values=self.lattice.displacements(), positioned=None)

    def among(self, tokens: slice) -> PairFrame:
        """The frame of some of the tokens."""
        known = None if self.positioned is None else self.positioned[:, tokens]
        return replace(self, values=self.values[:, tokens], positioned=known)

    def offsets(self, rows: slice) -> list[Tensor]:
        """r_i - r_j along each axis, query minus key: p tensors (B or 1, rows, N)."""
        return [column[:, rows].unsqueeze(2) - column.unsqueeze(1) for column in self.values.unbind(dim=-1)]

    def differences(self, rows: slice) -> Tensor:
        """D = r_i - r_j, query minus key: (B or 1, rows, N, p)."""
        return self.values[:, rows].unsqueeze(2) - self.values.unsqueeze(1)

    def distances(self, rows: slice, order: int = 2) -> Tensor:
        """Distances |r_i - r_j|: (B or 1, rows, N).

        Args:
            rows: Queries.
            order: Of the norm: 2 Euclidean, 1 Manhattan.
        """
        return _norm(self.offsets(rows), order)

    def settled_distances(self, rows: slice, order: int = 2) -> Tensor:
        """As `distances`, (B or 1, 1, rows, N), and 0 where query or key has no position."""
        return self.settle(self.distances(rows, order).unsqueeze(1), rows)

    def settle(self, bias: Tensor, rows: slice) -> Tensor:
        """Sets the bias (B or 1, H or 1, rows, N) to 0 in rows and columns of tokens without a position."""
        if self.positioned is None:
            return bias
        known = self.positioned[:, rows].unsqueeze(2) & self.positioned.unsqueeze(1)
        return bias.masked_fill(~known.unsqueeze(1), 0.0)


class DifferenceScore(ABC):
    """A `zoo.encodings.base.Score` that depends on coordinates through differences alone; a dataclass with a frame."""

    frame: PairFrame

    @abstractmethod
    def bias(self, rows: slice) -> Tensor:
        """See `zoo.encodings.base.Score`."""

    def among(self, tokens: slice) -> DifferenceScore:
        """See `zoo.encodings.base.DivisibleScore`."""
        return replace(self, frame=self.frame.among(tokens))  # type: ignore[type-var]

    def lattice_table(self) -> tuple[Lattice, Tensor] | None:
        """For tokens that fill a plane, it and the bias (H, 2h - 1, 2w - 1) at all displacements of key from query."""
        lattice = self.frame.lattice
        if lattice is None:
            return None
        bias = replace(self, frame=self.frame.displaced()).bias(slice(0, 1))  # type: ignore[type-var]
        return lattice, bias[0, :, 0, 1:].unflatten(1, (2 * lattice.rows - 1, 2 * lattice.columns - 1))


@dataclass(frozen=True)
class PairIndex:
    """Pairs of tokens addressed by index tensors, one number per index: what `zoo.kernels.flex` asks for.

    Attributes:
        columns: p tensors (N,), or (B, N) where samples have coordinates of their own: the coordinates along each axis.
        positioned: Bool (N,) or (B, N); `None` when all tokens have a position.
    """

    columns: tuple[Tensor, ...]
    positioned: Tensor | None

    @classmethod
    def of(cls, frame: PairFrame) -> PairIndex:
        """From the frame of a score encoding."""
        values = frame.values[0] if frame.values.shape[0] == 1 else frame.values
        known = frame.positioned
        if known is not None and known.shape[0] == 1:
            known = known[0]
        return cls(tuple(column.contiguous() for column in values.unbind(dim=-1)), known)

    def differences(self, b: Tensor, i: Tensor, j: Tensor) -> list[Tensor]:
        """D = r_i - r_j, query minus key, along each axis."""
        return [_at(column, b, i) - _at(column, b, j) for column in self.columns]

    def distance(self, b: Tensor, i: Tensor, j: Tensor, order: int = 2) -> Tensor:
        """Distance |r_i - r_j|; `order` as in `PairFrame.distances`."""
        return _norm(self.differences(b, i, j), order)

    def settle(self, bias: Tensor, b: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Sets the bias to 0 where query or key has no position."""
        if self.positioned is None:
            return bias
        return torch.where(_at(self.positioned, b, i) & _at(self.positioned, b, j), bias, 0.0)


def _norm(parts: list[Tensor], order: int) -> Tensor:
    """Norm of the vectors whose components are given one by one, which costs less than a reduction over few numbers."""
    if len(parts) == 1:
        return parts[0].abs()
    powers = [part.abs() if order == 1 else part * part for part in parts]
    total = sum(powers[1:], powers[0])
    return total if order == 1 else total.sqrt()


def _at(column: Tensor, b: Tensor, i: Tensor) -> Tensor:
    return column[i] if column.dim() == 1 else column[b, i]


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


def distance_terms(
    frame: PairFrame, slopes: Tensor, *, fields: Tensor | None = None, order: int = 2, border: float = 0.0
) -> Distances:
    """Distances in the form of fused kernels; see `zoo.encodings.terms.Distances`."""
    known = None if frame.positioned is None else frame.positioned.to(frame.values.dtype)
    return Distances(slopes, frame.values, known, fields, order, border)


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
