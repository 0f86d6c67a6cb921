"""Position terms of the score encodings in float64, from their definitions; `difference` is (B, N, N, p), r_i - r_j."""

from __future__ import annotations

import torch
from torch import Tensor


def alibi_slopes(heads):
    """2^(-8k / H) for powers of two; else those of the power below, then every second one of the power above."""
    power = next(2**n for n in range(10, -1, -1) if 2**n <= heads)
    own = [2 ** (-8 * k / power) for k in range(1, power + 1)]
    return own if power == heads else own + alibi_slopes(2 * power)[::2][: heads - power]


def alibi(encoding, difference, heads):
    steps = alibi_slopes(heads)
    if encoding.metric == "index":  # Every token counts, which only those in front may do without a position.
        order = torch.arange(difference.shape[1], dtype=torch.float64)
        distance = (order[:, None] - order).abs().unsqueeze(0)
    elif encoding.metric == "manhattan":
        distance = difference.abs().sum(-1)
    else:
        distance = difference.square().sum(-1).sqrt()
    return -torch.tensor(steps, dtype=torch.float64).view(1, -1, 1, 1) * distance.unsqueeze(1)


def kerple(encoding, difference, heads):
    distance = difference.square().sum(-1).sqrt()
    r1, r2 = encoding.log_r1.double().exp(), encoding.log_r2.double().exp()
    return torch.stack([-r1[h] * (1 + r2[h] * distance).log() for h in range(heads)], dim=1)


def fields(view: int, x: Tensor, y: Tensor) -> list[Tensor]:
    """What the twelve heads see, where x and y are the column and row of the key minus those of the query."""
    up, down, left, right = y <= 0, y >= 0, x <= 0, x >= 0
    wedge_up, wedge_down = y <= -x.abs(), y >= x.abs()
    wedge_left, wedge_right = x <= -y.abs(), x >= y.abs()
    directed = {
        180: [
            *(up, down, left, right),
            *(wedge_up | wedge_right, wedge_up | wedge_left, wedge_down | wedge_right, wedge_down | wedge_left),
        ],
        90: [up & left, up & right, down & left, down & right, wedge_up, wedge_down, wedge_left, wedge_right],
        45: [
            *(wedge_up & left, wedge_down & left, wedge_left & up, wedge_right & up),
            *(wedge_up & right, wedge_down & right, wedge_left & down, wedge_right & down),
        ],
    }[view]
    return [*directed, *[torch.ones_like(up)] * 4]


def lookhere(encoding, difference, heads, layer=0, depth=1, first=1.5, last=0.5, g=2.0):
    seen = fields(encoding.view, -difference[..., 0], -difference[..., 1])
    slopes = [0.5] * 8 + [0.25, 0.0625, 0.015625, 0.00390625]
    along = first if depth == 1 else first * (1 - layer / (depth - 1)) + last * layer / (depth - 1)
    distance = difference.square().sum(-1).sqrt()
    entries = [(layer * heads + h) % 12 for h in range(heads)]
    maps = [torch.where(seen[e], -g * along * slopes[e] * distance, torch.tensor(-torch.inf).double()) for e in entries]
    return torch.stack(maps, dim=1)


def table(encoding, difference, heads):
    """Every entry weighs in by a tent of width 1 around it along each axis."""
    values = encoding.table.double()
    pairs = difference.reshape(-1, difference.shape[-1])
    for axis in reversed(range(pairs.shape[1])):
        extent = (encoding.table.shape[1 + axis] - 1) // 2
        ticks = torch.arange(-extent, extent + 1).double()
        place = pairs[:, axis].clamp(-extent, extent)
        tents = (1 - (place.unsqueeze(1) - ticks).abs()).clamp_min(0)  # (pairs, ticks)
        if axis == pairs.shape[1] - 1:
            values = torch.einsum("h...k,nk->h...n", values, tents)
        else:
            values = torch.einsum("h...kn,nk->h...n", values, tents)
    return values.reshape(heads, *difference.shape[:3]).transpose(0, 1)


def cpb(encoding, difference, heads):
    first, bias, second = encoding.fc1.weight.double(), encoding.fc1.bias.double(), encoding.fc2.weight.double()
    reach = torch.tensor(encoding.extents, dtype=torch.float64)
    logs = difference.sign() * (1 + 8 * difference.abs() / reach).log2() / 3
    hidden = (torch.einsum("bijp,mp->bijm", logs, first) + bias).clamp_min(0)
    return 16 / (1 + (-torch.einsum("bijm,hm->bhij", hidden, second)).exp()) - 8


REFERENCES = {"alibi": alibi, "cpb": cpb, "kerple": kerple, "lookhere": lookhere, "table": table}
