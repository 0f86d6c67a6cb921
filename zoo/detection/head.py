"""The YOLOv10 head (Wang et al., 2024, arXiv 2405.14458): two branches that share their input but no weights.

The one2many branch is trained with many cells for each object, which gives it (and the backbone) a rich signal; the
one2one branch with a single one, so that its detections need no non-maximum suppression. Parameters are laid out as in
the released PaPE detectors.

Shapes: B batch, F width of the pyramid, K classes; a raw map is (B, 4 x 16 + K, rows, columns).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from zoo.detection.parameter_count import BINS, box_width

__all__ = ["RawMaps", "YOLOv10Head"]

RawMaps = dict[str, list[Tensor]]

# Objects that a picture of 640 pixels is expected to hold: the prior of the class scores.
PRIOR_OBJECTS, PRIOR_SIDE = 5, 640


class BatchNorm(nn.BatchNorm2d):
    """BatchNorm with a fixed momentum, so without the integer counter: files of weights hold floating point alone."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=1e-5, momentum=0.1)
        self.num_batches_tracked = None

    def _load_from_state_dict(self, *arguments: Any) -> None:
        nn.Module._load_from_state_dict(self, *arguments)  # That of the base class adds a counter.


class ConvUnit(nn.Module):
    """Convolution without bias, BatchNorm and SiLU.

    Args:
        channels: Input channels.
        width: Output channels.
        kernel: Odd kernel size; the map keeps its size.
        groups: Groups of the convolution.
    """

    def __init__(self, channels: int, width: int, kernel: int, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, width, kernel, padding=kernel // 2, groups=groups, bias=False)
        self.bn = BatchNorm(width)
        self.act = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, rows, columns) -> (B, width, rows, columns)."""
        return self.act(self.bn(self.conv(x)))


class YOLOv10Head(nn.Module):
    """Box and class towers on every level, twice.

    Args:
        width: Channels F of every level.
        num_classes: Classes K.
        strides: Pixels of a cell on every level.
        class_width: Hidden width of the class towers; it outlives another number of classes.
    """

    def __init__(self, width: int, num_classes: int, strides: Sequence[float], class_width: int) -> None:
        super().__init__()
        self.num_classes, self.strides = num_classes, tuple(strides)
        hidden = box_width(width)
        self.cv2 = nn.ModuleList(
            nn.Sequential(ConvUnit(width, hidden, 3), ConvUnit(hidden, hidden, 3), nn.Conv2d(hidden, 4 * BINS, 1))
            for _ in self.strides
        )
        self.cv3 = nn.ModuleList(
            nn.Sequential(
                nn.Sequential(ConvUnit(width, width, 3, groups=width), ConvUnit(width, class_width, 1)),
                nn.Sequential(
                    ConvUnit(class_width, class_width, 3, groups=class_width), ConvUnit(class_width, class_width, 1)
                ),
                nn.Conv2d(class_width, num_classes, 1),
            )
            for _ in self.strides
        )
        for tower in self.cv2:
            nn.init.zeros_(cast(nn.Conv2d, cast(nn.Sequential, tower)[-1]).bias)  # type: ignore[arg-type]
        self.one2one_cv2 = copy.deepcopy(self.cv2)
        self.one2one_cv3 = copy.deepcopy(self.cv3)
        self.reset_classifier(num_classes)

    def reset_classifier(self, num_classes: int) -> None:
        """Gives both branches of every level a new last layer: zero weight, and the class prior as bias.

        The prior is the probability that a cell holds an object of a class, if a picture of 640 x 640 pixels holds 5.
        """
        self.num_classes = num_classes
        for towers in (self.cv3, self.one2one_cv3):
            for tower, stride in zip(towers, self.strides, strict=True):
                layers = cast(nn.Sequential, tower)
                old = cast(nn.Conv2d, layers[-1])
                new = nn.Conv2d(old.in_channels, num_classes, 1, device=old.weight.device, dtype=old.weight.dtype)
                nn.init.zeros_(new.weight)
                cells = (PRIOR_SIDE / stride) ** 2
                odds = min(PRIOR_OBJECTS / (cells * num_classes), 0.5)
                nn.init.constant_(cast(Tensor, new.bias), math.log(odds / (1 - odds)))
                new.train(old.training)
                layers[-1] = new

    def forward(self, levels: Sequence[Tensor]) -> RawMaps:
        """Raw maps of both branches.

        The one2one branch does not train what is below it: its gradient ends at `levels`.

        Args:
            levels: Maps (B, F, rows, columns), one for every stride.

        Returns:
            `{"one2one": [...], "one2many": [...]}` with a map (B, 4 x 16 + K, rows, columns) for every level: logits of
            the distance to the left, top, right and bottom side over 16 bins, in cells, then class logits.
        """
        return {
            "one2one": self.one2one(levels),
            "one2many": _branch(levels, self.cv2, self.cv3),
        }

    def one2one(self, levels: Sequence[Tensor]) -> list[Tensor]:
        """Raw maps of the branch that predicts."""
        return _branch([level.detach() for level in levels], self.one2one_cv2, self.one2one_cv3)


def _branch(levels: Sequence[Tensor], boxes: nn.ModuleList, classes: nn.ModuleList) -> list[Tensor]:
    towers = zip(levels, boxes, classes, strict=True)
    return [torch.cat([box(level), score(level)], dim=1) for level, box, score in towers]
