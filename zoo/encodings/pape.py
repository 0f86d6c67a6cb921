"""PaPE, Parabolic Position Encoding (arXiv 2602.01418): attention biased by learned, content-dependent parabolas."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.coordinates import Coordinates
from zoo.encodings.base import AttentionEncoding, Frame, number_option
from zoo.encodings.quadratic import QuadraticFrame, QuadraticScore, fold_keys, fold_queries, make_frame, pairs

__all__ = ["PaPE"]


class PaPE(AttentionEncoding):
    """Bias s sum_l (b_il (p_il - p_jl) - a_il (p_il - p_jl)^2), a sum of m learned parabolas per head.

    With p_i = W_p r_i, a_i = softplus(W_a x_i) and b_i = W_b x_i this equals s (t_i . D - D^T M_i D) for D = r_i - r_j,
    M_i = W_p^T diag(a_i) W_p (positive semi-definite) and t_i = W_p^T b_i (arXiv 2602.01418, method section; signs as
    in the released weights). It folds into q and k (`zoo.encodings.quadratic`); the linear term is one C x (H p)
    projection. Tokens without a position give and get bias 0.

    Args:
        dim: Feature width C.
        num_heads: Heads H.
        head_dim: Unused, part of the common signature.
        coord_dim: Coordinate axes p.
        parabolas: Number m of parabolas of a head. It enlarges the family of M_i, not the width of q and k.
    """

    def __init__(self, *, dim: int, num_heads: int, head_dim: int, coord_dim: int, parabolas: int = 50) -> None:
        super().__init__()
        self.parabolas = int(number_option("parabolas", parabolas, low=1, high=4096, integer=True))
        self.num_heads, self.coord_dim = num_heads, coord_dim
        self.position = nn.Parameter(torch.empty(num_heads, self.parabolas, coord_dim))
        self.a = nn.Linear(dim, num_heads * self.parabolas, bias=False)
        self.b = nn.Linear(dim, num_heads * self.parabolas, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the released initialisation: uniform +-1/sqrt(p) for directions, +-1/sqrt(C) for coefficients."""
        nn.init.uniform_(self.position, -1 / math.sqrt(self.coord_dim), 1 / math.sqrt(self.coord_dim))
        for layer in (self.a, self.b):
            bound = 1 / math.sqrt(layer.in_features)
            nn.init.uniform_(layer.weight, -bound, bound)

    def frame(self, coords: Coordinates, dtype: torch.dtype) -> QuadraticFrame:
        """See `zoo.encodings.quadratic.make_frame`."""
        return make_frame(coords, dtype)

    def coefficients(self, x: Tensor, dtype: torch.dtype, reduction: torch.dtype) -> tuple[Tensor, Tensor]:
        """Quadratic and linear coefficients of every query.

        Args:
            x: (B, N, C) the input of the block.
            dtype: float32 or float64.
            reduction: Dtype of the sum over parabolas, see `QuadraticFrame.reduction`.

        Returns:
            M_ab for a <= b as (B, H, N, p(p+1)/2), and t as (B, H, N, p).
        """
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(dtype)
            position = self.position.to(dtype)
            products = torch.stack([position[..., i] * position[..., j] for i, j in pairs(self.coord_dim)], dim=-1)
            a = F.softplus(F.linear(x, self.a.weight.to(dtype))).unflatten(-1, (self.num_heads, self.parabolas))
            m = torch.matmul(a.transpose(1, 2).to(reduction), products.to(reduction)).to(dtype)
            weight = self.b.weight.to(dtype).unflatten(0, (self.num_heads, self.parabolas))
            linear = torch.matmul(position.transpose(1, 2), weight).flatten(0, 1)
            t = F.linear(x, linear).unflatten(-1, (self.num_heads, self.coord_dim)).transpose(1, 2)
        return m, t

    def fold(self, x: Tensor, q: Tensor, k: Tensor, frame: Frame) -> tuple[Tensor, Tensor]:
        """See `AttentionEncoding.fold`."""
        assert isinstance(frame, QuadraticFrame)
        m, t = self.coefficients(x, frame.values.dtype, frame.reduction)
        with torch.autocast(x.device.type, enabled=False):
            return fold_queries(q, m, t, frame), fold_keys(k, frame)

    def score(self, x: Tensor, frame: Frame, scale: float) -> QuadraticScore:
        """See `AttentionEncoding.score`."""
        assert isinstance(frame, QuadraticFrame)
        m, t = self.coefficients(x, frame.values.dtype, frame.reduction)
        return QuadraticScore(m, t, frame, scale)

    def no_weight_decay(self) -> set[str]:
        """Directions set the reach of the bias: decay would widen it without regard to the data."""
        return {"position"}
