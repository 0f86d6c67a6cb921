"""Tasks on text whose rows are lines (2-D position ids for text, arXiv 2607.16072): copying a line, reading columns.

    copy                column
    >qwerty             >3141
    =qwerty             >5926
                        =5946

Every line begins with a mark and ends with a newline; that of the answer with another mark. `copy`: the line again.
`column`: of each column the largest digit. Only the answer is scored. How long lines are differs from sample to sample,
so that what belongs to each other is at a distance that differs in tokens and is the same in (row, column).

The task is ours: of the paper the abstract alone was known to us.
"""

from __future__ import annotations

import dataclasses
import string
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from modalities.sequence.batch import TokenBatch
from modalities.sequence.datasets.base import SequenceSet, next_tokens
from modalities.sequence.datasets.made import DrawnSet, MadeUp
from zoo.coordinates import Coordinates
from zoo.errors import ConfigError
from zoo.position_ids import newline_rows
from zoo.training.settings import check

__all__ = ["ColumnMaxima", "LineCopy"]

_MARK, _ANSWER, _NEWLINE, _FILL = ">", "=", "\n", " "
_SIGNS = _MARK + _ANSWER + _NEWLINE + _FILL
_MOST = 4096
_EXACT_STEPS = 255  # See `Coordinates.integral`.
_POSITIONS = ("count", "rows")


@dataclass(frozen=True)
class _Lines(MadeUp):
    """Settings of both tasks.

    Attributes:
        columns: Fewest and most characters of a line in training.
        rows: Fewest and most lines before the answer in training.
        positions: `"count"`: tokens are counted (one axis); `"rows"`: (row, column) of each.
    """

    columns: tuple[int, int] = (4, 32)
    rows: tuple[int, int] = (1, 1)
    positions: str = "count"

    characters: ClassVar[str]
    answer_tokens = 256
    answer_end = _NEWLINE

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("columns", "rows"):
            low, high = getattr(self, key)
            check(key, (low, high), 1 <= low <= high <= _MOST, f"two ascending numbers from 1 to {_MOST}")
        check("positions", self.positions, self.positions in _POSITIONS, f"one of {', '.join(_POSITIONS)}")

    def open(self, split: str) -> SequenceSet:
        """See `MadeUp.open`."""
        return _LineSet(self, split)

    def placing(self, prompt: Tensor) -> Callable[[Tensor], Coordinates] | None:
        """See `MadeUp.placing`."""
        if self.positions == "count":
            return None
        alphabet = self.characters + _SIGNS
        newline, fill = alphabet.index(_NEWLINE), alphabet.index(_FILL)
        return lambda tokens: _rows(tokens, newline, fill)

    @abstractmethod
    def answer(self, lines: Tensor, rows: Tensor) -> Tensor:
        """The answer (B, columns) to characters (B, most rows, columns), of which the first `rows` (B,) are there."""


@dataclass(frozen=True)
class LineCopy(_Lines):
    """The line again."""

    name = "copy"
    characters = string.ascii_lowercase

    def __post_init__(self) -> None:
        super().__post_init__()
        check("rows", self.rows, tuple(self.rows) == (1, 1), "[1, 1]: one line is copied")

    def answer(self, lines: Tensor, rows: Tensor) -> Tensor:
        """The first line."""
        return lines[:, 0]


@dataclass(frozen=True)
class ColumnMaxima(_Lines):
    """Of each column the largest digit."""

    columns: tuple[int, int] = (4, 16)
    rows: tuple[int, int] = (2, 4)

    name = "column"
    characters = string.digits

    def answer(self, lines: Tensor, rows: Tensor) -> Tensor:
        """The maximum over lines."""
        there = torch.arange(lines.shape[1]) < rows[:, None]
        return lines.masked_fill(~there[:, :, None], -1).amax(dim=1)


class _LineSet(DrawnSet):
    what = "columns"

    def __init__(self, made: _Lines, split: str) -> None:
        super().__init__(f"lines-{made.name}", made, split, made.characters + _SIGNS)
        self.made = made
        self.axes = 2 if made.positions == "rows" else 1
        self.length = self.tokens_at(None)

    def default_sizes(self) -> list[int]:
        """The longest lines of training, and up to ten times as long."""
        return [times * self.made.columns[1] for times in (1, 2, 4, 10)]

    def tokens_at(self, size: int | None) -> int:
        """See `DrawnSet.tokens_at`."""
        columns = self.made.columns[1] if size is None else size
        if not 1 <= columns <= 10 * _MOST:
            raise ConfigError(f"lines have 1 to {10 * _MOST} columns, not {columns}")
        return (self.made.rows[1] + 1) * (columns + 2) - 1

    def draw(self, count: int, generator: Generator, size: int | None) -> TokenBatch:
        """See `DrawnSet.draw`; when scored, all lines have `size` columns."""
        length = self.tokens_at(size) + 1

        def between(low: int, high: int) -> Tensor:
            return torch.randint(low, high + 1, (count,), generator=generator)

        rows = between(*self.made.rows)
        columns = between(*self.made.columns) if size is None else torch.full((count,), size)
        most_rows, most = self.made.rows[1], int(self.made.columns[1] if size is None else size)
        values = torch.randint(len(self.made.characters), (count, most_rows, most), generator=generator)
        lines = torch.cat([values, self.made.answer(values, rows)[:, None]], dim=1)

        wide, last = columns[:, None] + 2, rows[:, None]  # Of a line with its mark and newline; which is the answer.
        place = torch.arange(length)
        row, column = place // wide, place % wide
        kept = torch.where(row == last, most_rows, row.clamp(max=most_rows)) * most + (column - 1).clamp(0, most - 1)
        tokens = lines.flatten(1).gather(1, kept)
        mark, answer, newline, fill = range(len(self.made.characters), len(self.made.characters) + len(_SIGNS))
        tokens = torch.where(column == 0, torch.where(row == last, answer, mark), tokens)
        tokens = torch.where(column == wide - 1, newline, tokens)
        tokens = torch.where(row > last, fill, tokens)
        asked = (row == last) & (column > 0) & (column < wide - 1)
        tokens, asked = tokens.to(self.device), asked.to(self.device)
        return next_tokens(tokens, asked, self._placed(tokens, newline, fill, most) if self.axes == 2 else None)

    def _placed(self, tokens: Tensor, newline: int, fill: int, most: int) -> Coordinates:
        """(row, column) of tokens (B, N) in lines of at most `most` characters; what fills up is at (0, 0)."""
        found = _rows(tokens, newline, fill)
        bounds = ((0.0, float(self.made.rows[1])), (0.0, most + 1.0))
        exact = max(high for _, high in bounds) <= _EXACT_STEPS
        return dataclasses.replace(found, bounds=bounds, integral=exact)


def _rows(tokens: Tensor, newline: int, fill: int) -> Coordinates:
    """(row, column) of tokens (B, N); what fills up is at (0, 0)."""
    found = newline_rows(tokens == newline)
    return dataclasses.replace(found, values=found.values.masked_fill((tokens == fill)[:, :, None], 0.0))
