"""A learned table of biases over relative positions, in p dimensions (Swin Transformer, arXiv 2103.14030)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from zoo.coordinates import Coordinates
from zoo.encodings.base import AttentionEncoding, Frame
from zoo.encodings.distance import DifferenceScore, PairFrame, axis_option, pair_frame
from zoo.errors import ConfigError

__all__ = ["RelativeTable", "flat_index", "look_up"]

# Largest table of a head, in entries.
_MAX_ENTRIES = 2**20


def flat_index(steps: Tensor, extents: Sequence[int]) -> Tensor:
    """Index of whole steps (..., p) into a flattened table of 2 e_a + 1 entries an axis, the last running fastest.

    Steps beyond the table take its edge.
    """
    index = torch.zeros((), dtype=torch.int64, device=steps.device)
    for axis, extent in enumerate(extents):
        index = index * (2 * extent + 1) + steps[..., axis].clamp(-extent, extent).long() + extent
    return index


def look_up(table: Tensor, index: Tensor) -> Tensor:
    """Entries of a table (H, T) at an index (B, rows, N): (B, H, rows, N)."""
    return table.index_select(1, index.flatten()).unflatten(1, index.shape).transpose(0, 1)


@dataclass(frozen=True)
class _TableFrame(PairFrame):
    integral: bool


@dataclass(frozen=True)
class _TableScore(DifferenceScore):
    frame: _TableFrame
    table: Tensor  # (H, T)
    extents: tuple[int, ...]

    def bias(self, rows: slice) -> Tensor:
        difference = self.frame.differences(rows)
        if self.frame.integral:
            bias = look_up(self.table, flat_index(difference.round(), self.extents))
        else:
            bias = self._interpolated(difference)
        return self.frame.settle(bias, rows)

    def _interpolated(self, difference: Tensor) -> Tensor:
        edges = torch.tensor(self.extents, dtype=difference.dtype, device=difference.device)
        inside = difference.clamp(-edges, edges)
        low = inside.floor()
        part = inside - low
        bias = self.table.new_zeros(())
        for corner in product((0, 1), repeat=len(self.extents)):
            steps = torch.stack([low[..., axis] + step for axis, step in enumerate(corner)], dim=-1)
            weights = [part[..., axis] if step else 1 - part[..., axis] for axis, step in enumerate(corner)]
            weight = torch.stack(weights).prod(dim=0).unsqueeze(1)
            bias = bias + weight * look_up(self.table, flat_index(steps, self.extents))
        return bias


class RelativeTable(AttentionEncoding):
    """Bias B_h[r_i - r_j] from a table learned per head, after the softmax scale; zero at the start.

    The relative position bias of Swin (arXiv 2103.14030, section 3.2), with the offset of the query from the key, axes
    in the order of the coordinates and one entry per unit (patch). Offsets between entries take the multilinear
    interpolation of their neighbours, whole ones exactly their entry. Offsets beyond the table clamp to its edge along
    each axis, so it does not extrapolate. Tokens without a position give and get bias 0.

    Args:
        dim: Unused, part of the common signature.
        num_heads: Heads H.
        head_dim: Unused.
        coord_dim: Coordinate axes p.
        extent: Half width of the table in units, for all axes or one for each: a training window of w patches has
            offsets up to w - 1. The default is that of 14 patches.

    Raises:
        ConfigError: If the table would be larger than 2^20 entries a head.
    """

    extension_methods = ("pi",)  # The table is stretched: offsets fall between its entries.

    def __init__(self, *, dim: int, num_heads: int, head_dim: int, coord_dim: int, extent: Any = 13) -> None:
        super().__init__()
        steps = axis_option("extent", extent, coord_dim, low=1, high=4096, integer=True)
        self.extents = tuple(int(step) for step in steps)
        shape = [2 * step + 1 for step in self.extents]
        if math.prod(shape) > _MAX_ENTRIES:
            raise ConfigError(
                f"encoding option 'extent' {extent!r:.60} makes a table of {math.prod(shape)} entries a head in "
                f"{coord_dim} axes; the bound is {_MAX_ENTRIES}"
            )
        self.table = nn.Parameter(torch.zeros(num_heads, *shape))

    def reset_parameters(self) -> None:
        """Sets the table to zero: no encoding at the start."""
        nn.init.zeros_(self.table)

    def frame(self, coords: Coordinates, dtype: torch.dtype) -> _TableFrame:
        """Centred coordinates, and whether all differences are whole."""
        coords = self.extended(coords, dtype)
        pairs = pair_frame(coords, dtype)
        return _TableFrame("score", pairs.values, pairs.positioned, coords.integral)

    def score(self, x: Tensor, frame: Frame, scale: float) -> _TableScore:
        """See `AttentionEncoding.score`."""
        assert isinstance(frame, _TableFrame)
        return _TableScore(frame, self.table.to(frame.values.dtype).flatten(1), self.extents)

    def no_weight_decay(self) -> set[str]:
        """Entries of rare offsets get few gradients and would decay to nothing."""
        return {"table"}
