"""Attention over magnitudes that our Triton kernels turn by angles (PoPE), forward and backward.

Legend: B batch, H heads, N tokens, D head width, S packed samples.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from zoo.encodings.terms import Polar
from zoo.kernels import plans
from zoo.kernels.fused import check_scale, rows_first
from zoo.kernels.launch import (
    PLANS,
    Layout,
    Operation,
    Plan,
    eager,
    inlines,
    layout,
    ordinary,
    planned,
    register,
    strides_of,
)

__all__ = ["polar_attention"]

# Whether keys are turned once, into memory that lives as long as the call, instead of in every loop that reads them: at
# 64 channels a tile of keys then takes 24 KiB of L2 and not 32, and goes to tensor cores as it comes. Not measured on a
# GPU yet; see zoo/kernels/README.md.
READY = {"forward": True, "backward": True}

# q, k, v, cosines and sines, mask and offsets of samples; then scale and causal.
Layouts = tuple[Layout | None, ...]
Settings = tuple[float, bool]


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
        q: Magnitudes (B, H, N, D) float16 or bfloat16.
        k: Magnitudes (B, H, N, D).
        v: (B, H, N, D).
        terms: Angles and phases; gradients flow to `Polar.phases`.
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
    turns, phases, mask = (None if x is None else x.contiguous() for x in (terms.turns, terms.phases, mask))
    cu_seqlens = None if cu_seqlens is None else cu_seqlens.to(torch.int32)
    tensors = (q, k, v, turns, phases, mask, cu_seqlens)
    settings = (scale * terms.gain**2, causal)
    if ordinary(*tensors):
        return _eager(*tensors, *settings)[0]
    if inlines(q):
        from zoo.kernels.operators import polar_attention as operator
    else:
        operator = _operator
    return operator(*tensors, *settings)[0]


def _forward(
    q: Tensor, k: Tensor, v: Tensor, turns: Tensor, phases: Tensor, mask: Tensor | None, cu_seqlens: Tensor | None,
    scale: float, causal: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Output, and the logarithm (base 2) of the sum of exponentials of every row."""
    out, lse = _fake_forward(q)
    if q.numel():
        operands = tuple(map(layout, (q, k, v, turns, mask, cu_seqlens)))
        key = (q.get_device(), operands, layout(out), (scale, causal), READY["forward"])
        for_turn, run = planned(_forward_plans, q, *key)
        keys = _turned(k, turns, for_turn)
        run(q, keys, v, out, lse, turns, phases, *_pointers("forward", q, mask, cu_seqlens))
    return out, lse


def _fake_forward(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return rows_first(q), q.new_empty(q.shape[:3], dtype=torch.float32)


def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, turns: Tensor, phases: Tensor,
    mask: Tensor | None, cu_seqlens: Tensor | None, scale: float, causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v and phases."""
    dq, dk, dv, dphases = _fake_backward(grad, q, k, v, out, lse, turns, phases)
    if not q.numel():
        return dq, dk, dv, dphases.zero_()
    operands = tuple(map(layout, (q, k, v, turns, mask, cu_seqlens)))
    gradients = (layout(dq), layout(dk))
    key = (q.get_device(), operands, layout(out), layout(grad), gradients, (scale, causal), READY["backward"])
    for_turn, for_rows, for_queries, for_keys = planned(_backward_plans, q, *key)
    keys = _turned(k, turns, for_turn)
    stats = lse.new_empty(*lse.shape, 2)
    for_rows(out, grad, lse, stats)
    turned, parts = _wide(q), phases.new_empty(for_queries.grid[0], q.shape[0], *phases.shape)
    pointers = _pointers("queries", q, mask, cu_seqlens)
    for_queries(q, keys, v, grad, stats, dq, parts, turned, turns, phases, *pointers)
    for_keys(keys, v, grad, stats, dk, dv, turned, turns, *_pointers("keys", q, mask, cu_seqlens))
    return dq, dk, dv, parts.sum(dim=(0, 1))


def _fake_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, turns: Tensor, phases: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return rows_first(q), rows_first(k), rows_first(v), torch.empty_like(phases)


def _wide(x: Tensor) -> Tensor:
    """Empty (B, H, N, 2D)."""
    return x.new_empty(*x.shape[:3], 2 * x.shape[3])


def _turned(k: Tensor, turns: Tensor, plan: Plan | None) -> Tensor:
    """The keys that kernels read: as they are, or turned by the plan."""
    if plan is None:
        return k
    keys = _wide(k)
    plan(k, keys, turns)
    return keys


def _pointers(kernel: str, q: Tensor, mask: Tensor | None, cu_seqlens: Tensor | None) -> list[Tensor]:
    """Mask, offsets and tiles of packed samples; q for those that are not there."""
    tiles = None if cu_seqlens is None else plans.packed_tiles(kernel, q, plans.POLAR, cu_seqlens)
    return [q if x is None else x for x in (mask, cu_seqlens, tiles)]


@functools.lru_cache(maxsize=PLANS)
def _forward_plans(
    device: int, operands: Layouts, out: Layout, settings: Settings, ready: bool
) -> tuple[Plan | None, Plan]:
    """The launches that turn keys, if they are to be turned before, and over tiles of queries."""
    turn, keys = _turn_plan(device, operands, ready)
    return turn, _plan("forward", device, operands, {"q": operands[0], "k": keys, "o": out}, settings, ready)


@functools.lru_cache(maxsize=PLANS)
def _backward_plans(
    device: int, operands: Layouts, out: Layout, grad: Layout, gradients: tuple[Layout, Layout], settings: Settings,
    ready: bool,
) -> tuple[Plan | None, Plan, Plan, Plan]:  # fmt: skip
    """The launches that turn keys, over rows, over tiles of queries and over tiles of keys."""
    turn, keys = _turn_plan(device, operands, ready)
    dq, dk = gradients
    queries = _plan("queries", device, operands, {"q": operands[0], "k": keys, "g": grad, "d": dq}, settings, ready)
    last = _plan("keys", device, operands, {"k": keys, "g": grad, "d": dk}, settings, ready)
    return turn, plans.stats_plan(device, out, grad), queries, last


def _turn_plan(device: int, operands: Layouts, ready: bool) -> tuple[Plan | None, Layout]:
    """The launch that turns keys, if there is one, and the layout of the keys that attention reads."""
    from zoo.kernels.triton_polar import turn

    k, turns = operands[1], operands[3]
    assert k is not None and turns is not None
    if not ready:
        return None, k
    (batch, heads, tokens, width), _, dtype = k
    arguments = {"H": heads, "N": tokens, "key_batch": _per_sample(turns), "D": width, "BN": 64, **strides_of("k", k)}
    wide = 2 * width
    strides = (heads * tokens * wide, tokens * wide, wide, 1)
    plan = Plan(turn, (-(-tokens // 64), batch * heads, 1), arguments, {}, device)
    return plan, (torch.Size((batch, heads, tokens, wide)), strides, dtype)


def _per_sample(turns: Layout) -> int:
    """Rows of cosines and sines from one sample to the next."""
    return 0 if turns[0][0] == 1 else turns[0][1]


def _plan(
    kernel: str, device: int, operands: Layouts, strided: dict[str, Layout | None], settings: Settings, ready: bool
) -> Plan:
    """The launch of `"forward"`, `"queries"` or `"keys"`, over tiles of queries, or of keys for the last."""
    from zoo.kernels import triton_polar

    functions: dict[str, Callable[..., None]] = {
        "forward": triton_polar.polar_forward,
        "queries": triton_polar.polar_queries,
        "keys": triton_polar.polar_keys,
    }
    q, _, v, turns, mask, cu_seqlens = operands
    assert q is not None and v is not None and turns is not None
    batch, heads, tokens, width = q[0]
    shape = plans.tiling(kernel, width, plans.POLAR)
    scale, causal = settings
    arguments: dict[str, Any] = {"H": heads, "N": tokens, "scale": scale, "mask_batch": tokens}
    arguments |= {"key_batch": _per_sample(turns), "D": width, "READY": ready, "HAS_MASK": mask is not None}
    arguments |= {"CAUSAL": causal, "PACKED": cu_seqlens is not None, "BM": shape.queries, "BN": shape.keys}
    given = {"v": v, **{letter: x for letter, x in strided.items() if x is not None}}
    arguments |= strides_of("".join(given), *given.values())
    block = shape.keys if kernel == "keys" else shape.queries
    tiles = -(-tokens // block) if cu_seqlens is None else tokens // block + cu_seqlens[0][0] - 1
    return Plan(functions[kernel], (tiles, batch * heads, 1), arguments, shape.options, device)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:3], *output, *inputs[3:7])
    ctx.settings = inputs[7:]


def _gradients(backward: Callable[..., tuple[Tensor, ...]], ctx: Any, grad: Tensor, *_: Any) -> tuple[Any, ...]:
    if grad.stride(-1) != 1:
        grad = grad.contiguous()
    dq, dk, dv, dphases = backward(grad, *ctx.saved_tensors, *ctx.settings)
    return dq, dk, dv, None, dphases, *[None] * 4


OPERATION = Operation(_forward, _backward, _fake_forward, _fake_backward, _save, _gradients, outputs=1)
_eager = eager(OPERATION)
_operator = register(OPERATION, torch.library.custom_op, "zoo::polar_attention")
