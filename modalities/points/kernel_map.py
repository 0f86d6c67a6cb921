"""Which voxels a submanifold convolution reads: per voxel and place of the kernel the neighbour, or none.

Legend: V voxels, k edge of the kernel (odd), K = k^3 its places, x slowest and z fastest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from modalities.points.voxels import Level
from zoo.errors import ConfigError, DataError

__all__ = ["KernelMap", "kernel_map"]

# Neighbours looked up at once: each takes some 8-byte numbers while it is looked for.
_ELEMENTS = 1 << 24


@dataclass(frozen=True)
class KernelMap:
    """Neighbours of every voxel; one is shared by all convolutions of a level.

    Attributes:
        neighbours: (V, K) int64 row of the neighbour at each place of the kernel, V where there is none. The middle
            place is the voxel itself, and place K - 1 - j is opposite to place j.
        level: The voxels.
        kernel_size: k.
        pairs: What spconv keeps of these voxels between convolutions.
    """

    neighbours: Tensor
    level: Level
    kernel_size: int
    pairs: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def inner(self, kernel_size: int) -> KernelMap:
        """The map of a smaller kernel.

        Raises:
            ConfigError: If it is even or larger.
        """
        _check(kernel_size, self.kernel_size)
        cut = (self.kernel_size - kernel_size) // 2
        cube = torch.arange(self.kernel_size**3, device=self.neighbours.device).view((self.kernel_size,) * 3)
        inside = slice(cut, cut + kernel_size)
        columns = cube[inside, inside, inside].reshape(-1)
        return KernelMap(self.neighbours.index_select(1, columns), self.level, kernel_size)


def kernel_map(level: Level, kernel_size: int) -> KernelMap:
    """Looks the neighbours of all voxels up in the sorted positions.

    Args:
        level: The voxels.
        kernel_size: Odd edge k of the kernel.

    Raises:
        ConfigError: If it is even or beyond 15.
        DataError: If positions and clouds together exceed 63 bits.
    """
    _check(kernel_size, 15)
    reach = kernel_size // 2
    # Rows of the grid are as much longer as the kernel reaches, so that no neighbour is taken for one of another row.
    sizes = [top + 1 + 2 * reach for top in level.top]
    if max(len(level.counts) - 1, 1) * sizes[0] * sizes[1] * sizes[2] >= 1 << 63:
        raise DataError(f"{len(level.counts) - 1} clouds of up to {sizes} voxels have no positions of 63 bits")
    strides = (sizes[1] * sizes[2], sizes[2], 1)
    x, y, z = level.cells.unbind(1)
    keys = ((level.cloud * sizes[0] + x + reach) * sizes[1] + y + reach) * sizes[2] + z + reach
    ordered, order = torch.sort(keys)
    steps = torch.arange(-reach, reach + 1, device=keys.device)
    shift = (steps[:, None, None] * strides[0] + steps[:, None] * strides[1] + steps).reshape(-1)

    count, half = len(level), kernel_size**3 // 2
    neighbours = keys.new_full((count, 2 * half + 1), count)
    neighbours[:, half] = torch.arange(count, device=keys.device)
    for start in range(0, count, rows := max(1, _ELEMENTS // max(half, 1))):
        wanted = keys[start : start + rows, None] + shift[:half]
        place = torch.searchsorted(ordered, wanted)  # Never past the end: every one is below the key itself.
        found = torch.where(ordered[place] == wanted, order[place], count)
        neighbours[start : start + rows, :half] = found
    if half:  # The other half: i is at place K - 1 - j of whom has place j of i.
        back = keys.new_full((count + 1, half), count)
        own = torch.arange(count, device=keys.device).unsqueeze(1).expand(-1, half)
        back.scatter_(0, neighbours[:, :half], own)
        neighbours[:, half + 1 :] = back[:count].flip(1)
    return KernelMap(neighbours, level, kernel_size)


def _check(kernel_size: int, most: int) -> None:
    if kernel_size < 1 or kernel_size % 2 == 0 or kernel_size > most:
        raise ConfigError(f"a submanifold kernel has an odd edge of at most {most}, got {kernel_size}")
