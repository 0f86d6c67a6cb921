"""LookHere: heads that see a part of the plane, with a distance penalty (Fuller et al., arXiv 2405.13985)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from zoo.coordinates import Coordinates
from zoo.encodings.base import AttentionEncoding, Frame, number_option
from zoo.encodings.distance import (
    DifferenceScore,
    Lattice,
    Modification,
    PairFrame,
    PairIndex,
    choice_option,
    distance_terms,
    pair_frame,
)
from zoo.encodings.quadratic import rounded
from zoo.encodings.terms import Distances, FusedScore
from zoo.errors import ConfigError

__all__ = ["LookHere"]

# Two directions: the intersection of their half-planes.
_Field = tuple[tuple[int, int], tuple[int, int]]

# Directions (column, row): a key lies on that side of the query, border included, if its offset times this is >= 0.
_UP, _DOWN, _LEFT, _RIGHT = (0, -1), (0, 1), (-1, 0), (1, 0)
_UP_LEFT, _UP_RIGHT, _DOWN_LEFT, _DOWN_RIGHT = (-1, -1), (1, -1), (-1, 1), (1, 1)

# Fields of view of the eight directed heads, each the intersection of two half-planes, in the order of the authors.
_FIELDS: dict[int, list[_Field]] = {
    # Half-planes along the axes, then along the diagonals.
    180: [(d, d) for d in (_UP, _DOWN, _LEFT, _RIGHT, _UP_RIGHT, _UP_LEFT, _DOWN_RIGHT, _DOWN_LEFT)],
    # Quadrants, then wedges between the diagonals.
    90: [
        (_UP, _LEFT), (_UP, _RIGHT), (_DOWN, _LEFT), (_DOWN, _RIGHT),
        (_UP_LEFT, _UP_RIGHT), (_DOWN_LEFT, _DOWN_RIGHT), (_UP_LEFT, _DOWN_LEFT), (_UP_RIGHT, _DOWN_RIGHT),
    ],
    # Eighths between an axis and a diagonal: up to the left of it, down to the left, left upwards, right upwards;
    # up to the right, down to the right, left downwards, right downwards.
    45: [
        (_LEFT, _UP_RIGHT), (_LEFT, _DOWN_RIGHT), (_UP, _DOWN_LEFT), (_UP, _DOWN_RIGHT),
        (_RIGHT, _UP_LEFT), (_RIGHT, _DOWN_LEFT), (_DOWN, _UP_LEFT), (_DOWN, _UP_RIGHT),
    ],
}  # fmt: skip
_EVERYWHERE: _Field = ((0, 0), (0, 0))
_SLOPES = [1 / 2] * 8 + [1 / 4, 1 / 16, 1 / 64, 1 / 256]

# Half the width of a border, in units of the coordinates. Without it, rounding of the coordinates of a grid that was
# scaled, or moved by a fraction, would decide who is seen along a diagonal.
_BORDER = {torch.float32: 1e-4, torch.float64: 1e-9}


@dataclass(frozen=True)
class _LookHereFrame(PairFrame):
    measured: PairFrame  # Coordinates for distances: an extension divides these, while fields of view stay.
    fields: tuple[_Field, ...]  # 12 entries
    sides: Tensor  # (12, 2, 2), the same as numbers: entry, half-plane, axis
    slopes: Tensor  # (12,)

    @cached_property
    def lattice(self) -> Lattice | None:
        """See `PairFrame`; measured coordinates, divided along each axis, make a plane of the same size."""
        return super().lattice if self.measured.lattice is not None else None

    def displaced(self) -> _LookHereFrame:
        """See `PairFrame`."""
        assert self.lattice is not None
        values = self.lattice.displacements()
        return replace(self, values=values, positioned=None, measured=self.measured.displaced())

    def among(self, tokens: slice) -> PairFrame:
        """See `PairFrame`."""
        return replace(cast(_LookHereFrame, super().among(tokens)), measured=self.measured.among(tokens))


@dataclass(frozen=True)
class _DirectedScore(DifferenceScore, FusedScore):
    frame: _LookHereFrame
    fields: tuple[_Field, ...]  # One per head
    sides: Tensor  # (H, 2, 2), the same as numbers
    slopes: Tensor  # (H,), those of layer and model included
    round_bias: bool

    def bias(self, rows: slice) -> Tensor:
        column, row = self.frame.offsets(rows)
        border = _BORDER[column.dtype]
        # Heads share few half-planes. Sides are those of the key seen from the query, the difference is the other way.
        planes = {side: side[0] * column + side[1] * row <= border for field in self.fields for side in field}
        outside = torch.stack([~(planes[first] & planes[second]) for first, second in self.fields], dim=1)
        bias = -self.slopes.view(-1, 1, 1) * self.frame.measured.distances(rows).unsqueeze(1)
        if self.round_bias:
            bias = rounded(bias, torch.bfloat16).to(bias.dtype)
        return self.frame.settle(bias.masked_fill(outside, float("-inf")), rows)

    @property
    def axes(self) -> int:
        """See `zoo.encodings.terms.FusedScore`."""
        return self.frame.axes

    @property
    def term(self) -> str | None:
        """See `zoo.encodings.terms.FusedScore`; none with coordinates of their own for distances."""
        own = self.round_bias or self.frame.measured.values is not self.frame.values
        return None if own or self.frame.values.dtype != torch.float32 else "distances"

    def terms(self) -> Distances | None:
        """See `zoo.encodings.terms.FusedScore`."""
        if self.term is None:
            return None
        return distance_terms(self.frame, self.slopes, fields=self.sides, border=_BORDER[torch.float32])

    def modification(self) -> Modification:
        """See `zoo.kernels.flex`."""
        pairs, slopes, round_bias = PairIndex.of(self.frame), self.slopes, self.round_bias
        # A number would become a symbol, which the generated kernel cannot hold.
        border = slopes.new_full(slopes.shape, _BORDER[slopes.dtype])
        measured = PairIndex.of(self.frame.measured)
        sides = [[column.contiguous() for column in side.unbind(dim=1)] for side in self.sides.unbind(dim=1)]

        def add(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            column, row = pairs.differences(b, i, j)
            bias = -slopes[h] * measured.distance(b, i, j)
            if round_bias:
                bias = rounded(bias, torch.bfloat16).to(bias.dtype)
            for x, y in sides:
                bias = torch.where(x[h] * column + y[h] * row <= border[h], bias, float("-inf"))
            return score + pairs.settle(bias, b, i, j)

        return add


class LookHere(AttentionEncoding):
    """Bias -g l h |r_i - r_j| inside the field of view of a head, minus infinity outside; no parameters; 2-D only.

    Of twelve heads eight look in a direction and four everywhere. Half-planes along axes and diagonals in LH-180,
    quadrants and wedges between the diagonals in LH-90, 45-degree eighths in LH-45; borders and the token itself are
    visible. g is the slope of the model, l that of the layer (linear over depth), h that of the head: 1/2 for directed
    heads and 1/4, 1/16, 1/64, 1/256 for the others. Source: arXiv 2405.13985, section 3, and the order of heads of its
    released code. Slopes are per unit of the coordinates (patches); coordinates are (column, row), rows counted
    downwards. The authors define layouts for few head counts: here head h of layer l takes entry (l H + h) mod 12 of
    the twelve, which for twelve heads is entry h in every layer. Tokens without a position give and get bias 0, see all
    and are seen by all.

    Args:
        dim: Unused, part of the common signature.
        num_heads: Heads H.
        head_dim: Unused.
        coord_dim: Coordinate axes, must be 2.
        view: Field of view: 180, 90 or 45 degrees.
        global_slope: g; smaller for longer reach at larger inputs.
        layer_slopes: l of the first and of the last layer. The released PaPE baseline has 1.5 in all.
        round_bias: `"bfloat16"` rounds the distance term as the released PaPE baseline does; `"none"` does not.

    Raises:
        ConfigError: If the coordinates do not have two axes, or on a bad option.
    """

    extension_methods = ("rescale", "pi")

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        head_dim: int,
        coord_dim: int,
        view: int = 90,
        global_slope: float = 2.0,
        layer_slopes: Any = (1.5, 0.5),
        round_bias: str = "none",
    ) -> None:
        super().__init__()
        if coord_dim != 2:
            raise ConfigError(f"lookhere divides the plane: it needs 2 coordinate axes, got {coord_dim}")
        choice_option("view", view, tuple(_FIELDS))
        choice_option("round_bias", round_bias, ("none", "bfloat16"))
        if not isinstance(layer_slopes, (list, tuple)) or len(layer_slopes) != 2:
            raise ConfigError(f"encoding option 'layer_slopes' must be two numbers, got {layer_slopes!r:.60}")
        self.num_heads, self.view, self.round_bias = num_heads, view, round_bias == "bfloat16"
        self.global_slope = number_option("global_slope", global_slope, low=0.0, high=1e6)
        self.layer_slopes = [number_option("layer_slopes", slope, low=0.0, high=1e6) for slope in layer_slopes]
        self.place(0, 1)

    def place(self, layer: int, depth: int) -> None:
        """See `AttentionEncoding.place`; an encoding that was not placed counts as the first layer."""
        first, last = self.layer_slopes
        self.layer_slope = first + (last - first) * layer / max(1, depth - 1)
        self.first_entry = layer * self.num_heads % 12

    def frame(self, coords: Coordinates, dtype: torch.dtype) -> _LookHereFrame:
        """Centred coordinates and the list of twelve heads; layers take from it what is theirs."""
        pairs = pair_frame(coords, dtype)
        dtype, device = pairs.values.dtype, pairs.values.device
        fields = (*_FIELDS[self.view], *[_EVERYWHERE] * 4)
        sides = torch.tensor(fields, dtype=dtype, device=device)
        slopes = torch.tensor(_SLOPES, dtype=dtype, device=device)
        measured = pairs if self.extension is None else pair_frame(self.extended(coords, dtype), dtype)
        return _LookHereFrame("score", pairs.values, pairs.positioned, measured, fields, sides, slopes)

    def score(self, x: Tensor, frame: Frame, scale: float) -> _DirectedScore:
        """See `AttentionEncoding.score`."""
        assert isinstance(frame, _LookHereFrame)
        own = tuple(frame.fields[(self.first_entry + head) % 12] for head in range(self.num_heads))
        entries = (torch.arange(self.num_heads, device=frame.values.device) + self.first_entry) % 12
        slopes = self.global_slope * self.layer_slope * frame.slopes[entries]
        return _DirectedScore(frame, own, frame.sides[entries], slopes, self.round_bias)
