"""PaPE's coefficients from features in one kernel, as operators that compiling and exporting see through.

Of every token and head: M_ab = sum_l softplus(x . W_l) P_la P_lb and t_a = x . L_a, without m numbers per token and
head in memory on the way forward. Products are of 16-bit numbers, all sums are float32.

Legend: B batch, N tokens (T of all samples together), C features, H heads, m parabolas, p coordinate axes,
c = p(p+1)/2 quadratic numbers, R = m + 2p rows of weights of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zoo.encodings.quadratic import rounded
from zoo.errors import DataError
from zoo.kernels.fused import shapes_problem
from zoo.kernels.select import BACKENDS, forced

__all__ = ["MAX_PARABOLAS", "fused_coefficients_problem", "kernel_dtype", "quadratic_coefficients"]

# A head is one group of columns of a tile: 128 parabolas and their linear terms fill 256.
MAX_PARABOLAS = 128


def kernel_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which features enter a matrix product: that of autocast where it is on, else their own."""
    if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


def fused_coefficients_problem(x: Tensor, parabolas: int, axes: int) -> str | None:
    """Why `quadratic_coefficients` cannot or must not run on features like these, or `None`.

    Args:
        x: Features, as they come under autocast.
        parabolas: Parabolas m of a head.
        axes: Coordinate axes p.

    Raises:
        ConfigError: If the environment variable `ZOO_KERNEL` names no kernel.
    """
    name = forced()
    if name in BACKENDS:
        return f"attention kernel {name!r} is forced, which goes with plain PyTorch"
    if found := shapes_problem(x.device, kernel_dtype(x), 16, 16):  # Head width does not matter here.
        return found
    if parabolas > MAX_PARABOLAS or parabolas + 2 * axes > 2 * MAX_PARABOLAS:
        return f"it takes up to {MAX_PARABOLAS} parabolas, these are {parabolas}"
    return None


def quadratic_coefficients(x: Tensor, weight: Tensor, products: Tensor, linear: Tensor) -> tuple[Tensor, Tensor]:
    """M and t of every token and head; differentiable (once) in all arguments.

    In float16, gradients of z = x . W_l pass through float16 on their way to x and the weights: numbers beyond 65504
    become infinite, which a loss scaler sees as it sees those of q and k, and what is below 6e-8 is lost without one.

    Args:
        x: (B, N, C) float16 or bfloat16.
        weight: W, (H, m, C) in the dtype of x.
        products: P_la P_lb for a <= b, (H, m, c) float32.
        linear: L, (H, p, C) float32. It enters as a high and a low half of 16 bit, so that t is as exact as x is.

    Returns:
        M (B, H, N, c) and t (B, H, N, p), float32. In memory each number is a plane (H, B, N) of its own: that is how
        tokens lie in a tile. Attention reads them so, and gives gradients back so, without a copy on the way.

    Raises:
        DataError: If shapes or dtypes do not fit.
    """
    heads, rows, width = weight.shape
    if x.shape[-1] != width or products.shape[:2] != (heads, rows) or linear.shape[::2] != (heads, width):
        shapes = ", ".join(str(tuple(given.shape)) for given in (x, weight, products, linear))
        raise DataError(f"expected (B, N, C), (H, m, C), (H, m, c) and (H, p, C); got {shapes}")
    dtypes = (x.dtype, weight.dtype, products.dtype, linear.dtype)
    if dtypes != (x.dtype, x.dtype, torch.float32, torch.float32):
        raise DataError(f"expected weights in the dtype of x and the rest in float32, got {dtypes}")
    axes = linear.shape[1]
    high = rounded(linear, x.dtype)
    halves = [linear + (high - linear).detach(), (linear - high).detach()]
    stacked = torch.cat([weight, *(half.to(x.dtype) for half in halves)], dim=1)
    planes = _forward(x.flatten(0, 1).contiguous(), stacked, products.contiguous(), axes)
    curvature, slope = (plane.unflatten(-1, x.shape[:2]).permute(2, 1, 3, 0) for plane in planes)
    return curvature, slope


@dataclass(frozen=True)
class Tiling:
    """Tokens, heads and columns per head of a tile, features at a time, and what a program of it takes.

    Attributes:
        tokens: Tokens of a tile.
        heads: Heads of a tile, a power of two.
        width: Columns of a head, a power of two not below its rows of weights.
        features: Features at a time.
        warps: Warps of a program.
        registers: Most registers of a thread, `None` for no bound of ours.
        stages: Stages of the software pipeline.
    """

    tokens: int
    heads: int
    width: int
    features: int
    warps: int
    registers: int | None
    stages: int = 3


# Programs that keep a large GPU busy; where whole tiles give fewer, tiles are smaller.
_ENOUGH = 128


def tiling(kernel: str, tokens: int, heads: int, rows: int) -> Tiling:
    """The tiling of `"forward"` or `"backward"`.

    A tile of forward is 128 tokens x 128 columns (two heads of up to 64 rows), 64 features at a time: 64 operations for
    each byte from L2. Buffers of three stages take 3 x 64 x (128 + 128) x 2 = 98,304 bytes, which GPUs have from
    compute capability 8.0 on. Backward has a second tile of numbers beside the first; with 64 columns and a bound of
    128 registers a Hopper SM holds two programs, of which one computes softplus while the other multiplies. Both are
    the fastest of those tried on an H200, see zoo/kernels/README.md.

    Args:
        kernel: Name of the kernel.
        tokens: Tokens T.
        heads: Heads H.
        rows: Rows of weights of a head.
    """
    width = max(16, _power_of_two(rows))
    if width > 128:
        return Tiling(64, 1, width, 32, 8, None)
    columns, registers = (128, None) if kernel == "forward" else (max(64, width), 128 if width <= 64 else None)
    together = min(columns // width, _power_of_two(heads))
    if -(-tokens // 128) * -(-heads // together) >= _ENOUGH:
        return Tiling(128, together, width, 64, 8, registers)
    return Tiling(64, min(max(64 // width, 1), _power_of_two(heads)), width, 64, 4 if width <= 64 else 8, None)


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


class _Launch:
    """Grid and settings that forward and backward have in common."""

    def __init__(self, kernel: str, x: Tensor, weight: Tensor, products: Tensor, linear: int) -> None:
        (tokens, channels), (heads, rows, _), (_, parabolas, c) = x.shape, weight.shape, products.shape
        shape = tiling(kernel, tokens, heads, rows)
        self.tiles = -(-tokens // shape.tokens)
        self.grid = (self.tiles * -(-heads // shape.heads),)
        self.settings = {"T": tokens, "C": channels, "H": heads, "R": rows, "m": parabolas, "c": c, "q": linear}
        self.settings |= {"BM": shape.tokens, "BK": shape.features, "HB": shape.heads, "MP": shape.width}
        self.settings |= {"EVEN": channels % shape.features == 0}
        self.settings |= {"num_warps": shape.warps, "num_stages": shape.stages}
        if shape.registers is not None:
            self.settings |= {"maxnreg": shape.registers}


@torch.library.custom_op("zoo::coefficients", mutates_args=())
def _forward(x: Tensor, weight: Tensor, products: Tensor, axes: int) -> tuple[Tensor, Tensor]:
    """Planes (c, H, T) and (p, H, T) float32 from x (T, C), weights (H, R, C) and products (H, m, c)."""
    from zoo.kernels.triton_coefficients import forward

    planes = _planes(x, weight, products, axes)
    if planes[0].numel():
        launch = _Launch("forward", x, weight, products, axes)
        with torch.cuda.device_of(x):  # Triton launches on the current device.
            forward[launch.grid](x, weight, products, *planes, **launch.settings)
    return planes


@_forward.register_fake
def _planes(x: Tensor, weight: Tensor, products: Tensor, axes: int) -> tuple[Tensor, Tensor]:
    shape = (weight.shape[0], x.shape[0])
    return products.new_empty(products.shape[-1], *shape), products.new_empty(axes, *shape)


@torch.library.custom_op("zoo::coefficients_backward", mutates_args=())
def _backward(
    grad: Tensor, grad_linear: Tensor, x: Tensor, weight: Tensor, products: Tensor, axes: int
) -> tuple[Tensor, Tensor]:
    """Gradients of z = x W^T, (T, H R) in the dtype of x, and of the products."""
    from zoo.kernels.triton_coefficients import backward

    dz, dproducts = _gradients_like(grad, grad_linear, x, weight, products, axes)
    if not dz.numel():
        return dz, dproducts.zero_()
    launch = _Launch("backward", x, weight, products, axes)
    # What each tile adds is written apart and summed in one order: no atomics.
    parts = products.new_empty((launch.tiles, *products.shape))
    with torch.cuda.device_of(x):
        backward[launch.grid](grad, grad_linear, x, weight, products, dz, parts, **launch.settings)
    return dz, torch.sum(parts, dim=0, out=dproducts)


@_backward.register_fake
def _gradients_like(
    grad: Tensor, grad_linear: Tensor, x: Tensor, weight: Tensor, products: Tensor, axes: int
) -> tuple[Tensor, Tensor]:
    dz = x.new_empty((x.shape[0], weight.shape[0] * weight.shape[1]))
    return dz, torch.empty_like(products)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, int], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.axes = inputs[3]


def _gradients(ctx: Any, grad: Tensor, grad_linear: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, products = ctx.saved_tensors
    # The gradient of z is the one tensor of T x (H R) numbers that is written: 21 MB for 16,384 tokens of ViT-B in 16
    # bit, gone when this function returns. To keep it in a tile, the gradient of x needs a T x C accumulator and that
    # of W another pass over all tokens, each with z computed anew for every block of C: 19 GFLOP (25 us on an H200)
    # for each further block, against 15 us for writing it once and reading it twice.
    dz, dproducts = _backward(grad.contiguous(), grad_linear.contiguous(), x, weight, products, ctx.axes)
    dx = dz @ weight.flatten(0, 1) if ctx.needs_input_grad[0] else None
    dweight = (dz.t() @ x).view_as(weight) if ctx.needs_input_grad[1] else None
    return dx, dweight, dproducts, None


_forward.register_autograd(_gradients, setup_context=_save)
