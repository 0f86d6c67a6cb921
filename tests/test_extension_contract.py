"""What context extension promises of every encoding."""

import copy
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from extension_toys import APPLIES, DIM, HEADS, LADDERS, NAMES, WIDTH, block, extension, features, grid, rows, same
from reference import qkv
from rotary_reference import PLANE

from zoo import ConfigError, coordinates
from zoo.coordinates import Coordinates
from zoo.encodings.extendable import extend, extended
from zoo.encodings.extension import METHODS, NTK, DynamicNTK, PositionInterpolation, YaRN, sample_extents
from zoo.encodings.facts import EXTENSIONS
from zoo.transformer import Encoder


@pytest.mark.parametrize("name", NAMES)
def test_registry_says_what_applies(name):
    attention = block(name)
    parts = [part for part in (attention.encoding, attention.token_encoding) if part is not None]
    assert ", ".join(method for part in parts for method in part.extension_methods) == EXTENSIONS.get(name, "")
    for method in METHODS:
        if method in EXTENSIONS.get(name, "").split(", "):
            extend(attention, extension(method, 2))
        else:
            with pytest.raises(ConfigError, match=f"'{method}' does not apply to encoding .*possible: "):
                extend(attention, extension(method, 2))


@pytest.mark.parametrize(("name", "method"), APPLIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_factor_of_one_changes_nothing(name, method, dtype):
    coords = coordinates.grid(5, 7).with_prefix(1)
    attention = block(name).to(dtype)
    x = features(coords, dtype)
    before = attention(x, coords)
    extend(attention, extension(method, 1, (7.0, 5.0)))
    assert torch.equal(attention(x, coords), before)


@pytest.mark.parametrize(("name", "method"), APPLIES)
def test_a_larger_factor_changes_something_and_can_be_taken_away(name, method):
    coords = grid()
    attention = block(name).double()
    x = features(coords)
    before = rows(attention, coords, x)
    with extended(attention, extension(method, (2.0, 1.5))):
        after = rows(attention, coords, x)
    assert (after - before).abs().max() > 1e-6
    assert torch.equal(rows(attention, coords, x), before)
    assert not [key for key in attention.state_dict() if "exten" in key]


def multipliers(method, base, pairs):
    """What the frequencies of one axis are multiplied with."""
    return method.frequencies(torch.ones(1, pairs, dtype=torch.float64), [base], coordinates.text(3))[0]


@pytest.mark.parametrize("factor", [2.0, 7.3])
def test_ntk_keeps_the_highest_and_interpolates_the_lowest_frequency(factor):
    theta = multipliers(NTK(factor), 100.0, 16)
    assert theta[0] == 1
    assert theta[-1].item() == pytest.approx(1 / factor, rel=1e-14)
    assert (theta.diff() < 0).all()


def test_dynamic_ntk_follows_the_extent_of_each_sample():
    last = torch.tensor([3.0, 9.0, 14.0, 19.0], dtype=torch.float64).view(4, 1, 1)
    coords = Coordinates(torch.cat([0 * last, last], dim=1))
    theta = DynamicNTK(2.0, 10.0).frequencies(torch.ones(1, 8, dtype=torch.float64), [100.0], coords)
    assert theta.shape == (4, 1, 1, 8)
    assert (theta[:2] == 1).all()
    for sample, factor in ((2, 2.0), (3, 3.0)):  # f L'/L - (f - 1)
        same(theta[sample, 0, 0], multipliers(NTK(factor), 100.0, 8))


@pytest.mark.parametrize("name", [*LADDERS])
def test_dynamic_ntk_packed_equals_apart(name):
    attention = block(name).double()
    extend(attention, DynamicNTK(1.5, [3.0, 2.0]))
    parts = [grid(2, 2), grid(4, 6), grid(3, 2)]
    x = [features(part, batch=1) for part in parts]
    alone = [attention(one, part)[0] for one, part in zip(x, parts, strict=True)]
    offsets = torch.tensor([0, 4, 28, 34])
    packed = Coordinates(torch.cat([part.values[0] for part in parts]), cu_seqlens=offsets)
    same(attention(torch.cat(x, dim=1)[0], packed), torch.cat(alone))


def test_extent_of_a_sample_leaves_out_tokens_without_position():
    values = torch.tensor([[[2.0, 9.0], [5.0, 3.0], [100.0, 50.0]], [[0.0, 0.0]] * 3])
    coords = Coordinates(values, positioned=torch.tensor([[True, True, False], [False] * 3]))
    assert sample_extents(coords, torch.float32).tolist() == [[[4.0, 7.0]], [[1.0, 1.0]]]


@pytest.mark.parametrize(("name", "method"), [*APPLIES, ("rope-normalised", None), ("mrope", None)])
def test_inputs_without_tokens(name, method):
    attention = block(name)
    extend(attention, method and extension(method, 2))
    for batch, shared in ((2, 1), (2, 2), (0, 0), (0, 1)):
        x = torch.zeros(batch, 0 if batch else 4, DIM)
        coords = Coordinates(torch.zeros(shared, x.shape[1], 2))
        assert sample_extents(coords, torch.float64).shape == (1 if batch else shared, 1, 2)
        assert attention(x, coords).shape == x.shape
    for offsets in ([0], [0, 0]):
        coords = Coordinates(torch.zeros(0, 2), cu_seqlens=torch.tensor(offsets))
        assert attention(torch.zeros(0, DIM), coords).shape == (0, DIM)
    coords = Coordinates(torch.tensor([[2.0, 9.0], [5.0, 3.0]]), cu_seqlens=torch.tensor([0, 0, 2, 2]))
    assert sample_extents(coords, torch.float32).tolist() == [[[4.0, 7.0]] * 2]
    assert attention(torch.zeros(2, DIM), coords).isfinite().all()


def test_yarn_ends_and_ramp():
    theta = multipliers(YaRN(4.0, 14.0), 100.0, 16)
    # Over 14 patches theta_0 = 1 turns 2.2 times, so what turns L / 4 times lies above the ladder; pair 2.8 turns once.
    same(theta, torch.tensor([1.0, 0.75, 0.5] + [0.25] * 13, dtype=torch.float64))
    text = multipliers(YaRN(4.0, 4096.0, beta_fast=32.0), 10000.0, 64)
    turns = 4096 * 10000.0 ** (-torch.arange(64, dtype=torch.float64) / 64) / (2 * math.pi)
    assert (text[turns > 36] == 1).all() and (text[turns < 0.9] == 0.25).all()
    assert (text.diff() <= 0).all() and ((text > 0.25) & (text < 1)).sum() == 25  # Dimensions 20 to 46 of the paper.
    for extent in (1.0, 2.0, 5.0):  # Shorter than any wave: what can stay is the first frequency.
        theta = multipliers(YaRN(2.0, extent), 100.0, 6)
        assert theta[0] == 1 and (theta[1:] == 0.5).all()
    assert (multipliers(YaRN(2.0, 14.0, beta_slow=1e-320), 100.0, 6) <= 1).all()  # So few turns that none has fewer.
    assert YaRN(4.0, 14.0).gain(1) == pytest.approx(0.1 * math.log(4) + 1)
    assert YaRN((4.0, 1.0), 14.0).gain(2) == pytest.approx(0.1 * math.log(2) + 1)


@pytest.mark.parametrize(("name", "method"), [(n, m) for n, m in APPLIES if n not in PLANE])
@pytest.mark.parametrize("axes", [1, 3])
def test_any_number_of_axes(name, method, axes):
    coords = {1: coordinates.text(9, dtype=torch.float64), 3: coordinates.clip(2, 3, 4, dtype=torch.float64)}[axes]
    attention = block(name, axes).double()
    before = rows(attention, coords)
    extend(attention, extension(method, [2.0, 1.0, 1.5][:axes], [1.0, 2.0, 3.0][:axes]))
    after = rows(attention, coords)
    assert after.isfinite().all() and (after - before).abs().max() > 1e-7


@pytest.mark.parametrize("name", ["rope", "rope-mixed", "pope", "pape", "kerple", "sincos"])
def test_tokens_without_position_stay_and_the_origin_is_the_centre(name):
    attention = block(name).double()
    one = Coordinates(torch.zeros(1, 3, 2, dtype=torch.float64))
    x = features(one)
    before = rows(attention, one, x)
    extend(attention, PositionInterpolation(3.0))
    same(rows(attention, one, x), before, atol=0)
    hidden = Coordinates(torch.full((1, 3, 2), 5.0).double(), positioned=torch.zeros(1, 3, dtype=torch.bool))
    after = rows(attention, hidden, x)
    extend(attention, None)
    same(rows(attention, hidden, x), after, atol=0)


def test_pape_folds_interpolated_coordinates_in_16_bit():
    factor = 64 / 37  # No power of two: coordinates are not exact in bfloat16 any more.
    coords = coordinates.grid(64, 64)
    attention = block("pape", extend="rescale", factor=factor)
    x = features(coords, torch.float32, batch=1)
    frame = attention.encoding.frame(coords, torch.bfloat16)
    assert frame.kind == "score" or not frame.exact
    small = coordinates.grid(24, 24)
    x = x[:, :576].bfloat16()
    exact = copy.deepcopy(attention).bfloat16().double()
    low = attention.bfloat16()
    frame = low.encoding.frame(small, torch.bfloat16)
    assert frame.kind == "fold" and not frame.exact
    q, k, _ = qkv(low, x)
    logits = (lambda a, b: a.double() @ b.double().mT)(*low.encoding.fold(x, q, k, frame)) * WIDTH**-0.5
    bias = exact.position_bias(x.double(), small.to(dtype=torch.float64))
    expected = (WIDTH**-0.5 * (q.double() @ k.double().mT) + bias).softmax(-1)
    assert 0.5 * (logits.softmax(-1) - expected).abs().sum(-1).mean() < 1e-3


def test_float64_models_divide_in_float64():
    coords = coordinates.grid(5, 7)  # float32
    attention = block("rope", extend="pi", factor=3.0).double()
    values = attention.encoding.frame(coords, torch.float64)
    same(values.cos[0, 0, 1, 0], torch.tensor(1 / 3, dtype=torch.float64).cos(), atol=1e-15)


@pytest.mark.parametrize("method", ["pi", "ntk", "dynamic-ntk", "yarn"])
def test_compiles_as_one_graph_and_follows_changes(method):
    torch.compiler.reset()  # Every case compiles the same code objects anew.
    encoder = Encoder(DIM, 2, HEADS, 2, encoding="rope")
    coords = coordinates.grid(5, 7).with_prefix(1)
    x = features(coords, torch.float32)
    compiled = torch.compile(encoder, fullgraph=True, backend="eager")
    plain = compiled(x, coords)
    encoder.extend(extension(method, (2.0, 1.5)))
    after = compiled(x, coords)
    assert not torch.equal(after, plain)
    same(after, encoder(x, coords), atol=1e-6)
    encoder.extend(None)
    same(compiled(x, coords), plain, atol=1e-6)


@pytest.mark.parametrize("name", ["pape", "lookhere", "spiral-rope", "rope-1d", "table", "string"])
def test_other_encodings_compile_as_one_graph(name):
    torch.compiler.reset()
    attention = block(name)
    method = EXTENSIONS[name].split(", ")[-1]
    extend(attention, extension(method, (2.0, 1.5)))
    coords = coordinates.grid(5, 7).with_prefix(1)
    x = features(coords, torch.float32)
    same(torch.compile(attention, fullgraph=True, backend="eager")(x, coords), attention(x, coords), atol=1e-6)


def test_threads_share_an_extended_encoder():
    encoder = Encoder(DIM, 2, HEADS, 2, encoding="rope").eval()
    encoder.extend(DynamicNTK(2.0, 3.0))
    inputs = [(features(coords, torch.float32), coords) for coords in (coordinates.grid(n, n + 1) for n in range(2, 9))]
    expected = [encoder(*one) for one in inputs]
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(encoder, *one) for one in inputs * 3]
        for job, one in zip(jobs, expected * 3, strict=True):
            same(job.result(), one, atol=1e-6)
    assert torch.equal(copy.deepcopy(encoder)(*inputs[-1]), expected[-1])
