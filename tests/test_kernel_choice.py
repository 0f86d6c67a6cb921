"""Which kernel runs a call: the choice, forced ones and their refusals, `explain`; and the less common kernels."""

import contextlib
import sys

import pytest
import torch
import torch._dynamo.testing

from zoo import ConfigError, coordinates, kernels
from zoo.attention import CoordinateAttention
from zoo.kernels import dispatch
from zoo.kernels.select import Call, select

DIM = 24
GRID = coordinates.grid(3, 5)
CUDA = torch.device("cuda")


def call(**changes):
    return Call(**{"device": CUDA, "dtype": torch.bfloat16, "width": 64, "value_width": 64, **changes})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("elements", [2**26, 100])
@pytest.mark.parametrize("case", ["alibi", "lookhere", "table"])
def test_plain_products_agree_with_the_oracle(case, elements, dtype, monkeypatch):
    """What CUDA takes in 16 bit, run here, at once and by blocks of query rows."""
    monkeypatch.setattr(dispatch, "_DENSE_ELEMENTS", elements)
    coords, x = GRID.with_prefix(1), torch.randn(2, 16, 64).to(dtype)
    attention = CoordinateAttention(64, 4, 2, case).to(dtype)
    with torch.no_grad(), kernels.use("eager"):
        expected = attention(x, coords)
    with torch.no_grad(), kernels.use("dense"), kernels.trace() as choices:
        out = attention(x, coords)
    assert choices[0].backend == "dense"
    assert (out - expected).abs().max() < 0.02 * expected.abs().max()


@pytest.mark.parametrize("elements", [2**26, 300])
def test_plain_products_have_gradients_and_keep_masks(elements, monkeypatch):
    monkeypatch.setattr(dispatch, "_DENSE_ELEMENTS", elements)
    attention, x = CoordinateAttention(DIM, 4, 2, "kerple").double(), torch.randn(2, 15, DIM, dtype=torch.float64)
    mask = torch.ones(2, 15, dtype=torch.bool)
    mask[1, 9:] = False
    results = []
    for kernel in ("dense", "sdpa"):
        attention.zero_grad()
        with kernels.use(kernel):
            out = attention(x, GRID, mask)
        out.square().sum().backward()
        results.append([out.detach(), *(parameter.grad.clone() for parameter in attention.parameters())])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("case", ["alibi", "lookhere"])
def test_flex_runs_when_forced(case):
    coords, x = GRID.with_prefix(1), torch.randn(2, 16, 64).bfloat16()
    attention = CoordinateAttention(64, 4, 2, case).bfloat16()
    with torch.no_grad(), kernels.use("eager"):
        expected = attention(x, coords)
    with torch.no_grad(), kernels.use("flex"), kernels.trace() as choices:
        out = attention(x, coords)
    assert choices[0].backend == "flex"
    assert (out - expected).abs().max() < 0.02 * expected.abs().max()


@pytest.mark.parametrize(
    ("case", "masked", "message"), [("table", False, "scores"), ("none", False, "scores"), ("alibi", True, "mask")]
)
def test_flex_is_refused_where_it_does_not_apply(case, masked, message):
    attention, mask = CoordinateAttention(64, 4, 2, case), torch.ones(2, 15, dtype=torch.bool)
    with kernels.use("flex"), pytest.raises(ConfigError, match=message):
        attention(torch.randn(2, 15, 64), GRID, mask if masked else None)


def test_the_choice_on_cuda(monkeypatch):
    monkeypatch.setattr(sys.modules["zoo.kernels.select"], "shapes_problem", lambda *_: None)
    pape = {"scored": True, "folds": True, "term": "columns", "axes": 2}
    assert select(call()).backend == "sdpa"
    assert select(call(packed=True)).backend == "triton"
    assert select(call(scored=True, term="distances", axes=2)).backend == "triton"
    for score in ({"term": "distances", "axes": 5}, {}):
        found = select(call(scored=True, **score))
        assert (found.backend, found.method) == ("triton", "rows")
        assert select(call(scored=True, **score, gradients=True)).backend == "dense"
        assert select(call(scored=True, **score, mask_dims=4)).backend == "dense"
        assert select(call(scored=True, **score, packed=True)).backend == "dense"
    assert select(call(**pape)).backend == "triton"
    assert select(call(**{**pape, "term": None})).method == "fold"
    assert select(call(**pape, mask_dims=4)) == kernels.Choice("sdpa", "fold", "default")
    assert select(call(scored=True, dtype=torch.float32)).method == "rows"
    with kernels.use("triton"), pytest.raises(ConfigError, match="as many queries"):
        select(call(**pape, square=False))
    with kernels.use("triton"), pytest.raises(ConfigError, match="gradients"):
        select(call(scored=True, gradients=True))
    with kernels.use("triton"), pytest.raises(ConfigError, match=r"masks of keys"):
        select(call(**pape, mask_dims=4))
    with kernels.use("dense"), pytest.raises(ConfigError, match="additive scores"):
        select(call())
    pope = {"product": True, "term": "polar"}
    for change in ({}, {"gradients": True}, {"packed": True}, {"causal": True, "mask_dims": 2}):
        found = select(call(**pope, **change))
        assert (found.backend, found.method) == ("triton", "inside")
    for change in ({"mask_dims": 4}, {"square": False}, {"term": None}):
        assert select(call(**{**pope, **change})) == kernels.Choice("sdpa", "fold", "default")
    with kernels.use("eager"):
        assert select(call(**pope)).method == "fold"
    with kernels.use("triton"), pytest.raises(ConfigError, match="for another dtype"):
        select(call(product=True))


def test_the_choice_on_a_cpu():
    x = torch.randn(2, 15, DIM, dtype=torch.bfloat16)
    for name, method in (("alibi", "rows"), ("pape", "fold"), ("pope", "fold"), ("rope", "plain")):
        with torch.no_grad(), kernels.trace() as choices:
            CoordinateAttention(DIM, 2, 2, name).bfloat16()(x, GRID)
        assert (choices[0].backend, choices[0].method) == ("sdpa", method)


@pytest.mark.parametrize("kernel", [None, "sdpa", "eager"])
def test_gradients_in_16_bit_are_not_folded(kernel):
    """Folded, the gradient of the curvature is off by 12 % at 32 x 32 tokens."""
    torch.manual_seed(0)
    coords, x = coordinates.grid(32, 32), torch.randn(1, 1024, 64).bfloat16()
    attention = CoordinateAttention(64, 1, 2, "pape", parabolas=8).bfloat16()
    with kernels.use(kernel) if kernel else contextlib.nullcontext(), kernels.trace() as choices:
        found = torch.autograd.grad(attention(x, coords).float().square().sum(), attention.encoding.a.weight)[0]
    assert choices[0].method == "rows"
    exact = torch.autograd.grad(
        attention.double()(x.double(), coords.to(dtype=torch.float64)).square().sum(), attention.encoding.a.weight
    )[0]
    assert (found.double() - exact).norm() < 0.02 * exact.norm()
    with torch.no_grad(), kernels.trace() as choices:
        attention.bfloat16()(x, coords)
    assert choices[0].method == "fold"


def test_score_encodings_compile_once_for_all_sizes():
    attention = CoordinateAttention(DIM, 2, 2, "alibi").eval()
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(attention, dynamic=True, fullgraph=True, backend=counter)
    with torch.no_grad():
        for side in (3, 5, 6, 7):
            coords, x = coordinates.grid(side, side + 1), torch.randn(1, side * (side + 1), DIM)
            torch.testing.assert_close(compiled(x, coords), attention(x, coords))
    assert counter.frame_count == 1


def test_kernels_are_forced_by_the_environment(monkeypatch):
    monkeypatch.setenv("ZOO_KERNEL", "eager")
    assert kernels.forced() == "eager"
    assert select(call()).reason == "forced by ZOO_KERNEL"
    monkeypatch.setenv("ZOO_KERNEL", "fast")
    with pytest.raises(ConfigError, match="unknown attention kernel 'fast'"):
        select(call())


def test_explain_says_what_runs_and_why_not_the_others():
    found = kernels.explain("pape", device="cpu", dtype=torch.float32)
    assert (found.choice.backend, found.choice.method) == ("sdpa", "fold")
    assert found.others["triton"].startswith("cannot: ")
    assert set(found.others) == set(kernels.FORCIBLE) - {"sdpa"}
    assert "not triton: cannot: it runs on CUDA" in str(found)
    assert kernels.explain("table", device="cuda", training=True).choice.backend == "dense"
    assert kernels.explain("pape", tokens=(3, 4, 5), device="cpu").call.axes == 3
    assert kernels.explain("none", device="cpu", packed=True).call.packed
    assert kernels.explain("pape", device="cpu", mask=True).call.mask_dims == 2
    far = kernels.explain("pape", tokens=(200, 200), device="cpu", dtype=torch.bfloat16)
    assert far.call.term == "parabolas"


def test_explain_tells_inference_from_training(monkeypatch):
    monkeypatch.setattr(sys.modules["zoo.kernels.select"], "shapes_problem", lambda *_: None)
    found = kernels.explain("table", device="cuda")
    assert str(found).startswith("triton (rows): an additive score")
    found = kernels.explain("table", device="cuda", training=True)
    assert found.choice.backend == "dense" and "needs for gradients" in found.others["triton"]


def test_explain_says_how_pope_runs(monkeypatch):
    found = kernels.explain("pope", device="cpu")
    assert (found.choice.backend, found.choice.method) == ("sdpa", "fold") and found.call.term == "polar"
    assert kernels.explain("pope", device="cpu", dtype=torch.float32).call.term is None
    monkeypatch.setattr(sys.modules["zoo.kernels.select"], "shapes_problem", lambda *_: None)
    found = kernels.explain("pope", device="cuda", training=True)
    assert str(found).startswith("triton (inside): q and k are turned inside")
    assert found.others["dense"].startswith("cannot: ") and "wider q and k" in found.others["sdpa"]


def test_explain_refuses_what_does_not_exist():
    with pytest.raises(ConfigError, match="encoding"):
        kernels.explain("nonsense")
    with kernels.use("flex"), pytest.raises(ConfigError, match="flex"):
        kernels.explain("none", device="cpu")
