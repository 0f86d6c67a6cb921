"""PaPE's coefficients from features in one kernel, forward and backward.

Of every token and head: M_ab = sum_l softplus(x . W_l) P_la P_lb and t_a = x . L_a, without m numbers per token and
head in memory on the way forward. Products are of 16-bit numbers, all sums are float32.

Legend: B batch, N tokens (T of all samples together), C features, H heads, m parabolas, p coordinate axes,
c = p(p+1)/2 quadratic numbers, R = m + 2p rows of weights of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zoo.encodings.quadratic import rounded
from zoo.errors import DataError
from zoo.kernels.fused import shapes_problem
from zoo.kernels.launch import Operation, Plan, eager, inlines, kept, ordinary, planned, register, traced
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
    operands = (x.contiguous(), weight, products.contiguous(), linear)
    if ordinary(*operands):
        m, t = _eager(*operands)
        return m, t
    if inlines(*operands):
        from zoo.kernels.operators import coefficients as operator
    else:
        operator = _operator
    m, t, _ = operator(*operands)
    return m, t


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


@kept
def _plan(
    kernel: str, device: int, dtype: torch.dtype, tokens: int, channels: int, heads: int, rows: int, parabolas: int,
    c: int, linear: int,
) -> Plan:  # fmt: skip
    from zoo.kernels import triton_coefficients

    shape = tiling(kernel, tokens, heads, rows)
    values: dict[str, Any] = {"T": tokens, "C": channels, "H": heads, "R": rows, "m": parabolas, "c": c, "q": linear}
    values |= {"BM": shape.tokens, "BK": shape.features, "HB": shape.heads, "MP": shape.width}
    values["EVEN"] = channels % shape.features == 0
    options = {"num_warps": shape.warps, "num_stages": shape.stages}
    if shape.registers is not None:
        options["maxnreg"] = shape.registers
    grid = (-(-tokens // shape.tokens) * -(-heads // shape.heads), 1, 1)
    return Plan(getattr(triton_coefficients, kernel), grid, values, options, device)


def _launch(kernel: str, tensors: tuple[Tensor, ...], x: Tensor, stacked: Tensor, products: Tensor, axes: int) -> None:
    (batch, tokens, channels), (heads, rows, _), (_, parabolas, c) = x.shape, stacked.shape, products.shape
    sizes = (batch * tokens, channels, heads, rows, parabolas, c, axes)
    planned(_plan, x, kernel, x.get_device(), x.dtype, *sizes)(*tensors)


def _planes(x: Tensor, heads: int, numbers: int) -> Tensor:
    """Empty float32 (B, H, N, numbers), each number a plane (H, B, N) in memory."""
    batch, tokens, _ = x.shape
    return x.new_empty((numbers, heads, batch, tokens), dtype=torch.float32).permute(2, 1, 3, 0)


def _forward(x: Tensor, weight: Tensor, products: Tensor, linear: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """M and t of features (B, N, C), and all rows of weights: the parabolas', then L as a high and a low half."""
    # Compilers drop a conversion to 16 bit and back; where there is none, it takes half the calls.
    high = rounded(linear, x.dtype) if traced(linear) else linear.to(x.dtype)
    stacked = torch.cat([weight, high.to(x.dtype), (linear - high).to(x.dtype)], dim=1)
    m, t = _planes(x, weight.shape[0], products.shape[-1]), _planes(x, weight.shape[0], linear.shape[1])
    if m.numel():
        _launch("forward", (x, stacked, products, m, t), x, stacked, products, linear.shape[1])
    return m, t, stacked


def _fake_forward(x: Tensor, weight: Tensor, products: Tensor, linear: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    heads, parabolas, channels = weight.shape
    stacked = weight.new_empty((heads, parabolas + 2 * linear.shape[1], channels))
    return _planes(x, heads, products.shape[-1]), _planes(x, heads, linear.shape[1]), stacked


def _backward(dm: Tensor, dt: Tensor, x: Tensor, stacked: Tensor, products: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of z = x W^T, (B N, H R) in the dtype of x, and of the products."""
    dz, dproducts = _fake_backward(dm, dt, x, stacked, products)
    if not dz.numel():
        return dz, dproducts.zero_()
    # What each tile adds is written apart and summed in one order: no atomics.
    tiles = -(-dz.shape[0] // tiling("backward", dz.shape[0], *stacked.shape[:2]).tokens)
    parts = products.new_empty((tiles, *products.shape))
    _launch("backward", (dm, dt, x, stacked, products, dz, parts), x, stacked, products, dt.shape[-1])
    return dz, parts.sum(dim=0)


def _fake_backward(dm: Tensor, dt: Tensor, x: Tensor, stacked: Tensor, products: Tensor) -> tuple[Tensor, Tensor]:
    dz = x.new_empty((x.shape[0] * x.shape[1], stacked.shape[0] * stacked.shape[1]))
    return dz, torch.empty_like(products)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, _, products, linear = inputs
    ctx.save_for_backward(x, output[2], products)
    ctx.axes = linear.shape[1]
    ctx.set_materialize_grads(False)


def _as_planes(grad: Tensor | None, x: Tensor, heads: int, numbers: int) -> Tensor:
    if grad is None:
        return _planes(x, heads, numbers).zero_()
    return grad.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)


def _gradients(
    backward: Callable[..., tuple[Tensor, Tensor]], ctx: Any, dm: Tensor | None, dt: Tensor | None, *_: Any
) -> tuple[Tensor | None, ...]:
    x, stacked, products = ctx.saved_tensors
    heads, rows, _ = stacked.shape
    parabolas = rows - 2 * ctx.axes
    # The gradient of z is the one tensor of T x (H R) numbers that is written: 21 MB for 16,384 tokens of ViT-B in 16
    # bit, gone when this function returns. To keep it in a tile, the gradient of x needs a T x C accumulator and that
    # of W another pass over all tokens, each with z computed anew for every block of C: 19 GFLOP (25 us on an H200)
    # for each further block, against 15 us for writing it once and reading it twice.
    grads = _as_planes(dm, x, heads, products.shape[-1]), _as_planes(dt, x, heads, ctx.axes)
    dz, dproducts = backward(*grads, x, stacked, products)
    dx = (dz @ stacked.flatten(0, 1)).view_as(x) if ctx.needs_input_grad[0] else None
    dweight = dlinear = None
    if ctx.needs_input_grad[1] or ctx.needs_input_grad[3]:
        dstacked = (dz.t() @ x.flatten(0, 1)).view_as(stacked)
        dweight = dstacked[:, :parabolas]
        dlinear = dstacked[:, parabolas : parabolas + ctx.axes].float()  # Of the high half, which L becomes first.
    return dx, dweight, dproducts, dlinear


OPERATION = Operation(_forward, _backward, _fake_forward, _fake_backward, _save, _gradients, outputs=2)
_eager = eager(OPERATION)
_operator = register(OPERATION, torch.library.custom_op, "zoo::coefficients")
