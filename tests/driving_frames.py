"""A network for the key frames of `driving_tables`, and what they are called."""

from __future__ import annotations

import torch
from driving_toys import tiny_config

from zoo import registry

CAMERAS = ("CAM_FRONT", "CAM_BACK")
CLASSES = ("car", "pedestrian", "barrier")
TOKENS = [f"scene-{scene}-{frame}" for scene in ("0061", "0103") for frame in range(2)]


def detector(**model):
    """A small network for the cameras of `write_drive` that looks far enough to see its things."""
    torch.manual_seed(0)
    config = tiny_config(**{"min_score": 0.0} | model)
    config["data"] |= {
        "cameras": list(CAMERAS),
        "point_range": [-48.0, -48.0, -3.0, 48.0, 48.0, 5.0],
        "pillar_size": 3.2,
    }
    return registry.architecture(config).build(config).eval()


def same(one, other):
    """Asserts that boxes are the same but for rounding."""
    for name in ("centre", "size", "yaw", "velocity", "score"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), atol=1e-4, rtol=1e-4)
    assert torch.equal(one.label, other.label)
