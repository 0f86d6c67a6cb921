"""Recipe keys of training on sequences."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from zoo.training.settings import check

__all__ = ["SequenceOptions"]


@dataclass(frozen=True)
class SequenceOptions:
    """Recipe keys of task `sequence-generation`.

    Attributes:
        dataset: One of `modalities.sequence.datasets.DATASETS`.
        dataset_options: Settings of a made-up task, such as `modalities.sequence.datasets.pictures.PictureQuestions`.
        length: Tokens of a training sequence, of data from files; made-up tasks have their own.
        transpose: Of music: sequences are moved by up to so many semitones up or down.
        dev_limit: Validation sequences that are scored after training; 0 for all.
    """

    dataset: str = "text"
    dataset_options: dict[str, Any] = field(default_factory=dict)
    length: int = 256
    transpose: int = 0
    dev_limit: int = 0

    def __post_init__(self) -> None:
        from modalities.sequence.datasets import DATASETS, settings

        check("dataset", self.dataset, self.dataset in DATASETS, f"one of {', '.join(DATASETS)}")
        settings(self.dataset, self.dataset_options)
        check("length", self.length, 2 <= self.length <= 1 << 24, "between 2 and 2^24")
        check("transpose", self.transpose, 0 <= self.transpose <= 12, "between 0 and 12")
        check("dev_limit", self.dev_limit, self.dev_limit >= 0, "0 or more")
