"""Dense float64 references of the encodings, written from their definitions and independent of the folds."""

from __future__ import annotations

import math
from typing import Any

import score_reference
import torch
import torch.nn.functional as F
from rotary_reference import ROTATIONS
from torch import Tensor

from zoo.attention import CoordinateAttention
from zoo.coordinates import Coordinates


def qkv(attention: CoordinateAttention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v (B, H, N, D) in the dtype of the module."""
    q, k, v = attention.qkv(x).unflatten(-1, (3, attention.num_heads, attention.head_dim)).permute(2, 0, 3, 1, 4)
    return q, k, v


# Ablations of PaPE and what they lack.
PAPE_WITHOUT = {
    "pape-linear": "quadratic",
    "pape-quadratic": "linear",
    "pape-signed": "softplus",
    "pape-static": "content",
    "pape-unprojected": "projection",
}


def pape_parts(encoding: Any, without: str, x: Tensor, heads: int, axes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Directions (H, m, p), and coefficients a and b (B, N, H, m) of every query, in float64."""
    position = torch.eye(axes, dtype=torch.float64).expand(heads, -1, -1)
    if without != "projection":
        position = encoding.position.double()
    shape = (*x.shape[:2], *position.shape[:2])
    if without == "content":
        a, b = encoding.raw_a.double().expand(shape), encoding.static_b.double().expand(shape)
    else:
        zero = torch.zeros(shape, dtype=torch.float64)
        a = zero if without == "quadratic" else (x @ encoding.a.weight.double().T).view(shape)
        b = zero if without == "linear" else (x @ encoding.b.weight.double().T).view(shape)
    if without not in ("softplus", "quadratic"):
        a = F.softplus(a)
    return position, a, b


def position_term(attention: CoordinateAttention, name: str, x: Tensor, coords: Coordinates) -> Tensor:
    """Scaled position logits (B, H, N, N) in float64 from the definition, pair by pair."""
    x, r = x.double(), coords.values.double()
    heads, scale = attention.num_heads, attention.head_dim**-0.5
    encoding = attention.encoding
    difference = r.unsqueeze(2) - r.unsqueeze(1)  # (B or 1, N, N, p)
    if name == "pape" or name in PAPE_WITHOUT:
        position, a, b = pape_parts(encoding, PAPE_WITHOUT.get(name, ""), x, heads, r.shape[-1])
        projected = torch.einsum("bijp,hmp->bhijm", difference, position)
        quadratic = torch.einsum("bihm,bhijm->bhij", a, projected.square().expand(x.shape[0], -1, -1, -1, -1))
        linear = torch.einsum("bihm,bhijm->bhij", b, projected.expand(x.shape[0], -1, -1, -1, -1))
        bias = scale * (linear - quadratic)
    elif name == "pape-ri":
        alpha = F.softplus(x @ encoding.a.weight.double().T).transpose(1, 2)  # (B, H, N)
        w = encoding.log_scale.double().exp().view(1, -1, 1, 1)
        bias = -scale * alpha.unsqueeze(-1) * w**2 * difference.square().sum(-1).unsqueeze(1)
    elif name in score_reference.REFERENCES:
        bias = score_reference.REFERENCES[name](encoding, difference, heads)
    else:
        bias = torch.zeros(1, heads, x.shape[1], x.shape[1], dtype=torch.float64)
    if coords.positioned is not None:
        known = coords.positioned.unsqueeze(2) & coords.positioned.unsqueeze(1)
        bias = bias.masked_fill(~known.unsqueeze(1), 0.0)
    return bias.expand(x.shape[0], heads, -1, -1)


def sincos(coords: Coordinates, dim: int, base: float) -> Tensor:
    """n-D sincos table (B or 1, N, C) in float64."""
    r = coords.values.double()
    axes = r.shape[-1]
    part = dim // axes // 2 * 2
    widths = [part] * (axes - 1) + [dim - part * (axes - 1)]
    rows = []
    for token in r.reshape(-1, axes).tolist():
        row = []
        for value, width in zip(token, widths, strict=True):
            angles = [value * base ** (-2 * k / width) for k in range(width // 2)]
            row += [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
        rows.append(row)
    table = torch.tensor(rows, dtype=torch.float64).view(*r.shape[:-1], dim)
    return table if coords.positioned is None else table * coords.positioned.unsqueeze(-1)


def attention_rows(
    attention: CoordinateAttention, name: str, x: Tensor, coords: Coordinates, mask: Tensor | None = None
) -> Tensor:
    """The attention matrix (B, H, N, N) in float64; q and k as the module makes them, rounding included."""
    with torch.no_grad():
        if name == "sincos":
            x = x + sincos(coords, x.shape[-1], attention.token_encoding.base).to(x.dtype)
        if name == "learned":
            x = x + table_rows(attention.token_encoding.table, coords).to(x.dtype)
        q, k, _ = qkv(attention, x)
        if name in ROTATIONS:
            q, k = (ROTATIONS[name](attention.encoding, t, coords) for t in (q, k))
        logits = attention.head_dim**-0.5 * (q.double() @ k.double().mT)
        if name == "pope":
            logits = pope_logits(attention, x, coords)
        logits = logits + position_term(attention, name, x, coords)
        if mask is not None:
            logits = logits.masked_fill(~mask[:, None, None, :], float("-inf"))
        return logits.softmax(dim=-1)


def total_variation(a: Tensor, b: Tensor) -> Tensor:
    """Total-variation distance of rows (last axis)."""
    return 0.5 * (a.double() - b.double()).abs().sum(dim=-1)


def pope_logits(attention: CoordinateAttention, x: Tensor, coords: Coordinates) -> Tensor:
    """Scaled logits of PoPE in float64 from the definition, channel by channel."""
    q, k, _ = (t.double() for t in qkv(attention, x))
    encoding, r = attention.encoding, coords.values.double()
    known = torch.ones(r.shape[:2], dtype=torch.bool) if coords.positioned is None else coords.positioned
    logits = torch.zeros(q.shape[0], q.shape[1], q.shape[2], q.shape[2], dtype=torch.float64)
    for c in range(q.shape[-1]):
        if c >= encoding.rotary:
            logits += q[..., c].unsqueeze(-1) * k[..., c].unsqueeze(-2)
            continue
        axis, step = divmod(c, encoding.per_axis)
        phase = r[..., axis] * known * encoding.base ** (-step / encoding.per_axis)
        angle = phase.unsqueeze(-2) - phase.unsqueeze(-1)  # [i, j] = of key j minus of query i
        angle = angle.unsqueeze(1) + encoding.delta.double()[:, c].view(1, -1, 1, 1)
        logits += F.softplus(q[..., c]).unsqueeze(-1) * F.softplus(k[..., c]).unsqueeze(-2) * angle.cos()
    return attention.scale * logits


def table_rows(table: Tensor, coords: Coordinates) -> Tensor:
    """Rows of a learned table (C, *grid) of the size of the grid at hand, token by token."""
    low = [low for low, _ in coords.bounds]
    rows = []
    for token, known in zip(coords.values[0].tolist(), _known(coords)[0].tolist(), strict=True):
        cell = tuple(round(value - first) for value, first in zip(token, low, strict=True))
        rows.append(table[(slice(None), *cell)].double() if known else torch.zeros(len(table), dtype=torch.float64))
    return torch.stack(rows).unsqueeze(0)


def _known(coords: Coordinates) -> Tensor:
    return torch.ones(coords.values.shape[:2], dtype=torch.bool) if coords.positioned is None else coords.positioned
