"""Attention with a bias made for blocks of query rows, in our kernel, against float64; see tests/interpreted.py."""

import pytest
import torch
import torch._dynamo.testing
from interpreted import DEVICE, HERE, kernel_test, run

from zoo import ConfigError, coordinates, kernels
from zoo.attention import CoordinateAttention
from zoo.kernels import dispatch
from zoo.kernels.fused import interpreted

pytest.importorskip("triton")
DTYPE = torch.float16


@pytest.mark.skipif(HERE, reason="this is the process that runs the kernels")
@pytest.mark.timeout(600)
def test_kernel_by_the_interpreter():
    run(__file__, timeout=550)


@pytest.mark.slow
@pytest.mark.skipif(HERE, reason="this is the process that runs the kernels")
@pytest.mark.timeout(600)
def test_slow_kernel_by_the_interpreter():
    run(__file__, timeout=550, marked="slow")


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    if interpreted():
        from zoo.kernels import plans

        monkeypatch.setattr(plans, "tiling", lambda name, width, kind: plans.Tiling(16, 32, 4, 1))


class Given:
    """A score whose bias is a tensor, (B or 1, H or 1, N, N)."""

    def __init__(self, bias):
        self.whole, self.asked = bias, []

    def bias(self, rows):
        self.asked.append(rows)
        return self.whole[:, :, rows]


def content(batch=2, heads=2, tokens=37, width=16):
    torch.manual_seed(0)
    return [torch.randn(batch, heads, tokens, width, device=DEVICE).to(DTYPE) for _ in range(3)]


def check(q, k, v, bias, *, shared=True, **options):
    """Runs the kernel in no gradient mode, and compares."""
    score, scale = Given(bias), q.shape[-1] ** -0.5
    with torch.no_grad(), kernels.use("triton"), kernels.trace() as choices:
        out = kernels.attend(q, k, v, scale=scale, score=score, **options)
    assert (choices[0].backend, choices[0].method) == ("triton", "rows")
    wide = [x.double() for x in (q, k, v)]
    with kernels.use("eager"):
        exact = kernels.attend(*wide, scale=scale, score=Given(bias.double()), **options)
    assert out.dtype == DTYPE and out.isfinite().all()
    assert (out.double() - exact).norm() <= 0.002 * exact.norm()
    return out, score.asked


@kernel_test
@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("heads", [1, 2])
def test_bias_shared_by_samples_and_heads(samples, heads):
    check(*content(batch=3, tokens=21), 3 * torch.randn(samples, heads, 21, 21, device=DEVICE))


@kernel_test
@pytest.mark.parametrize("tokens", [1, 16, 33, *([32, 64] if DEVICE == "cuda" else [])])
def test_numbers_of_tokens(tokens):
    check(*content(tokens=tokens), 3 * torch.randn(1, 2, tokens, tokens, device=DEVICE))


@kernel_test
@pytest.mark.parametrize("width", [32, 64, 128])
def test_head_widths(width):
    check(*content(batch=1, heads=1, tokens=20, width=width), torch.randn(1, 1, 20, 20, device=DEVICE))


@kernel_test
def test_empty_batch():
    with torch.no_grad(), kernels.use("triton"):
        q, k, v = content(batch=0, tokens=5)
        assert kernels.attend(q, k, v, scale=1.0, score=Given(torch.zeros(1, 2, 5, 5))).shape == (0, 2, 5, 16)


@kernel_test
@pytest.mark.parametrize("elements", [2**27, 2 * 40 * 14])
@pytest.mark.parametrize("causal", [False, True])
def test_blocks_of_rows_masks_and_hidden_keys(elements, causal, monkeypatch):
    """Scores may hide keys too, even all those of a query."""
    monkeypatch.setattr(dispatch, "_BLOCK_ELEMENTS_CUDA", elements)
    q, k, v = content(batch=3, tokens=40)
    bias = 3 * torch.randn(1, 2, 40, 40, device=DEVICE)
    bias[0, 0, torch.rand(40, 40, device=DEVICE) < 0.4] = float("-inf")
    bias[:, :, 5] = float("-inf")
    mask = torch.ones(3, 40, dtype=torch.bool, device=DEVICE)
    mask[0, 33:] = False
    mask[1] = False
    k[0, :, 33:] = v[0, :, 33:] = float("nan")
    out, asked = check(q, k, v, bias, mask=mask, causal=causal)
    assert (out[1] == 0).all() and (out[:, :, 5] == 0).all()
    if elements < 2**27:
        assert asked == [slice(0, 1), *(slice(i, min(i + 14, 40)) for i in range(0, 40, 14))]
    else:
        assert asked == [slice(None)]


@kernel_test
def test_memory_orders():
    """Rows of q, k and v as the projection leaves them, a bias whose keys are not neighbours."""
    torch.manual_seed(0)
    joined = torch.randn(2, 21, 3, 2, 16, device=DEVICE).to(DTYPE)
    q, k, v = joined.permute(2, 0, 3, 1, 4)
    check(q, k, v, torch.randn(1, 2, 21, 21, device=DEVICE).transpose(2, 3))


@kernel_test
@pytest.mark.parametrize(("name", "options"), [("kerple", {}), ("table", {"extent": 3}), ("cpb", {"hidden": 8})])
@pytest.mark.parametrize("padded", [False, True])
def test_encodings(name, options, padded):
    torch.manual_seed(0)
    attention = CoordinateAttention(32, 2, 2, name, **options).to(DEVICE, DTYPE)
    with torch.no_grad():  # Some start near zero.
        for parameter in attention.encoding.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    x, coords = torch.randn(2, 37, 32, device=DEVICE, dtype=DTYPE), coordinates.grid(6, 6, device=DEVICE).with_prefix(1)
    mask = torch.arange(37, device=DEVICE) < torch.tensor([[37], [20]], device=DEVICE) if padded else None
    with torch.no_grad(), kernels.trace() as choices:
        out = attention(x, coords, mask)
    assert (choices[0].backend, choices[0].method) == ("triton", "rows")
    with torch.no_grad(), kernels.use("eager"):
        exact = attention.double()(x.double(), coords.to(dtype=torch.float64), mask)
    assert (out.double() - exact).norm() <= 0.002 * exact.norm()


@kernel_test
@pytest.mark.parametrize("learned", ["all", "bias"])
def test_gradients_go_elsewhere_or_are_refused(learned):
    attention = CoordinateAttention(32, 2, 2, "kerple").to(DEVICE, DTYPE)
    attention.requires_grad_(learned == "all")
    attention.encoding.requires_grad_()
    x, coords = torch.randn(1, 9, 32, device=DEVICE, dtype=DTYPE), coordinates.grid(3, 3, device=DEVICE)
    with kernels.trace() as choices:
        attention(x, coords).square().sum().backward()
    assert choices[0].backend != "triton"
    assert all(parameter.grad.norm() > 0 for parameter in attention.encoding.parameters())
    with kernels.use("triton"), pytest.raises(ConfigError, match="gradients"):
        attention(x, coords)
    with torch.no_grad(), kernels.use("triton"):
        assert attention(x, coords).isfinite().all()


@pytest.mark.slow
@kernel_test
@pytest.mark.parametrize("elements", [2**27, 2 * 43 * 22])
def test_compiles_whole_for_any_size(elements, monkeypatch):
    """Of as many blocks of rows: one of any size, or two here."""
    monkeypatch.setattr(dispatch, "_BLOCK_ELEMENTS_CUDA", elements)
    attention = CoordinateAttention(32, 2, 2, "kerple").to(DEVICE, DTYPE)
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(attention, fullgraph=True, dynamic=True, backend=counter)
    frames = []
    for side in (6, 7):
        coords = coordinates.grid(6, side, device=DEVICE).with_prefix(1)
        x = torch.randn(2, 6 * side + 1, 32, device=DEVICE, dtype=DTYPE)
        with kernels.use("triton"), torch.no_grad():
            torch.testing.assert_close(compiled(x, coords), attention(x, coords), atol=1e-3, rtol=1e-3)
        frames.append(counter.frame_count)
    assert frames[0] == frames[1] > 0
