"""ALiBi in p dimensions: a linear penalty on Euclidean distance (2108.12409; n-D as in CROMA, 2311.00566)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.coordinates import Coordinates
from zoo.encodings.base import AttentionEncoding, Frame, algebra_dtype

__all__ = ["ALiBi", "slopes"]


def slopes(num_heads: int, device: torch.device | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
    """Slope of every head, (H,), made on the device.

    2^(-8k/H) for H a power of two; otherwise those of the largest power of two P <= H, then every second slope of the
    set for 2P (Press et al., the rule of their released code).
    """
    power = 2 ** math.floor(math.log2(num_heads))
    own = torch.arange(1, power + 1, device=device, dtype=dtype) * (-8 / power)
    between = (2 * torch.arange(num_heads - power, device=device, dtype=dtype) + 1) * (-4 / power)
    return torch.exp2(torch.cat([own, between]))


@dataclass(frozen=True)
class _Distances(Frame):
    values: Tensor  # (B or 1, N, p), centred
    positioned: Tensor | None  # (B or 1, N)
    slopes: Tensor  # (H, 1, 1)

    def rows(self, rows: slice) -> Tensor:
        """Euclidean distances (B or 1, rows, N), zero where a token has no position."""
        difference = self.values[:, rows].unsqueeze(2) - self.values.unsqueeze(1)
        distance = torch.linalg.vector_norm(difference, dim=-1)
        if self.positioned is not None:
            known = self.positioned[:, rows].unsqueeze(2) & self.positioned.unsqueeze(1)
            distance = distance.masked_fill(~known, 0.0)
        return distance


@dataclass(frozen=True)
class _LinearScore:
    frame: _Distances

    def bias(self, rows: slice) -> Tensor:
        return -self.frame.slopes * self.frame.rows(rows).unsqueeze(1)


class ALiBi(AttentionEncoding):
    """Bias -m_h |r_i - r_j| with a fixed slope per head, after the softmax scale; no parameters.

    Tokens without a position give and get bias 0. It does not fold into q and k.

    Args:
        dim: Unused, part of the common signature.
        num_heads: Heads H, which fix the slopes.
        head_dim: Unused.
        coord_dim: Unused: distances work in any number of axes.
    """

    def __init__(self, *, dim: int, num_heads: int, head_dim: int, coord_dim: int) -> None:
        super().__init__()
        self.num_heads = num_heads

    def frame(self, coords: Coordinates, dtype: torch.dtype) -> _Distances:
        """Centred coordinates; distances follow block by block."""
        values = coords.centred(algebra_dtype(coords.values.dtype, dtype))
        positioned = coords.positioned
        if coords.packed:
            values = values.unsqueeze(0)
            positioned = None if positioned is None else positioned.unsqueeze(0)
        return _Distances(
            "score", values, positioned, slopes(self.num_heads, values.device, values.dtype).view(-1, 1, 1)
        )

    def score(self, x: Tensor, frame: Frame, scale: float) -> _LinearScore:
        """See `AttentionEncoding.score`."""
        assert isinstance(frame, _Distances)
        return _LinearScore(frame)
