"""Position terms in the form that fused kernels evaluate inside their inner loop.

Legend: B batch, H heads, N tokens, p coordinate axes, c = p(p+1)/2.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

__all__ = [
    "Columns",
    "Distances",
    "FoldableScore",
    "FusedScore",
    "Matrix",
    "Parabolas",
    "Polar",
    "Product",
    "Terms",
]


@dataclass(frozen=True)
class Columns:
    """A term t_i . D - D^T M_i D inside the softmax scale, by n = c + p + 1 narrow columns of 16-bit pieces.

    Kernels make the columns of q (`zoo.encodings.quadratic.query_columns`, the row constant last) of M and t and cut
    them into pieces; gradients go back to M and t. Any strides will do.

    Attributes:
        curvature: M_ab for a <= b, (B, H, N, c) float32.
        slope: t, (B, H, N, p) float32, or `None` for zero.
        values: (B or 1, N, p) float32 centred coordinates.
        positioned: See `Parabolas`.
        keys: (B or 1, N, W) pieces of the columns of k in the dtype of k: n high halves, n high halves again, the low
            halves of the first `inexact`, the high half of the last one once more; zeros up to a power of two from 16.
        inexact: Columns of k that have a low half.
        powers: Of two, taken from each column of q and given to that of k; from -1 to 14.
    """

    curvature: Tensor
    slope: Tensor | None
    values: Tensor
    positioned: Tensor | None
    keys: Tensor
    inexact: int
    powers: tuple[int, ...]


@dataclass(frozen=True)
class Parabolas:
    """A term t_i . D - D^T M_i D inside the softmax scale, from exact differences D = r_i - r_j.

    Attributes:
        coefficients: (B, H, N, c + p) float32: M_ab for a <= b, then t.
        values: (B or 1, N, p) float32 coordinates.
        positioned: (B or 1, N) float32, 1 for tokens with a position, else 0; `None` when all have one.
    """

    coefficients: Tensor
    values: Tensor
    positioned: Tensor | None


@dataclass(frozen=True)
class Distances:
    """A bias -slope_h |D| after the softmax scale, minus infinity outside the field of view of a head.

    Attributes:
        slopes: (H,) float32.
        values: (B or 1, N, p) float32 coordinates.
        positioned: See `Parabolas`; pairs with a token without position have bias 0.
        fields: (H, 2, p) float32: key j is seen if fields . D <= border for both; `None` when all are seen.
        order: Of the norm: 2 Euclidean, 1 Manhattan.
        border: Half the width of a border, in units of the coordinates.
    """

    slopes: Tensor
    values: Tensor
    positioned: Tensor | None
    fields: Tensor | None = None
    order: int = 2
    border: float = 0.0


@dataclass(frozen=True)
class Matrix:
    """A bias after the softmax scale that was made for a block of query rows; fused kernels have no gradient of it.

    Attributes:
        bias: (B or 1, H or 1, rows, N) float32; minus infinity hides a key.
        first: Which query of a sample row 0 is.
    """

    bias: Tensor
    first: int = 0


@dataclass(frozen=True)
class Polar:
    """In place of q_i . k_j, gain^2 sum_c mu(q_ic) mu(k_jc) cos(a_jc - a_ic + delta_hc), mu = softplus.

    Channels from `rotary` on keep mu(x) = x, angle 0 and phase 0.

    Attributes:
        turns: Cosines, then sines of the angles a, (B or 1, N, 2D) float16, whatever the dtype of q and k: it has bits
            to spare beside bfloat16.
        delta: Phases, (H, D) float32; kernels have their gradient.
        rotary: Channels that are turned.
        gain: What both sides are multiplied with.
    """

    turns: Tensor
    delta: Tensor
    rotary: int
    gain: float = 1.0


Terms = Columns | Parabolas | Distances


class FusedScore(ABC):
    """A `zoo.encodings.base.Score` that fused kernels can evaluate, in most of its forms."""

    @property
    @abstractmethod
    def term(self) -> str | None:
        """Form that `terms` returns: `"columns"`, `"parabolas"`, `"distances"`, or `None` where there is none."""

    @property
    @abstractmethod
    def axes(self) -> int:
        """Coordinate axes p."""

    @abstractmethod
    def terms(self) -> Terms | None:
        """The term itself."""


class FoldableScore(ABC):
    """A score that can be folded into q and k where that is safe."""

    @property
    @abstractmethod
    def foldable(self) -> bool:
        """Whether it is safe here."""

    @abstractmethod
    def fold(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Q and k (B, H, N, D) widened so that plain attention over them has the score."""


class Product(ABC):
    """What stands in place of q . k in the logits; the softmax scale stays that of D."""

    @property
    @abstractmethod
    def requires_grad(self) -> bool:
        """Whether it has parameters that want a gradient."""

    @abstractmethod
    def fold(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Q and k (B, H, N, D) widened so that plain attention over them has these logits."""

    @property
    @abstractmethod
    def fused(self) -> bool:
        """Whether fused kernels have a form of it: made for attention in 16 bit."""

    @abstractmethod
    def polar(self) -> Polar:
        """That form."""
