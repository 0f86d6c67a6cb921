"""A small network for the drive of `driving_tables`, and recipe keys of its training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import zoo
from tests.driving_toys import tiny_config
from zoo import registry

CLASSES = ["car", "pedestrian", "bicycle"]
AUGMENTED: dict[str, Any] = {
    "image_scale": [0.9, 1.2],
    "image_rotate": 5.0,
    "image_flip": 0.5,
    "colour": 0.2,
    "flip": [0.5, 0.5],
    "rotate": 20.0,
    "scale": [0.95, 1.05],
    "translate": [0.2, 0.2, 0.1],
    "drop_points": 0.2,
    "drop_camera": 0.2,
    "drop_lidar": 0.2,
    "balance": True,
    "paste": {"car": 2, "bicycle": 3},
    "paste_min_points": 1,
    "paste_off": 1,
}
PLAIN: dict[str, Any] = {
    "image_scale": [1, 1],
    "colour": 0.0,
    "flip": [0, 0],
    "rotate": 0.0,
    "scale": [1, 1],
    "translate": [0, 0, 0],
    "ema": 0.0,
}


def write_model(folder: Path, *, labels: list[str] = CLASSES, **model: Any) -> str:
    """A small network for the toy drive; its name for `zoo.load`."""
    config = tiny_config("none", num_classes=len(labels), **model)
    config["data"] |= {
        "cameras": ["CAM_FRONT", "CAM_BACK", "CAM_LEFT"],
        "point_range": [-24.0, -16.0, -3.0, 24.0, 16.0, 5.0],
        "pillar_size": 1.6,
        "sweeps": 2,
    }
    config["labels"] = labels
    torch.manual_seed(0)
    zoo.save(registry.architecture(config).build(config), folder)
    return f"local-dir:{folder}"
