"""PaPE, Parabolic Position Encoding (arXiv 2602.01418): attention biased by learned, content-dependent parabolas."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.coordinates import Coordinates
from zoo.encodings.base import Frame, number_option
from zoo.encodings.quadratic import QuadraticEncoding, QuadraticFrame, QuadraticScore, make_frame, pairs
from zoo.kernels.coefficients import fused_coefficients_problem, kernel_dtype, quadratic_coefficients

__all__ = ["RELEASED_PARABOLAS", "PaPE"]

RELEASED_PARABOLAS = 50


class PaPE(QuadraticEncoding):
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
        reach: How many times as wide as the released initialisation the parabolas of the last head start; the first
            head starts as released, those between in equal ratios. Released parabolas reach about a token, which
            suits neighbourhoods of a grid; long sequences have more to see from the start.
    """

    extension_methods = ("rescale", "pi")

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        head_dim: int,
        coord_dim: int,
        parabolas: int = RELEASED_PARABOLAS,
        reach: float = 1.0,
    ) -> None:
        super().__init__()
        self.parabolas = int(number_option("parabolas", parabolas, low=1, high=4096, integer=True))
        self.reach = number_option("reach", reach, low=1, high=1e6)
        self.num_heads, self.coord_dim = num_heads, coord_dim
        self.add_directions()
        self.add_coefficients(dim)
        self.reset_parameters()

    def add_directions(self) -> None:
        """Makes W_p of every head."""
        self.position = nn.Parameter(torch.empty(self.num_heads, self.parabolas, self.coord_dim))

    def add_coefficients(self, dim: int) -> None:
        """Makes the layers from features (width `dim`) to the coefficients a and b of the parabolas."""
        self.a = nn.Linear(dim, self.num_heads * self.parabolas, bias=False)
        self.b = nn.Linear(dim, self.num_heads * self.parabolas, bias=False)

    def reset_parameters(self) -> None:
        """Draws the released initialisation: uniform +-1/sqrt(p) for directions, +-1/sqrt(C) for coefficients.

        The directions of other numbers of parabolas than the released 50 are drawn sqrt(50 / m) times as long, so that
        the width of the bias at the start does not depend on their number.
        """
        length = math.sqrt(RELEASED_PARABOLAS / self.parabolas / self.coord_dim)
        for parameter in self.parameters(recurse=False):
            nn.init.uniform_(parameter, -length, length)
        for layer in self.children():
            assert isinstance(layer, nn.Linear)
            bound = 1 / math.sqrt(layer.in_features)
            nn.init.uniform_(layer.weight, -bound, bound)
        if self.reach != 1:
            share = torch.linspace(0, 1, self.num_heads, device=self.position.device)
            with torch.no_grad():
                self.position.mul_(self.reach ** -share.view(-1, 1, 1))

    def frame(self, coords: Coordinates, dtype: torch.dtype) -> QuadraticFrame:
        """See `zoo.encodings.quadratic.make_frame`."""
        return make_frame(self.extended(coords, dtype), dtype)

    def coefficients(self, x: Tensor, dtype: torch.dtype, reduction: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """Quadratic and linear coefficients of every query.

        Args:
            x: (B, N, C) the input of the block.
            dtype: float32 or float64.
            reduction: Dtype of the sum over parabolas, see `QuadraticFrame.reduction`.

        Returns:
            M_ab for a <= b as (B, H, N, p(p+1)/2), and t as (B, H, N, p), or `None` for zero.
        """
        kernel = self._kernel_dtype(x) if dtype == reduction == torch.float32 else None
        with torch.autocast(x.device.type, enabled=False):
            position = self.directions(x.new_empty(0, dtype=dtype))
            products = torch.stack([position[..., i] * position[..., j] for i, j in pairs(self.coord_dim)], dim=-1)
            if kernel is not None:
                weight = self.a.weight.to(kernel).unflatten(0, (self.num_heads, self.parabolas))
                return quadratic_coefficients(x.to(kernel), weight, products, self._slopes(position))
            x = x.to(dtype)
            m = torch.matmul(self.curvature(x).to(reduction), products.to(reduction)).to(dtype)
            return m, self.slope(x, position)

    def _kernel_dtype(self, x: Tensor) -> torch.dtype | None:
        """The dtype in which one kernel makes both coefficients, or `None` where it cannot or they are not PaPE's."""
        own = type(self).curvature is PaPE.curvature and type(self).slope is PaPE.slope
        if not own or fused_coefficients_problem(x, self.parabolas, self.coord_dim):
            return None
        return kernel_dtype(x)

    def directions(self, x: Tensor) -> Tensor:
        """W_p of every head, (H, m, p), in the dtype and on the device of x."""
        return self.position.to(x.dtype)

    def curvature(self, x: Tensor) -> Tensor:
        """The coefficients a_il, not negative: (B, N, C) -> (B, H, N, m)."""
        a = F.softplus(F.linear(x, self.a.weight.to(x.dtype)))
        return a.unflatten(-1, (self.num_heads, self.parabolas)).transpose(1, 2)

    def slope(self, x: Tensor, position: Tensor) -> Tensor | None:
        """The linear term t_i = W_p^T b_i by one C x (H p) projection: (B, N, C) -> (B, H, N, p)."""
        linear = self._slopes(position).flatten(0, 1)
        return F.linear(x, linear).unflatten(-1, (self.num_heads, self.coord_dim)).transpose(1, 2)

    def _slopes(self, position: Tensor) -> Tensor:
        """W_p^T W_b of every head: (H, p, C)."""
        weight = self.b.weight.to(position.dtype).unflatten(0, (self.num_heads, self.parabolas))
        return torch.matmul(position.transpose(1, 2), weight)

    def score(self, x: Tensor, frame: Frame, scale: float) -> QuadraticScore:
        """See `AttentionEncoding.score`."""
        assert isinstance(frame, QuadraticFrame)
        m, t = self.coefficients(x, frame.values.dtype, frame.reduction)
        return QuadraticScore(m, t, frame, scale)

    def no_weight_decay(self) -> set[str]:
        """Directions set the reach of the bias: decay would widen it without regard to the data."""
        return {"position"}
