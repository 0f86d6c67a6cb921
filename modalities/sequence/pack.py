"""Packs large sets into files of token ids; see `modalities.sequence.datasets.packed`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from modalities.sequence.bpe import BpeTokenizer, read_bpe
from modalities.sequence.datasets.documents import Document, kind_of
from modalities.sequence.datasets.packed import SPLITS, TokenWriter
from modalities.sequence.performance import PerformanceTokenizer
from modalities.sequence.tokenizers import DNATokenizer, Tokenizer
from zoo.errors import ConfigError, DataError
from zoo.files import new_folder
from zoo.progress import progress_bar

__all__ = ["pack_tokens"]

_BATCH = 256  # Documents that are encoded at a time, on all cores.


def pack_tokens(
    kind: str,
    data: Path,
    out: Path,
    *,
    tokenizer: Path | None = None,
    validation: float = 0.0005,
    seed: int = 0,
    limit: int | None = None,
    quiet: bool = True,
) -> dict[str, int]:
    """Encodes a set and writes its tokens; memory stays bounded, and nothing is left of what fails.

    Args:
        kind: A key of `modalities.sequence.datasets.documents.KINDS`.
        data: The set as it is published.
        out: New folder.
        tokenizer: Of text: see `modalities.sequence.bpe.read_bpe`. A `tokenizer.json` is put into the folder.
        validation: Share of documents that is held out, of sets without splits.
        seed: Of that choice.
        limit: Only the first documents.
        quiet: Show no progress bar.

    Returns:
        Split -> tokens.

    Raises:
        ConfigError: If a setting cannot be used.
        DataError: If the set cannot be read, or has nothing to train on.
        MissingDependencyError: If a library is missing.
    """
    found = kind_of(kind)
    if not 0 <= validation < 1:
        raise ConfigError(f"validation must be at least 0 and below 1, got {validation!r}")
    if (tokenizer is not None) != (found.tokenizer == "bpe"):
        raise ConfigError(
            f"{kind} is text: name the file of its tokenizer (tokenizer.json of openai-community/gpt2 on the Hub)"
            if tokenizer is None
            else f"{kind} has a tokenizer of its own: name none"
        )
    if not data.exists():
        raise ConfigError(f"no such file or folder: {data}")
    table: str | None = None
    own: Tokenizer
    if tokenizer is not None:
        own, table = read_bpe(tokenizer)
    else:
        own = DNATokenizer() if found.tokenizer == DNATokenizer.kind else PerformanceTokenizer()
    facts = {"name": found.name, "source": found.source, "licence": found.licence}
    documents = islice(found.documents(data, validation, seed), limit)
    with new_folder(out) as folder, progress_bar(f"packing {kind}", None, quiet) as update:
        with TokenWriter(folder, own, facts) as writer:
            done = 0
            while batch := list(islice(documents, _BATCH if isinstance(own, BpeTokenizer) else 1)):
                for split, ids in _encoded(batch, own):
                    writer.append(split, ids)
                done += len(batch)
                update(done, f"{sum(map(writer.tokens, SPLITS)):,} tokens")
        if not writer.tokens("train") and not writer.tokens("test"):
            raise DataError(f"{data}: nothing to train on or to test on")
        if table is not None:
            (folder / "tokenizer.json").write_text(table, encoding="utf-8")
    return {split: count for split in SPLITS if (count := writer.tokens(split))}


def _encoded(batch: list[Document], tokenizer: Tokenizer) -> Iterator[tuple[str, np.ndarray]]:
    """Split and tokens of documents: texts end with a token of their own, pieces of music begin with one."""
    if isinstance(tokenizer, BpeTokenizer):
        texts = tokenizer.encode_many([str(document.content) for document in batch])
        for document, ids in zip(batch, texts, strict=True):
            yield document.split, np.append(ids, tokenizer.end)
        return
    for document in batch:
        ids = tokenizer.encode(document.content)
        yield document.split, ids if tokenizer.start is None else np.concatenate([[tokenizer.start], ids])
