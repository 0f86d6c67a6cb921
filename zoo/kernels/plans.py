"""Launches of the attention kernels: their tiles, and all of their arguments but tensors.

Legend: B batch, H heads, N tokens, D head width, p coordinate axes, S packed samples.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zoo.kernels.launch import Layout, Plan, forget, kept, strides_of

__all__ = [
    "COLUMNS", "DISTANCES", "MATRIX", "PARABOLAS", "PLAIN", "POLAR", "Layouts", "Operands", "Settings", "Tiling",
    "backward_plans", "forward_plan", "packed_tiles", "pointers", "stats_plan", "tiling",
    "trying",
]  # fmt: skip

PLAIN, COLUMNS, PARABOLAS, DISTANCES, MATRIX, POLAR = range(6)

# q, k, v, coefficients and linear term of the query side, key columns, coordinates, which are known, numbers of heads,
# mask and offsets of samples.
Operands = tuple[Tensor | None, ...]
Layouts = tuple[Layout | None, ...]
# Scale, kind, inexact columns, powers, order, border and causal.
Settings = tuple[float, int, int, int, int, float, bool]


@dataclass(frozen=True)
class Tiling:
    """Queries and keys of a tile, warps of a program, stages of the software pipeline, and a bound on registers."""

    queries: int
    keys: int
    warps: int
    stages: int
    registers: int | None = None

    @property
    def options(self) -> dict[str, int]:
        """Options of Triton's compiler."""
        bound = {} if self.registers is None else {"maxnreg": self.registers}
        return {"num_warps": self.warps, "num_stages": self.stages, **bound}


def tiling(kernel: str, width: int, kind: int) -> Tiling:
    """The tiling of `"forward"`, `"queries"` or `"keys"` (backward) for a head width and a kind of term.

    Differences of coordinates and tiles of a bias take registers, so those kinds have smaller tiles.
    """
    if kernel in _tried:
        return _tried[kernel]
    if kind == POLAR:
        return (_WIDE_POLAR_TILINGS if width == 128 else _POLAR_TILINGS)[kernel]
    if kind == DISTANCES and kernel == "forward" and width < 128:
        return Tiling(64, 32, 4, 3)
    if kind in (PARABOLAS, DISTANCES, MATRIX) or width == 128:
        return Tiling(64, 64, 4, 2)
    return _TILINGS[kernel]


_tried: dict[str, Tiling] = {}


@contextlib.contextmanager
def trying(kernel: str, tiles: Tiling) -> Iterator[None]:
    """Launches a kernel in other tiles while the context is open, whatever the width and term: to measure them."""
    forget()
    _tried[kernel] = tiles
    try:
        yield
    finally:
        del _tried[kernel]
        forget()


# The fastest of those tried on an H200 with columns at 64 x 64 tokens, and within a tenth at 14 x 14 and 32 x 32; see
# zoo/kernels/README.md.
_TILINGS = {
    "forward": Tiling(128, 64, 8, 3),
    "queries": Tiling(64, 64, 4, 3, registers=168),
    "keys": Tiling(64, 64, 4, 3, registers=168),
}
# They spill nothing (sm_90, Triton 3.6). Making the side of the query takes more registers than the loops.
_POLAR_TILINGS = {
    "forward": Tiling(128, 64, 8, 3, registers=128),
    "queries": Tiling(64, 32, 4, 3, registers=168),
    "keys": Tiling(64, 64, 4, 3),
}
_WIDE_POLAR_TILINGS = {
    "forward": Tiling(64, 32, 4, 2),
    "queries": Tiling(64, 32, 8, 2),
    "keys": Tiling(32, 64, 8, 2),
}


def _plan(kernel: str, device: int, operands: Layouts, others: tuple[Layout, ...], settings: Settings) -> Plan:
    """The launch of `"forward"`, `"queries"` or `"keys"`, over the tiles of its queries, or of its keys for the last.

    Args:
        kernel: Which.
        device: Index of the CUDA device.
        operands: Layouts of all `Operands`.
        others: Those of further tensors whose strides the kernel takes: output, or gradients of output and of input.
        settings: All else.
    """
    from zoo.kernels import triton_attention, triton_attention_backward

    scale, kind, inexact, powers, order, border, causal = settings
    q, k, v = (x for x in operands[:3] if x is not None)
    keys, values, known, heads, mask, cu_seqlens = (None if x is None else x[0] for x in operands[5:])
    batch, count, tokens, width = q[0]
    shape = tiling(kernel, width, kind)
    arguments: dict[str, Any] = {"H": count, "N": tokens, "scale": scale, "mask_batch": tokens}
    arguments |= {"key_batch": 0 if values is None or values[0] == 1 else tokens}
    arguments |= {"D": width, "W": _pieces(operands), "KIND": kind, "AXES": 1 if values is None else values[-1]}
    arguments |= {"ORDER": order, "FIELDS": heads is not None and heads[1] > 1, "BORDER": border}
    arguments |= {"HAS_KNOWN": known is not None, "HAS_MASK": mask is not None, "CAUSAL": causal}
    arguments |= {"PACKED": cu_seqlens is not None, "BM": shape.queries, "BN": shape.keys}
    arguments |= strides_of("qkvo" if kernel == "forward" else "qkvgd", q, k, v, *others)
    if kernel != "keys":
        arguments |= {"inexact": inexact, "HAS_LINEAR": operands[4] is not None}
        high = powers >> 28  # Two signed numbers of 32 bits: seven columns, and up to eight.
        arguments |= {"POWERS": powers & 0xFFFFFFF, "POWERS_HIGH": high - (1 << 32) if high >> 31 else high}
        for letter, x in zip("at", operands[3:5], strict=True):
            strides = (0, 0, 0, 0) if x is None else x[1]
            arguments |= {letter + axis: stride for axis, stride in zip("bhnc", strides, strict=True)}
    functions = {
        "forward": triton_attention.forward,
        "queries": triton_attention_backward.backward_queries,
        "keys": triton_attention_backward.backward_keys,
    }
    block = shape.keys if kernel == "keys" else shape.queries
    tiles = -(-tokens // block) if cu_seqlens is None else tokens // block + cu_seqlens[0] - 1
    return Plan(functions[kernel], (tiles, batch * count, 1), arguments, shape.options, device)


def _pieces(operands: Layouts) -> int:
    """Columns of 16-bit pieces."""
    keys = operands[5]
    return 16 if keys is None else keys[0][-1]


forward_plan = kept(functools.partial(_plan, "forward"))


@kept
def backward_plans(
    device: int, operands: Layouts, out: Layout, grad: Layout, gradients: tuple[Layout, Layout], settings: Settings
) -> tuple[Plan, Plan, Plan]:
    """The launches over rows, tiles of queries and tiles of keys.

    Args:
        device: Index of the CUDA device.
        operands: Layouts of all `Operands`.
        out: That of the output.
        grad: That of its gradient.
        gradients: Those of dq and dk.
        settings: All else.
    """
    dq, dk = gradients
    queries = _plan("queries", device, operands, (grad, dq), settings)
    return stats_plan(device, out, grad), queries, _plan("keys", device, operands, (grad, dk), settings)


def stats_plan(device: int, out: Layout, grad: Layout) -> Plan:
    """The launch over rows, from layouts of the output and of its gradient."""
    from zoo.kernels.triton_attention import row_stats

    batch, heads, tokens, width = out[0]
    arguments = {"H": heads, "N": tokens, "D": width, "BM": 128, **strides_of("og", out, grad)}
    return Plan(row_stats, (-(-tokens // 128), batch * heads, 1), arguments, {}, device)


def pointers(kernel: str, operands: Operands, kind: int) -> list[Tensor]:
    """Tensors of the term and the mask, and the tiles of packed samples; q for those that are not there."""
    q, cu_seqlens = operands[0], operands[-1]
    assert q is not None
    tiles = (None, None) if cu_seqlens is None else (cu_seqlens, packed_tiles(kernel, q, kind, cu_seqlens))
    return [q if x is None else x for x in (*operands[3:-1], *tiles)]


def packed_tiles(kernel: str, q: Tensor, kind: int, cu: Tensor) -> Tensor:
    """For packed samples: (sample, tile within it) of every program; computed without a wait."""
    shape = tiling(kernel, q.shape[-1], kind)
    block = shape.keys if kernel == "keys" else shape.queries
    samples = cu.shape[0] - 1
    tiles = (cu.diff() + block - 1) // block
    ends = tiles.cumsum(0)
    index = torch.arange(q.shape[2] // block + samples, device=cu.device)
    sample = torch.searchsorted(ends, index, right=True).clamp(max=max(samples - 1, 0))
    within = index - (ends - tiles)[sample]  # Past the last tile this lies beyond the sample: nothing to do.
    return torch.stack([sample, within], dim=1).to(torch.int32)
