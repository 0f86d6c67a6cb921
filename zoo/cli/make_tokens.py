"""`zoo make-tokens`: packs large sets of text, DNA or music into files of token ids."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["make_tokens"]


def make_tokens(
    kind: Annotated[str, typer.Argument(help="Set: openwebtext, pg19, genome or maestro.")],
    data: Annotated[Path, typer.Option(help="The set as it is published: its folder, or its file.")],
    out: Annotated[Path, typer.Option(help="New folder; recipes take it as --data.")],
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="Of text: a tokenizer.json, or the folder of one or of vocab.json and merges.txt."),
    ] = None,
    validation: Annotated[
        float, typer.Option(help="Share of documents that is held out, of sets without splits.")
    ] = 0.0005,
    seed: Annotated[int, typer.Option(min=0, help="Of that choice.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first documents.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Pack a large set of sequences into token ids, which training then maps into memory."""
    from modalities.sequence.pack import pack_tokens

    counts = pack_tokens(
        kind, data, out, tokenizer=tokenizer, validation=validation, seed=seed, limit=limit, quiet=quiet
    )
    for split, count in counts.items():
        print(f"{out}: {split}, {count:,} tokens")
