"""ModelNet10 and ModelNet40 (Wu et al. 2015): CAD objects of one class each, in the three layouts in use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from modalities.points.datasets.base import FileSet, require_file, require_folder, require_split
from modalities.points.points import Points
from zoo.errors import ConfigError, DataError
from zoo.files import files_sha256
from zoo.npy import read_array, read_members

__all__ = ["ModelNetArrays", "ModelNetMeshes", "ModelNetSampled"]

SPLITS = ("train", "test")
_LARGEST = 32767  # of the 16-bit coordinates
_MAX_BYTES = 2**31


class ModelNetMeshes(FileSet):
    """The published archives: `<class>/<train or test>/*.off`.

    A cloud is `num_points` points drawn from the surface by area, with normals, or the vertices with the faces when
    that is `None`. The draw follows from `seed` and the place of the object alone.

    Args:
        data: Folder with the folders of the classes.
        split: `"train"` or `"test"`.
        errors: `"keep"` takes of a damaged mesh what can be decoded.
        num_points: Points of each cloud.
        seed: Of the draw.
    """

    def __init__(
        self, data: Path, split: str = "train", *, errors: str = "raise", num_points: int | None = 1024, seed: int = 0
    ) -> None:
        require_split(split, SPLITS, "ModelNet")
        if num_points is not None and (isinstance(num_points, bool) or num_points < 1):
            raise ConfigError(f"num_points must be a positive number or None, not {num_points!r}")
        require_folder(data, "a folder for each class, in it train/*.off and test/*.off")
        classes = sorted(p.name for p in data.iterdir() if any((p / side).is_dir() for side in SPLITS))
        found = [
            (file, label) for label, key in enumerate(classes) for file in sorted((data / key / split).glob("*.off"))
        ]
        self.class_names, self._num_points, self._seed = tuple(classes), num_points, seed
        self.name = data.resolve().name
        self.labels = np.array([label for _, label in found], np.int64)
        super().__init__(data, split, [file for file, _ in found], errors)

    def _read(self, file: Path, index: int) -> Points:
        mesh = self._points(file)
        if self._num_points is not None:
            seed = int(np.random.SeedSequence((self._seed, index)).generate_state(1)[0])
            mesh = mesh.sample(self._num_points, seed=seed)
        return mesh.with_fields(label=np.full(len(mesh), self.labels[index]))


class ModelNetSampled(FileSet):
    """The resampled clouds with normals: `<class>/<class>_0001.txt` of lines x,y,z,nx,ny,nz.

    The splits are the official lists `modelnet40_train.txt` and `modelnet40_test.txt` (or of 10), the classes those of
    `modelnet40_shape_names.txt`.

    Args:
        data: Folder with the lists and the folders of the classes.
        split: `"train"` or `"test"`.
        errors: `"keep"` takes of a damaged file what can be decoded.
        classes: 40, or 10 for the lists of ModelNet10.
    """

    def __init__(self, data: Path, split: str = "train", *, errors: str = "raise", classes: int = 40) -> None:
        require_split(split, SPLITS, "ModelNet")
        if classes not in (10, 40):
            raise ConfigError(f"ModelNet has 10 or 40 classes, not {classes!r}")
        lists = f"modelnet{classes}"
        names = require_file(data / f"{lists}_shape_names.txt", "the names of the classes").read_text().split()
        shapes = require_file(data / f"{lists}_{split}.txt", "the official list of the split").read_text().split()
        self.class_names, self.name = tuple(names), lists
        places = {name: index for index, name in enumerate(names)}
        files, labels = [], []
        for shape in shapes:
            name = shape.rpartition("_")[0]
            if name not in places or not shape.replace("_", "").isalnum():
                raise DataError(f"{data}: {lists}_{split}.txt names {shape[:60]!r}, of no class of the data set")
            files.append(require_file(data / name / f"{shape}.txt", "a cloud of the list"))
            labels.append(places[name])
        self.labels = np.array(labels, np.int64)
        super().__init__(data, split, files, errors)

    def _read(self, file: Path, index: int) -> Points:
        points = self._points(file, "text", columns="x,y,z,nx,ny,nz")
        return points.with_fields(label=np.full(len(points), self.labels[index]))


class ModelNetArrays:
    """All clouds of both sides in one .npz, 16-bit: `<side>_xyz` (N, P, 3), `<side>_label` (N,), `class_names`.

    Coordinates are int16 / 32767 in -1..1: the centre of the bounding box removed, the largest half extent made 1.

    Args:
        data: The file.
        split: `"train"` or `"test"`.
        errors: The file is whole or refused, whatever this says.

    Raises:
        DataError: If it is another file.
    """

    def __init__(self, data: Path, split: str = "train", *, errors: str = "raise") -> None:
        require_split(split, SPLITS, "ModelNet")
        self.path, self.split = require_file(data, "an .npz with train_xyz, train_label and class_names"), split
        arrays = {}
        with data.open("rb") as file:
            archive, headers = read_members(file, str(data))
            for key in (f"{split}_xyz", f"{split}_label", f"{split}_id", "class_names"):
                if key in headers:
                    with archive.open(f"{key}.npy") as stream:
                        arrays[key] = read_array(stream, str(data), key, max_bytes=_MAX_BYTES)
        xyz, labels, names = (arrays.get(key) for key in (f"{split}_xyz", f"{split}_label", "class_names"))
        if xyz is None or labels is None or names is None:
            raise DataError(
                f"{data}: expected {split}_xyz, {split}_label and class_names; it holds {', '.join(headers)}"
            )
        if xyz.ndim != 3 or xyz.shape[2] != 3 or xyz.dtype != np.int16 or labels.shape != xyz.shape[:1] or not len(xyz):
            raise DataError(f"{data}: {split}_xyz must be int16 (N, points, 3), not {xyz.dtype} {xyz.shape}")
        self.class_names = tuple(item.decode() if isinstance(item, bytes) else str(item) for item in names.tolist())
        self.labels = labels.astype(np.int64)
        if not (self.labels.min() >= 0 and self.labels.max() < len(self.class_names)):
            raise DataError(f"{data}: a label is outside the {len(self.class_names)} classes")
        self.name = data.stem
        self._xyz, self._ids = xyz, arrays.get(f"{split}_id")
        self.sha256 = files_sha256(data.parent, [data])

    def __len__(self) -> int:
        return len(self._xyz)

    def __getitem__(self, index: int) -> Points:
        xyz = self._xyz[index].astype(np.float64) / _LARGEST
        name = f"{self.name}[{self.split}, {index % len(self)}]"
        if self._ids is not None:
            item = self._ids[index]
            name = item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item)
        points = Points(xyz, name=name, path=self.path, format="npz")
        return replace(points, fields={"label": np.full(len(xyz), self.labels[index])})
