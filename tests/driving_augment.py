"""Training scenes whose pictures say where each pixel was, for tests of augmentation."""

from __future__ import annotations

import torch
from torch import Tensor

from modalities.driving.augment import TrainingScene
from modalities.driving.boxes import Boxes3D
from modalities.driving.geometry import project, unproject
from tests.driving_toys import CAMERAS, HEIGHT, WIDTH, rig, scene_with, some_boxes

STEPS = (5.0, 7.0)  # grey levels from one column, or row, to the next


def training_scene(seed: int = 0, *, boxes: Boxes3D | None = None, dtype: torch.dtype = torch.float64) -> TrainingScene:
    """A scene of four cameras whose red is the column and whose green is the row, with points in its boxes."""
    boxes = some_boxes(seed) if boxes is None else boxes
    plain = scene_with(boxes, seed)
    assert plain.points is not None
    column, row = torch.arange(WIDTH) * STEPS[0], torch.arange(HEIGHT) * STEPS[1]
    red, green = column.expand(HEIGHT, WIDTH), row[:, None].expand(HEIGHT, WIDTH)
    blue = torch.arange(CAMERAS) * 60.0 + 60
    images = torch.stack([torch.stack([red, green, value.expand(HEIGHT, WIDTH)]) for value in blue])
    return TrainingScene(
        images.to(torch.uint8),
        torch.ones(CAMERAS, dtype=torch.bool),
        plain.intrinsics.to(dtype),
        plain.camera_from_ego.to(dtype),
        plain.points.to(dtype),
        boxes.to(dtype=dtype),
    )


def marks(scene: TrainingScene, count: int = 60, border: int = 5) -> Tensor:
    """(V, count, 3) places in the ego frame that each camera shows, away from the borders of its picture."""
    generator = torch.Generator().manual_seed(1)
    span = torch.tensor([WIDTH - 1.0 - 2 * border, HEIGHT - 1.0 - 2 * border])
    pixels = torch.rand(CAMERAS, count, 2, generator=generator) * span + border
    depth = torch.rand(CAMERAS, count, generator=generator) * 30 + 2
    like = scene.intrinsics
    return unproject(pixels.to(like), depth.to(like), scene.camera_from_ego, scene.intrinsics)


def shown(scene: TrainingScene, places: Tensor) -> tuple[Tensor, Tensor]:
    """Colours (V, count, 3) at places (V, count, 3), NaN where a picture does not show one, and their depth."""
    assert scene.images is not None
    height, width = scene.images.shape[2:]
    seen = project(places, scene.camera_from_ego, scene.intrinsics, (height, width))
    column, row = seen.pixels.unbind(-1)
    inner = seen.inside & (column > 1) & (row > 1) & (column < width - 2) & (row < height - 2)
    at = torch.stack([(2 * column + 1) / width - 1, (2 * row + 1) / height - 1], -1)
    images = scene.images.to(at.dtype)
    colours = torch.nn.functional.grid_sample(images, at[:, None], align_corners=False)[:, :, 0].mT
    return torch.where(inner[..., None], colours, torch.nan), seen.depth


def rig_without_sensors(cameras: int = CAMERAS) -> TrainingScene:
    """A scene with neither pictures nor points nor boxes."""
    intrinsics, extrinsics = rig(CAMERAS)
    mask = torch.zeros(cameras, dtype=torch.bool)
    return TrainingScene(None, mask, intrinsics[:cameras], extrinsics[:cameras], None, Boxes3D.empty())
