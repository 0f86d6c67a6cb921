"""Labelled pictures on disk for modalities other than images, which may not import the one that reads them."""

from __future__ import annotations

import importlib
import os
from typing import Any

__all__ = ["labelled_pictures"]

_READER = "modalities.image.data:pictures"


def labelled_pictures(data: str | os.PathLike[str], split: str, **options: Any) -> Any:
    """Opens one split of a set of pictures, decoded once and cached.

    Args:
        data: A folder with `<split>.parquet` or `<split>/<class>/<pictures>`.
        split: Which split.
        **options: For `modalities.image.data.pictures`.

    Returns:
        A `modalities.image.data.PackedPictures`.

    Raises:
        DataError: If there are no such data, or a picture is damaged.
    """
    module, function = _READER.split(":")
    return getattr(importlib.import_module(module), function)(data, split, **options)
