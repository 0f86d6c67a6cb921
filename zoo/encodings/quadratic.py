"""Biases quadratic in the relative coordinate: how they fold into q and k without losing the position in 16 bit.

The bias of query i on key j is s (t_i . D - D^T M_i D) with D = r_i - r_j, M_i a symmetric p x p matrix, t_i a vector
and s the softmax scale of the content width. Three facts shape the fold:

- Terms that depend on i alone cancel in the softmax when every key has a position, which leaves p(p+1)/2 + p columns:
  q [-M_ab (doubled off the diagonal), 2 M r - t], k [r_a r_b, r]. When some keys have none, one more column carries the
  row constant: q t.r - r^T M r, k 1 for keys with a position and 0 for the others.
- The terms cancel catastrophically: at 64 x 64 tokens they reach 10^4 while the sum that matters is below 10. So
  coordinates are centred per sample (the bias does not change) and the algebra is float32; for a kernel that runs in
  16 bit every column is split into a high and a low half and the products hi.hi, lo.hi and hi.lo are emitted. Products
  of 16-bit numbers are exact in the float32 accumulators of every kernel.
- Beyond a safe extent no split of this width suffices. There the bias is evaluated from exact differences D, a block of
  query rows at a time, and added to the logits in float32.

Legend: B batch, N tokens, H heads, p axes, c = p(p+1)/2 quadratic columns.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.coordinates import Coordinates
from zoo.encodings.base import AttentionEncoding, Frame, LastRows, Score, algebra_dtype
from zoo.encodings.terms import Columns, FoldableScore, FusedScore, Parabolas
from zoo.tracing import is_exporting, refuse_above

__all__ = [
    "QuadraticEncoding",
    "QuadraticFrame",
    "QuadraticScore",
    "fold_keys",
    "fold_queries",
    "make_frame",
    "pairs",
    "piece_dtype",
    "query_columns",
    "rounded",
    "safe_radius",
]

# Sum over axes of (half extent)^2 up to which a fold keeps the mean total-variation error of attention rows below 1e-3
# at the initialisation of PaPE; 64 x 64 tokens are 1,985. Held by tests/test_pape_numerics.py. Coordinates that are not
# exact in bfloat16 lose the product of two low halves.
SAFE_RADIUS_16_BIT = 4096.0
SAFE_RADIUS_BFLOAT16_INEXACT = 400.0
SAFE_RADIUS_FLOAT32 = 16384.0
SAFE_RADIUS_FLOAT64 = 1e12

# Key columns are moved to about this size by powers of two, so that neither they nor those of q overflow in fp16.
_FP16_KEY_SIZE = 2048.0


def pairs(axes: int) -> list[tuple[int, int]]:
    """Axis pairs (a, b) with a <= b, in the order of the quadratic columns."""
    return [(a, b) for a in range(axes) for b in range(a, axes)]


def safe_radius(pieces: torch.dtype, exact: bool) -> float:
    """Largest sum over axes of squared half extents (units squared) that is folded.

    Args:
        pieces: See `piece_dtype`.
        exact: Whether centred coordinates are exact in 16 bit.
    """
    if pieces == torch.float64:
        return SAFE_RADIUS_FLOAT64
    if pieces == torch.float32:
        return SAFE_RADIUS_FLOAT32
    return SAFE_RADIUS_16_BIT if exact or pieces == torch.float16 else SAFE_RADIUS_BFLOAT16_INEXACT


def piece_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype whose numbers a kernel multiplies exactly: its own, but bfloat16 for float32 matrices run as TF32."""
    if dtype == torch.float32 and _tf32(device):
        return torch.bfloat16
    return dtype


def _tf32(device: torch.device) -> bool:
    return device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"


@dataclass(frozen=True)
class QuadraticFrame(Frame):
    """What follows from the coordinates alone.

    Attributes:
        values: (B or 1, N, p) centred coordinates in float32 or float64.
        products: (B or 1, N, c) products r_a r_b, in the same dtype.
        positioned: (B or 1, N, 1) 1 for tokens with a position, else 0; `None` when all have one.
        key_columns: (B or 1, 1, N, width) columns of k at their final width, in the dtype of the kernel (fold only).
        fused_columns: The same for fused kernels, (B or 1, N, width): always with the row constant (split fold only).
            Gradients are sums over keys of dS; with the constant a rounding error of dS meets D^2, not r^2.
        powers: Power of two taken from each column of q, row constant included, and given to that of k (fold only).
        exact: Centred coordinates are exact in the dtype of the pieces.
        pieces: Dtype of the halves of a column (`piece_dtype`).
    """

    values: Tensor
    products: Tensor
    positioned: Tensor | None
    key_columns: Tensor | None
    fused_columns: Tensor | None
    powers: tuple[int, ...]
    exact: bool
    pieces: torch.dtype

    @property
    def split(self) -> bool:
        """Whether columns are emitted as high and low halves."""
        return self.pieces not in (torch.float32, torch.float64)

    @property
    def reduction(self) -> torch.dtype:
        """Dtype of the sum over parabolas: float64 where columns are not split, since M meets r^2 up to 10^4."""
        if self.split or self.kind == "score" or self.values.device.type == "mps":
            return self.values.dtype
        return torch.float64


def make_frame(coords: Coordinates, dtype: torch.dtype) -> QuadraticFrame:
    """Makes the frame of a quadratic bias, and decides by the extent between folding and exact differences."""
    algebra = algebra_dtype(coords.values.dtype, dtype)
    values = coords.centred(algebra)
    positioned = None if coords.positioned is None else coords.positioned.unsqueeze(-1).to(algebra)
    if coords.packed:
        values = values.unsqueeze(0)
        positioned = None if positioned is None else positioned.unsqueeze(0)
    products = torch.stack([values[..., a] * values[..., b] for a, b in pairs(coords.axes)], dim=-1)
    if positioned is not None:  # Either may be that of all samples.
        positioned = positioned.expand(*values.shape[:-1], 1).contiguous()
    pieces = piece_dtype(dtype, values.device)
    extents = coords.extents()
    frame = QuadraticFrame("score", values, products, positioned, None, None, (), coords.integral, pieces)
    safe = safe_radius(pieces, coords.integral)
    if is_exporting() and not all(isinstance(extent, float) and math.isfinite(extent) for extent in extents):
        # A graph for sizes that are not known yet folds at all that are safe.
        values = refuse_above(values, values.abs().amax(dim=-2).square().sum(dim=-1), safe)
        extents = (safe**0.5,) * len(extents)
    elif not sum(extent**2 for extent in extents) <= safe:
        return frame
    powers = _powers(extents, pieces)
    known = torch.ones_like(values[..., :1]) if positioned is None else positioned
    fused = _scale([products, values, known], powers, 1)
    columns = fused if positioned is not None else fused[..., :-1]
    return replace(
        frame,
        kind="fold",
        key_columns=_pad(_split_keys(columns, frame) if frame.split else columns).unsqueeze(1).to(dtype),
        fused_columns=_widen(_split_keys(fused, frame)).to(dtype) if frame.split else None,
        powers=powers,
    )


def _powers(extents: tuple[float, ...], dtype: torch.dtype) -> tuple[int, ...]:
    sizes = [extents[a] * extents[b] for a, b in pairs(len(extents))] + list(extents) + [1.0]
    return tuple(0 if dtype != torch.float16 else _power(size) for size in sizes)


def _power(size: float) -> int:
    """Largest p with 2^p size <= `_FP16_KEY_SIZE`, 11 for sizes below 1; by comparisons, which compiling follows."""
    power = 11
    while size * 2.0**power > _FP16_KEY_SIZE:
        power -= 1
    return power


def _scale(columns: list[Tensor], powers: tuple[int, ...], sign: int) -> Tensor:
    parts, start = [], 0
    for column in columns:
        width = column.shape[-1]
        factors = [2.0 ** (sign * power) for power in powers[start : start + width]]
        parts.append(
            column
            if set(factors) == {1.0}
            else torch.cat([column[..., i : i + 1] * factor for i, factor in enumerate(factors)], dim=-1)
        )
        start += width
    return torch.cat(parts, dim=-1)


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounds x to the precision of a 16-bit dtype, kept in float32, without gradient.

    By integer arithmetic, because compilers drop a conversion to 16 bit and back as if it did nothing.
    """
    if is_exporting():  # Graphs have no view of bits, and runtimes keep conversions that lose something.
        return x.detach().to(dtype).float()
    spare = 16 if dtype == torch.bfloat16 else 13  # Mantissa bits of float32 that the dtype has not.
    bits = x.detach().float().view(torch.int32)
    return ((bits + (1 << (spare - 1))) & -(1 << spare)).view(torch.float32)


def _pieces(x: Tensor, dtype: torch.dtype, count: int) -> list[Tensor]:
    """Writes x as a sum of `count` numbers of 16-bit precision, largest first; the first carries the whole gradient."""
    x = x.float()
    first = rounded(x, dtype)
    pieces, rest = [x + (first - x).detach()], (x - first).detach()
    for _ in range(count - 1):
        pieces.append(rounded(rest, dtype))
        rest = rest - pieces[-1]
    return pieces


def _inexact(frame: QuadraticFrame) -> int:
    """How many leading columns of k need a low half: products always, coordinates when not exact in 16 bit."""
    return frame.products.shape[-1] + (0 if frame.exact else frame.values.shape[-1])


def _has_constant(columns: Tensor, frame: QuadraticFrame) -> bool:
    return columns.shape[-1] > frame.products.shape[-1] + frame.values.shape[-1]


def _split_keys(columns: Tensor, frame: QuadraticFrame) -> Tensor:
    high, low = _pieces(columns, frame.pieces, 2)
    parts = [high, high, low[..., : _inexact(frame)]]
    if _has_constant(columns, frame):
        parts.append(high[..., -1:])
    return torch.cat(parts, dim=-1)


def _split_queries(columns: Tensor, frame: QuadraticFrame) -> Tensor:
    high, low, lowest = _pieces(columns, frame.pieces, 3)
    parts = [high, low, high[..., : _inexact(frame)]]
    if _has_constant(columns, frame):  # The row constant is the largest of all columns: a third piece of it.
        parts.append(lowest[..., -1:])
    return torch.cat(parts, dim=-1)


def _pad(columns: Tensor) -> Tensor:
    """Pads to a multiple of 8 columns, which is what fused kernels take."""
    return F.pad(columns, (0, -columns.shape[-1] % 8))


def _widen(columns: Tensor) -> Tensor:
    """Pads to a power of two from 16, which is what our kernels multiply."""
    return F.pad(columns, (0, max(16, 1 << (columns.shape[-1] - 1).bit_length()) - columns.shape[-1]))


def fold_keys(k: Tensor, frame: QuadraticFrame) -> Tensor:
    """Appends the key columns to k (B, H, N, D)."""
    assert frame.key_columns is not None
    columns = frame.key_columns.to(k.dtype)
    return torch.cat([k, columns.expand(k.shape[0], k.shape[1], -1, -1)], dim=-1)


def query_columns(m: Tensor, t: Tensor | None, frame: QuadraticFrame, *, constant: bool) -> Tensor:
    """The columns of q before they are cut into pieces: (B, H, N, c + p), or one more with the row constant.

    Args:
        m: (B, H, N, c) entries M_ab of the quadratic form, a <= b, in the dtype of the algebra.
        t: (B, H, N, p) the linear term, or `None` for zero.
        frame: From `make_frame`.
        constant: Whether to append the row constant.
    """
    axes = frame.values.shape[-1]
    order = pairs(axes)
    doubled = torch.cat([m[..., i : i + 1] * (1 if a == b else 2) for i, (a, b) in enumerate(order)], dim=-1)
    values = frame.values.unsqueeze(1)
    slope = []
    for axis in range(axes):
        terms = [m[..., order.index((min(axis, b), max(axis, b)))] * values[..., b] for b in range(axes)]
        column = 2 * sum(terms[1:], terms[0])
        slope.append(column if t is None else column - t[..., axis])
    columns = [-doubled, torch.stack(slope, dim=-1)]
    if constant:
        row = -(doubled * frame.products.unsqueeze(1)).sum(dim=-1, keepdim=True)
        columns.append(row if t is None else row + (t * values).sum(dim=-1, keepdim=True))
    folded = _scale(columns, frame.powers, -1)
    if frame.positioned is not None:
        folded = folded * frame.positioned.unsqueeze(1)  # A query without a position sees every key alike.
    return folded


def fold_queries(q: Tensor, m: Tensor, t: Tensor | None, frame: QuadraticFrame) -> Tensor:
    """Appends the columns of `query_columns` to q (B, H, N, D), in pieces where the frame splits them."""
    folded = query_columns(m, t, frame, constant=frame.positioned is not None)
    folded = _split_queries(folded, frame) if frame.split else folded
    return torch.cat([q, _pad(folded).to(q.dtype)], dim=-1)


@dataclass(frozen=True)
class QuadraticScore(FusedScore, FoldableScore):
    """The bias from exact differences, a block of rows at a time; right at any extent and for any order of tokens."""

    m: Tensor  # (B, H, N, c)
    t: Tensor | None  # (B, H, N, p)
    frame: QuadraticFrame
    scale: float

    def bias(self, rows: slice) -> Tensor:
        """See `zoo.encodings.base.Score`."""
        values, positioned = self.frame.values, self.frame.positioned
        difference = values[:, rows].unsqueeze(2) - values.unsqueeze(1)
        order = pairs(values.shape[-1])
        features = [-(1 if a == b else 2) * difference[..., a] * difference[..., b] for a, b in order]
        coefficients = self.m[:, :, rows]
        if self.t is not None:
            features += list(difference.unbind(dim=-1))
            coefficients = torch.cat([coefficients, self.t[:, :, rows]], dim=-1)
        table = torch.stack(features, dim=-2)  # (B or 1, rows, c + p, N)
        if positioned is not None:
            known = positioned[:, rows, 0].unsqueeze(2) * positioned[..., 0].unsqueeze(1)
            table = table * known.unsqueeze(2)
        coefficients = self.scale * coefficients
        if _tf32(table.device):  # A matrix product would round the differences to 10 bits.
            terms = [coefficients[..., i : i + 1] * table[:, None, :, i] for i in range(table.shape[2])]
            return sum(terms[1:], terms[0])
        return torch.matmul(coefficients.transpose(1, 2), table).transpose(1, 2)

    def among(self, tokens: slice) -> QuadraticScore:
        """See `zoo.encodings.base.DivisibleScore`; from exact differences, whatever the frame was made for."""
        frame, known = self.frame, self.frame.positioned
        part = replace(
            frame,
            kind="score",
            values=frame.values[:, tokens],
            products=frame.products[:, tokens],
            positioned=None if known is None else known[:, tokens],
            key_columns=None,
            fused_columns=None,
        )
        t = None if self.t is None else self.t[:, :, tokens]
        return replace(self, m=self.m[:, :, tokens], t=t, frame=part)

    @property
    def foldable(self) -> bool:
        """See `zoo.encodings.terms.FoldableScore`."""
        return self.frame.kind == "fold"

    def fold(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """See `zoo.encodings.terms.FoldableScore`."""
        return fold_queries(q, self.m, self.t, self.frame), fold_keys(k, self.frame)

    @property
    def axes(self) -> int:
        """See `zoo.encodings.terms.FusedScore`."""
        return self.frame.values.shape[-1]

    @property
    def term(self) -> str | None:
        """See `zoo.encodings.terms.FusedScore`: columns where folding is safe, else exact differences."""
        if self.frame.values.dtype != torch.float32:
            return None
        if not self.foldable:
            return "parabolas"
        return "columns" if self.frame.split else None

    def terms(self) -> Columns | Parabolas | None:
        """See `zoo.encodings.terms.FusedScore`."""
        frame, known = self.frame, self.frame.positioned
        known = None if known is None else known.squeeze(-1)
        if self.term == "columns":
            assert frame.fused_columns is not None
            keys, inexact = frame.fused_columns, _inexact(frame)
            return Columns(self.m, self.t, frame.values, known, keys, inexact, frame.powers)
        if self.term is None:
            return None
        t = self.m.new_zeros(*self.m.shape[:-1], self.axes) if self.t is None else self.t
        shape = (*self.m.shape[:-1], -1)  # Either may be the same for all samples.
        coefficients = torch.cat([self.m, t.expand(shape)], dim=-1)
        return Parabolas(coefficients, frame.values, known)


class QuadraticEncoding(AttentionEncoding):
    """An encoding whose bias is quadratic: attention folds it into q and k or evaluates it, as suits its kernel."""

    @abstractmethod
    def score(self, x: Tensor, frame: Frame, scale: float) -> QuadraticScore:
        """See `AttentionEncoding.score`."""

    def fold(self, x: Tensor, q: Tensor, k: Tensor, frame: Frame) -> tuple[Tensor, Tensor]:
        """See `AttentionEncoding.fold`."""
        score = self.score(x, frame, 1.0)  # The columns are scaled with q.k.
        with torch.autocast(x.device.type, enabled=False):
            return score.fold(q, k)

    def encode_attention(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, frame: Frame, scale: float
    ) -> tuple[Tensor, Tensor, Tensor, Score | None]:
        """q, k and v as they are, and the score, which `zoo.kernels.attend` folds where its kernel wants that."""
        return q, k, v, self.score(x, frame, scale)

    def encode_last(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, frame: Frame, scale: float
    ) -> tuple[Tensor, Tensor, Tensor, Score | None]:
        """See `AttentionEncoding.encode_last`; from exact differences to the queries, which nothing cancels in."""
        score = self.score(x, frame, scale)
        count = q.shape[2]
        first = k.shape[2] - count
        m, t = (None if part is None else F.pad(part, (0, 0, first, 0)) for part in (score.m, score.t))
        assert m is not None
        return q, k, v, LastRows(replace(score, m=m, t=t), first, count)
