"""Made-up data: they follow from settings and seeds alone, and need no files."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar

import torch
from torch import Generator, Tensor

from modalities.sequence.batch import TokenBatch
from modalities.sequence.datasets.base import SequenceSet, batch_tokens, in_batches
from modalities.sequence.tokenizers import CharTokenizer
from zoo.coordinates import Coordinates
from zoo.errors import ConfigError
from zoo.training.seeds import derive_seed
from zoo.training.settings import check

__all__ = ["DrawnSet", "MadeUp", "pick"]

_VERSION = 1  # Of what is drawn: another draw from the same settings is other data.
_SCORED = 1000


@dataclasses.dataclass(frozen=True)
class MadeUp(ABC):
    """Settings of a made-up task.

    Attributes:
        name: What it is called in recipes and by `zoo eval --data`.
        train_samples: Samples of an epoch of training.
        answer_tokens: Most tokens of an answer.
        answer_end: The character that ends an answer, where they differ in length.
    """

    train_samples: int = 100_000

    name: ClassVar[str]
    answer_tokens: ClassVar[int] = 1
    answer_end: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        check("train_samples", self.train_samples, 1 <= self.train_samples <= 10**8, "between 1 and 10^8")

    @abstractmethod
    def open(self, split: str) -> SequenceSet:
        """The sequences of a split, `"train"`, `"validation"` or `"test"`."""

    def question(self, text: str) -> str:
        """A question that a user wrote, as training has them."""
        return text

    def placing(self, prompt: Tensor) -> Callable[[Tensor], Coordinates] | None:
        """What places the tokens of a question and of its answer, as in training.

        Args:
            prompt: int64 (1, N), the question.

        Returns:
            A function from all tokens so far, (1, L), to their coordinates; `None`: they are counted.

        Raises:
            DataError: If it cannot be a question of this task.
        """
        return None

    def sha256(self, split: str) -> str:
        """Identifies the data of a split."""
        values = [_VERSION, self.name, split, dataclasses.asdict(self)]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


class DrawnSet(SequenceSet):
    """Sequences of a task that are drawn when they are asked for: no sample of training comes twice.

    Args:
        name: See `SequenceSet`.
        made: The settings.
        split: See `SequenceSet`.
        alphabet: Characters that are tokens.
    """

    made_up = True

    def __init__(self, name: str, made: MadeUp, split: str, alphabet: str) -> None:
        self.name, self.split, self.sha256 = name, split, made.sha256(split)
        self.tokenizer = CharTokenizer(alphabet)
        self.samples = made.train_samples if split == "train" else _SCORED
        self.device = torch.device("cpu")

    @abstractmethod
    def tokens_at(self, size: int | None) -> int:
        """Tokens of a sequence of a size; `None`: in training.

        Raises:
            ConfigError: If there are no such sequences.
        """

    @abstractmethod
    def draw(self, count: int, generator: Generator, size: int | None) -> TokenBatch:
        """Draws sequences on the CPU and puts them on the device.

        Args:
            count: How many.
            generator: Of the CPU.
            size: Of `scored`; `None` draws as for training.
        """

    def batch(self, rows: Tensor, seed: int) -> TokenBatch:
        """See `SequenceSet.batch`; all is drawn."""
        return self.draw(len(rows), Generator().manual_seed(seed), None)

    def scored(self, size: int, limit: int | None = None) -> Iterator[TokenBatch]:
        """See `SequenceSet.scored`: 1,000 sequences, the same for every network."""
        for rows in in_batches(
            _SCORED, self.tokens_at(size), batch_tokens(self.device, self.tokenizer.vocab_size), limit
        ):
            seed = derive_seed(self.name, self.split, size, rows[0])
            yield self.draw(len(rows), Generator().manual_seed(seed), size)


def pick(count: int, per_sample: int, of: int, generator: Generator) -> Tensor:
    """Different numbers 0 .. of - 1 for each sample: int64 (count, per_sample).

    Raises:
        ConfigError: If there are not as many.
    """
    if per_sample > of:
        raise ConfigError(f"there are {of} different names, not {per_sample}")
    return torch.rand(count, of, generator=generator).argsort(dim=1, stable=True)[:, :per_sample]
