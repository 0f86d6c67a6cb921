"""Videos of one's own: a folder for each class."""

from __future__ import annotations

import os
from pathlib import Path

from modalities.video.datasets.base import VideoSet, split_of
from zoo.class_folders import labelled_files
from zoo.reading import VIDEO_SUFFIXES

__all__ = ["VideoFolders"]


class VideoFolders(VideoSet):
    """One split of `<split>/<class>/<videos>`, or all videos of `<class>/<videos>` as the split `train`.

    Args:
        data: The folder.
        split: `"train"`, `"val"` or `"test"`.
        errors: See `VideoSet`.

    Raises:
        ConfigError: If there is no such split.
        DataError: If there are no videos, or classes that the training split does not have.
    """

    def __init__(self, data: str | os.PathLike[str], split: str = "train", *, errors: str | None = None) -> None:
        root, split = Path(data).expanduser(), split_of(split)
        videos, class_names = labelled_files(root, split, VIDEO_SUFFIXES)
        super().__init__(root.resolve().name, root, split, videos, class_names, errors=errors)
