"""PoPE, Polar Coordinate Position Embedding (arXiv 2509.10534): what a channel says and where it is, kept apart."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.coordinates import Coordinates
from zoo.encodings.base import AttentionEncoding, Frame, Score, number_option
from zoo.encodings.rotary import ladder, make_positions
from zoo.encodings.terms import Polar, Product
from zoo.errors import ConfigError

__all__ = ["PoPE"]


@dataclass(frozen=True)
class _Angles(Frame):
    values: Tensor  # (B or 1, 1, N, R)
    turns: Tensor | None  # See `Polar`; where attention runs in 16 bit.
    gain: float


@dataclass(frozen=True)
class _PolarProduct(Product):
    """Magnitudes turned by angles: folded into twice the width, or turned by the kernel."""

    frame: _Angles
    delta: Tensor  # (H, R)

    @property
    def requires_grad(self) -> bool:
        """See `zoo.encodings.terms.Product`."""
        return self.delta.requires_grad

    def fold(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """See `PoPE.fold`."""
        angles = self.frame.values
        with torch.autocast(q.device.type, enabled=False):
            phases = angles + self.delta.to(angles.dtype).unsqueeze(1)
            return self._widened(q, angles), self._widened(k, phases)

    def _widened(self, x: Tensor, angles: Tensor) -> Tensor:
        width = self.delta.shape[1]
        rotary, rest = x.split([width, x.shape[-1] - width], dim=-1)
        magnitude, gain = F.softplus(rotary.to(angles.dtype)), self.frame.gain
        if gain != 1.0:
            magnitude, rest = magnitude * gain, (rest.to(angles.dtype) * gain).to(x.dtype)
        parts = [(magnitude * angles.cos()).to(x.dtype), (magnitude * angles.sin()).to(x.dtype), rest]
        return torch.cat(parts, dim=-1)

    @property
    def fused(self) -> bool:
        """See `zoo.encodings.terms.Product`."""
        return self.frame.turns is not None

    def polar(self) -> Polar:
        """See `zoo.encodings.terms.Product`."""
        assert self.frame.turns is not None
        rotary, delta = self.delta.shape[1], self.delta.float()
        rest = self.frame.turns.shape[-1] // 2 - rotary
        return Polar(self.frame.turns, F.pad(delta, (0, rest)) if rest else delta, rotary, self.frame.gain)


class PoPE(AttentionEncoding):
    """Logit s sum_c mu(q_c) mu(k_c) cos((r_j - r_i) theta_c + delta_hc) with mu = softplus.

    Magnitudes carry content alone and phases position alone (sections 3 and 4 of the paper). It folds into twice the
    width: q [mu cos(r theta), mu sin(r theta)], k [mu cos(r theta + delta), mu sin(r theta + delta)]; our kernels make
    that of q and k themselves (`zoo.encodings.terms.Polar`). In p axes every axis has its own R/p channels with
    theta_k = base^(-k p / R) in coordinate units. Channels beyond R stay as they are, signed and unrotated. The bias
    delta of a head's channel lies in [-2 pi, 0]: it is brought back into that range after every optimiser step
    (`project_parameters`, which `zoo train` calls), since a clamp in the forward would stop its gradient at the start.
    Tokens without a position have angle 0, as tokens at the origin do.

    Args:
        dim: Unused, part of the common signature.
        num_heads: Heads H.
        head_dim: Head width D.
        coord_dim: Coordinate axes p.
        base: Base of the frequency ladder: 10000 in the paper, for text; 100 suits grids of 14 to 64 patches.
        channels: Channels to rotate, rounded down to a multiple of p; `None` means all.
        phase_init: `"zero"` (needed for length generalisation) or `"uniform"` in [-2 pi, 0] (paper, section 4).
    """

    extension_methods = ("pi", "ntk", "dynamic-ntk", "yarn")

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        head_dim: int,
        coord_dim: int,
        base: float = 100.0,
        channels: int | None = None,
        phase_init: str = "zero",
    ) -> None:
        super().__init__()
        wanted = (
            head_dim if channels is None else number_option("channels", channels, low=1, high=head_dim, integer=True)
        )
        self.per_axis = int(wanted) // coord_dim
        if self.per_axis == 0:
            raise ConfigError(f"pope with {coord_dim} axes needs {coord_dim} or more channels to rotate, got {wanted}")
        if phase_init not in ("zero", "uniform"):
            raise ConfigError(f"encoding option 'phase_init' must be 'zero' or 'uniform', got {phase_init!r:.80}")
        self.base = number_option("base", base, low=1.0001, high=1e9)
        self.rotary, self.rest, self.phase_init = (
            self.per_axis * coord_dim,
            head_dim - self.per_axis * coord_dim,
            phase_init,
        )
        self.delta = nn.Parameter(torch.empty(num_heads, self.rotary))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the phases."""
        if self.phase_init == "zero":
            nn.init.zeros_(self.delta)
        else:
            nn.init.uniform_(self.delta, -2 * math.pi, 0)

    def project_parameters(self) -> None:
        """Brings the phases back into [-2 pi, 0]."""
        with torch.no_grad():
            self.delta.clamp_(-2 * math.pi, 0)

    def frame(self, coords: Coordinates, dtype: torch.dtype) -> _Angles:
        """The angle of every channel at every token, in float32 or wider."""
        values = make_positions(self.extended(coords, dtype), dtype).values
        theta = ladder(self.base, self.per_axis, values).expand(coords.axes, -1)
        theta = self.multiplied(theta, [self.base] * coords.axes, coords)
        angles = (values.unsqueeze(-1) * theta).flatten(-2)
        return _Angles("fold", angles.unsqueeze(1), self._turns(angles, dtype), self.gain(coords.axes))

    def _turns(self, angles: Tensor, dtype: torch.dtype) -> Tensor | None:
        if dtype not in (torch.float16, torch.bfloat16):
            return None
        cos, sin = F.pad(angles.cos(), (0, self.rest), value=1.0), F.pad(angles.sin(), (0, self.rest))
        return torch.cat([cos, sin], dim=-1).to(torch.float16)

    def fold(self, x: Tensor, q: Tensor, k: Tensor, frame: Frame) -> tuple[Tensor, Tensor]:
        """Widens q and k from D to D + R; the arithmetic is float32, the result has the dtype of the input."""
        return self._product(frame).fold(q, k)

    def encode_attention(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, frame: Frame, scale: float
    ) -> tuple[Tensor, Tensor, Tensor, Score | Product | None]:
        """q, k and v as they are, and what stands in place of q . k, which `zoo.kernels.attend` folds or turns."""
        return q, k, v, self._product(frame)

    def _product(self, frame: Frame) -> _PolarProduct:
        assert isinstance(frame, _Angles)
        return _PolarProduct(frame, self.delta)

    def no_weight_decay(self) -> set[str]:
        """Decay would pull phases to 0, an end of their range."""
        return {"delta"}
