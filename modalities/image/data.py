"""Labelled pictures on disk (Parquet files or class folders), decoded once; see `modalities.image.packing`."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from modalities.image.packing import PackedPixels, default_cache, open_arrays, open_or_pack, pack_pictures
from modalities.image.sources import Item, Source, open_source

__all__ = ["PackedPictures", "default_cache", "open_packed", "pack", "pictures"]


@dataclass(frozen=True)
class PackedPictures(PackedPixels):
    """Decoded pictures with a label each.

    Attributes:
        labels: int64 (N,).
    """

    labels: np.ndarray

    @property
    def num_classes(self) -> int:
        """Number of classes: of the names, or one more than the largest label."""
        return len(self.class_names) if self.class_names else int(self.labels.max()) + 1


def pictures(
    data: str | os.PathLike[str],
    split: str = "train",
    *,
    size: int | None = None,
    skip_bad: bool = False,
    cache: Path | None = None,
    quiet: bool = True,
) -> PackedPictures:
    """Opens one split of a data set, packing it first if that has not been done for these very files.

    Args:
        data: A folder with `<split>.parquet` (or `<split>-*.parquet`) or `<split>/<class>/*.jpg`, such a file itself,
            or a packed set.
        split: `"train"`, `"validation"` (a folder may call it `val`), ...
        size: Resize the short side to this and crop the centre square when packing; `None` keeps pictures as they are.
        skip_bad: Leave out pictures that cannot be decoded instead of raising; how many is in `meta["skipped"]`.
        cache: Where packed sets are kept; `None` = `default_cache()`.
        quiet: Show no progress bar.

    Raises:
        DataError: If there is no such data, or a picture is damaged.
    """
    if (Path(data) / "meta.json").is_file():
        return open_packed(Path(data))
    source = open_source(Path(data), split)
    settings = (size, skip_bad)
    return open_or_pack(
        source,
        split,
        settings,
        cache,
        open_packed,
        lambda f: pack(source, f, size=size, skip_bad=skip_bad, quiet=quiet),
    )


def open_packed(folder: Path) -> PackedPictures:
    """Opens a packed set and checks it: sizes, types and the checksum of the pixels.

    Raises:
        DataError: If it is not whole.
    """
    return open_arrays(folder, _checked)


def _checked(
    pixels: np.ndarray, shapes: np.ndarray, arrays: dict[str, np.ndarray], meta: dict[str, Any]
) -> PackedPictures:
    labels = arrays["labels"]
    if labels.shape != (len(shapes),) or labels.dtype != np.int64 or (labels < 0).any():
        raise ValueError("labels.npy does not fit")
    if meta["labels"] is not None and labels.max() >= len(meta["labels"]):
        raise ValueError("labels.npy has more classes than there are names")
    return PackedPictures(pixels, shapes, meta, labels)


def pack(
    source: Source, folder: Path, *, size: int | None = None, skip_bad: bool = False, quiet: bool = True
) -> PackedPictures:
    """Decodes all pictures of `source` into `folder`; it appears whole or not at all.

    Raises:
        DataError: If a picture is damaged (unless `skip_bad`), none is left, or the folder cannot be written.
    """

    def describe(items: list[Item], sizes: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        return {"labels": np.array([item.label for item in items], dtype=np.int64)}, {"size": size}

    fit = None if size is None else functools.partial(_fit, size=size)
    pack_pictures(source, folder, fit=fit, describe=describe, skip_bad=skip_bad, quiet=quiet)
    return open_packed(folder)


def _fit(picture: np.ndarray, size: int) -> np.ndarray:
    import torch
    from torchvision.transforms import v2

    resized = v2.functional.resize(torch.from_numpy(picture), [size], v2.InterpolationMode.BICUBIC, antialias=True)
    return v2.functional.center_crop(resized, [size, size]).contiguous().numpy()
