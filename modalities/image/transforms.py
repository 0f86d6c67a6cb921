"""From decoded pictures to model input: one resize, crop and normalisation for prediction and evaluation alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from zoo.data_config import DataConfig
from zoo.errors import DataError
from zoo.resizing import BORDER, resize_batch

if TYPE_CHECKING:
    import numpy as np

__all__ = ["BORDER", "LUMA", "preprocess", "preprocess_batch"]

LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601, what JPEG and Pillow use


def preprocess(
    rgb: np.ndarray | torch.Tensor, data_config: DataConfig, size: int | tuple[int, int] | None = None
) -> torch.Tensor:
    """Turns one decoded picture into model input.

    Args:
        rgb: uint8 (H, W, 3).
        data_config: The model's preprocessing; 3 input channels take RGB, 1 takes BT.601 luma.
        size: Side in pixels or (height, width) instead of the one in `data_config`.

    Returns:
        float32 (C, height, width), on the device of `rgb`.

    Raises:
        DataError: If the picture has another shape or type, or the model takes neither 1 nor 3 channels.
    """
    picture = torch.as_tensor(rgb)
    if picture.ndim != 3 or picture.shape[2] != 3:
        raise DataError(f"a picture must be (height, width, 3), not {tuple(picture.shape)}")
    return preprocess_batch(picture.permute(2, 0, 1).unsqueeze(0), data_config, size)[0]


def preprocess_batch(
    batch: torch.Tensor, data_config: DataConfig, size: int | tuple[int, int] | None = None
) -> torch.Tensor:
    """Turns a batch of equally large pictures into model input, on the batch's device.

    The arithmetic is float32; values are clamped to 0..255 after the resize and not rounded.

    Args:
        batch: uint8 (B, 3, H, W).
        data_config: The model's preprocessing.
        size: Side in pixels or (height, width) instead of the one in `data_config`.

    Returns:
        float32 (B, C, height, width).

    Raises:
        DataError: See `preprocess`.
    """
    if batch.ndim != 4 or batch.shape[1] != 3 or batch.dtype != torch.uint8:
        raise DataError(f"pictures must be uint8 (batch, 3, height, width), not {batch.dtype} {tuple(batch.shape)}")
    if min(batch.shape[2:]) == 0:
        raise DataError(f"a picture without pixels: {batch.shape[2]} x {batch.shape[3]}")
    if size is not None:
        data_config = data_config.with_size(size)
    channels = data_config.input_size[0]
    if channels not in (1, 3):
        raise DataError(f"the model takes {channels} channels; a picture gives 3 (colour) or 1 (grayscale)")
    images = resize_batch(batch, data_config).div_(255)
    if channels == 1:
        images = (images * images.new_tensor(LUMA).view(1, 3, 1, 1)).sum(dim=1, keepdim=True)
    mean = images.new_tensor(data_config.mean).view(1, -1, 1, 1)
    std = images.new_tensor(data_config.std).view(1, -1, 1, 1)
    return images.sub_(mean).div_(std)
