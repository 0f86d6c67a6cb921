"""Dynamic pillars: every point of the range counts, and only pillars that hold a point exist.

Dynamic voxelisation follows arXiv 1910.06528 (section 3.2), the two small networks and their maxima PointPillars
(arXiv 1812.05784, section 2.1).

Legend: B scenes, N points, F numbers of a point, P pillars, C features.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from modalities.driving.config import POINT_OFFSETS, FusionConfig
from modalities.driving.data_config import DrivingDataConfig
from modalities.driving.mapping import constants
from zoo.errors import DataError
from zoo.groups import Groups

__all__ = ["PillarEncoder", "Pillars", "make_pillars"]


@dataclass(frozen=True)
class Pillars:
    """The pillars of a batch, sorted by scene, x and y.

    Attributes:
        points: (N', F) the points in range, sorted by pillar.
        groups: Which of them are in each pillar.
        scene: (P,) int64.
        cell: (P, 2) int64 position in the grid along x and y.
        mean: (P, 3) mean of the points in metres: where the token of the pillar is.
    """

    points: Tensor
    groups: Groups
    scene: Tensor
    cell: Tensor
    mean: Tensor

    def __len__(self) -> int:
        return len(self.scene)


def make_pillars(points: Tensor, offsets: Tensor, data: DrivingDataConfig) -> Pillars:
    """Sorts points into pillars; the host waits for the device once.

    Points outside the range and points with a number that is NaN or infinite are left out.

    Args:
        points: (N, F) x, y, z in the ego frame, then other numbers; N may be 0.
        offsets: (B + 1,) int64 offsets of the scenes.
        data: Range and size of the pillars.
    """
    scenes, count = len(offsets) - 1, len(points)
    along_x, along_y = data.grid
    numbers = torch.arange(scenes, device=points.device)
    scene = torch.repeat_interleave(numbers, offsets.diff(), output_size=count)
    span = constants(data.point_range, points)
    xyz = points[:, :3]
    inside = torch.isfinite(points).all(1) & ((xyz >= span[:3]) & (xyz < span[3:])).all(1)
    places = torch.floor((xyz[:, :2] - span[:2]) / data.pillar_size)
    cell = torch.where(inside.unsqueeze(1), places, 0).long()
    cell[:, 0].clamp_(max=along_x - 1)  # Rounding may lead to the far edge.
    cell[:, 1].clamp_(max=along_y - 1)
    number = torch.where(inside, (scene * along_x + cell[:, 0]) * along_y + cell[:, 1], scenes * along_x * along_y)

    number, order = torch.sort(number, stable=True)
    first = torch.ones_like(number, dtype=torch.bool)
    first[1:] = number[1:] != number[:-1]
    first &= number < scenes * along_x * along_y
    inside_count, pillars = torch.stack([inside.sum(), first.sum()]).tolist()

    order, number, first = order[:inside_count], number[:inside_count], first[:inside_count]
    begins = torch.nonzero_static(first, size=pillars)[:, 0]
    starts = torch.cat([begins, begins.new_full((1,), inside_count)])
    groups = Groups(first.cumsum(0) - 1, starts)
    points, number = points.index_select(0, order), number.index_select(0, begins)
    where = torch.stack([number // along_y % along_x, number % along_y], dim=1)
    mean = groups.reduce(points[:, :3], "mean") if pillars else points.new_zeros(0, 3)
    return Pillars(points, groups, number // (along_x * along_y), where, mean)


class PillarEncoder(nn.Module):
    """Two small networks on the points of every pillar, each followed by the maximum over the pillar.

    A point is given as its position in the range (-1 to 1), its further numbers as they are, and its offsets from the
    mean of its pillar in pillars, from the centre of the pillar in x and y in pillars, and from the middle of the range
    in z in metres.

    Args:
        config: Sizes.
        data: Range and size of the pillars.
    """

    def __init__(self, config: FusionConfig, data: DrivingDataConfig) -> None:
        super().__init__()
        half = max(config.dim // 2, 1)
        self.data, self.features = data, config.point_features
        self.point = nn.Sequential(
            nn.Linear(config.point_features + POINT_OFFSETS, half), nn.LayerNorm(half), nn.ReLU()
        )
        self.pillar = nn.Sequential(nn.Linear(2 * half, config.dim), nn.LayerNorm(config.dim), nn.ReLU())

    def forward(self, pillars: Pillars) -> Tensor:
        """Features of the pillars, (P, C).

        Raises:
            DataError: If points have another number of features.
        """
        points, groups = pillars.points, pillars.groups
        if points.shape[1] != self.features:
            raise DataError(f"points must have {self.features} numbers (x, y, z, ...), got {points.shape[1]}")
        x = self.point(self._describe(pillars).to(next(self.parameters()).dtype))
        if not len(points):  # Part of the graph still, so that gradients are zero and not absent.
            return self.pillar(torch.cat([x, x], dim=1))
        x = torch.cat([x, groups.spread(groups.reduce(x, "max"))], dim=1)
        return groups.reduce(self.pillar(x), "max")

    def _describe(self, pillars: Pillars) -> Tensor:
        """(N', F + POINT_OFFSETS) what is said of every point."""
        points, index, size = pillars.points, pillars.groups.index, self.data.pillar_size
        span = constants(self.data.point_range, points)
        low, extent = span[:3], span[3:] - span[:3]
        xyz = points[:, :3]
        from_mean = (xyz - pillars.mean.index_select(0, index)) / size
        centre = low[:2] + (pillars.cell.to(points.dtype).index_select(0, index) + 0.5) * size
        middle = low[2:] + extent[2:] / 2
        from_centre = torch.cat([(xyz[:, :2] - centre) / size, xyz[:, 2:] - middle], dim=1)
        return torch.cat([2 * (xyz - low) / extent - 1, points[:, 3:], from_mean, from_centre], dim=1)
