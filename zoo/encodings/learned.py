"""A learned table of positions, added to the features and resized to the grid at hand (ViT, 2010.11929)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.coordinates import Coordinates
from zoo.encodings.base import TokenEncoding
from zoo.errors import ConfigError, DataError

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
    """

    def __init__(
        self, *, dim: int, num_heads: int, head_dim: int, coord_dim: int, grid: int | Sequence[int] = 14
    ) -> None:
        super().__init__()
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

    def encode(self, coords: Coordinates) -> Tensor:
        """See `TokenEncoding.encode`.

        Raises:
            DataError: If the tokens do not lie on a grid of whole steps.
        """
        if not coords.integral or coords.packed:
            raise DataError("a learned table needs tokens on a grid (coordinates.grid, clip or text)")
        bounds = coords.bounds or coords.measured_bounds()
        low = torch.tensor([low for low, _ in bounds], device=coords.values.device, dtype=coords.values.dtype)
        sizes = [round(high - low) + 1 for low, high in bounds]
        table = self.table.to(coords.values.dtype)
        if sizes != list(table.shape[1:]):
            axes = len(sizes)
            bicubic = {"antialias": True} if axes == 2 else {}
            table = F.interpolate(table[None], size=sizes, mode=_MODES[axes], align_corners=False, **bicubic)[0]
        cells = (coords.values - low).round().long().unbind(-1)
        index = cells[0]
        for cell, size in zip(cells[1:], sizes[1:], strict=True):
            index = index * size + cell
        if coords.positioned is not None:
            index = index.masked_fill(~coords.positioned, 0)
        encoding = table.flatten(1).t()[index]
        if coords.positioned is not None:
            encoding = encoding.masked_fill(~coords.positioned.unsqueeze(-1), 0.0)
        return encoding

    def no_weight_decay(self) -> set[str]:
        """The table is no weight."""
        return {"table"}
