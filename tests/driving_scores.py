"""Labelled and predicted boxes of a synthetic drive, for the metrics of nuScenes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch

from modalities.driving.boxes import Boxes3D
from modalities.driving.geometry import wrap_angle
from modalities.driving.metrics import Detections
from modalities.driving.nuscenes.classes import DETECTION_CLASSES, attributes_of
from modalities.driving.nuscenes.dataset import NuScenes
from tests.driving_tables import Object, write_drive

_CATEGORIES = {
    "car": "vehicle.car",
    "truck": "vehicle.truck",
    "bus": "vehicle.bus.bendy",
    "trailer": "vehicle.trailer",
    "construction_vehicle": "vehicle.construction",
    "pedestrian": "human.pedestrian.child",
    "motorcycle": "vehicle.motorcycle",
    "bicycle": "vehicle.bicycle",
    "traffic_cone": "movable_object.trafficcone",
    "barrier": "movable_object.barrier",
}


def crowd(count: int = 160) -> list[Object]:
    """Objects of all classes around the car and beyond their ranges, some without points or attributes."""
    rng = np.random.default_rng(7)
    found: list[Object] = [("static_object.bicycle_rack", "", [610, 1005, 1], [0, 0], [8, 12, 2], 0.4, 20)]
    for number in range(count):
        name = DETECTION_CLASSES[number % 10]
        angle, far = rng.uniform(-math.pi, math.pi), rng.uniform(3, 60)
        attributes = attributes_of(name)
        attribute = attributes[rng.integers(len(attributes))] if attributes and rng.random() > 0.15 else ""
        place = [604 + far * math.cos(angle), 1001 + far * math.sin(angle), rng.normal(1, 0.2)]
        velocity = rng.normal(0, 3, 2).tolist() if name not in ("traffic_cone", "barrier") else [0.0, 0.0]
        points = int(rng.integers(0, 12))
        size = rng.uniform(0.5, 4, 3).tolist()
        found.append((_CATEGORIES[name], attribute, place, velocity, size, rng.uniform(-3, 3), points))
    return found


def crowded_drive(root: Path) -> NuScenes:
    """A drive of the split mini_val."""
    return NuScenes(write_drive(root, scenes=("scene-0103",), frames=4, objects=crowd()))


def guesses(data: NuScenes) -> dict[str, Detections]:
    """Imperfect predictions by key frame, in the global frame: noise, misses, duplicates, other classes, ties."""
    rng = np.random.default_rng(11)
    found = {}
    for token in data.sample_tokens():
        annotations = data.annotations(token)
        assert annotations is not None
        kept = annotations.select((annotations.boxes.label.numpy() >= 0) & (rng.random(len(annotations)) > 0.15))
        rows = torch.from_numpy(np.concatenate([np.arange(len(kept)), rng.integers(0, len(kept), 40)]))
        boxes, count = kept.boxes[rows], len(rows)

        def noise(scale: float, *shape: int) -> torch.Tensor:
            return torch.from_numpy(rng.normal(0, scale, shape))

        label = boxes.label.clone()
        other = torch.from_numpy(rng.random(count) < 0.1)
        label[other] = torch.from_numpy(rng.integers(0, 10, count))[other]
        quality = torch.from_numpy(rng.uniform(0.2, 1.5, count))
        boxes = Boxes3D(
            boxes.centre + noise(0.8, count, 3) * quality[:, None],
            boxes.size * (noise(0.15, count, 3) * quality[:, None]).exp(),
            wrap_angle(boxes.yaw + noise(0.4, count) * quality + torch.pi * torch.from_numpy(rng.random(count) < 0.1)),
            torch.nan_to_num(boxes.velocity) + noise(1.0, count, 2),
            label,
            # Few different values, so that there are ties.
            (torch.exp(-quality) + noise(0.1, count)).clamp(0.02, 0.98).mul(50).round() / 50,
        )
        names = [attributes_of(DETECTION_CLASSES[i]) for i in label.tolist()]
        attributes = tuple(some[rng.integers(len(some))] if some else "" for some in names)
        found[token] = Detections(boxes, attributes)
    return found
