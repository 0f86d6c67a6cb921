"""Point clouds: batches without padding, voxels and serialised orders, and networks that take them.

Names are looked up when used (PEP 562), so that presets can be read without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modalities.points.batch import PointBatch
    from modalities.points.data_config import PointDataConfig
    from modalities.points.ptv3 import PointClassifier, PointSegmenter
    from modalities.points.ptv3_network import PointFeatures

# Public name -> module that defines it.
_LAZY = {
    "PointBatch": "modalities.points.batch",
    "PointClassifier": "modalities.points.ptv3",
    "PointDataConfig": "modalities.points.data_config",
    "PointFeatures": "modalities.points.ptv3_network",
    "PointSegmenter": "modalities.points.ptv3",
}

__all__ = ["PointBatch", "PointClassifier", "PointDataConfig", "PointFeatures", "PointSegmenter"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'modalities.points' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
