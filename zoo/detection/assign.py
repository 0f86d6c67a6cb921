"""Which cells are trained on which object: task-aligned assignment (TOOD, Feng et al., 2021, arXiv 2108.07755).

A cell fits an object by t = s^alpha u^beta, with its score s for the object's class and the overlap u of its box. As
overlap serves the complete IoU, cut at 0: what the box loss improves.

Shapes: B batch, M objects (padded), A cells, K classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.detection.boxes import complete_iou
from zoo.detection.targets import Targets

__all__ = ["ALPHA", "BETA", "Assignment", "assign"]

ALPHA, BETA = 0.5, 6.0


@dataclass(frozen=True, eq=False)
class Assignment:
    """The object of every cell.

    Attributes:
        boxes: (B, A, 4) box of the object; zeros where there is none.
        labels: (B, A) its class; 0 where there is none.
        weights: (B, A) target of the class score, also the weight in the box losses: t scaled so that the best cell of
            an object has the highest overlap of the object's cells; 0 where there is none.
    """

    boxes: Tensor
    labels: Tensor
    weights: Tensor


@torch.no_grad()
def assign(
    boxes: Tensor, scores: Tensor, centres: Tensor, targets: Targets, *, top_k: int, smallest_side: float
) -> Assignment:
    """Gives each object its `top_k` best cells, and each cell at most one object.

    Candidates are the cells with their centre inside the object's box; for this test, sides shorter than
    `smallest_side` are taken as that long, so that small objects between centres have candidates. A cell that several
    objects choose goes to the one it overlaps most.

    Args:
        boxes: (B, A, 4) predicted boxes in pixels.
        scores: (B, A, K) predicted scores in 0..1.
        centres: (A, 2) of the cells in pixels.
        targets: Usable objects, from `Targets.ordered`; M at least 1.
        top_k: Cells of an object.
        smallest_side: In pixels.
    """
    truth = targets.boxes.to(boxes.dtype)
    middle = (truth[..., :2] + truth[..., 2:]) / 2
    half = (truth[..., 2:] - truth[..., :2]).clamp_min(smallest_side) / 2
    away = (centres - middle.unsqueeze(2)).abs()  # (B, M, A, 2)
    candidate = (away < half.unsqueeze(2)).all(dim=3) & targets.mask.unsqueeze(2)
    overlap = complete_iou(boxes.unsqueeze(1), truth.unsqueeze(2)).clamp_min(0).where(candidate, 0.0)  # (B, M, A)
    score = scores.transpose(1, 2).gather(1, targets.labels.unsqueeze(2).expand_as(overlap))
    metric = score.pow(ALPHA) * overlap.pow(BETA)

    best, index = metric.topk(min(top_k, metric.shape[2]), dim=2)
    chosen = torch.zeros_like(candidate).scatter(2, index, best > 0)
    owner = overlap.where(chosen, -1.0).argmax(dim=1)  # (B, A); the first of equals, in the order of the targets.
    own = chosen & (torch.arange(chosen.shape[1], device=owner.device).view(1, -1, 1) == owner.unsqueeze(1))

    metric, overlap = metric.where(own, 0.0), overlap.where(own, 0.0)
    highest = metric.amax(dim=2, keepdim=True)
    scaled = metric / highest.where(highest > 0, 1.0) * overlap.amax(dim=2, keepdim=True)
    weights = scaled.amax(dim=1)  # A cell has one owner.
    positive = weights > 0
    return Assignment(
        truth.gather(1, owner.unsqueeze(2).expand(-1, -1, 4)) * positive.unsqueeze(2),
        targets.labels.gather(1, owner) * positive,
        weights,
    )
