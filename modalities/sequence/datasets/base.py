"""What every set of sequences offers: batches for training, and sequences in order to be scored on."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from modalities.sequence.batch import IGNORED, TokenBatch
from modalities.sequence.tokenizers import Tokenizer
from zoo.coordinates import Coordinates

__all__ = ["SequenceSet", "batch_tokens", "in_batches", "next_tokens"]


class SequenceSet(ABC):
    """Sequences of one split.

    Attributes:
        name: Of the data set.
        split: `"train"`, `"validation"` or `"test"`.
        sha256: Identifies the data: of the files, or of what made-up data are made from.
        tokenizer: That of its token ids.
        samples: Sequences of an epoch of training.
        length: Tokens that a network reads in training: the N of its batches.
        axes: Coordinate axes p of its positions.
        made_up: Whether sequences are questions with answers, and not parts of something longer.
        what: What `sizes` of `scored` are, for tables: `"tokens"`, `"columns"`, `"pictures"`.
        frame_tokens: Tokens of a frame of music, or the token that ends one (`frame_end`); `None` of other data.
    """

    name: str
    split: str
    sha256: str
    tokenizer: Tokenizer
    samples: int
    length: int
    axes: int = 1
    made_up: ClassVar[bool] = False
    what: ClassVar[str] = "tokens"
    frame_tokens: int | None = None
    frame_end: int | None = None

    def start(self, device: torch.device) -> None:
        """Puts the data on the device, where batches are made from now on."""
        self.device = device

    @abstractmethod
    def batch(self, rows: Tensor, seed: int) -> TokenBatch:
        """A batch for training; a function of its arguments alone.

        Args:
            rows: int64 (B,), which of the `samples`, on the CPU.
            seed: Of what is drawn for these samples.

        Returns:
            `length` tokens each, on the device.
        """

    @abstractmethod
    def default_sizes(self) -> list[int]:
        """Sizes at which a network is measured: that of training, and larger ones where there are any."""

    def trained_size(self) -> int:
        """The size of training: the first of `default_sizes`."""
        return self.default_sizes()[0]

    @abstractmethod
    def scored(self, size: int, limit: int | None = None) -> Iterator[TokenBatch]:
        """The sequences that a network is scored on, in order, in batches on the device.

        Every token of the data is scored once.

        Args:
            size: What makes sequences larger, see `what`.
            limit: Only so many sequences.

        Raises:
            ConfigError: If there are no sequences of this size.
        """


def next_tokens(tokens: Tensor, answers: Tensor | None = None, positions: Coordinates | None = None) -> TokenBatch:
    """A batch in which every token is predicted from those before it.

    Args:
        tokens: int64 (B, N + 1).
        answers: Bool (B, N + 1), the tokens that are scored; `None` for all but the first.
        positions: Of all N + 1 tokens, with bounds.
    """
    targets = tokens[:, 1:] if answers is None else tokens[:, 1:].where(answers[:, 1:], IGNORED)
    placed = None if positions is None else dataclasses.replace(positions, values=positions.values[:, :-1])
    return TokenBatch(tokens[:, :-1], targets, placed)


def in_batches(count: int, size: int, most: int, limit: int | None) -> Iterator[Sequence[int]]:
    """Ranges of rows 0 .. count - 1 of batches that hold at most `most` tokens."""
    count, step = min(count, limit or count), max(1, most // size)
    for begin in range(0, count, step):
        yield range(begin, min(begin + step, count))


def batch_tokens(device: Any, vocab_size: int) -> int:
    """Tokens that are scored at a time: fewer where their logits would take more than 4 GiB, on a CPU 256 MiB."""
    most, logits = (131_072, 1 << 30) if torch.device(device).type == "cuda" else (8192, 1 << 26)
    return min(most, max(1, logits // vocab_size))
