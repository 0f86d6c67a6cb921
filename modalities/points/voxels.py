"""Voxels of a batch of clouds, and of every coarser level, made at once from the coordinates alone.

All levels follow from one sort: points are sorted by cloud and z-order code, and a voxel of level s is a run of points
whose codes agree up to the last 3 s bits. So the children of a voxel lie next to each other, pooling reduces runs of
rows, and the host waits for the device twice whatever the number of levels.

Legend: B clouds, N points, V voxels of a level, S levels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from modalities.points.batch import PointBatch
from modalities.points.serialise import MAX_LEVELS, encode, z_order
from zoo.errors import DataError
from zoo.groups import Groups, segment_max

__all__ = ["Groups", "Level", "segment_max", "voxelise"]


@dataclass(frozen=True)
class Level:
    """The voxels of one size, sorted by cloud and z-order code.

    Attributes:
        cells: (V, 3) int64 position in the grid, from 0 in each cloud.
        cloud: (V,) int64.
        codes: (orders, V) int64 codes along the curves asked for.
        xyz: (V, 3) float, mean of the points (level 0) or of the children.
        offsets: (B + 1,) int64: cloud i holds voxels offsets[i] to offsets[i + 1].
        counts: The same offsets as numbers.
        top: Largest position along each axis, as numbers.
        bits: Bits of a position along any axis.
        size: Edge of a voxel in the units of the coordinates.
        groups: Which points (level 0) or voxels of the level before are in each.
    """

    cells: Tensor
    cloud: Tensor
    codes: Tensor
    xyz: Tensor
    offsets: Tensor
    counts: tuple[int, ...]
    top: tuple[int, int, int]
    bits: int
    size: float
    groups: Groups

    def __len__(self) -> int:
        return self.cells.shape[0]

    def permutations(self, curves: Sequence[int]) -> Tensor:
        """Orders of the voxels along curves, cloud by cloud.

        Args:
            curves: Which rows of `codes`.

        Returns:
            (len(curves), V) int64: the voxel that stands at each place.
        """
        codes = torch.stack([self.codes[curve] for curve in curves])
        keys = (self.cloud << (3 * self.bits)) | codes
        return torch.sort(keys, dim=1).indices


def voxelise(batch: PointBatch, size: float, levels: int = 1, orders: Sequence[str] = ("z",)) -> list[Level]:
    """Voxels of every level; each is twice as large as those of the level before.

    The grid goes through the origin of the coordinates, negative ones included; positions are counted from the smallest
    of a cloud, so that what a cloud gives does not depend on what else is in the batch, nor (up to rounding) on the
    order of its points.

    Args:
        batch: The clouds.
        size: Edge of a voxel at level 0.
        levels: Number of levels.
        orders: Curves whose codes are wanted, see `modalities.points.serialise.ORDERS`.

    Raises:
        DataError: If a coordinate is NaN or infinite, or the clouds are so large that their codes exceed 63 bits.
    """
    points, clouds = batch.xyz.shape[0], len(batch)
    numbers = torch.arange(clouds, device=batch.device)
    cloud = torch.repeat_interleave(numbers, batch.lengths, output_size=points)
    wide = torch.floor(batch.xyz.double() / size)
    columns = cloud.unsqueeze(1).expand(-1, 3)
    low = wide.new_zeros(clouds, 3).scatter_reduce(0, columns, wide, "amin", include_self=False)
    relative = wide - low.index_select(0, cloud)
    top = _checked_top(relative, clouds, size)
    bits = max(top).bit_length()

    cells = relative.long()
    keys = (cloud << (3 * bits)) | z_order(cells)
    keys, order = torch.sort(keys, stable=True)
    shifts = 3 * torch.arange(levels, device=keys.device).clamp(max=bits)  # Numbers from the host would make it wait.
    shorter = keys >> shifts.unsqueeze(1)
    first = torch.ones_like(shorter, dtype=torch.bool)
    first[:, 1:] = shorter[:, 1:] != shorter[:, :-1]
    rank = first.cumsum(1)
    ends = torch.cat([rank.new_zeros(levels, 1), rank], dim=1)[:, batch.offsets]
    counts = ends.tolist()  # The only look at how many voxels there are.
    places = torch.nonzero_static(first, size=sum(row[-1] for row in counts))[:, 1]
    rank = rank - 1

    made: list[Level] = []
    runs = places.split([row[-1] for row in counts])
    for level, starts in enumerate(runs):
        chosen = order.index_select(0, starts)
        if level == 0:
            index = torch.empty_like(order).scatter_(0, order, rank[0])
            groups = Groups(index, _closed(starts, points), order)
            codes = encode(cells.index_select(0, chosen), bits, orders)
            xyz = groups.reduce(batch.xyz, "mean") if points else batch.xyz
        else:
            before = made[-1]
            firsts = rank[level - 1].index_select(0, starts)
            groups = Groups(rank[level].index_select(0, runs[level - 1]), _closed(firsts, len(before)))
            codes = before.codes.index_select(1, firsts) >> 3
            xyz = groups.reduce(before.xyz, "mean") if points else before.xyz
        made.append(
            Level(
                cells=cells.index_select(0, chosen) >> level,
                cloud=cloud.index_select(0, chosen),
                codes=codes,
                xyz=xyz,
                offsets=ends[level],
                counts=tuple(counts[level]),
                top=cast(tuple[int, int, int], tuple(one >> level for one in top)),
                bits=max(bits - level, 0),
                size=size * 2**level,
                groups=groups,
            )
        )
    return made


def _closed(starts: Tensor, end: int) -> Tensor:
    """Starts of runs with the end of the last one."""
    return torch.cat([starts, starts.new_full((1,), end)])


def _checked_top(relative: Tensor, clouds: int, size: float) -> tuple[int, int, int]:
    """Largest position along each axis, as numbers; looks at the device.

    Raises:
        DataError: See `voxelise`.
    """
    if not len(relative):
        return 0, 0, 0
    top = relative.amax(dim=0).tolist()
    if not all(math.isfinite(one) for one in top):
        raise DataError("a cloud has coordinates that are NaN or infinite: leave those points out")
    bits = int(max(top)).bit_length()
    if bits > MAX_LEVELS or clouds << (3 * bits) > 1 << 63:
        raise DataError(
            f"a cloud spans {max(top) + 1:.3g} voxels of {size:g} and there are {clouds} clouds: their codes need "
            f"{3 * bits} bits for the voxel and {(clouds - 1).bit_length()} for the cloud, of 63. Use a larger grid "
            "size, crop the clouds (far outliers?), or take fewer at a time"
        )
    return cast(tuple[int, int, int], tuple(map(int, top)))
