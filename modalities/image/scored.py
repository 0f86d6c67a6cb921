"""Pictures that a classifier is measured on, packed or in shards."""

from __future__ import annotations

import os
from typing import Any

from modalities.image.data import pictures
from modalities.image.shard_files import has_shards
from modalities.image.shards import ShardPictures, open_shards

__all__ = ["scored_pictures"]


def scored_pictures(data: str | os.PathLike[str], split: str, *, skip_bad: bool, quiet: bool) -> tuple[Any, Any]:
    """Opens a split of a data set.

    Args:
        data: See `modalities.image.data.pictures`; or shards, see `modalities.image.shard_files.find_shards`, which
            are decoded as they are needed.
        split: Name of the split.
        skip_bad: Leave out damaged pictures; of shards, what is damaged without being decoded.
        quiet: Show no progress bar.

    Returns:
        The facts (`labels`, `num_classes`, `class_names`, `name`, `sha256`, `skipped`), and the pictures: uint8
        (N, 3, H, W), or a sequence of arrays uint8 (3, h, w).

    Raises:
        DataError: If there is no such data, or it is damaged.
    """
    if has_shards(os.fspath(data), split):
        shards = open_shards(os.fspath(data), split, skip_bad=skip_bad)
        return shards, ShardPictures(shards)
    packed = pictures(data, split, skip_bad=skip_bad, quiet=quiet)
    return packed, packed.stacked() if packed.uniform else [packed[index] for index in range(len(packed))]
