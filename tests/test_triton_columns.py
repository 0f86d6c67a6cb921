"""What Triton's attention makes of M and t, and of their gradients, against `query_columns` and its autograd.

Without a device the whole file runs once more in a process of its own, where Triton's interpreter is on.
"""

import pytest
import torch
from interpreted import DEVICE, HERE, kernel_test, run

from zoo import DataError, kernels
from zoo.attention import CoordinateAttention
from zoo.coordinates import Coordinates
from zoo.encodings.quadratic import QuadraticScore, make_frame, query_columns
from zoo.kernels import fused

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from zoo.kernels.triton_attention import _query_columns  # noqa: E402
from zoo.kernels.triton_attention_backward import _store_gradients  # noqa: E402

SCALE, TOKENS, HEADS = 0.25, 21, 2
DTYPES = [torch.float16, *([torch.bfloat16] if DEVICE == "cuda" else [])]  # The interpreter knows little of bfloat16.


@pytest.mark.skipif(HERE, reason="this is the process that runs the kernels")
@pytest.mark.timeout(600)
def test_kernels_by_the_interpreter():
    run(__file__, timeout=550)


@triton.jit
def prologue_and_epilogue(
    PIECES, SUMS, DA, DLINEAR, A, LINEAR, R, KNOWN, POWERS, H, N, key_batch, scale, ab, ah, an, ac, tb, th, tn, tc,
    AXES: tl.constexpr, HAS_LINEAR: tl.constexpr, HAS_KNOWN: tl.constexpr, inexact: tl.constexpr, W: tl.constexpr,
    BM: tl.constexpr,
):  # fmt: skip
    """What the attention kernels do before and after their loops over keys, for given sums over keys."""
    b, h = (tl.program_id(1) // H).to(tl.int64), tl.program_id(1) % H
    tokens, at = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, W)
    ok, place = tokens < N, b * key_batch + tokens
    pieces = _query_columns(
        A, LINEAR, R, KNOWN, POWERS, b, h, tokens, place, ok, ab, ah, an, ac, tb, th, tn, tc,
        AXES, HAS_LINEAR, HAS_KNOWN, inexact, W, PIECES.dtype.element_ty,
    )  # fmt: skip
    own = ((tl.program_id(1) * N + tokens) * W)[:, None] + at[None, :]
    tl.store(PIECES + own, pieces, mask=ok[:, None])
    sums = tl.load(SUMS + own, mask=ok[:, None], other=0.0)
    _store_gradients(
        DA, DLINEAR, sums, R, KNOWN, POWERS, b, h, H, N, tokens, place, ok, scale,
        AXES, HAS_LINEAR, HAS_KNOWN, inexact, W,
    )  # fmt: skip


def by_kernel(score, sums):
    """Pieces (B, H, N, W), and the gradients of M and t that belong to sums (B, H, N, W)."""
    terms = score.terms()
    slope, known = terms.slope, terms.positioned
    gradients = [fused._planes(sums, given) for given in (terms.curvature, slope)]
    pieces = torch.empty_like(sums, dtype=terms.keys.dtype)
    prologue_and_epilogue[(-(-TOKENS // 16), sums.shape[0] * HEADS)](
        pieces, sums, *gradients, terms.curvature, sums if slope is None else slope, terms.values,
        sums if known is None else known, fused._packed_powers(terms.powers), HEADS, TOKENS,
        0 if terms.values.shape[0] == 1 else TOKENS, SCALE,
        *terms.curvature.stride(), *((0,) * 4 if slope is None else slope.stride()),
        AXES=score.axes, HAS_LINEAR=slope is not None, HAS_KNOWN=known is not None, inexact=terms.inexact,
        W=sums.shape[-1], BM=16,
    )  # fmt: skip
    return pieces, gradients[: 1 if slope is None else 2]


def example(axes, *, dtype=torch.float16, prefix=0, linear=True, shared=True, exact=True):
    """A score with strides as the kernel of coefficients leaves them, and random sums over keys."""
    torch.manual_seed(0)
    spread = 30 if exact else 20  # What is off the grid is folded less far.
    values = (torch.rand(1 if shared else 2, TOKENS - prefix, axes) * spread - 7).to(DEVICE)
    coords = Coordinates(values.round() if exact else values, integral=exact)
    frame = make_frame(coords.with_prefix(prefix) if prefix else coords, dtype)
    assert frame.kind == "fold" and (dtype == torch.bfloat16 or len(set(frame.powers)) > 1)
    count = axes * (axes + 1) // 2
    m, t = (torch.randn(c, HEADS, 2, TOKENS, device=DEVICE).permute(2, 1, 3, 0) * 6 for c in (count, axes))
    score = QuadraticScore(m.requires_grad_(), t.requires_grad_() if linear else None, frame, SCALE)
    return score, torch.randn(2, HEADS, TOKENS, frame.fused_columns.shape[-1], device=DEVICE)


CASES = [
    *({"axes": axes, "prefix": prefix} for axes in (1, 2, 3, 4) for prefix in (0, 2)),
    {"axes": 2, "linear": False, "prefix": 1},
    {"axes": 2, "exact": False},
    {"axes": 3, "exact": False, "shared": False, "prefix": 1},
]


@kernel_test
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_columns_and_gradients_are_those_of_query_columns(case, dtype):
    score, sums = example(**case, dtype=dtype)
    pieces, gradients = by_kernel(score, sums)
    columns = query_columns(score.m, score.t, score.frame, constant=True)
    n, inexact = columns.shape[-1], score.terms().inexact
    assert inexact == n - 1 - (score.axes if case.get("exact", True) else 0)
    wide = pieces.double()
    found = wide[..., :n] + wide[..., n : 2 * n]
    found[..., -1] += wide[..., 2 * n + inexact]
    size = columns.detach().abs().amax(dim=(0, 1, 2)).double()
    bounds = torch.full((n,), 2.0**-17 if dtype == torch.bfloat16 else 2.0**-21, device=DEVICE)
    bounds[-1] = 2.0**-22  # Three pieces.
    assert ((found - columns).abs().amax(dim=(0, 1, 2)) <= bounds * size + 1e-7).all()
    assert torch.equal(pieces[..., 2 * n : 2 * n + inexact], pieces[..., :inexact])
    assert not pieces[..., 2 * n + inexact + 1 :].any()
    # A column's high half in q meets both halves of that in k.
    own = sums[..., :n].clone()
    own[..., :inexact] += sums[..., 2 * n : 2 * n + inexact]
    inputs = [score.m] if score.t is None else [score.m, score.t]
    expected = torch.autograd.grad((columns * own * SCALE).sum(), inputs)
    for a, b in zip(gradients, expected, strict=True):
        assert a.permute(3, 1, 0, 2).is_contiguous()
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6 * b.abs().max().item())


@kernel_test
def test_a_token_without_a_position_gets_no_gradient():
    score, sums = example(2, prefix=2)
    for grad in by_kernel(score, sums)[1]:
        assert not grad[:, :, :2].any() and grad[:, :, 2:].all()


def test_terms_are_the_tensors_of_the_score():
    score, _ = example(2)
    terms = score.terms()
    assert terms.curvature is score.m and terms.slope is score.t
    assert QuadraticScore(score.m, None, score.frame, SCALE).terms().slope is None


@pytest.mark.parametrize("axes", [1, 2, 3, 4])
def test_key_columns_are_a_power_of_two_wide(axes):
    width = example(axes)[0].terms().keys.shape[-1]
    assert width == {1: 16, 2: 16, 3: 32, 4: 64}[axes]


def test_packed_powers_unpack():
    powers = (-1, 0, 3, 11, 14)
    packed = fused._packed_powers(powers)
    assert tuple((packed >> 4 * i & 15) - 1 for i in range(5)) == powers


@kernel_test
@pytest.mark.parametrize("name", ["pape-static", "pape-quadratic", "pape-linear"])
def test_coefficients_that_are_shared_or_absent(name):
    """Of `pape-static` t has strides of 0; `pape-quadratic` has none."""
    torch.manual_seed(0)
    attention = CoordinateAttention(32, HEADS, 2, name).to(DEVICE, torch.float16)
    coords = Coordinates((torch.rand(1, TOKENS, 2, device=DEVICE) * 6).round())
    x = torch.randn(2, TOKENS, 32, device=DEVICE, dtype=torch.float16)
    found = {}
    for kernel in ("triton", "eager"):
        attention.zero_grad()
        wide = kernel == "eager"
        layer = attention.double() if wide else attention
        with kernels.use(kernel):
            out = layer(x.double() if wide else x, coords.to(dtype=torch.float64) if wide else coords)
        out.double().square().sum().backward()
        found[kernel] = {n: p.grad.double() for n, p in layer.encoding.named_parameters()}
    for n, exact in found["eager"].items():
        assert exact.norm() > 0 and (found["triton"][n] - exact).norm() <= 0.01 * exact.norm(), n


@kernel_test
@pytest.mark.parametrize("scale", [0.0, -0.25, float("nan")])
def test_scales_are_positive(scale):
    q = torch.randn(1, 1, 4, 16, device=DEVICE, dtype=torch.float16)
    with pytest.raises(DataError, match="above 0"):
        fused.fused_attention(q, q, q, None, scale=scale)
