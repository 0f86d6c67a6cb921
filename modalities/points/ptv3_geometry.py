"""What a Point Transformer V3 derives from coordinates alone: levels, orders along curves, patches, neighbours.

All of it is made before the first feature is computed, with three looks at the device for a whole forward: how large
the clouds are, how many voxels each level has, and how far patches reach.

Patches: a cloud of n voxels is cut along the curve into ceil(n / P) patches whose sizes differ by at most one, P the
largest. The published network fills the last patch of a cloud with voxels of the one before, which attend twice; here
every voxel is in one patch, and how a cloud is cut depends on its own number of voxels alone. So a cloud's result does
not depend on what else is in the batch, and nothing is padded.

Legend: B clouds, V voxels of a level, M patches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from modalities.points.batch import PointBatch
from modalities.points.kernel_map import KernelMap, kernel_map
from modalities.points.serialise import ORDERS
from modalities.points.voxels import Level, voxelise
from zoo.coordinates import Coordinates

__all__ = ["Geometry", "Serial", "curve_schedule", "patch_lengths"]


@dataclass(frozen=True)
class Serial:
    """The voxels of a level along one curve.

    Attributes:
        order: (V,) int64 voxel at each place; `None` for the z-order, in which voxels lie.
        inverse: (V,) int64 place of each voxel.
        coords: Where they are, in voxel edges of the level from the middle of their patch, packed by patch.
    """

    order: Tensor | None
    inverse: Tensor | None
    coords: Coordinates

    def arrange(self, x: Tensor) -> Tensor:
        """Rows of voxels to rows along the curve."""
        return x if self.order is None else cast(Tensor, _Permute.apply(x, self.order, self.inverse))

    def restore(self, x: Tensor) -> Tensor:
        """Rows along the curve to rows of voxels."""
        return x if self.order is None else cast(Tensor, _Permute.apply(x, self.inverse, self.order))


class _Permute(torch.autograd.Function):
    """A permutation of rows, whose gradient is the opposite permutation instead of an atomic addition."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return x.index_select(0, order)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad.index_select(0, ctx.saved_tensors[0]), None, None


def curve_schedule(depths: Sequence[int], generator: torch.Generator | None, shuffle: bool) -> list[list[int]]:
    """Which curve, an index into `ORDERS`, each block of each stage follows; block i of a stage takes entry i mod 4.

    Without shuffling the blocks of the network take the four curves in turn. With it every stage has a random order of
    its own, as published (there in evaluation too).

    Args:
        depths: Blocks of each stage.
        generator: On the CPU; `None` is torch's own.
        shuffle: Whether to shuffle.
    """
    curves, made, blocks = len(ORDERS), [], 0
    for depth in depths:
        if shuffle:
            made.append(torch.randperm(curves, generator=generator).tolist())
        else:
            made.append([(blocks + i) % curves for i in range(curves)])
        blocks += depth
    return made


def patch_lengths(voxels: int, patch_size: int) -> list[int]:
    """Sizes of the patches that a cloud is cut into: as few as can be, as equal as can be, smaller ones first."""
    if not voxels:
        return []
    count = -(-voxels // patch_size)
    ends = [voxels * i // count for i in range(count + 1)]
    return [b - a for a, b in zip(ends, ends[1:], strict=False)]


class Geometry:
    """Levels of a batch, with their orders, patches and neighbours.

    Args:
        batch: The clouds.
        grid_size: Edge of a voxel at level 0.
        patch_size: Most voxels of a patch.
        depths: Blocks that run at each level, by the larger of encoder and decoder.
        schedule: See `curve_schedule`.
        stem_kernel: Edge of the kernel of the first convolution.

    Raises:
        DataError: See `voxelise`.
    """

    def __init__(
        self,
        batch: PointBatch,
        grid_size: float,
        patch_size: int,
        depths: Sequence[int],
        schedule: Sequence[Sequence[int]],
        stem_kernel: int,
    ) -> None:
        self.schedule = schedule
        self.levels: list[Level] = voxelise(batch, grid_size, len(depths), ORDERS)
        self.stem_neighbours: KernelMap = kernel_map(self.levels[0], stem_kernel)
        first = self.stem_neighbours.inner(3) if stem_kernel > 3 else kernel_map(self.levels[0], 3)
        self.neighbours = [first, *(kernel_map(level, 3) for level in self.levels[1:])]
        used = [list(dict.fromkeys(row[:depth])) for row, depth in zip(schedule, depths, strict=True)]
        made = [_Patches(level, curves, patch_size) for level, curves in zip(self.levels, used, strict=True)]
        reach = torch.cat([patches.reach for patches in made]).tolist()  # The only look at how far patches reach.
        self._serials: list[dict[int, Serial]] = []
        for patches in made:
            self._serials.append(patches.serials(reach[: 3 * len(patches.curves)]))
            del reach[: 3 * len(patches.curves)]

    def curve(self, stage: int, block: int) -> int:
        """Which curve a block of a stage follows."""
        return self.schedule[stage][block % len(ORDERS)]

    def serial(self, stage: int, block: int) -> Serial:
        """The voxels along the curve of a block."""
        return self._serials[stage][self.curve(stage, block)]


class _Patches:
    """Patches of one level along some curves."""

    def __init__(self, level: Level, curves: list[int], patch_size: int) -> None:
        self.curves, count, device = curves, len(level), level.xyz.device
        self.orders = level.permutations(curves)
        own = torch.arange(count, device=device).expand_as(self.orders)
        self.inverses = torch.empty_like(self.orders).scatter_(1, self.orders, own)
        clouds = [b - a for a, b in zip(level.counts, level.counts[1:], strict=False)]
        lengths = torch.tensor([one for n in clouds for one in patch_lengths(n, patch_size)], dtype=torch.int64)
        starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        self.starts = starts.to(device, non_blocking=True)
        number = torch.arange(len(lengths), device=device)
        self.sample = torch.repeat_interleave(number, self.starts.diff(), output_size=count)
        # (V, 3 curves): all curves at once.
        xyz = level.xyz[self.orders].transpose(0, 1).flatten(1)
        if not count:
            self.values, self.reach = xyz.float(), torch.zeros(3 * len(curves), device=device)
            return
        ends = [torch.segment_reduce(xyz, how, offsets=self.starts, axis=0, unsafe=True) for how in ("min", "max")]
        middle = ends[0] + (ends[1] - ends[0]) / 2
        exact = xyz.dtype if xyz.dtype == torch.float64 else torch.float32
        self.values = ((xyz - middle.index_select(0, self.sample)) / level.size).to(exact)
        self.reach = ((ends[1] - ends[0]) / (2 * level.size)).amax(0).float()

    def serials(self, reach: list[float]) -> dict[int, Serial]:
        """The voxels along each curve, given how far patches reach from their middles."""
        made = {}
        offsets = self.starts.to(torch.int32)
        for place, curve in enumerate(self.curves):
            axes = slice(3 * place, 3 * place + 3)
            coords = Coordinates(
                self.values[:, axes].contiguous(),
                cu_seqlens=offsets,
                sample=self.sample,
                bounds=tuple((-one, one) for one in reach[axes]),
                unit="voxel",
            )
            sorted_already = ORDERS[curve] == "z"
            order, inverse = self.orders[place], self.inverses[place]
            made[curve] = Serial(None if sorted_already else order, None if sorted_already else inverse, coords)
        return made
