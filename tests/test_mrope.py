"""M-RoPE: which pair turns by which axis, against the published tables, and what it shares with RoPE on one axis."""

import pytest
import torch
from rotary_reference import known_values, turn_pairs

from zoo import ConfigError, coordinates
from zoo.attention import CoordinateAttention
from zoo.coordinates import Coordinates
from zoo.encodings import create
from zoo.encodings.extension import NTK, PositionInterpolation, YaRN
from zoo.encodings.mrope import ARRANGEMENTS
from zoo.position_ids import MRoPE, Text

HEADS = 2


def encoding(head_dim, axes=3, **options):
    return create("mrope", dim=8, num_heads=HEADS, head_dim=head_dim, coord_dim=axes, options=options)[1]


def cloud(axes, tokens=7):
    torch.manual_seed(axes)
    known = torch.rand(2, tokens) > 0.25
    return Coordinates(torch.randn(2, tokens, axes, dtype=torch.float64) * 4, positioned=known)


def fold(made, coords, width):
    torch.manual_seed(5)
    q = torch.randn(coords.values.shape[0], HEADS, coords.values.shape[1], width, dtype=torch.float64)
    return q, made.fold(q, q, q, made.frame(coords, torch.float64))[0]


def test_chunked_bands_of_qwen2_vl():
    made = encoding(128)
    assert made.sections == [16, 24, 24] and made.base == 1e6
    assert made.pair_axes == [0] * 16 + [1] * 24 + [2] * 24


def test_interleaved_pairs_of_qwen3_vl():
    made = encoding(128, arrangement="interleaved")
    assert made.sections == [24, 20, 20]
    by_rule = [
        1 if j % 3 == 1 and j < 3 * 20 else 2 if j % 3 == 2 and j < 3 * 20 else 0 for j in range(64)
    ]  # As in its code.
    assert made.pair_axes == by_rule and made.pair_axes[:6] == [0, 1, 2, 0, 1, 2] and made.pair_axes[60:] == [0] * 4


def test_videorope_leaves_the_lowest_frequencies_to_time():
    made = encoding(128, arrangement="videorope")
    assert made.pair_axes == [1, 2] * 24 + [0] * 16
    uneven = encoding(12, axes=4, arrangement="videorope", sections=[1, 1, 3, 1])
    assert uneven.pair_axes == [1, 2, 3, 2, 2, 0]


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("axes", [1, 2, 3, 4])
def test_default_sections_fit_every_head(arrangement, axes):
    for pairs in range(axes, 80):
        made = encoding(2 * pairs + pairs % 2, axes=axes, arrangement=arrangement)
        counts = [made.pair_axes.count(axis) for axis in range(axes)]
        assert counts == made.sections and sum(counts) == pairs and min(counts) >= 1
        assert len(set(counts[1:])) <= 1
        if axes != 3:
            assert 0 <= counts[0] - pairs // axes < axes  # Equal shares, what is left to axis 0.


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("axes", [1, 2, 3, 4])
def test_pairs_turn_by_their_axis_on_one_ladder(arrangement, axes):
    made, coords = encoding(21, axes=axes, arrangement=arrangement, base=300.0), cloud(axes)
    q, folded = fold(made, coords, 21)
    r = known_values(coords)
    angles = torch.stack([r[..., axis] * 300.0 ** (-2 * j / 20) for j, axis in enumerate(made.pair_axes)], dim=-1)
    torch.testing.assert_close(folded, turn_pairs(q, angles.unsqueeze(1)), atol=1e-12, rtol=0)
    assert torch.equal(folded[..., 20:], q[..., 20:])


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_text_alone_is_rope_on_one_axis(arrangement):
    coords = MRoPE()([Text(9)], dtype=torch.float64)
    torch.manual_seed(0)
    attention = CoordinateAttention(48, 2, 3, "mrope", arrangement=arrangement, base=1e4).double()
    plain = CoordinateAttention(48, 2, 3, "rope-1d", base=1e4).double()
    plain.load_state_dict(attention.state_dict())
    x = torch.randn(1, 9, 48, dtype=torch.float64)
    torch.testing.assert_close(attention(x, coords), plain(x, coords), atol=1e-13, rtol=0)
    moved = coords.shifted(31.0)  # Text behind a picture.
    torch.testing.assert_close(attention(x, moved), plain(x, coords), atol=1e-12, rtol=0)


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_scores_depend_on_differences_alone(arrangement):
    made, coords = encoding(32, arrangement=arrangement), Coordinates(cloud(3).values)
    scores = [
        folded @ folded.mT for _, folded in (fold(made, c, 32) for c in (coords, coords.shifted((20.0, -3.5, 7.25))))
    ]
    torch.testing.assert_close(*scores, atol=1e-10, rtol=0)
    mirrored = Coordinates(coords.values * torch.tensor([1.0, -1.0, 1.0]))
    assert not torch.allclose(fold(made, mirrored, 32)[1] @ fold(made, mirrored, 32)[1].mT, scores[0], atol=1e-3)


def test_extensions_count_pairs_on_the_whole_ladder():
    made, coords = encoding(32, arrangement="interleaved", base=100.0), Coordinates(cloud(3).values)
    plain = fold(made, coords, 32)[1]
    made.extend(PositionInterpolation([2.0, 4.0, 1.0]))
    shrunk = Coordinates(coords.values / torch.tensor([2.0, 4.0, 1.0]))
    by_factor = fold(made, coords, 32)[1]
    made.extend(None)
    torch.testing.assert_close(by_factor, fold(made, shrunk, 32)[1], atol=1e-12, rtol=0)
    made.extend(NTK([2.0, 4.0, 1.0]))
    r, factors = coords.values, [2.0, 4.0, 1.0]
    angles = [r[..., a] * (100.0 * factors[a] ** (32 / 30)) ** (-2 * j / 32) for j, a in enumerate(made.pair_axes)]
    q, folded = fold(made, coords, 32)
    torch.testing.assert_close(folded, turn_pairs(q, torch.stack(angles, -1).unsqueeze(1)), atol=1e-12, rtol=0)
    made.extend(YaRN(4.0, extent=1000.0))
    assert not torch.allclose(fold(made, coords, 32)[1], plain, atol=1e-3)
    assert made.frame(coords, torch.float64).gain == pytest.approx(1.138629, abs=1e-6)
    made.extend(None)
    assert torch.equal(fold(made, coords, 32)[1], plain)


def test_large_ids_keep_their_differences_in_sixteen_bit():
    """Angles are float32 under bfloat16 and autocast: ids around 5000 give the scores of ids around 0."""
    coords = Coordinates(torch.arange(12.0).view(1, 12, 1).expand(-1, -1, 3))
    made = encoding(64)
    q = torch.randn(1, HEADS, 12, 64).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        near, far = (made.fold(q, q, q, made.frame(c, torch.bfloat16))[0] for c in (coords, coords.shifted(5000.0)))
    assert near.dtype == torch.bfloat16
    a, b = ((t.double() @ t.double().mT) / 8 for t in (near, far))
    assert (a.softmax(-1) - b.softmax(-1)).abs().max() < 0.02
    assert made.frame(coords, torch.bfloat16).cos.dtype == torch.float32


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_it_compiles_whole(arrangement):
    torch.manual_seed(0)
    attention = CoordinateAttention(24, 2, 3, "mrope", arrangement=arrangement)
    coords, x = coordinates.clip(2, 3, 2).with_prefix(1), torch.randn(2, 13, 24)
    torch.compiler.reset()  # Other tests compile the same code objects.
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, coords), attention(x, coords), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arrangement": ["chunked"]}, r"got \['chunked'\]"),
        ({"arrangement": "shuffled"}, "one of 'chunked', 'interleaved', 'videorope', got 'shuffled'"),
        ({"sections": [4, 4]}, "3 whole numbers of pairs with sum 8, got"),
        ({"sections": [4, 4, 1]}, "sum 8"),
        ({"sections": [8, 0, 0]}, "whole numbers"),
        ({"sections": [4.0, 2, 2]}, "whole numbers"),
        ({"sections": "422"}, "whole numbers"),
        ({"sections": [1, 1, 6], "arrangement": "interleaved"}, "cannot interleave"),
        ({"base": 0.5}, "'base' must be a number"),
        ({"layout": "half"}, "no option 'layout'"),
    ],
)
def test_bad_options_are_explained(options, message):
    with pytest.raises(ConfigError, match=message):
        encoding(16, **options)


def test_narrow_heads_are_refused():
    with pytest.raises(ConfigError, match="mrope with 3 axes needs a head width of 6, got 5"):
        encoding(5)
