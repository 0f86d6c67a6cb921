"""How a scheme places a sequence: the loop over segments, and single, padded and packed results.

Legend: B batch, N tokens, p axes of the scheme.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from zoo.coordinates import Coordinates
from zoo.errors import DataError
from zoo.position_ids.segments import Padding, Segment, Text, Vision

__all__ = ["Placement", "Scheme"]

# Whole numbers up to this many steps apart, once centred, are exact in bfloat16: see `Coordinates.integral`.
_EXACT_STEPS = 255
# Rounding to float32 may move an id by this share of the distance to its neighbour.
_ROUNDING = 1 / 64


@dataclass(frozen=True)
class Placement:
    """The ids of one sequence and where it goes on.

    Attributes:
        values: Float64 (N, p) ids, on the CPU; 0 for tokens without a position.
        positioned: Bool (N,), False for padding.
        next_position: The id of the next text token, as decoding needs it.
        gap: Smallest distance between neighbouring ids.
    """

    values: Tensor
    positioned: Tensor
    next_position: float
    gap: float

    @property
    def delta(self) -> float:
        """What decoding adds to the index of a new token, counted among the tokens with a position, to get its id."""
        return self.next_position - int(self.positioned.sum())


class Scheme(ABC):
    """Gives every token of a sequence of segments its position ids.

    A call returns `Coordinates` of one sequence, `batch` those of several padded to the longest, `packed` those of
    several end to end. Text has the same id on every axis and goes up by one; what an image or a video gets, and where
    text goes on after it, is what schemes differ in.
    """

    axes: ClassVar[int]

    @abstractmethod
    def vision(self, segment: Vision, cells: Tensor, start: float) -> tuple[Tensor, float]:
        """Places an image or a video.

        Args:
            segment: What to place.
            cells: Float64 (n, 3): frame, row and column of each token in the whole picture.
            start: The id that a text token would have here.

        Returns:
            Float64 (n, p) ids, and the id of a text token that follows.
        """

    def after(self, values: Tensor, position: float) -> float:
        """The id of the next generated token, from all ids (n, p) and the id of a text token that would follow."""
        return position

    def place(self, segments: Sequence[Segment], *, start: float = 0, origin: int = 0) -> Placement:
        """Ids of one sequence in float64, with what decoding needs.

        Args:
            segments: The sequence.
            start: Id of a text token at the front, such as `next_position` of what was placed before. A Python integer
                may be of any size.
            origin: Whole number that is subtracted from all ids before they become floating point: where starts are
                large, ids near 0 keep their differences exact.

        Raises:
            DataError: If a segment is of another type, or start and origin are no such numbers.
        """
        if isinstance(origin, bool) or not isinstance(origin, int):
            raise DataError(f"origin must be a whole number, got {origin!r:.80}")
        if isinstance(start, bool) or not isinstance(start, (int, float)):
            raise DataError(f"start must be a number, got {start!r:.80}")
        try:
            position = float(start - origin)
        except OverflowError:
            position = math.inf
        if not math.isfinite(position):
            raise DataError(f"start must be a number, not out of range once origin is subtracted, got {start!r:.80}")
        if not isinstance(segments, Iterable):
            raise DataError(f"a sequence is a list of segments, got a {type(segments).__name__}")
        gap, values, known = 1.0, [torch.zeros(0, self.axes, dtype=torch.float64)], [torch.ones(0, dtype=torch.bool)]
        for segment in segments:
            if isinstance(segment, Text):
                ids = position + torch.arange(segment.length, dtype=torch.float64)
                values.append(ids.unsqueeze(-1).expand(-1, self.axes))
                known.append(torch.ones(segment.length, dtype=torch.bool))
                position += segment.length
            elif isinstance(segment, Padding):
                values.append(torch.zeros(segment.length, self.axes, dtype=torch.float64))
                known.append(torch.zeros(segment.length, dtype=torch.bool))
            elif isinstance(segment, Vision):
                cells, inside = segment.cells()
                ids, position = self.vision(segment, cells.double(), position)
                gap = min(gap, _smallest_gap(ids))
                values.append(ids.masked_fill(~inside.unsqueeze(-1), 0.0))
                known.append(inside)
            else:
                raise DataError(f"a sequence is made of Text, Image, Video and Padding, got {type(segment).__name__}")
        every, positioned = torch.cat(values), torch.cat(known)
        return Placement(every, positioned, self.after(every[positioned], position), gap)

    def __call__(
        self,
        segments: Sequence[Segment],
        *,
        start: float = 0,
        origin: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Coordinates:
        """Coordinates of one sequence.

        Args:
            segments: The sequence.
            start: See `place`.
            origin: See `place`.
            device: Where to put them.
            dtype: The dtype of the features: float64 gives float64 coordinates, everything else float32.

        Returns:
            Coordinates with values (1, N, p).

        Raises:
            DataError: If neighbouring ids are not told apart in the dtype (use `origin`, or float64).
        """
        return self.batch([segments], start=start, origin=origin, device=device, dtype=dtype)

    def batch(
        self,
        sequences: Sequence[Sequence[Segment]],
        *,
        start: float = 0,
        origin: int = 0,
        padding_side: str = "right",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Coordinates:
        """Coordinates of several sequences, padded to the longest with tokens without a position.

        Args:
            sequences: B sequences.
            start: See `place`; the same for all.
            origin: See `place`; the same for all.
            padding_side: `"right"`, or `"left"` as decoding likes it.
            device: Where to put them.
            dtype: See `__call__`.

        Returns:
            Coordinates with values (B, N, p); `positioned` (B, N) unless every token has a position.

        Raises:
            DataError: If there is no sequence, the side is unknown, or ids do not fit the dtype.
        """
        if padding_side not in ("right", "left"):
            raise DataError(f"padding_side must be 'right' or 'left', got {padding_side!r:.80}")
        placed = self._place_all(sequences, start, origin, dtype)
        longest = max(len(one.values) for one in placed)
        values = torch.zeros(len(placed), longest, self.axes, dtype=torch.float64)
        known = torch.zeros(len(placed), longest, dtype=torch.bool)
        for row, one in enumerate(placed):
            count = len(one.values)
            where = slice(0, count) if padding_side == "right" else slice(longest - count, longest)
            values[row, where], known[row, where] = one.values, one.positioned
        return _coordinates(placed, values, known, None, device, dtype)

    def packed(
        self,
        sequences: Sequence[Sequence[Segment]],
        *,
        start: float = 0,
        origin: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Coordinates:
        """Coordinates of several sequences end to end; arguments as in `batch`.

        Returns:
            Coordinates with values (N_total, p) and int32 `cu_seqlens` (S + 1,).
        """
        placed = self._place_all(sequences, start, origin, dtype)
        ends = torch.tensor([0, *(len(one.values) for one in placed)]).cumsum(0).int()
        values, known = torch.cat([one.values for one in placed]), torch.cat([one.positioned for one in placed])
        return _coordinates(placed, values, known, ends, device, dtype)

    def _place_all(
        self, sequences: Sequence[Sequence[Segment]], start: float, origin: int, dtype: torch.dtype | None
    ) -> list[Placement]:
        if not sequences:
            raise DataError("there must be at least one sequence")
        if not isinstance(sequences, Iterable):
            raise DataError(f"expected a list of sequences, got a {type(sequences).__name__}")
        placed = [self.place(segments, start=start, origin=origin) for segments in sequences]
        for one in placed:
            _check_precision(one, double=dtype == torch.float64)
        return placed


def _smallest_gap(ids: Tensor) -> float:
    """Smallest distance between different ids of a segment (n, p) along any axis, at most 1."""
    steps = torch.cat([torch.unique(axis).diff() for axis in ids.unbind(-1)])
    # Sums that differ in their rounding alone, as 0.1 + 1 and 1.1 may, are the same id.
    return min([1.0, *steps[steps > 2.0**-48 * ids.abs().max()].tolist()])


def _check_precision(placed: Placement, double: bool) -> None:
    """Raises where neighbours are not told apart, or ids are not finite."""
    if not placed.values.numel():
        return
    largest = float(placed.values.abs().max())
    moved = 2.0**-52 * largest if double else float((placed.values.float().double() - placed.values).abs().max())
    if not moved <= _ROUNDING * placed.gap:  # As NaN is not.
        found = f"ids up to {largest:g} with steps of {placed.gap:g} are not told apart in"
        hint = "" if double else ", or ask for dtype=torch.float64"
        raise DataError(f"{found} {'float64' if double else 'float32'}: subtract a large start with origin{hint}")


def _coordinates(
    placed: list[Placement],
    values: Tensor,
    known: Tensor,
    cu_seqlens: Tensor | None,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> Coordinates:
    values = values.to(torch.float64 if dtype == torch.float64 else torch.float32)
    each = [_bounds(one.values[one.positioned].to(values.dtype)) for one in placed if one.positioned.any()]
    each = each or [((0.0, 0.0),) * values.shape[-1]]
    integral = bool((values == values.floor()).all()) and all(
        high - low <= _EXACT_STEPS for bounds in each for low, high in bounds
    )
    made = Coordinates(
        values,
        positioned=None if known.all() else known,
        cu_seqlens=cu_seqlens,
        integral=integral,
        bounds=tuple((min(low for low, _ in axis), max(high for _, high in axis)) for axis in zip(*each, strict=True)),
        unit="token",
    )
    return made.to(device=device)


def _bounds(known: Tensor) -> tuple[tuple[float, float], ...]:
    """Smallest and largest of ids (n, p) along each axis."""
    return tuple(zip(known.amin(dim=0).tolist(), known.amax(dim=0).tolist(), strict=True))
