"""From decoded pictures to model input: one resize, crop and normalisation for prediction and evaluation alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from zoo.data_config import DataConfig
from zoo.errors import DataError
from zoo.placement import place

if TYPE_CHECKING:
    import numpy as np

__all__ = ["LUMA", "preprocess", "preprocess_batch"]

LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601, what JPEG and Pillow use
BORDER = 114.0  # the grey around a letterboxed picture, of 255
_SPLIT_PIXELS = 2**24  # above this, channels are resized one by one to bound the float copy


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
    channels, height, width = data_config.input_size
    if channels not in (1, 3):
        raise DataError(f"the model takes {channels} channels; a picture gives 3 (colour) or 1 (grayscale)")
    images = _resize(batch, data_config, height, width).clamp_(0, 255).div_(255)
    if channels == 1:
        images = (images * images.new_tensor(LUMA).view(1, 3, 1, 1)).sum(dim=1, keepdim=True)
    mean = images.new_tensor(data_config.mean).view(1, -1, 1, 1)
    std = images.new_tensor(data_config.std).view(1, -1, 1, 1)
    return images.sub_(mean).div_(std)


def _resize(batch: torch.Tensor, data_config: DataConfig, height: int, width: int) -> torch.Tensor:
    """Returns float32 (B, 3, height, width), resized, cropped or with a border, but not yet clamped."""
    placed = place((batch.shape[2], batch.shape[3]), data_config)
    top, left, rows, columns = placed.source
    resized = _interpolate(batch[:, :, top : top + rows, left : left + columns], data_config, *placed.resized)
    top, left = placed.offset
    if data_config.resize == "letterbox":
        border = (left, width - left - placed.resized[1], top, height - top - placed.resized[0])
        return F.pad(resized, border, value=BORDER)
    return resized[:, :, -top : -top + height, -left : -left + width]


def _interpolate(batch: torch.Tensor, data_config: DataConfig, height: int, width: int) -> torch.Tensor:
    if batch.shape[2:] == (height, width):
        return batch.float()
    nearest = data_config.interpolation == "nearest"
    mode = "nearest-exact" if nearest else data_config.interpolation
    parts = batch.split(1, dim=1) if batch.shape[2] * batch.shape[3] > _SPLIT_PIXELS else (batch,)
    antialias = data_config.antialias and not nearest
    resized = [
        # In plain memory order: PyTorch 2.14 resizes channels-last batches of one column wrongly with antialiasing.
        F.interpolate(
            part.to(torch.float32, memory_format=torch.contiguous_format),
            (height, width),
            mode=mode,
            antialias=antialias,
        )
        for part in parts
    ]
    return resized[0] if len(resized) == 1 else torch.cat(resized, dim=1)
