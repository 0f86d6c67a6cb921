"""Overlap of boxes (x1, y1, x2, y2)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["EPS", "complete_iou", "iou"]

EPS = 1e-7


def iou(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of boxes (..., 4) that broadcast against each other: (...)."""
    inner = torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])
    intersection = inner.clamp_min(0).prod(dim=-1)
    union = (a[..., 2:] - a[..., :2]).prod(dim=-1) + (b[..., 2:] - b[..., :2]).prod(dim=-1) - intersection
    return intersection / (union + EPS)


def complete_iou(a: Tensor, b: Tensor) -> Tensor:
    """Complete IoU (Zheng et al., 2020, arXiv 1911.08287): less the distance of centres and of aspect ratios.

    `iou - d^2 / c^2 - alpha v` with the distance d of the centres, the diagonal c of the smallest box around both,
    `v = 4 / pi^2 (atan(w_b / h_b) - atan(w_a / h_a))^2`, and `alpha = v / (1 - iou + v)` as a constant to the gradient.

    Args:
        a: (..., 4).
        b: (..., 4), broadcast against `a`.

    Returns:
        (...), in (-2, 1]; finite for boxes without area too.
    """
    overlap = iou(a, b)
    outer = torch.maximum(a[..., 2:], b[..., 2:]) - torch.minimum(a[..., :2], b[..., :2])
    diagonal = outer.square().sum(dim=-1) + EPS
    distance = (b[..., :2] + b[..., 2:] - a[..., :2] - a[..., 2:]).square().sum(dim=-1) / 4
    size_a, size_b = a[..., 2:] - a[..., :2], b[..., 2:] - b[..., :2]
    angle_a = torch.atan(size_a[..., 0] / (size_a[..., 1] + EPS))
    angle_b = torch.atan(size_b[..., 0] / (size_b[..., 1] + EPS))
    v = (4 / math.pi**2) * (angle_b - angle_a).square()
    alpha = (v / (1 - overlap + v + EPS)).detach()
    return overlap - distance / diagonal - alpha * v
