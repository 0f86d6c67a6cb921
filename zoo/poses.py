"""Camera poses of tokens: 4x4 matrices that map a token's own frame to the world, and their inverses in closed form.

A pose g_i maps points (x, y, z, 1) in the frame of token i to the world, so that g_i^-1 g_j maps the frame of token j
to that of token i, and a change of the world frame, W g_i for all i, leaves every g_i^-1 g_j as it is. The frame may be
a camera (rigid: GTA) or an image with depth (projective: PRoPE). Poses travel with tokens as `Coordinates.poses`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zoo.errors import DataError

__all__ = ["check_poses", "from_cameras", "identity_poses", "identity_where", "invert"]

_LAST_ROW = (0.0, 0.0, 0.0, 1.0)


def from_cameras(
    camera_from_world: Tensor,
    intrinsics: Tensor | None = None,
    image_size: tuple[float, float] | None = None,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Poses of cameras from their extrinsics, and of their images where intrinsics are given.

    Without intrinsics a pose is world_from_camera = [R^T, -R^T t] (for `gta`). With them it is [R^T K^-1, -R^T t], the
    inverse of the projection K [R, t] lifted to 4x4 (for `prope`, arXiv 2507.10496). K is normalised by the size of the
    image first, so that corners are at -0.5 and 0.5 at any resolution. The world origin becomes the centre of the first
    camera, subtracted in float64, which changes no relative pose.

    A token takes the pose of its camera: `poses.repeat_interleave(tokens_per_camera, dim=-3)` for cameras in order.

    Args:
        camera_from_world: (..., cameras, 4, 4) rigid, x to the right, y down, z forward, in any unit of length; float64
            where the origin is far.
        intrinsics: (..., cameras or 1, 3, 3) in pixels: [fx, skew, cx], [0, fy, cy], [0, 0, 1].
        image_size: Width and height in pixels, needed with intrinsics.
        dtype: The dtype of the features: float64 gives float64 poses, everything else float32.

    Returns:
        (..., cameras, 4, 4) world_from_camera, or world_from_image.

    Raises:
        DataError: If a shape does not fit, a number is not finite, extrinsics are not rigid, intrinsics have another
            form or lack a size.
    """
    extrinsics = _matrices("camera_from_world", camera_from_world, 4)
    rotation, translation = extrinsics[..., :3, :3], extrinsics[..., :3, 3:]
    skewed = (rotation @ rotation.mT - torch.eye(3).to(extrinsics)).abs() > 1e-3
    mirrored = torch.linalg.det(rotation) < 0
    if skewed.any() or mirrored.any() or (extrinsics[..., 3, :] != extrinsics.new_tensor(_LAST_ROW)).any():
        raise DataError("camera_from_world must be rigid: a rotation, a translation and the last row 0, 0, 0, 1")
    linear, centres = rotation.mT, -rotation.mT @ translation
    if intrinsics is not None:
        inverse = _inverse_intrinsics(_matrices("intrinsics", intrinsics, 3).to(extrinsics.device), image_size)
        try:
            linear = linear @ inverse
        except RuntimeError as error:
            shapes = f"{tuple(extrinsics.shape)} and {tuple(inverse.shape)}"
            raise DataError(f"camera_from_world and intrinsics are not of as many cameras: {shapes}") from error
    poses = identity_poses(linear, *linear.shape[:-2])
    poses[..., :3, :3] = linear
    poses[..., :3, 3:] = centres - centres[..., :1, :, :]
    return poses.to(torch.float64 if dtype == torch.float64 else torch.float32)


def _matrices(name: str, matrices: Tensor, size: int) -> Tensor:
    """Matrices (..., cameras, size, size) in float64."""
    if not isinstance(matrices, Tensor) or matrices.dim() < 3 or matrices.shape[-2:] != (size, size):
        what = tuple(matrices.shape) if isinstance(matrices, Tensor) else type(matrices).__name__
        raise DataError(f"{name} must be a tensor (..., cameras, {size}, {size}), got {what}")
    if not matrices.isfinite().all():
        raise DataError(f"{name} must be finite")
    return matrices.to(torch.float64)


def _inverse_intrinsics(intrinsics: Tensor, image_size: tuple[float, float] | None) -> Tensor:
    """K^-1 (..., 3, 3) of normalised intrinsics, in closed form."""
    try:
        width, height = map(float, () if image_size is None else image_size)
    except (TypeError, ValueError):
        width = height = math.nan
    if not (0 < width < math.inf and 0 < height < math.inf):
        raise DataError(f"intrinsics in pixels need image_size as (width, height) in pixels, got {image_size!r:.80}")
    (fx, skew, cx), (fy, cy) = intrinsics[..., 0, :].unbind(-1), intrinsics[..., 1, 1:].unbind(-1)
    fixed = torch.cat([intrinsics[..., 1, :1], intrinsics[..., 2, :]], dim=-1)
    if (fixed != fixed.new_tensor(_LAST_ROW)).any() or not ((fx > 0) & (fy > 0)).all():
        raise DataError("intrinsics must be [fx, skew, cx], [0, fy, cy], [0, 0, 1] with focal lengths in pixels")
    fx, skew, cx = fx / width, skew / width, cx / width - 0.5
    fy, cy = fy / height, cy / height - 0.5
    nothing, one = torch.zeros_like(fx), torch.ones_like(fx)
    rows = [
        torch.stack([1 / fx, -skew / (fx * fy), (skew * cy - cx * fy) / (fx * fy)], dim=-1),
        torch.stack([nothing, 1 / fy, -cy / fy], dim=-1),
        torch.stack([nothing, nothing, one], dim=-1),
    ]
    return torch.stack(rows, dim=-2)


def check_poses(poses: Tensor, values: Tensor) -> None:
    """Checks poses against the coordinates of the same tokens.

    Args:
        poses: (B or 1, N, 4, 4), or (N_total, 4, 4) when packed.
        values: (B or 1, N, p), or (N_total, p) when packed.

    Raises:
        DataError: If they are no tensor, or have another shape or dtype than float32 and float64.
    """
    if not isinstance(poses, Tensor):
        raise DataError(f"poses must be a tensor of 4x4 matrices, got {type(poses).__name__}")
    if poses.dtype not in (torch.float32, torch.float64):
        raise DataError(f"poses must be float32 or float64, got {poses.dtype}: 16-bit poses lose positions")
    batches = (poses.shape[:-3], values.shape[:-2])
    fits = poses.dim() == values.dim() + 1 and poses.shape[-3:] == (values.shape[-2], 4, 4)
    if not fits or (len(batches[0]) and batches[0] != batches[1] and 1 not in (batches[0][0], batches[1][0])):
        shape = "(N_total, 4, 4)" if values.dim() == 2 else "(B or 1, N, 4, 4)"
        raise DataError(
            f"poses must have shape {shape} for coordinates {tuple(values.shape)}, got {tuple(poses.shape)}"
        )


def identity_poses(like: Tensor, *shape: int) -> Tensor:
    """Identity matrices (*shape, 4, 4) with the dtype and device of `like`."""
    return torch.eye(4, dtype=like.dtype, device=like.device).repeat(*shape, 1, 1)


def identity_where(poses: Tensor, where: Tensor) -> Tensor:
    """Poses with the identity where `where` (shaped like their leading axes, or broadcast with them) is True."""
    identity = torch.eye(4, dtype=poses.dtype, device=poses.device)
    return torch.where(where[..., None, None], identity, poses)


def invert(matrices: Tensor) -> Tensor:
    """Inverses of 4x4 matrices by their 2x2 minors: rigid, affine or projective ones alike.

    Products and sums alone, so that it neither waits for a GPU nor is rounded by its matrix units, and has gradients. A
    singular matrix gives numbers that are not finite.

    Args:
        matrices: (..., 4, 4) float32 or float64.

    Returns:
        (..., 4, 4) in the same dtype.
    """
    rows = matrices.unbind(-2)
    # A column of the inverse is normal to three rows. D(u, v) r is normal to u, v and r: the cross product in 4-D.
    lower, upper = _normals(rows[2], rows[3]), _normals(rows[0], rows[1])
    columns = [
        (lower * rows[1].unsqueeze(-2)).sum(-1),
        -(lower * rows[0].unsqueeze(-2)).sum(-1),
        (upper * rows[3].unsqueeze(-2)).sum(-1),
        -(upper * rows[2].unsqueeze(-2)).sum(-1),
    ]
    determinant = (rows[0] * columns[0]).sum(-1)
    return torch.stack(columns, dim=-1) / determinant[..., None, None]


def _normals(u: Tensor, v: Tensor) -> Tensor:
    """D with D_ij = sum_kl e_ijkl u_k v_l (e the permutation symbol), (..., 4, 4)."""

    def minor(i: int, j: int) -> Tensor:
        return u[..., i] * v[..., j] - u[..., j] * v[..., i]

    a, b, c, d, e, f = minor(2, 3), -minor(1, 3), minor(1, 2), minor(0, 3), -minor(0, 2), minor(0, 1)
    zero = torch.zeros_like(a)
    rows = [[zero, a, b, c], [-a, zero, d, e], [-b, -d, zero, f], [-c, -e, -f, zero]]
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)
