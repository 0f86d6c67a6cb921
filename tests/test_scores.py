"""Score encodings against float64 references: metrics, tables, networks, masks, blocks of rows, gradients."""

import itertools
import math

import pytest
import torch
from reference import attention_rows, position_term, total_variation
from score_reference import REFERENCES

from zoo import ConfigError, coordinates, kernels
from zoo.attention import CoordinateAttention
from zoo.coordinates import Coordinates
from zoo.encodings import alibi, cpb
from zoo.encodings.quadratic import QuadraticScore
from zoo.kernels import dispatch
from zoo.transformer import Encoder

DIM = 24
# Case -> (name, options). Small extents, so that offsets run off the tables.
CASES = {
    "alibi": ("alibi", {}),
    "alibi manhattan": ("alibi", {"metric": "manhattan"}),
    "alibi index": ("alibi", {"metric": "index"}),
    "kerple": ("kerple", {}),
    "lookhere 180": ("lookhere", {"view": 180}),
    "lookhere 90": ("lookhere", {"view": 90}),
    "lookhere 45": ("lookhere", {"view": 45}),
    "table": ("table", {"extent": 2}),
    "cpb": ("cpb", {"extent": 4.0, "hidden": 16}),
}
LEARNED = ["kerple", "table", "cpb"]
COORDS = {1: coordinates.text(9), 2: coordinates.grid(3, 5), 3: coordinates.clip(2, 3, 4)}
SHAPES = [(case, axes) for case in CASES for axes in COORDS if axes == 2 or "lookhere" not in case]


def block(case, axes=2, heads=4, **more):
    """A block whose learned parameters are far from their start."""
    torch.manual_seed(0)
    name, options = CASES[case]
    attention = CoordinateAttention(DIM, heads, axes, name, **options, **more)
    with torch.no_grad():
        for parameter in attention.encoding.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return attention


def features(tokens, dtype=torch.float64, batch=2):
    torch.manual_seed(1)
    return torch.randn(batch, tokens, DIM, dtype=dtype)


def scattered(axes, batch=2, tokens=9):
    torch.manual_seed(2)
    return Coordinates(3 * torch.randn(batch, tokens, axes, dtype=torch.float64))


def term(attention, case, x, coords):
    return position_term(attention, CASES[case][0], x, coords)


@pytest.mark.parametrize("where", ["grid", "prefix", "placed prefix", "scattered"])
@pytest.mark.parametrize(("case", "axes"), SHAPES)
def test_bias_equals_its_definition(case, axes, where):
    coords = scattered(axes) if where == "scattered" else COORDS[axes].to(dtype=torch.float64)
    if where == "prefix":
        coords = coords.with_prefix(2)
    if where == "placed prefix":
        coords = coords.with_prefix(1, at=(-0.5,) * axes)
    attention = block(case, axes).double()
    x = features(coords.values.shape[1])
    expected = term(attention, case, x, coords)
    torch.testing.assert_close(attention.position_bias(x, coords), expected, atol=1e-9, rtol=0)
    assert expected.isfinite().logical_or(expected == -math.inf).all() and expected.std(dim=(2, 3)).ne(0).all()


@pytest.mark.parametrize(("case", "axes"), SHAPES)
def test_float32_bias_is_close_to_float64(case, axes):
    coords = COORDS[axes].with_prefix(1)
    attention, x = block(case, axes), features(coords.values.shape[1], torch.float32)
    bias = attention.position_bias(x, coords)
    assert bias.dtype == torch.float32
    torch.testing.assert_close(bias.double(), term(attention, case, x, coords), atol=5e-5, rtol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_bfloat16_rows_stay_within_a_bound(case):
    """Features in bfloat16, on 16 x 16: the bias of the same parameters is float32, so rows stay close to exact."""
    attention = block(case).to(torch.bfloat16)
    coords = coordinates.grid(16, 16).with_prefix(1)
    x = features(257, torch.bfloat16, batch=1)
    _, weights = attention(x, coords, return_attention=True)
    exact = attention_rows(attention, CASES[case][0], x, coords)
    assert total_variation(weights, exact).max() < 1e-4
    assert attention.position_bias(x, coords).dtype == torch.float32


@pytest.mark.parametrize(("case", "axes"), SHAPES)
def test_translation_changes_nothing(case, axes):
    attention = block(case, axes).double()
    for coords in (scattered(axes), COORDS[axes].to(dtype=torch.float64).with_prefix(1)):
        x = features(coords.values.shape[1])
        moved = attention(x, coords.shifted([64.0, -32.0, 8.0][:axes]))
        torch.testing.assert_close(moved, attention(x, coords), atol=1e-9, rtol=0)


@pytest.mark.parametrize(("case", "invariant"), [
    ("alibi", True), ("kerple", True), ("alibi manhattan", False), ("table", False), ("cpb", False),
])  # fmt: skip
@pytest.mark.parametrize("axes", [2, 3])
def test_rotation_invariance_where_claimed_and_not_elsewhere(case, invariant, axes):
    attention, coords = block(case, axes).double(), scattered(axes)
    turn, _ = torch.linalg.qr(torch.randn(axes, axes, dtype=torch.float64))
    x = features(9)
    difference = (attention(x, Coordinates(coords.values @ turn)) - attention(x, coords)).abs().max()
    assert difference < 1e-11 if invariant else difference > 1e-3


@pytest.mark.parametrize("case", CASES)
def test_tokens_without_position_have_bias_zero_in_row_and_column(case):
    coords = coordinates.grid(3, 4).with_prefix(2)
    attention = block(case)
    bias = attention.position_bias(features(14, torch.float32), coords)
    assert not bias[:, :, :2].any() and not bias[:, :, :, :2].any()
    assert bias[:, :, 2:, 2:].ne(0).any()


@pytest.mark.parametrize("backend", kernels.BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_padding_and_packing_equal_samples_alone(case, backend):
    attention = block(case).double()
    coords, x = scattered(2, batch=3, tokens=7), features(7, batch=3)
    lengths = (0, 2, 7)
    mask = torch.arange(7) < torch.tensor(lengths).unsqueeze(1)
    hidden = Coordinates(coords.values.masked_fill(~mask.unsqueeze(-1), math.nan))
    packed_x = torch.cat([x[i, :n] for i, n in enumerate(lengths)])
    packed = Coordinates(
        torch.cat([coords.values[i, :n] for i, n in enumerate(lengths)]), cu_seqlens=torch.tensor([0, 0, 2, 9])
    )
    with kernels.use(backend):
        padded = attention(x.masked_fill(~mask.unsqueeze(-1), math.nan), hidden, mask)
        together = attention(packed_x, packed)
        alone = [
            attention(x[i : i + 1, :n], Coordinates(coords.values[i : i + 1, :n]))[0] for i, n in enumerate(lengths)
        ]
    assert not padded[~mask].any()
    torch.testing.assert_close(padded[mask], torch.cat(alone), atol=1e-12, rtol=0)
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-12, rtol=0)


@pytest.mark.parametrize("placed", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_blocks_of_rows_change_neither_output_nor_gradients(case, placed, monkeypatch):
    coords = COORDS[2].to(dtype=torch.float64).with_prefix(1) if placed else scattered(2, tokens=16)
    attention = block(case).double()
    x = features(16).requires_grad_()
    whole = attention.position_bias(x, coords)
    parts = [attention.position_bias(x, coords, slice(a, a + 5)) for a in (0, 5, 10, 15)]
    torch.testing.assert_close(torch.cat(parts, dim=2), whole, atol=1e-12, rtol=0)
    results = []
    for rows in (16, 3):
        monkeypatch.setattr(dispatch, "_BLOCK_ELEMENTS", 2 * 4 * 16 * rows)
        monkeypatch.setattr(cpb, "_BLOCK_ELEMENTS", 2 * 16 * 16 * rows // 2)
        out = attention(x, coords)
        results.append((out, *torch.autograd.grad(out.square().sum(), [x, *attention.encoding.parameters()])))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-9)


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("case", LEARNED)
@pytest.mark.parametrize("where", ["grid", "scattered"])
def test_gradients_of_the_parameters(case, axes, where):
    """Against central differences of the dense definition, along a random direction."""
    coords = scattered(axes) if where == "scattered" else COORDS[axes].to(dtype=torch.float64).with_prefix(1)
    attention = block(case, axes).double()
    x = features(coords.values.shape[1])
    cotangent = torch.randn_like(term(attention, case, x, coords))
    (attention.position_bias(x, coords) * cotangent).sum().backward()
    for parameter in attention.encoding.parameters():
        direction = torch.randn_like(parameter)
        along = (parameter.grad * direction).sum()
        values = []
        with torch.no_grad():
            for step in (1e-6, -2e-6):
                parameter.add_(direction, alpha=step)
                values.append((term(attention, case, x, coords) * cotangent).sum())
            parameter.add_(direction, alpha=1e-6)
        assert along.abs() > 1e-3
        torch.testing.assert_close(along, (values[0] - values[1]) / 2e-6, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", LEARNED)
def test_training_moves_the_encoding(case):
    name, options = CASES[case]
    torch.manual_seed(0)
    encoder = Encoder(DIM, 2, 4, 2, mlp_dim=32, encoding=name, encoding_options=options)
    own = {key for key, _ in encoder.named_parameters() if "attn.encoding." in key}
    assert own and encoder.no_weight_decay() == own and not list(encoder.buffers())
    encoder(
        torch.randn(2, 10, DIM), COORDS[2].with_prefix(1).__class__(torch.randn(1, 10, 2))
    ).square().sum().backward()
    assert all(p.grad.abs().sum() > 0 for key, p in encoder.named_parameters() if key in own)


def test_alibi_counts_only_tokens_with_a_position():
    attention = block("alibi index", 3)
    known = torch.tensor([[False, True, True, False, True]])
    coords = Coordinates(torch.randn(1, 5, 3), positioned=known)
    bias = attention.position_bias(features(5, torch.float32, batch=1), coords)[0, 0]
    expected = (
        -torch.tensor([[0, 0, 0, 0, 0], [0, 0, 1, 0, 2], [0, 1, 0, 0, 1], [0, 0, 0, 0, 0], [0, 2, 1, 0, 0.0]]) / 4
    )
    assert torch.equal(bias, expected)


def test_alibi_metrics_on_one_pair():
    coords = Coordinates(torch.tensor([[[0.0, 0.0], [9.0, 9.0], [3.0, -4.0]]]))
    biases = [
        block(case).position_bias(features(3, torch.float32, batch=1), coords)[0, 0, 0, 2].item()
        for case in ("alibi", "alibi manhattan", "alibi index")
    ]
    assert biases == [-5 / 4, -7 / 4, -2 / 4]


def test_kerple_starts_in_the_published_range_and_decays():
    torch.manual_seed(0)
    attention = CoordinateAttention(8 * 64, 64, 1, "kerple")
    r1, r2 = attention.encoding.log_r1.exp(), attention.encoding.log_r2.exp()
    assert min(r1.min(), r2.min()) > 0.0099 and 1.5 < r1.max() <= 2 and 0.8 < r2.max() <= 1
    bias = attention.position_bias(torch.zeros(1, 9, 512), coordinates.text(9))
    assert (bias[0, :, 0].diff(dim=-1) < 0).all() and not bias[0, :, 0, 0].any()


def test_table_indexes_whole_offsets_exactly_and_clamps_to_its_edge():
    attention = CoordinateAttention(DIM, 2, 2, "table", extent=[2, 1])
    assert attention.encoding.table.shape == (2, 5, 3) and not attention.encoding.table.any()
    with torch.no_grad():
        attention.encoding.table.copy_(torch.arange(30.0).reshape(2, 5, 3).sin())
    values = attention.encoding.table
    coords = coordinates.grid(4, 6)  # Tokens run along the columns, axis 0.
    assert coords.integral
    bias = attention.position_bias(features(24, torch.float32, batch=1), coords)[0]
    for i, j in ((0, 0), (7, 0), (0, 7), (8, 13), (23, 0), (5, 18)):
        column, row = i % 6 - j % 6, i // 6 - j // 6
        entry = values[:, max(-2, min(2, column)) + 2, max(-1, min(1, row)) + 1]
        assert torch.equal(bias[:, i, j], entry)
    halfway = Coordinates(torch.tensor([[[0.0, 0.0], [0.5, 0.25]]]))
    between = attention.position_bias(features(2, torch.float32, batch=1), halfway)[0, :, 1, 0]
    corners = 0.75 * (values[:, 2, 1] + values[:, 3, 1]) / 2 + 0.25 * (values[:, 2, 2] + values[:, 3, 2]) / 2
    torch.testing.assert_close(between, corners)


def test_cpb_on_a_grid_and_on_points_is_one_function():
    attention = block("cpb", 2).double()
    coords = coordinates.grid(3, 5, dtype=torch.float64)
    assert attention.frame(features(15), coords).steps == (4, 2)
    points = Coordinates(coords.values)
    assert attention.frame(features(15), points).steps is None
    x = features(15)
    torch.testing.assert_close(
        attention.position_bias(x, coords), attention.position_bias(x, points), atol=1e-12, rtol=0
    )
    far = coords.with_prefix(1, at=(-100.0, 90.0))  # Few tokens, many offsets: the network runs on the pairs.
    assert far.integral and attention.frame(features(16), far).steps is None


def test_cpb_starts_near_zero_and_stays_within_eight():
    torch.manual_seed(0)
    attention = CoordinateAttention(DIM, 4, 2, "cpb")
    coords, x = coordinates.grid(14, 14).with_prefix(1), features(197, torch.float32, batch=1)
    assert 0 < attention.position_bias(x, coords).abs().max() < 0.1
    with torch.no_grad():
        attention.encoding.fc2.weight.normal_(std=1e6)
    assert 7.9 < attention.position_bias(x, coords).abs().max() <= 8


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("alibi", {"metric": "cosine"}, "'euclidean', 'manhattan', 'index', got 'cosine'"),
        ("alibi", {"metric": ["index"]}, "must be one of"),
        ("lookhere", {"view": 60}, "180, 90, 45"),
        ("lookhere", {"view": "90"}, "must be one of"),
        ("lookhere", {"view": True}, "must be one of"),
        ("lookhere", {"round_bias": "float16"}, "'none', 'bfloat16'"),
        ("lookhere", {"global_slope": -1.0}, "'global_slope'"),
        ("lookhere", {"layer_slopes": 1.5}, "two numbers"),
        ("lookhere", {"layer_slopes": [1.0, math.nan]}, "'layer_slopes'"),
        ("table", {"extent": 0}, "'extent'"),
        ("table", {"extent": [3, 3, 3]}, "each of 2 axes"),
        ("table", {"extent": 2.5}, "whole number"),
        ("table", {"extent": 1024}, "bound is 1048576"),
        ("cpb", {"extent": 0.0}, "'extent'"),
        ("cpb", {"extent": [1.0, "2"]}, "'extent'"),
        ("cpb", {"hidden": 1.5}, "'hidden'"),
        ("kerple", {"metric": "manhattan"}, "no option"),
    ],
)
def test_bad_options_are_explained(name, options, message):
    with pytest.raises(ConfigError, match=message):
        CoordinateAttention(DIM, 4, 2, name, **options)


def test_every_score_encoding_has_a_reference():
    assert set(REFERENCES) == {name for name, _ in CASES.values()}


@pytest.mark.parametrize("case", CASES)
def test_blocks_compile_whole(case):
    attention = block(case)
    coords, x = coordinates.grid(3, 4).with_prefix(1), features(13, torch.float32)
    torch.compiler.reset()
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, coords), attention(x, coords), atol=1e-5, rtol=0)


@pytest.mark.parametrize("where", ["grid", "prefix", "scattered"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, options) for case, (name, options) in CASES.items() if case not in ("table", "cpb")),
        ("lookhere", {"round_bias": "bfloat16"}),
    ],
)
def test_the_score_inside_a_kernel_is_the_score(name, options, where):
    coords = {"grid": COORDS[2], "prefix": COORDS[2].with_prefix(1), "scattered": scattered(2)}[where].to(
        dtype=torch.float32
    )
    tokens = coords.values.shape[1]
    attention = CoordinateAttention(DIM, 4, 2, name, **options)
    x = features(tokens, torch.float32)
    score = attention.encoding.score(x, attention.frame(x, coords), attention.scale)
    bias = score.bias(slice(0, tokens)).expand(2, 4, tokens, tokens)
    index = torch.meshgrid(*(torch.arange(n) for n in bias.shape), indexing="ij")
    inside = score.modification()(torch.ones(()), *index)
    torch.testing.assert_close(inside - 1, bias, atol=1e-5 if "round_bias" not in options else 0.01, rtol=1e-5)


@pytest.mark.parametrize(("name", "dtype"), [("pape", torch.bfloat16), ("alibi", torch.float32)])
def test_packed_samples_cost_their_own_pairs(name, dtype, monkeypatch):
    torch.manual_seed(0)
    attention, lengths = CoordinateAttention(32, 2, 3, name).to(dtype), [5, 0, 33, 1, 18]
    values, x = (torch.rand(57, 3) * 9).round(), torch.randn(57, 32, dtype=dtype)
    kind, made = (QuadraticScore if name == "pape" else alibi._LinearScore), []
    original = kind.bias
    monkeypatch.setattr(kind, "bias", lambda self, rows: made.append(original(self, rows)) or made[-1])
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    out = attention(x, Coordinates(values, cu_seqlens=offsets))
    assert sorted(bias.shape[-1] for bias in made) == [1, 5, 18, 33]
    for start, stop in itertools.pairwise(offsets.tolist()):
        if stop > start:
            alone = attention(x[None, start:stop], Coordinates(values[None, start:stop]))[0]
            torch.testing.assert_close(
                out[start:stop], alone, atol=2e-2 if dtype == torch.bfloat16 else 1e-5, rtol=1e-2
            )
