"""The kernels of PaPE's coefficients against dense float64, on a CUDA device or by Triton's interpreter on the CPU.

Without a device the whole file runs once more in a process of its own, where the interpreter is on.
"""

import pytest
import torch
import torch.nn.functional as F
from interpreted import DEVICE, HERE, kernel_test, run

from zoo import DataError, coordinates, kernels
from zoo.attention import CoordinateAttention
from zoo.encodings.quadratic import pairs
from zoo.kernels import coefficients
from zoo.kernels.coefficients import MAX_PARABOLAS, fused_coefficients_problem, quadratic_coefficients

pytest.importorskip("triton")
DTYPE = torch.float16


@pytest.mark.skipif(HERE, reason="this is the process that runs the kernels")
@pytest.mark.timeout(900)
def test_kernels_by_the_interpreter():
    run(__file__, timeout=850)


def operands(tokens, channels, heads, parabolas, axes, batch=1):
    torch.manual_seed(0)
    x = torch.randn(batch, tokens, channels).to(DEVICE, DTYPE)
    weight = (torch.randn(heads, parabolas, channels) / channels**0.5).to(DEVICE, DTYPE)
    directions = torch.rand(heads, parabolas, axes, device=DEVICE) - 0.5
    products = torch.stack([directions[..., a] * directions[..., b] for a, b in pairs(axes)], dim=-1)
    linear = torch.randn(heads, axes, channels).to(DEVICE) / channels**0.5
    return [given.requires_grad_() for given in (x, weight, products.detach(), linear)]


def reference(x, weight, products, linear):
    a = F.softplus(torch.einsum("bnc,hmc->bhnm", x, weight))
    return torch.einsum("bhnm,hmk->bhnk", a, products), torch.einsum("bnc,hpc->bhnp", x, linear)


def gradients(function, inputs, cotangents):
    outputs = function(*inputs)
    total = sum((out * given.to(out.dtype)).sum() for out, given in zip(outputs, cotangents, strict=True))
    return [out.detach() for out in outputs], list(torch.autograd.grad(total, inputs))


def error(found, exact):
    assert found.shape == exact.shape
    return ((found.double() - exact).norm() / exact.norm()).item()


def check(inputs, bounds=(1e-5, 0.01)):
    """Forward is float32 from the same 16-bit numbers; gradients of 16-bit inputs are 16 bit themselves."""
    wide = [given.detach().double().requires_grad_() for given in inputs]
    outputs = reference(*wide)
    cotangents = [torch.randn(out.shape).to(DEVICE) for out in outputs]
    found, grads = gradients(quadratic_coefficients, inputs, cotangents)
    exact, exact_grads = gradients(reference, wide, cotangents)
    for out, expected in zip(found, exact, strict=True):
        assert out.dtype == torch.float32 and error(out, expected) < bounds[0]
    for grad, given, expected in zip(grads, inputs, exact_grads, strict=True):
        assert grad.dtype == given.dtype and error(grad, expected) < bounds[1]


@kernel_test
@pytest.mark.parametrize("channels", [48, 100])
@pytest.mark.parametrize("parabolas", [2, 50, 100])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_agrees_with_float64(axes, parabolas, channels):
    check(operands(17, channels, 3, parabolas, axes, batch=2))


@kernel_test
@pytest.mark.parametrize("tokens", [1, 17, 64, 130])
def test_numbers_of_tokens(tokens):
    check(operands(tokens, 64, 2, 50, 2))


@kernel_test
@pytest.mark.parametrize(("parabolas", "axes"), [(50, 4), (60, 2), (MAX_PARABOLAS, 3)])
def test_heads_that_fill_their_columns(parabolas, axes):
    check(operands(5, 32, 2, parabolas, axes))


@kernel_test
@pytest.mark.parametrize("heads", [1, 5, 12])
def test_several_heads_in_a_tile(heads, monkeypatch):
    monkeypatch.setattr(coefficients, "_ENOUGH", 1)  # The tiles of large inputs.
    check(operands(131, 70, heads, 14, 2))
    assert coefficients.tiling("forward", 131, heads, 18).heads == min(4, {1: 1, 5: 8, 12: 16}[heads])


@kernel_test
def test_without_linear_terms():
    x, weight, products, linear = operands(9, 32, 2, 5, 2)
    m, t = quadratic_coefficients(x, weight, products, linear[:, :0])
    assert t.shape == (1, 2, 9, 0)
    assert error(m, reference(x.double(), weight.double(), products.double(), linear.double())[0]) < 1e-5


@kernel_test
def test_empty_batch():
    inputs = operands(6, 32, 2, 5, 2, batch=0)
    found, grads = gradients(quadratic_coefficients, inputs, [torch.ones((), device=DEVICE)] * 2)
    assert [out.shape for out in found] == [(0, 2, 6, 3), (0, 2, 6, 2)]
    assert all(grad.shape == given.shape and not grad.any() for grad, given in zip(grads, inputs, strict=True))


@kernel_test
def test_strided_features_and_gradients():
    x, weight, products, linear = operands(40, 32, 2, 6, 2, batch=2)
    strided = x.detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    assert not strided.is_contiguous()
    check([strided, weight, products, linear])
    m, _ = quadratic_coefficients(strided, weight, products, linear)
    (expanded,) = torch.autograd.grad(m.sum(), products)  # The gradient of a sum has strides of 0.
    (dense,) = torch.autograd.grad(quadratic_coefficients(x, weight, products, linear)[0].sum(), products)
    torch.testing.assert_close(expanded, dense)


@kernel_test
def test_nothing_comes_from_padding():
    """Weights of 0 give softplus(0) for each of 50 parabolas, and none for the 10 other columns of a tile."""
    x, weight, products, linear = operands(20, 32, 2, 50, 2)
    with torch.no_grad():
        m, t = quadratic_coefficients(x, weight * 0, torch.ones_like(products), linear * 0)
    torch.testing.assert_close(m, torch.full_like(m, 50 * torch.log(torch.tensor(2.0)).item()), rtol=1e-6, atol=0)
    assert not t.any()


@kernel_test
@pytest.mark.parametrize("z", [-60.0, -12.0, -5.0, 0.0, 15.0, 300.0])
def test_softplus_keeps_its_relative_precision(z):
    x = torch.full((1, 1, 16), z / 16, device=DEVICE, dtype=DTYPE).requires_grad_()
    weight = torch.ones(1, 1, 16, device=DEVICE, dtype=DTYPE)
    one, none = torch.ones(1, 1, 1, device=DEVICE), torch.zeros(1, 1, 16, device=DEVICE)
    m, _ = quadratic_coefficients(x, weight, one, none)
    (grad,) = torch.autograd.grad(m.sum(), x)
    exact = x.detach().double().sum().cpu()
    torch.testing.assert_close(m.double().cpu().squeeze(), F.softplus(exact), rtol=1e-5, atol=0)
    torch.testing.assert_close(grad[0, 0, 0].double().cpu(), exact.sigmoid(), rtol=1e-2, atol=1e-7)


@kernel_test
def test_the_linear_term_is_as_exact_as_its_weights():
    """Weights rounded to 16 bit once would be off by 2e-4 here."""
    inputs = operands(30, 100, 2, 4, 2)
    _, t = quadratic_coefficients(*inputs)
    assert error(t, reference(*(given.double() for given in inputs))[1]) < 1e-6


@kernel_test
def test_results_do_not_differ_between_runs():
    inputs = operands(150, 48, 3, 9, 2)
    cotangents = [torch.randn(1, 3, 150, count).to(DEVICE) for count in (3, 2)]
    first, second = (gradients(quadratic_coefficients, inputs, cotangents) for _ in range(2))
    for a, b in zip([*first[0], *first[1]], [*second[0], *second[1]], strict=True):
        assert torch.equal(a, b)


@kernel_test
def test_frozen_weights_leave_the_gradient_of_the_features():
    inputs = operands(11, 32, 2, 5, 2)
    (whole,) = torch.autograd.grad(sum(out.sum() for out in quadratic_coefficients(*inputs)), inputs[0])
    frozen = [inputs[0], *(given.detach() for given in inputs[1:])]
    (alone,) = torch.autograd.grad(sum(out.sum() for out in quadratic_coefficients(*frozen)), inputs[0])
    assert torch.equal(whole, alone)


@kernel_test
@pytest.mark.parametrize("change", ["shape", "dtype"])
def test_operands_that_do_not_fit(change):
    x, weight, products, linear = operands(3, 32, 2, 5, 2)
    if change == "shape":
        with pytest.raises(DataError, match="expected"):
            quadratic_coefficients(x, weight, products[:1], linear)
    else:
        with pytest.raises(DataError, match="float32"):
            quadratic_coefficients(x, weight, products.half(), linear)


@kernel_test
def test_the_operators_keep_their_promises():
    """Fake kernels, schemas and autograd, as compiling and exporting rely on them."""
    arguments = operands(6, 32, 2, 5, 2)
    torch.library.opcheck(
        coefficients._operator, arguments, test_utils=("test_schema", "test_autograd_registration", "test_faketensor")
    )
    with torch.no_grad():
        m, t, stacked = coefficients._operator(*arguments)
    torch.library.opcheck(
        torch.ops.zoo.coefficients_backward.default,
        (torch.randn_like(m), torch.randn_like(t), arguments[0].detach(), stacked, arguments[2].detach()),
        test_utils=("test_schema", "test_faketensor"),
    )


@kernel_test
def test_compiles_whole_for_any_size_with_gradients():
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(quadratic_coefficients, fullgraph=True, dynamic=True, backend=counter)
    for tokens in (6, 9, 20):
        inputs = operands(tokens, 32, 2, 5, 2, batch=2)
        cotangents = [torch.randn(2, 2, tokens, count).to(DEVICE) for count in (3, 2)]
        found, expected = (gradients(f, inputs, cotangents) for f in (compiled, quadratic_coefficients))
        for a, b in zip([*found[0], *found[1]], [*expected[0], *expected[1]], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    assert counter.frame_count == 1


def attention(name, dtype=DTYPE, **options):
    torch.manual_seed(0)
    return CoordinateAttention(32, 2, 2, name, **options).to(DEVICE, dtype)


def encoded(layer, x, coords):
    """M and t of a layer, and the gradients of what they depend on."""
    layer.zero_grad()
    x = x.detach().clone().requires_grad_()
    score = layer.encoding.score(x, layer.frame(x, coords), layer.scale)
    parts = [score.m, score.t]
    (score.m.square().sum() + score.t.square().sum()).backward()
    return [*(part.detach() for part in parts), x.grad, *(p.grad.clone() for p in layer.encoding.parameters())]


@kernel_test
@pytest.mark.parametrize("options", [{}, {"parabolas": 7}])
def test_pape_by_the_kernel_equals_pape_without(options):
    layer, coords = attention("pape", **options), coordinates.grid(4, 5, device=DEVICE)
    x = torch.randn(2, 20, 32).to(DEVICE, DTYPE)
    found = encoded(layer, x, coords)
    assert found[0].stride(-1) > 1  # Planes: the kernel ran.
    with kernels.use("eager"):
        expected = encoded(layer, x, coords)
    assert expected[0].stride(-1) == 1
    for a, b in zip(found[:2], expected[:2], strict=True):
        assert error(a, b.double()) < 1e-5
    for a, b in zip(found[2:], expected[2:], strict=True):
        assert error(a, b.double()) < 0.01


@kernel_test
def test_whole_attention_agrees_with_float64():
    layer, coords = attention("pape"), coordinates.grid(5, 5, device=DEVICE).with_prefix(1)
    x = torch.randn(2, 26, 32).to(DEVICE, DTYPE)
    with torch.no_grad():
        out = layer(x, coords)
        exact = layer.double()(x.double(), coords.to(dtype=torch.float64))
    assert error(out, exact) < 3e-3


@kernel_test
def test_autocast_casts_features_and_weights():
    layer, coords = attention("pape", torch.float32), coordinates.grid(4, 4, device=DEVICE)
    x = torch.randn(2, 16, 32, device=DEVICE)
    with torch.autocast(DEVICE, dtype=DTYPE):
        found = encoded(layer, x, coords)
    assert found[0].stride(-1) > 1 and all(grad.dtype == torch.float32 for grad in found)
    expected = encoded(layer, x, coords)
    assert expected[0].stride(-1) == 1  # No autocast, no 16 bit: no kernel.
    for a, b in zip(found, expected, strict=True):
        assert error(a, b.double()) < 5e-3


@kernel_test
@pytest.mark.parametrize(
    "name", ["pape-linear", "pape-quadratic", "pape-signed", "pape-static", "pape-ri", "pape-unprojected"]
)
def test_variants_have_their_own_coefficients(name):
    """Only what has PaPE's curvature and slope takes the kernel, whatever its directions."""
    layer, coords = attention(name), coordinates.grid(3, 4, device=DEVICE)
    x = torch.randn(1, 12, 32).to(DEVICE, DTYPE)
    frame = layer.frame(x, coords)
    with torch.no_grad():
        score = layer.encoding.score(x, frame, 1.0)
        with kernels.use("sdpa"):
            expected = layer.encoding.score(x, frame, 1.0)
    assert (score.m.stride(-1) > 1) == (name == "pape-unprojected")
    torch.testing.assert_close(score.m, expected.m, rtol=1e-5, atol=1e-6)
    if expected.t is not None:
        torch.testing.assert_close(score.t, expected.t, rtol=1e-5, atol=1e-5)


@kernel_test
def test_a_gate_takes_the_kernel_too():
    from zoo.encodings.gated import gated

    layer = attention("pape")
    layer.encoding = gated(layer.encoding, 2).to(DEVICE, DTYPE)
    torch.nn.init.constant_(layer.encoding.gate, 0.5)
    x, coords = torch.randn(1, 12, 32).to(DEVICE, DTYPE), coordinates.grid(3, 4, device=DEVICE)
    found = encoded(layer, x, coords)
    with kernels.use("eager"):
        expected = encoded(layer, x, coords)
    for a, b in zip(found, expected, strict=True):
        assert error(a, b.double()) < 0.01


@kernel_test
@pytest.mark.parametrize("parabolas", [50, MAX_PARABOLAS + 1])
def test_pape_compiles_whole(parabolas):
    """With the kernel, and with more parabolas than it takes."""
    encoding = attention("pape", parabolas=parabolas).encoding

    def make(x):
        return encoding.coefficients(x, torch.float32, torch.float32)

    compiled = torch.compile(make, fullgraph=True, dynamic=True, backend="aot_eager")
    for tokens in (9, 25):
        x = torch.randn(1, tokens, 32).to(DEVICE, DTYPE)
        found, expected = compiled(x), make(x)
        assert (found[0].stride(-1) > 1) == (parabolas <= MAX_PARABOLAS)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        found[0].sum().backward()
        assert encoding.position.grad.isfinite().all()


@kernel_test
@pytest.mark.parametrize(
    ("x", "parabolas", "message"),
    [
        (torch.zeros(1, 2, 8), 50, "not in float32"),
        (torch.zeros(1, 2, 8, dtype=torch.float64), 50, "not in float64"),
        (torch.zeros(1, 2, 8, dtype=DTYPE), MAX_PARABOLAS + 1, f"up to {MAX_PARABOLAS} parabolas"),
        (torch.zeros(1, 2, 8, dtype=DTYPE), MAX_PARABOLAS, None),
    ],
)
def test_says_why_it_cannot_run(x, parabolas, message):
    problem = fused_coefficients_problem(x.to(DEVICE), parabolas, 2)
    assert problem is None if message is None else message in problem


def test_a_forced_portable_kernel_takes_plain_torch_here_too(monkeypatch):
    x = torch.zeros(1, 2, 8, dtype=DTYPE, device=DEVICE)
    for name in ("eager", "sdpa"):
        with kernels.use(name):
            assert "forced" in fused_coefficients_problem(x, 5, 2)
    monkeypatch.setenv("ZOO_KERNEL", "eager")
    assert "forced" in fused_coefficients_problem(x, 5, 2)


@pytest.mark.skipif(HERE, reason="the kernel runs here")
def test_a_cpu_takes_plain_torch():
    assert "CUDA" in fused_coefficients_problem(torch.zeros(1, 2, 8, dtype=DTYPE), 5, 2)
