"""Dense float64 references of GTA and PRoPE: one matrix rho(g_i^-1 g_j) for every pair of tokens, and poses to try."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zoo.attention import CoordinateAttention
from zoo.coordinates import Coordinates


def camera_channels(name: str, width: int, axes: int, posed: bool, share: float = 0.5) -> int:
    """Channels in 4x4 blocks: a share of the width in whole blocks that leave two channels per axis."""
    if name == "gta" and not posed:
        return 0
    channels = 0
    while channels + 4 <= share * width and channels + 4 <= width - 2 * axes:
        channels += 4
    return channels


def relative_matrix(
    width: int, cameras: int, step: list[float], relative: Tensor | None, base: float, length: float
) -> Tensor:
    """rho (D, D) of one pair from the difference of coordinates and the relative pose g_i^-1 g_j."""
    rho = torch.eye(width, dtype=torch.float64)
    if relative is not None:
        block = relative.clone()
        block[:3, 3] /= length
        block[3, :3] *= length
        for start in range(0, cameras, 4):
            rho[start : start + 4, start : start + 4] = block
    pairs = (width - cameras) // (2 * len(step))
    for axis, difference in enumerate(step):
        for k in range(pairs):
            angle = difference * base ** (-k / pairs)
            first = cameras + axis * pairs + k
            second = first + pairs * len(step)
            rho[first, first] = rho[second, second] = math.cos(angle)
            rho[first, second], rho[second, first] = -math.sin(angle), math.sin(angle)
    return rho


def relative_matrices(
    name: str,
    width: int,
    coords: Coordinates,
    *,
    share: float = 0.5,
    base: float = 100.0,
    length: float = 1.0,
) -> Tensor:
    """rho(g_i^-1 g_j) of every pair, (B or 1, N, N, D, D); tokens without a position are at 0 with pose I."""
    cameras = camera_channels(name, width, coords.axes, coords.poses is not None, share)
    samples = max(len(t) for t in (coords.values, coords.positioned, coords.poses) if t is not None)
    made = []
    for b in range(samples):
        values, poses = coords.values[b % len(coords.values)].double().clone(), None
        if coords.poses is not None:
            poses = coords.poses[b % len(coords.poses)].double().clone()
        if coords.positioned is not None:
            hidden = ~coords.positioned[b % len(coords.positioned)]
            values[hidden] = 0
            if poses is not None:
                poses[hidden] = torch.eye(4, dtype=torch.float64)
        for i in range(len(values)):
            for j in range(len(values)):
                relative = None if poses is None else torch.linalg.inv(poses[i]) @ poses[j]
                step = (values[j] - values[i]).tolist()
                made.append(relative_matrix(width, cameras, step, relative, base, length))
    tokens = coords.values.shape[1]
    return torch.stack(made).view(samples, tokens, tokens, width, width)


def gather(rows: Tensor, v: Tensor, matrices: Tensor) -> Tensor:
    """sum_j a_ij rho_ij v_j: rows (B, H, N, N) and values (B, H, N, D) to (B, H, N, D)."""
    matrices = matrices.expand(len(v), -1, -1, -1, -1)
    return torch.einsum("bhij,bijcd,bhjd->bhic", rows, matrices, v.double())


def attend(
    attention: CoordinateAttention, name: str, x: Tensor, coords: Coordinates, **options: float
) -> tuple[Tensor, Tensor]:
    """Output (B, N, C) and attention matrix (B, H, N, N) in float64, from all relative matrices."""
    q, k, v = attention.qkv(x).unflatten(-1, (3, attention.num_heads, attention.head_dim)).permute(2, 0, 3, 1, 4)
    matrices = relative_matrices(name, q.shape[-1], coords, **options).expand(len(q), -1, -1, -1, -1)
    logits = attention.head_dim**-0.5 * torch.einsum("bhic,bijcd,bhjd->bhij", q, matrices, k)
    if attention.causal:
        logits = logits.masked_fill(torch.ones_like(logits[0, 0]).triu(1).bool(), float("-inf"))
    rows = logits.softmax(-1)
    return attention.proj(gather(rows, v, matrices).transpose(1, 2).flatten(2)), rows


def rigid_poses(count: int, spread: float = 1.0, seed: int = 0) -> Tensor:
    """(count, 4, 4) float64 rotations with positions of standard deviation `spread`."""
    generator = torch.Generator().manual_seed(seed)
    turn, _ = torch.linalg.qr(torch.randn(count, 3, 3, generator=generator, dtype=torch.float64))
    poses = torch.eye(4, dtype=torch.float64).repeat(count, 1, 1)
    poses[:, :3, :3] = turn * torch.linalg.det(turn).sign().view(-1, 1, 1)
    poses[:, :3, 3] = spread * torch.randn(count, 3, generator=generator, dtype=torch.float64)
    return poses


def affine_poses(count: int, seed: int = 0) -> Tensor:
    """Rigid poses behind the inverse of lifted intrinsics, as PRoPE has them."""
    generator = torch.Generator().manual_seed(seed + 1)
    lifted = torch.eye(4, dtype=torch.float64).repeat(count, 1, 1)
    lifted[:, [0, 1], [0, 1]] = 0.7 + torch.rand(count, 2, generator=generator, dtype=torch.float64)
    lifted[:, :2, 2] = 0.1 * torch.randn(count, 2, generator=generator, dtype=torch.float64)
    return rigid_poses(count, seed=seed) @ torch.linalg.inv(lifted)


def projective_poses(count: int, seed: int = 0) -> Tensor:
    """Invertible matrices whose last row is not 0, 0, 0, 1."""
    generator = torch.Generator().manual_seed(seed + 2)
    return rigid_poses(count, seed=seed) + 0.15 * torch.randn(count, 4, 4, generator=generator, dtype=torch.float64)


POSES = {"rigid": rigid_poses, "affine": affine_poses, "projective": projective_poses}
