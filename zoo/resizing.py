"""Resizing of decoded pictures to what a model takes: the same for single pictures and for frames of clips."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from zoo.data_config import DataConfig
from zoo.placement import place

__all__ = ["BORDER", "resize_batch"]

BORDER = 114.0  # the grey around a letterboxed picture, of 255
_SPLIT_PIXELS = 2**24  # above this, channels are resized one by one to bound the float copy


def resize_batch(batch: torch.Tensor, data_config: DataConfig) -> torch.Tensor:
    """Resizes, crops or gives a border to equally large pictures, as `data_config` says.

    Args:
        batch: uint8 (B, C, H, W), B x H x W at least 1.
        data_config: Size, way of resizing and interpolation.

    Returns:
        float32 (B, C, height, width) in 0..255, not rounded.
    """
    return _resized(batch, data_config).clamp_(0, 255)


def _resized(batch: torch.Tensor, data_config: DataConfig) -> torch.Tensor:
    height, width = data_config.input_size[1:]
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
