"""What a detector returns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.data_config import DataConfig
from zoo.errors import DataError
from zoo.placement import place

__all__ = ["Detections"]


@dataclass(frozen=True, eq=False)
class Detections:
    """Detected boxes of a batch.

    Attributes:
        tensor: (B, max_det, 6) floating point: x1, y1, x2, y2 in pixels of the model's input (not clipped to it), score
            and class; by falling score, padded with rows of zeros.
        input_size: (height, width) of the model's input.
        data_config: Preprocessing that `for_image` undoes; `None` where the model sees the pixels as they are, as those
            of an event sensor.
    """

    tensor: Tensor
    input_size: tuple[int, int]
    data_config: DataConfig | None

    def __len__(self) -> int:
        return self.tensor.shape[0]

    def for_image(self, i: int, original_size: tuple[int, int], *, clip: bool = True) -> Tensor:
        """The detections of one picture, in its own pixels.

        Args:
            i: Index in the batch.
            original_size: (height, width) of the picture before it was preprocessed as `data_config` says.
            clip: Cut boxes at the edges of the picture, and leave out those outside of it.

        Returns:
            (n, 6) as in `tensor`, without the padding; n may be 0.

        Raises:
            DataError: If there is no such picture in the batch, or the size cannot be one.
        """
        if isinstance(i, bool) or not isinstance(i, int) or not -len(self) <= i < len(self):
            raise DataError(f"there is no picture {i!r} in a batch of {len(self)}")
        sides = original_size if isinstance(original_size, (tuple, list)) else ()
        if len(sides) != 2 or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in sides):
            raise DataError(f"original_size must be (height, width) in pixels, got {original_size!r:.80}")
        height, width = sides
        found = self.tensor[i]
        found = found[found[:, 4] > 0]
        boxes = found[:, :4]
        if self.data_config is not None:
            boxes = place((height, width), self.data_config.with_size(self.input_size)).to_original(boxes)
        if clip:
            boxes = torch.minimum(boxes.clamp_min(0), boxes.new_tensor([width, height, width, height]))
        found = torch.cat([boxes, found[:, 4:]], dim=1)
        return found[(boxes[:, 2:] > boxes[:, :2]).all(dim=1)] if clip else found
