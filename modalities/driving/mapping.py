"""Where tokens of one sensor are seen by the other: lidar tokens on image planes, image tokens in the bird's-eye view.

All of it follows from calibration and points alone, is made without gradients, and without the host looking at the
device. Images are cut into patches; a position on an image is (column, row) in patches, pixel / patch size.

Legend: B scenes, V cameras, P lidar tokens, rows x columns patches of an image, X x Y cells of the bird's-eye view.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["NEAR", "Rig", "constants", "lift_to_ground", "look_up", "nearest_lidar", "project", "view_of"]

# Metres in front of a camera from which a point can be seen.
NEAR = 0.1
# Offers to no patch go to one of so many places, since a GPU writes to the same place in turns.
_NOWHERE = 4096
# Squared distances in patches are compared in steps of 2**-20, with the number of the token below.
_STEPS, _NUMBER_BITS = 1 << 20, 32


def constants(values: Sequence[float], like: Tensor) -> Tensor:
    """Numbers as a vector of the device and dtype of `like`, without the host waiting for the device."""
    return torch.stack([like.new_full((), value) for value in values])


@dataclass(frozen=True)
class Rig:
    """The cameras of a batch.

    Attributes:
        matrix: (B, V, 3, 4) float: what takes ego coordinates to (column, row, 1) * depth, in patches.
        present: (B, V) bool.
        rows: Patches of an image along its height.
        columns: Patches along its width.
    """

    matrix: Tensor
    present: Tensor
    rows: int
    columns: int

    @staticmethod
    def make(
        intrinsics: Tensor, camera_from_ego: Tensor, present: Tensor, size: tuple[int, int], patch: int, like: Tensor
    ) -> Rig:
        """The rig of a batch; calibration of absent cameras may hold anything.

        Args:
            intrinsics: (B, V, 3, 3).
            camera_from_ego: (B, V, 4, 4).
            present: (B, V) bool.
            size: (height, width) of the images in pixels.
            patch: Side of a patch in pixels.
            like: Gives the dtype in which positions are computed.
        """
        matrix = intrinsics.double() @ camera_from_ego.double()[..., :3, :]
        matrix = torch.cat([matrix[..., :2, :] / patch, matrix[..., 2:, :]], dim=-2)
        known = present & torch.isfinite(matrix).all(-1).all(-1)
        anywhere = torch.eye(3, 4, dtype=matrix.dtype, device=matrix.device)
        matrix = torch.where(known[..., None, None], matrix, anywhere)
        return Rig(matrix.to(like.dtype), known, size[0] // patch, size[1] // patch)


def project(points: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Projects points: positions (..., 2) in patches, and depths (...,) in metres.

    Args:
        points: (..., 3) in the ego frame.
        matrix: (..., 3, 4), of `Rig`.
    """
    seen = (matrix[..., :3] @ points.unsqueeze(-1)).squeeze(-1) + matrix[..., 3]
    depth = seen[..., 2]
    safe = torch.where(depth > NEAR, depth, 1.0)
    return seen[..., :2] / safe.unsqueeze(-1), depth


def view_of(points: Tensor, scene: Tensor, rig: Rig) -> tuple[Tensor, Tensor]:
    """Positions of points on every camera of their scene, and which see them.

    Args:
        points: (P, 3) in the ego frame.
        scene: (P,) int64.
        rig: The cameras.

    Returns:
        (P, V, 2) positions in patches, and (P, V) bool: in front of the camera, on the image, and the camera is there.
    """
    position, depth = project(points.unsqueeze(1), rig.matrix.index_select(0, scene))
    return position, _on_image(position, depth, rig) & rig.present.index_select(0, scene)


def _on_image(position: Tensor, depth: Tensor, rig: Rig) -> Tensor:
    column, row = position.unbind(-1)
    return (depth > NEAR) & (column >= 0) & (column < rig.columns) & (row >= 0) & (row < rig.rows)


def most_central(position: Tensor, seen: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """The camera that sees each point farthest from its left and right edges.

    Args:
        position: (..., V, 2) in patches.
        seen: (..., V) bool.
        columns: Patches along the width of an image.

    Returns:
        (...,) int64 camera, and bool whether any sees the point.
    """
    margin = torch.minimum(position[..., 0], columns - position[..., 0])
    best = torch.where(seen, margin, -1.0).argmax(-1)
    return best, seen.any(-1)


def nearest_lidar(position: Tensor, seen: Tensor, scene: Tensor, rig: Rig, radius: int) -> Tensor:
    """The lidar token whose projection is nearest to the middle of each patch.

    Every token offers itself to the patches around it, and each patch keeps the smallest distance (then the smallest
    number), so that the result does not depend on the order in which offers arrive.

    Args:
        position: (P, V, 2) of `view_of`.
        seen: (P, V).
        scene: (P,) int64.
        rig: The cameras.
        radius: Largest distance in patches.

    Returns:
        (B, V, rows, columns) int64 number of a lidar token, -1 where none is near enough.
    """
    scenes, cameras = rig.present.shape
    patches = rig.rows * rig.columns
    steps = torch.arange(-radius, radius + 1, device=position.device)
    around = torch.stack(torch.meshgrid(steps, steps, indexing="xy"), dim=-1).view(-1, 2)
    at = torch.where(seen.unsqueeze(-1), position, 0.0).floor().long().unsqueeze(2) + around
    distance = (at + 0.5 - position.unsqueeze(2)).square().sum(-1)
    column, row = at.unbind(-1)
    fits = (column >= 0) & (column < rig.columns) & (row >= 0) & (row < rig.rows)
    fits &= (distance <= radius**2) & seen.unsqueeze(2)
    image = scene.unsqueeze(1) * cameras + torch.arange(cameras, device=scene.device)
    nowhere = scenes * cameras * patches
    away = nowhere + torch.arange(fits.numel(), device=scene.device).view_as(fits) % _NOWHERE
    target = torch.where(fits, image.unsqueeze(2) * patches + row * rig.columns + column, away)
    number = torch.arange(len(scene), device=scene.device).view(-1, 1, 1)
    offer = (torch.where(fits, distance, 0.0) * _STEPS).long() << _NUMBER_BITS | number
    worst = torch.iinfo(torch.int64).max
    kept = offer.new_full((nowhere + _NOWHERE,), worst).scatter_reduce(0, target.flatten(), offer.flatten(), "amin")
    kept = kept[:nowhere].view(scenes, cameras, rig.rows, rig.columns)
    return torch.where(kept == worst, -1, kept & ((1 << _NUMBER_BITS) - 1))


def lift_to_ground(rig: Rig, ground: float) -> tuple[Tensor, Tensor]:
    """Where the ray through the middle of each patch meets the ground.

    Args:
        rig: The cameras.
        ground: Height of the ground in the ego frame in metres.

    Returns:
        (B, V, rows, columns, 2) x and y in metres, and bool (B, V, rows, columns): in front of the camera.
    """
    like = rig.matrix
    inverse = torch.linalg.inv_ex(like[..., :3].double()).inverse.to(like.dtype)
    eye = -(inverse @ like[..., 3:]).squeeze(-1)
    rows = torch.arange(rig.rows, device=like.device, dtype=like.dtype) + 0.5
    columns = torch.arange(rig.columns, device=like.device, dtype=like.dtype) + 0.5
    row, column = torch.meshgrid(rows, columns, indexing="ij")
    pixel = torch.stack([column, row, torch.ones_like(row)], dim=-1)
    # Along these vectors the depth grows by one metre.
    ray = torch.einsum("bvij,rcj->bvrci", inverse, pixel)
    eye = eye[:, :, None, None]
    down = ray[..., 2]
    depth = (ground - eye[..., 2]) / torch.where(down.abs() < 1e-9, 1e-9, down)
    meets = (depth > NEAR) & torch.isfinite(depth) & rig.present[:, :, None, None]
    place = eye[..., :2] + depth.unsqueeze(-1) * ray[..., :2]
    return torch.where(meets.unsqueeze(-1), place, 0.0), meets


def look_up(cells: Tensor, heights: Tensor, rig: Rig) -> tuple[Tensor, Tensor, Tensor]:
    """The patch that shows each point of a grid in the ego frame.

    Args:
        cells: (X, Y, 2) x and y of the columns of the grid in metres.
        heights: (Z,) heights in metres.
        rig: The cameras.

    Returns:
        int64 camera and patch (row by row), and bool whether any camera shows the point; each (B, X, Y, Z).
    """
    count = len(heights)
    grid = cells.unsqueeze(2).expand(-1, -1, count, -1)
    points = torch.cat([grid, heights.view(1, 1, -1, 1).expand(*grid.shape[:3], 1)], dim=-1)
    shape, points = points.shape[:3], points.reshape(-1, 3)
    matrix = rig.matrix
    seen_at = torch.einsum("bvij,nj->bnvi", matrix[..., :3], points) + matrix[:, None, :, :, 3]
    depth = seen_at[..., 2]
    position = seen_at[..., :2] / torch.where(depth > NEAR, depth, 1.0).unsqueeze(-1)
    seen = _on_image(position, depth, rig) & rig.present[:, None]
    camera, found = most_central(position, seen, rig.columns)
    chosen = position.gather(2, camera[..., None, None].expand(-1, -1, 1, 2)).squeeze(2)
    chosen = torch.where(found.unsqueeze(-1), chosen, 0.0).floor().long()
    patch = chosen[..., 1] * rig.columns + chosen[..., 0]
    return camera.unflatten(1, shape), patch.unflatten(1, shape), found.unflatten(1, shape)
