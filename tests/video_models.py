"""Small video models and random clips, for tests."""

from __future__ import annotations

import copy
from typing import Any

import torch
from saved_models import make_model
from torch import Tensor

from modalities.video.model import _Clips
from zoo.network import Sequences

__all__ = ["CONFIG", "ENCODINGS", "LENGTHS", "VARIANTS", "clips", "logits", "sequences", "video_model", "with_nan"]

CONFIG: dict[str, Any] = {
    "schema_version": 1,
    "name": "tiny-video",
    "modality": "video",
    "task": "classification",
    "architecture": "video-vit",
    "model": {
        "dim": 32,
        "depth": 2,
        "num_heads": 2,
        "head_dim": 16,
        "mlp_dim": 64,
        "patch_size": 4,
        "tubelet": 2,
        "in_chans": 3,
        "num_classes": 3,
        "encoding": "pape",
        "encoding_options": {"parabolas": 4},
        "coordinate_origin": 0,
        "class_token_position": None,
        "time_unit_s": None,
        "pool": "token",
        "attention": "joint",
        "temporal_depth": 2,
        "drop_path": 0.0,
    },
    "data": {
        "input_size": [3, 8, 12],
        "resize": "shortest",
        "crop_fraction": 1.0,
        "interpolation": "bilinear",
        "antialias": True,
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
        "frames": 10,
        "tubelet": 2,
        "sampling": "dense",
        "frame_step": 1,
        "frame_rate": 16.0,
        "pixel_range": "unit",
    },
    "labels": ["still", "shake", "pan"],
}
VARIANTS = [(attention, pool) for attention in ("joint", "divided", "factorised") for pool in ("token", "mean")]
ENCODINGS = ("pape", "pape-ri", "rope", "alibi", "sincos", "sincos+pape", "none")
LENGTHS = torch.tensor([5, 0, 1])


def video_model(seed: int = 0, **changes: Any) -> Any:
    """A video classifier with random weights, in eval mode; the arguments replace settings of the model or the data."""
    config = copy.deepcopy(CONFIG)
    for key, value in changes.items():
        config["model" if key in config["model"] else "data"][key] = value
    if "encoding" in changes and "encoding_options" not in changes:
        config["model"]["encoding_options"] = {}
    torch.manual_seed(seed)
    return make_model(config, seed)


def clips(batch: int = 3, frames: int = 10, height: int = 8, width: int = 12, seed: int = 0) -> Tensor:
    """Random clips (B, 3, T, H, W)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 3, frames, height, width, generator=generator)


def with_nan(batch: Tensor, lengths: Tensor = LENGTHS, tubelet: int = 2) -> Tensor:
    """Clips with NaN in place of padding."""
    batch = batch.clone()
    for sample, length in zip(batch, lengths.tolist(), strict=True):
        sample[:, length * tubelet :] = float("nan")
    return batch


def logits(model: Any, *inputs: Any) -> Tensor:
    """What the model gives, without a graph."""
    with torch.no_grad():
        return model(*inputs)


def sequences(model: Any, batch: Tensor, lengths: Tensor | None = None, times_s: Tensor | None = None) -> Sequences:
    """What goes into the encoder."""
    return model._sequences(_Clips(batch, lengths, times_s))
