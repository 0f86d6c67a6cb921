"""Axial rotary position encoding in p dimensions (Su et al. 2104.09864; axial form as in RoPE-ViT, 2403.13298)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.coordinates import Coordinates
from zoo.encodings.base import AttentionEncoding, Frame, algebra_dtype, number_option
from zoo.errors import ConfigError

__all__ = ["RoPE"]


@dataclass(frozen=True)
class _Rotation(Frame):
    cos: Tensor  # (B or 1, 1, N, pairs)
    sin: Tensor


class RoPE(AttentionEncoding):
    """Axial RoPE, half layout: channel j turns with channel j + R/2 by the angle r_a theta_k.

    Each axis has floor(D / 2p) pairs with theta_k = base^(-2pk / R), where R = 2p floor(D / 2p) channels are rotary;
    the D - R channels that are left pass through unrotated. Tokens without a position are not rotated, which to RoPE
    is the same as a token at the origin.

    Args:
        dim: Unused, part of the common signature.
        num_heads: Unused.
        head_dim: Head width D, at least 2p.
        coord_dim: Coordinate axes p.
        base: Base of the frequency ladder. 100 suits grids of 14 to 64 patches; 10000 leaves most pairs still there.
    """

    def __init__(self, *, dim: int, num_heads: int, head_dim: int, coord_dim: int, base: float = 100.0) -> None:
        super().__init__()
        self.pairs_per_axis = head_dim // (2 * coord_dim)
        if self.pairs_per_axis == 0:
            raise ConfigError(
                f"rope with {coord_dim} axes needs a head width of {2 * coord_dim} or more, got {head_dim}"
            )
        self.base = number_option("base", base, low=1.0001, high=1e9)

    def frame(self, coords: Coordinates, dtype: torch.dtype) -> _Rotation:
        """Cosines and sines of all angles, in float32 or wider."""
        values = coords.values.to(algebra_dtype(coords.values.dtype, dtype))
        if coords.packed:
            values = values.unsqueeze(0)
        k = torch.arange(self.pairs_per_axis, device=values.device, dtype=values.dtype)
        theta = torch.pow(self.base, -k / self.pairs_per_axis)
        angles = (values.unsqueeze(-1) * theta).flatten(-2).unsqueeze(1)
        if coords.positioned is not None:
            positioned = coords.positioned.reshape(-1, 1, coords.positioned.shape[-1], 1)
            angles = angles.masked_fill(~positioned, 0.0)
        return _Rotation("fold", angles.cos(), angles.sin())

    def fold(self, x: Tensor, q: Tensor, k: Tensor, frame: Frame) -> tuple[Tensor, Tensor]:
        """Rotates q and k; the arithmetic is float32, the result has the dtype of the input."""
        assert isinstance(frame, _Rotation)
        return _rotate(q, frame), _rotate(k, frame)


def _rotate(x: Tensor, frame: _Rotation) -> Tensor:
    pairs = frame.cos.shape[-1]
    first, second, rest = x.split([pairs, pairs, x.shape[-1] - 2 * pairs], dim=-1)
    rotated = [first * frame.cos - second * frame.sin, first * frame.sin + second * frame.cos]
    return torch.cat([*(part.to(x.dtype) for part in rotated), rest], dim=-1)
