"""Submanifold convolution: values at occupied voxels alone, read from occupied neighbours alone.

By `gather`, in plain PyTorch on any device: the neighbours of a block of voxels are gathered into rows of K C_in
numbers (an absent one reads zeros) and multiplied with the weight, one product for the block. The gradient of the
input is such a convolution too: of the output's gradient with mirrored places and the transposed weight, since j reads
i at place o exactly when i has j at the opposite place. So no gradient is added up in an order that may vary.
By `spconv` on CUDA where it is installed. Both use the same parameters, and add the bias themselves.

Legend: V voxels, k edge of the kernel, K = k^3 places.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from modalities.points.kernel_map import KernelMap
from zoo.errors import ConfigError, DataError, require

__all__ = ["BACKENDS", "ConvChoice", "SubmanifoldConv", "select", "trace", "use"]

BACKENDS = ("gather", "spconv")

# Gathered numbers made at once: on a CPU what its caches help with, on a GPU what keeps it busy (512 MiB in float32).
_ELEMENTS, _ELEMENTS_CUDA = 1 << 20, 1 << 27

_forced: str | None = None
_traces: list[list[ConvChoice]] = []


@dataclass(frozen=True)
class ConvChoice:
    """One submanifold convolution: which backend ran it, and why."""

    backend: str
    reason: str


@contextlib.contextmanager
def use(name: str) -> Iterator[None]:
    """Forces the backend of the process while the context is open; `ZOO_SPARSE_CONV` does so for a whole run.

    A convolution that it cannot run raises `ConfigError` and says why.

    Args:
        name: A name of `BACKENDS`.

    Raises:
        ConfigError: If there is no such backend.
    """
    global _forced
    before, _forced = _forced, _known(name)
    try:
        yield
    finally:
        _forced = before


@contextlib.contextmanager
def trace() -> Iterator[list[ConvChoice]]:
    """Collects a `ConvChoice` for every convolution inside."""
    choices: list[ConvChoice] = []
    _traces.append(choices)
    try:
        yield choices
    finally:
        _traces[:] = [one for one in _traces if one is not choices]


def select(device: torch.device, dtype: torch.dtype) -> ConvChoice:
    """Chooses the backend for values of a dtype on a device.

    Raises:
        ConfigError: If the forced backend does not exist or cannot run them.
    """
    name = _forced or os.environ.get("ZOO_SPARSE_CONV")
    if name:
        how = "use" if _forced else "ZOO_SPARSE_CONV"
        if _known(name) == "spconv" and (found := _problem(device, dtype)):
            raise ConfigError(f"sparse convolution 'spconv' (forced by {how}) cannot run this: {found}")
        return ConvChoice(name, f"forced by {how}")
    if device.type != "cuda":
        return ConvChoice("gather", f"spconv is for CUDA, not for {device.type}")
    if found := _problem(device, dtype) or (None if _installed() else "spconv is not installed"):
        return ConvChoice("gather", found)
    return ConvChoice("spconv", "installed")


def _known(name: str) -> str:
    if name not in BACKENDS:
        raise ConfigError(f"unknown backend of sparse convolution {name!r:.60}: this version has {', '.join(BACKENDS)}")
    return name


def _problem(device: torch.device, dtype: torch.dtype) -> str | None:
    if device.type != "cuda":
        return f"spconv is used on CUDA alone, these values are on {device.type}"
    if dtype not in (torch.float32, torch.float16):
        return f"spconv takes float32 and float16, not {str(dtype).removeprefix('torch.')}"
    return None


@functools.cache
def _installed() -> bool:
    return importlib.util.find_spec("spconv") is not None


class SubmanifoldConv(nn.Module):
    """Convolution with an odd cubic kernel whose outputs are the occupied voxels themselves.

    Under autocast it runs in the autocast dtype. In bfloat16 that is always `gather`, since spconv has no bfloat16.

    Args:
        in_channels: C_in.
        out_channels: C_out.
        kernel_size: k.
        bias: Whether there is one.

    Attributes:
        weight: (C_out, k, k, k, C_in), places x, y, z: out[v] = sum over o of weight[:, o] x[v + o - k // 2]. That is
            spconv's own layout for indices (cloud, x, y, z); `weight.permute(0, 4, 1, 2, 3)` is that of
            `torch.nn.Conv3d` on a grid (C, x, y, z).
        bias: (C_out,) or `None`.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int = 3, *, bias: bool = True) -> None:
        super().__init__()
        if min(in_channels, out_channels, kernel_size) < 1 or kernel_size % 2 == 0:
            raise ConfigError(
                f"a submanifold convolution needs channels and an odd kernel, got {in_channels} -> {out_channels}, "
                f"kernel {kernel_size}"
            )
        self.in_channels, self.out_channels, self.kernel_size = in_channels, out_channels, kernel_size
        self.weight = nn.Parameter(torch.empty(out_channels, *[kernel_size] * 3, in_channels))
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws weight and bias uniformly within 1 / sqrt(K C_in), as torch's convolutions do."""
        bound = 1 / math.sqrt(self.kernel_size**3 * self.in_channels)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x: Tensor, neighbours: KernelMap) -> Tensor:
        """Convolves.

        Args:
            x: (V, C_in).
            neighbours: Map of a kernel of this size, for the V voxels.

        Returns:
            (V, C_out).

        Raises:
            DataError: If features and map do not fit.
            ConfigError: If a forced backend cannot run this.
        """
        expected = (len(neighbours.level), self.in_channels)
        if tuple(x.shape) != expected or neighbours.kernel_size != self.kernel_size:
            raise DataError(
                f"a convolution with kernel {self.kernel_size} of {expected} features got {tuple(x.shape)} and the map "
                f"of a kernel {neighbours.kernel_size}"
            )
        weight: Tensor = self.weight
        if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
            dtype = torch.get_autocast_dtype(x.device.type)
            x, weight = x.to(dtype), weight.to(dtype)
        choice = select(x.device, x.dtype)
        for choices in _traces:
            choices.append(choice)
        if choice.backend == "spconv" and len(x):
            out = _by_spconv(x, weight, neighbours)
        else:
            out = cast(Tensor, _Gather.apply(x, weight.flatten(1), neighbours.neighbours))
        return out if self.bias is None else out + self.bias.to(out.dtype)


class _Gather(torch.autograd.Function):
    """The convolution as gathered rows times a matrix, in blocks of voxels; see the module."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, neighbours: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, neighbours)
        return _convolve(x, weight, neighbours)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight, neighbours = ctx.saved_tensors
        grad = grad.to(x.dtype)
        for_x = for_weight = None
        if ctx.needs_input_grad[0]:
            places = neighbours.shape[1]
            # (C_out, K, C_in) -> (C_in, K, C_out) with the places in opposite order.
            mirrored = weight.unflatten(1, (places, -1)).flip(1).permute(2, 1, 0).flatten(1)
            for_x = _convolve(grad, mirrored, neighbours)
        if ctx.needs_input_grad[1]:
            total = None
            source = _with_zeros(x)
            for rows in _blocks(neighbours, x.shape[1], x.device):
                part = grad[rows].T @ _gathered(source, neighbours[rows])
                total = part if total is None else total + part
            for_weight = torch.zeros_like(weight) if total is None else total
        return for_x, for_weight, None


def _convolve(x: Tensor, weight: Tensor, neighbours: Tensor) -> Tensor:
    source, transposed = _with_zeros(x), weight.T
    blocks = _blocks(neighbours, x.shape[1], x.device)
    if len(blocks) == 1:
        return _gathered(source, neighbours) @ transposed
    out = x.new_empty(len(neighbours), weight.shape[0])
    for rows in blocks:
        torch.mm(_gathered(source, neighbours[rows]), transposed, out=out[rows])
    return out


def _with_zeros(x: Tensor) -> Tensor:
    """Features with one more row, which absent neighbours read."""
    return torch.cat([x, x.new_zeros(1, x.shape[1])])


def _gathered(source: Tensor, neighbours: Tensor) -> Tensor:
    """(rows, K C): the features of all neighbours of each voxel."""
    rows, places = neighbours.shape
    return source.index_select(0, neighbours.reshape(-1)).view(rows, places * source.shape[1])


def _blocks(neighbours: Tensor, channels: int, device: torch.device) -> list[slice]:
    """Blocks of voxels whose gathered features stay within the bound; one where there are no voxels."""
    elements = _ELEMENTS_CUDA if device.type == "cuda" else _ELEMENTS
    count = len(neighbours)
    step = max(1, elements // (neighbours.shape[1] * channels))
    return [slice(start, min(start + step, count)) for start in range(0, max(count, 1), step)]


def _by_spconv(x: Tensor, weight: Tensor, neighbours: KernelMap) -> Tensor:
    """The same by spconv, whose index pairs are kept with the map."""
    spconv = require("spconv.pytorch", "points-cuda")
    level = neighbours.level
    if "indices" not in neighbours.pairs:
        positions = torch.cat([level.cloud.unsqueeze(1), level.cells], dim=1)
        # spconv reads them as they lie in memory, whatever their strides.
        neighbours.pairs["indices"] = positions.to(torch.int32).contiguous()
    shape = [top + 1 for top in level.top]
    tensor = spconv.SparseConvTensor(x.contiguous(), neighbours.pairs["indices"], shape, len(level.counts) - 1)
    tensor.indice_dict = neighbours.pairs.setdefault("indice_dict", {})
    layer = _spconv_layer(x.shape[1], weight.shape[0], neighbours.kernel_size)
    with torch.autocast(x.device.type, enabled=False):
        out = torch.func.functional_call(layer, {"weight": weight.contiguous()}, (tensor,))
    return cast(Tensor, out.features)


@functools.lru_cache(maxsize=256)
def _spconv_layer(in_channels: int, out_channels: int, kernel_size: int) -> nn.Module:
    """A layer of spconv that lends its code; the weight is given at every call, and it has no bias."""
    spconv = require("spconv.pytorch", "points-cuda")
    key = f"kernel {kernel_size}"
    return cast(nn.Module, spconv.SubMConv3d(in_channels, out_channels, kernel_size, bias=False, indice_key=key))
