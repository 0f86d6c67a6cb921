"""On a CUDA device: kernels agree with float64, gradients are finite, compiled blocks equal eager ones."""

import pytest
import torch

import zoo
from zoo import coordinates
from zoo.attention import CoordinateAttention
from zoo.transformer import Block

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
NAMES = zoo.encodings()
DIM, HEADS = 256, 4


def inputs(side, dtype, batch=2):
    torch.manual_seed(0)
    x = torch.nn.functional.layer_norm(torch.randn(batch, side * side + 1, DIM), (DIM,))
    return x.to("cuda", dtype), coordinates.grid(side, side).with_prefix(1)


def error(name, dtype, side):
    torch.manual_seed(0)
    attention = CoordinateAttention(DIM, HEADS, 2, name).to("cuda", dtype)
    x, coords = inputs(side, dtype)
    with torch.no_grad():
        out = attention(x, coords)
        exact = attention.double()(x.double(), coords.to(dtype=torch.float64))
    return ((out.double() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("side", [14, 64])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", NAMES)
def test_kernels_agree_with_float64(name, dtype, side):
    bound = {torch.bfloat16: 0.02, torch.float16: 0.003, torch.float32: 1e-4}[dtype]
    assert error(name, dtype, side) < bound


@pytest.mark.parametrize("name", NAMES)
def test_float32_under_tf32_keeps_positions(name):
    torch.set_float32_matmul_precision("high")
    try:
        assert error(name, torch.float32, 64) < 5e-3
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_right_under_autocast(name):
    torch.manual_seed(0)
    attention = CoordinateAttention(DIM, HEADS, 2, name).cuda()
    x, coords = inputs(14, torch.float32)
    cotangent = torch.randn_like(x)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = attention(x, coords)
    (out.float() * cotangent).sum().backward()
    grads = {n: p.grad.double().clone() for n, p in attention.named_parameters()}
    attention.zero_grad()
    attention.double()
    (attention(x.double(), coords.to(dtype=torch.float64)) * cotangent).sum().backward()
    for n, p in attention.named_parameters():
        assert grads[n].isfinite().all()
        if n != "qkv.bias":  # Its key part is zero but for rounding.
            assert (grads[n] - p.grad).norm() < 0.2 * p.grad.norm(), n


@pytest.mark.parametrize("name", NAMES)
def test_compiled_blocks_equal_eager_ones(name):
    torch.manual_seed(0)
    block = Block(DIM, HEADS, 2, mlp_dim=512, encoding=name).cuda()
    x, coords = inputs(14, torch.float32)
    results = []
    for layer in (block, torch.compile(block)):
        block.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = layer(x, coords)
        out.float().square().sum().backward()
        results.append([out.float(), *(p.grad.clone() for p in block.parameters())])
    for a, b in zip(*results, strict=True):
        assert b.isfinite().all()
        assert (a - b).norm() <= 0.05 * a.norm() + 1e-3
