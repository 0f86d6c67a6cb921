"""Small video models and random clips, for tests."""

from __future__ import annotations

import copy
from typing import Any

import torch
from saved_models import make_model
from torch import Tensor

from modalities.video.model import _Clips
from modalities.video.presets import MOTION_DATA, config
from zoo.network import Sequences

__all__ = ["CONFIG", "ENCODINGS", "LENGTHS", "VARIANTS", "clips", "logits", "sequences", "video_model", "with_nan"]

CONFIG = config(
    "tiny-video",
    encoding="pape",
    size="n",
    patch_size=4,
    num_classes=3,
    data=MOTION_DATA | {"input_size": [3, 8, 12], "frames": 10},
    labels=("still", "shake", "pan"),
)
CONFIG["model"] |= {"dim": 32, "depth": 2, "num_heads": 2, "head_dim": 16, "mlp_dim": 64, "temporal_depth": 2}
CONFIG["model"] |= {"encoding_options": {"parabolas": 4}}
VARIANTS = [(attention, pool) for attention in ("joint", "divided", "factorised") for pool in ("token", "mean")]
ENCODINGS = ("pape", "pape-ri", "rope", "alibi", "sincos", "sincos+pape", "none")
LENGTHS = torch.tensor([5, 0, 1])


def video_model(seed: int = 0, **changes: Any) -> Any:
    """A video classifier with random weights, in eval mode; the arguments replace settings of the model or the data."""
    changed = copy.deepcopy(CONFIG)
    for key, value in changes.items():
        changed["model" if key in changed["model"] else "data"][key] = value
    if "encoding" in changes and "encoding_options" not in changes:
        changed["model"]["encoding_options"] = {}
    torch.manual_seed(seed)
    return make_model(changed, seed)


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
