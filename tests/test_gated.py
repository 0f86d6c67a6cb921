"""Gates in front of encodings: closed they do nothing, at 1 they are not there, between they weigh what is behind."""

from __future__ import annotations

import copy

import pytest
import torch
from rotary_reference import OPTIONS, ROTATIONS

from zoo import ConfigError, coordinates
from zoo.encodings import ATTENTION, create
from zoo.encodings.extendable import extend
from zoo.encodings.extension import NTK, DynamicNTK, PositionInterpolation, YaRN
from zoo.encodings.gated import GatedQuadratic, GatedRotation, GatedScore, gated
from zoo.kernels import attention_weights
from zoo.kernels.flex import modification

DIM, HEADS, WIDTH = 48, 4, 12
COORDS = coordinates.grid(3, 5).with_prefix(2)


def made(name, **options):
    torch.manual_seed(0)
    shape = {"dim": DIM, "num_heads": HEADS, "head_dim": WIDTH, "coord_dim": 2}
    return create(name, options=OPTIONS.get(name, {}) | options, **shape)[1]


def can_be_gated(name):
    try:
        return gated(made(name), HEADS).state_dict().keys() != made(name).state_dict().keys()
    except ConfigError:
        return False


GATED = [name for name in sorted(ATTENTION) if can_be_gated(name)]


def behind_gate(name, value, **options):
    encoding = gated(made(name, **options), HEADS)
    with torch.no_grad():
        encoding.gate.copy_(torch.as_tensor(value).expand_as(encoding.gate))
    return encoding


def inputs(dtype=torch.float64, batch=2):
    torch.manual_seed(1)
    tokens = COORDS.values.shape[1]
    x = torch.randn(batch, tokens, DIM, dtype=dtype)
    q, k = torch.randn(2, batch, HEADS, tokens, WIDTH, dtype=dtype)
    return x, q, k


def rows(encoding, x, q, k, coords=COORDS):
    """Attention rows under an encoding."""
    frame, scale = encoding.frame(coords.to(dtype=x.dtype if x.dtype == torch.float64 else None), x.dtype), WIDTH**-0.5
    if frame.kind == "fold":
        q, k = encoding.fold(x, q, k, frame)
        return attention_weights(q, k, scale=scale)
    return attention_weights(q, k, scale=scale, score=encoding.score(x, frame, scale))


def test_every_kind_is_among_them():
    kinds = {type(gated(made(name), HEADS)) for name in GATED}
    assert kinds == {GatedQuadratic, GatedRotation, GatedScore}
    assert {"pape", "pape-ri", "alibi", "kerple", "cpb", "rope", "rope-mixed", "string", "liere"} <= set(GATED)


@pytest.mark.parametrize("name", GATED)
def test_closed_and_wide_open(name):
    x, q, k = inputs()
    nothing = attention_weights(q, k, scale=WIDTH**-0.5)
    torch.testing.assert_close(rows(behind_gate(name, 0.0).double(), x, q, k), nothing, atol=1e-12, rtol=0)
    whole = rows(made(name).double(), x, q, k)
    torch.testing.assert_close(rows(behind_gate(name, 1.0).double(), x, q, k), whole, atol=1e-12, rtol=0)
    assert (whole - nothing).abs().max() > 1e-4


@pytest.mark.parametrize("name", [n for n in GATED if not isinstance(gated(made(n), HEADS), GatedRotation)])
def test_a_gate_per_head_weighs_the_bias(name):
    x, q, k = inputs()
    gates = torch.tensor([0.5, -0.25, 0.0, 2.0], dtype=torch.float64)
    encoding, plain = behind_gate(name, gates).double(), made(name).double()
    coords = COORDS.to(dtype=torch.float64)
    bias = plain.score(x, plain.frame(coords, x.dtype), WIDTH**-0.5).bias(slice(0, 17))
    expected = (WIDTH**-0.5 * q @ k.mT + gates.view(-1, 1, 1) * bias).softmax(dim=-1)
    torch.testing.assert_close(rows(encoding, x, q, k), expected, atol=1e-11, rtol=0)
    some = encoding.score(x, encoding.frame(coords, x.dtype), WIDTH**-0.5).bias(slice(3, 7))
    torch.testing.assert_close(some, (gates.view(-1, 1, 1) * bias)[:, :, 3:7], atol=1e-11, rtol=0)


@pytest.mark.parametrize("name", [n for n in GATED if isinstance(gated(made(n), HEADS), GatedRotation)])
def test_a_gate_per_layer_turns_by_a_share_of_the_angle(name):
    _, q, k = inputs()
    encoding = behind_gate(name, -0.25).double()
    frame = encoding.frame(COORDS.to(dtype=torch.float64), q.dtype)
    turned = encoding.fold(q, q, k, frame)
    scaled = COORDS.to(dtype=torch.float64).scaled(-0.25)
    reference = ROTATIONS[name]
    for got, given in zip(turned, (q, k), strict=True):
        torch.testing.assert_close(got, reference(made(name).double(), given, scaled), atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", ["alibi", "kerple"])
def test_kernels_that_add_the_bias_themselves_get_the_weighed_one(name):
    x, _, _ = inputs(torch.float32)
    encoding = behind_gate(name, [0.5, -0.25, 0.0, 2.0])
    score = encoding.score(x, encoding.frame(COORDS, x.dtype), 1.0)
    bias, add = score.bias(slice(0, 17)).detach(), modification(score)
    index = [torch.tensor(i) for i in (0, 1, 4, 9)]
    assert add(torch.tensor(2.0), *index).item() == pytest.approx(2.0 + bias[0, 1, 4, 9].item(), abs=1e-5)
    cpb = behind_gate("cpb", 0.5)
    assert modification(cpb.score(x, cpb.frame(COORDS, x.dtype), 1.0)) is None


def test_tables_and_none_need_no_gate():
    for name in ("none", "table"):
        encoding = made(name)
        assert gated(encoding, HEADS) is encoding


@pytest.mark.parametrize("name", ["pope", "lookhere", "rope-1d"])
def test_what_cannot_start_without_an_effect(name):
    with pytest.raises(ConfigError, match=f"'{name}' cannot start without an effect; these can: alibi, .*pape, "):
        gated(made(name), HEADS)


def test_parameters_start_over_and_are_named():
    encoding = behind_gate("rope-mixed", 0.4)
    with torch.no_grad():
        encoding.inner.frequencies.zero_()
    encoding.reset_parameters()
    assert not encoding.gate.any() and encoding.inner.frequencies.any()
    assert encoding.no_weight_decay() == {"gate", "inner.frequencies"}
    assert gated(made("pape"), HEADS).no_weight_decay() == {"gate", "inner.position"}


def test_extensions_reach_what_is_behind_a_gate():
    x, q, k = inputs()
    encoding = behind_gate("rope", 0.5).double()
    extend(encoding, PositionInterpolation(factor=2))
    torch.testing.assert_close(rows(encoding, x, q, k), rows(behind_gate("rope", 0.25).double(), x, q, k))
    extend(encoding, None)
    torch.testing.assert_close(rows(encoding, x, q, k), rows(behind_gate("rope", 0.5).double(), x, q, k))
    extend(encoding, YaRN(factor=2, extent=5))
    assert encoding.inner.extension == YaRN(factor=2, extent=5)
    pape = behind_gate("pape", 1.0)
    extend(pape, PositionInterpolation(factor=3))
    plain = made("pape")
    plain.extend(PositionInterpolation(factor=3))
    x, q, k = inputs(torch.float32)
    torch.testing.assert_close(rows(pape, x, q, k), rows(plain, x, q, k))


def test_extensions_that_cannot_be_had_behind_a_gate():
    encoding = behind_gate("rope", 0.5)
    with pytest.raises(ConfigError, match="'dynamic-ntk' does not apply .* behind a gate; use 'ntk'"):
        extend(encoding, DynamicNTK(factor=1, extent=5))
    assert encoding.inner.extension is None
    with pytest.raises(ConfigError, match="behind a gate"):
        gated(made("rope", extend="dynamic-ntk", extent=5), HEADS)
    with pytest.raises(ConfigError, match="temperature"):
        gated(made("rope", extend="yarn", factor=2, extent=5), HEADS)
    assert gated(made("rope", extend="ntk", factor=2), HEADS).inner.extension == NTK(2)
    with pytest.raises(ConfigError, match="does not apply to encoding 'rope-mixed'"):
        extend(behind_gate("rope-mixed", 0.5), NTK(2))


@pytest.mark.parametrize("name", GATED)
def test_sixteen_bit_and_copies(name):
    encoding = behind_gate(name, 0.6)
    x, q, k = inputs(torch.float32)
    expected = rows(encoding, x, q, k)
    half = [t.bfloat16() for t in (x, q, k)]
    with torch.autocast("cpu", torch.bfloat16):
        got = rows(encoding, *half)
    assert (got - expected).abs().max() < 0.05
    assert torch.equal(rows(copy.deepcopy(encoding), x, q, k), expected)
