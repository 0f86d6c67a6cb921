"""The Triton kernels of attention against float64, on a CUDA device or by Triton's interpreter on the CPU.

Without a device the whole file runs once more in a process of its own, where the interpreter is on.
"""

import pytest
import torch
from interpreted import DEVICE, HERE, kernel_test, run

from zoo import ConfigError, coordinates, kernels
from zoo.attention import CoordinateAttention
from zoo.coordinates import Coordinates
from zoo.encodings.quadratic import QuadraticScore, make_frame
from zoo.kernels.fused import interpreted

pytest.importorskip("triton")
DTYPE = torch.float16
# The interpreter is slow: small tiles, few tokens.
TILES = {"forward": (16, 16), "queries": (16, 32), "keys": (32, 16)}
# Tokens of tests that need edges and more than one tile, not many of them.
SOME, MANY = (21, 25) if interpreted() else (37, 50)


@pytest.mark.skipif(HERE, reason="this is the process that runs the kernels")
@pytest.mark.timeout(900)
def test_kernels_by_the_interpreter():
    run(__file__, timeout=850)


@pytest.mark.slow
@pytest.mark.skipif(HERE, reason="this is the process that runs the kernels")
@pytest.mark.timeout(900)
def test_slow_kernels_by_the_interpreter():
    run(__file__, timeout=850, marked="slow")


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    if interpreted():
        from zoo.kernels import plans

        monkeypatch.setattr(plans, "tiling", lambda name, width, kind: plans.Tiling(*TILES[name], 4, 1))


def layer(name, axes, heads=2, width=16, **options):
    torch.manual_seed(0)
    attention = CoordinateAttention(heads * width, heads, axes, name, **options)
    return attention.to(DEVICE, DTYPE)


def results(attention, x, coords, mask, kernel, cotangent):
    """Output, gradient of the input, and of all parameters."""
    attention.zero_grad()
    x = x.detach().clone().requires_grad_()
    with kernels.use(kernel), kernels.trace() as choices:
        out = attention(x, coords, mask)
    (out * cotangent.to(out.dtype)).sum().backward()
    assert choices[0].backend == kernel
    return [out.detach(), x.grad, *(p.grad.clone() for p in attention.parameters() if p.grad is not None)]


def close(found, expected, bound=0.01):
    for a, b in zip(found, expected, strict=True):
        assert a.isfinite().all()
        assert (a.double() - b.double()).norm() <= bound * b.double().norm() + 1e-5


def compare(attention, x, coords, mask=None, bound=0.01):
    cotangent = torch.randn(x.shape, dtype=torch.float64, device=DEVICE)
    found = results(attention, x.to(DEVICE, DTYPE), coords, mask, "triton", cotangent)
    wide = attention.double()
    exact = results(wide, x.to(DEVICE, DTYPE).double(), coords.to(dtype=torch.float64), mask, "eager", cotangent)
    close(found, exact, bound)


def places(axes, count, prefix=1, batch=1, spread=7.0):
    torch.manual_seed(1)
    values = (torch.rand(batch, count, axes, device=DEVICE) * spread).round()
    coords = Coordinates(values)
    return coords.with_prefix(prefix) if prefix else coords


CASES = [
    ("none", 2, 0, {}),
    ("rope", 2, 1, {}),
    ("pape", 1, 0, {"parabolas": 5}),
    ("pape", 2, 0, {}),
    ("pape", 2, 1, {}),
    ("pape", 3, 1, {}),
    ("pape", 4, 1, {"parabolas": 7}),
    ("pape-ri", 2, 1, {}),
    ("alibi", 2, 0, {}),
    ("alibi", 3, 1, {"metric": "manhattan"}),
    ("lookhere", 2, 1, {}),
]


@kernel_test
@pytest.mark.parametrize(("name", "axes", "prefix", "options"), CASES)
def test_agrees_with_float64(name, axes, prefix, options):
    attention = layer(name, axes, **options)
    compare(attention, torch.randn(2, SOME + prefix, 32), places(axes, SOME, prefix))


@kernel_test
@pytest.mark.parametrize("dtype", [torch.float16, *([torch.bfloat16] if DEVICE == "cuda" else [])])
@pytest.mark.parametrize("prefix", [0, 1])
def test_gradients_of_the_terms_do_not_cancel(dtype, prefix):
    """From the same 16-bit q, k, v; a rounding error of dS must not meet the squares of coordinates."""
    torch.manual_seed(0)
    side, heads, width = (32, 2, 64) if DEVICE == "cuda" else (7, 1, 16)
    coords, tokens = coordinates.grid(side, side, device=DEVICE), side * side + prefix
    coords = coords.with_prefix(1) if prefix else coords
    content = [torch.randn(1, heads, tokens, width, device=DEVICE).to(dtype) for _ in range(4)]
    # Positive semidefinite, as sums of parabolas are. A saddle attends to one far key alone, where the gradient nearly
    # vanishes and the rounding of the output meets the square of the whole grid.
    slopes = torch.randn(1, heads, tokens, 8, 2, device=DEVICE)
    m = 6 * (slopes[..., [0, 0, 1]] * slopes[..., [0, 1, 1]]).mean(dim=-2)
    t = torch.randn(1, heads, tokens, 2, device=DEVICE)
    found = {}
    for kernel, wide, algebra in (("triton", dtype, torch.float32), ("eager", torch.float64, torch.float64)):
        leaves = [x.to(wide).requires_grad_() for x in content[:3]]
        leaves += [x.to(algebra, copy=True).requires_grad_() for x in (m, t)]
        frame = make_frame(coords.to(dtype=algebra), wide)
        score = QuadraticScore(leaves[3], leaves[4], frame, width**-0.5)
        with kernels.use(kernel):
            out = kernels.attend(*leaves[:3], scale=width**-0.5, score=score)
        found[kernel] = [out, *torch.autograd.grad(out, leaves, content[3].to(wide))]
    close(found["triton"], found["eager"], 0.004 if dtype == torch.bfloat16 else 0.001)


@kernel_test
@pytest.mark.parametrize("width", [32, 128])
def test_head_widths(width):
    compare(layer("pape", 2, heads=1, width=width), torch.randn(1, 20, width), places(2, 20, 0))


@kernel_test
@pytest.mark.parametrize("tokens", [1, 16, 33])
def test_numbers_of_tokens(tokens):
    compare(layer("pape", 2), torch.randn(2, tokens, 32), places(2, tokens, 0, batch=2))


@kernel_test
def test_empty_batch():
    attention = layer("pape", 2)
    with kernels.use("triton"):
        out = attention(torch.randn(0, 5, 32, device=DEVICE, dtype=DTYPE), places(2, 5, 0))
    assert out.shape == (0, 5, 32)


@kernel_test
@pytest.mark.parametrize("name", ["pape", "alibi"])
def test_beyond_the_safe_extent_differences_are_exact(name):
    attention = layer(name, 2, **({"parabolas": 3} if name == "pape" else {}))
    values = torch.rand(1, 40, 2, device=DEVICE) * 3e4
    values[0, 20:] = values[0, :20] + torch.rand(20, 2, device=DEVICE)
    coords = Coordinates(values).with_prefix(1)
    with kernels.use("triton"):
        found = attention(torch.randn(1, 41, 32, device=DEVICE, dtype=DTYPE), coords)
    assert found.isfinite().all()
    compare(attention, torch.randn(1, 41, 32), coords)


@kernel_test
@pytest.mark.parametrize("name", ["pape", "lookhere"])
def test_masks_of_keys(name):
    mask = torch.ones(3, 21, dtype=torch.bool, device=DEVICE)
    mask[0, 13:] = False
    mask[1, :] = False
    x = torch.randn(3, 21, 32)
    x[0, 13:] = float("nan")
    attention = layer(name, 2)
    cotangent = torch.randn(3, 21, 32, dtype=torch.float64, device=DEVICE)
    found = results(attention, x.to(DEVICE, DTYPE), places(2, 20), mask, "triton", cotangent)
    coords = places(2, 20).to(dtype=torch.float64)
    exact = results(attention.double(), x.to(DEVICE, DTYPE).double(), coords, mask, "eager", cotangent)
    close(found, exact)


@kernel_test
def test_causal():
    torch.manual_seed(0)
    attention = CoordinateAttention(32, 2, 1, "pape", causal=True).to(DEVICE, DTYPE)
    compare(attention, torch.randn(2, 45, 32), places(1, 45, 0))


@kernel_test
@pytest.mark.parametrize("name", ["pape", "alibi", "none"])
def test_packed_samples_equal_samples_alone(name):
    attention = layer(name, 3)
    lengths = [5, 0, 33, 1, 18]
    values = (torch.rand(sum(lengths), 3, device=DEVICE) * 9).round()
    offsets = torch.tensor([0, *lengths], device=DEVICE).cumsum(0)
    packed = Coordinates(values, cu_seqlens=offsets)
    x = torch.randn(sum(lengths), 32, device=DEVICE, dtype=DTYPE).requires_grad_()
    with kernels.use("triton"):
        out = attention(x, packed)
    out.square().sum().backward()
    start = 0
    for length in lengths:
        rows = slice(start, start + length)
        start += length
        if not length:
            continue
        alone = x.detach()[None, rows].double().requires_grad_()
        coords = Coordinates(values[None, rows].double())
        expected = attention.double()(alone, coords)
        expected.square().sum().backward()
        close([out[rows], x.grad[rows]], [expected[0], alone.grad[0]])
        attention.to(DTYPE)


@kernel_test
def test_results_do_not_differ_between_runs():
    attention = layer("pape", 2)
    x, cotangent = torch.randn(2, MANY, 32, device=DEVICE, dtype=DTYPE), torch.randn(2, MANY, 32, device=DEVICE)
    runs = [results(attention, x, places(2, MANY, 0), None, "triton", cotangent) for _ in range(2)]
    for a, b in zip(*runs, strict=True):
        assert torch.equal(a, b)


@kernel_test
def test_the_operators_keep_their_promises():
    """Fake kernels, schemas and autograd, as compiling and exporting rely on them."""
    from zoo.kernels import fused

    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 18, 16, device=DEVICE, dtype=DTYPE).requires_grad_() for _ in range(3))
    curvature, slope = (torch.randn(1, 2, 18, 1, device=DEVICE).requires_grad_() for _ in range(2))
    keys, values = torch.randn(1, 18, 16, device=DEVICE, dtype=DTYPE), torch.randn(1, 18, 1, device=DEVICE)
    position = (curvature, slope, keys, values, None, None)
    arguments = (q, k, v, *position, None, None, 0.25, 1, 1, 0x111, 2, 0.0, False)
    torch.library.opcheck(
        fused._operator, arguments, test_utils=("test_schema", "test_autograd_registration", "test_faketensor")
    )
    plain = [x.detach() if isinstance(x, torch.Tensor) else x for x in arguments]
    saved = [torch.randn_like(plain[0]), *plain[:3], *fused._forward(*plain), *plain[3:]]
    torch.library.opcheck(
        torch.ops.zoo.attention_backward.default, saved, test_utils=("test_schema", "test_faketensor")
    )


@pytest.mark.slow
@kernel_test
def test_compiles_whole_for_any_size():
    attention = layer("pape", 2)
    compiled = torch.compile(attention, fullgraph=True, dynamic=True, backend="aot_eager")
    for side in (3, 5):
        coords = coordinates.grid(side, side, device=DEVICE).with_prefix(1)
        x = torch.randn(2, side * side + 1, 32, device=DEVICE, dtype=DTYPE)
        with kernels.use("triton"), torch.no_grad():
            close([compiled(x, coords)], [attention(x, coords)], 1e-3)


@kernel_test
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": torch.float32}, "float16 and bfloat16"),
        ({"width": 24}, "width"),
        ({"name": "kerple"}, "position term"),
    ],
)
def test_refuses_what_it_cannot_run(change, message):
    name, width = change.get("name", "pape"), change.get("width", 16)
    attention = CoordinateAttention(width, 1, 2, name).to(DEVICE, change.get("dtype", DTYPE))
    x = torch.randn(1, 9, width, device=DEVICE, dtype=change.get("dtype", DTYPE))
    with kernels.use("triton"), pytest.raises(ConfigError, match=message):
        attention(x, coordinates.grid(3, 3, device=DEVICE))
