"""What detections of a nuScenes data set are scored against, and the way of predictions into the global frame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from modalities.driving.metrics import Detections, DetectionTruth
from modalities.driving.nuscenes.dataset import NuScenes
from zoo.errors import DataError

__all__ = ["detection_truth", "global_detections"]


def detection_truth(data: NuScenes, tokens: Iterable[str]) -> dict[str, DetectionTruth]:
    """The truth of key frames in the global frame, for `score_detections`.

    Args:
        data: The data set; its classes give the labels.
        tokens: Key frames, such as `data.sample_tokens("val")`.

    Raises:
        DataError: If a frame has no annotations (test sets), or a table is broken.
    """
    found = {}
    for token in tokens:
        annotations = data.annotations(token)
        if annotations is None:
            raise DataError(f"{data.tables.folder}: no annotations (a test set?): nothing to score against")
        x, y = data.ego_pose(token)[:2, 3]
        found[token] = DetectionTruth.of(annotations, (float(x), float(y)))
    return found


def global_detections(found: Mapping[str, Detections], data: NuScenes) -> dict[str, Detections]:
    """Predictions in the ego frame of each key frame as ones of float64 in the global frame, as submissions have them.

    Raises:
        DataError: If a token is not in the data set.
    """
    moved = {}
    for token, (boxes, attributes) in found.items():
        lifted = boxes.to("cpu", torch.float64).transform(data.ego_pose(token))
        moved[token] = Detections(lifted, attributes)
    return moved
