"""Which query answers for which box: one to one, at the least cost in total (Hungarian method, by scipy)."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from modalities.driving.query_head import FusionOutputs
from zoo.errors import require

__all__ = ["assign", "matching_cost"]

# Costs beyond this do not matter, and must stay finite for the solver.
_WORST = 1e6


@torch.no_grad()
def matching_cost(
    outputs: FusionOutputs,
    codes: Tensor,
    labels: Tensor,
    *,
    class_weight: float,
    centre_weight: float,
    box_weight: float,
    alpha: float,
    gamma: float,
    alike: Tensor | None = None,
) -> Tensor:
    """Cost (B, Q, M) of giving a box to a query.

    Args:
        outputs: Of the head.
        codes: (B, M, 10) boxes as in `FusionOutputs.boxes`; velocities are not looked at.
        labels: (B, M) int64 classes, 0 or more.
        class_weight: Of the focal loss that the class of the box would cost less what it costs as background.
        centre_weight: Of the distance of the centres in x and y, in metres.
        box_weight: Of the absolute differences of height, logarithms of the size, and sine and cosine of the yaw.
        alpha: Of the focal loss.
        gamma: Of the focal loss.
        alike: (B, M) bool, boxes whose front and back are alike: the nearer of the two directions counts.
    """
    logits = outputs.classes
    probability = logits.sigmoid()
    positive = alpha * (1 - probability) ** gamma * -F.logsigmoid(logits)
    negative = (1 - alpha) * probability**gamma * -F.logsigmoid(-logits)
    index = labels.unsqueeze(1).expand(-1, logits.shape[1], -1)
    classes = (positive - negative).gather(2, index)
    distance = torch.cdist(outputs.boxes[..., :2], codes[..., :2], compute_mode="donot_use_mm_for_euclid_dist")
    found = outputs.boxes[..., 2:8]
    rest = torch.cdist(found, codes[..., 2:8], p=1.0)
    if alike is not None:
        turned = torch.cat([codes[..., 2:6], -codes[..., 6:8]], dim=-1)
        rest = torch.where(alike.unsqueeze(1), torch.minimum(rest, torch.cdist(found, turned, p=1.0)), rest)
    cost = class_weight * classes + centre_weight * distance + box_weight * rest
    return torch.nan_to_num(cost, nan=_WORST, posinf=_WORST, neginf=-_WORST)


def assign(cost: Tensor, mask: Tensor) -> Tensor:
    """The query of every box.

    Where there are more boxes than queries, the boxes that cost most have none.

    Args:
        cost: (B, Q, M) finite costs.
        mask: (B, M) bool, True where there is a box.

    Returns:
        (B, M) int64 query, -1 for none, on the device of the costs.

    Raises:
        MissingDependencyError: Without scipy.
    """
    solve = require("scipy.optimize", "driving").linear_sum_assignment
    # One transfer each way for the whole batch.
    together = torch.cat([cost, mask.unsqueeze(1).to(cost.dtype)], dim=1).float().cpu().numpy()
    found = np.full(mask.shape, -1, dtype=np.int64)
    for row, scene in zip(found, together, strict=True):
        there = np.flatnonzero(scene[-1])
        queries, boxes = solve(scene[:-1, there])
        row[there[boxes]] = queries
    return torch.from_numpy(found).to(cost.device, non_blocking=True)
