"""ALiBi in p dimensions: a linear penalty on distance (2108.12409; n-D Euclidean as in CROMA, 2311.00566)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.coordinates import Coordinates
from zoo.encodings.base import AttentionEncoding, Frame
from zoo.encodings.distance import (
    DifferenceScore,
    Modification,
    PairFrame,
    PairIndex,
    choice_option,
    distance_terms,
    pair_frame,
)
from zoo.encodings.terms import Distances, FusedScore

__all__ = ["ALiBi", "slopes"]

METRICS = ("euclidean", "manhattan", "index")


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
class _ALiBiFrame(PairFrame):
    slopes: Tensor  # (H, 1, 1)


@dataclass(frozen=True)
class _LinearScore(DifferenceScore, FusedScore):
    frame: _ALiBiFrame
    order: int

    def bias(self, rows: slice) -> Tensor:
        return -self.frame.slopes * self.frame.settled_distances(rows, self.order)

    @property
    def axes(self) -> int:
        """See `zoo.encodings.terms.FusedScore`."""
        return self.frame.axes

    @property
    def term(self) -> str | None:
        """See `zoo.encodings.terms.FusedScore`."""
        return "distances" if self.frame.values.dtype == torch.float32 else None

    def terms(self) -> Distances | None:
        """See `zoo.encodings.terms.FusedScore`."""
        if self.term is None:
            return None
        return distance_terms(self.frame, self.frame.slopes.flatten(), order=self.order)

    def modification(self) -> Modification:
        """See `zoo.kernels.flex`."""
        pairs, slopes, order = PairIndex.of(self.frame), self.frame.slopes.flatten(), self.order

        def add(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score + pairs.settle(-slopes[h] * pairs.distance(b, i, j, order), b, i, j)

        return add


class ALiBi(AttentionEncoding):
    """Bias -m_h |r_i - r_j| with a fixed slope per head, after the softmax scale; no parameters.

    Tokens without a position give and get bias 0. It does not fold into q and k. Slopes are per unit of the
    coordinates (patches), so axes of different kinds need commensurate units. Rotation-invariant with the Euclidean
    distance only.

    Args:
        dim: Unused, part of the common signature.
        num_heads: Heads H, which fix the slopes.
        head_dim: Unused.
        coord_dim: Coordinate axes p: distances work in any number of them.
        metric: `"euclidean"`; `"manhattan"`, the sum over axes of |D_a|; or `"index"`, the distance in the order of the
            tokens as in the 1-D original, counting tokens with a position only. An extension divides the index by the
            product of the factors of all axes, by which the number of tokens grows.
    """

    extension_methods = ("rescale", "pi")

    def __init__(self, *, dim: int, num_heads: int, head_dim: int, coord_dim: int, metric: str = "euclidean") -> None:
        super().__init__()
        choice_option("metric", metric, METRICS)
        self.num_heads, self.metric = num_heads, metric

    def frame(self, coords: Coordinates, dtype: torch.dtype) -> _ALiBiFrame:
        """Centred coordinates (or token indices) and slopes; distances follow block by block."""
        pairs = pair_frame(self.extended(coords, dtype), dtype)
        values = pairs.values
        if self.metric == "index":
            known = torch.ones_like(values[..., 0], dtype=torch.int64) if pairs.positioned is None else pairs.positioned
            values = known.long().cumsum(dim=-1).to(values.dtype).unsqueeze(-1)
            if self.extension is not None:
                values = values / math.prod(self.extension.factors(coords.axes))
        heads = slopes(self.num_heads, values.device, values.dtype).view(-1, 1, 1)
        return _ALiBiFrame("score", values, pairs.positioned, heads)

    def score(self, x: Tensor, frame: Frame, scale: float) -> _LinearScore:
        """See `AttentionEncoding.score`."""
        assert isinstance(frame, _ALiBiFrame)
        return _LinearScore(frame, 1 if self.metric == "manhattan" else 2)
