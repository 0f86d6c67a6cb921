"""Every encoding against its definition in float64, and what its name promises (invariance, parameters, options)."""

import pytest
import torch
from reference import attention_rows, position_term, sincos
from rotary_reference import OPTIONS, PLANE, ROTARY, ROTATIONS, fitting_axes

import zoo
from zoo import ConfigError, coordinates
from zoo.attention import CoordinateAttention
from zoo.coordinates import Coordinates
from zoo.encodings import create
from zoo.encodings.alibi import slopes

NAMES = zoo.encodings()
RELATIVE = [name for name in NAMES if name not in ("sincos", "learned")]
ANYWHERE = [name for name in NAMES if name != "learned"]  # A table is for grids.
COORDS = {
    1: coordinates.text(11),
    2: coordinates.grid(3, 5),
    3: coordinates.clip(2, 3, 4),
}
GRIDS = {1: [11], 2: [5, 3], 3: [2, 3, 4]}  # In the order of the coordinates.


def block(name, axes, dim=24, heads=4, **options):
    torch.manual_seed(0)
    options = OPTIONS.get(name, {}) | options
    if name == "learned":
        options["grid"] = GRIDS[axes]
    return CoordinateAttention(dim, heads, axes, name, **options)


def features(coords, dim=24, batch=2, dtype=torch.float32, seed=1):
    torch.manual_seed(seed)
    return torch.randn(batch, coords.values.shape[1], dim, dtype=dtype)


@pytest.mark.parametrize("prefix", ["none", "without position", "at origin"])
@pytest.mark.parametrize(("name", "axes"), [(n, a) for n in NAMES for a in COORDS if n not in PLANE or a == 2])
def test_attention_equals_the_definition(name, axes, prefix):
    coords = COORDS[axes].to(dtype=torch.float64)
    if prefix != "none":
        coords = coords.with_prefix(1, at=None if prefix == "without position" else (0,) * axes)
    attention = block(name, axes).double()
    x = features(coords, dtype=torch.float64)
    _, weights = attention(x, coords, return_attention=True)
    torch.testing.assert_close(weights, attention_rows(attention, name, x, coords), atol=1e-11, rtol=0)


@pytest.mark.parametrize("name", ANYWHERE)
def test_every_sample_may_have_its_own_coordinates(name):
    torch.manual_seed(3)
    axes = fitting_axes(name, 3)
    coords = Coordinates(torch.randn(2, 9, axes, dtype=torch.float64) * 4)
    attention = block(name, axes).double()
    x = features(coords, dtype=torch.float64)
    _, weights = attention(x, coords, return_attention=True)
    torch.testing.assert_close(weights, attention_rows(attention, name, x, coords), atol=1e-10, rtol=0)
    alone = attention(x[1:], Coordinates(coords.values[1:]))
    torch.testing.assert_close(attention(x, coords)[1:], alone, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", [n for n in RELATIVE if n not in (*ROTARY, "pope")])
def test_translation_does_not_change_relative_encodings_with_a_class_token(name):
    coords = coordinates.grid(4, 6).with_prefix(1)
    attention, x = block(name, 2), features(coords)
    torch.testing.assert_close(attention(x, coords.shifted((1000.0, -77.0))), attention(x, coords), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["rope", "pope"])
def test_rotary_encodings_depend_on_differences_among_positioned_tokens(name):
    for axes, coords in COORDS.items():
        attention, x = block(name, axes).double(), features(coords, dtype=torch.float64)
        moved = coords.to(dtype=torch.float64).shifted(20.0)
        torch.testing.assert_close(attention(x, moved), attention(x, coords), atol=1e-10, rtol=0)


def test_rope_passes_the_remaining_channels_through():
    attention = block("rope", 3, dim=32, heads=2)  # Head width 16: two pairs an axis, four channels left.
    coords = COORDS[3]
    q = torch.randn(1, 2, 24, 16)
    folded, _ = attention.encoding.fold(q, q, q, attention.encoding.frame(coords, q.dtype))
    assert torch.equal(folded[..., 12:], q[..., 12:])
    torch.testing.assert_close(folded.double(), ROTATIONS["rope"](attention.encoding, q, coords), atol=1e-6, rtol=0)
    assert not torch.allclose(folded[..., 1:, :12], q[..., 1:, :12])


@pytest.mark.parametrize("name", ["pape-ri", "alibi", "kerple", "none"])
def test_rotation_invariance_where_promised(name):
    coords = Coordinates(torch.randn(1, 12, 3, dtype=torch.float64))
    turn, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))
    attention, x = block(name, 3).double(), features(coords, dtype=torch.float64)
    turned = Coordinates(coords.values @ turn)
    torch.testing.assert_close(attention(x, turned), attention(x, coords), atol=1e-11, rtol=0)


def test_pape_tells_directions_apart():
    coords = coordinates.grid(4, 4)
    attention, x = block("pape", 2), features(coords)
    mirrored = Coordinates(coords.values * torch.tensor([-1.0, 1.0]))
    assert not torch.allclose(attention(x, mirrored), attention(x, coords), atol=1e-3)


@pytest.mark.parametrize("name", ["pape", "pape-ri", "alibi", "kerple", "lookhere", "table", "cpb"])
def test_position_bias_is_the_position_term(name):
    coords = coordinates.grid(3, 4).with_prefix(1)
    attention, x = block(name, 2), features(coords)
    bias = attention.position_bias(x, coords)
    torch.testing.assert_close(bias.double(), position_term(attention, name, x, coords), atol=2e-5, rtol=0)
    assert block("rope", 2).position_bias(x, coords) is None


def test_sincos_matches_its_table():
    for axes, coords in COORDS.items():
        token, attention = create("sincos", dim=26, num_heads=2, head_dim=13, coord_dim=axes, options={"base": 500.0})
        made = token.encode(coords.to(dtype=torch.float64))
        torch.testing.assert_close(made, sincos(coords, 26, 500.0), atol=1e-12, rtol=0)
        assert not list(attention.parameters())


def test_a_token_and_another_encoding_combine():
    coords = coordinates.grid(3, 3)
    both = block("sincos+pape", 2, sincos={"base": 50.0}, pape={"parabolas": 3})
    assert both.token_encoding.base == 50.0 and both.encoding.parabolas == 3
    x = features(coords)
    shifted = both(x, coords.shifted(3.0))
    assert not torch.allclose(shifted, both(x, coords), atol=1e-4)  # Absolute now.
    with pytest.raises(ConfigError, match="at most one"):
        block("rope+pape", 2)
    with pytest.raises(ConfigError, match="under the name of each part"):
        block("sincos+pape", 2, base=3.0)


def test_alibi_slopes_for_any_number_of_heads():
    assert slopes(8).tolist() == pytest.approx([2.0**-k for k in range(1, 9)])
    twelve = [2.0**-k for k in range(1, 9)] + [0.7071, 0.3536, 0.1768, 0.0884]
    assert slopes(12).tolist() == pytest.approx(twelve, abs=1e-4)
    assert slopes(6).tolist() == pytest.approx([1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8])
    assert slopes(1).tolist() == pytest.approx([1 / 256])


def test_pape_adds_the_parameters_of_the_paper():
    with torch.device("meta"):
        attention = CoordinateAttention(768, 12, 2, "pape")
    added = sum(p.numel() for p in attention.encoding.parameters())
    assert added * 12 == 12 * (2 * 12 * 50 * 768 + 12 * 50 * 2)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("papee", {}, "did you mean 'pape'"),
        ("pape", {"parabola": 3}, "no option 'parabola'"),
        ("pape", {"parabolas": 0}, "whole number"),
        ("pape", {"parabolas": 2.5}, "whole number"),
        ("pape", {"parabolas": True}, "whole number"),
        ("rope", {"base": float("nan")}, "'base'"),
        ("rope", {"base": "1e4"}, "'base'"),
        ("rope", {"base": 10**400}, "'base'"),
        ("alibi", {"base": 2.0}, "no option"),
    ],
)
def test_bad_names_and_options_are_explained(name, options, message):
    with pytest.raises(ConfigError, match=message):
        block(name, 2, **options)


def test_widths_that_cannot_work_are_refused():
    with pytest.raises(ConfigError, match="head width"):
        CoordinateAttention(8, 4, 2, "rope")
    with pytest.raises(ConfigError, match="even width"):
        CoordinateAttention(9, 3, 2, "sincos")
    with pytest.raises(ConfigError, match="multiple of num_heads"):
        CoordinateAttention(10, 4, 2)
