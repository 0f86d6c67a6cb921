"""Losses of semantic segmentation: cross-entropy with ignored points, and the Lovasz-softmax surrogate of mean IoU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["SegmentationLoss", "cross_entropy", "lovasz_softmax"]


def cross_entropy(logits: Tensor, labels: Tensor, *, ignore_label: int = 255, smoothing: float = 0.0) -> Tensor:
    """Mean cross-entropy of the points that count, in float32 or wider; 0 where none counts.

    Args:
        logits: (N, K).
        labels: int64 (N,).
        ignore_label: Label of points that do not count.
        smoothing: Share of the target that is spread over all classes.
    """
    known = labels != ignore_label
    wide = logits if logits.dtype == torch.float64 else logits.float()
    summed = F.cross_entropy(
        wide, labels, ignore_index=ignore_label, label_smoothing=smoothing, reduction="sum"
    )  # The mean of no point would be NaN.
    return summed / known.sum().clamp_min(1)


def lovasz_softmax(logits: Tensor, labels: Tensor, *, ignore_label: int = 255) -> Tensor:
    """Lovasz-softmax loss (Berman et al., CVPR 2018, arXiv 1705.08790, equations 8 to 12), mean over present classes.

    For each class the errors m_i = 1 - p_i(class) on its points and p_i(class) elsewhere, sorted to fall, are weighted
    by how much the Jaccard loss rises when point after point is counted as wrong. All points are one image, as in the
    published code's batch-wise mode. Shapes do not depend on the labels, and nothing is read back from a device.

    Args:
        logits: (N, K); probabilities are taken by softmax in float32 or wider.
        labels: int64 (N,).
        ignore_label: Label of points that do not count.

    Returns:
        Scalar; 0 where no point counts.
    """
    wide = logits if logits.dtype == torch.float64 else logits.float()
    known = (labels != ignore_label).unsqueeze(1)
    classes = torch.arange(logits.shape[1], device=logits.device)
    truth = (labels.unsqueeze(1) == classes) & known
    probability = wide.softmax(1)
    errors = torch.where(truth, 1 - probability, probability)
    # Points that do not count come last, with nothing to add, so that the ones before do not see them.
    order = errors.detach().masked_fill(~known, -1.0).argsort(0, descending=True)
    errors = errors.masked_fill(~known, 0.0).gather(0, order)
    found = truth.gather(0, order).to(wide.dtype)
    total = found.sum(0)
    intersection = total - found.cumsum(0)
    union = total + (1 - found).cumsum(0)
    jaccard = 1 - intersection / union  # The union is never empty: it counts the point itself.
    weights = torch.cat([jaccard[:1], jaccard.diff(dim=0)])
    losses = (errors * weights.detach()).sum(0)
    present = (total > 0).to(wide.dtype)
    return (losses * present).sum() / present.sum().clamp_min(1)


class SegmentationLoss(nn.Module):
    """Cross-entropy plus Lovasz-softmax, as the published segmentation recipes of Point Transformer V3 have it.

    Args:
        ignore_label: Label of points that do not count.
        smoothing: Of the cross-entropy's targets.
        lovasz: Weight of the second term; 0 leaves it out.
    """

    def __init__(self, ignore_label: int = 255, smoothing: float = 0.0, lovasz: float = 1.0) -> None:
        super().__init__()
        self.ignore_label, self.smoothing, self.lovasz = ignore_label, smoothing, lovasz

    def forward(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Loss and its parts of logits (N, K) and labels int64 (N,)."""
        first = cross_entropy(logits, labels, ignore_label=self.ignore_label, smoothing=self.smoothing)
        if not self.lovasz:
            return {"loss": first}
        second = lovasz_softmax(logits, labels, ignore_label=self.ignore_label)
        return {"loss": first + self.lovasz * second, "cross_entropy": first, "lovasz": second}
