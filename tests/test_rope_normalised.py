"""RoPE on normalised coordinates against its definition in float64, and its augmentation against its distribution."""

import math

import pytest
import torch
from rotary_reference import rope_normalised

from zoo import ConfigError, coordinates
from zoo.attention import CoordinateAttention
from zoo.coordinates import Coordinates
from zoo.encodings import create
from zoo.kernels import attention_weights

HEADS = 2
GRIDS = {
    1: coordinates.text(7),
    2: coordinates.grid(3, 5),
    3: coordinates.clip(2, 3, 4),
    4: Coordinates(torch.cartesian_prod(*(torch.arange(float(n)) for n in (2, 3, 1, 2))).unsqueeze(0)),
}


def block(axes=2, head_dim=12, **options):
    torch.manual_seed(0)
    return CoordinateAttention(HEADS * head_dim, HEADS, axes, "rope-normalised", **options)


def encoding(axes=2, head_dim=8, **options):
    return create("rope-normalised", dim=8, num_heads=1, head_dim=head_dim, coord_dim=axes, options=options)[1]


def angles(made, coords, dtype=torch.float64):
    """(B, N, p, pairs) angles of a frame; right where they stay within a half turn."""
    frame = made.frame(coords, dtype)
    return torch.atan2(frame.sin, frame.cos)[:, 0].unflatten(-1, (coords.axes, -1))


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("normalise", ["separate", "max", "min"])
@pytest.mark.parametrize("axes", GRIDS)
def test_attention_equals_the_definition(axes, normalise, layout):
    attention = block(axes, 17, normalise=normalise, layout=layout, base=50.0).double()
    coords = GRIDS[axes].to(dtype=torch.float64).shifted(3.0).with_prefix(2)
    x = torch.randn(2, coords.values.shape[1], HEADS * 17, dtype=torch.float64)
    _, rows = attention(x, coords, return_attention=True)
    q, k, _ = attention.qkv(x).unflatten(-1, (3, HEADS, 17)).permute(2, 0, 3, 1, 4)
    q, k = (rope_normalised(attention.encoding, t, coords) for t in (q, k))
    torch.testing.assert_close(rows, attention_weights(q, k, scale=attention.scale), atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    ("normalise", "columns", "rows"),
    [
        ("separate", [-2 / 3, 0, 2 / 3], [-1 / 2, 1 / 2]),
        ("max", [-2 / 3, 0, 2 / 3], [-2 / 3, 0]),
        ("min", [-1 / 2, 1 / 2, 3 / 2], [-1 / 2, 1 / 2]),
    ],
)
def test_coordinates_by_hand(normalise, columns, rows):
    made = encoding(normalise=normalise)
    values = made.normalised(coordinates.grid(2, 3, origin=1.0, dtype=torch.float64), torch.float64)
    expected = torch.tensor([[x, y] for y in rows for x in columns], dtype=torch.float64)
    torch.testing.assert_close(values[0], expected, atol=1e-15, rtol=0)


def test_periods_of_dinov3():
    """d = 64: sixteen periods an axis from 1 to 100^(15/16) half pictures, columns before rows, each pair once."""
    made, coords = encoding(head_dim=64), coordinates.grid(1, 2, dtype=torch.float64)
    found = angles(made, coords)
    assert found.shape == (1, 2, 2, 16)
    periods = torch.tensor([100.0 ** (4 * k / 64) for k in range(16)], dtype=torch.float64)
    turns = found[0, 1, 0] / (2 * math.pi)  # The right one of two columns is at 1/2; the first pair is at half a turn.
    torch.testing.assert_close(turns[1:], (0.5 / periods)[1:], atol=1e-12, rtol=0)
    assert abs(turns[0]) == pytest.approx(0.5)
    assert not found[:, :, 1].any()  # One row is at the centre.


def test_finer_grids_lie_between_the_trained_positions():
    """Cells of a picture at three times the resolution: the middle one of nine is where the coarse one was."""
    made = encoding(head_dim=24)
    coarse, fine = (
        made.frame(coordinates.grid(*size, dtype=torch.float64), torch.float64) for size in ((4, 6), (12, 18))
    )
    for a, b in ((coarse.cos, fine.cos), (coarse.sin, fine.sin)):
        torch.testing.assert_close(b.view(12, 18, -1)[1::3, 1::3], a.view(4, 6, -1), atol=1e-12, rtol=0)
    for size in (2, 14, 200):
        values = made.normalised(coordinates.grid(size, 3), torch.float32)
        assert values.abs().amax() < 1 and values[..., 1].max() == pytest.approx(1 - 1 / size, abs=1e-6)


def test_moving_a_sample_changes_nothing():
    attention, coords = block().double(), coordinates.grid(3, 4, dtype=torch.float64).with_prefix(1)
    x = torch.randn(2, 13, 24, dtype=torch.float64)
    torch.testing.assert_close(attention(x, coords.shifted((500.0, -7.25))), attention(x, coords), atol=1e-12, rtol=0)
    crop = Coordinates(coords.values[:, :7], positioned=coords.positioned[:, :7])  # A picture of its own.
    part = attention.encoding.frame(coords, torch.float64).cos[:, :, :7]
    assert not torch.allclose(attention.encoding.frame(crop, torch.float64).cos, part, atol=1e-3)


def test_every_sample_has_its_own_size():
    attention = block().double()
    grids = [coordinates.grid(*size, dtype=torch.float64) for size in ((2, 3), (4, 2), (1, 1))]
    longest = 8
    values = torch.full((3, longest, 2), float("nan"), dtype=torch.float64)
    mask = torch.zeros(3, longest, dtype=torch.bool)
    x = torch.randn(3, longest, 24, dtype=torch.float64)
    for i, grid in enumerate(grids):
        values[i, : grid.values.shape[1]], mask[i, : grid.values.shape[1]] = grid.values[0], True
    padded = attention(x, Coordinates(values, bounds=((0, 3), (0, 3))), mask)  # Bounds of the batch, not of a sample.
    offsets = torch.tensor([0, 6, 14, 14, 15])  # An empty sample among them.
    packed = attention(x[mask], Coordinates(values[mask], cu_seqlens=offsets))
    torch.testing.assert_close(packed, padded[mask], atol=1e-12, rtol=0)
    for i, grid in enumerate(grids):
        alone = attention(x[i : i + 1, : grid.values.shape[1]], grid)
        torch.testing.assert_close(padded[i : i + 1, : grid.values.shape[1]], alone, atol=1e-12, rtol=0)
    assert encoding().frame(Coordinates(torch.zeros(1, 0, 2)), torch.float32).cos.shape == (1, 1, 0, 4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_models_have_float32_coordinates(dtype):
    """Bfloat16 numbers near 1 are an eighth of a cell apart on grids of this size."""
    made, coords = encoding(head_dim=32).to(dtype), coordinates.grid(60, 60)
    with torch.autocast("cpu", dtype):
        frame = made.frame(coords, dtype)
    exact = made.frame(coords.to(dtype=torch.float64), torch.float64)
    assert frame.cos.dtype == torch.float32
    cell = 2 * math.pi * 2 / 60
    assert (frame.sin - exact.sin).abs().max() < 1e-4 * cell
    values = made.normalised(coords, torch.float32)
    assert (values - values.to(torch.bfloat16).float()).abs().max() > 0.05 * 2 / 60  # What is avoided.


def draws(count, **options):
    """Shift, and factor of each axis, of `count` frames in training, read off a grid of two by two: (count, 2) each."""
    made = encoding(base=1e4, **options)
    coords = coordinates.grid(2, 2, dtype=torch.float64)  # At -1/2 and 1/2; the second pair has period 100.
    found = torch.cat([angles(made, coords)[:, :, :, 1] for _ in range(count)]) * 100 / (2 * math.pi)
    first, second = found[:, 0], found[:, 3]
    factor = second - first
    return (first + second) / 2 / factor, factor


def test_augmentation_is_uniform_within_its_limits():
    torch.manual_seed(0)
    shift, factor = draws(1500, shift=0.4)
    torch.testing.assert_close(factor, torch.ones_like(factor), atol=1e-9, rtol=0)
    assert shift.abs().max() <= 0.4 + 1e-9 and shift.abs().max() > 0.39
    assert shift.mean(0).abs().max() < 0.03 and (shift.var(0) * 3 / 0.16 - 1).abs().max() < 0.1
    assert torch.corrcoef(shift.T)[0, 1].abs() < 0.1  # One draw per axis.
    shift, factor = draws(1500, jitter=3.0)
    log = factor.log() / math.log(3)
    assert not shift.abs().max() > 1e-9 and log.abs().max() <= 1 + 1e-9 and log.abs().max() > 0.99
    assert log.mean(0).abs().max() < 0.07 and (log.var(0) * 3 - 1).abs().max() < 0.1
    assert torch.corrcoef(log.T)[0, 1].abs() < 0.1
    _, factor = draws(1500, rescale=2.0)
    log = factor.log() / math.log(2)
    torch.testing.assert_close(log[:, 0], log[:, 1], atol=1e-9, rtol=0)  # One draw for all axes.
    assert log.abs().max() <= 1 + 1e-9 and log.abs().max() > 0.99 and log.mean().abs() < 0.07


def test_augmentation_shifts_before_it_scales():
    torch.manual_seed(1)
    shift, factor = draws(500, shift=0.3, jitter=2.0, rescale=4.0)
    assert shift.abs().max() <= 0.3 + 1e-9  # Before scaling; after it, it would be divided by up to 8.
    assert factor.log().abs().max() <= math.log(8) + 1e-9 and factor.log().abs().max() > math.log(4)


def test_a_frame_draws_once_for_all_samples_and_layers():
    made = encoding(shift=0.5, jitter=2.0, rescale=2.0)
    coords = Coordinates(coordinates.grid(2, 3).values.expand(3, -1, -1))
    frame = made.frame(coords.with_prefix(1), torch.float32)
    assert torch.equal(frame.cos[0], frame.cos[1]) and torch.equal(frame.cos[0], frame.cos[2])
    assert (frame.cos[:, :, 0] == 1).all() and not frame.sin[:, :, 0].any()  # Not the class token.
    assert not torch.equal(made.frame(coords, torch.float32).cos, made.frame(coords, torch.float32).cos)
    torch.manual_seed(4)
    first = made.frame(coords, torch.float32).cos
    torch.manual_seed(4)
    assert torch.equal(made.frame(coords, torch.float32).cos, first)


def test_eval_mode_draws_nothing():
    coords = coordinates.grid(3, 4)
    plain, made = encoding(), encoding(shift=0.5, jitter=2.0, rescale=2.0)
    expected = plain.frame(coords, torch.float32).cos
    state = torch.get_rng_state()
    assert torch.equal(plain.frame(coords, torch.float32).cos, expected)  # Nor does training without augmentation.
    assert torch.equal(made.eval().frame(coords, torch.float32).cos, expected)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(made.train().frame(coords, torch.float32).cos, expected)
    identity = encoding(shift=0.0, jitter=1.0, rescale=1.0).frame(coords, torch.float32).cos
    torch.testing.assert_close(identity, expected, atol=1e-6, rtol=0)


def test_it_compiles_whole_with_and_without_augmentation():
    attention = block(shift=0.3, jitter=1.5, rescale=2.0)
    coords, x = coordinates.grid(3, 4).with_prefix(1), torch.randn(2, 13, 24)
    torch.compiler.reset()  # Other tests compile the same code objects.
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    assert not torch.equal(compiled(x, coords), compiled(x, coords))
    attention.eval()
    torch.testing.assert_close(compiled(x, coords), attention(x, coords), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"normalise": "area"}, "'separate', 'max' or 'min', got 'area'"),
        ({"normalise": ["max"]}, r"got \['max'\]"),
        ({"base": 1.0}, "'base' must be a number"),
        ({"base": [10.0, 10.0]}, "'base' must be a number"),
        ({"layout": "whole"}, "'half' or 'interleaved'"),
        ({"shift": -0.1}, "'shift' must be a number from 0"),
        ({"jitter": 0.5}, "'jitter' must be a number from 1"),
        ({"rescale": float("nan")}, "'rescale' must be a number from 1"),
        ({"rescale": True}, "'rescale' must be a number"),
        ({"extend": "pi", "factor": 2.0}, "does not apply to encoding 'rope-normalised'"),
    ],
)
def test_bad_options_are_explained(options, message):
    with pytest.raises(ConfigError, match=message):
        encoding(**options)


def test_narrow_heads_are_refused():
    with pytest.raises(ConfigError, match="rope-normalised with 3 axes needs a head width of 6 or more, got 5"):
        encoding(axes=3, head_dim=5)
