"""What a fusion network is trained with: focal losses for heat map and queries, and absolute differences of boxes.

Legend: B scenes, M boxes of a scene (padded), K classes, X x Y cells of the map, Q queries.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from modalities.driving.boxes import BoxTargets
from modalities.driving.config import FusionConfig
from modalities.driving.data_config import DrivingDataConfig
from modalities.driving.mapping import constants
from modalities.driving.matching import assign, matching_cost
from modalities.driving.nuscenes.classes import NO_FRONT
from modalities.driving.query_head import FusionOutputs

__all__ = ["FusionLoss", "encode_boxes", "gaussian_focal_loss", "gaussian_radius", "heat_targets"]

# Smallest length that has a logarithm of use.
_SMALLEST_SIZE = 0.01
# Cells around a box that its bump may reach, and what it reaches at the least.
_LARGEST_RADIUS, _SMALLEST_RADIUS = 8, 1


@dataclass(frozen=True, kw_only=True)
class FusionLoss:
    """The loss of a batch.

    Of classes without a front (`NO_FRONT`, by the names of the classes) the nearer of the two directions of a box
    counts, as in the metrics: labels say either, and between them the absolute differences have no minimum of their
    own, so that sine and cosine would shrink to 0 and the direction be lost.

    Attributes:
        config: Of the network.
        data: Of the network.
        labels: Names of the classes, where they are known.
        heat_weight: Of the focal loss of the heat map, over the number of boxes.
        class_weight: Of the focal loss of the queries' classes, over the number of boxes.
        box_weight: Of the absolute differences of centre (metres), logarithms of the size, and sine and cosine of the
            yaw, summed over these and averaged over the boxes.
        velocity_weight: Of those of the velocity, beside `box_weight`; unknown velocities (NaN) count nothing.
        match_class: Weight of the class in the cost of matching.
        match_centre: Weight of a metre between the centres there.
        match_box: Weight of the other differences there.
        alpha: Weight of the positive class in the focal loss of the queries.
        gamma: Exponent of that loss.
    """

    config: FusionConfig
    data: DrivingDataConfig
    labels: tuple[str, ...] = ()
    heat_weight: float = 1.0
    class_weight: float = 1.0
    box_weight: float = 0.25
    velocity_weight: float = 0.2
    match_class: float = 1.0
    match_centre: float = 0.5
    match_box: float = 0.25
    alpha: float = 0.25
    gamma: float = 2.0

    def __call__(self, outputs: FusionOutputs, targets: BoxTargets) -> dict[str, Tensor]:
        """Losses by name: `"heat"`, `"class"`, `"box"`, `"velocity"`, weighted, and their sum as `"loss"`.

        Scenes without boxes, boxes outside the range and labels that are no class (-1) are legal; only known boxes in
        range count. The host waits for the device once, for the matching.

        Args:
            outputs: Of `FusionDetector.forward_raw`.
            targets: Of `modalities.driving.boxes.pad_boxes`.
        """
        kinds = outputs.classes.shape[2]
        boxes = targets.boxes.to(outputs.boxes.dtype)
        span = constants(self.data.point_range, boxes)
        centre = boxes[..., :2]
        inside = ((centre >= span[:2]) & (centre < span[3:5])).all(-1)
        mask = targets.mask & inside & (targets.labels >= 0) & (targets.labels < kinds)
        mask &= torch.isfinite(boxes[..., :7]).all(-1)
        labels = torch.where(mask, targets.labels, 0)
        boxes = torch.where(mask.unsqueeze(-1), boxes, 0.0)
        codes, known = encode_boxes(boxes)
        count = mask.sum().clamp_min(1)
        alike = self._alike(labels, kinds)

        heat = gaussian_focal_loss(outputs.heatmap, heat_targets(boxes, labels, mask, self.config, self.data, kinds))
        cost = matching_cost(
            outputs,
            codes,
            labels,
            class_weight=self.match_class,
            centre_weight=self.match_centre,
            box_weight=self.match_box,
            alpha=self.alpha,
            gamma=self.gamma,
            alike=alike,
        )
        match = assign(cost, mask)
        matched = match >= 0
        query = match.clamp_min(0)

        scenes, queries = outputs.cells.shape
        wanted = outputs.classes.new_zeros(scenes, queries * kinds + 1)
        place = torch.where(matched, query * kinds + labels, queries * kinds)
        wanted = wanted.scatter(1, place, 1.0)[:, :-1].view(scenes, queries, kinds)
        classes = _focal_loss(outputs.classes, wanted, self.alpha, self.gamma) / count

        found = outputs.boxes.gather(1, query.unsqueeze(2).expand(-1, -1, codes.shape[2]))
        difference = (found - _nearer(codes, found, alike)).abs() * matched.unsqueeze(-1)
        box = difference[..., :8].sum() / count
        velocity = (difference[..., 8:] * known).sum() / count
        losses = {
            "heat": self.heat_weight * heat / count,
            "class": self.class_weight * classes,
            "box": self.box_weight * box,
            "velocity": self.box_weight * self.velocity_weight * velocity,
        }
        return losses | {"loss": torch.stack(list(losses.values())).sum()}

    def _alike(self, labels: Tensor, kinds: int) -> Tensor:
        """(B, M) bool: boxes of classes without a front."""
        found = torch.zeros_like(labels, dtype=torch.bool)
        for label, name in enumerate(self.labels[:kinds]):
            if name in NO_FRONT:
                found = found | (labels == label)
        return found


def encode_boxes(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Boxes in the form that the head predicts.

    Args:
        boxes: (..., 9) of `BoxTargets`.

    Returns:
        (..., 10) as in `FusionOutputs.boxes`, with 0 for unknown velocities, and bool (..., 2) which velocities are
        known.
    """
    size = boxes[..., 3:6].clamp_min(_SMALLEST_SIZE).log()
    yaw, velocity = boxes[..., 6:7], boxes[..., 7:9]
    known = torch.isfinite(velocity)
    velocity = torch.where(known, velocity, 0.0)
    return torch.cat([boxes[..., :3], size, yaw.sin(), yaw.cos(), velocity], dim=-1), known


def _nearer(codes: Tensor, found: Tensor, alike: Tensor) -> Tensor:
    """Codes (B, M, 10) in which boxes that look the same from behind have the direction nearer to what was found."""
    wanted, got = codes[..., 6:8], found[..., 6:8]
    behind = alike & ((got + wanted).abs().sum(-1) < (got - wanted).abs().sum(-1))
    turned = torch.where(behind.unsqueeze(-1), -wanted, wanted)
    return torch.cat([codes[..., :6], turned, codes[..., 8:]], dim=-1)


def gaussian_radius(length: Tensor, width: Tensor, overlap: float = 0.1) -> Tensor:
    """Largest shift of a rectangle along both axes at once that keeps an intersection over union of `overlap`.

    The shifted rectangle (length - r) x (width - r) over the union of both: a quadratic equation in r.
    """
    area, both = length * width, length + width
    # (l - r)(w - r) = overlap (2 l w - (l - r)(w - r)), so r^2 - (l + w) r + l w (1 - overlap) / (1 + overlap) = 0.
    constant = area * (1 - overlap) / (1 + overlap)
    return (both - (both.square() - 4 * constant).clamp_min(0).sqrt()) / 2


def heat_targets(
    boxes: Tensor, labels: Tensor, mask: Tensor, config: FusionConfig, data: DrivingDataConfig, kinds: int
) -> Tensor:
    """Heat map with a bump around the centre of every box, 1 in its cell; of several bumps the largest counts.

    Args:
        boxes: (B, M, 9) of `BoxTargets`, those of the mask in range.
        labels: (B, M) int64 below `kinds`.
        mask: (B, M) bool.
        config: Of the network.
        data: Of the network.
        labels: Names of the classes, where they are known.
        kinds: Classes K.

    Returns:
        (B, K, X, Y).
    """
    size = config.bev_stride * data.pillar_size
    along_x, along_y = (-(-pillars // config.bev_stride) for pillars in data.grid)
    low = constants(data.point_range[:2], boxes)
    cell = ((boxes[..., :2] - low) / size).floor().long()
    radius = gaussian_radius(boxes[..., 3] / size, boxes[..., 4] / size).floor()
    radius = radius.clamp(_SMALLEST_RADIUS, _LARGEST_RADIUS)
    sigma = (2 * radius + 1) / 6
    steps = torch.arange(-_LARGEST_RADIUS, _LARGEST_RADIUS + 1, device=boxes.device)
    around = torch.cartesian_prod(steps, steps)
    squared = around.square().sum(1).to(boxes.dtype)
    bump = torch.exp(-squared / (2 * sigma.unsqueeze(-1).square()))
    reach = around.abs().amax(1) <= radius.unsqueeze(-1)
    at = cell.unsqueeze(2) + around
    fits = reach & mask.unsqueeze(-1) & (at >= 0).all(-1) & (at[..., 0] < along_x) & (at[..., 1] < along_y)
    place = (labels.unsqueeze(-1) * along_x + at[..., 0]) * along_y + at[..., 1]
    cells = kinds * along_x * along_y
    place = torch.where(fits, place, cells)
    heat = boxes.new_zeros(len(boxes), cells + 1)
    heat = heat.scatter_reduce(1, place.flatten(1), bump.flatten(1), "amax")
    return heat[:, :-1].view(len(boxes), kinds, along_x, along_y)


def gaussian_focal_loss(logits: Tensor, heat: Tensor, alpha: float = 2.0, beta: float = 4.0) -> Tensor:
    """Penalty-reduced focal loss of a heat map, summed (CornerNet, arXiv 1808.01244, equation 1).

    Args:
        logits: (B, K, X, Y).
        heat: The same shape; cells with 1 are objects, others count the less the nearer they are to 1.
        alpha: Exponent for easy cells.
        beta: Exponent for cells near an object.
    """
    probability = logits.sigmoid()
    positive = -F.logsigmoid(logits) * (1 - probability) ** alpha
    negative = -F.logsigmoid(-logits) * probability**alpha * (1 - heat) ** beta
    return torch.where(heat == 1, positive, negative).sum()


def _focal_loss(logits: Tensor, wanted: Tensor, alpha: float, gamma: float) -> Tensor:
    """Focal loss for yes or no, summed (arXiv 1708.02002)."""
    probability = logits.sigmoid()
    loss = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    miss = torch.where(wanted == 1, 1 - probability, probability)
    weight = torch.where(wanted == 1, alpha, 1 - alpha)
    return (weight * miss**gamma * loss).sum()
