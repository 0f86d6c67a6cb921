"""Clouds and meshes of one's own: a folder for each class."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from modalities.points.datasets.base import FileSet, require_folder, require_split
from modalities.points.formats import SUFFIXES
from modalities.points.points import Points
from zoo.class_folders import labelled_files
from zoo.errors import ConfigError

__all__ = ["PointFolders"]


class PointFolders(FileSet):
    """One split of `<split>/<class>/<files>`, or all files of `<class>/<files>` as the split `train`.

    Of a mesh `num_points` points are drawn from the surface by area; the draw follows from its place alone. Clouds are
    as they are.

    Args:
        data: The folder.
        split: `"train"`, `"val"` or `"test"`.
        errors: `"keep"` takes of a damaged file what can be decoded.
        num_points: Points drawn from a mesh.
    """

    splits = ("train", "val", "test")

    def __init__(self, data: Path, split: str = "train", *, errors: str = "raise", num_points: int = 1024) -> None:
        require_split(split, self.splits, "a set of class folders")
        if isinstance(num_points, bool) or num_points < 1:
            raise ConfigError(f"num_points must be a positive number, not {num_points!r}")
        require_folder(data, "a folder for each class")
        found, names = labelled_files(data, split, SUFFIXES)
        self.class_names, self._num_points, self.name = tuple(names), num_points, data.resolve().name
        self.labels = np.array([label for _, label in found], np.int64)
        super().__init__(data, split, [file for file, _ in found], errors)

    def _read(self, file: Path, index: int) -> Points:
        points = self._points(file)
        if points.faces is not None:
            points = points.sample(self._num_points, seed=index)
        return points.with_fields(label=np.full(len(points), self.labels[index]))
