"""Groups of rows, such as the points of a voxel: reduced and spread in an order that does not change.

Legend: N rows, V groups, C features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

__all__ = ["Groups", "segment_max"]


@dataclass(frozen=True)
class Groups:
    """Rows that belong together, such as the points of a voxel.

    Attributes:
        index: (N,) int64 group of each row.
        starts: (V + 1,) int64: group g holds places starts[g] to starts[g + 1] of the sorted rows.
        order: (N,) int64 row that stands at each place; `None` where rows are sorted already.
    """

    index: Tensor
    starts: Tensor
    order: Tensor | None = None

    def reduce(self, rows: Tensor, how: str) -> Tensor:
        """Reduces the rows of each group, always in the same order, so that results are the same to the bit.

        Args:
            rows: (N, C) float.
            how: `"max"`, `"mean"` or `"sum"`; no group may be empty for the first two.

        Returns:
            (V, C) in the dtype of the rows.
        """
        ordered = rows if self.order is None else rows.index_select(0, self.order)
        exact = ordered.float() if how != "max" and ordered.dtype in (torch.float16, torch.bfloat16) else ordered
        reduced = segment_max(exact, self.starts) if how == "max" else _reduce(exact, how, self.starts)
        return reduced.to(rows.dtype)

    def spread(self, values: Tensor) -> Tensor:
        """The value of its group for every row: (V, C) -> (N, C); gradients are summed in a fixed order."""
        return cast(Tensor, _Spread.apply(values, self))


def _reduce(rows: Tensor, how: str, starts: Tensor) -> Tensor:
    return torch.segment_reduce(rows, how, offsets=starts, axis=0, unsafe=True)


def segment_max(rows: Tensor, starts: Tensor) -> Tensor:
    """Maximum of each run of rows; rows that tie share its gradient in equal parts.

    Args:
        rows: (N, C) float, N above 0.
        starts: (V + 1,) int64 offsets of the runs. An empty one gives minus infinity.

    Returns:
        (V, C) in the dtype of the rows.
    """
    return cast(Tensor, _Maximum.apply(rows, starts))


class _Maximum(torch.autograd.Function):
    """The maximum with a gradient of its own.

    That of `torch.segment_reduce` (2.11 to 2.14) divides by the number of rows that tie only what is above 0. What is
    below counts as often as rows tie, which in 16 bit is common: gradients then no longer add up to zero where a
    BatchNorm follows, features drift away from zero, tie more often as they get coarser, and training falls apart.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, starts: Tensor) -> Tensor:
        maxima = _reduce(rows, "max", starts)
        ctx.save_for_backward(rows, maxima, starts)
        return maxima

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        rows, maxima, starts = ctx.saved_tensors
        run = torch.repeat_interleave(starts.diff(), output_size=len(rows))  # A stated size is not waited for.
        exact = torch.promote_types(rows.dtype, torch.float32)
        largest = (rows == maxima.index_select(0, run)).to(exact)
        share = grad.to(exact) / _reduce(largest, "sum", starts)
        return (largest * share.index_select(0, run)).to(rows.dtype), None


class _Spread(torch.autograd.Function):
    """Gathers rows by group; the gradient is a sum over runs instead of atomic additions."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, groups: Groups) -> Tensor:
        ctx.groups = groups
        return values.index_select(0, groups.index)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.groups.reduce(grad, "sum"), None
