"""Small random clouds and point ViTs, for tests."""

from __future__ import annotations

import copy
from typing import Any

import torch
from saved_models import make_model

from modalities.points import PointBatch
from modalities.points.vit_presets import config

__all__ = ["SMALL", "batch", "cloud", "point_vit"]

SMALL: dict[str, Any] = {"dim": 32, "depth": 2, "num_heads": 2, "head_dim": 16, "mlp_dim": 64, "groups": 12}
SMALL |= {"patch_size": 8, "encoding_options": {}}
DATA = {"normalise": "unit-box", "feature_names": ["xyz"], "num_points": None, "class_names": ["a", "b", "c"]}


def cloud(points: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Points (N, 3) within the unit box."""
    return torch.rand(points, 3, generator=torch.Generator().manual_seed(seed), dtype=dtype) * 2 - 1


def batch(*clouds: torch.Tensor) -> PointBatch:
    """A batch whose features are the coordinates."""
    return PointBatch.from_clouds([(xyz, xyz) for xyz in clouds])


def point_vit(
    encoding: str = "pape", features: str = "relative+centre", num_points: int | None = None, **model: Any
) -> Any:
    """A point ViT with random weights, in eval mode; the last arguments replace settings."""
    made = copy.deepcopy(
        config("tiny", encoding=encoding, size="n", data=DATA, labels=("a", "b", "c"), group_features=features)
    )
    made["model"] |= {**SMALL, **model}
    made["data"]["num_points"] = num_points
    return make_model(made).eval()
