"""Checks of what goes into embeddings of patches."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.errors import DataError

__all__ = ["check_pixels"]


def check_pixels(pixels: object, weight: Tensor, name: str, axes: str) -> None:
    """Checks type, shape, dtype and device of pictures or clips.

    Args:
        pixels: To be a floating-point tensor (B, channels, ...) on the device and in the dtype of `weight`.
        weight: Of the convolution that takes them, (C, channels, ...).
        name: For messages, as `"images"`.
        axes: Their last axes for messages, as `"H, W"`.

    Raises:
        DataError: If they are anything else.
    """
    shape = f"(B, {weight.shape[1]}, {axes})"
    if not isinstance(pixels, Tensor):
        raise DataError(f"{name} must be a tensor {shape}, got {type(pixels).__name__}")
    if pixels.dim() != weight.dim() or pixels.shape[1] != weight.shape[1]:
        raise DataError(f"{name} must have shape {shape}, got {tuple(pixels.shape)}")
    if not pixels.is_floating_point():
        raise DataError(f"{name} must be floating point, preprocessed as model.data_config says; got {pixels.dtype}")
    if pixels.device != weight.device or (
        pixels.dtype != weight.dtype and not torch.is_autocast_enabled(pixels.device.type)
    ):
        raise DataError(
            f"{name} are {pixels.dtype} on {pixels.device}, the model {weight.dtype} on {weight.device}: "
            "bring them together with .to()"
        )
