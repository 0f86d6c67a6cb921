"""Attention of a block of query rows under a bias that was made for it, in a Triton kernel; forward only.

Legend: B batch, H heads, M query rows of the block, N keys, D head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from zoo.encodings.terms import Matrix
from zoo.errors import ConfigError
from zoo.kernels import plans
from zoo.kernels.fused import check_scale, rows_first
from zoo.kernels.launch import Layout, Plan, inlines, kept, layout, ordinary, planned, strides_of

__all__ = ["attention_rows", "fake_rows", "rows"]


def attention_rows(
    q: Tensor, k: Tensor, v: Tensor, term: Matrix, *, scale: float, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """Attention softmax(scale q k^T + bias) v of query rows `term.first` and on.

    Args:
        q: (B, H, M, D) float16 or bfloat16.
        k: (B, H, N, D).
        v: (B, H, N, D).
        term: Bias of these rows.
        scale: Softmax scale, above 0.
        mask: Bool (B, N), True for visible keys.
        causal: A query sees the keys up to itself.

    Returns:
        (B, H, M, D) like q.

    Raises:
        ConfigError: If gradients are asked for, which this has not.
        DataError: If the scale is not above 0.
    """
    check_scale(scale)
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, term.bias)):
        raise ConfigError("attention under a given bias has no gradients here: use torch.no_grad() or another kernel")
    q, k, v, bias = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v, term.bias.float()))
    arguments = (q, k, v, bias, None if mask is None else mask.contiguous(), scale, term.first, causal)
    if ordinary(*arguments[:5]):
        return rows(*arguments)
    if inlines(q):  # Without gradients, as was checked.
        from zoo.kernels.operators import attention_rows as operator
    else:
        operator = _operator
    return operator(*arguments)


def rows(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor | None, scale: float, first: int, causal: bool
) -> Tensor:
    """What the operators run, see `attention_rows`."""
    out = rows_first(q)
    if q.numel():
        tensors = (q, k, v, out, bias)
        key = (q.get_device(), tuple(map(layout, tensors)), layout(mask), scale, first, causal)
        planned(_plan, q, *key)(*tensors, q if mask is None else mask)
    return out


def fake_rows(q: Tensor, *_: Any) -> Tensor:
    """An empty tensor like the result of `rows`."""
    return rows_first(q)


_operator = torch.library.custom_op("zoo::attention_rows", rows, mutates_args=())
_operator.register_fake(fake_rows)


@kept
def _plan(
    device: int, operands: tuple[Layout, ...], mask: Layout | None, scale: float, first: int, causal: bool
) -> Plan:
    from zoo.kernels.triton_attention_rows import forward_rows

    (batch, heads, count, width), tokens = operands[0][0], operands[1][0][2]
    shape = plans.tiling("forward", width, plans.MATRIX)
    values: dict[str, Any] = {"H": heads, "M": count, "N": tokens, "first": first, "scale": scale}
    values |= strides_of("qkvoa", *operands)
    values |= {"a" + axis: 0 for axis, size in zip("bh", operands[4][0], strict=False) if size == 1}  # Shared.
    values |= {"D": width, "HAS_MASK": mask is not None, "CAUSAL": causal, "BM": shape.queries, "BN": shape.keys}
    return Plan(forward_rows, (-(-count // shape.queries), batch * heads, 1), values, shape.options, device)
