"""PoPE against its sum of cosines in float64, its range of phases, and its widths."""

import math

import pytest
import torch
import torch.nn.functional as F
from reference import pope_logits, qkv

from zoo import ConfigError, coordinates
from zoo.attention import CoordinateAttention
from zoo.coordinates import Coordinates
from zoo.kernels import attention_weights

COORDS = {
    1: coordinates.text(9),
    2: coordinates.grid(3, 5).with_prefix(1),
    3: coordinates.clip(2, 2, 3),
    4: Coordinates(torch.arange(24.0).view(1, 6, 4).sin() * 5),
}


def block(axes, **options):
    torch.manual_seed(0)
    attention = CoordinateAttention(24, 2, axes, "pope", **options)
    with torch.no_grad():
        attention.encoding.delta.uniform_(-2 * math.pi, 0)
    return attention


@pytest.mark.parametrize("options", [{}, {"channels": 7}, {"base": 1e4}])
@pytest.mark.parametrize("axes", COORDS)
def test_logits_are_the_sum_of_cosines(axes, options):
    coords = COORDS[axes].to(dtype=torch.float64)
    attention = block(axes, **options).double()
    torch.manual_seed(1)
    x = torch.randn(2, coords.values.shape[1], 24, dtype=torch.float64)
    _, weights = attention(x, coords, return_attention=True)
    torch.testing.assert_close(weights, pope_logits(attention, x, coords).softmax(-1), atol=1e-11, rtol=0)


def test_width_grows_by_the_rotated_channels():
    attention = block(2, channels=7)
    coords = coordinates.grid(2, 2)
    q = torch.randn(1, 2, 4, 12)
    folded, _ = attention.encoding.fold(q, q, q, attention.encoding.frame(coords, q.dtype))
    assert attention.encoding.rotary == 6 and folded.shape[-1] == 18
    assert torch.equal(folded[..., 12:], q[..., 6:])


@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 1e-2), (torch.float16, 1e-3)])
def test_sixteen_bit_rows_stay_close(dtype, bound):
    coords, attention = coordinates.grid(32, 32), block(2).to(dtype)
    x = F.layer_norm(torch.randn(1, 1024, 24), (24,)).to(dtype)
    with torch.no_grad():
        q, k, _ = qkv(attention, x)
        q, k = attention.encoding.fold(x, q, k, attention.frame(x, coords))
        rows = attention_weights(q, k, scale=attention.scale)
        exact = pope_logits(attention, x, coords).softmax(-1)
    assert (0.5 * (rows - exact).abs().sum(-1)).mean() < bound


def test_phases_move_from_zero_and_stay_in_range():
    attention = CoordinateAttention(24, 2, 1, "pope")
    assert not attention.encoding.delta.any()
    out = attention(torch.randn(2, 9, 24), COORDS[1])
    (out * torch.randn_like(out)).sum().backward()
    assert (attention.encoding.delta.grad != 0).all()
    with torch.no_grad():
        attention.encoding.delta.add_(1.0)
    attention.encoding.project_parameters()
    assert (attention.encoding.delta == 0).all()
    uniform = CoordinateAttention(24, 2, 1, "pope", phase_init="uniform").encoding.delta
    assert -2 * math.pi <= uniform.min() < uniform.max() <= 0


def test_bad_options_are_explained():
    for options, message in (
        ({"channels": 0}, "channels"),
        ({"channels": 13}, "channels"),
        ({"phase_init": "one"}, "phase_init"),
        ({"channels": 1}, "2 or more channels"),
    ):
        with pytest.raises(ConfigError, match=message):
            CoordinateAttention(24, 2, 2, "pope", **options)
