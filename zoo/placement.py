"""Where a picture of the user lies in the model's input, for every way of resizing: pixels there and back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zoo.data_config import DataConfig

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Placement", "place"]

_MAX_OVERHANG = 8  # source kept beyond the crop, in crops: a 1 x 100,000 strip must not become a billion pixels


@dataclass(frozen=True)
class Placement:
    """A part of a picture, resized and put at a place in the model's input.

    Attributes:
        source: (top, left, height, width) of the part of the picture that is resized.
        resized: (height, width) that it becomes.
        offset: (top, left) of the result in the input: positive with a border around it, negative where it is cropped.
        original_size: (height, width) of the picture.
    """

    source: tuple[int, int, int, int]
    resized: tuple[int, int]
    offset: tuple[int, int]
    original_size: tuple[int, int]

    @property
    def scale(self) -> tuple[float, float]:
        """Pixels of the input per pixel of the picture, along x and y."""
        return self.resized[1] / self.source[3], self.resized[0] / self.source[2]

    def to_input(self, boxes: Tensor) -> Tensor:
        """Boxes (..., 4) as x1, y1, x2, y2 from pixels of the picture to pixels of the input."""
        (x, y), (top, left) = self.scale, self.source[:2]
        scale, start = boxes.new_tensor([x, y, x, y]), boxes.new_tensor([left, top, left, top])
        offset = boxes.new_tensor([self.offset[1], self.offset[0]] * 2)
        return (boxes - start) * scale + offset

    def to_original(self, boxes: Tensor) -> Tensor:
        """Boxes (..., 4) as x1, y1, x2, y2 from pixels of the input to pixels of the picture."""
        (x, y), (top, left) = self.scale, self.source[:2]
        scale, start = boxes.new_tensor([x, y, x, y]), boxes.new_tensor([left, top, left, top])
        offset = boxes.new_tensor([self.offset[1], self.offset[0]] * 2)
        return (boxes - offset) / scale + start


def place(original_size: tuple[int, int], data_config: DataConfig) -> Placement:
    """Where a picture lies in the input that `data_config` describes.

    Args:
        original_size: (height, width) of the picture in pixels, both at least 1.
        data_config: The preprocessing, with the size in use.
    """
    rows, columns = original_size
    height, width = data_config.input_size[1:]
    whole = (0, 0, rows, columns)
    if data_config.resize == "squash":
        return Placement(whole, (height, width), (0, 0), original_size)
    if data_config.resize == "letterbox":
        scale = min(height / rows, width / columns)
        resized = (min(height, max(1, round(rows * scale))), min(width, max(1, round(columns * scale))))
        return Placement(whole, resized, ((height - resized[0]) // 2, (width - resized[1]) // 2), original_size)
    inner = round(height / data_config.crop_fraction), round(width / data_config.crop_fraction)
    scale = max(inner[0] / rows, inner[1] / columns)  # the smaller one that still covers the crop
    kept = (
        min(rows, math.ceil(_MAX_OVERHANG * inner[0] / scale)),
        min(columns, math.ceil(_MAX_OVERHANG * inner[1] / scale)),
    )
    source = ((rows - kept[0]) // 2, (columns - kept[1]) // 2, *kept)
    resized = (max(round(kept[0] * scale), inner[0]), max(round(kept[1] * scale), inner[1]))
    return Placement(source, resized, (-((resized[0] - height) // 2), -((resized[1] - width) // 2)), original_size)
