"""KERPLE, logarithmic variant, in p dimensions (Chi et al., arXiv 2205.09921)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from zoo.coordinates import Coordinates
from zoo.encodings.base import AttentionEncoding, Frame
from zoo.encodings.distance import DifferenceScore, Modification, PairFrame, PairIndex, pair_frame

__all__ = ["Kerple"]


@dataclass(frozen=True)
class _LogScore(DifferenceScore):
    frame: PairFrame
    r1: Tensor  # (H, 1, 1)
    r2: Tensor

    def bias(self, rows: slice) -> Tensor:
        return -self.r1 * torch.log1p(self.r2 * self.frame.settled_distances(rows))

    def modification(self) -> Modification:
        """See `zoo.kernels.flex`."""
        pairs, r1, r2 = PairIndex.of(self.frame), self.r1.flatten(), self.r2.flatten()

        def add(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score + pairs.settle(-r1[h] * torch.log1p(r2[h] * pairs.distance(b, i, j)), b, i, j)

        return add


class Kerple(AttentionEncoding):
    """Bias -r1_h log(1 + r2_h |r_i - r_j|) with r1, r2 > 0 learned per head, after the softmax scale.

    The logarithmic kernel of arXiv 2205.09921 (there on |m - n|) with the Euclidean distance in p axes, conditionally
    positive-definite in any dimension. r1 is a number, r2 is per unit of the coordinates. Both are
    stored as logarithms. Tokens without a position give and get bias 0. Rotation-invariant.

    Args:
        dim: Unused, part of the common signature.
        num_heads: Heads H.
        head_dim: Unused.
        coord_dim: Unused: distances work in any number of axes.
    """

    extension_methods = ("rescale", "pi")

    def __init__(self, *, dim: int, num_heads: int, head_dim: int, coord_dim: int) -> None:
        super().__init__()
        self.log_r1 = nn.Parameter(torch.empty(num_heads))
        self.log_r2 = nn.Parameter(torch.empty(num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws r1 from U(0, 2) and r2 from U(0, 1), kept at 0.01 or more, so that heads start with different reach."""
        with torch.no_grad():
            for parameter, high in ((self.log_r1, 2.0), (self.log_r2, 1.0)):
                nn.init.uniform_(parameter, 0.0, high).clamp_(min=0.01).log_()

    def frame(self, coords: Coordinates, dtype: torch.dtype) -> PairFrame:
        """See `zoo.encodings.distance.pair_frame`."""
        return pair_frame(self.extended(coords, dtype), dtype)

    def score(self, x: Tensor, frame: Frame, scale: float) -> _LogScore:
        """See `AttentionEncoding.score`."""
        assert isinstance(frame, PairFrame)
        r1, r2 = (log.to(frame.values.dtype).exp().view(-1, 1, 1) for log in (self.log_r1, self.log_r2))
        return _LogScore(frame, r1, r2)

    def no_weight_decay(self) -> set[str]:
        """Decay would pull both numbers to 1 without regard to the data."""
        return {"log_r1", "log_r2"}
