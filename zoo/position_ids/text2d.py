"""Text on two axes (row, column), for RoPE on each (arXiv 2607.16072).

That paper was known to us by its abstract alone, and descriptions of it disagree on what a row is: a line that ends in
a newline, or a fixed number of tokens. Both are here, neither is verified against the authors' code. Note the order:
(row, column) as in the paper, where pictures of `zoo.coordinates.grid` have (column, row).
"""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.coordinates import Coordinates
from zoo.errors import DataError

__all__ = ["fixed_rows", "newline_rows"]

_EXACT_STEPS = 255


def fixed_rows(
    length: int,
    width: int,
    *,
    start: int = 0,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Coordinates:
    """Rows of `width` tokens: token i is at (i // width, i % width).

    Args:
        length: Number of tokens.
        width: Tokens per row.
        start: Index of the first token, for what goes on after a prefix.
        device: Where to make them.
        dtype: The dtype of the features: float64 gives float64 coordinates, everything else float32.

    Returns:
        Coordinates with values (1, length, 2).

    Raises:
        DataError: If a size is no whole number in its range, or too large for the dtype.

    Example:
        >>> fixed_rows(5, width=2).values[0].int().tolist()
        [[0, 0], [0, 1], [1, 0], [1, 1], [2, 0]]
    """
    for name, value, least in (("length", length, 1), ("width", width, 1), ("start", start, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise DataError(f"{name} must be a whole number, {least} or more, got {value!r:.80}")
    limit = 2**53 if dtype == torch.float64 else 2**24
    if max(width, (start + length) // width) > limit or start + length > 2**53:
        raise DataError(f"rows or columns up to {limit:g} and beyond are not told apart in the dtype of coordinates")
    index = torch.arange(start, start + length, device=device)
    rows, columns = index // width, index % width
    first, last = start // width, (start + length - 1) // width
    side = (start % width, (start + length - 1) % width) if first == last else (0, width - 1)
    values = torch.stack([rows, columns], dim=-1).to(_float(dtype)).unsqueeze(0)
    return Coordinates(
        values,
        integral=max(last - first, side[1] - side[0]) <= _EXACT_STEPS,
        bounds=((first, last), side),
        unit="token",
    )


def newline_rows(
    newlines: Tensor,
    *,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Coordinates:
    """Rows that end with a newline token: (number of newlines before, tokens since the last one).

    A newline belongs to the row that it ends.

    Args:
        newlines: Bool (B, N), or (N_total,) with `cu_seqlens`: which tokens end a row, such as `ids == newline` or
            `torch.isin(ids, ids_of_newlines)`.
        mask: Bool (B, N), True for real tokens, padding on either side; others get no position and do not count.
        cu_seqlens: Offsets of packed sequences; each starts at (0, 0).
        dtype: See `fixed_rows`.

    Returns:
        Coordinates with values (B, N, 2), or (N_total, 2) when packed, on the device of `newlines`.

    Raises:
        DataError: If shapes or dtypes do not fit.

    Example:
        >>> ids = torch.tensor([[5, 6, 10, 7, 10, 8]])
        >>> newline_rows(ids == 10).values[0].int().tolist()
        [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [2, 0]]
    """
    dims = 2 if cu_seqlens is None else 1
    if not isinstance(newlines, Tensor) or newlines.dtype != torch.bool or newlines.dim() != dims:
        shape = "(B, N)" if cu_seqlens is None else "(N_total,)"
        got = f"{newlines.dtype} {tuple(newlines.shape)}" if isinstance(newlines, Tensor) else f"{newlines!r:.80}"
        raise DataError(f"newlines must be a bool tensor {shape}, got {got}")
    if mask is not None and (cu_seqlens is not None or mask.dtype != torch.bool or mask.shape != newlines.shape):
        raise DataError(f"mask must be bool {tuple(newlines.shape)} with True for real tokens (none when packed)")
    known = torch.ones_like(newlines) if mask is None else mask
    ends = newlines & known
    first = torch.zeros_like(newlines)
    first[..., :1] = True
    if cu_seqlens is not None:
        blank = Coordinates(newlines.new_zeros(len(newlines), 2, dtype=torch.float32), cu_seqlens=cu_seqlens)
        sample = blank.segments().to(newlines.device)  # Which checks the offsets, too.
        first[1:] = sample[1:] != sample[:-1]
    before = known.long().cumsum(-1) - known.long()  # Real tokens in front of each token.
    closed = ends.long().cumsum(-1) - ends.long()  # Rows closed in front of each token.
    row = closed - torch.where(first, closed, 0).cummax(-1).values
    after_end = torch.where(ends, before + 1, 0).roll(1, -1)
    begin = torch.where(first, before, after_end).cummax(-1).values
    values = torch.stack([row, before - begin], dim=-1).to(_float(dtype))
    if mask is not None:
        values = values.masked_fill(~mask.unsqueeze(-1), 0.0)
    return Coordinates(values, positioned=mask, cu_seqlens=cu_seqlens, unit="token")


def _float(dtype: torch.dtype | None) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
