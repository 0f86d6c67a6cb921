"""Contracts of the attention block over every encoding and kernel: masks, packing, kernels, dtypes, bad shapes."""

import pytest
import torch
from rotary_reference import OPTIONS, fitting_axes

import zoo
from zoo import ConfigError, DataError, coordinates, kernels
from zoo.attention import CoordinateAttention
from zoo.coordinates import Coordinates
from zoo.kernels import attend
from zoo.transformer import Block, Encoder

NAMES = zoo.encodings()
ANYWHERE = [name for name in NAMES if name != "learned"]  # A table is for grids.
BACKENDS = kernels.BACKENDS
DIM, HEADS = 24, 2


def block(name, axes=2, **options):
    torch.manual_seed(0)
    return CoordinateAttention(DIM, HEADS, axes, name, **OPTIONS.get(name, {}), **options)


def cloud(batch, tokens, axes=3):
    torch.manual_seed(1)
    return Coordinates(torch.randn(batch, tokens, axes) * 3), torch.randn(batch, tokens, DIM)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ANYWHERE)
def test_padding_changes_nothing_and_stays_finite(name, backend):
    axes = fitting_axes(name, 3)
    attention = block(name, axes)
    lengths = [0, 1, 5]
    coords, x = cloud(3, 7, axes)
    mask = torch.arange(7) < torch.tensor(lengths).unsqueeze(1)
    bad_x = x.masked_fill(~mask.unsqueeze(-1), float("nan"))
    bad_coords = Coordinates(coords.values.masked_fill(~mask.unsqueeze(-1), float("nan")))
    with kernels.use(backend):
        out, weights = attention(bad_x, bad_coords, mask, return_attention=True)
        out.square().sum().backward()
        assert out.isfinite().all() and weights.isfinite().all()
        assert all(p.grad.isfinite().all() for p in attention.parameters() if p.grad is not None)
        assert not out[~mask].any()
        assert not weights.masked_select(~mask[:, None, None, :]).any()
        for sample, length in enumerate(lengths):
            if length:
                alone = attention(
                    x[sample : sample + 1, :length], Coordinates(coords.values[sample : sample + 1, :length])
                )
                torch.testing.assert_close(out[sample : sample + 1, :length], alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ANYWHERE)
def test_packed_samples_equal_single_ones(name):
    axes = fitting_axes(name, 3)
    attention = block(name, axes)
    coords, x = cloud(1, 12, axes)
    offsets = torch.tensor([0, 5, 5, 12])
    packed = attention(x[0], Coordinates(coords.values[0], cu_seqlens=offsets))
    assert packed.shape == (12, DIM)
    for a, b in ((0, 5), (5, 12)):
        alone = attention(x[:, a:b], Coordinates(coords.values[:, a:b]))
        torch.testing.assert_close(packed[a:b].unsqueeze(0), alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_kernels_agree_with_the_oracle(name, causal):
    attention = block(name, causal=causal)
    coords = coordinates.grid(3, 4).with_prefix(1)
    x = torch.randn(2, 13, DIM, requires_grad=True)
    results = []
    for backend in BACKENDS:
        with kernels.use(backend), kernels.trace() as choices:
            out = attention(x, coords)
        assert [choice.backend for choice in choices] == [backend]
        grads = torch.autograd.grad(out.square().sum(), [x, *attention.parameters()])
        results.append((out, *grads))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_causal_tokens_do_not_see_the_future(name):
    attention = block(name, causal=True)
    coords, x = coordinates.grid(2, 4), torch.randn(1, 8, DIM)
    changed = x.clone()
    changed[:, 5:] += 1.0
    torch.testing.assert_close(attention(changed, coords)[:, :5], attention(x, coords)[:, :5], atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_dtypes_go_through(name, dtype):
    attention, coords = block(name), coordinates.grid(4, 4).with_prefix(1)
    x = torch.randn(2, 17, DIM)
    exact = attention(x, coords)
    out = attention.to(dtype)(x.to(dtype), coords)
    assert out.dtype == dtype
    tolerance = {torch.bfloat16: 0.05, torch.float16: 0.01, torch.float64: 1e-5}[dtype]
    torch.testing.assert_close(out.float(), exact, atol=tolerance, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_weights_loaded_after_eval_count(name):
    a, b = block(name), block(name)
    with torch.no_grad():
        for parameter in a.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    coords, x = coordinates.grid(3, 3), torch.randn(1, 9, DIM)
    b.eval()
    b(x, coords)
    b.load_state_dict(a.state_dict())
    assert torch.equal(b(x, coords), a(x, coords))
    assert not any(buffer.numel() for buffer in a.buffers())


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_gets_a_gradient(name):
    torch.manual_seed(0)
    encoder = Encoder(DIM, 2, HEADS, 2, mlp_dim=32, encoding=name, encoding_options=OPTIONS.get(name))
    encoder(torch.randn(2, 10, DIM), coordinates.grid(3, 3).with_prefix(1)).square().sum().backward()
    without = [n for n, p in encoder.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    # A constant added to all keys cancels in the softmax, so the key bias may get rounding noise or zero.
    assert not without


@pytest.mark.parametrize("name", NAMES)
def test_checkpointing_changes_no_gradient(name):
    grads = []
    for on in (False, True):
        torch.manual_seed(0)
        encoder = Encoder(DIM, 2, HEADS, 2, mlp_dim=32, encoding=name, encoding_options=OPTIONS.get(name))
        encoder.grad_checkpointing = on
        encoder(torch.ones(1, 9, DIM).cumsum(1), coordinates.grid(3, 3)).square().sum().backward()
        grads.append([p.grad for p in encoder.parameters()])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


def test_one_frame_serves_all_layers(monkeypatch):
    encoder = Encoder(DIM, 3, HEADS, 2, mlp_dim=32, encoding="pape")
    made = []
    original = CoordinateAttention.frame
    monkeypatch.setattr(CoordinateAttention, "frame", lambda *a: made.append(1) or original(*a))
    encoder(torch.randn(1, 9, DIM), coordinates.grid(3, 3))
    assert len(made) == 1


def test_hidden_keys_never_leak_through_attend():
    q, k, v = torch.randn(3, 2, 1, 4, 8).unbind(0)
    k[0, :, 3], v[0, :, 3] = float("inf"), float("nan")
    mask = torch.ones(2, 4, dtype=torch.bool)
    mask[0, 3] = False
    for backend in BACKENDS:
        with kernels.use(backend):
            out = attend(q, k, v, scale=1.0, mask=mask)
            expected = attend(q[:1], k[:1, :, :3], v[:1, :, :3], scale=1.0)
        torch.testing.assert_close(out[:1], expected, atol=1e-6, rtol=0)


def test_rows_that_see_nothing_are_zero_with_finite_gradients():
    q, k, v = (torch.randn(1, 2, 3, 8, requires_grad=True) for _ in range(3))
    mask = torch.ones(1, 1, 3, 3, dtype=torch.bool)
    mask[:, :, 1] = False
    for backend in BACKENDS:
        with kernels.use(backend):
            out = attend(q, k, v, scale=1.0, mask=mask)
        assert not out[:, :, 1].any() and out[:, :, 0].any()
        assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), (q, k, v)))


def test_masks_and_scores_that_hide_keys_combine():
    """Heads of LookHere hide keys themselves; what is left may be hidden by the mask."""
    attention = CoordinateAttention(24, 12, 2, "lookhere").double()
    coords, x = coordinates.grid(3, 3), torch.randn(2, 9, 24, dtype=torch.float64)
    q, k, v = attention.qkv(x).unflatten(-1, (3, 12, 2)).permute(2, 0, 3, 1, 4)
    score = attention.encoding.score(x, attention.frame(x, coords), attention.scale)
    mask = torch.zeros(2, 1, 9, 9, dtype=torch.bool)
    mask[..., 0] = True  # The upper left corner alone, which heads that look down or right do not see.
    outs = []
    for backend in BACKENDS:
        with kernels.use(backend):
            out = attend(q, k, v, scale=attention.scale, mask=mask, score=score)
        (gradient,) = torch.autograd.grad(out.sum(), attention.qkv.weight, retain_graph=True)
        assert gradient.isfinite().all()
        outs.append(out)
    assert (outs[0] == 0).all(-1).any() and (outs[0] != 0).any()
    torch.testing.assert_close(outs[0], outs[1])


def test_narrow_values_and_explicit_scale():
    q, k, v = torch.randn(1, 2, 5, 16), torch.randn(1, 2, 5, 16), torch.randn(1, 2, 5, 8)
    expected = (0.5 * q @ k.mT).softmax(-1) @ v
    for backend in BACKENDS:
        with kernels.use(backend):
            torch.testing.assert_close(attend(q, k, v, scale=0.5), expected, atol=1e-6, rtol=1e-5)


def test_kernel_choice_is_forced_refused_and_reported(monkeypatch):
    call = kernels.Call(torch.device("cpu"), torch.float32, 8, 8)
    assert kernels.select(call).backend == "sdpa"
    monkeypatch.setenv("ZOO_KERNEL", "eager")
    assert kernels.select(call).reason == "forced by ZOO_KERNEL"
    with kernels.trace() as outer:
        with kernels.trace():
            pass
        block("none")(torch.randn(1, 4, DIM), coordinates.grid(2, 2))
    assert len(outer) == 1
    with kernels.use("sdpa"):
        assert kernels.select(call).backend == "sdpa"
    monkeypatch.setenv("ZOO_KERNEL", "warp")
    with pytest.raises(ConfigError, match="unknown attention kernel 'warp'"):
        kernels.select(call)
    with pytest.raises(ConfigError, match="eager, sdpa"), kernels.use("flash"):
        pass


def test_bad_shapes_are_explained():
    attention, coords, x = block("pape"), coordinates.grid(2, 2), torch.randn(1, 4, DIM)
    with pytest.raises(DataError, match=r"\(B, N, 24\)"):
        attention(torch.randn(1, 4, 7), coords)
    for wrong in ((x, None), (x, x), ([1], coords), (x, coords, [True])):
        with pytest.raises(DataError, match="attention takes"):
            attention(*wrong)
    for sizes in ((0, 1, 2), (8, "2", 2), (8, 2, True)):
        with pytest.raises(ConfigError, match="positive whole number"):
            CoordinateAttention(*sizes)
    with pytest.raises(ConfigError, match="head_dim"):
        CoordinateAttention(8, 2, 2, head_dim=0)
    with pytest.raises(DataError, match="2 numbers for each of 4 tokens"):
        attention(x, coordinates.grid(2, 3))
    with pytest.raises(DataError, match="2 numbers"):
        attention(x, coordinates.text(4))
    with pytest.raises(DataError, match="batch of 3"):
        attention(x, Coordinates(torch.zeros(3, 4, 2)))
    with pytest.raises(DataError, match="mask must be bool"):
        attention(x, coords, torch.ones(1, 4))
    with pytest.raises(DataError, match="mask must be bool"):
        attend(*(torch.randn(1, 1, 3, 8),) * 3, scale=1.0, mask=torch.ones(1, 5, dtype=torch.bool))
    with pytest.raises(DataError, match="do not fit"):
        attend(torch.randn(1, 1, 3, 8), torch.randn(1, 1, 3, 9), torch.randn(1, 1, 3, 8), scale=1.0)
    with pytest.raises(DataError, match="must rise"):
        attention(x[0], Coordinates(torch.zeros(4, 2), cu_seqlens=torch.tensor([0, 3, 2, 4])))


@pytest.mark.parametrize("name", ["pape", "rope", "rope-mixed", "none"])
def test_blocks_compile_whole(name):
    torch.manual_seed(0)
    layer = Block(DIM, HEADS, 2, mlp_dim=32, encoding=name)
    coords, x = coordinates.grid(3, 4).with_prefix(1), torch.randn(2, 13, DIM)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, coords), layer(x, coords), atol=1e-5, rtol=0)
