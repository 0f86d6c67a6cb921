"""What a detector is trained on: the boxes of a batch of samples, padded to the same number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.errors import DataError

__all__ = ["Targets"]


@dataclass(frozen=True, eq=False)
class Targets:
    """Boxes of a batch.

    Attributes:
        boxes: (B, M, 4) floating point: x1, y1, x2, y2 in pixels of the model's input.
        labels: (B, M) int64 class indices.
        mask: (B, M) bool, True for boxes and False for padding, which may hold anything.
    """

    boxes: Tensor
    labels: Tensor
    mask: Tensor

    @classmethod
    def collate(cls, samples: Sequence[tuple[Tensor, Tensor]], num_classes: int) -> Targets:
        """Pads the boxes of several samples to the same number.

        Args:
            samples: Boxes (n, 4) and labels (n,) of each; n may be 0.
            num_classes: Classes K of the detector.

        Raises:
            DataError: If shapes do not fit, or a label is not one of 0 to K - 1.
        """
        if not samples:
            raise DataError("a batch needs at least one sample")
        for index, (boxes, labels) in enumerate(samples):
            if boxes.dim() != 2 or boxes.shape[1] != 4 or labels.shape != boxes.shape[:1]:
                raise DataError(
                    f"sample {index}: expected boxes (n, 4) and labels (n,), got {tuple(boxes.shape)} and "
                    f"{tuple(labels.shape)}"
                )
            if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
                raise DataError(
                    f"sample {index}: labels must lie in 0..{num_classes - 1}, got {labels.unique().tolist()}"
                )
        longest = max(1, *(len(labels) for _, labels in samples))
        shape = (len(samples), longest)
        boxes, labels = torch.zeros(*shape, 4), torch.zeros(shape, dtype=torch.int64)
        mask = torch.zeros(shape, dtype=torch.bool)
        for row, (sample_boxes, sample_labels) in enumerate(samples):
            count = len(sample_labels)
            boxes[row, :count], labels[row, :count], mask[row, :count] = sample_boxes, sample_labels, True
        return cls(boxes, labels, mask)

    def to(self, device: torch.device | str) -> Targets:
        """The same on another device."""
        return Targets(self.boxes.to(device), self.labels.to(device), self.mask.to(device))

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keeps the memory until work on `stream` that has been asked for by now is done; see torch's of tensors."""
        for tensor in (self.boxes, self.labels, self.mask):
            tensor.record_stream(stream)

    def ordered(self) -> Targets:
        """Usable boxes in an order that depends on their values alone, then the others, as zeros and masked.

        Boxes without area, or with coordinates that are not finite, are not usable.
        """
        finite = self.boxes.isfinite().all(dim=2)
        mask = self.mask & finite & (self.boxes[..., 2:] > self.boxes[..., :2]).all(dim=2)
        boxes = self.boxes.masked_fill(~mask.unsqueeze(2), 0.0)
        labels = self.labels.masked_fill(~mask, 0)
        order = torch.arange(labels.shape[1], device=labels.device).expand_as(labels)
        for key in (*boxes.unbind(dim=2), labels, (~mask).long()):  # The most significant key last.
            order = order.gather(1, key.gather(1, order).argsort(dim=1, stable=True))
        return Targets(
            boxes.gather(1, order.unsqueeze(2).expand(-1, -1, 4)), labels.gather(1, order), mask.gather(1, order)
        )
