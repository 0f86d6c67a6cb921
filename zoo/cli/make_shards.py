"""`zoo make-shards`: tar shards for training on more pictures than fit into memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["make_shards"]


def make_shards(
    data: Annotated[Path, typer.Argument(help="Folder with SPLIT.parquet, SPLIT-*.parquet or SPLIT/CLASS/pictures.")],
    out: Annotated[Path, typer.Option(help="New folder.")],
    splits: Annotated[str, typer.Option(help="Splits, joined by commas.")] = "train,validation",
    samples: Annotated[int, typer.Option(min=1, help="Pictures of a shard.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Of the draw which picture is in which shard.")] = 0,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out damaged pictures.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Write labelled pictures as tar shards (webdataset), for recipes whose task is image-classification-shards."""
    from modalities.image.make_shards import make_shards
    from zoo.errors import ConfigError

    wanted = [split.strip() for split in splits.split(",") if split.strip()]
    if not wanted:
        raise ConfigError("--splits names no split")
    made = make_shards(data, out, wanted, samples=samples, seed=seed, skip_bad=skip_bad, quiet=quiet)
    for split, (shards, pictures) in made.items():
        print(f"{out / split}-*.tar: {pictures} pictures in {shards} shards")
