"""Dense float64 references of the rotary encodings: one token, head and pair at a time, or by eigenvalues."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable

import torch
from torch import Tensor

from zoo.coordinates import Coordinates
from zoo.encodings.base import AttentionEncoding

# What a block of head width 6 or 12 needs where defaults are for wider heads. Odd blocks, so that nothing pairs up.
OPTIONS = {
    "spiral-rope": {"directions": 3},
    "comrope-ld": {"block_size": 3},
    "liere": {"block_size": 3},
}
PLANE = ("spiral-rope", "golden-rope", "lookhere")
# Those whose scores with tokens without a position (angle 0) change under translation.
ROTARY = ("rope", "mrope", "rope-mixed", "spiral-rope", "golden-rope", "string", "comrope-ld", "liere", "gta", "prope")


def fitting_axes(name: str, axes: int) -> int:
    """The number of axes if the encoding takes it, else the 2 of the plane."""
    return 2 if name in PLANE else axes


def known_values(coords: Coordinates) -> Tensor:
    """(B or 1, N, p) float64, zero without a position."""
    r = coords.values.double()
    return r if coords.positioned is None else r.masked_fill(~coords.positioned.unsqueeze(-1), 0.0)


def turn_pairs(q: Tensor, angles: Tensor, layout: str = "half") -> Tensor:
    """Multiplies complex pairs by exp(i angle), angles (B or 1, H or 1, N, pairs)."""
    n = angles.shape[-1]
    out = q.double().clone()
    first, second = (slice(0, n), slice(n, 2 * n)) if layout == "half" else (slice(0, 2 * n, 2), slice(1, 2 * n, 2))
    turned = torch.complex(out[..., first], out[..., second]) * torch.exp(1j * angles)
    out[..., first], out[..., second] = turned.real, turned.imag
    return out


def rope(encoding: AttentionEncoding, q: Tensor, coords: Coordinates) -> Tensor:
    r, axes = known_values(coords), coords.axes
    n = q.shape[-1] // (2 * axes)
    bases = encoding.base if isinstance(encoding.base, (list, tuple)) else [encoding.base] * axes
    columns = [r[..., a] * bases[a] ** (-2 * axes * k / (2 * axes * n)) for a in range(axes) for k in range(n)]
    return turn_pairs(q, torch.stack(columns, -1).unsqueeze(1), getattr(encoding, "layout", "half"))


def prope(encoding: AttentionEncoding, q: Tensor, coords: Coordinates) -> Tensor:
    """Without poses: camera blocks stay as they are, the rest is RoPE."""
    still = 4 * min(q.shape[-1] // 8, (q.shape[-1] - 2 * coords.axes) // 4)
    return torch.cat([q[..., :still].double(), rope(encoding.rope, q[..., still:], coords)], dim=-1)


def rope_1d(encoding: AttentionEncoding, q: Tensor, coords: Coordinates) -> Tensor:
    batch, tokens = coords.values.shape[:2]
    n = q.shape[-1] // 2
    angles = torch.zeros(batch, 1, tokens, n, dtype=torch.float64)
    for b in range(batch):
        index = 0
        for t in range(tokens):
            if coords.positioned is None or coords.positioned[b % len(coords.positioned), t]:
                angles[b, 0, t] = torch.tensor(
                    [index * encoding.base ** (-k / n) for k in range(n)], dtype=torch.float64
                )
                index += 1
    return turn_pairs(q, angles)


def mrope(encoding: AttentionEncoding, q: Tensor, coords: Coordinates) -> Tensor:
    """With contiguous bands."""
    assert encoding.arrangement == "chunked"
    r, n = known_values(coords), q.shape[-1] // 2
    columns = []
    for axis, count in enumerate(encoding.sections):
        for _ in range(count):
            columns.append(r[..., axis] * encoding.base ** (-len(columns) / n))
    assert len(columns) == n
    return turn_pairs(q, torch.stack(columns, -1).unsqueeze(1))


def rope_normalised(encoding: AttentionEncoding, q: Tensor, coords: Coordinates) -> Tensor:
    """Sample by sample; cells are counted from the first one of each axis, which is at 1 / n - 1."""
    _, tokens, axes = coords.values.shape
    known = torch.ones(1, tokens, dtype=torch.bool) if coords.positioned is None else coords.positioned
    batch, n = max(len(coords.values), len(known)), q.shape[-1] // (2 * axes)
    values = coords.values.double().expand(batch, -1, -1)
    angles = torch.zeros(batch, 1, tokens, axes * n, dtype=torch.float64)
    for b in range(batch):
        here = [t for t in range(tokens) if known[b % len(known), t]]
        columns = [[float(values[b, t, a]) for t in here] for a in range(axes)]
        sizes = [max(column) - min(column) + 1 for column in columns if column]
        for t in here:
            for a in range(axes):
                side = {"separate": sizes[a], "max": max(sizes), "min": min(sizes)}[encoding.normalise]
                c = 2 * (float(values[b, t, a]) - min(columns[a]) + 0.5) / side - 1
                for k in range(n):
                    period = encoding.base ** (2 * axes * k / (2 * axes * n))
                    angles[b, 0, t, a * n + k] = 2 * math.pi * c / period
    return turn_pairs(q, angles, encoding.layout)


def rope_mixed(encoding: AttentionEncoding, q: Tensor, coords: Coordinates) -> Tensor:
    u = encoding.frequencies.detach().double()
    return turn_pairs(q, torch.einsum("bna,hak->bhnk", known_values(coords), u))


def along(q: Tensor, coords: Coordinates, vectors: list[list[complex]]) -> Tensor:
    """Angles Re(conj(u) (x + iy)) for complex frequency vectors [head][pair]."""
    r = torch.view_as_complex(known_values(coords).contiguous())
    u = torch.tensor(vectors, dtype=torch.complex128)
    return turn_pairs(q, (r[:, None, :, None] * u[None, :, None, :].conj()).real)


def spiral(encoding: AttentionEncoding, q: Tensor, coords: Coordinates) -> Tensor:
    groups = encoding.directions
    n = q.shape[-1] // (2 * groups)
    steps = [(g, k) for g in range(groups) for k in range(n)]
    return along(q, coords, [[cmath.rect(encoding.base ** (-k / n), math.pi * g / groups) for g, k in steps]])


def golden(encoding: AttentionEncoding, q: Tensor, coords: Coordinates) -> Tensor:
    heads, n, section = q.shape[1], q.shape[-1] // 2, 0.6180339887498949
    vectors = [
        [cmath.rect(encoding.base ** (-k / n), math.pi * (h * n + k) * section) for k in range(n)] for h in range(heads)
    ]
    return along(q, coords, vectors)


def skew_matrix(entries: Tensor, size: int) -> Tensor:
    """A with the entries row by row below the diagonal."""
    a = torch.zeros(size, size, dtype=torch.float64)
    it = iter(entries.detach().double().tolist())
    for i in range(size):
        for j in range(i):
            a[i, j] = next(it)
            a[j, i] = -a[i, j]
    return a


def exponential(a: Tensor) -> Tensor:
    """exp of skew-symmetric matrices (..., n, n) by the eigenvalues of the Hermitian i A."""
    values, vectors = torch.linalg.eigh(1j * a)
    return (vectors @ torch.diag_embed(torch.exp(-1j * values)) @ vectors.mH).real


def string(encoding: AttentionEncoding, q: Tensor, coords: Coordinates) -> Tensor:
    width, identity = q.shape[-1], torch.eye(q.shape[-1], dtype=torch.float64)
    heads = []
    for h in range(q.shape[1]):
        s = skew_matrix(encoding.skew[h], width)
        heads.append((identity - s) @ torch.linalg.inv(identity + s))
    return rope(encoding.rope, q.double() @ torch.stack(heads), coords)


def by_blocks(q: Tensor, coords: Coordinates, size: int, generators: Tensor) -> Tensor:
    """exp(sum_a r_a A_a) on blocks of channels; generators (H, p, blocks, n, n)."""
    r = known_values(coords)
    out = q.double().clone()
    for block in range(q.shape[-1] // size):
        turn = exponential(torch.einsum("bna,haij->bhnij", r, generators[:, :, block]))
        channels = slice(block * size, (block + 1) * size)
        out[..., channels] = torch.einsum(
            "bhnij,bhnj->bhni", turn.expand(q.shape[0], *turn.shape[1:]), out[..., channels]
        )
    return out


def comrope_ld(encoding: AttentionEncoding, q: Tensor, coords: Coordinates) -> Tensor:
    size = encoding.block_size
    shared = torch.stack([torch.stack([skew_matrix(b, size) for b in head]) for head in encoding.generators])
    theta = encoding.theta.detach().double()  # (H, p, blocks)
    return by_blocks(q, coords, size, theta[..., None, None] * shared.unsqueeze(1))


def liere(encoding: AttentionEncoding, q: Tensor, coords: Coordinates) -> Tensor:
    size = encoding.block_size
    each = [
        torch.stack([torch.stack([skew_matrix(b, size) for b in axis]) for axis in head])
        for head in encoding.generators
    ]
    return by_blocks(q, coords, size, torch.stack(each))


# Name -> (encoding, q or k (B, H, N, D), coordinates) -> turned q or k in float64.
ROTATIONS: dict[str, Callable[[AttentionEncoding, Tensor, Coordinates], Tensor]] = {
    "comrope-ld": comrope_ld,
    "golden-rope": golden,
    "gta": lambda encoding, q, coords: rope(encoding.whole, q, coords),  # Without poses.
    "liere": liere,
    "mrope": mrope,
    "prope": prope,
    "rope": rope,
    "rope-1d": rope_1d,
    "rope-mixed": rope_mixed,
    "rope-normalised": rope_normalised,
    "spiral-rope": spiral,
    "string": string,
}
