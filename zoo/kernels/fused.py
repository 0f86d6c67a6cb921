"""Attention with the position term inside our Triton kernels, forward and backward.

Legend: B batch, H heads, N tokens, D head width, p coordinate axes, S packed samples.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zoo.encodings.terms import Columns, Distances, Parabolas, Terms
from zoo.kernels.launch import (
    HAS_TRITON,
    PLANS,
    Layout,
    Operation,
    Plan,
    eager,
    inlines,
    interpreted,
    layout,
    ordinary,
    planned,
    register,
    strides_of,
)

__all__ = ["MATRIX", "MAX_AXES", "fused_attention", "interpreted", "rows_first", "shapes_problem", "tiling"]

HEAD_WIDTHS = (16, 32, 64, 128)
DTYPES = (torch.float16, torch.bfloat16)
MAX_AXES = 4
_PLAIN, _COLUMNS, _PARABOLAS, _DISTANCES, MATRIX = range(5)


@dataclass(frozen=True)
class Tiling:
    """Queries and keys of a tile, warps of a program, and stages of the software pipeline."""

    queries: int
    keys: int
    warps: int
    stages: int


def tiling(kernel: str, width: int, kind: int) -> Tiling:
    """The tiling of `"forward"`, `"queries"` or `"keys"` (backward) for a head width and a kind of term.

    Differences of coordinates and tiles of a bias take registers, so those kinds have smaller tiles.
    """
    if kind in (_PARABOLAS, _DISTANCES, MATRIX) or width == 128:
        return Tiling(64, 64, 4, 2)
    return _TILINGS[kernel]


# The fastest of those tried on an H200 at 64 x 64 tokens, see zoo/kernels/README.md.
_TILINGS = {
    "forward": Tiling(128, 64, 4, 3),
    "queries": Tiling(64, 32, 4, 3),
    "keys": Tiling(64, 64, 4, 2),
}


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
        terms: Position term or `None`. Gradients flow to `Columns.queries` and `Parabolas.coefficients`.
        scale: Softmax scale.
        mask: Bool (B, N), True for visible keys.
        causal: Query i sees keys 0..i of its sample.
        cu_seqlens: Offsets (S + 1,) of packed samples, B = 1.

    Returns:
        (B, H, N, D) like q.
    """
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    queries = keys = known = heads = None
    kind, inexact, order, border = _PLAIN, 0, 2, 0.0
    match terms:
        case Columns():
            kind, queries, keys = _COLUMNS, terms.queries.contiguous(), terms.keys.contiguous()
            inexact = terms.inexact
        case Parabolas():
            kind, queries, keys, known = _PARABOLAS, terms.coefficients.contiguous(), terms.values, terms.positioned
        case Distances():
            kind, keys, known, order, border = _DISTANCES, terms.values, terms.positioned, terms.order, terms.border
            heads = terms.slopes.reshape(-1, 1)
            if terms.fields is not None:
                heads = torch.cat([heads, terms.fields.flatten(1)], dim=1)
            heads = heads.contiguous()
    tensors = (
        q, k, v, queries,
        None if keys is None else keys.contiguous(),
        None if known is None else known.contiguous(),
        heads,
        None if mask is None else mask.contiguous(),
        None if cu_seqlens is None else cu_seqlens.to(torch.int32),
    )  # fmt: skip
    settings = (scale, kind, inexact, order, border, causal)
    if ordinary(*tensors):
        return _eager(*tensors, *settings)[0]
    if inlines(q):
        from zoo.kernels.operators import attention as operator
    else:
        operator = _operator
    return operator(*tensors, *settings)[0]


def rows_first(like: Tensor) -> Tensor:
    """Empty (B, H, N, D) with the memory order (B, N, H, D), in which heads are joined without a copy."""
    b, h, n, d = like.shape
    return like.new_empty(b, n, h, d).transpose(1, 2)


_Settings = tuple[float, int, int, int, float, bool]
_Operands = tuple[Tensor | None, ...]
_Layouts = tuple[Layout | None, ...]


def _plan(kernel: str, device: int, operands: _Layouts, others: tuple[Layout, ...], settings: _Settings) -> Plan:
    """The launch of `"forward"`, `"queries"` or `"keys"`, over the tiles of its queries, or of its keys for the last.

    Args:
        kernel: Which.
        device: Index of the CUDA device.
        operands: q, k, v, and the tensors of the term, the mask and the samples.
        others: Those of further tensors whose strides the kernel takes: output, or gradients of output and of input.
        settings: All else.
    """
    from zoo.kernels import triton_attention, triton_attention_backward

    scale, kind, inexact, order, border, causal = settings
    q, k, v = (x for x in operands[:3] if x is not None)
    queries, keys, known, heads, mask, cu_seqlens = (None if x is None else x[0] for x in operands[3:])
    batch, count, tokens, width = q[0]
    columns = kind == _COLUMNS
    axes = keys[-1] if keys is not None and not columns else 1
    shape = tiling(kernel, width, kind)
    values: dict[str, Any] = {"H": count, "N": tokens, "scale": scale}
    values |= {"KW": keys[-1] if keys is not None and columns else 16, "mask_batch": tokens}
    values |= {"key_batch": 0 if keys is None or keys[0] == 1 else tokens}
    values |= {"D": width, "W": _pieces(keys, kind), "KIND": kind, "AXES": axes, "ORDER": order}
    values |= {"FIELDS": heads is not None and heads[1] > 1, "BORDER": border}
    values |= {"HAS_KNOWN": known is not None, "HAS_MASK": mask is not None, "CAUSAL": causal}
    values |= {"PACKED": cu_seqlens is not None, "BM": shape.queries, "BN": shape.keys}
    values |= strides_of("qkvo" if kernel == "forward" else "qkvgd", q, k, v, *others)
    if kernel != "keys":
        values |= {"n_columns": queries[-1] if columns and queries is not None else 1, "inexact": inexact}
    functions = {
        "forward": triton_attention.forward,
        "queries": triton_attention_backward.backward_queries,
        "keys": triton_attention_backward.backward_keys,
    }
    block = shape.keys if kernel == "keys" else shape.queries
    tiles = -(-tokens // block) if cu_seqlens is None else tokens // block + cu_seqlens[0] - 1
    options = {"num_warps": shape.warps, "num_stages": shape.stages}
    return Plan(functions[kernel], (tiles, batch * count, 1), values, options, device)


_forward_plan = functools.lru_cache(maxsize=PLANS)(functools.partial(_plan, "forward"))


@functools.lru_cache(maxsize=PLANS)
def _backward_plans(
    device: int, operands: _Layouts, out: Layout, grad: Layout, gradients: tuple[Layout, Layout], settings: _Settings
) -> tuple[Plan, Plan, Plan]:
    """The launches over rows, tiles of queries and tiles of keys."""
    from zoo.kernels.triton_attention import row_sums

    batch, heads, tokens, width = out[0]
    values = {"H": heads, "N": tokens, "D": width, "BM": 128, **strides_of("og", out, grad)}
    sums = Plan(row_sums, (-(-tokens // 128), batch * heads, 1), values, {}, device)
    dq, dk = gradients
    queries = _plan("queries", device, operands, (grad, dq), settings)
    return sums, queries, _plan("keys", device, operands, (grad, dk), settings)


def _pieces(keys: torch.Size | None, kind: int) -> int:
    """Columns of 16-bit pieces, padded to a power of two."""
    return 16 if keys is None or kind != _COLUMNS else max(16, 1 << (int(keys[-1]) - 1).bit_length())


def _pointers(kernel: str, operands: _Operands, kind: int) -> list[Tensor]:
    """Tensors of the term and the mask, and the tiles of packed samples; something else for those that are not."""
    q, _, _, queries, keys, known, heads, mask, cu_seqlens = operands
    assert q is not None
    terms = (queries, keys, None) if kind == _COLUMNS else (queries, None, keys)
    tiles = (None, None) if cu_seqlens is None else (cu_seqlens, _tiles(kernel, q, kind, cu_seqlens))
    return [q if x is None else x for x in (*terms, known, heads, mask, *tiles)]


def _tiles(kernel: str, q: Tensor, kind: int, cu: Tensor) -> Tensor:
    """For packed samples: (sample, tile within it) of every program; computed without a wait."""
    shape = tiling(kernel, q.shape[-1], kind)
    block = shape.keys if kernel == "keys" else shape.queries
    samples = cu.shape[0] - 1
    tiles = (cu.diff() + block - 1) // block
    ends = tiles.cumsum(0)
    index = torch.arange(q.shape[2] // block + samples, device=cu.device)
    sample = torch.searchsorted(ends, index, right=True).clamp(max=max(samples - 1, 0))
    within = index - (ends - tiles)[sample]  # Past the last tile this lies beyond the sample: nothing to do.
    return torch.stack([sample, within], dim=1).to(torch.int32)


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: Tensor | None,
    keys: Tensor | None,
    known: Tensor | None,
    heads: Tensor | None,
    mask: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    kind: int,
    inexact: int,
    order: int,
    border: float,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    """Output, and the logarithm (base 2) of the sum of exponentials of every row."""
    out, lse = _fake_forward(q)
    if q.numel():
        operands = (q, k, v, queries, keys, known, heads, mask, cu_seqlens)
        settings = (scale, kind, inexact, order, border, causal)
        key = (q.get_device(), tuple(map(layout, operands)), (layout(out),), settings)
        planned(_forward_plan, q, *key)(q, k, v, out, lse, *_pointers("forward", operands, kind))
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
    keys: Tensor | None,
    known: Tensor | None,
    heads: Tensor | None,
    mask: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    kind: int,
    inexact: int,
    order: int,
    border: float,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and of the queries' side of the term."""
    dq, dk, dv, dterms = _fake_backward(grad, q, k, v, out, lse, queries)
    if not q.numel():
        return dq, dk, dv, dterms
    operands = (q, k, v, queries, keys, known, heads, mask, cu_seqlens)
    settings = (scale, kind, inexact, order, border, causal)
    gradients = (layout(dq), layout(dk))
    key = (q.get_device(), tuple(map(layout, operands)), layout(out), layout(grad), gradients, settings)
    for_rows, for_queries, for_keys = planned(_backward_plans, q, *key)
    sums = torch.empty_like(lse)
    for_rows(out, grad, sums)
    pieces = q.new_empty((*q.shape[:3], for_queries.values["W"]) if kind == _COLUMNS else (0,))
    common = (q, k, v, grad, lse, sums)
    for_queries(*common, dq, dterms, pieces, *_pointers("queries", operands, kind))
    for_keys(*common, dk, dv, pieces, *_pointers("keys", operands, kind))
    return dq, dk, dv, dterms


def _fake_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, queries: Tensor | None, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dterms = q.new_empty(0, dtype=torch.float32) if queries is None else torch.empty_like(queries)
    return rows_first(q), rows_first(k), rows_first(v), dterms


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:3], *output, *inputs[3:9])
    ctx.settings = inputs[9:]


def _gradients(backward: Callable[..., tuple[Tensor, ...]], ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    if grad.stride(-1) != 1:
        grad = grad.contiguous()
    queries = ctx.saved_tensors[5]
    dq, dk, dv, dterms = backward(grad, *ctx.saved_tensors, *ctx.settings)
    return dq, dk, dv, None if queries is None else dterms, *[None] * 11


OPERATION = Operation(_forward, _backward, _fake_forward, _fake_backward, _save, _gradients, outputs=1)
_eager = eager(OPERATION)
_operator = register(OPERATION, torch.library.custom_op, "zoo::attention")
