"""PaPE-RI, the rotation-invariant form of PaPE (arXiv 2602.01418)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.coordinates import Coordinates
from zoo.encodings.base import Frame
from zoo.encodings.quadratic import QuadraticEncoding, QuadraticFrame, QuadraticScore, make_frame, pairs

__all__ = ["PaPERI"]


class PaPERI(QuadraticEncoding):
    """Bias -s alpha_i w_h^2 |D|^2 with alpha_i = softplus(w_a . x_i) per head and a learned scale w_h = exp(log_scale).

    The official code draws w as a fixed random buffer, so that a head can get w near 0 and no position at all; here the
    scales start spread over the same range, one per head, and are learned.

    Args:
        dim: Feature width C.
        num_heads: Heads H.
        head_dim: Unused, part of the common signature.
        coord_dim: Coordinate axes p.
    """

    extension_methods = ("rescale", "pi")

    def __init__(self, *, dim: int, num_heads: int, head_dim: int, coord_dim: int) -> None:
        super().__init__()
        self.num_heads, self.coord_dim = num_heads, coord_dim
        self.log_scale = nn.Parameter(torch.empty(num_heads))
        self.a = nn.Linear(dim, num_heads, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Scales at the quantiles of U(0, 1/sqrt(p)); coefficients uniform +-1/sqrt(C)."""
        quantiles = (torch.arange(self.num_heads) + 0.5) / self.num_heads
        with torch.no_grad():
            self.log_scale.copy_((quantiles / math.sqrt(self.coord_dim)).log())
        bound = 1 / math.sqrt(self.a.in_features)
        nn.init.uniform_(self.a.weight, -bound, bound)

    def frame(self, coords: Coordinates, dtype: torch.dtype) -> QuadraticFrame:
        """See `zoo.encodings.quadratic.make_frame`."""
        return make_frame(self.extended(coords, dtype), dtype)

    def coefficients(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """M_ab of every query: alpha w^2 on the diagonal, zero off it; (B, H, N, p(p+1)/2)."""
        with torch.autocast(x.device.type, enabled=False):
            alpha = F.softplus(F.linear(x.to(dtype), self.a.weight.to(dtype))).transpose(1, 2)
            strength = alpha * (2 * self.log_scale.to(dtype)).exp().unsqueeze(-1)
            zero = torch.zeros_like(strength)
            return torch.stack([strength if i == j else zero for i, j in pairs(self.coord_dim)], dim=-1)

    def score(self, x: Tensor, frame: Frame, scale: float) -> QuadraticScore:
        """See `AttentionEncoding.score`."""
        assert isinstance(frame, QuadraticFrame)
        return QuadraticScore(self.coefficients(x, frame.values.dtype), None, frame, scale)

    def no_weight_decay(self) -> set[str]:
        """The scale sets the reach of the bias."""
        return {"log_scale"}
