"""Driving scenes: cameras and lidar in one ego frame, three-dimensional boxes, nuScenes and KITTI.

Conventions of the whole package: the ego frame has x forward, y left and z up; yaw turns counter-clockwise from x; the
centre of a box is its middle and its size (length, width, height); metres, seconds, velocities in m/s in the frame of
the box (NaN where unknown); pixels are (column, row); times of recordings are microseconds in int64. `b_from_a` is the
4 x 4 matrix that takes column vectors of frame a to frame b.

Names are looked up when used (PEP 562), so that presets can be read without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modalities.driving.batch import DrivingBatch, DrivingInput
    from modalities.driving.boxes import Boxes3D, pad_boxes
    from modalities.driving.data_config import DrivingDataConfig
    from modalities.driving.evaluate import evaluate_driving
    from modalities.driving.losses import FusionLoss
    from modalities.driving.model import FusionDetector
    from modalities.driving.nuscenes.dataset import NuScenes
    from modalities.driving.prepare import model_input
    from modalities.driving.results import SceneDetections, save_submission
    from modalities.driving.scene import Sample

# Public name -> module that defines it.
_LAZY = {
    "Boxes3D": "modalities.driving.boxes",
    "DrivingBatch": "modalities.driving.batch",
    "DrivingDataConfig": "modalities.driving.data_config",
    "DrivingInput": "modalities.driving.batch",
    "FusionDetector": "modalities.driving.model",
    "FusionLoss": "modalities.driving.losses",
    "NuScenes": "modalities.driving.nuscenes.dataset",
    "Sample": "modalities.driving.scene",
    "SceneDetections": "modalities.driving.results",
    "evaluate_driving": "modalities.driving.evaluate",
    "model_input": "modalities.driving.prepare",
    "pad_boxes": "modalities.driving.boxes",
    "save_submission": "modalities.driving.results",
}

__all__ = [
    "Boxes3D",
    "DrivingBatch",
    "DrivingDataConfig",
    "DrivingInput",
    "FusionDetector",
    "FusionLoss",
    "NuScenes",
    "Sample",
    "SceneDetections",
    "evaluate_driving",
    "model_input",
    "pad_boxes",
    "save_submission",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'modalities.driving' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
