"""RoPE-Mixed: rotary encoding with learned frequency vectors per head (RoPE-ViT, arXiv 2403.13298)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from zoo.coordinates import Coordinates
from zoo.encodings.base import AttentionEncoding, Frame, number_option
from zoo.encodings.rotary import Positions, make_positions, make_rotation, pairs_per_axis, rotate

__all__ = ["RoPEMixed"]


class RoPEMixed(AttentionEncoding):
    """Pair k of head h turns by the angle sum_a r_a u_hak with learned frequency vectors u_hk in R^p.

    Half layout over 2 floor(D / 2) channels: all pairs mix all axes, so none has to be left out when D is not a
    multiple of 2p. Scores of positioned tokens depend on r_i - r_j alone; tokens without a position are not rotated.
    Coordinates are in the training patch pitch, so `frequencies` (H, p, pairs) are radians per patch. (The released
    PaPE networks store periods in the same shape: reciprocals convert them.)

    It starts as rope-vit's: every head draws a random rotation in SO(p), whose column a is the direction of the a-th
    group of pairs, with magnitudes base^(-2pk / R), R = 2p floor(D / 2p), within a group. For p = 2 these are a random
    direction phi and phi + 90 degrees. (Groups that take one of the pairs left over by p continue the ladder by a
    step. More than two axes are our generalisation.)

    Keep parameters in float32 for large grids: frequencies rounded to bfloat16 are off by up to 0.13 rad at 64 patches.

    Args:
        dim: Unused, part of the common signature.
        num_heads: Heads H.
        head_dim: Head width D, at least 2p.
        coord_dim: Coordinate axes p.
        base: Base of the initial magnitudes.

    Raises:
        ConfigError: If the head is too narrow or the base is bad.
    """

    extension_methods = ("pi",)  # Learned frequencies are no ladder.

    def __init__(self, *, dim: int, num_heads: int, head_dim: int, coord_dim: int, base: float = 10.0) -> None:
        super().__init__()
        self.step = pairs_per_axis("rope-mixed", head_dim, coord_dim)
        self.base = number_option("base", base, low=1.0001, high=1e9)
        self.frequencies = nn.Parameter(torch.empty(num_heads, coord_dim, head_dim // 2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the directions of every head."""
        heads, axes, pairs = self.frequencies.shape
        with torch.no_grad():
            turn = random_rotations(heads, axes, self.frequencies.device)
            sizes = [pairs // axes + (axis < pairs % axes) for axis in range(axes)]
            magnitudes = self.base ** (-torch.arange(max(sizes), device=turn.device) / self.step)
            groups = [turn[:, :, axis : axis + 1] * magnitudes[:size] for axis, size in enumerate(sizes)]
            self.frequencies.copy_(torch.cat(groups, dim=-1))

    def frame(self, coords: Coordinates, dtype: torch.dtype) -> Positions:
        """Coordinates, zero for tokens without a position."""
        return make_positions(self.extended(coords, dtype), dtype)

    def fold(self, x: Tensor, q: Tensor, k: Tensor, frame: Frame) -> tuple[Tensor, Tensor]:
        """Rotates q and k; the arithmetic is float32, the result has the dtype of the input."""
        assert isinstance(frame, Positions)
        with torch.autocast(q.device.type, enabled=False):
            rotation = make_rotation(frame.values.unsqueeze(1) @ self.frequencies.to(frame.values.dtype))
        return rotate(q, rotation), rotate(k, rotation)

    def no_weight_decay(self) -> set[str]:
        """Decay would slow all rotations down; rope-vit has none on them."""
        return {"frequencies"}


def random_rotations(count: int, axes: int, device: torch.device) -> Tensor:
    """Uniformly distributed rotations in SO(p).

    Returns:
        (count, p, p) float32.
    """
    q, r = torch.linalg.qr(torch.randn(count, axes, axes, device=device, dtype=torch.float32))
    q = q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)  # Uniform in O(p): QR alone fixes signs by convention.
    last = q[..., -1:] * torch.linalg.det(q).sign().view(-1, 1, 1)
    return torch.cat([q[..., :-1], last], dim=-1)
