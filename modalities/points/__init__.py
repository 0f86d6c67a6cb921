"""Point clouds: reading them, batches without padding, voxels and serialised orders, networks, training and scores.

Names are looked up when used (PEP 562), so that presets can be read without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modalities.points.batch import PointBatch
    from modalities.points.data_config import PointDataConfig
    from modalities.points.datasets import open_dataset
    from modalities.points.evaluate import evaluate_points
    from modalities.points.points import Points, sample_surface
    from modalities.points.ptv3 import PointClassifier, PointSegmenter
    from modalities.points.ptv3_network import PointFeatures
    from modalities.points.vit import PointViT
    from modalities.points.write import save_ply

# Public name -> module that defines it.
_LAZY = {
    "PointBatch": "modalities.points.batch",
    "PointClassifier": "modalities.points.ptv3",
    "PointDataConfig": "modalities.points.data_config",
    "PointFeatures": "modalities.points.ptv3_network",
    "PointSegmenter": "modalities.points.ptv3",
    "PointViT": "modalities.points.vit",
    "Points": "modalities.points.points",
    "evaluate_points": "modalities.points.evaluate",
    "open_dataset": "modalities.points.datasets",
    "sample_surface": "modalities.points.points",
    "save_ply": "modalities.points.write",
}

__all__ = [
    "PointBatch",
    "PointClassifier",
    "PointDataConfig",
    "PointFeatures",
    "PointSegmenter",
    "PointViT",
    "Points",
    "evaluate_points",
    "open_dataset",
    "sample_surface",
    "save_ply",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'modalities.points' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
