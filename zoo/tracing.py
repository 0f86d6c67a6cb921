"""Whether a graph is being exported: in it nothing may follow from the size that it happens to be traced at.

A compiler notes such a decision as a guard and compiles again; a graph in a file has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeGuard

import torch
from torch import Tensor

__all__ = ["exporting", "is_exporting", "is_open", "refuse_above"]

_exporting = False


@contextmanager
def exporting() -> Iterator[None]:
    """`is_exporting` holds while the context is open."""
    global _exporting
    before, _exporting = _exporting, True
    try:
        yield
    finally:
        _exporting = before


def is_exporting() -> bool:
    """Whether what runs is being made a graph for a file; not so where torch.compile traces."""
    return _exporting


def is_open(size: object) -> TypeGuard[torch.SymFloat]:
    """Whether a size, or what follows from it, is one that the graph being exported takes any number for."""
    return _exporting and not isinstance(size, int | float)


def refuse_above(x: Tensor, number: Tensor | torch.SymFloat, limit: float) -> Tensor:
    """Gives x as it is, in a graph that fails where a number exceeds a limit.

    It looks up entry 0 or 1 of a table with one entry, which runtimes on a CPU refuse.

    Args:
        x: Floating point; what the rest of the graph needs.
        number: Known when the graph runs; of a tensor the largest counts.
        limit: Largest permitted.
    """
    numbers = number if isinstance(number, Tensor) else torch.full((1,), number, dtype=x.dtype, device=x.device)
    return x + x.new_zeros(1).index_select(0, (numbers > limit).any().long().reshape(1))
