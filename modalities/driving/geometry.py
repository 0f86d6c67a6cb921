"""Cameras and boxes: projection and its inverse, the convention of the devkit of nuScenes, points in boxes.

Pixels are (column, row) with the centre of the first one at (0, 0), so that a picture spans -0.5 to width - 0.5.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from modalities.driving.boxes import Boxes3D
from modalities.driving.rigid import quaternion_to_matrix

__all__ = [
    "EDGES",
    "Projection",
    "boxes_from_devkit",
    "boxes_to_devkit",
    "image_boxes",
    "points_in_boxes",
    "project",
    "project_segments",
    "transform_points",
    "unproject",
    "wrap_angle",
]

MIN_DEPTH = 0.1
"""Nearest depth in metres at which a point counts as in front of a camera."""

EDGES = [[i, (i + 1) % 4] for i in range(4)] + [[i + 4, (i + 1) % 4 + 4] for i in range(4)]
EDGES += [[i, i + 4] for i in range(4)]
"""Pairs of corners, in the order of `Boxes3D.corners`, between which a box has its twelve edges."""

_PAIRS = 2**22  # points times boxes looked at together in `points_in_boxes`


class Projection(NamedTuple):
    """Where points appear in pictures.

    Attributes:
        pixels: (..., N, 2) float, (column, row); finite but meaningless where the depth is not above the least one.
        depth: (..., N) float, metres along the optical axis; negative behind the camera.
        inside: (..., N) bool: in front of the camera and in the picture.
    """

    pixels: Tensor
    depth: Tensor
    inside: Tensor


def wrap_angle(angle: Tensor, period: float = 2 * np.pi) -> Tensor:
    """Angles moved into [-period / 2, period / 2) by whole periods."""
    return torch.remainder(angle + period / 2, period) - period / 2


def transform_points(points: Tensor, matrix: Tensor) -> Tensor:
    """Points (..., N, 3) in the frame that the matrices (..., 4, 4) lead to; leading axes are broadcast."""
    return points @ matrix[..., :3, :3].mT + matrix[..., None, :3, 3]


def project(
    points: Tensor,
    camera_from_ego: Tensor,
    intrinsics: Tensor,
    size: tuple[int, int],
    *,
    min_depth: float = MIN_DEPTH,
) -> Projection:
    """Projects points into pinhole cameras.

    Args:
        points: (..., N, 3) in the ego frame; leading axes are broadcast with those of the cameras, so that (N, 3) goes
            into V cameras, and (B, 1, N, 3) into (B, V) ones.
        camera_from_ego: (..., 4, 4), to frames with z forward, x right, y down.
        intrinsics: (..., 3, 3) with last row 0, 0, 1.
        size: (height, width) of the pictures in pixels.
        min_depth: Nearest depth in metres that counts as in front.
    """
    camera = transform_points(points, camera_from_ego)
    depth = camera[..., 2]
    front = depth > min_depth
    # Points on or behind the image plane are divided by the least depth: finite numbers, also in the gradient.
    rays = camera / torch.where(front, depth, min_depth)[..., None]
    pixels = rays[..., :2] @ intrinsics[..., :2, :2].mT + intrinsics[..., None, :2, 2]
    column, row = pixels.unbind(-1)
    inside = front & (column >= -0.5) & (column < size[1] - 0.5) & (row >= -0.5) & (row < size[0] - 0.5)
    return Projection(pixels, depth, inside)


def unproject(pixels: Tensor, depth: Tensor, camera_from_ego: Tensor, intrinsics: Tensor) -> Tensor:
    """Points in the ego frame from pixels and their depth: the inverse of `project`.

    Args:
        pixels: (..., N, 2), (column, row).
        depth: (..., N), metres along the optical axis.
        camera_from_ego: (..., 4, 4) rigid.
        intrinsics: (..., 3, 3) with last row 0, 0, 1.

    Returns:
        (..., N, 3) float.
    """
    centred = pixels - intrinsics[..., None, :2, 2]
    # Closed form of the inverse of [fx, skew; 0 or any, fy]: no kernel that waits for a GPU.
    (a, b), (c, d) = intrinsics[..., 0, :2].unbind(-1), intrinsics[..., 1, :2].unbind(-1)
    determinant = (a * d - b * c)[..., None]
    x = (centred[..., 0] * d[..., None] - centred[..., 1] * b[..., None]) / determinant
    y = (centred[..., 1] * a[..., None] - centred[..., 0] * c[..., None]) / determinant
    camera = torch.stack([x, y, torch.ones_like(x)], -1) * depth[..., None]
    return (camera - camera_from_ego[..., None, :3, 3]) @ camera_from_ego[..., :3, :3]


def project_segments(segments: Tensor, camera_from_ego: Tensor, intrinsics: Tensor) -> tuple[Tensor, Tensor]:
    """Projects straight lines into one camera; what of them is behind it is cut off at `MIN_DEPTH`.

    Args:
        segments: (..., 2, 3) ends in the ego frame.
        camera_from_ego: (4, 4).
        intrinsics: (3, 3) with last row 0, 0, 1.

    Returns:
        Pixels of the ends (..., 2, 2), and (...) bool, True where something of the line is in front; pixels of others
        are finite but meaningless.
    """
    camera = segments @ camera_from_ego[:3, :3].mT + camera_from_ego[:3, 3]
    near, far = camera[..., 0, 2], camera[..., 1, 2]
    start, stop = camera.unbind(-2)
    share = ((MIN_DEPTH - near) / torch.where(near == far, 1.0, far - near)).clamp(0, 1)
    cut = start + share[..., None] * (stop - start)
    ends = torch.stack(
        [torch.where(depth[..., None] < MIN_DEPTH, cut, end) for depth, end in ((near, start), (far, stop))], -2
    )
    front = torch.maximum(near, far) > MIN_DEPTH
    rays = ends[..., :2] / torch.where(front[..., None, None], ends[..., 2:], 1.0)
    return rays @ intrinsics[:2, :2].mT + intrinsics[:2, 2], front


def image_boxes(corners: Tensor, camera_from_ego: Tensor, intrinsics: Tensor, size: tuple[int, int]) -> Tensor:
    """Boxes around the visible part of boxes in one picture.

    Edges that pass behind the camera are cut at `MIN_DEPTH`, so that a box beside the car does not appear mirrored.

    Args:
        corners: (M, 8, 3) as `Boxes3D.corners` orders them, in the ego frame.
        camera_from_ego: (4, 4).
        intrinsics: (3, 3).
        size: (height, width) in pixels.

    Returns:
        (M, 4) x1, y1, x2, y2 cut to the picture; NaN where nothing is in it.
    """
    pixels, front = project_segments(corners[:, EDGES], camera_from_ego, intrinsics)
    shown = front[..., None, None]
    low = torch.where(shown, pixels, torch.inf).flatten(1, 2).amin(1)
    high = torch.where(shown, pixels, -torch.inf).flatten(1, 2).amax(1)
    border = corners.new_tensor([size[1] - 1, size[0] - 1])
    low, high = low.clamp(min=0).minimum(border + 1), high.clamp(min=-1).minimum(border)
    boxes = torch.cat([low, high], 1)
    return torch.where((low < high).all(1)[:, None], boxes, torch.nan)


def points_in_boxes(points: Tensor, boxes: Boxes3D) -> Tensor:
    """Says which points are in which boxes, their faces included.

    Args:
        points: (N, 3) or more columns, in the frame of the boxes.
        boxes: M boxes.

    Returns:
        (M, N) bool.
    """
    rows = []
    step = max(1, _PAIRS // max(1, len(points)))
    xyz = points[:, :3].to(boxes.centre.dtype)
    for start in range(0, len(boxes), step):
        centre, size = boxes.centre[start : start + step], boxes.size[start : start + step] / 2
        cos, sin = boxes.yaw[start : start + step].cos()[:, None], boxes.yaw[start : start + step].sin()[:, None]
        x, y, z = (xyz - centre[:, None]).unbind(-1)
        along, across = x * cos + y * sin, y * cos - x * sin
        rows.append((along.abs() <= size[:, :1]) & (across.abs() <= size[:, 1:2]) & (z.abs() <= size[:, 2:]))
    return torch.cat(rows) if rows else points.new_zeros((0, len(points)), dtype=torch.bool)


def boxes_to_devkit(boxes: Boxes3D) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Boxes in the convention of the devkit of nuScenes.

    Returns:
        Centres (M, 3), sizes (M, 3) as width, length, height, and quaternions (M, 4) w, x, y, z; float64.
    """
    centre, size, yaw = (t.detach().cpu().double().numpy() for t in (boxes.centre, boxes.size, boxes.yaw))
    zero = np.zeros_like(yaw)
    return centre, size[:, [1, 0, 2]], np.stack([np.cos(yaw / 2), zero, zero, np.sin(yaw / 2)], 1)


def boxes_from_devkit(centre: object, wlh: object, quaternion: object) -> Boxes3D:
    """Boxes of float64 from the convention of the devkit of nuScenes; a tilt of the quaternions is dropped.

    Args:
        centre: (M, 3).
        wlh: (M, 3), width, length, height.
        quaternion: (M, 4) w, x, y, z.

    Raises:
        DataError: If shapes do not fit or numbers are not finite.
    """
    turned = np.asarray(quaternion, dtype=np.float64).reshape(-1, 4)
    rotation = quaternion_to_matrix(turned)
    size = np.asarray(wlh, dtype=np.float64).reshape(-1, 3)[:, [1, 0, 2]]
    yaw = np.arctan2(rotation[:, 1, 0], rotation[:, 0, 0])
    return Boxes3D.from_arrays(centre, size, yaw, dtype=torch.float64)
