"""A learned table of positions, added to the features and resized to the grid at hand (ViT, 2010.11929)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.coordinates import Coordinates
from zoo.encodings.base import TokenEncoding
from zoo.encodings.distance import choice_option
from zoo.errors import ConfigError, DataError
from zoo.tracing import is_open, refuse_above

__all__ = ["Learned"]

_MODES = {1: "linear", 2: "bicubic", 3: "trilinear"}


class Learned(TokenEncoding):
    """One learned vector for each cell of a training grid; other grids get the table resized to them.

    The table stretches over whatever grid comes in (bicubic with antialiasing in two axes, linear in one, trilinear in
    three), so a cell means a share of the picture and not a number of patches. Tokens without a position (class,
    registers) get nothing: what they need is part of their own learned vector.

    Args:
        dim: Feature width C.
        num_heads: Unused, part of the common signature.
        head_dim: Unused.
        coord_dim: Coordinate axes p, at most 3.
        grid: Training tokens along each coordinate axis, in the order of the coordinates (columns, rows for pictures).
        stretch: Whether the table stretches. Without, cell i is that of coordinate i as in language models (GPT-2),
            so that what a token gets does not depend on those that follow; coordinates beyond the table are refused.
    """

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        head_dim: int,
        coord_dim: int,
        grid: int | Sequence[int] = 14,
        stretch: bool = True,
    ) -> None:
        super().__init__()
        choice_option("stretch", stretch, (True, False))
        self.stretch = stretch
        if coord_dim not in _MODES:
            raise ConfigError(f"learned tables are for up to 3 axes, got {coord_dim}")
        sizes = [grid] * coord_dim if isinstance(grid, int) else grid
        if (
            not isinstance(sizes, (list, tuple))
            or len(sizes) != coord_dim
            or any(isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= 4096 for n in sizes)
            or torch.Size(sizes).numel() > 2**16
        ):
            raise ConfigError(f"encoding option 'grid' must be {coord_dim} whole numbers of tokens, got {grid!r:.80}")
        self.table = nn.Parameter(torch.empty(dim, *sizes))
        nn.init.trunc_normal_(self.table, std=0.02)

    @property
    def by_sample(self) -> bool:
        """See `Extendable.by_sample`."""
        return self.stretch

    def encode(self, coords: Coordinates) -> Tensor:
        """See `TokenEncoding.encode`.

        Raises:
            DataError: If the tokens do not lie on a grid of whole steps, or beyond a table that does not stretch.
        """
        if not self.stretch:
            return self._looked_up(coords)
        if not coords.integral or coords.packed:
            raise DataError("a learned table needs tokens on a grid (coordinates.grid, clip or text)")
        bounds = coords.bounds or coords.measured_bounds()
        low = torch.tensor([low for low, _ in bounds], device=coords.values.device, dtype=coords.values.dtype)
        sizes = [math.floor(high - low + 0.5) + 1 for low, high in bounds]
        table = self.table.to(coords.values.dtype)
        if sizes != list(table.shape[1:]):
            axes = len(sizes)
            bicubic = {"antialias": True} if axes == 2 else {}
            table = F.interpolate(table[None], size=sizes, mode=_MODES[axes], align_corners=False, **bicubic)[0]
        return _entries(table, (coords.values - low).round().long(), coords)

    def _looked_up(self, coords: Coordinates) -> Tensor:
        """Cells of coordinates as they are."""
        sizes = self.table.shape[1:]
        bounds = coords.bounds or coords.measured_bounds()
        values, beyond = coords.values, coords.packed
        for (low, high), size in zip(bounds, sizes, strict=True):
            if is_open(high):  # That is known when the graph runs.
                values, high = refuse_above(values, high, size - 1), low
            beyond = beyond or low < 0 or high > size - 1
        if beyond:
            raise DataError(
                f"a learned table of {' x '.join(map(str, sizes))} positions has no others: coordinates are {bounds}; "
                "give fewer tokens, or load the model with a larger 'grid'"
            )
        return _entries(self.table.to(values.dtype), values.round().long(), coords)

    def no_weight_decay(self) -> set[str]:
        """The table is no weight."""
        return {"table"}


def _entries(table: Tensor, cells: Tensor, coords: Coordinates) -> Tensor:
    """Entries (B or 1, N, C) of a table (C, *sizes) at whole cells (B or 1, N, p), zero for tokens without position."""
    index = torch.zeros_like(cells[..., 0])
    for axis, size in enumerate(table.shape[1:]):
        index = index * size + cells[..., axis]
    if coords.positioned is None:
        return table.flatten(1).t()[index]
    entries = table.flatten(1).t()[index.masked_fill(~coords.positioned, 0)]
    return entries.masked_fill(~coords.positioned.unsqueeze(-1), 0.0)
