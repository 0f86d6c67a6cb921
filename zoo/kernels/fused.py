"""Attention with the position term inside our Triton kernels, forward and backward.

Legend: B batch, H heads, N tokens, D head width, p coordinate axes, S packed samples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from zoo.encodings.terms import Columns, Distances, Parabolas, Terms
from zoo.errors import DataError
from zoo.kernels.launch import (
    HAS_TRITON,
    Operation,
    eager,
    inlines,
    interpreted,
    layout,
    ordinary,
    planned,
    register,
)
from zoo.kernels.plans import COLUMNS, DISTANCES, PARABOLAS, PLAIN, backward_plans, forward_plan, pointers

__all__ = ["MAX_AXES", "check_scale", "fused_attention", "interpreted", "rows_first", "shapes_problem"]

HEAD_WIDTHS = (16, 32, 64, 128)
DTYPES = (torch.float16, torch.bfloat16)
MAX_AXES = 4


def shapes_problem(device: torch.device, dtype: torch.dtype, width: int, value_width: int) -> str | None:
    """Why the kernels cannot run at all for tensors like these, or `None`."""
    if not HAS_TRITON:
        return "Triton is not installed (pip install triton)"
    if device.type != "cuda" and not (device.type == "cpu" and interpreted()):
        return f"it runs on CUDA, not on {device.type}"
    if device.type == "cuda" and torch.cuda.is_available() and torch.cuda.get_device_capability(device) < (8, 0):
        return "it needs compute capability 8.0"
    if dtype not in DTYPES:
        return f"it runs in float16 and bfloat16, not in {str(dtype).removeprefix('torch.')}"
    if width not in HEAD_WIDTHS or value_width != width:
        widths = ", ".join(map(str, HEAD_WIDTHS))
        return f"it takes q, k and v of equal width {widths}; these are {width} and {value_width}"
    return None


def check_scale(scale: float) -> None:
    """Refuses softmax scales that are not above 0: the largest product would not be that of the largest logit.

    Raises:
        DataError: If it is one of them.
    """
    if not scale > 0:
        raise DataError(f"the softmax scale must be above 0, got {scale!r:.80}: turn the sign of q instead")


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    terms: Terms | None,
    *,
    scale: float,
    mask: Tensor | None = None,
    causal: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Attention with a position term, forward and backward in Triton; arguments as `zoo.kernels.attend` has them.

    Args:
        q: (B, H, N, D) float16 or bfloat16.
        k: (B, H, N, D).
        v: (B, H, N, D).
        terms: Position term or `None`. Gradients flow to M and t of `Columns` and to `Parabolas.coefficients`.
        scale: Softmax scale, above 0.
        mask: Bool (B, N), True for visible keys.
        causal: Query i sees keys 0..i of its sample.
        cu_seqlens: Offsets (S + 1,) of packed samples, B = 1.

    Returns:
        (B, H, N, D) like q.

    Raises:
        DataError: If the scale is not above 0.
    """
    check_scale(scale)
    queries = slope = keys = values = known = heads = None
    kind, inexact, powers, order, border = PLAIN, 0, 0, 2, 0.0
    match terms:
        case Columns():
            kind, values, known, keys = COLUMNS, terms.values, terms.positioned, terms.keys
            queries = terms.curvature.expand(*q.shape[:3], -1)  # Either may be the same for some.
            slope = None if terms.slope is None else terms.slope.expand(*q.shape[:3], -1)
            inexact, powers = terms.inexact, _packed_powers(terms.powers)
        case Parabolas():
            kind, queries, values, known = PARABOLAS, terms.coefficients.contiguous(), terms.values, terms.positioned
        case Distances():
            kind, values, known, order, border = DISTANCES, terms.values, terms.positioned, terms.order, terms.border
            heads = terms.slopes.reshape(-1, 1)
            if terms.fields is not None:
                heads = torch.cat([heads, terms.fields.flatten(1)], dim=1)
            heads = heads.contiguous()
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    keys, values, known, mask = (None if x is None else x.contiguous() for x in (keys, values, known, mask))
    cu_seqlens = None if cu_seqlens is None else cu_seqlens.to(torch.int32)
    tensors = (q, k, v, queries, slope, keys, values, known, heads, mask, cu_seqlens)
    settings = (scale, kind, inexact, powers, order, border, causal)
    if ordinary(*tensors):
        return _eager(*tensors, *settings)[0]
    if inlines(*tensors):
        from zoo.kernels.operators import attention as operator
    else:
        operator = _operator
    return operator(*tensors, *settings)[0]


def _packed_powers(powers: tuple[int, ...]) -> int:
    """The powers of all columns in one number, 4 bits each; kernels then are the same for all extents."""
    assert all(-1 <= power <= 14 for power in powers) and len(powers) < 16
    return sum((power + 1) << (4 * i) for i, power in enumerate(powers))


def rows_first(like: Tensor) -> Tensor:
    """Empty (B, H, N, D) with the memory order (B, N, H, D), in which heads are joined without a copy."""
    b, h, n, d = like.shape
    # Not new_empty_strided: compilers take two of those for the same tensor, and then copy what was written to one.
    return like.new_empty(b, n, h, d).transpose(1, 2)


def _planes(q: Tensor, like: Tensor | None) -> Tensor:
    """Empty float32 (B, H, N, numbers), each number a plane (H, B, N) in memory; without numbers if there are none."""
    b, h, n, _ = q.shape
    return q.new_empty(0 if like is None else like.shape[-1], h, b, n, dtype=torch.float32).permute(2, 1, 3, 0)


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: Tensor | None,
    slope: Tensor | None,
    keys: Tensor | None,
    values: Tensor | None,
    known: Tensor | None,
    heads: Tensor | None,
    mask: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    kind: int,
    inexact: int,
    powers: int,
    order: int,
    border: float,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    """Output, and the logarithm (base 2) of the sum of exponentials of every row."""
    out, lse = _fake_forward(q)
    if q.numel():
        operands = (q, k, v, queries, slope, keys, values, known, heads, mask, cu_seqlens)
        settings = (scale, kind, inexact, powers, order, border, causal)
        key = (q.get_device(), tuple(map(layout, operands)), (layout(out),), settings)
        planned(forward_plan, q, *key)(q, k, v, out, lse, *pointers("forward", operands, kind))
    return out, lse


def _fake_forward(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return rows_first(q), q.new_empty(q.shape[:3], dtype=torch.float32)


def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    queries: Tensor | None,
    slope: Tensor | None,
    keys: Tensor | None,
    values: Tensor | None,
    known: Tensor | None,
    heads: Tensor | None,
    mask: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    kind: int,
    inexact: int,
    powers: int,
    order: int,
    border: float,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and of the queries' side of the term: of M (or all coefficients) and of t."""
    dq, dk, dv, dterms, dslope = results = _fake_backward(grad, q, k, v, out, lse, queries, slope)
    if not q.numel():
        return results
    operands = (q, k, v, queries, slope, keys, values, known, heads, mask, cu_seqlens)
    settings = (scale, kind, inexact, powers, order, border, causal)
    gradients = (layout(dq), layout(dk))
    key = (q.get_device(), tuple(map(layout, operands)), layout(out), layout(grad), gradients, settings)
    for_rows, for_queries, for_keys = planned(backward_plans, q, *key)
    stats = lse.new_empty(*lse.shape, 2)
    for_rows(out, grad, lse, stats)
    pieces = q.new_empty((*q.shape[:3], keys.shape[-1]) if keys is not None else (0,))
    common = (q, k, v, grad, stats)
    for_queries(*common, dq, dterms, dslope, pieces, *pointers("queries", operands, kind))
    for_keys(*common, dk, dv, pieces, *pointers("keys", operands, kind))
    return results


def _fake_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, queries: Tensor | None,
    slope: Tensor | None, *_: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return rows_first(q), rows_first(k), rows_first(v), _planes(q, queries), _planes(q, slope)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:3], *output, *inputs[3:11])
    ctx.settings = inputs[11:]


def _gradients(backward: Callable[..., tuple[Tensor, ...]], ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    if grad.stride(-1) != 1:
        grad = grad.contiguous()
    queries, slope = ctx.saved_tensors[5:7]
    dq, dk, dv, dterms, dslope = backward(grad, *ctx.saved_tensors, *ctx.settings)
    return dq, dk, dv, None if queries is None else dterms, None if slope is None else dslope, *[None] * 13


OPERATION = Operation(_forward, _backward, _fake_forward, _fake_backward, _save, _gradients, outputs=1)
_eager = eager(OPERATION)
_operator = register(OPERATION, torch.library.custom_op, "zoo::attention")
