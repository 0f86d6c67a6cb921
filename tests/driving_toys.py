"""Small driving scenes and fusion networks for tests."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor

from modalities.driving.batch import DrivingBatch, DrivingInput
from modalities.driving.boxes import Boxes3D
from zoo import registry

HEIGHT, WIDTH, PATCH, CAMERAS = 32, 48, 8, 4
TINY: dict[str, Any] = {
    "dim": 16,
    "num_heads": 2,
    "head_dim": 8,
    "mlp_dim": 24,
    "window": 8,
    "set_size": 12,
    "patch_size": PATCH,
    "lift_heights": [0.5, 1.5],
    "neck_depth": 1,
    "num_queries": 16,
    "query_window": 3,
    "num_classes": 3,
}
DATA: dict[str, Any] = {
    "image_size": [HEIGHT, WIDTH],
    "cameras": [f"CAM_{number}" for number in range(CAMERAS)],
    "point_range": [-12.0, -8.0, -3.0, 12.0, 8.0, 5.0],
    "pillar_size": 0.8,
}
LABELS = ["car", "pedestrian", "barrier"]


def rig(cameras: int = CAMERAS, height: int = HEIGHT, width: int = WIDTH) -> tuple[Tensor, Tensor]:
    """Intrinsics and extrinsics of cameras that look around from 1.6 m above the ground, a little down."""
    intrinsics, extrinsics = [], []
    for number in range(cameras):
        focal, angle, tilt = 0.55 * width, 2 * math.pi * number / cameras + 0.07, 0.12
        intrinsics.append([[focal, 0.0, width / 2], [0.0, focal, height / 2], [0.0, 0.0, 1.0]])
        forward = [math.cos(angle) * math.cos(tilt), math.sin(angle) * math.cos(tilt), -math.sin(tilt)]
        right = [math.sin(angle), -math.cos(angle), 0.0]
        rotation = torch.tensor([right, [0.0, 0.0, 0.0], forward], dtype=torch.float64)
        rotation[1] = torch.linalg.cross(rotation[2], rotation[0])
        eye = torch.tensor([0.4 * math.cos(angle), 0.4 * math.sin(angle), 1.6], dtype=torch.float64)
        pose = torch.eye(4, dtype=torch.float64)
        pose[:3, :3], pose[:3, 3] = rotation, -rotation @ eye
        extrinsics.append(pose)
    return torch.tensor(intrinsics), torch.stack(extrinsics).float()


def scene(points: int = 150, seed: int = 0, cameras: int = CAMERAS) -> DrivingInput:
    """A scene with noise on its images and points around the vehicle."""
    generator = torch.Generator().manual_seed(seed)
    intrinsics, extrinsics = rig(cameras)
    span = torch.tensor([26.0, 18.0, 4.0, 1.0, 0.5])
    low = torch.tensor([-13.0, -9.0, -0.5, 0.0, 0.0])
    cloud = torch.rand(points, 5, generator=generator) * span + low
    images = torch.randn(cameras, 3, HEIGHT, WIDTH, generator=generator)
    return DrivingInput(images, intrinsics, extrinsics, cloud)


def scenes(*points: int) -> DrivingBatch:
    """A batch of scenes with so many points."""
    return DrivingBatch.from_samples([scene(count, seed) for seed, count in enumerate(points)])


def some_boxes(seed: int = 0, count: int = 4, kinds: int = 3) -> Boxes3D:
    """Boxes in range, every second of them without a velocity."""
    generator = torch.Generator().manual_seed(100 + seed)
    spots = torch.randperm(24, generator=generator)[:count]
    centre = torch.stack([spots % 6 * 4.0 - 10, spots // 6 * 4.0 - 6, torch.full((count,), 0.8)], 1)
    centre[:, :2] += torch.rand(count, 2, generator=generator) * 0.5
    size = torch.rand(count, 3, generator=generator) * 2 + 0.6
    yaw = (torch.rand(count, generator=generator) - 0.5) * 2 * math.pi
    velocity = torch.randn(count, 2, generator=generator)
    velocity[::2] = math.nan
    return Boxes3D(centre, size, yaw, velocity, torch.arange(count) % kinds)


def tiny_config(encoding: str = "pape", **model: Any) -> dict[str, Any]:
    """Configuration of a small network of both sensors with three classes."""
    config = copy.deepcopy(registry.entry("none-fusion-n-simdrive").new_config())
    options = {"parabolas": 4} if encoding == "pape" else {}
    config["model"] |= TINY | {"encoding": encoding, "encoding_options": options} | model
    config["data"] |= DATA
    return config | {"labels": list(LABELS), "name": "tiny"}


def tiny(encoding: str = "pape", *, seed: int = 0, **model: Any) -> Any:
    """A network of `tiny_config` in eval mode whose boxes all count."""
    torch.manual_seed(seed)
    config = tiny_config(encoding, **{"min_score": 0.0} | model)
    return registry.architecture(config).build(config).eval()


def scene_with(boxes: Boxes3D, seed: int = 0) -> DrivingInput:
    """A scene with points on the ground, and on the boxes with an intensity by class; images are noise."""
    generator = torch.Generator().manual_seed(seed)
    plain = scene(60, seed)
    assert plain.points is not None
    ground = plain.points.clone()
    ground[:, 2], ground[:, 3] = 0.0, 0.1
    places = torch.rand(len(boxes), 25, 3, generator=generator) - 0.5
    local = places * boxes.size.unsqueeze(1)
    cos, sin = boxes.yaw.cos().unsqueeze(1), boxes.yaw.sin().unsqueeze(1)
    x = local[..., 0] * cos - local[..., 1] * sin
    y = local[..., 0] * sin + local[..., 1] * cos
    xyz = torch.stack([x, y, local[..., 2]], -1) + boxes.centre.unsqueeze(1)
    rest = torch.stack([0.3 + 0.3 * boxes.label, torch.zeros(len(boxes))], 1).unsqueeze(1).expand(-1, 25, -1)
    return plain._replace(points=torch.cat([ground, torch.cat([xyz, rest], 2).flatten(0, 1)]))
