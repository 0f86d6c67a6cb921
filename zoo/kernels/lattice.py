"""Attention on a CPU with a bias of differences between tokens that fill a plane row by row.

The bias of a pair depends on its displacement alone, so a table of (2h - 1)(2w - 1) numbers a head holds all of it. The
bias of a block of queries is copied from there as long runs, instead of N numbers a query being computed.

Legend: B batch, H heads, N = P + h w tokens (P prefix tokens without a position), D head width.
"""

from __future__ import annotations

import math
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from zoo.encodings.distance import Lattice

__all__ = ["lattice_attention"]


def lattice_attention(
    q: Tensor, k: Tensor, v: Tensor, lattice: Lattice, table: Tensor, *, scale: float, elements: int
) -> Tensor:
    """Attention softmax(scale q k^T + bias) v with the bias from a table; 0 where a token has no position.

    Args:
        q: (B, H, N, D) float32 or float64.
        k: (B, H, N, D).
        v: (B, H, N, Dv).
        lattice: Where the tokens lie.
        table: (H, 2h - 1, 2w - 1) bias at the displacements of the key from the query, from most negative.
        scale: Softmax scale.
        elements: Largest bias made at once, in numbers; one row of the plane at least.

    Returns:
        (B, H, N, Dv).
    """
    prefix, rows, columns = lattice.prefix, lattice.rows, lattice.columns
    heads, width = q.shape[1], columns + prefix
    calls = max(1, -(-rows * rows * columns * width // elements))  # For one head
    group, step = max(1, elements // (rows * rows * columns * width)), -(-rows // calls)
    queries = q[:, :, prefix:].unflatten(2, (rows, columns))
    keys, values = _with_prefix(k, lattice), _with_prefix(v, lattice)
    several = group < heads or step < rows
    # One bias after the other in the same memory, which caches and the system know already.
    room = None if torch.is_grad_enabled() else q.new_empty(min(group, heads) * step * columns * rows * width)
    parts = []
    for head in range(0, heads, group):
        own = slice(head, head + group)
        windows = _windows(table[own], prefix)
        low, high = _reach(table[own])
        blocks = []
        for top in range(0, rows, step):
            block = range(top, min(top + step, rows))
            seen = range(max(0, block[0] + low), min(rows, block[-1] + high + 1))
            near = slice(seen.start, seen.stop)
            inputs = (queries[:, own, top : block.stop], keys[:, own, near], values[:, own, near], windows, room)
            if several and windows.requires_grad:  # Its gradient takes plain products: keep none of a block's.
                blocks.append(checkpoint(_block, *inputs, block, seen, scale, use_reentrant=False))
            else:
                blocks.append(_block(*inputs, block, seen, scale, keep=not several or room is not None))
        parts.append(torch.cat(blocks, dim=2) if len(blocks) > 1 else blocks[0])
    out = torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]
    if not prefix:
        return out
    return torch.cat([F.scaled_dot_product_attention(q[:, :, :prefix], k, v, scale=scale), out], dim=2)


def _with_prefix(x: Tensor, lattice: Lattice) -> Tensor:
    """The plane (B, H, h, w, D) of x (B, H, N, D) with the prefix tokens after each row: (B, H, h, w + P, D)."""
    plane = x[:, :, lattice.prefix :].unflatten(2, (lattice.rows, lattice.columns))
    if not lattice.prefix:
        return plane
    repeated = x[:, :, None, : lattice.prefix].expand(-1, -1, lattice.rows, -1, -1)
    return torch.cat([plane, repeated], dim=3)


def _windows(table: Tensor, prefix: int) -> Tensor:
    """(H, w, (2h - 1)(w + P)): for a query in each column, the bias of rows of keys from h - 1 above to h - 1 below.

    A query sees the prefix tokens that follow its own row, whatever the row, and so each of them once.
    """
    height, columns = table.shape[1], (table.shape[2] + 1) // 2
    windows = torch.stack([table[:, :, columns - 1 - x : 2 * columns - 1 - x] for x in range(columns)], dim=1)
    if prefix:
        once = table.new_full((height, prefix), float("-inf"))
        once[height // 2] = 0.0
        windows = torch.cat([windows, once.expand(*windows.shape[:2], -1, -1)], dim=-1)
    return windows.flatten(2)


def _reach(table: Tensor) -> tuple[int, int]:
    """First and last row of keys, counted from that of the query, that some head sees."""
    seen = (table.detach() != float("-inf")).any(dim=2).any(dim=0).nonzero()
    middle = table.shape[1] // 2
    return min(0, int(seen[0]) - middle), max(0, int(seen[-1]) - middle)


def _block(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    windows: Tensor,
    room: Tensor | None,
    rows: range,
    seen: range,
    scale: float,
    keep: bool = True,
) -> Tensor:
    """The queries of some rows of the plane on the keys of `seen` ones; without `keep`, backward copies the bias again.

    The bias is made in `room`, if there is any.
    """
    width, middle = k.shape[3], windows.shape[2] // k.shape[3] // 2
    starts = [(middle - row + seen.start) * width for row in rows]

    def make(room: Tensor | None = None) -> Tensor:
        parts = [windows[:, :, start : start + len(seen) * width] for start in starts]
        if room is not None:
            shape = (len(windows), len(rows), *parts[0].shape[1:])
            room = room[: math.prod(shape)].view(shape)
        return torch.stack(parts, dim=1, out=room).flatten(1, 2).unsqueeze(0)

    bias = make(room)
    address = bias.data_ptr()

    def pack(saved: Tensor) -> Tensor | None:
        return None if saved.data_ptr() == address else saved

    def unpack(kept: Tensor | None) -> Tensor:
        return make() if kept is None else kept

    # The products of a block are not computed again, as they would be under a checkpoint.
    with nullcontext() if keep else torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        return F.scaled_dot_product_attention(
            q.flatten(2, 3), k.flatten(2, 3), v.flatten(2, 3), attn_mask=bias, scale=scale
        )
