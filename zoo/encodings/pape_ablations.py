"""PaPE with a part taken out: the ablations of arXiv 2602.01418, to measure what each part is worth.

Each differs from `zoo.encodings.pape.PaPE`, whose arguments it takes, in one thing, and owns no parameter that it does
not use.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.encodings.pape import PaPE

__all__ = ["PaPELinear", "PaPEQuadratic", "PaPESigned", "PaPEStatic", "PaPEUnprojected"]


class PaPELinear(PaPE):
    """No quadratic term: bias s t_i . D with t_i = W_p^T W_b x_i. Nothing makes attention fall with distance."""

    def add_coefficients(self, dim: int) -> None:
        """The layer to b alone."""
        self.b = nn.Linear(dim, self.num_heads * self.parabolas, bias=False)

    def curvature(self, x: Tensor) -> Tensor:
        """Zero: (B, H, N, m)."""
        return x.new_zeros(x.shape[0], self.num_heads, x.shape[1], self.parabolas)


class PaPEQuadratic(PaPE):
    """No linear term: bias -s D^T M_i D, the same in opposite directions."""

    def add_coefficients(self, dim: int) -> None:
        """The layer to a alone."""
        self.a = nn.Linear(dim, self.num_heads * self.parabolas, bias=False)

    def slope(self, x: Tensor, position: Tensor) -> Tensor | None:
        """Zero."""
        return None


class PaPESigned(PaPE):
    """No softplus: a_i = W_a x_i may be negative, so that attention may also rise with distance."""

    def curvature(self, x: Tensor) -> Tensor:
        """The coefficients a_il of either sign: (B, N, C) -> (B, H, N, m)."""
        a = F.linear(x, self.a.weight.to(x.dtype))
        return a.unflatten(-1, (self.num_heads, self.parabolas)).transpose(1, 2)


class PaPEStatic(PaPE):
    """Coefficients that do not depend on content: one learned a = softplus(a') and b for each parabola of a head."""

    def add_coefficients(self, dim: int) -> None:
        """Vectors in place of layers."""
        self.raw_a = nn.Parameter(torch.empty(self.num_heads, self.parabolas))
        self.static_b = nn.Parameter(torch.empty(self.num_heads, self.parabolas))

    def reset_parameters(self) -> None:
        """Directions as `PaPE`; coefficients from N(0, 1/3), as if a layer of `PaPE` had seen normalised features."""
        super().reset_parameters()
        for parameter in (self.raw_a, self.static_b):
            nn.init.normal_(parameter, std=3**-0.5)

    def curvature(self, x: Tensor) -> Tensor:
        """The same a for every token: (B, H, N, m)."""
        a = F.softplus(self.raw_a.to(x.dtype))
        return a.unsqueeze(1).expand(x.shape[0], -1, x.shape[1], -1)

    def slope(self, x: Tensor, position: Tensor) -> Tensor | None:
        """The same t for every token: (B, H, N, p)."""
        t = (self.static_b.to(x.dtype).unsqueeze(-1) * position).sum(dim=1)
        return t.view(1, self.num_heads, 1, -1).expand(x.shape[0], -1, x.shape[1], -1)

    def no_weight_decay(self) -> set[str]:
        """No layer is left that decay would regularise."""
        return {"position", "raw_a", "static_b"}


class PaPEUnprojected(PaPE):
    """No W_p: one parabola along each axis of the coordinates, M_i = diag(a_i) and t_i = b_i.

    Its curvature starts at softplus(0) = 0.69 a unit, about a ninth of that of `PaPE`.
    """

    def __init__(self, *, dim: int, num_heads: int, head_dim: int, coord_dim: int) -> None:
        super().__init__(dim=dim, num_heads=num_heads, head_dim=head_dim, coord_dim=coord_dim, parabolas=coord_dim)

    def add_directions(self) -> None:
        """None: they are the axes."""

    def directions(self, x: Tensor) -> Tensor:
        """The axes: (H, p, p)."""
        axes = torch.eye(self.coord_dim, dtype=x.dtype, device=x.device)
        return axes.expand(self.num_heads, -1, -1)

    def no_weight_decay(self) -> set[str]:
        """Nothing: layers alone are left."""
        return set()
