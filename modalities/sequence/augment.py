"""Augmentation of token sequences."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from modalities.sequence.batch import TokenBatch
from modalities.sequence.tokenizers import LOWEST_KEY, ChoraleTokenizer, RollTokenizer, Tokenizer
from zoo.errors import ConfigError

__all__ = ["Transpose"]


@dataclass(frozen=True)
class Transpose:
    """Moves music up or down: each sequence by as many semitones, drawn uniformly from -semitones to semitones.

    A sequence that would leave the piano stays where it is.

    Attributes:
        semitones: Furthest move.
        tokenizer: That of the sequences, of chorales or piano rolls.

    Raises:
        ConfigError: For other tokens, which have no pitch.
    """

    semitones: int
    tokenizer: Tokenizer

    def __post_init__(self) -> None:
        if not isinstance(self.tokenizer, (ChoraleTokenizer, RollTokenizer)):
            raise ConfigError(
                f"transpose is for music: tokens of kind {self.tokenizer.kind!r} have no pitch; set it to 0"
            )

    def __call__(self, batch: TokenBatch, generator: Generator) -> TokenBatch:
        """The batch, transposed; `generator` is one of the CPU."""
        count = len(batch.ids)
        moves = torch.randint(-self.semitones, self.semitones + 1, (count, 1), generator=generator)
        moves = moves.to(batch.ids.device, non_blocking=True)
        first, keys = LOWEST_KEY[self.tokenizer.kind]

        def pitched(tokens: Tensor) -> Tensor:
            return (tokens >= first) & (tokens < first + keys)

        def fits(tokens: Tensor) -> Tensor:
            return (pitched(tokens + moves) | ~pitched(tokens)).all(dim=1, keepdim=True)

        moves = moves * (fits(batch.ids) & fits(batch.targets))
        ids, targets = (tokens + moves * pitched(tokens) for tokens in (batch.ids, batch.targets))
        return replace(batch, ids=ids, targets=targets)
