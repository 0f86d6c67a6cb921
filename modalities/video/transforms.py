"""From decoded frames to model input: one resize, crop and scaling for training, evaluation and prediction alike."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from modalities.video.data_config import VideoDataConfig
from zoo.errors import ConfigError, DataError
from zoo.placement import place
from zoo.resizing import resize_batch

__all__ = ["CROPS", "normalise", "preprocess_clip", "resize_clip"]

CROPS = (1, 3)


def preprocess_clip(frames: np.ndarray | Tensor, data: VideoDataConfig, crops: int = 1) -> Tensor:
    """Turns the frames of a clip into model input: `resize_clip`, then `normalise`.

    Returns:
        float32 (crops, C, T, height, width).

    Raises:
        ConfigError: See `resize_clip`.
        DataError: See `resize_clip`.
    """
    return normalise(resize_clip(frames, data, crops), data)


def resize_clip(frames: np.ndarray | Tensor, data: VideoDataConfig, crops: int = 1) -> Tensor:
    """Resizes and crops the frames of a clip, all alike.

    Args:
        frames: uint8 (T, H, W, 3).
        data: What the model expects.
        crops: 1, the crop in the middle; or 3 along the longer side, each of the whole shorter side, as published
            protocols test. Of models that do not crop (`resize` is not `"shortest"`) 1.

    Returns:
        float32 (crops, C, T, height, width) in 0..255.

    Raises:
        ConfigError: If there are no such crops.
        DataError: If the frames have another shape or type.
    """
    clip = torch.as_tensor(frames)
    if clip.ndim != 4 or clip.shape[3] != 3 or clip.dtype != torch.uint8 or 0 in clip.shape:
        raise DataError(f"frames must be uint8 (time, height, width, 3), not {clip.dtype} {tuple(clip.shape)}")
    if data.input_size[0] != 3:
        raise ConfigError(f"a video has 3 channels; the model takes {data.input_size[0]}")
    if crops not in CROPS or (crops > 1 and data.resize != "shortest"):
        raise ConfigError(
            f"crops must be 1 or, of models that crop the shorter side, 3; not {crops!r:.40} with {data.resize}"
        )
    batch = clip.permute(0, 3, 1, 2)
    if crops == 1:
        return resize_batch(batch, data)[None].transpose(1, 2)
    return torch.stack([resize_batch(part, data) for part in _thirds(batch, data)]).transpose(1, 2)


def normalise(clips: Tensor, data: VideoDataConfig) -> Tensor:
    """Scales pixels as the model expects.

    Args:
        clips: float32 (B, C, T, H, W) in 0..255; its memory may be reused.
        data: What the model expects.
    """
    if data.pixel_range == "bytes":
        return clips
    mean, std = (clips.new_tensor(values).view(1, -1, 1, 1, 1) for values in (data.mean, data.std))
    return clips.div_(255).sub_(mean).div_(std)


def _thirds(batch: Tensor, data: VideoDataConfig) -> list[Tensor]:
    """Parts at the start, middle and end of the longer side from which the centre crop takes all."""
    placed = place((batch.shape[2], batch.shape[3]), data)
    height, width = data.input_size[1:]
    rows = min(batch.shape[2], round(height / data.crop_fraction / placed.scale[1]))
    columns = min(batch.shape[3], round(width / data.crop_fraction / placed.scale[0]))
    down, right = batch.shape[2] - rows, batch.shape[3] - columns
    starts = [(share * down // 2, share * right // 2) for share in range(3)]
    return [batch[:, :, top : top + rows, left : left + columns] for top, left in starts]
