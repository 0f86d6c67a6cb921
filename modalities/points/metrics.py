"""Metrics of point clouds from a confusion matrix: overall and mean class accuracy, and intersection over union."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from zoo.errors import DataError
from zoo.sharing import Share

__all__ = ["ConfusionMatrix"]


class ConfusionMatrix:
    """Counts of (true class, predicted class), gathered over batches on the device of the first one.

    Args:
        num_classes: K.
        ignore_label: Label of points that do not count.
    """

    def __init__(self, num_classes: int, ignore_label: int = 255) -> None:
        self.num_classes, self.ignore_label = num_classes, ignore_label
        self._counts: Tensor | None = None

    def update(self, predicted: Tensor, labels: Tensor) -> None:
        """Adds predictions; nothing is read back from the device.

        Args:
            predicted: Class of each point, int64, any shape.
            labels: True class of each, in the same shape.

        Raises:
            DataError: If the shapes differ.
        """
        if predicted.shape != labels.shape:
            raise DataError(f"{tuple(predicted.shape)} predictions for {tuple(labels.shape)} labels")
        size = self.num_classes
        labels, predicted = labels.flatten().long(), predicted.flatten().long()
        known = labels != self.ignore_label
        # What does not count goes to a cell of its own, so that the shape does not depend on the labels.
        cell = torch.where(known, labels * size + predicted, size * size)
        counts = torch.zeros(size * size + 1, dtype=torch.int64, device=cell.device)
        counts.scatter_add_(0, cell, torch.ones_like(cell))
        self._counts = counts if self._counts is None else self._counts + counts

    def of_all(self, share: Share) -> ConfusionMatrix:
        """With the counts of all processes; itself where there is one."""
        if share.world == 1:
            return self
        whole = ConfusionMatrix(self.num_classes, self.ignore_label)
        whole._counts = torch.from_numpy(np.append(np.sum(share.gather(self.counts), axis=0), 0))
        return whole

    @property
    def counts(self) -> np.ndarray:
        """int64 (K, K): row = true class, column = predicted class."""
        if self._counts is None:
            return np.zeros((self.num_classes, self.num_classes), np.int64)
        return self._counts[:-1].cpu().numpy().reshape(self.num_classes, self.num_classes)

    def overall_accuracy(self) -> float:
        """Share of the points that are right, in percent.

        Raises:
            DataError: If no point counts.
        """
        counts = self._counted()
        return float(100 * np.trace(counts) / counts.sum())

    def class_accuracy(self) -> np.ndarray:
        """Share of each class's points that are right, in percent, float64 (K,); NaN for classes without points."""
        counts = self._counted()
        with np.errstate(invalid="ignore"):
            return 100 * np.diag(counts) / counts.sum(1)

    def mean_accuracy(self) -> float:
        """Mean of `class_accuracy` over the classes that have points, in percent."""
        return float(np.nanmean(self.class_accuracy()))

    def iou(self) -> np.ndarray:
        """Intersection over union of each class in percent, float64 (K,); NaN where it is neither true nor predicted.

        A class without true points that is predicted somewhere has 0.
        """
        counts = self._counted()
        with np.errstate(invalid="ignore"):
            return 100 * np.diag(counts) / (counts.sum(0) + counts.sum(1) - np.diag(counts))

    def mean_iou(self) -> float:
        """Mean of `iou` over the classes that are true or predicted somewhere, in percent."""
        return float(np.nanmean(self.iou()))

    def classification(self) -> dict[str, float]:
        """`top1` (overall accuracy) and `macc` (mean class accuracy), in percent."""
        return {"top1": self.overall_accuracy(), "macc": self.mean_accuracy()}

    def segmentation(self, class_names: Sequence[str]) -> dict[str, float]:
        """`miou`, `macc`, `accuracy`, and `iou/CLASS` of each class that is true or predicted, in percent."""
        named = zip(class_names, self.iou(), strict=True)
        return {
            "miou": self.mean_iou(),
            "macc": self.mean_accuracy(),
            "accuracy": self.overall_accuracy(),
            **{f"iou/{name}": float(value) for name, value in named if not np.isnan(value)},
        }

    def _counted(self) -> np.ndarray:
        counts = self.counts
        if not counts.sum():
            raise DataError("no point counts: all labels are the ignored one, or there are none")
        return counts
