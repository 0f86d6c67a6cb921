"""Precision of the PaPE fold at the released initialisation (design: total variation of attention rows below 1e-3)."""

import pytest
import torch
import torch.nn.functional as F
from reference import position_term, qkv, total_variation

from zoo import coordinates, kernels
from zoo.attention import CoordinateAttention
from zoo.coordinates import Coordinates
from zoo.encodings.quadratic import _pieces, safe_radius

DIM, HEADS = 128, 2
SIXTEEN = [torch.bfloat16, torch.float16]


def block(axes, dtype, name="pape"):
    torch.manual_seed(0)
    return CoordinateAttention(DIM, HEADS, axes, name).to(dtype)


def features(tokens, dtype):
    torch.manual_seed(1)
    return F.layer_norm(torch.randn(1, tokens, DIM), (DIM,)).to(dtype)


def logits(attention, x, coords, rows):
    """Scaled logits of some query rows: as the kernel sees them, and from the definition in float64."""
    q, k, _ = qkv(attention, x)
    frame = attention.frame(x, coords)
    folded_q, folded_k, _, score = attention.encoding.encode_attention(x, q, k, k, frame, attention.scale)
    if score.foldable:  # As attend does for PyTorch's kernels.
        (folded_q, folded_k), score = score.fold(q, k), None
    wide = torch.promote_types(x.dtype, torch.float32)
    seen = attention.scale * (folded_q[:, :, rows].to(wide) @ folded_k.to(wide).mT)
    if score is not None:
        seen = seen + torch.cat([score.bias(slice(int(i), int(i) + 1)) for i in rows], dim=2)
    reference = attention.scale * (q[:, :, rows].double() @ k.double().mT)
    return seen, reference + reference_rows(attention, x, coords, rows)


def reference_rows(attention, x, coords, rows, chunk=8):
    parts = []
    for start in range(0, len(rows), chunk):
        index = rows[start : start + chunk]
        queries = coords.values[:, index]
        # Definition for these queries only: put them in front and read the corner of the result.
        r = torch.cat([queries, coords.values], dim=1).double()
        difference = r[:, : len(index), None] - coords.values.double()[:, None]
        encoding, xd = attention.encoding, x[:, index].double()
        position = encoding.position.double()
        a = F.softplus(xd @ encoding.a.weight.double().T).unflatten(-1, (attention.num_heads, -1))
        b = (xd @ encoding.b.weight.double().T).unflatten(-1, (attention.num_heads, -1))
        bias = torch.zeros(1, attention.num_heads, len(index), coords.values.shape[1], dtype=torch.float64)
        for parabola in range(position.shape[1]):
            projected = torch.einsum("bijp,hp->bhij", difference, position[:, parabola])
            bias += b[..., parabola].transpose(1, 2).unsqueeze(-1) * projected
            bias -= a[..., parabola].transpose(1, 2).unsqueeze(-1) * projected.square()
        if coords.positioned is not None:
            known = coords.positioned[:, index].unsqueeze(2) & coords.positioned.unsqueeze(1)
            bias = bias * known.unsqueeze(1)
        parts.append(attention.scale * bias)
    return torch.cat(parts, dim=2)


def rows_of(tokens, count=64):
    torch.manual_seed(2)
    return torch.randperm(tokens)[:count]


def mean_variation(attention, coords, dtype):
    tokens = coords.values.shape[1]
    with torch.no_grad():
        seen, reference = logits(attention, features(tokens, dtype), coords, rows_of(tokens))
    return total_variation(seen.double().softmax(-1), reference.softmax(-1)).mean().item()


def test_the_row_reference_is_the_definition():
    attention, coords = block(2, torch.float64), coordinates.grid(4, 5, dtype=torch.float64).with_prefix(1)
    x = features(21, torch.float64)
    expected = position_term(attention, "pape", x, coords)
    torch.testing.assert_close(reference_rows(attention, x, coords, torch.arange(21)), expected, atol=1e-11, rtol=0)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-9), (torch.float32, 1e-3)])
def test_fold_logits_at_64_by_64(dtype, bound):
    attention, coords = block(2, dtype), coordinates.grid(64, 64, dtype=dtype)
    with torch.no_grad():
        seen, reference = logits(attention, features(4096, dtype), coords, rows_of(4096))
    error = seen.double() - reference
    error = error - error.mean(dim=-1, keepdim=True)  # A constant of the row cancels in the softmax.
    assert error.abs().max() < bound
    with_class = coords.with_prefix(1)
    with torch.no_grad():
        seen, reference = logits(attention, features(4097, dtype), with_class, rows_of(4097))
    assert (seen.double() - reference).abs().max() < bound  # Nothing cancels once a key has no position.


@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("side", [14, 32, 64])
@pytest.mark.parametrize("dtype", SIXTEEN)
def test_sixteen_bit_attention_rows(dtype, side, offset):
    plain = coordinates.grid(side, side).shifted(offset)
    for coords in (plain, plain.with_prefix(1), coordinates.grid(side, side, origin=1).with_prefix(1, at=(0, 0))):
        assert mean_variation(block(2, dtype), coords, dtype) < 1e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("case", ["128 x 128", "1-D 512", "1-D 5120", "minute of events", "cube", "far points"])
def test_the_bound_holds_beyond_the_safe_extent(case, dtype):
    torch.manual_seed(5)
    if case == "128 x 128":
        coords = coordinates.grid(128, 128).with_prefix(1)
    elif case.startswith("1-D"):
        coords = coordinates.text(int(case.split()[1]))
    elif case == "minute of events":
        x, y = torch.randint(0, 19, (1, 2000)), torch.randint(0, 15, (1, 2000))
        t_us = torch.randint(0, 60_000_000, (1, 2000)).sort().values + 1_790_000_000_000_000
        coords = coordinates.events(x, y, t_us, time_scale=50_000)
    elif case == "cube":
        coords = coordinates.clip(5, 15, 20)
    else:
        coords = Coordinates(torch.rand(1, 1000, 3) * torch.tensor([360.0, 360.0, 8.0]))
    assert mean_variation(block(coords.axes, dtype), coords, dtype) < 1e-3


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("dtype", [*SIXTEEN, torch.float32])
def test_the_method_changes_at_the_stated_extent(dtype, axes, exact):
    torch.manual_seed(6)
    half = int((safe_radius(dtype, exact) / axes) ** 0.5)
    attention = block(axes, dtype)
    values = (torch.rand(1, 400, axes) * 2 - 1) * half
    values[0, :2] = torch.tensor([[-half], [half]])
    for factor, kind in ((1, "fold"), (1.2, "score")):
        coords = Coordinates(values.round() if exact else values, integral=exact).scaled(factor)
        coords = Coordinates(coords.values, integral=exact)
        assert attention.frame(features(400, dtype), coords).kind == kind
        if factor == 1:  # The largest extent that folds keeps the bound.
            assert mean_variation(attention, coords, dtype) < 1e-3


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_strong_coefficients_do_not_overflow(dtype):
    attention = block(2, dtype)
    with torch.no_grad():
        attention.encoding.position.mul_(8)  # M grows 64-fold: row constants reach 1e6.
        coords = coordinates.grid(64, 64).with_prefix(1)
        out = attention(features(4097, dtype), coords)
    assert out.isfinite().all()


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_the_split_survives_a_compiler(dtype):
    """Compilers that fuse float32 arithmetic drop a conversion to 16 bit and back, and with it the low halves."""
    attention, coords = block(2, dtype), coordinates.grid(32, 32).with_prefix(1)
    x = features(1025, dtype)
    with torch.no_grad():
        q, k, _ = qkv(attention, x)

        def folded():
            return attention.encoding.fold(x, q, k, attention.frame(x, coords))

        seen, reference = (
            torch.compile(folded)()[0].double() @ folded()[1].double().mT,
            logits(attention, x, coords, torch.arange(1025))[1],
        )
    variation = total_variation((attention.scale * seen).softmax(-1), reference.softmax(-1))
    assert variation.mean() < 1e-3


def test_pieces_add_up():
    torch.manual_seed(0)
    x = (torch.randn(1000) * torch.logspace(-3, 4, 1000)).requires_grad_()
    for dtype, relative in ((torch.bfloat16, 2.0**-24), (torch.float16, 2.0**-24)):
        pieces = _pieces(x, dtype, 3)
        assert all(torch.equal(p, p.to(dtype).float()) for p in pieces if dtype == torch.bfloat16)
        assert ((sum(pieces) - x).abs() <= relative * x.abs()).all()
        (gradient,) = torch.autograd.grad(pieces[0].sum(), x)
        assert torch.equal(gradient, torch.ones_like(x))


def test_autocast_and_half_modules_keep_float32_positions():
    coords = coordinates.grid(32, 32).with_prefix(1)
    attention, x = block(2, torch.float32), features(1025, torch.float32)
    with torch.no_grad():
        exact = attention(x, coords)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert attention.frame(x, coords).key_columns.dtype == torch.bfloat16
            low = attention(x, coords)
    assert low.dtype == torch.bfloat16
    assert (low.float() - exact).abs().mean() / exact.abs().mean() < 0.02


@pytest.mark.parametrize("name", ["pape", "pape-ri"])
def test_fold_and_score_give_the_same_gradients(name):
    coords = coordinates.grid(5, 6, dtype=torch.float64).with_prefix(1)
    x = features(31, torch.float64)
    grads = []
    for kind in ("fold", "score"):
        attention = block(2, torch.float64, name)
        frame = attention.frame(x, coords)
        changed = type(frame)(**{**frame.__dict__, "kind": kind})
        attention(x, coords, frame=changed).square().sum().backward()
        grads.append([p.grad for p in attention.parameters()])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 0.15), (torch.float16, 0.02)])
def test_sixteen_bit_gradients_follow_float64(dtype, bound):
    """The kernel rounds dq to 16 bit before the terms of dM cancel: noise of about r^2 2^-9 of the gradient in bf16."""
    coords = coordinates.grid(14, 14).with_prefix(1)
    low, exact = block(2, dtype), block(2, dtype).double()
    x = features(197, dtype)
    cotangent = torch.randn(1, 197, DIM, dtype=torch.float64)
    (low(x, coords).double() * cotangent).sum().backward()
    (exact(x.double(), coords.to(dtype=torch.float64)) * cotangent).sum().backward()
    for (name, a), b in zip(low.encoding.named_parameters(), exact.encoding.parameters(), strict=True):
        error = (a.grad.double() - b.grad).norm() / b.grad.norm()
        assert error < bound, (name, error)


def test_blocks_of_rows_equal_one_call(monkeypatch):
    attention, coords = block(1, torch.float32), coordinates.text(700)
    x = features(700, torch.float32).requires_grad_()
    with kernels.trace() as choices:
        whole = attention(x, coords)
    assert choices[0].method == "rows"
    (expected,) = torch.autograd.grad(whole.square().sum(), x)
    monkeypatch.setattr("zoo.kernels.dispatch._BLOCK_ELEMENTS", 700 * HEADS * 64)
    torch.testing.assert_close(attention(x, coords), whole, atol=1e-6, rtol=0)
    (grad,) = torch.autograd.grad(attention(x, coords).square().sum(), x)
    torch.testing.assert_close(grad, expected, atol=1e-5, rtol=1e-4)
