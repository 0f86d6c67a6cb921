"""Properties of every encoding on shapes drawn by hypothesis: batches, padding, tokens without position, state."""

import copy
import dataclasses
import itertools
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import (
    ANYWHERE,
    NAMES,
    Layer,
    axes_of,
    lattices,
    layers,
    mapped,
    on_grid,
    own_parameters,
    packed_lengths,
    padding_masks,
    places,
    quick,
    tokens_of,
)

from zoo import DataError, kernels
from zoo.coordinates import Coordinates

backends = st.sampled_from(kernels.BACKENDS)


def close(a, b, tolerance=1e-11):
    torch.testing.assert_close(a, b, atol=tolerance, rtol=0)


@pytest.mark.parametrize("name", ANYWHERE)
@quick
@given(data=st.data())
def test_packed_equals_padded_equals_one_by_one(name, data):
    """For lengths that include 0 and 1, padding that holds NaN, and some tokens without a position."""
    layer = data.draw(layers(name, causal=True))
    lengths = data.draw(packed_lengths)
    tokens = data.draw(tokens_of(name, layer.axes, count=sum(lengths)))
    attention, x = layer.build(), layer.features(tokens, batch=1)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    real = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)

    def padded(held):
        full = held.new_full((*real.shape, *held.shape[2:]), True if held.dtype == torch.bool else math.nan)
        full[real] = held[0]
        return full

    with torch.no_grad(), kernels.use(data.draw(backends)):
        packed = attention(x[0], mapped(tokens, lambda held: held[0], cu_seqlens=offsets))
        together = attention(padded(x), mapped(tokens, padded), real)
        alone = [
            attention(x[:, a:b], mapped(tokens, lambda held, a=a, b=b: held[:, a:b]))[0]
            for a, b in itertools.pairwise(offsets)
        ]
    close(packed, torch.cat(alone))
    close(together[real], torch.cat(alone))
    assert not together[~real].any()


@pytest.mark.parametrize("name", ANYWHERE)
def test_batches_of_nothing_are_legal(name):
    axes = axes_of(name)[0]
    layer = Layer(name, axes, heads=2, head_dim=9, dim=8, causal=False, seed=0)
    attention, nothing = layer.build(), torch.zeros(0, axes, dtype=torch.float64)
    for coords, shape in (
        (Coordinates(nothing, cu_seqlens=torch.tensor([0, 0, 0])), (0, 8)),
        (Coordinates(nothing, cu_seqlens=torch.tensor([0])), (0, 8)),
        (Coordinates(nothing.unsqueeze(0)), (2, 0, 8)),
        (Coordinates(nothing.view(0, 3, axes)), (0, 3, 8)),
    ):
        assert attention(torch.zeros(shape, dtype=torch.float64), coords).shape == shape


@pytest.mark.parametrize("name", [name for name in NAMES if on_grid(name)])
@quick
@given(data=st.data())
def test_tables_of_a_grid_refuse_packed_tokens(name, data):
    """Samples may be of different grids, which one resized table cannot serve."""
    layer = data.draw(layers(name))
    coords = data.draw(lattices(layer.axes))
    packed = mapped(coords, lambda held: held[0], cu_seqlens=torch.tensor([0, coords.values.shape[1]]))
    with pytest.raises(DataError, match="on a grid"):
        layer.build(coords)(layer.features(coords, batch=1)[0], packed)


@pytest.mark.parametrize("name", NAMES)
@quick
@given(data=st.data())
def test_padding_never_leaks(name, data):
    """Hidden tokens, in between or behind, with NaN for features and coordinates: as if they were not there."""
    layer = data.draw(layers(name))
    coords = data.draw(places(name, layer.axes))
    attention, x = layer.build(coords), layer.features(coords, batch=1)
    tokens = x.shape[1]
    extra = data.draw(st.integers(1, 4))
    order = torch.tensor(data.draw(st.permutations(range(tokens + extra)).map(list)))
    real, kept = (order < tokens).unsqueeze(0), order[order < tokens]

    def with_padding(held):
        filler = True if held.dtype == torch.bool else math.nan
        return torch.cat([held, held.new_full((1, extra, *held.shape[2:]), filler)], dim=1)[:, order]

    wide, narrow = mapped(coords, with_padding), mapped(coords, lambda held: held[:, kept])
    with kernels.use(data.draw(backends)):
        out, rows = attention(with_padding(x), wide, real, return_attention=True)
        out.square().sum().backward()
        expected = attention(x[:, kept], narrow)
    close(out[:, real[0]], expected)
    assert not out[~real].any() and not rows[..., ~real[0]].any() and rows.isfinite().all()
    assert all(p.grad.isfinite().all() for p in attention.parameters() if p.grad is not None)


@pytest.mark.parametrize("name", NAMES)
@quick
@given(data=st.data())
def test_one_set_of_coordinates_serves_a_batch(name, data):
    layer = data.draw(layers(name, causal=True))
    coords = data.draw(places(name, layer.axes))
    batch = data.draw(st.integers(2, 4))
    attention, x = layer.build(coords), layer.features(coords, batch)
    mask = data.draw(st.none() | padding_masks(*x.shape[:2]))
    own = mapped(coords, lambda held: held.expand(batch, *held.shape[1:]).contiguous())
    with torch.no_grad(), kernels.use(data.draw(backends)):
        shared = attention(x, coords, mask)
        close(shared, attention(x, own, mask))
        for key in ("values", "positioned", "poses"):  # One may be of each sample and the others shared.
            close(shared, attention(x, dataclasses.replace(coords, **{key: getattr(own, key)}), mask))
        one = attention(x[1:2], coords, None if mask is None else mask[1:2])
    close(shared[1:2], one)


def nan_where(held, hidden):
    return held.masked_fill(hidden.view(*hidden.shape, *[1] * (held.dim() - 2)), math.nan)


# Logits among tokens without a position are not those of plain attention here.
NOT_PLAIN = {"pope": "softplus of the channels, whatever their angle"}


@pytest.mark.parametrize("name", NAMES)
@quick
@given(data=st.data())
def test_tokens_without_position(name, data):
    """Give and get bias 0; where all are so, attention is plain; what their coordinates hold does not matter."""
    layer = data.draw(layers(name))
    coords = data.draw(places(name, layer.axes))
    attention, x = layer.build(coords), layer.features(coords, batch=2)
    known = torch.ones(coords.values.shape[:2], dtype=torch.bool) if coords.positioned is None else coords.positioned
    nowhere = dataclasses.replace(coords, positioned=torch.zeros_like(known))
    anything = mapped(coords, lambda held: held if held.dtype == torch.bool else nan_where(held, ~known))
    plain = dataclasses.replace(layer, name="none").build()
    plain.load_state_dict({k: v for k, v in attention.state_dict().items() if "encoding" not in k})
    with torch.no_grad(), kernels.use(data.draw(backends)):
        out = attention(x, coords)
        assert out.isfinite().all() and attention(x, nowhere).isfinite().all()
        close(attention(x, dataclasses.replace(anything, positioned=known)), out)
        if name not in NOT_PLAIN:
            close(attention(x, nowhere), plain(x, coords))
        bias = attention.position_bias(x, coords)
        if bias is not None:
            both = (known.unsqueeze(2) & known.unsqueeze(1)).unsqueeze(1).expand_as(bias)
            assert not bias[~both].any()


@pytest.mark.parametrize("name", NAMES)
@quick
@given(data=st.data())
def test_every_parameter_gets_the_right_gradient(name, data):
    """Finite and non-zero at the start of training; and, off it, that of central differences."""
    layer = data.draw(layers(name))
    coords = data.draw(places(name, layer.axes, positioned=True, least=5))
    x = layer.features(coords, batch=2)
    for start in (True, False):
        attention = layer.build(coords, start=start)
        own = own_parameters(attention)
        cotangent = torch.randn_like(x)
        (attention(x, coords) * cotangent).sum().backward()
        assert attention.qkv.weight.grad.isfinite().all()
        for key, parameter in own.items():
            assert parameter.grad is not None and parameter.grad.isfinite().all(), key
            assert parameter.grad.abs().max() > 0, key
    step = 1e-6
    for parameter in own.values():
        direction = torch.randn_like(parameter)
        along = (parameter.grad * direction).sum()
        with torch.no_grad():
            parameter.add_(direction, alpha=step)
            after = (attention(x, coords) * cotangent).sum()
            parameter.add_(direction, alpha=-2 * step)
            before = (attention(x, coords) * cotangent).sum()
            parameter.add_(direction, alpha=step)
        torch.testing.assert_close(along, (after - before) / (2 * step), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@quick
@given(data=st.data())
def test_state_holds_parameters_alone_and_loads_at_any_size(name, data):
    layer = data.draw(layers(name))
    small, large = (data.draw(lattices(layer.axes, least=least)) for least in (1, 2))
    attention = layer.build(small)
    before = {key: value.shape for key, value in attention.state_dict().items()}
    with torch.no_grad():
        for coords in (small, large, large.with_prefix(1)):
            attention(layer.features(coords, batch=1), coords)
    state = attention.state_dict()
    assert {key: value.shape for key, value in state.items()} == before
    assert set(before) == {key for key, _ in attention.named_parameters()} and not list(attention.buffers())
    other = dataclasses.replace(layer, seed=layer.seed + 1).build(small)
    x = layer.features(large, batch=1)
    with torch.no_grad():
        other(x, large)  # What it made of its own weights must not stay.
        other.load_state_dict(state)
        assert torch.equal(other(x, large), attention(x, large))
        for parameter in own_parameters(other).values():  # Nor of those loaded.
            parameter.add_(0.5 * torch.randn_like(parameter))
        changed = copy.deepcopy(attention)
        changed.load_state_dict(other.state_dict(), assign=True)
        assert torch.equal(other(x, large), changed(x, large))


@pytest.mark.parametrize("name", NAMES)
@settings(quick, max_examples=2)
@given(data=st.data())
def test_copies_and_threads_have_nothing_in_common(name, data):
    layer = data.draw(layers(name))
    layouts = [data.draw(places(name, layer.axes)) for _ in range(1 if on_grid(name) else 3)] * 2
    attention = layer.build(layouts[0])
    inputs = [(layer.features(coords, batch=1 + i % 2), coords) for i, coords in enumerate(layouts)]

    def run(pair):
        with torch.no_grad():
            return attention(*pair)

    expected = [run(pair) for pair in inputs]
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(run, inputs))
    assert all(torch.equal(a, b) for a, b in zip(made, expected, strict=True))
    other = copy.deepcopy(attention)
    with torch.no_grad():
        assert torch.equal(other(*inputs[0]), expected[0])
        for parameter in other.parameters():
            parameter.mul_(2.0)
    assert torch.equal(run(inputs[0]), expected[0])
