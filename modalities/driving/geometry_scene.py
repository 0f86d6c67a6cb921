"""Turning, mirroring and scaling a whole scene: points, boxes, velocities and cameras stay consistent.

A scene is a `DrivingInput` and its boxes. After turning and scaling, everything appears at the pixels where it was.
Mirroring flips each picture left to right, so that everything appears at the mirrored column, `width - 1 - column`;
cameras keep their places in the list, also where a mirrored front-left one now looks to the right.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from modalities.driving.batch import DrivingInput
from modalities.driving.boxes import Boxes3D
from modalities.driving.geometry import wrap_angle
from modalities.driving.rigid import invert_rigid
from zoo.errors import ConfigError

__all__ = ["LabelledInput", "flip_scene", "resize_intrinsics", "rotate_scene", "scale_scene", "translate_scene"]


class LabelledInput(NamedTuple):
    """One prepared scene with its boxes, both in the ego frame."""

    scene: DrivingInput
    boxes: Boxes3D


def rotate_scene(labelled: LabelledInput, angle: float) -> LabelledInput:
    """Turns the scene counter-clockwise about the vertical axis through the origin, by radians."""
    cos, sin = math.cos(angle), math.sin(angle)
    matrix = torch.eye(4, dtype=torch.float64)
    matrix[:2, :2] = torch.tensor([[cos, -sin], [sin, cos]], dtype=torch.float64)
    return _move(labelled, matrix)


def translate_scene(labelled: LabelledInput, shift: tuple[float, float, float]) -> LabelledInput:
    """Moves the scene by metres along x, y and z."""
    matrix = torch.eye(4, dtype=torch.float64)
    matrix[:3, 3] = torch.tensor(shift, dtype=torch.float64)
    return _move(labelled, matrix)


def scale_scene(labelled: LabelledInput, factor: float) -> LabelledInput:
    """Scales the scene about the origin; sizes, velocities and depths grow by the factor too.

    Raises:
        ConfigError: If the factor is not a positive number.
    """
    if not 0 < factor < math.inf:
        raise ConfigError(f"a scene is scaled by a positive number, not {factor!r}")
    scene, boxes = labelled
    extrinsics = scene.camera_from_ego.clone()
    extrinsics[..., :3, 3] *= factor  # s (R p + t) = R (s p) + s t: the same ray, and the matrix stays rigid
    boxes = boxes.with_(centre=boxes.centre * factor, size=boxes.size * factor, velocity=boxes.velocity * factor)
    points = _with_xyz(scene.points, lambda xyz: xyz * factor)
    return LabelledInput(scene._replace(camera_from_ego=extrinsics, points=points), boxes)


def flip_scene(labelled: LabelledInput, axis: Literal["x", "y"]) -> LabelledInput:
    """Mirrors the scene and its pictures.

    A mirrored camera is no camera: its frame would be left-handed. Mirroring the picture too (x of the camera frame
    becomes -x, column c becomes width - 1 - c) makes it one again.

    Args:
        labelled: The scene; its pictures are flipped. Without pictures (a scene of the lidar alone) the principal
            points stay, as if they were in the middle.
        axis: The coordinate that changes its sign: "y" swaps left and right, "x" front and back.

    Raises:
        ConfigError: For another axis.
    """
    if axis not in ("x", "y"):
        raise ConfigError(f'a scene is mirrored along "x" or "y", not {axis!r}')
    scene, boxes = labelled
    column = "xy".index(axis)
    signs = torch.ones(3, dtype=boxes.centre.dtype, device=boxes.device)
    signs[column] = -1
    yaw = wrap_angle(math.pi - boxes.yaw if axis == "x" else -boxes.yaw)
    boxes = boxes.with_(centre=boxes.centre * signs, yaw=yaw, velocity=boxes.velocity * signs[:2])

    extrinsics = scene.camera_from_ego.clone()
    extrinsics[..., :3, column] *= -1
    extrinsics[..., 0, :] *= -1
    intrinsics = scene.intrinsics.clone()
    intrinsics[..., 0, 1] *= -1
    intrinsics[..., 1, 0] *= -1
    if scene.images is not None:
        intrinsics[..., 0, 2] = scene.images.shape[-1] - 1 - intrinsics[..., 0, 2]
    points = _with_xyz(scene.points, lambda xyz: xyz * signs.to(xyz))
    images = None if scene.images is None else scene.images.flip(-1)
    scene = scene._replace(images=images, intrinsics=intrinsics, camera_from_ego=extrinsics, points=points)
    return LabelledInput(scene, boxes)


def resize_intrinsics(
    intrinsics: Tensor, scale: tuple[float, float], offset: tuple[float, float] = (0.0, 0.0)
) -> Tensor:
    """Intrinsics of a picture that was resized, then cropped.

    Args:
        intrinsics: (..., 3, 3).
        scale: New width over old width, new height over old height.
        offset: Column and row, in the resized picture, of the corner of the crop.
    """
    resized = intrinsics.clone()
    for row in (0, 1):
        resized[..., row, :2] *= scale[row]
        # Pixel centres are at whole numbers: the border of the picture, at -0.5, is what stays.
        resized[..., row, 2] = (intrinsics[..., row, 2] + 0.5) * scale[row] - 0.5 - offset[row]
    return resized


def _move(labelled: LabelledInput, matrix: Tensor) -> LabelledInput:
    """Applies a rigid transform new_from_old (4, 4) float64 to all but the pixels."""
    scene, boxes = labelled
    inverse = torch.from_numpy(invert_rigid(matrix.numpy()))
    extrinsics = scene.camera_from_ego.double() @ inverse.to(scene.camera_from_ego.device)
    points = _with_xyz(scene.points, lambda xyz: xyz @ matrix[:3, :3].T.to(xyz) + matrix[:3, 3].to(xyz))
    moved = scene._replace(camera_from_ego=extrinsics.to(scene.camera_from_ego.dtype), points=points)
    return LabelledInput(moved, boxes.transform(matrix))


def _with_xyz(points: Tensor | None, change: Callable[[Tensor], Tensor]) -> Tensor | None:
    return None if points is None else torch.cat([change(points[:, :3]), points[:, 3:]], 1)
