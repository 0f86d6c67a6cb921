"""The loss of the YOLOv10 head: both branches on the same objects, assigned to many cells and to one.

Written from the papers: consistent dual assignment (YOLOv10, arXiv 2405.14458), task-aligned assignment (TOOD, arXiv
2108.07755), complete IoU (arXiv 1911.08287), distribution focal loss (Generalized Focal Loss, arXiv 2006.04388).

Shapes: B batch, M objects (padded), A cells, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.detection.assign import assign
from zoo.detection.boxes import complete_iou
from zoo.detection.decode import cell_centres, expected_distances, flatten_maps
from zoo.detection.parameter_count import BINS
from zoo.detection.targets import Targets
from zoo.errors import ConfigError, DataError

__all__ = ["DetectionLoss", "distribution_focal_loss"]

TOP_K = {"one2many": 10, "one2one": 1}
# Distances reach just below the last bin, so that there is always a bin on either side.
LONGEST = BINS - 1 - 0.01


class DetectionLoss(nn.Module):
    """Box, distribution and class losses of both branches; each branch counts the same.

    For every branch, sums over cells are divided by the sum of the class targets (at least 1) of the whole batch.
    The arithmetic is float32 (float64 for float64 maps) under autocast too. Deterministic, without synchronisation
    with the device, and independent of the order of the objects. Samples without objects are trained as background.

    Args:
        strides: Pixels of a cell on every level: the `strides` of the model.
        box_gain: Weight of 1 - complete IoU.
        dfl_gain: Weight of the distribution focal loss.
        class_gain: Weight of the binary cross-entropy of the classes.

    Raises:
        ConfigError: If there are no strides or a gain is negative.
    """

    def __init__(
        self, strides: Sequence[float], *, box_gain: float = 7.5, dfl_gain: float = 1.5, class_gain: float = 0.5
    ) -> None:
        super().__init__()
        self.strides = tuple(strides)
        self.gains = {"box": box_gain, "dfl": dfl_gain, "class": class_gain}
        if len(self.strides) < 2 or min(self.gains.values()) < 0:
            raise ConfigError(f"a detection loss needs two strides or more and gains of 0 or more: {self.gains}")

    def forward(self, maps: Mapping[str, Sequence[Tensor]], targets: Targets) -> dict[str, Tensor]:
        """Loss of raw maps.

        Args:
            maps: `{"one2one": [...], "one2many": [...]}` from `forward_raw`, each map (B, 64 + K, rows, columns).
            targets: Objects of the same samples, on the same device. Boxes may reach out of the picture; those without
                area or with values that are not finite are left out.

        Returns:
            Scalars: `"loss"`, the sum of the branches `"one2many"` and `"one2one"`, which are the sums of their parts
            `"one2many_box"`, `"one2many_dfl"`, `"one2many_class"` and so on, with their gains.

        Raises:
            DataError: If the targets are not of this batch.
        """
        first = maps["one2many"][0]
        if targets.boxes.shape[0] != first.shape[0]:
            raise DataError(f"targets of {targets.boxes.shape[0]} samples for a batch of {first.shape[0]}")
        if targets.boxes.shape[1] == 0:
            targets = Targets(
                F.pad(targets.boxes, (0, 0, 0, 1)), F.pad(targets.labels, (0, 1)), F.pad(targets.mask, (0, 1))
            )
        targets = targets.ordered()
        with torch.autocast(first.device.type, enabled=False):
            parts = self._parts(maps, targets)
        branches = {
            branch: torch.stack([value for name, value in parts.items() if name.startswith(branch)]).sum()
            for branch in TOP_K
        }
        return {"loss": torch.stack(list(branches.values())).sum(), **branches, **parts}

    def _parts(self, maps: Mapping[str, Sequence[Tensor]], targets: Targets) -> dict[str, Tensor]:
        # The branches go through together, one after the other along the batch: launches cost as much as the work.
        # Only the assignment, whose tensors have a number for every pair of object and cell, takes them apart.
        count = len(targets.boxes)
        joined = [torch.cat(levels) for levels in zip(*(maps[branch] for branch in TOP_K), strict=True)]
        dtype = torch.float64 if joined[0].dtype == torch.float64 else torch.float32
        bins, logits = (flat.to(dtype) for flat in flatten_maps(joined))
        centres, sizes = cell_centres(joined, self.strides, dtype)
        near, far = (expected_distances(bins) * sizes).split(2, dim=2)
        boxes = torch.cat([centres - near, centres + far], dim=2)
        predicted, scores = boxes.detach().split(count), logits.detach().sigmoid().split(count)
        found = [
            assign(at, score, centres, targets, top_k=top_k, smallest_side=self.strides[1])
            for at, score, top_k in zip(predicted, scores, TOP_K.values(), strict=True)
        ]
        truth = torch.cat([one.boxes for one in found])
        labels, weights = torch.cat([one.labels for one in found]), torch.cat([one.weights for one in found])
        wanted = torch.zeros_like(logits).scatter(2, labels.unsqueeze(2), weights.unsqueeze(2))
        distances = torch.cat([centres - truth[..., :2], truth[..., 2:] - centres], dim=2) / sizes
        cells = {
            "box": (1 - complete_iou(boxes, truth)) * weights,
            "dfl": distribution_focal_loss(bins, distances).mean(dim=2) * weights,
            "class": F.binary_cross_entropy_with_logits(logits, wanted, reduction="none").sum(dim=2),
        }
        shape = (len(TOP_K), -1)
        totals = weights.reshape(shape).sum(dim=1).clamp_min(1)
        sums = {name: self.gains[name] * value.reshape(shape).sum(dim=1) / totals for name, value in cells.items()}
        return {f"{branch}_{name}": sums[name][i] for i, branch in enumerate(TOP_K) for name in sums}


def distribution_focal_loss(logits: Tensor, distances: Tensor) -> Tensor:
    """Cross-entropy with the two bins around each distance, by their nearness (Generalized Focal Loss).

    Args:
        logits: (..., 16).
        distances: (...) in cells; cut to the range of the bins.

    Returns:
        (...).
    """
    distances = distances.clamp(0, LONGEST)
    lower = distances.floor()
    upper_share = distances - lower
    index = lower.long().unsqueeze(-1)
    logs = logits.log_softmax(dim=-1)
    below, above = logs.gather(-1, index).squeeze(-1), logs.gather(-1, index + 1).squeeze(-1)
    return -(below * (1 - upper_share) + above * upper_share)
