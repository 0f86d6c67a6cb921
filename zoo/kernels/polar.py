"""Attention over magnitudes at angles (PoPE), which our Triton kernels make of q and k; forward and backward.

Legend: B batch, H heads, N tokens, D head width, S packed samples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from zoo.encodings.terms import Polar
from zoo.kernels import plans
from zoo.kernels.fused import check_scale, rows_first
from zoo.kernels.launch import (
    Layout,
    Operation,
    Plan,
    eager,
    inlines,
    kept,
    layout,
    ordinary,
    planned,
    register,
    strides_of,
)

__all__ = ["polar_attention"]

# Keys turned by a program.
TURNED = 32

# q, k, v, cosines and sines, mask and offsets of samples; then how many channels are turned, scale and causal.
Layouts = tuple[Layout | None, ...]
Settings = tuple[int, float, bool]


def polar_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    terms: Polar,
    *,
    scale: float,
    mask: Tensor | None = None,
    causal: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Attention with the logits of `Polar`; arguments as `zoo.kernels.attend` has them.

    Args:
        q: (B, H, N, D) float16 or bfloat16.
        k: (B, H, N, D).
        v: (B, H, N, D).
        terms: Angles and phases; gradients flow to `Polar.delta`.
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
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    turns, delta, mask = (None if x is None else x.contiguous() for x in (terms.turns, terms.delta, mask))
    cu_seqlens = None if cu_seqlens is None else cu_seqlens.to(torch.int32)
    tensors = (q, k, v, turns, delta, mask, cu_seqlens)
    settings = (terms.rotary, scale * terms.gain**2, causal)
    if ordinary(*tensors):
        return _eager(*tensors, *settings)[0]
    if inlines(*tensors, bounded=True):
        from zoo.kernels.operators import polar_attention as operator
    else:
        operator = _operator
    return operator(*tensors, *settings)[0]


def _forward(
    q: Tensor, k: Tensor, v: Tensor, turns: Tensor, delta: Tensor, mask: Tensor | None, cu_seqlens: Tensor | None,
    rotary: int, scale: float, causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Output, the logarithm (base 2) of the sum of exponentials of every row, and cosines and sines of the phases."""
    out, lse, _ = _fake_forward(q, k, v, turns, delta)
    phases = torch.cat([delta.cos(), delta.sin()], dim=1)
    if q.numel():
        operands = tuple(map(layout, (q, k, v, turns, mask, cu_seqlens)))
        key = (q.get_device(), operands, layout(out), (rotary, scale, causal))
        turn, attend = planned(_forward_plans, q, *key)
        keys = _wide(k)
        turn(k, keys, turns)
        attend(q, keys, v, out, lse, turns, phases, *_pointers("forward", q, mask, cu_seqlens))
    return out, lse, phases


def _fake_forward(
    q: Tensor, k: Tensor, v: Tensor, turns: Tensor, delta: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    return rows_first(q), lse, delta.new_empty(delta.shape[0], 2 * delta.shape[1])


def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, phases: Tensor, turns: Tensor,
    delta: Tensor, mask: Tensor | None, cu_seqlens: Tensor | None, rotary: int, scale: float, causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v and the phases."""
    dq, dk, dv, ddelta = _fake_backward(grad, q, k, v, out, lse, phases, turns, delta)
    if not q.numel():
        return dq, dk, dv, ddelta.zero_()
    operands = tuple(map(layout, (q, k, v, turns, mask, cu_seqlens)))
    key = (q.get_device(), operands, layout(out), layout(grad), (layout(dq), layout(dk)), (rotary, scale, causal))
    turn, for_rows, for_queries, for_keys = planned(_backward_plans, q, *key)
    keys, queries, stats = _wide(k), _wide(q), lse.new_empty(*lse.shape, 2)
    parts = delta.new_empty(for_keys.grid[0], q.shape[0], *delta.shape)
    turn(k, keys, turns)
    for_rows(out, grad, lse, stats)
    for_queries(q, keys, v, grad, stats, dq, queries, turns, phases, *_pointers("queries", q, mask, cu_seqlens))
    for_keys(k, keys, v, grad, stats, dk, dv, parts, queries, turns, *_pointers("keys", q, mask, cu_seqlens))
    return dq, dk, dv, parts.sum(dim=(0, 1))


def _fake_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, phases: Tensor, turns: Tensor,
    delta: Tensor, *_: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return rows_first(q), rows_first(k), rows_first(v), torch.empty_like(delta)


def _wide(x: Tensor) -> Tensor:
    """Empty (B, H, N, 2D) for products with cosines and sines."""
    return x.new_empty(*x.shape[:3], 2 * x.shape[3])


def _pointers(kernel: str, q: Tensor, mask: Tensor | None, cu_seqlens: Tensor | None) -> list[Tensor]:
    """Mask, offsets and tiles of packed samples; q for those that are not there."""
    tiles = None if cu_seqlens is None else plans.packed_tiles(kernel, q, plans.POLAR, cu_seqlens)
    return [q if x is None else x for x in (mask, cu_seqlens, tiles)]


@kept
def _forward_plans(device: int, operands: Layouts, out: Layout, settings: Settings) -> tuple[Plan, Plan]:
    """The launches that turn keys, and over tiles of queries."""
    return _turn_plan(device, operands, settings), _plan("forward", device, operands, {"o": out}, settings)


@kept
def _backward_plans(
    device: int, operands: Layouts, out: Layout, grad: Layout, gradients: tuple[Layout, Layout], settings: Settings
) -> tuple[Plan, Plan, Plan, Plan]:
    """The launches that turn keys, over rows, over tiles of queries and over tiles of keys."""
    queries, keys = (
        _plan(kernel, device, operands, {"g": grad, "d": result}, settings)
        for kernel, result in zip(("queries", "keys"), gradients, strict=True)
    )
    return _turn_plan(device, operands, settings), plans.stats_plan(device, out, grad), queries, keys


def _turn_plan(device: int, operands: Layouts, settings: Settings) -> Plan:
    from zoo.kernels.triton_polar import turn_keys

    k, turns = operands[1], operands[3]
    assert k is not None and turns is not None
    batch, heads, tokens, width = k[0]
    arguments = {"H": heads, "N": tokens, "ROTARY": settings[0], "key_batch": _per_sample(turns)}
    arguments |= {"D": width, "BN": TURNED, **strides_of("k", k)}
    return Plan(turn_keys, (-(-tokens // TURNED), batch * heads, 1), arguments, {}, device)


def _per_sample(turns: Layout) -> int:
    """Rows of cosines and sines from one sample to the next."""
    return 0 if turns[0][0] == 1 else turns[0][1]


def _plan(kernel: str, device: int, operands: Layouts, others: dict[str, Layout], settings: Settings) -> Plan:
    """The launch of `"forward"`, `"queries"` or `"keys"`, over tiles of queries, or of keys for the last.

    Args:
        kernel: Which.
        device: Index of the CUDA device.
        operands: Layouts of all operands.
        others: By letter, those of further tensors whose strides the kernel takes.
        settings: All else.
    """
    from zoo.kernels import triton_polar

    functions: dict[str, Callable[..., None]] = {
        "forward": triton_polar.polar_forward,
        "queries": triton_polar.polar_queries,
        "keys": triton_polar.polar_keys,
    }
    q, k, v, turns = (x for x in operands[:4] if x is not None)
    mask, cu_seqlens = operands[4:]
    batch, heads, tokens, width = q[0]
    shape = plans.tiling(kernel, width, plans.POLAR)
    rotary, scale, causal = settings
    arguments: dict[str, Any] = {"H": heads, "N": tokens, "ROTARY": rotary, "scale": scale, "mask_batch": tokens}
    arguments |= {"key_batch": _per_sample(turns), "D": width, "HAS_MASK": mask is not None, "CAUSAL": causal}
    arguments |= {"PACKED": cu_seqlens is not None, "BM": shape.queries, "BN": shape.keys}
    own = {"k": k} if kernel == "keys" else {"q": q}
    arguments |= strides_of("".join(own | others) + "v", *(own | others).values(), v)
    block = shape.keys if kernel == "keys" else shape.queries
    tiles = -(-tokens // block) if cu_seqlens is None else tokens // block + cu_seqlens[0][0] - 1
    return Plan(functions[kernel], (tiles, batch * heads, 1), arguments, shape.options, device)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:3], *output, *inputs[3:7])
    ctx.settings = inputs[7:]


def _gradients(backward: Callable[..., tuple[Tensor, ...]], ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    if grad.stride(-1) != 1:
        grad = grad.contiguous()
    dq, dk, dv, ddelta = backward(grad, *ctx.saved_tensors, *ctx.settings)
    return dq, dk, dv, None, ddelta, *[None] * 5


OPERATION = Operation(_forward, _backward, _fake_forward, _fake_backward, _save, _gradients, outputs=1)
_eager = eager(OPERATION)
_operator = register(OPERATION, torch.library.custom_op, "zoo::polar_attention")
