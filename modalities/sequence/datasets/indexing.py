"""Indirect indexing (PoPE, arXiv 2509.10534): find a letter in a string, and name the one so many places from it.

`gbPkRz,k,-2,b`: a string of letters, one of them, a distance, and the letter there. The string has 20 to 40 of the 52
letters, each at most once; the letter is any of them; the distance is uniform over the whole numbers from -15 to 15
that stay within the string (as drawing it again until it does). Tokens are characters; only the answer is scored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from modalities.sequence.batch import TokenBatch
from modalities.sequence.datasets.base import SequenceSet, batch_tokens, in_batches, next_tokens
from modalities.sequence.datasets.made import MadeUp
from modalities.sequence.presets import INDEX_CHARACTERS
from modalities.sequence.tokenizers import CharTokenizer
from zoo.errors import ConfigError
from zoo.training.seeds import derive_seed
from zoo.training.settings import check

__all__ = ["IndirectIndexing", "draw_questions"]

_LETTERS = 52  # Letters are the first characters, then come the digits.
_FURTHEST = 15
_AFTER = 8  # Tokens after the string, at most: ",k,-12,b".
_BLOCK = 65_536
_PAPER = (20, 40)


@dataclass(frozen=True)
class IndirectIndexing(MadeUp):
    """Settings of the task.

    Attributes:
        letters: Shortest and longest string.
        train_samples: Samples of the training split; the others have 10,000.
    """

    letters: tuple[int, int] = _PAPER
    train_samples: int = 1_000_000

    name = "index"

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.letters
        check("letters", self.letters, 1 <= low <= high <= _LETTERS, f"two ascending numbers from 1 to {_LETTERS}")

    def open(self, split: str) -> SequenceSet:
        """See `MadeUp.open`."""
        return _Questions(self, split)

    def question(self, text: str) -> str:
        """Without spaces, which only fill up samples: `gbPkRz, k, -2, ` asks what `gbPkRz,k,-2,` does."""
        return text.replace(" ", "")


def draw_questions(
    count: int, seed: int, letters: tuple[int, int] = _PAPER, device: str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Draws samples; random numbers come from the CPU, so that they are the same on every device.

    Args:
        count: Samples.
        seed: Of all draws.
        letters: Shortest and longest string.
        device: Where to make them.

    Returns:
        Token ids uint8 (count, letters[1] + 8), filled up with spaces, and the place of the answer, int64 (count,).
    """
    generator = Generator().manual_seed(seed)
    order = torch.rand(count, _LETTERS, generator=generator).to(device).argsort(dim=1, stable=True)
    draws = torch.rand(count, 3, generator=generator, dtype=torch.float64).to(device)

    def between(column: int, low: Tensor | int, high: Tensor | int) -> Tensor:
        """Uniform whole numbers from low to high."""
        return low + (draws[:, column] * (high - low + 1)).long()

    low, high = letters
    lengths = between(0, low, high)
    source = between(1, torch.zeros_like(lengths), lengths - 1)
    shift = between(2, (-source).clamp(min=-_FURTHEST), (lengths - 1 - source).clamp(max=_FURTHEST))

    comma, plus, minus, space = (INDEX_CHARACTERS.index(character) for character in ",+- ")
    columns = torch.arange(high + _AFTER, device=device)
    tokens = torch.full((count, high + _AFTER), space, device=device)
    tokens[:, :high] = order[:, :high].where(columns[:high] < lengths[:, None], space)
    rows = torch.arange(count, device=device)
    size, long = shift.abs(), shift.abs() >= 10
    tens, ones = _LETTERS + size // 10, _LETTERS + size % 10
    answer = order[rows, source + shift]
    commas, spaces = torch.full_like(size, comma), torch.full_like(size, space)
    after = [commas, order[rows, source], commas, torch.where(shift < 0, minus, plus)]
    after += [tens.where(long, ones), ones.where(long, commas), commas.where(long, answer), answer.where(long, spaces)]
    tokens.scatter_(1, lengths[:, None] + columns[:_AFTER], torch.stack(after, dim=1))
    return tokens.to(torch.uint8), lengths + _AFTER - 2 + long


class _Questions(SequenceSet):
    """The samples of a split, drawn once."""

    made_up = True

    def __init__(self, settings: IndirectIndexing, split: str) -> None:
        self.name, self.split, self.settings = "indirect-indexing", split, settings
        self.sha256 = settings.sha256(split)
        self.tokenizer = CharTokenizer(INDEX_CHARACTERS)
        self.samples = settings.train_samples if split == "train" else 10_000
        self.length = settings.letters[1] + _AFTER - 1
        self.tokens: Tensor | None = None

    def start(self, device: torch.device) -> None:
        """See `SequenceSet.start`; the samples are drawn here."""
        super().start(device)
        blocks = [
            draw_questions(
                min(_BLOCK, self.samples - begin),
                derive_seed("indirect indexing", self.split, begin),
                self.settings.letters,
                str(device),
            )
            for begin in range(0, self.samples, _BLOCK)
        ]
        self.tokens, self.places = (torch.cat(parts) for parts in zip(*blocks, strict=True))

    def batch(self, rows: Tensor, seed: int) -> TokenBatch:
        """See `SequenceSet.batch`; nothing is drawn."""
        if self.tokens is None:
            self.start(torch.device("cpu"))
        assert self.tokens is not None
        chosen = rows.to(self.tokens.device, non_blocking=True)
        tokens = self.tokens[chosen].long()
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return next_tokens(tokens, places == self.places[chosen][:, None])

    def default_sizes(self) -> list[int]:
        """That of training: samples have a longest length."""
        return [self.length]

    def scored(self, size: int, limit: int | None = None) -> Iterator[TokenBatch]:
        """See `SequenceSet.scored`."""
        if size != self.length:
            raise ConfigError(f"samples of indirect indexing are read as {self.length} tokens, not {size}")
        if self.tokens is None:
            self.start(torch.device("cpu"))
        for rows in in_batches(self.samples, self.length, batch_tokens(self.device, self.tokenizer.vocab_size), limit):
            yield self.batch(torch.tensor(rows), 0)
