"""Submanifold convolution against the dense one, forward and backward, and the choice of its backend."""

import sys
import types

import pytest
import torch
import torch.nn.functional as F
from ptv3_toys import clouds

from modalities.points import sparse_conv
from modalities.points.kernel_map import kernel_map
from modalities.points.sparse_conv import SubmanifoldConv
from modalities.points.voxels import voxelise
from zoo import ConfigError, DataError


def dense(conv, x, level):
    """The same on a full grid of every cloud, read at the occupied voxels."""
    places = (level.cloud, *level.cells.unbind(1))
    grid = x.new_zeros(len(level.counts) - 1, *[top + 1 for top in level.top], x.shape[1]).index_put(places, x)
    weight = conv.weight.permute(0, 4, 1, 2, 3)
    out = F.conv3d(grid.permute(0, 4, 1, 2, 3), weight, conv.bias, padding=conv.kernel_size // 2)
    return out.permute(0, 2, 3, 4, 1)[places]


def setting(kernel_size, dtype=torch.float64, bias=True):
    torch.manual_seed(0)
    level = voxelise(clouds(60, 0, 150, 1), 0.5)[0]
    conv = SubmanifoldConv(3, 5, kernel_size, bias=bias).to(dtype)
    x = torch.randn(len(level), 3, dtype=dtype, requires_grad=True)
    return conv, x, kernel_map(level, kernel_size)


@pytest.mark.parametrize("elements", [1 << 20, 100])
@pytest.mark.parametrize(("kernel_size", "bias"), [(3, True), (5, False), (1, True)])
def test_equals_the_dense_convolution(kernel_size, bias, elements, monkeypatch):
    monkeypatch.setattr(sparse_conv, "_ELEMENTS", elements)
    conv, x, neighbours = setting(kernel_size, bias=bias)
    out, expected = conv(x, neighbours), dense(conv, x, neighbours.level)
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=0)
    assert conv.bias is None or conv.bias.abs().min() > 0
    gradient = torch.randn_like(out)
    inputs = [x, *conv.parameters()]
    got = torch.autograd.grad(out, inputs, gradient)
    for one, other in zip(got, torch.autograd.grad(expected, inputs, gradient), strict=True):
        torch.testing.assert_close(one, other, atol=1e-11, rtol=0)


def test_gradients():
    level = voxelise(clouds(12, 5), 0.7)[0]
    neighbours = kernel_map(level, 3)
    x = torch.randn(len(level), 2, dtype=torch.float64, requires_grad=True)
    conv = SubmanifoldConv(2, 2, 3).double()
    assert torch.autograd.gradcheck(lambda x, w, b: _with(conv, x, w, b, neighbours), (x, conv.weight, conv.bias))


def _with(conv, x, weight, bias, neighbours):
    return torch.func.functional_call(conv, {"weight": weight, "bias": bias}, (x, neighbours))


def test_gradients_are_the_same_to_the_bit_every_time():
    conv, x, neighbours = setting(3, torch.float32)
    gradients = [torch.autograd.grad(conv(x, neighbours).square().sum(), [x, conv.weight]) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_autocast_runs_in_its_dtype():
    conv, x, neighbours = setting(3, torch.float32)
    with torch.autocast("cpu", torch.bfloat16), sparse_conv.trace() as choices:
        out = conv(x, neighbours)
    assert out.dtype == torch.bfloat16 and [choice.backend for choice in choices] == ["gather"]
    torch.testing.assert_close(out.float(), conv(x, neighbours), atol=0.05, rtol=0.05)
    out.float().sum().backward()
    assert x.grad.dtype == conv.weight.grad.dtype == torch.float32


def test_no_voxels():
    conv = SubmanifoldConv(3, 5, 3)
    level = voxelise(clouds(0, 0), 0.5)[0]
    x = torch.zeros(0, 3, requires_grad=True)
    out = conv(x, kernel_map(level, 3))
    out.sum().backward()
    assert out.shape == (0, 5) and conv.weight.grad.abs().sum() == 0 and x.grad.shape == (0, 3)


def test_what_does_not_fit():
    conv, x, neighbours = setting(3)
    with pytest.raises(DataError, match="got .* the map of a kernel 3"):
        conv(x[:, :2], neighbours)
    with pytest.raises(DataError, match="map of a kernel 5"):
        conv(x, kernel_map(neighbours.level, 5))
    with pytest.raises(ConfigError, match="odd kernel"):
        SubmanifoldConv(3, 5, 2)


def test_choice_of_the_backend(monkeypatch):
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    monkeypatch.setattr(sparse_conv, "_installed", lambda: True)
    assert (
        sparse_conv.select(cuda, torch.float32).backend == sparse_conv.select(cuda, torch.float16).backend == "spconv"
    )
    assert "not bfloat16" in sparse_conv.select(cuda, torch.bfloat16).reason
    assert "not for cpu" in sparse_conv.select(cpu, torch.float32).reason
    with sparse_conv.use("gather"):
        assert sparse_conv.select(cuda, torch.float32) == sparse_conv.ConvChoice("gather", "forced by use")
    monkeypatch.setenv("ZOO_SPARSE_CONV", "spconv")
    with pytest.raises(ConfigError, match="forced by ZOO_SPARSE_CONV.*on CUDA alone"):
        sparse_conv.select(cpu, torch.float32)
    with pytest.raises(ConfigError, match="has gather, spconv"), sparse_conv.use("dense"):
        pass
    monkeypatch.delenv("ZOO_SPARSE_CONV")
    monkeypatch.setattr(sparse_conv, "_installed", lambda: False)
    assert sparse_conv.select(cuda, torch.float32).reason == "spconv is not installed"


def test_what_spconv_is_given(monkeypatch):
    """Stands in for the package with its documented interface, and computes by the dense convolution."""
    seen = []

    class Tensor:
        def __init__(self, features, indices, spatial_shape, batch_size):
            self.features, self.indices = features, indices
            self.spatial_shape, self.batch_size = spatial_shape, batch_size
            self.indice_dict = {}

    class Layer(torch.nn.Module):
        def __init__(self, in_channels, out_channels, kernel_size, bias, indice_key):
            super().__init__()
            assert bias is False
            self.weight = torch.nn.Parameter(torch.zeros(out_channels, *[kernel_size] * 3, in_channels))
            self.indice_key = indice_key

        def forward(self, tensor):
            seen.append((tensor.indices, tensor.indice_dict.setdefault(self.indice_key, len(seen))))
            places = tensor.indices.long().unbind(1)
            grid = tensor.features.new_zeros(tensor.batch_size, *tensor.spatial_shape, tensor.features.shape[1])
            grid = grid.index_put(places, tensor.features).permute(0, 4, 1, 2, 3)
            out = F.conv3d(grid, self.weight.permute(0, 4, 1, 2, 3), padding=self.weight.shape[1] // 2)
            return types.SimpleNamespace(features=out.permute(0, 2, 3, 4, 1)[places])

    package = types.ModuleType("spconv.pytorch")
    package.SparseConvTensor, package.SubMConv3d = Tensor, Layer
    monkeypatch.setitem(sys.modules, "spconv", types.ModuleType("spconv"))
    monkeypatch.setitem(sys.modules, "spconv.pytorch", package)
    monkeypatch.setattr(sparse_conv, "select", lambda device, dtype: sparse_conv.ConvChoice("spconv", "test"))
    sparse_conv._spconv_layer.cache_clear()
    conv, x, neighbours = setting(3)
    first = conv(x, neighbours)
    gradients = torch.autograd.grad(first.square().sum(), [x, *conv.parameters()])
    conv(x, neighbours)
    sparse_conv._spconv_layer.cache_clear()
    monkeypatch.undo()
    out = conv(x, neighbours)
    torch.testing.assert_close(first, out, atol=1e-12, rtol=0)
    for one, other in zip(gradients, torch.autograd.grad(out.square().sum(), [x, *conv.parameters()]), strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=0)
    indices, key = seen[0]
    assert indices.dtype == torch.int32 and indices.is_contiguous() and seen[1][0] is indices
    assert key == seen[1][1] == 0  # Pairs are found once and shared.


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-4), (torch.float16, 2e-2)])
def test_spconv_agrees_on_a_gpu(dtype, bound):
    pytest.importorskip("spconv.pytorch")
    conv, x, neighbours = setting(3, torch.float32)
    level = voxelise(clouds(60, 0, 150, 1).to("cuda"), 0.5)[0]
    neighbours = kernel_map(level, 3)
    conv, x = conv.cuda().to(dtype), x.detach().cuda().to(dtype).requires_grad_()
    results = []
    for backend in ("gather", "spconv"):
        with sparse_conv.use(backend):
            out = conv(x, neighbours)
            results.append([out, *torch.autograd.grad(out.float().square().mean(), [x, *conv.parameters()])])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=bound, rtol=bound)
