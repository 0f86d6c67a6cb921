"""What attention is measured on: square grids, and packed samples of uneven lengths."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch

from zoo.coordinates import Coordinates, grid
from zoo.errors import ConfigError

__all__ = ["Sample", "Workload", "grid_workload", "packed_workload"]

# Packed samples are like windows of an event camera: patches of its frame, times in order that are no whole numbers.
_FRAME = (30, 40)
_TIME_STEPS = 20.0
_LENGTHS = (200, 1800)


@dataclass(frozen=True)
class Sample:
    """One sample of a workload.

    Attributes:
        rows: Where its tokens are in the first row of the tensors.
        coords: Their coordinates, not packed.
    """

    rows: slice
    coords: Coordinates


@dataclass(frozen=True)
class Workload:
    """Coordinates and samples of one measurement.

    Attributes:
        name: What it is called in tables.
        coords: Of a grid, shared by all samples; or of all packed samples.
        lengths: Tokens of every sample.
        side: Of a grid, else `None`.
    """

    name: str
    coords: Coordinates
    lengths: tuple[int, ...]
    side: int | None = None

    @property
    def batch(self) -> int:
        """Rows of the tensors: the samples of a grid, one for packed samples."""
        return 1 if self.coords.packed else len(self.lengths)

    @property
    def tokens(self) -> int:
        """Tokens along a row of the tensors."""
        return self.coords.values.shape[-2]

    def forward_flops(self, heads: int, width: int) -> int:
        """Operations of the two products of attention: 4 H D times the sum over samples of N^2."""
        return 4 * heads * width * sum(length**2 for length in self.lengths)

    def sample(self, limit: int) -> Sample | None:
        """The first sample of at most `limit` tokens, if there is one."""
        start = 0
        for length in self.lengths:
            if length <= limit:
                rows = slice(start, start + length)
                if not self.coords.packed:
                    return Sample(rows, self.coords)
                values = self.coords.values[rows].unsqueeze(0)
                return Sample(rows, dataclasses.replace(self.coords, values=values, cu_seqlens=None))
            if self.coords.packed:
                start += length
        return None


def grid_workload(side: int, batch: int, device: str) -> Workload:
    """A square grid with a class token that has no position.

    Args:
        side: Tokens along each axis.
        batch: Samples.
        device: Where the coordinates are.
    """
    coords = grid(side, side, device=device).with_prefix(1)
    return Workload(f"{side} x {side} + 1", coords, (side * side + 1,) * batch, side)


def packed_workload(samples: int, device: str, *, lengths: tuple[int, int] = _LENGTHS, seed: int = 0) -> Workload:
    """Packed samples of uneven lengths with coordinates (t, row, column), drawn by a seed.

    Args:
        samples: How many.
        device: Where the coordinates are.
        lengths: Fewest and most tokens of a sample.
        seed: Of the draw.

    Raises:
        ConfigError: If there is no sample.
    """
    if samples < 1:
        raise ConfigError(f"batch must be at least 1, got {samples}")
    generator = torch.Generator().manual_seed(seed)
    low, high = lengths
    counts = torch.randint(low, high + 1, (samples,), generator=generator)
    parts = []
    for count in counts.tolist():
        time = _TIME_STEPS * torch.rand(count, 1, generator=generator).sort(dim=0).values
        place = [torch.randint(0, side, (count, 1), generator=generator).float() for side in _FRAME]
        parts.append(torch.cat([time, *place], dim=1))
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).to(torch.int32)
    coords = Coordinates(torch.cat(parts), cu_seqlens=offsets, unit="time step, patch, patch").to(device=device)
    return Workload("packed", coords, tuple(counts.tolist()))
