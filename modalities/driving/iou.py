"""Overlap of turned boxes, from above and in three dimensions, exact and in plain torch operations."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.errors import DataError

__all__ = ["bev_intersection", "iou_3d", "iou_bev"]

_ROUNDING = 1e-9  # of a coordinate in units of metres: what lies on a border within this counts as inside


@torch.no_grad()
def iou_bev(first: Tensor, second: Tensor) -> Tensor:
    """Intersection over union of the outlines from above, of all pairs.

    Args:
        first: (..., N, 7) x, y, z, length, width, height, yaw, or more columns, of any floating dtype.
        second: (..., M, 7); leading axes are broadcast.

    Returns:
        (..., N, M) in the dtype of `first`, without gradients; 0 where both boxes are empty.

    Raises:
        DataError: If a shape does not fit.
    """
    a, b = _pairs(first, second)
    overlap = _intersection(a, b)
    return _ratio(overlap, a[..., 3] * a[..., 4], b[..., 3] * b[..., 4]).to(first.dtype)


@torch.no_grad()
def iou_3d(first: Tensor, second: Tensor) -> Tensor:
    """Intersection over union of the volumes of all pairs; arguments and result as in `iou_bev`."""
    a, b = _pairs(first, second)
    top = torch.minimum(a[..., 2] + a[..., 5] / 2, b[..., 2] + b[..., 5] / 2)
    floor = torch.maximum(a[..., 2] - a[..., 5] / 2, b[..., 2] - b[..., 5] / 2)
    overlap = _intersection(a, b) * (top - floor).clamp(min=0)
    return _ratio(overlap, a[..., 3:6].prod(-1), b[..., 3:6].prod(-1)).to(first.dtype)


@torch.no_grad()
def bev_intersection(first: Tensor, second: Tensor) -> Tensor:
    """Area in square metres common to the outlines from above; arguments and result as in `iou_bev`."""
    return _intersection(*_pairs(first, second)).to(first.dtype)


def _pairs(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    for boxes in (first, second):
        if boxes.dim() < 2 or boxes.shape[-1] < 7:
            raise DataError(f"boxes for an overlap must be (..., count, 7 or more), got {tuple(boxes.shape)}")
    return first[..., :, None, :7].double(), second[..., None, :, :7].double()


def _ratio(overlap: Tensor, first: Tensor, second: Tensor) -> Tensor:
    union = first + second - overlap
    return torch.where(union > 0, overlap / torch.where(union > 0, union, 1.0), 0.0).clamp(0, 1)


def _intersection(a: Tensor, b: Tensor) -> Tensor:
    """Area of the intersection of (..., 7) boxes, by its corners in the frame of b.

    They are the ends of the edges of a, cut by the slabs of b (Liang and Barsky, 1984), and the corners of b inside a:
    12 places, of which those that are no corners are put on one that is.
    """
    half_a, half_b = a[..., 3:5] / 2, b[..., 3:5] / 2
    cos, sin = b[..., 6].cos(), b[..., 6].sin()
    dx, dy = a[..., 0] - b[..., 0], a[..., 1] - b[..., 1]
    middle = torch.stack([dx * cos + dy * sin, dy * cos - dx * sin], -1)
    turn = a[..., 6] - b[..., 6]
    cos, sin = turn.cos(), turn.sin()
    signs = a.new_tensor([[1, 1], [-1, 1], [-1, -1], [1, -1]])

    local = signs * half_a[..., None, :]
    corners = middle[..., None, :] + _turn(local, cos, sin)
    edges = corners.roll(-1, -2) - corners
    # Slab by slab: the share of the edge at which it enters and leaves. An edge along a slab is in it or not.
    along = edges.abs() < 1e-12
    inverse = 1 / torch.where(along, 1.0, edges)
    low, high = (-half_b[..., None, :] - corners) * inverse, (half_b[..., None, :] - corners) * inverse
    within = corners.abs() <= half_b[..., None, :] + _ROUNDING
    enter = torch.where(along, 0.0, torch.minimum(low, high)).amax(-1).clamp(min=0)
    leave = torch.where(along, 1.0, torch.maximum(low, high)).amin(-1).clamp(max=1)
    cut = (enter <= leave) & (within | ~along).all(-1)
    ends = [corners + share[..., None] * edges for share in (enter, leave)]

    others = (signs * half_b[..., None, :]).expand_as(corners)
    in_a = _turn(others - middle[..., None, :], cos, -sin).abs() <= half_a[..., None, :] + _ROUNDING
    points = torch.cat([*ends, others], -2)
    valid = torch.cat([cut, cut, in_a.all(-1)], -1)

    first = valid.int().argmax(-1)[..., None, None].expand(*valid.shape[:-1], 1, 2)
    points = torch.where(valid[..., None], points, points.gather(-2, first))
    offset = points - points.mean(-2, keepdim=True)  # inside, since the intersection is convex
    order = torch.atan2(offset[..., 1], offset[..., 0]).argsort(-1)[..., None].expand_as(offset)
    x, y = offset.gather(-2, order).unbind(-1)
    area = (x * y.roll(-1, -1) - y * x.roll(-1, -1)).sum(-1).abs() / 2
    return torch.where(valid.any(-1), area, 0.0)


def _turn(points: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns (..., K, 2) by angles (...)."""
    x, y = points.unbind(-1)
    cos, sin = cos[..., None], sin[..., None]
    return torch.stack([x * cos - y * sin, x * sin + y * cos], -1)
