"""Fine-tuning decoders: which data are understood, what is wrong with them, and settings for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modalities.sequence.datasets.find import dataset_at, open_sequences, splits
from modalities.sequence.tokenizers import tokenizer_from_dict
from zoo.errors import ConfigError, DataError
from zoo.finetune.found import Found, measured_on, no_layout
from zoo.finetune.report import Report

__all__ = ["examine"]

LAYOUTS = (
    "a text file in UTF-8 (.txt), or a folder with one input.txt",
    "the file jsb_chorales.npz",
    "a FASTA file",
)
_LENGTH = 256


def examine(
    data: Path, config: Mapping[str, Any], report: Report, *, size: int | None, skip_bad: bool, quiet: bool
) -> Found:
    """Finds and checks a file of sequences; arguments as for `modalities.image.finetune.examine`.

    `size` is the number of tokens of a training sequence.

    Raises:
        DataError: If the layout is not known.
    """
    try:
        kind = dataset_at(data)
    except ConfigError:
        raise no_layout(data, "sequence generation", LAYOUTS) from None
    if not data.exists():
        raise no_layout(data, "sequence generation", LAYOUTS)
    length = size or config["data"].get("length") or _LENGTH
    stated = config["data"].get("tokenizer")
    samples, measured = 2, "validation" in splits(kind, data)
    for split in ("train", "validation") if measured else ("train",):
        try:
            tokenizer = tokenizer_from_dict(stated) if stated else None
            found = open_sequences(kind, data, split, length=length, tokenizer=tokenizer)
            samples = found.samples if split == "train" else samples
        except (ConfigError, DataError) as error:
            report.error("files that cannot be used", f"{split}: {error}")
    settings: dict[str, Any] = {"dataset": kind, "length": length, "head_first": 0.0, "head_lr": 1.0}
    if not measured:
        settings |= {"select": None, "patience": 0, "eval_every": 0}
    told = measured_on(measured, 0.0)
    return Found(
        f"sequences ({kind})", "sequence-generation", "dev_nll", samples, (), told, settings, 16, new_head=False
    )
