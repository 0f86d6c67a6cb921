"""Groups of neighbouring points: centres, their nearest points, and what a network reads of a group.

Legend: B clouds, L places of the longest cloud, G groups, K points of a group.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from zoo.errors import ConfigError, DataError

__all__ = [
    "FEATURES",
    "Groups",
    "GroupFeatures",
    "InvariantFeatures",
    "PlacedFeatures",
    "RelativeFeatures",
    "farthest_points",
    "group_points",
    "random_points",
]


class Groups(NamedTuple):
    """Groups of points around chosen centres.

    Attributes:
        centres: (B, G, 3).
        points: (B, G, K, 3) the nearest points of each centre, itself the first.
        mask: (B, G, K) bool, True for real points.
        valid: (B, G) bool, True for real groups: a cloud of fewer than G points has as many groups as points.
        centroid: (B, 1, 1, 3) the mean of the cloud's points.
    """

    centres: Tensor
    points: Tensor
    mask: Tensor
    valid: Tensor
    centroid: Tensor


def _farthest(xyz: Tensor, mask: Tensor, count: int) -> Tensor:
    """The loop of `farthest_points`."""
    nearest = torch.where(mask, torch.inf, -1.0).to(xyz.dtype)
    offset = (xyz - _centroid(xyz, mask)).square().sum(-1)
    current = torch.where(mask, offset, -1.0).argmax(1)
    chosen = []
    for _ in range(count):
        chosen.append(current)
        point = xyz.gather(1, current.view(-1, 1, 1).expand(-1, 1, 3))
        nearest = torch.minimum(nearest, (xyz - point).square().sum(-1))
        current = nearest.argmax(1)
    return torch.stack(chosen, dim=1)


# One operator for compilers, which would unroll the loop. Eager code calls the function, since an operator imports the
# compiler.
_operator = torch.library.custom_op("pape_zoo::farthest_points", _farthest, mutates_args=())


@_operator.register_fake
def _(xyz: Tensor, mask: Tensor, count: int) -> Tensor:
    return xyz.new_empty((xyz.shape[0], count), dtype=torch.int64)


def _centroid(xyz: Tensor, mask: Tensor) -> Tensor:
    """Mean of the real points, (B, 1, 3); places that are not real must hold finite numbers."""
    weight = mask.unsqueeze(-1).to(xyz.dtype)
    return (xyz * weight).sum(1, keepdim=True) / weight.sum(1, keepdim=True).clamp_min(1)


def farthest_points(xyz: Tensor, mask: Tensor, count: int) -> Tensor:
    """Farthest-point sampling of all clouds at once (Eldar et al. 1997; PointNet++, arXiv 1706.02413, section 3.2).

    It starts at the point farthest from the centroid, and of equally far points takes the first, so that the result is
    a function of the cloud. Turning a cloud changes it only where rounding decides between points equally far away.

    Args:
        xyz: (B, L, 3) float32 or float64, finite.
        mask: (B, L) bool, True for real points.
        count: How many; once all points of a cloud are taken, points come again.

    Returns:
        Indices, int64 (B, count).

    Raises:
        DataError: If there are no places to choose from.
    """
    if xyz.shape[1] == 0 or count < 1:
        raise DataError(f"sampling {count} points of clouds with {xyz.shape[1]} places: both must be at least 1")
    find = _operator if torch.compiler.is_compiling() else _farthest
    chosen: Tensor = find(xyz.detach(), mask, count)
    return chosen


def random_points(mask: Tensor, count: int) -> Tensor:
    """Random points of every cloud, without repetition while there are any left.

    Random numbers come from the default generator of the device, which training seeds at every step.

    Args:
        mask: (B, L) bool, True for real points.
        count: How many.

    Returns:
        Indices, int64 (B, count); the first `min(count, points of the cloud)` are real points.
    """
    order = torch.where(mask, torch.rand(mask.shape, device=mask.device), 2.0).argsort(1)
    repeats = -(-count // mask.shape[1])
    return order.repeat(1, repeats)[:, :count]


def group_points(xyz: Tensor, mask: Tensor, centres: Tensor, size: int) -> Groups:
    """The nearest points of each centre.

    Args:
        xyz: (B, L, 3) float32 or float64, finite.
        mask: (B, L) bool, True for real points.
        centres: (B, G) int64 indices of points.
        size: K; clouds of fewer points give what they have.
    """
    middle = xyz.gather(1, centres.unsqueeze(-1).expand(-1, -1, 3))
    # Differences, not the expanded square: in float32 that loses the distances of close points.
    distance = (middle.unsqueeze(2) - xyz.unsqueeze(1)).square().sum(-1)
    distance = distance.masked_fill(~mask.unsqueeze(1), torch.inf)
    nearest = distance.topk(min(size, xyz.shape[1]), dim=2, largest=False)
    index = nearest.indices.flatten(1).unsqueeze(-1).expand(-1, -1, 3)
    points = xyz.gather(1, index).unflatten(1, nearest.indices.shape[1:])
    known = nearest.values.isfinite()
    count = mask.sum(1, keepdim=True)
    valid = torch.arange(centres.shape[1], device=mask.device) < count
    centroid = _centroid(xyz, mask).unsqueeze(1)
    return Groups(middle, torch.where(known.unsqueeze(-1), points, middle.unsqueeze(2)), known, valid, centroid)


class GroupFeatures(Protocol):
    """What a network reads of the points of a group."""

    channels: ClassVar[int]

    def __call__(self, groups: Groups, spacing: float) -> Tensor:
        """(B, G, K, channels) of about unit size; `spacing` is the unit of length."""


class RelativeFeatures:
    """Points relative to the centre of their group; where groups are is left to the position encoding."""

    channels: ClassVar[int] = 3

    def __call__(self, groups: Groups, spacing: float) -> Tensor:
        """See `GroupFeatures`."""
        return (groups.points - groups.centres.unsqueeze(2)) / spacing


class PlacedFeatures:
    """Points relative to the centre of their group, and the centre itself: a group also knows where it is."""

    channels: ClassVar[int] = 6

    def __call__(self, groups: Groups, spacing: float) -> Tensor:
        """See `GroupFeatures`; the centre is in units of the cloud, not of the spacing."""
        centres = groups.centres.unsqueeze(2).expand_as(groups.points)
        return torch.cat([(groups.points - centres) / spacing, centres], dim=-1)


class InvariantFeatures:
    """Numbers that turning the cloud (any rotation, any shift) leaves as they are.

    Of the vectors u from the centre to the point, v from the centre to the mean of the group, and w from the cloud's
    centroid to the centre: the three lengths, the three inner products, and the signed volume det(u, v, w), which tells
    a shape from its mirror image. These determine the three vectors up to a rotation. Lengths are invariant exactly in
    real numbers and to rounding in floating point.
    """

    channels: ClassVar[int] = 7

    def __call__(self, groups: Groups, spacing: float) -> Tensor:
        """See `GroupFeatures`."""
        weight = groups.mask.unsqueeze(-1).to(groups.points.dtype)
        u = (groups.points - groups.centres.unsqueeze(2)) / spacing
        v = (u * weight).sum(2, keepdim=True) / weight.sum(2, keepdim=True).clamp_min(1)
        w = groups.centres.unsqueeze(2) - groups.centroid  # Of about unit size already.
        u, v, w = torch.broadcast_tensors(u, v, w)
        lengths = [_length(vector) for vector in (u, v, w)]
        products = [(a * b).sum(-1) for a, b in ((u, v), (u, w), (v, w))]
        volume = (u * torch.linalg.cross(v, w)).sum(-1)
        return torch.stack([*lengths, *products, volume], dim=-1)


def _length(vector: Tensor) -> Tensor:
    """Euclidean length whose gradient at zero is zero and not NaN."""
    square = vector.square().sum(-1)
    return torch.where(square > 0, square, 1.0).sqrt() * (square > 0)


# Name in configurations -> class.
FEATURES: dict[str, type[RelativeFeatures] | type[PlacedFeatures] | type[InvariantFeatures]] = {
    "relative": RelativeFeatures,
    "relative+centre": PlacedFeatures,
    "invariant": InvariantFeatures,
}


def group_features(name: str) -> RelativeFeatures | PlacedFeatures | InvariantFeatures:
    """The features of this name.

    Raises:
        ConfigError: If there are none.
    """
    if name not in FEATURES:
        raise ConfigError(f"model config: group_features must be one of {', '.join(FEATURES)}, got {name!r:.80}")
    return FEATURES[name]()
