"""Sets of sequences by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from modalities.sequence.datasets.base import SequenceSet
from modalities.sequence.datasets.files import CHORALES, FASTA, SPLITS, chorales, dna, rolls, text
from modalities.sequence.datasets.indexing import IndirectIndexing
from modalities.sequence.datasets.made import MadeUp
from modalities.sequence.datasets.packed import META, packed, packed_splits
from modalities.sequence.datasets.pictures import PictureQuestions
from modalities.sequence.datasets.text2d import ColumnMaxima, LineCopy
from modalities.sequence.tokenizers import Tokenizer
from zoo.errors import ConfigError
from zoo.training.settings import field_names, parse, unknown_key

__all__ = ["DATASETS", "MADE_UP", "open_sequences", "settings", "splits"]

# What opens a set of files, and the splits that it has.
_FILES: dict[str, tuple[Callable[..., SequenceSet], tuple[str, ...]]] = {
    "jsb": (chorales, SPLITS),
    "jsb-roll": (rolls, SPLITS),
    "text": (text, ("train", "validation")),
    "dna": (dna, ("train", "test")),
    "tokens": (packed, SPLITS),
}
MADE_UP: dict[str, type[MadeUp]] = {
    cls.name: cls for cls in (IndirectIndexing, LineCopy, ColumnMaxima, PictureQuestions)
}
DATASETS = (*_FILES, *MADE_UP)
"""Names of sets: those of files, then those that are made up."""


def splits(dataset: str, data: str | os.PathLike[str] | None = None) -> tuple[str, ...]:
    """Names of the splits that a set has; of packed tokens those that it may have, or with `data` those there are.

    Raises:
        DataError: If `data` are no packed tokens.
    """
    if dataset == "tokens" and data is not None:
        return packed_splits(Path(data))
    return _FILES[dataset][1] if dataset in _FILES else SPLITS


def dataset_at(data: str | os.PathLike[str]) -> str:
    """The set that a file or folder holds, going by names of files.

    Raises:
        ConfigError: If there is none, or there are several.
    """
    path = Path(data)
    names = [path.name] if path.is_file() else [found.name for found in path.glob("*")]
    if META in names:
        return "tokens"
    ends = {"jsb": (CHORALES,), "text": (".txt",), "dna": FASTA}
    found = [dataset for dataset, suffixes in ends.items() if any(name.endswith(suffixes) for name in names)]
    if len(found) != 1:
        what = ", ".join(MADE_UP)
        raise ConfigError(
            f"{path}: expected one of jsb_chorales.npz, a text (.txt), a FASTA file, a folder of `zoo make-tokens`, or "
            f"one of {what}"
        )
    return found[0]


def settings(dataset: str, values: Mapping[str, Any]) -> MadeUp | None:
    """Checks the settings of a set.

    Args:
        dataset: One of `DATASETS`.
        values: Of the class of a made-up task, such as `PictureQuestions`; sets of files have none.

    Returns:
        The settings, or `None` for files.

    Raises:
        ConfigError: For an unknown set or setting, or one out of range.
    """
    if dataset not in DATASETS:
        raise ConfigError(f"no set of sequences {dataset!r:.60}; there are {', '.join(DATASETS)}")
    made = MADE_UP.get(dataset)
    known = field_names(made) if made else []
    for key in values:
        if key not in known:
            raise (
                unknown_key(key, known, f"dataset {dataset}")
                if known
                else ConfigError(f"dataset {dataset} has no settings, got {key!r:.40}")
            )
    return None if made is None else parse(made, values, f"dataset {dataset}")


def open_sequences(
    dataset: str,
    data: str | os.PathLike[str] | None,
    split: str,
    *,
    length: int,
    tokenizer: Tokenizer | None = None,
    options: Mapping[str, Any] | None = None,
) -> SequenceSet:
    """Opens a split.

    Args:
        dataset: One of `DATASETS`.
        data: File or folder; `None` for what is made up.
        split: `"train"`, `"validation"` (or `"val"`, `"valid"`) or `"test"`.
        length: Tokens of a window of training, of sets of files.
        tokenizer: That of the network, for text; `None` makes one.
        options: Settings of a made-up task.

    Raises:
        ConfigError: For an unknown set, split or setting, or files that are missing where they are needed.
        DataError: If files cannot be used.
    """
    made = settings(dataset, options or {})
    split = {"val": "validation", "valid": "validation"}.get(split, split)
    if split not in splits(dataset):
        raise ConfigError(f"the splits of {dataset} are {', '.join(splits(dataset))}, not {split!r:.40}")
    if made is not None:
        return made.open(split)
    opener, _ = _FILES[dataset]
    if data is None:
        raise ConfigError(f"no data: give --data PATH (the file of {dataset}, or its folder)")
    path = Path(data)
    if not path.exists():
        raise ConfigError(f"no such file or folder: {path}")
    found = opener(path, split, length, tokenizer)
    if tokenizer is not None and found.tokenizer != tokenizer:
        raise ConfigError(f"{found.name} has tokens of kind {found.tokenizer.kind!r}, the network {tokenizer.kind!r}")
    return found
