"""The rotary family against complex multiplication and eigenvalues in float64, and what each of them promises."""

import math

import pytest
import torch
from rotary_reference import OPTIONS, PLANE, ROTARY, ROTATIONS, fitting_axes, skew_matrix, turn_pairs

from zoo import ConfigError, coordinates
from zoo.attention import CoordinateAttention
from zoo.bench.timing import recorded
from zoo.coordinates import Coordinates
from zoo.encodings.rope import convert_layout
from zoo.encodings.rope_generators import skew, turn
from zoo.encodings.rope_mixed import random_rotations
from zoo.kernels import attention_weights

NAMES = tuple(ROTATIONS)
RELATIVE = tuple(name for name in ROTARY if name != "liere")
LEARNED = ("rope-mixed", "string", "comrope-ld", "liere")
WIDTH, HEADS = 15, 2  # One channel more than seven pairs: no number of axes from 2 on divides it.


def block(name, axes, width=WIDTH, **options):
    torch.manual_seed(0)
    options = OPTIONS.get(name, {}) | options
    attention = CoordinateAttention(width * HEADS, HEADS, axes, name, **options)
    if name == "string":  # Off its start, which is plain RoPE.
        torch.nn.init.normal_(attention.encoding.skew, std=0.3)
    return attention


def cloud(axes, tokens=9, batch=2, dtype=torch.float64):
    torch.manual_seed(axes)
    known = torch.rand(batch, tokens) > 0.25
    return Coordinates(torch.randn(batch, tokens, axes, dtype=dtype) * 4, positioned=known)


def fold(attention, q, k, coords):
    x = torch.zeros(q.shape[0], q.shape[2], attention.dim, dtype=q.dtype)
    return attention.encoding.fold(x, q, k, attention.encoding.frame(coords, q.dtype))


def queries(coords, width=WIDTH, batch=2, dtype=torch.float64, heads=HEADS):
    torch.manual_seed(7)
    return torch.randn(2, batch, heads, coords.values.shape[-2], width, dtype=dtype).unbind(0)


@pytest.mark.parametrize(("name", "axes"), [(n, a) for n in NAMES for a in (1, 2, 3, 4) if n not in PLANE or a == 2])
def test_q_and_k_turn_as_defined(name, axes):
    coords, attention = cloud(axes), block(name, axes).double()
    q, k = queries(coords)
    for folded, plain in zip(fold(attention, q, k, coords), (q, k), strict=True):
        expected = ROTATIONS[name](attention.encoding, plain, coords)
        torch.testing.assert_close(folded, expected, atol=1e-12, rtol=0)
        torch.testing.assert_close(folded.norm(dim=-1), plain.norm(dim=-1), atol=1e-12, rtol=0)
        assert not torch.allclose(folded, plain, atol=1e-2)


@pytest.mark.parametrize("name", NAMES)
def test_tokens_without_position_stay_whatever_their_coordinate(name):
    coords, attention = cloud(2), block(name, 2).double()
    hidden = ~coords.positioned
    bad = Coordinates(coords.values.masked_fill(hidden.unsqueeze(-1), float("nan")), positioned=coords.positioned)
    q, k = queries(coords)
    folded, _ = fold(attention, q, k, bad)
    start = q @ attention.encoding.basis(q.dtype) if name == "string" else q
    unmoved = hidden.unsqueeze(1).unsqueeze(-1).expand_as(q)
    torch.testing.assert_close(folded[unmoved], start[unmoved], atol=1e-14, rtol=0)


@pytest.mark.parametrize(("name", "axes"), [(n, a) for n in NAMES for a in (1, 2, 3, 4) if n not in PLANE or a == 2])
def test_scores_depend_on_differences_alone_but_for_liere(name, axes):
    coords = Coordinates(cloud(axes).values)
    attention = block(name, axes).double()
    q, k = queries(coords)
    shift = torch.tensor([31.7, -12.0, 5.5, 100.25][:axes], dtype=torch.float64)
    scores, moved = ((a @ b.mT) for a, b in (fold(attention, q, k, c) for c in (coords, coords.shifted(shift))))
    difference = (scores - moved).abs().max()
    if name == "liere" and axes > 1:
        assert difference > 0.5
    else:
        assert difference < 1e-11


def test_liere_in_blocks_of_two_commutes():
    coords = Coordinates(cloud(2).values)
    attention = block("liere", 2, width=16, block_size=2).double()
    q, k = queries(coords, width=16)
    scores, moved = ((a @ b.mT) for a, b in (fold(attention, q, k, c) for c in (coords, coords.shifted(9.0))))
    torch.testing.assert_close(scores, moved, atol=1e-11, rtol=0)


@pytest.mark.parametrize("name", RELATIVE)
def test_positioned_and_other_tokens_do_depend_on_the_origin(name):
    coords = coordinates.grid(3, 3, dtype=torch.float64).with_prefix(1)
    attention = block(name, 2).double()
    x = torch.randn(1, 10, attention.dim, dtype=torch.float64)
    assert not torch.allclose(attention(x, coords), attention(x, coords.shifted(3.0)), atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_samples_have_their_own_coordinates_and_pack(name):
    axes = fitting_axes(name, 3)
    attention = block(name, axes).double()
    coords = cloud(axes, tokens=7)
    x = torch.randn(2, 7, attention.dim, dtype=torch.float64)
    together = attention(x, coords)
    packed = Coordinates(
        coords.values.flatten(0, 1), positioned=coords.positioned.flatten(), cu_seqlens=torch.tensor([0, 7, 7, 14])
    )
    torch.testing.assert_close(attention(x.flatten(0, 1), packed).view_as(x), together, atol=1e-13, rtol=0)
    shared = Coordinates(coords.values[:1], positioned=coords.positioned[:1])
    torch.testing.assert_close(attention(x, shared)[:1], together[:1], atol=1e-13, rtol=0)
    assert not torch.allclose(attention(x, shared)[1:], together[1:], atol=1e-4)


@pytest.mark.parametrize("name", LEARNED)
def test_gradients_of_learned_parameters_are_right(name):
    attention = block(name, 2, width=6).double()
    coords = Coordinates(cloud(2, tokens=4).values)
    q, k = queries(coords, width=6)
    names, parameters = zip(*attention.encoding.named_parameters(), strict=True)
    assert set(names) == attention.encoding.no_weight_decay()

    def scores(*values):
        moved = torch.func.functional_call(Folding(attention), dict(zip(names, values, strict=True)), (q, k, coords))
        return moved[0] @ moved[1].mT

    assert torch.autograd.gradcheck(scores, tuple(p.detach().requires_grad_() for p in parameters))


class Folding(torch.nn.Module):
    """Calls `fold` of an encoding with parameters put in its place."""

    def __init__(self, attention):
        super().__init__()
        self.attention = [attention]  # In a list, so that the names below are those of the encoding.
        for name, parameter in attention.encoding.named_parameters():
            self.register_parameter(name, parameter)

    def forward(self, q, k, coords):
        encoding = self.attention[0].encoding
        own = {name: getattr(self, name) for name, _ in encoding.named_parameters()}
        saved = {name: encoding._parameters.pop(name) for name in own}
        try:
            for name, value in own.items():
                setattr(encoding, name, value)
            return fold(self.attention[0], q, k, coords)
        finally:
            for name, value in saved.items():
                delattr(encoding, name)
                encoding.register_parameter(name, value)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 1.5e-3), (torch.float16, 2e-4)])
@pytest.mark.parametrize("name", NAMES)
def test_sixteen_bit_rows_stay_close_on_large_grids(name, dtype, bound):
    """Mean total variation of attention rows on a 32 x 32 grid: q and k are rounded once more, angles are not."""
    coords, attention = coordinates.grid(32, 32), block(name, 2, width=24)
    q, k = (t.to(dtype) for t in queries(coords, width=24, batch=1, dtype=torch.float32))
    with torch.no_grad(), torch.autocast("cpu", dtype):
        turned = fold(attention, q, k, coords)
    assert all(t.dtype == dtype for t in turned)
    rows = attention_weights(*turned, scale=attention.scale)
    exact = [ROTATIONS[name](attention.encoding, t, coords) for t in (q, k)]
    expected = attention_weights(*exact, scale=attention.scale)
    assert (0.5 * (rows - expected).abs().sum(-1)).mean() < bound


def test_frames_hold_angles_in_float32_and_nothing_is_kept():
    coords = coordinates.grid(3, 3)
    for name in NAMES:
        encoding = block(name, 2).encoding
        before = set(vars(encoding))
        frame = encoding.frame(coords, torch.bfloat16)
        assert all(t.dtype == torch.float32 for t in vars(frame).values() if isinstance(t, torch.Tensor))
        assert encoding.frame(coords, torch.float64) is not frame
        assert set(vars(encoding)) == before and not list(encoding.buffers())


@pytest.mark.parametrize("width", [12, 14])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_layout_conversion_keeps_the_scores(axes, width):
    half = block("rope", axes, width=width).double()
    interleaved = block("rope", axes, width=width, layout="interleaved").double()
    assert half.encoding.layout == "half"
    with torch.no_grad():
        torch.nn.init.normal_(half.qkv.bias)
        for name, parameter in half.qkv.named_parameters():
            made = convert_layout(parameter, num_heads=HEADS, coord_dim=axes, to="interleaved")
            assert not torch.equal(made, parameter)
            assert torch.equal(made[2 * HEADS * width :], parameter[2 * HEADS * width :])
            assert torch.equal(convert_layout(made, num_heads=HEADS, coord_dim=axes, to="half"), parameter)
            getattr(interleaved.qkv, name).copy_(made)
        interleaved.proj.load_state_dict(half.proj.state_dict())
    coords = cloud(axes)
    x = torch.randn(2, 9, width * HEADS, dtype=torch.float64)
    (out, rows), (other, same) = (a(x, coords, return_attention=True) for a in (half, interleaved))
    torch.testing.assert_close(same, rows, atol=1e-14, rtol=0)
    torch.testing.assert_close(other, out, atol=1e-14, rtol=0)


def test_layout_conversion_refuses_what_does_not_fit():
    with pytest.raises(ConfigError, match="3 x 4 x D rows, got 50"):
        convert_layout(torch.zeros(50, 8), num_heads=4, coord_dim=2, to="half")
    with pytest.raises(ConfigError, match="'half' or 'interleaved'"):
        convert_layout(torch.zeros(48, 8), num_heads=4, coord_dim=2, to="quarter")


def test_rope_takes_a_base_for_every_axis():
    coords = cloud(3)
    attention = block("rope", 3, width=12, base=[10.0, 100.0, 1e4], layout="interleaved").double()
    q, k = queries(coords, width=12)
    angles = coords.values * coords.positioned.unsqueeze(-1)
    by_hand = [angles[..., a] * base ** (-k / 2) for a, base in enumerate((10.0, 100.0, 1e4)) for k in (0, 1)]
    expected = turn_pairs(q, torch.stack(by_hand, -1).unsqueeze(1), "interleaved")
    torch.testing.assert_close(fold(attention, q, k, coords)[0], expected, atol=1e-13, rtol=0)


def test_rope_1d_knows_the_order_alone():
    attention = block("rope-1d", 2).double()
    x = torch.randn(1, 6, attention.dim, dtype=torch.float64)
    tall, wide = (coordinates.grid(*shape, dtype=torch.float64) for shape in ((3, 2), (2, 3)))
    assert torch.equal(attention(x, tall), attention(x, wide))
    late = wide.with_prefix(1).shifted(40.0)
    angles = attention.encoding.frame(late, torch.float64)
    assert angles.cos[0, 0, :, 0].tolist() == pytest.approx([1.0, *(math.cos(n) for n in range(6))])


def test_rope_mixed_starts_as_rope_vit():
    attention = block("rope-mixed", 2, width=16)
    u = attention.encoding.frequencies.detach().double()
    assert u.shape == (HEADS, 2, 8)
    sizes = torch.tensor([10.0 ** (-4 * k / 16) for k in range(4)], dtype=torch.float64)
    torch.testing.assert_close(u.norm(dim=1), sizes.repeat(HEADS, 2), atol=1e-6, rtol=0)
    phi = torch.atan2(u[:, 1], u[:, 0])
    assert torch.allclose(phi[:, :4], phi[:, :1], atol=1e-6) and torch.allclose(phi[:, 4:], phi[:, 4:5], atol=1e-6)
    torch.testing.assert_close((phi[:, 4] - phi[:, 0]) % (2 * math.pi), torch.full((HEADS,), math.pi / 2).double())
    assert not torch.allclose(phi[0], phi[1], atol=1e-2)
    before = u.clone()
    attention.encoding.reset_parameters()
    assert not torch.equal(attention.encoding.frequencies.double(), before)


def test_rope_mixed_starts_with_orthogonal_axes_in_more_dimensions():
    u = block("rope-mixed", 3, width=22).encoding.frequencies.detach().double()  # Pairs: 4, 4 and 3.
    first = torch.stack([u[:, :, 0], u[:, :, 4], u[:, :, 8]], dim=-1)
    torch.testing.assert_close(
        first.mT @ first, torch.eye(3, dtype=torch.float64).expand(HEADS, 3, 3), atol=1e-6, rtol=0
    )
    assert u.norm(dim=1)[0].tolist() == pytest.approx([10 ** (-k / 3) for k in (0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2)])
    turns = random_rotations(500, 3, torch.device("cpu"))
    torch.testing.assert_close(torch.linalg.det(turns), torch.ones(500), atol=1e-5, rtol=0)
    assert turns.mean(0).abs().max() < 0.12  # Uniform: the mean rotation vanishes.


def test_rope_mixed_holds_axial_rope():
    mixed, axial = block("rope-mixed", 2, width=16).double(), block("rope", 2, width=16).double()
    theta = torch.tensor([100.0 ** (-k / 4) for k in range(4)])
    with torch.no_grad():
        mixed.encoding.frequencies.zero_()
        mixed.encoding.frequencies[:, 0, :4] = mixed.encoding.frequencies[:, 1, 4:] = theta
    coords = cloud(2)
    q, k = queries(coords, width=16)
    for a, b in zip(fold(mixed, q, k, coords), fold(axial, q, k, coords), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


def test_two_directions_are_axial_rope():
    coords = cloud(2)
    q, k = queries(coords)
    spiral, axial = block("spiral-rope", 2, directions=2).double(), block("rope", 2).double()
    for a, b in zip(fold(spiral, q, k, coords), fold(axial, q, k, coords), strict=True):
        torch.testing.assert_close(a, b, atol=1e-13, rtol=0)


def test_golden_directions_fill_the_half_turn():
    encoding = block("golden-rope", 2, width=32).encoding
    angles = sorted(math.atan2(y, x) % math.pi for row in encoding.vectors() for x, y in row)
    gaps = [b - a for a, b in zip(angles, [*angles[1:], angles[0] + math.pi], strict=True)]
    assert len(angles) == 32 and max(gaps) < 2 * math.pi / 32 and min(gaps) > 0.5 * math.pi / 32


def test_string_starts_as_rope_and_turns_by_an_orthogonal_basis():
    coords = cloud(2)
    q, k = queries(coords)
    attention, plain = block("string", 2).double(), block("rope", 2).double()
    basis = attention.encoding.basis(torch.float64)
    identity = torch.eye(WIDTH, dtype=torch.float64)
    torch.testing.assert_close(basis @ basis.mT, identity.expand_as(basis), atol=1e-13, rtol=0)
    assert not torch.allclose(basis, identity, atol=0.1)
    attention.encoding.reset_parameters()
    for a, b in zip(fold(attention, q, k, coords), fold(plain, q, k, coords), strict=True):
        assert torch.equal(a, b)


def test_comrope_in_blocks_of_two_is_rope_mixed():
    attention = block("comrope-ld", 3, width=16, block_size=2).double()
    coords = cloud(3)
    q, k = queries(coords, width=16)
    u = attention.encoding.theta * attention.encoding.generators.mT
    angles = torch.einsum("bna,hak->bhnk", coords.values * coords.positioned.unsqueeze(-1), u.detach())
    torch.testing.assert_close(
        fold(attention, q, k, coords)[0], turn_pairs(q, angles, "interleaved"), atol=1e-12, rtol=0
    )


def test_skew_fills_rows_below_the_diagonal():
    entries = torch.arange(1.0, 13.0, dtype=torch.float64).view(2, 6)
    torch.testing.assert_close(skew(entries, 4), torch.stack([skew_matrix(e, 4) for e in entries]))


@pytest.mark.parametrize(
    ("name", "axes", "options", "message"),
    [
        ("rope", 2, {"base": [10.0, 100.0, 1.5]}, "one number or 2, one per axis"),
        ("rope", 2, {"base": [10.0, 1.0]}, "'base' must be a number"),
        ("rope", 2, {"layout": "quarter"}, "'half' or 'interleaved', got 'quarter'"),
        ("rope", 2, {"layout": ["half"]}, "'half' or 'interleaved'"),
        ("rope", 8, {}, "needs a head width of 16"),
        ("rope-1d", 2, {"base": [10.0, 10.0]}, "'base' must be a number"),
        ("rope-mixed", 2, {"base": float("inf")}, "'base' must be a number"),
        ("rope-mixed", 8, {}, "rope-mixed with 8 axes needs a head width of 16"),
        ("spiral-rope", 3, {}, "needs 2 coordinate axes, got 3"),
        ("spiral-rope", 2, {"directions": 2.5}, "'directions' must be a whole number"),
        ("spiral-rope", 2, {"directions": 8}, "needs a head width of 16 or more, got 15"),
        ("golden-rope", 1, {}, "needs 2 coordinate axes, got 1"),
        ("string", 2, {"base": "100"}, "'base' must be a number"),
        ("comrope-ld", 2, {"block_size": 8}, "15 is not a multiple of 8"),
        ("comrope-ld", 2, {"extent": 0}, "'extent' must be a number"),
        ("liere", 2, {"block_size": 4}, "15 is not a multiple of 4"),
        ("liere", 2, {"block_size": True}, "'block_size' must be a whole number"),
        ("liere", 2, {"blocksize": 4}, "has no option 'blocksize'"),
    ],
)
def test_bad_options_are_explained(name, axes, options, message):
    with pytest.raises(ConfigError, match=message):
        block(name, axes, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_turns_are_matrix_exponentials_of_any_norm(dtype, size):
    torch.manual_seed(0)
    norms = torch.tensor([0.0, 1e-6, 0.1, 0.25, 0.5, 1.0, 10.0, 1e3], dtype=dtype).view(-1, 1, 1)
    entries = torch.randn(len(norms), 16, size * (size - 1) // 2, dtype=dtype)
    generators = skew(norms * entries, size)
    found, exact = turn(generators), torch.linalg.matrix_exp(generators.double())
    rounding = torch.finfo(dtype).eps * (1 + generators.abs().sum(-1).amax(-1))  # An angle cannot be held better.
    assert ((found.double() - exact).abs().amax((-2, -1)) <= 8 * rounding).all()
    unit = torch.eye(size, dtype=dtype).expand_as(found)
    assert ((found @ found.mT - unit).abs().amax((-2, -1)) <= 8 * rounding).all()


def test_turns_have_the_gradient_of_matrix_exponentials():
    torch.manual_seed(0)
    entries = torch.randn(5, 6, dtype=torch.float64).mul(3).requires_grad_()
    assert torch.autograd.gradcheck(lambda entries: turn(skew(entries, 4)), (entries,))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ["comrope-ld", "liere", "string"])
def test_cuda_graphs_hold_learned_generators(name):
    torch.manual_seed(0)
    attention = CoordinateAttention(64, 2, 2, name).cuda()
    coords, x = coordinates.grid(4, 5, device="cuda"), torch.randn(2, 20, 64, device="cuda")

    made = []

    def step():
        for parameter in attention.parameters():
            parameter.grad = None
        out = attention(x, coords)
        out.square().sum().backward()
        made[:] = [out.detach(), *(p.grad for p in attention.parameters() if p.grad is not None)]

    step()
    expected = [one.clone() for one in made]
    replay = recorded(step, "cuda")
    for one in made:
        one.zero_()
    replay()
    assert len(made) > 3
    torch.testing.assert_close(made, expected)


def test_turns_are_one_operator_to_compilers():
    torch.manual_seed(0)
    generators = skew(torch.randn(3, 6, dtype=torch.float64), 4).requires_grad_()
    torch.library.opcheck(torch.ops.zoo.turn.default, (generators,))
    empty = turn(torch.zeros(0, 3, 3))
    assert empty.shape == (0, 3, 3) and torch.equal(turn(torch.zeros(2, 1, 1)), torch.ones(2, 1, 1))
    bad = generators.detach().clone()
    bad[1, 0, 0] = float("nan")
    found = turn(bad)
    assert found[1].isnan().any() and found[[0, 2]].isfinite().all()
