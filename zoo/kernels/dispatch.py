"""`attend`: softmax attention with masks, additive scores and packed samples, by an eager oracle or torch's SDPA.

Legend: B batch, H heads, N tokens (Nq, Nk when they differ), Dqk width of q and k, Dv width of v.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from zoo.encodings.base import DivisibleScore, Score, algebra_dtype
from zoo.encodings.distance import DifferenceScore
from zoo.encodings.terms import FoldableScore, FusedScore, Matrix, Product
from zoo.errors import ConfigError, DataError
from zoo.kernels.flex import flex
from zoo.kernels.fused import fused_attention
from zoo.kernels.lattice import lattice_attention
from zoo.kernels.polar import polar_attention
from zoo.kernels.rows import attention_rows
from zoo.kernels.select import call_of, record, select
from zoo.tracing import is_exporting

__all__ = ["attend", "attention_weights", "call_of"]

# Largest bias made at once for a block of query rows, in elements: on a CPU what its caches help with (16 MiB of
# float32), on a GPU what keeps it busy (512 MiB).
_BLOCK_ELEMENTS, _BLOCK_ELEMENTS_CUDA = 2**22, 2**27
# The same for the logits of plain products in 16 bit on CUDA (256 MiB of float32).
_DENSE_ELEMENTS = 2**26


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    mask: Tensor | None = None,
    score: Score | Product | None = None,
    causal: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Attention softmax(scale q k^T + score) v.

    Rows that see no key give zeros and finite gradients. Keys that no query may see never leak, even if they hold NaN.

    Args:
        q: (B, H, Nq, Dqk).
        k: (B, H, Nk, Dqk).
        v: (B, H, Nk, Dv); Dv may be smaller than Dqk.
        scale: Softmax scale: that of the content width, never of a widened Dqk.
        mask: Bool, True where a key is visible: (B, Nk) for padding, or (B or 1, H or 1, Nq, Nk).
        score: Additive position term: folded into q and k, evaluated inside a kernel, or for blocks of query rows in
            float32, so that no N x N tensor of it is kept. Or what stands in place of q k^T: folded, or made inside.
        causal: Query i sees keys 0..i; needs Nq = Nk.
        cu_seqlens: Offsets (S + 1,) of samples packed along N, with B = 1: each attends to itself alone.

    Returns:
        (B, H, Nq, Dv) in the dtype of v.

    Raises:
        DataError: If shapes do not fit.
        ConfigError: If a forced backend does not exist or cannot run the call.
    """
    if q.shape[-1] != k.shape[-1] or k.shape[:3] != v.shape[:3]:
        raise DataError(f"attention shapes do not fit: q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}")
    if causal and q.shape[2] != k.shape[2]:
        raise DataError("causal attention needs as many queries as keys")
    choice = select(call_of(q, k, v, score, mask, causal, cu_seqlens is not None))
    if not torch.compiler.is_compiling():
        record(choice)
    if choice.backend == "triton" and choice.method == "rows":
        assert score is not None and not isinstance(score, Product)
        return _triton_rows(q, k, v, scale, mask, score, causal)
    if choice.backend == "triton":
        return _triton(q, k, v, scale, mask, score, causal, cu_seqlens)
    with _without_autocast(q.device):
        if choice.method == "fold":
            q, k, score = _folded(q, k, score)
        assert not isinstance(score, Product)
        if cu_seqlens is not None:
            return _packed(choice.backend, q, k, v, scale, mask, score, causal, cu_seqlens)
        return _run(choice.backend, q, k, v, scale, mask, score, causal)


def _without_autocast(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Turns autocast off, where it is on: this takes Python ten microseconds."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


def _folded(q: Tensor, k: Tensor, score: Score | Product | None) -> tuple[Tensor, Tensor, Score | None]:
    """Folds the score into q and k, where it can be."""
    if isinstance(score, Product) or (isinstance(score, FoldableScore) and score.foldable):
        return *score.fold(q, k), None
    return q, k, score


def _triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    mask: Tensor | None,
    score: Score | Product | None,
    causal: bool,
    cu_seqlens: Tensor | None,
) -> Tensor:
    if cu_seqlens is not None:
        _check_packed(q, mask, cu_seqlens)
    k, v, _ = _hide(k, v, mask)
    with _without_autocast(q.device):
        if isinstance(score, Product):
            polar = score.polar()
            return polar_attention(q, k, v, polar, scale=scale, mask=mask, causal=causal, cu_seqlens=cu_seqlens)
        terms = score.terms() if isinstance(score, FusedScore) else None
        return fused_attention(q, k, v, terms, scale=scale, mask=mask, causal=causal, cu_seqlens=cu_seqlens)


def _triton_rows(
    q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None, score: Score, causal: bool
) -> Tensor:
    """Blocks of query rows with their bias in float32, read by our kernel; without gradients."""
    k, v, _ = _hide(k, v, mask)

    def block(q_rows: Tensor, rows: slice) -> Tensor:
        term = Matrix(score.bias(rows), rows.start or 0)
        return attention_rows(q_rows, k, v, term, scale=scale, mask=mask, causal=causal)

    with _without_autocast(q.device), torch.no_grad():
        elements, maps = _BLOCK_ELEMENTS_CUDA, q.shape[0] * q.shape[1]
        if maps * q.shape[2] * k.shape[2] > elements:  # Samples may share their bias, which is all that is bounded.
            elements = elements * maps // max(1, score.bias(slice(0, 1)).shape[:2].numel())
        return _by_rows(block, q, k.shape[2], elements)


def _run(
    backend: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    mask: Tensor | None,
    score: Score | None,
    causal: bool,
) -> Tensor:
    """One batch on a backend other than Triton's."""
    k, v, visible = _hide(k, v, mask)
    if backend == "eager":
        weights = _weights(q, k, scale, visible, score, causal, slice(0, q.shape[2]))
        return (weights @ v.to(weights.dtype)).to(v.dtype)
    if score is None:
        return _sdpa(q, k, v, scale, visible, causal)
    if backend == "flex":
        return flex(q, k, v, scale=scale, score=score)
    if backend == "dense":
        return _dense(q, k, v, scale, visible, score, causal)
    return _scored(q, k, v, scale, visible, score, causal)


def attention_weights(
    q: Tensor,
    k: Tensor,
    *,
    scale: float,
    mask: Tensor | None = None,
    score: Score | Product | None = None,
    causal: bool = False,
) -> Tensor:
    """The attention matrix itself, (B, H, Nq, Nk) in float32 or wider, under the same rules as `attend`."""
    with _without_autocast(q.device):
        q, k, score = _folded(q, k, score)
        k, _, visible = _hide(k, k, mask)
        return _weights(q, k, scale, visible, score, causal, slice(0, q.shape[2]))


def _hide(k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Zero-fills keys that nobody sees and brings the mask to four dimensions."""
    if mask is None:
        return k, v, None
    if mask.dtype != torch.bool or mask.dim() not in (2, 4) or mask.shape[-1] != k.shape[2]:
        raise DataError(
            f"mask must be bool with True = visible, (B, {k.shape[2]}) or (B, H, Nq, {k.shape[2]}); "
            f"got {mask.dtype} {tuple(mask.shape)}"
        )
    visible = mask[:, None, None, :] if mask.dim() == 2 else mask
    unseen = ~visible.any(dim=2, keepdim=True).any(dim=1, keepdim=True).transpose(2, 3)
    return k.masked_fill(unseen, 0.0), v.masked_fill(unseen, 0.0), visible


def _causal_mask(queries: int, rows: slice, keys: int, device: torch.device) -> Tensor:
    index = torch.arange(queries, device=device)[rows]
    return index[:, None] >= torch.arange(keys, device=device)


def _combine(
    visible: Tensor | None, causal: bool, queries: int, keys: int, rows: slice, device: torch.device
) -> Tensor | None:
    """The mask of a block of query rows, (B or 1, H or 1, rows or 1, Nk), or `None`."""
    if visible is not None and visible.shape[2] > 1:
        visible = visible[:, :, rows]
    if causal:
        triangle = _causal_mask(queries, rows, keys, device)
        visible = triangle[None, None] if visible is None else visible & triangle
    return visible


def _weights(
    q: Tensor, k: Tensor, scale: float, visible: Tensor | None, score: Score | None, causal: bool, rows: slice
) -> Tensor:
    dtype = algebra_dtype(q.dtype, k.dtype)
    logits = scale * (q[:, :, rows].to(dtype) @ k.to(dtype).transpose(-1, -2))
    if score is not None:
        logits = logits + score.bias(rows)
    seen = _combine(visible, causal, q.shape[2], k.shape[2], rows, q.device)
    if seen is None:
        return logits.softmax(dim=-1)
    logits, nothing = _mask_logits(logits, seen)
    return logits.softmax(dim=-1).masked_fill(nothing, 0.0)


def _mask_logits(logits: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Hides keys; rows that see nothing (scores may hide keys too) become all zero and are marked."""
    logits = torch.where(seen, logits, float("-inf"))
    nothing = (logits == float("-inf")).all(dim=-1, keepdim=True)
    return logits.masked_fill(nothing, 0.0), nothing


def _sdpa(q: Tensor, k: Tensor, v: Tensor, scale: float, visible: Tensor | None, causal: bool) -> Tensor:
    width = v.shape[-1]
    if q.device.type != "cuda" and q.shape[-1] != width:
        # Off CUDA only equal widths reach the fused kernel; zero columns of v cost less than an N x N matrix.
        v = F.pad(v, (0, q.shape[-1] - width))
    if visible is None:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
        return out[..., :width]
    seen = _combine(visible, causal, q.shape[2], k.shape[2], slice(0, q.shape[2]), q.device)
    assert seen is not None
    return _masked_sdpa(q, k, v, scale, seen)[..., :width]


def _masked_sdpa(q: Tensor, k: Tensor, v: Tensor, scale: float, seen: Tensor) -> Tensor:
    """SDPA under a bool mask; rows that see nothing are let see everything and zeroed, for finite gradients."""
    nothing = ~seen.any(dim=-1, keepdim=True)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen | nothing, scale=scale)
    return out.masked_fill(nothing, 0.0)


def _scored(
    q: Tensor, k: Tensor, v: Tensor, scale: float, visible: Tensor | None, score: Score, causal: bool
) -> Tensor:
    """Blocks of query rows with their bias, in float32 or wider: a 16-bit bias would be off by its own rounding."""
    dtype = algebra_dtype(q.dtype, k.dtype)
    queries, keys = q.shape[2], k.shape[2]
    wide_q, wide_k, wide_v = q.to(dtype), k.to(dtype), v.to(dtype)
    if _may_look(q, visible, causal) and isinstance(score, DifferenceScore) and (found := score.lattice_table()):
        lattice, table = found
        return lattice_attention(
            wide_q, wide_k, wide_v, lattice, table.to(dtype), scale=scale, elements=_BLOCK_ELEMENTS
        ).to(v.dtype)

    def block(q_rows: Tensor, rows: slice) -> Tensor:
        bias = score.bias(rows).to(dtype)
        seen = _combine(visible, causal, queries, keys, rows, q.device)
        if seen is None:
            return F.scaled_dot_product_attention(q_rows, wide_k, wide_v, attn_mask=bias, scale=scale)
        bias, nothing = _mask_logits(bias, seen)
        out = F.scaled_dot_product_attention(q_rows, wide_k, wide_v, attn_mask=bias, scale=scale)
        return out.masked_fill(nothing, 0.0)

    elements = _BLOCK_ELEMENTS_CUDA if q.is_cuda else _BLOCK_ELEMENTS
    return _by_rows(block, wide_q, keys, elements).to(v.dtype)


def _may_look(q: Tensor, visible: Tensor | None, causal: bool) -> bool:
    """Whether a regular arrangement of tokens may be looked for: not where that would wait for a GPU, or in a graph."""
    return q.device.type == "cpu" and visible is None and not causal and not torch.compiler.is_compiling()


def _dense(q: Tensor, k: Tensor, v: Tensor, scale: float, visible: Tensor | None, score: Score, causal: bool) -> Tensor:
    """Blocks of query rows as two plain products, the bias between in float32.

    Probabilities are rounded to the dtype of v, as fused kernels round them.
    """
    queries, keys = q.shape[2], k.shape[2]
    dtype = algebra_dtype(q.dtype, k.dtype)
    wide_q, wide_k = scale * q.to(dtype), k.to(dtype).transpose(-1, -2)

    def block(q_rows: Tensor, rows: slice) -> Tensor:
        logits = q_rows @ wide_k
        bias = score.bias(rows)
        logits = logits + bias if torch.is_grad_enabled() else logits.add_(bias)
        seen = _combine(visible, causal, queries, keys, rows, q.device)
        if seen is None:
            return logits.softmax(dim=-1).to(v.dtype) @ v
        logits, nothing = _mask_logits(logits, seen)
        return logits.softmax(dim=-1).masked_fill(nothing, 0.0).to(v.dtype) @ v

    return _by_rows(block, wide_q, keys, _DENSE_ELEMENTS)


def _by_rows(block: Callable[[Tensor, slice], Tensor], q: Tensor, keys: int, elements: int) -> Tensor:
    """Runs `block(rows of q, which)` on as many query rows at a time as make `elements` logits."""
    queries = q.shape[2]
    if is_exporting():  # The number of blocks would be that of the traced size.
        return block(q, slice(None))
    step = max(1, elements // max(1, q.shape[0] * q.shape[1] * keys))
    if step >= queries:
        return block(q, slice(None))  # No numbers: compiled code is good for other sizes.
    parts, count = [], -(-queries // step)  # Compiled code holds for as many blocks, of any size.
    step = -(-queries // count)
    for i in range(count):
        rows = slice(i * step, min(i * step + step, queries))
        if torch.is_grad_enabled():  # Recompute the bias of a block in backward instead of keeping all of it.
            parts.append(checkpoint(block, q[:, :, rows], rows, use_reentrant=False))
        else:
            parts.append(block(q[:, :, rows], rows))
    return torch.cat(parts, dim=2)


class _Window:
    """The score of one packed sample."""

    def __init__(self, score: Score, start: int, stop: int) -> None:
        self.score, self.start, self.stop = score, start, stop

    def bias(self, rows: slice) -> Tensor:
        start, stop, _ = rows.indices(self.stop - self.start)
        shifted = slice(self.start + start, self.start + stop)
        return self.score.bias(shifted)[..., self.start : self.stop]


def _window(score: Score | None, start: int, stop: int) -> Score | None:
    """The score of one packed sample; without one for all tokens, where it can be had."""
    if score is None:
        return None
    if isinstance(score, DivisibleScore):
        return _Window(score.among(slice(start, stop)), 0, stop - start)
    return _Window(score, start, stop)


def _check_packed(q: Tensor, mask: Tensor | None, cu_seqlens: Tensor) -> None:
    """What can be checked without waiting for the device."""
    if mask is not None:
        raise ConfigError("a packed batch takes no mask: leave the hidden tokens out")
    if q.shape[0] != 1 or cu_seqlens.dim() != 1 or not len(cu_seqlens):
        raise DataError(f"cu_seqlens must be (samples + 1,) with batch size 1, got {tuple(cu_seqlens.shape)}")


def _packed(
    backend: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    mask: Tensor | None,
    score: Score | None,
    causal: bool,
    cu_seqlens: Tensor,
) -> Tensor:
    """One call per sample: no padding, and nothing of one sample reaches another."""
    _check_packed(q, mask, cu_seqlens)
    offsets = cu_seqlens.tolist()
    if offsets[0] != 0 or offsets[-1] != q.shape[2] or sorted(offsets) != offsets:
        raise DataError(f"cu_seqlens must rise from 0 to the number of tokens {q.shape[2]} with batch size 1")
    # Split at once: the gradient of a slice is as large as what it was cut from.
    lengths = [b - a for a, b in zip(offsets, offsets[1:], strict=False)]
    samples = zip(offsets, *(x.split(lengths, dim=2) for x in (q, k, v)), lengths, strict=False)
    parts = [
        _run(backend, q, k, v, scale, None, _window(score, a, a + length), causal)
        for a, q, k, v, length in samples
        if length
    ]
    if not parts:  # No token at all: still part of the graph, so that gradients are zero and not absent.
        return _run(backend, q, k, v, scale, None, score, causal)
    return torch.cat(parts, dim=2)
