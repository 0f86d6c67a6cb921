"""Space-filling curves: codes that lay the cells of a grid out on a line, near cells mostly near each other.

A code has three bits for each level of halving, the coarsest first. So all cells inside one two, four, ... times as
large have the same code without the last three, six, ... bits, and these shorter codes lay the larger cells out along a
curve of the same kind: coarser levels need no codes of their own.

The Hilbert curve is that of J. Skilling, "Programming the Hilbert curve" (AIP Conf. Proc. 707, 381, 2004): the bits of
the coordinates are transformed level by level, then Gray-coded. A level whose bits are all zero only turns the axes
(x, y, z) to (z, x, y); after three of them the axes stand as before. The number of levels is therefore rounded up to a
multiple of three: the code of a cell does not depend on how large the largest cloud of a batch is.

Legend: V cells, "levels" the bits of a coordinate.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from zoo.errors import DataError

__all__ = ["MAX_LEVELS", "ORDERS", "encode", "hilbert", "z_order"]

ORDERS = ("z", "z-trans", "hilbert", "hilbert-trans")
"""Curves by name; `-trans` runs with x and y exchanged."""

MAX_LEVELS = 21
"""Three coordinates of 21 bits fill the 63 bits of a code."""

# Steps that spread the 21 bits of a coordinate three apart: (shift, mask of the bits that are in place after it).
_SPREAD = (
    (32, 0x001F00000000FFFF),
    (16, 0x001F0000FF0000FF),
    (8, 0x100F00F00F00F00F),
    (4, 0x10C30C30C30C30C3),
    (2, 0x1249249249249249),
)


def z_order(cells: Tensor) -> Tensor:
    """Morton codes: bit l of x, y and z become bits 3l + 2, 3l + 1 and 3l.

    Args:
        cells: (..., 3) int64, each in [0, 2^21).

    Returns:
        (...) int64 codes.
    """
    bits = cells
    for shift, mask in _SPREAD:
        bits = (bits | (bits << shift)) & mask
    x, y, z = bits.unbind(-1)
    return (x << 2) | (y << 1) | z


def hilbert(cells: Tensor, levels: int) -> Tensor:
    """Hilbert codes: cells with consecutive codes share a face.

    Args:
        cells: (..., 3) int64, each in [0, 2^levels).
        levels: Bits of a coordinate, 0 to 21; what it is rounded up to makes no difference (see above).

    Returns:
        (...) int64 codes.
    """
    x, y, z = cells.unbind(-1)
    rounded = min(-(-levels // 3) * 3, MAX_LEVELS)
    for level in range(rounded - 1, 0, -1):
        low = (1 << level) - 1
        # An axis with this bit set mirrors the lower bits of x; one without exchanges its lower bits with those of x.
        x = x ^ _where_set(x, level, low)
        x, y = _turn(x, y, level, low)
        x, z = _turn(x, z, level, low)
    y = x ^ y
    z = y ^ z
    # A Gray code counts up or down by the parity of the bits of z above.
    parity = z >> 1
    for shift in (1, 2, 4, 8, 16):
        parity = parity ^ (parity >> shift)
    return z_order(torch.stack([x ^ parity, y ^ parity, z ^ parity], dim=-1))


def _where_set(axis: Tensor, level: int, low: int) -> Tensor:
    return ((axis >> level) & 1) * low


def _turn(x: Tensor, axis: Tensor, level: int, low: int) -> tuple[Tensor, Tensor]:
    mirrored = _where_set(axis, level, low)
    exchanged = (x ^ axis) & (low - mirrored)
    return x ^ mirrored ^ exchanged, axis ^ exchanged


def encode(cells: Tensor, levels: int, orders: Sequence[str] = ORDERS) -> Tensor:
    """Codes along several curves, those of one kind made together.

    Args:
        cells: (V, 3) int64, each in [0, 2^levels).
        levels: Bits of a coordinate.
        orders: Names of `ORDERS`.

    Returns:
        (orders, V) int64.

    Raises:
        DataError: If the codes would need more than 63 bits.
    """
    if not 0 <= levels <= MAX_LEVELS:
        raise DataError(f"cells with coordinates of {levels} bits have no code of 63 bits: at most {MAX_LEVELS}")
    codes: dict[str, Tensor] = {}
    for kind in ("z", "hilbert"):
        names = [name for name in dict.fromkeys(orders) if name.split("-")[0] == kind]
        if names:
            turned = torch.stack([cells[:, [1, 0, 2]] if name.endswith("-trans") else cells for name in names])
            made = z_order(turned) if kind == "z" else hilbert(turned, levels)
            codes.update(zip(names, made, strict=True))
    return torch.stack([codes[name] for name in orders])
