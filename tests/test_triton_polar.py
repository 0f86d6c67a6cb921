"""The Triton kernels of PoPE against float64, on a CUDA device or by Triton's interpreter on the CPU.

Without a device the whole file runs once more in a process of its own, where the interpreter is on.
"""

import pytest
import torch
import torch.nn.functional as F
from interpreted import DEVICE, HERE, kernel_test, run

from zoo import ConfigError, DataError, coordinates, encodings, kernels
from zoo.attention import CoordinateAttention
from zoo.coordinates import Coordinates
from zoo.encodings.extension import YaRN
from zoo.encodings.terms import Polar
from zoo.kernels import polar
from zoo.kernels.fused import interpreted

pytest.importorskip("triton")
DTYPES = [torch.float16, *([torch.bfloat16] if DEVICE == "cuda" else [])]  # The interpreter knows little of bfloat16.
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


def layer(axes=2, heads=2, width=16, dtype=torch.float16, **options):
    torch.manual_seed(0)
    attention = CoordinateAttention(heads * width, heads, axes, "pope", phase_init="uniform", **options)
    return attention.to(DEVICE, dtype)


def places(axes, count, prefix=1, batch=1):
    torch.manual_seed(1)
    coords = Coordinates((torch.rand(batch, count, axes, device=DEVICE) * 7).round())
    return coords.with_prefix(prefix) if prefix else coords


def results(attention, x, coords, mask, kernel, cotangent):
    """Output, gradient of the input, and of all parameters."""
    attention.zero_grad()
    x = x.detach().clone().requires_grad_()
    with kernels.use(kernel), kernels.trace() as choices:
        out = attention(x, coords, mask)
    (out * cotangent.to(out.dtype)).sum().backward()
    assert (choices[0].backend, choices[0].method) == (kernel, "inside" if kernel == "triton" else "fold")
    assert attention.encoding.delta.grad is not None
    return [out.detach(), x.grad, *(p.grad.clone() for p in attention.parameters())]


def close(found, expected, bound):
    for a, b in zip(found, expected, strict=True):
        assert a.isfinite().all()
        assert (a.double() - b.double()).norm() <= bound * b.double().norm() + 1e-5


def compare(attention, x, coords, mask=None, bound=None):
    """Against dense attention in float64 from the same weights and input."""
    dtype = attention.qkv.weight.dtype
    bound = bound or (0.02 if dtype == torch.bfloat16 else 0.01)
    cotangent = torch.randn(x.shape, dtype=torch.float64, device=DEVICE)
    x = x.to(DEVICE, dtype)
    found = results(attention, x, coords, mask, "triton", cotangent)
    exact = results(attention.double(), x.double(), coords.to(dtype=torch.float64), mask, "eager", cotangent)
    close(found, exact, bound)


@kernel_test
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("axes", "prefix", "options"), [(1, 0, {}), (2, 1, {}), (3, 1, {}), (2, 1, {"channels": 6}), (4, 2, {"base": 1e4})]
)
def test_agrees_with_float64(axes, prefix, options, dtype):
    compare(layer(axes, dtype=dtype, **options), torch.randn(2, SOME + prefix, 32), places(axes, SOME, prefix))


@kernel_test
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_q_k_v_and_phases(dtype):
    """From the same 16-bit q, k and v."""
    torch.manual_seed(0)
    side, heads, width = (32, 2, 64) if DEVICE == "cuda" else (6, 2, 16)
    coords, tokens = coordinates.grid(side, side, device=DEVICE).with_prefix(1), side * side + 1
    content = [torch.randn(2, heads, tokens, width, device=DEVICE).to(dtype) for _ in range(4)]
    _, encoding = encodings.create(
        "pope", dim=heads * width, num_heads=heads, head_dim=width, coord_dim=2, options={"phase_init": "uniform"}
    )
    found = {}
    for kernel, wide in (("triton", dtype), ("eager", torch.float64)):
        encoding = encoding.to(DEVICE, torch.float64 if kernel == "eager" else torch.float32)
        leaves = [x.to(wide, copy=True).requires_grad_() for x in content[:3]]
        frame = encoding.frame(coords.to(dtype=torch.float64) if kernel == "eager" else coords, wide)
        q, k, v, product = encoding.encode_attention(leaves[0], *leaves, frame, width**-0.5)
        with kernels.use(kernel):
            out = kernels.attend(q, k, v, scale=width**-0.5, score=product)
        found[kernel] = [out, *torch.autograd.grad(out, [*leaves, encoding.delta], content[3].to(wide))]
    close(found["triton"], found["eager"], 0.02 if dtype == torch.bfloat16 else 0.003)


@kernel_test
@pytest.mark.parametrize("width", [32, 64, 128])
def test_head_widths(width):
    compare(layer(heads=1, width=width), torch.randn(1, 20, width), places(2, 20, 0))


@kernel_test
@pytest.mark.parametrize("tokens", [1, 16, 33])
def test_numbers_of_tokens(tokens):
    compare(layer(), torch.randn(2, tokens, 32), places(2, tokens, 0, batch=2))


@kernel_test
def test_empty_batch():
    attention = layer()
    x = torch.randn(0, 5, 32, device=DEVICE, dtype=torch.float16, requires_grad=True)
    with kernels.use("triton"):
        out = attention(x, places(2, 5, 0))
    out.sum().backward()
    assert out.shape == (0, 5, 32) and not attention.encoding.delta.grad.any()


@kernel_test
def test_masks_of_keys():
    mask = torch.ones(3, 21, dtype=torch.bool, device=DEVICE)
    mask[0, 13:] = False
    mask[1, :] = False
    x = torch.randn(3, 21, 32)
    x[0, 13:] = float("nan")
    compare(layer(), x, places(2, 20), mask)


@kernel_test
def test_keys_that_nobody_sees_never_leak():
    """Not even where q, k and v themselves are not clean."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 21, 16, device=DEVICE, dtype=torch.float16) for _ in range(3))
    mask = torch.arange(21, device=DEVICE)[None] < 13
    _, encoding = encodings.create("pope", dim=32, num_heads=2, head_dim=16, coord_dim=2, options={})
    encoding = encoding.to(DEVICE)
    frame = encoding.frame(places(2, 21, 0), torch.float16)
    outs = []
    for hidden in (0.0, float("nan")):
        leaves = [q, *(x.masked_fill(~mask[:, None, :, None], hidden) for x in (k, v))]
        leaves = [x.clone().requires_grad_() for x in leaves]
        _, _, _, product = encoding.encode_attention(leaves[0], *leaves, frame, 0.25)
        with kernels.use("triton"):
            out = kernels.attend(*leaves, scale=0.25, score=product, mask=mask)
        outs.append([out, *torch.autograd.grad(out.square().sum(), [*leaves, encoding.delta])])
    for a, b in zip(*outs, strict=True):
        assert torch.equal(a, b)


@kernel_test
def test_causal():
    compare(layer(1, causal=True), torch.randn(2, 45, 32), places(1, 45, 0))


@kernel_test
def test_packed_samples_equal_samples_alone():
    attention, lengths = layer(3), [5, 0, 33, 1, 18]
    values = (torch.rand(sum(lengths), 3, device=DEVICE) * 9).round()
    offsets = torch.tensor([0, *lengths], device=DEVICE).cumsum(0)
    x = torch.randn(sum(lengths), 32, device=DEVICE, dtype=torch.float16).requires_grad_()
    with kernels.use("triton"):
        out = attention(x, Coordinates(values, cu_seqlens=offsets))
    out.square().sum().backward()
    found = attention.encoding.delta.grad.clone()
    attention.double().zero_grad()
    start = 0
    for length in filter(None, lengths):
        rows = slice(start, start + length)
        start += length
        alone = x.detach()[None, rows].double().requires_grad_()
        expected = attention(alone, Coordinates(values[None, rows].double()))
        expected.square().sum().backward()
        close([out[rows], x.grad[rows]], [expected[0], alone.grad[0]], 0.01)
    close([found], [attention.encoding.delta.grad], 0.01)


@kernel_test
def test_the_temperature_of_an_extension():
    attention = layer()
    attention.encoding.extend(YaRN(factor=4.0, extent=4.0))
    assert attention.encoding.gain(2) != 1.0
    compare(attention, torch.randn(2, 38, 32), places(2, 37))


@kernel_test
def test_results_do_not_differ_between_runs():
    attention = layer()
    x, cotangent = torch.randn(2, MANY, 32, device=DEVICE).half(), torch.randn(2, MANY, 32, device=DEVICE)
    runs = [results(attention, x, places(2, MANY, 0), None, "triton", cotangent) for _ in range(2)]
    for a, b in zip(*runs, strict=True):
        assert torch.equal(a, b)


@kernel_test
def test_what_is_kept_for_backward_is_what_attention_without_positions_keeps():
    kept = {}
    for name in ("pope", "none"):
        attention, sizes = CoordinateAttention(32, 2, 2, name).to(DEVICE, torch.float16), []
        x, coords = torch.randn(1, 37, 32, device=DEVICE, dtype=torch.float16), places(2, 37, 0)
        frame = attention.frame(x, coords)

        def keep(t, sizes=sizes):
            sizes.append(t.untyped_storage().nbytes() if t.numel() > 1000 else 0)
            return t

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t), kernels.use("triton"):
            attention(x, coords, frame=frame)
        kept[name] = sorted(filter(None, sizes))
    turns = 37 * 2 * 16 * 2
    assert kept["none"] and sorted([*kept["none"], turns]) == kept["pope"]


def operands(dtype=torch.float16):
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 18, 16, device=DEVICE, dtype=dtype).requires_grad_() for _ in range(3))
    angles, delta = torch.randn(1, 18, 16, device=DEVICE), torch.randn(2, 16, device=DEVICE)
    return q, k, v, torch.cat([angles.cos(), angles.sin()], dim=-1).half(), delta.requires_grad_()


@kernel_test
def test_the_operators_keep_their_promises():
    """Fake kernels, schemas and autograd, as compiling and exporting rely on them."""
    arguments = (*operands(), None, None, 12, 0.25, False)
    torch.library.opcheck(
        polar._operator, arguments, test_utils=("test_schema", "test_autograd_registration", "test_faketensor")
    )
    plain = [x.detach() if isinstance(x, torch.Tensor) else x for x in arguments]
    saved = [torch.randn_like(plain[0]), *plain[:3], *polar._forward(*plain), *plain[3:]]
    torch.library.opcheck(
        torch.ops.zoo.polar_attention_backward.default, saved, test_utils=("test_schema", "test_faketensor")
    )


@kernel_test
@pytest.mark.parametrize("scale", [0.0, -0.25, float("nan")])
def test_scales_are_positive(scale):
    q, k, v, turns, delta = operands()
    with pytest.raises(DataError, match="above 0"):
        polar.polar_attention(q, k, v, Polar(turns, delta, 16), scale=scale)


@pytest.mark.slow
@kernel_test
def test_compiles_whole_for_any_size():
    attention = layer()
    compiled = torch.compile(attention, fullgraph=True, dynamic=True, backend="aot_eager")
    for index, side in enumerate((3, 5, 6)):
        coords = coordinates.grid(side, side, device=DEVICE).with_prefix(1)
        x = torch.randn(2, side * side + 1, 32, device=DEVICE, dtype=torch.float16)
        with kernels.use("triton"), torch._dynamo.config.patch(error_on_recompile=index > 0):
            found = []
            for function in (attention, compiled):
                attention.zero_grad()
                out = function(x, coords)
                out.float().square().sum().backward()
                found.append([out.detach(), *(p.grad.clone() for p in attention.parameters())])
        close(found[1], found[0], 1e-3)


@kernel_test
def test_exports():
    attention, coords = layer().eval(), coordinates.grid(3, 3, device=DEVICE)
    x = torch.randn(2, 9, 32, device=DEVICE, dtype=torch.float16)

    class Placed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = attention

        def forward(self, x):
            return self.attention(x, coords)

    with kernels.use("triton"), torch.no_grad():
        exported = torch.export.export(Placed(), (x,))
        assert "zoo.polar_attention" in str(exported.graph)
        close([exported.module()(x)], [attention(x, coords)], 1e-3)


@kernel_test
@pytest.mark.parametrize(
    ("change", "message"), [({"dtype": torch.float32}, "float16 and bfloat16"), ({"width": 24}, "width")]
)
def test_refuses_what_it_cannot_run(change, message):
    attention = layer(heads=1, **change)
    x = torch.randn(1, 9, attention.dim, device=DEVICE, dtype=attention.qkv.weight.dtype)
    with kernels.use("triton"), pytest.raises(ConfigError, match=message):
        attention(x, coordinates.grid(3, 3, device=DEVICE))


@kernel_test
def test_refuses_angles_made_for_another_dtype():
    attention, coords = layer(), coordinates.grid(3, 3, device=DEVICE)
    frame = attention.encoding.frame(coords, torch.float32)
    x = torch.randn(1, 9, 32, device=DEVICE, dtype=torch.float16)
    with kernels.use("triton"), pytest.raises(ConfigError, match="for another dtype"):
        attention(x, coords, frame=frame)


def test_terms_are_what_is_folded():
    """What kernels are given has the logits of the fold; on any machine."""
    attention, coords = layer(channels=10).cpu().float(), coordinates.grid(4, 5).with_prefix(1)
    torch.manual_seed(2)
    q, k = torch.randn(2, 2, 2, 21, 16).unbind()
    frame = attention.encoding.frame(coords, torch.bfloat16)
    _, _, _, product = attention.encoding.encode_attention(q, q, k, k, frame, 1.0)
    terms = product.polar()
    assert product.fused and product.requires_grad and not terms.delta[:, 10:].any() and terms.delta[:, :10].all()
    assert terms.turns.shape == (1, 21, 32) and terms.turns.dtype == torch.float16 and terms.rotary == 10
    assert not attention.encoding.encode_attention(q, q, k, k, attention.encoding.frame(coords, q.dtype), 1.0)[3].fused
    cos, sin = terms.turns.float().chunk(2, -1)
    c, z = terms.delta.cos().unsqueeze(1), terms.delta.sin().unsqueeze(1)
    a, b = (torch.cat([F.softplus(x[..., :10]), x[..., 10:]], dim=-1) for x in (q, k))
    logits = (a * (cos * c + sin * z)) @ (b * cos).mT + (a * (sin * c - cos * z)) @ (b * sin).mT
    wide_q, wide_k = product.fold(q, k)
    torch.testing.assert_close(logits, wide_q @ wide_k.mT, atol=5e-3, rtol=0)
