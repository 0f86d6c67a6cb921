"""Context extension against its formulas, written anew in float64."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from extension_toys import NAMES, WIDTH, block, features, grid, rows, same
from reference import qkv
from rotary_reference import turn_pairs

from zoo.coordinates import Coordinates
from zoo.encodings.extendable import extend
from zoo.encodings.extension import PositionInterpolation
from zoo.encodings.facts import EXTENSIONS


def frequencies(method, base, pairs, factor, extent, new_extent):
    """theta_k of one axis, from the text of the papers."""
    d = 2 * pairs
    if method == "ntk":
        base = base * factor ** (d / (d - 2))
    if method == "dynamic-ntk" and new_extent > extent:
        base = base * (factor * new_extent / extent - (factor - 1)) ** (d / (d - 2))
    thetas = [base ** (-2 * k / d) for k in range(pairs)]
    if method == "pi":
        thetas = [theta / factor for theta in thetas]
    if method == "yarn":

        def dimension(beta):
            return d * math.log(extent / (2 * math.pi * beta)) / (2 * math.log(base))

        low = max(math.floor(dimension(extent / 4)), 0)
        high = math.ceil(dimension(1))
        ramp = np.clip((np.arange(pairs) - low) / (high - low), 0, 1)
        thetas = [theta * (1 - r) + theta / factor * r for theta, r in zip(thetas, ramp, strict=True)]
    return thetas


METHOD_CASES = [(method, factor) for method in ("pi", "ntk", "dynamic-ntk", "yarn") for factor in (2.0, (3.0, 1.5))]


@pytest.mark.parametrize(("method", "factor"), METHOD_CASES)
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rope(method, factor, layout):
    coords, extents = grid(24, 31, "no position"), (14.0, 20.0)
    attention = block("rope", base=[100.0, 50.0], layout=layout, extend=method, factor=factor, extent=extents).double()
    x = features(coords, batch=1)
    q, k, _ = qkv(attention, x)
    known = coords.positioned
    columns = []
    factors = factor if isinstance(factor, tuple) else (factor, factor)
    for axis, (base, f, extent, new) in enumerate(zip((100, 50), factors, extents, (31, 24), strict=True)):
        r = coords.values[..., axis].masked_fill(~known, 0.0)
        columns += [r * theta for theta in frequencies(method, base, 6, f, extent, new)]
    q, k = (turn_pairs(t, torch.stack(columns, -1).unsqueeze(1), layout) for t in (q, k))
    logits = q @ k.mT * WIDTH**-0.5
    if method == "yarn":
        logits = logits * (0.1 * math.log(math.sqrt(math.prod(factors))) + 1) ** 2
    same(rows(attention, coords, x), logits.softmax(-1))


@pytest.mark.parametrize(("method", "factor"), METHOD_CASES)
def test_pope(method, factor):
    coords, extents = grid(20, 15), (14.0, 10.0)
    attention = block("pope", extend=method, factor=factor, extent=extents, channels=22).double()
    x = features(coords, batch=1)
    q, k, _ = qkv(attention, x)
    factors = factor if isinstance(factor, tuple) else (factor, factor)
    logits = q[..., 22:] @ k[..., 22:].mT
    for axis, (f, extent, new) in enumerate(zip(factors, extents, (15, 20), strict=True)):
        r = coords.values[0, :, axis]
        for step, theta in enumerate(frequencies(method, 100.0, 11, f, extent, new)):
            c = 11 * axis + step
            angle = (r[None, :] - r[:, None]) * theta + attention.encoding.delta[:, c].view(-1, 1, 1)
            logits = logits + F.softplus(q[..., c]).unsqueeze(-1) * F.softplus(k[..., c]).unsqueeze(-2) * angle.cos()
    if method == "yarn":
        logits = logits * (0.1 * math.log(math.prod(factors)) / 2 + 1) ** 2
    same(rows(attention, coords, x), (logits * WIDTH**-0.5).softmax(-1))


@pytest.mark.parametrize(("method", "factor"), METHOD_CASES)
def test_rope_1d_counts_tokens(method, factor):
    coords = grid(9, 8)
    attention = block("rope-1d", extend=method, factor=factor, extent=(4.0, 6.0)).double()
    x = features(coords, batch=1)
    q, k, _ = qkv(attention, x)
    f = math.prod(factor) if isinstance(factor, tuple) else factor**2
    thetas = torch.tensor(frequencies(method, 10000.0, 12, f, 24.0, 72), dtype=torch.float64)
    q, k = (turn_pairs(t, (torch.arange(72)[:, None] * thetas)[None, None]) for t in (q, k))
    logits = q @ k.mT * WIDTH**-0.5
    if method == "yarn":
        logits = logits * (0.1 * math.log(f) + 1) ** 2
    same(rows(attention, coords, x), logits.softmax(-1))


@pytest.mark.parametrize(("method", "factor"), METHOD_CASES)
@pytest.mark.parametrize("name", ["spiral-rope", "golden-rope"])
def test_directions_change_by_components(name, method, factor):
    coords, extents = grid(20, 15), (14.0, 10.0)
    attention = block(name, extend=method, factor=factor, extent=extents).double()
    x = features(coords, batch=1)
    q, k, _ = qkv(attention, x)
    vectors = torch.tensor(attention.encoding.vectors(), dtype=torch.float64)  # (H or 1, pairs, 2)
    factors = factor if isinstance(factor, tuple) else (factor, factor)
    n = attention.encoding.pairs
    angles = 0
    for axis, (f, extent, new) in enumerate(zip(factors, extents, (15, 20), strict=True)):
        changed = frequencies(method, 100.0, n, f, extent, new)
        ratio = [changed[k % n] / 100.0 ** (-(k % n) / n) for k in range(vectors.shape[1])]
        component = vectors[..., axis] * torch.tensor(ratio, dtype=torch.float64)
        angles = angles + coords.values[..., axis].unsqueeze(1).unsqueeze(-1) * component.unsqueeze(1)
    logits = turn_pairs(q, angles) @ turn_pairs(k, angles).mT * WIDTH**-0.5
    if method == "yarn":
        logits = logits * (0.1 * math.log(math.prod(factors)) / 2 + 1) ** 2
    same(rows(attention, coords, x), logits.softmax(-1))


@pytest.mark.parametrize("method", ["pi", "rescale"])
def test_pape_rescales_its_coefficients(method):
    coords, factors = grid(prefix="at origin"), torch.tensor([3.0, 1.5], dtype=torch.float64)
    attention = block("pape", extend=method, factor=[3.0, 1.5]).double()
    x = features(coords)
    m, t = attention.encoding.coefficients(x, torch.float64, torch.float64)
    full = torch.stack([torch.stack([m[..., 0], m[..., 1]], -1), torch.stack([m[..., 1], m[..., 2]], -1)], -2)
    full, t = full / (factors[:, None] * factors), t / factors
    difference = coords.values[0].unsqueeze(1) - coords.values[0]
    bias = torch.einsum("bhia,ija->bhij", t, difference)
    bias = bias - torch.einsum("bhiac,ija,ijc->bhij", full, difference, difference)
    q, k, _ = qkv(attention, x)
    same(rows(attention, coords, x), (WIDTH**-0.5 * (q @ k.mT + bias)).softmax(-1))
    same(attention.position_bias(x, coords), WIDTH**-0.5 * bias)


@pytest.mark.parametrize("name", ["pape-ri", "alibi", "kerple", "lookhere"])
def test_rescaling_divides_slopes(name):
    coords, f = grid(), 2.5
    attention = block(name, extend="rescale", factor=f).double()
    changed, x = block(name).double(), features(coords)
    expected = changed.position_bias(x, coords)
    if name == "kerple":
        changed.encoding.log_r2.data -= math.log(f)
        expected = changed.position_bias(x, coords)
    else:
        expected = expected / (f**2 if name == "pape-ri" else f)
    same(attention.position_bias(x, coords), expected)


def test_lookhere_keeps_its_fields_of_view_and_alibi_divides_each_axis():
    coords = grid()
    x, factors = features(coords), torch.tensor([3.0, 1.5], dtype=torch.float64)
    distance = ((coords.values[0].unsqueeze(1) - coords.values[0]) / factors).norm(dim=-1)
    plain, directed = block("lookhere").double(), block("lookhere", extend="rescale", factor=[3.0, 1.5]).double()
    bias, hidden = directed.position_bias(x, coords), plain.position_bias(x, coords).isinf()
    assert hidden.any() and torch.equal(bias.isinf(), hidden)
    slopes = directed.encoding.score(x, directed.frame(x, coords), 1.0).slopes.view(-1, 1, 1)
    same(bias[~hidden], (-slopes * distance).expand_as(bias)[~hidden])
    alibi = block("alibi", extend="rescale", factor=[3.0, 1.5]).double()
    same(alibi.position_bias(x, coords)[0, 1], -(2.0**-8) * distance)
    steps = torch.arange(35, dtype=torch.float64)
    index = block("alibi", metric="index", extend="rescale", factor=[3.0, 1.5]).double()
    same(index.position_bias(x, coords)[0, 1], -(2.0**-8) * (steps[:, None] - steps).abs() / 4.5)


@pytest.mark.parametrize("name", [n for n in NAMES if "pi" in EXTENSIONS.get(n, "") and n != "rope-1d"])
def test_interpolation_is_the_encoding_at_divided_coordinates(name):
    coords = grid(prefix="no position")
    attention = block(name).double()
    attention.encoding.extend(None)
    x, factors = features(coords), torch.tensor([2.0, 1.25], dtype=torch.float64)
    divided = Coordinates(coords.values / factors, positioned=coords.positioned)
    if name == "lookhere":  # Fields of view stay: the same factor on both axes.
        divided, factors = Coordinates(coords.values / 2, positioned=coords.positioned), torch.tensor([2.0, 2.0])
    expected = rows(attention, divided, x)
    extend(attention, PositionInterpolation(factors.tolist()))
    same(rows(attention, coords, x), expected)
    assert not torch.allclose(expected, rows(block(name).double(), coords, x), atol=1e-6)
