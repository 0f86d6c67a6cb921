"""One long sequence, or pieces one after the other, seen through windows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Generator, Tensor

from modalities.sequence.batch import IGNORED, TokenBatch
from modalities.sequence.datasets.base import SequenceSet, batch_tokens, in_batches
from modalities.sequence.tokenizers import Tokenizer
from zoo.errors import ConfigError, DataError

__all__ = ["Stream", "Windows"]

_GROWTH = (1, 2, 4, 10)
"""Lengths that a network is measured at, in those of training."""


class Windows(SequenceSet):
    """Tokens one after the other, wherever they are kept.

    Training sees windows that begin anywhere. Scoring goes through the data in windows that overlap by half: all but
    the first give the network half a window to read before it is scored, and every token is scored once.

    Attributes:
        count: How many tokens there are.
    """

    count: int

    def _measure(self, count: int) -> None:
        """Notes how many tokens there are.

        Raises:
            DataError: If there are no more than a window has.
        """
        if count <= self.length:
            raise DataError(
                f"{self.name}: the split {self.split} has {count} tokens, no more than a window: lower length "
                f"({self.length})"
            )
        self.count, self.samples = count, count // self.length

    @abstractmethod
    def _read(self, first: Tensor, length: int) -> Tensor:
        """Tokens int64 (B, length) on the device, from places `first` (B,), a tensor on the CPU."""

    def batch(self, rows: Tensor, seed: int) -> TokenBatch:
        """See `SequenceSet.batch`; where a window begins is drawn."""
        generator = Generator().manual_seed(seed)
        first = torch.randint(self.count - self.length, (len(rows),), generator=generator)
        return self._windows(first, self.length)

    def default_sizes(self) -> list[int]:
        """1, 2, 4 and 10 windows of training, as far as the data go."""
        return [times * self.length for times in _GROWTH if times * self.length < self.count]

    def scored(self, size: int, limit: int | None = None) -> Iterator[TokenBatch]:
        """See `SequenceSet.scored`; the last window is moved back to end with the data."""
        last = self.count - 1 - size
        if size < 2 or last < 0:
            raise ConfigError(f"{self.name} has windows of 2 to {self.count - 1} tokens, not {size}")
        step = size // 2
        whole = range(0, last, step)  # And one that ends with the data.

        def begins(row: int) -> int:
            return whole[row] if row < len(whole) else last

        for rows in in_batches(len(whole) + 1, size, batch_tokens(self.device, self.tokenizer.vocab_size), limit):
            chosen = torch.tensor([begins(row) for row in rows])
            # Tokens read before the first that is scored: those which the window before has scored.
            seen = torch.tensor([0 if row == 0 else begins(row - 1) + size - begins(row) for row in rows])
            batch = self._windows(chosen, size)
            old = torch.arange(size) < seen[:, None]
            yield TokenBatch(batch.ids, batch.targets.masked_fill(old.to(self.device), IGNORED))

    def _windows(self, first: Tensor, length: int) -> TokenBatch:
        """Windows (B, length) that begin at tokens `first` (B,), a tensor on the CPU."""
        tokens = self._read(first, length + 1)
        targets = tokens[:, 1:]
        if self.tokenizer.start is not None:  # When a piece ends is not asked.
            targets = targets.masked_fill(targets == self.tokenizer.start, IGNORED)
        return TokenBatch(tokens[:, :-1], targets)


class Stream(Windows):
    """Tokens in memory; each piece begins with the tokenizer's start token, where it has one.

    Args:
        name: See `SequenceSet`.
        split: See `SequenceSet`.
        pieces: Token ids, int64 (n,) each.
        tokenizer: That of the ids.
        length: Tokens of a window in training.
        sha256: See `SequenceSet`.

    Raises:
        DataError: If there are no more tokens than a window has.
    """

    def __init__(
        self, name: str, split: str, pieces: Sequence[np.ndarray], tokenizer: Tokenizer, length: int, sha256: str
    ) -> None:
        head = np.array([] if tokenizer.start is None else [tokenizer.start], dtype=np.int64)
        parts = [part for piece in pieces for part in (head, piece)]
        tokens = np.concatenate(parts) if parts else head
        self.name, self.split, self.sha256 = name, split, sha256
        self.tokenizer, self.length = tokenizer, length
        self._measure(len(tokens))
        smallest = np.uint8 if tokenizer.vocab_size <= 256 else np.int32
        self.tokens = torch.from_numpy(tokens.astype(smallest))
        self.start(torch.device("cpu"))

    def start(self, device: torch.device) -> None:
        """See `SequenceSet.start`."""
        super().start(device)
        self.tokens = self.tokens.to(device)

    def _read(self, first: Tensor, length: int) -> Tensor:
        places = first.to(self.device, non_blocking=True)[:, None] + torch.arange(length, device=self.device)
        return self.tokens[places].long()
