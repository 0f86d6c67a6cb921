"""Laser scans: SemanticKITTI (Behley et al. 2019), frames of KITTI object detection, and labelled airborne tiles."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from modalities.points.datasets.base import (
    IGNORED,
    FileSet,
    lookup,
    read_member,
    require_file,
    require_folder,
    require_split,
)
from modalities.points.points import Points
from modalities.points.read import read_points
from zoo.errors import DataError
from zoo.files import files_sha256
from zoo.npy import damage, read_array, read_members

__all__ = ["ALS_CLASSES", "SEMANTICKITTI_CLASSES", "AirborneTiles", "KittiFrames", "SemanticKITTI"]

SEMANTICKITTI_CLASSES: tuple[str, ...] = (
    "car",
    "bicycle",
    "motorcycle",
    "truck",
    "other-vehicle",
    "person",
    "bicyclist",
)
SEMANTICKITTI_CLASSES += ("motorcyclist", "road", "parking", "sidewalk", "other-ground", "building", "fence")
SEMANTICKITTI_CLASSES += ("vegetation", "trunk", "terrain", "pole", "traffic-sign")
# Raw codes of each class in that order; moving objects count with those that stand still (the single-scan task).
_CODES: tuple[tuple[int, ...], ...] = (
    (10, 252),
    (11,),
    (15,),
    (18, 258),
    (13, 16, 20, 256, 257, 259),
    (30, 254),
    (31, 253),
    (32, 255),
    (40, 60),
)
_CODES += ((44,), (48,), (49,), (50,), (51,), (70,), (71,), (72,), (80,), (81,))
_LEARNING_MAP = {code: index for index, codes in enumerate(_CODES) for code in codes}
_UNLABELLED = (0, 1, 52, 99)
SEQUENCES = {
    "train": (0, 1, 2, 3, 4, 5, 6, 7, 9, 10),
    "val": (8,),
    "test": tuple(range(11, 22)),
}

ALS_CLASSES = ("ground", "vegetation", "building")
_ALS_CODES = {2: 0, 3: 1, 4: 1, 5: 1, 6: 2}
_TRAIN_SHARE, _TEST_SHARE = 0.60, 0.65
_MAX_BYTES = 2**31


class SemanticKITTI(FileSet):
    """SemanticKITTI: `sequences/<XX>/velodyne/*.bin` and `sequences/<XX>/labels/*.label`.

    The 19 classes are those of the single-scan benchmark; unlabelled points and outliers are `IGNORED`. Field
    `instance` int64 (N,) is the number of the object. Test sequences have no labels: all are `IGNORED`.

    Args:
        data: Folder with `sequences` (also `dataset`, as the archive has it).
        split: `"train"` (00 to 07, 09, 10), `"val"` (08) or `"test"` (11 to 21); sequences that are absent are left
            out.
        errors: `"keep"` takes of a damaged scan what can be decoded; its labels must still fit.
    """

    name = "semantickitti"
    class_names = SEMANTICKITTI_CLASSES

    def __init__(self, data: Path, split: str = "train", *, errors: str = "raise") -> None:
        require_split(split, SEQUENCES, "SemanticKITTI")
        root = data / "dataset" if (data / "dataset" / "sequences").is_dir() else data
        require_folder(root / "sequences", "<XX>/velodyne/*.bin and <XX>/labels/*.label")
        folders = [root / "sequences" / f"{number:02d}" for number in SEQUENCES[split]]
        files = [file for folder in folders for file in sorted((folder / "velodyne").glob("*.bin"))]
        super().__init__(data, split, files, errors)

    def _labels_of(self, file: Path) -> Path:
        return file.parent.parent / "labels" / f"{file.stem}.label"

    def _identifying(self) -> Iterable[Path]:
        for file in self.files:
            yield file
            if self.split != "test":
                yield require_file(self._labels_of(file), "the labels of the scan")

    def _read(self, file: Path, index: int) -> Points:
        points = self._points(file, "kitti")
        if self.split == "test":
            return points.with_fields(label=np.full(len(points), IGNORED, np.int64))
        path = self._labels_of(file)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
        if len(data) != 4 * len(points):
            raise DataError(f"{path}: {len(data)} bytes for the {len(points)} points of {file.name}; expected 4 each")
        raw = np.frombuffer(data, "<u4")
        known = _LEARNING_MAP | dict.fromkeys(_UNLABELLED, IGNORED)
        label = lookup(raw & 0xFFFF, known, strict=str(path))
        return points.with_fields(label=label, instance=(raw >> 16).astype(np.int64))


class KittiFrames:
    """Frames of KITTI object detection: `training/velodyne/*.bin`, in a folder or a zip archive; points have no labels.

    `id(index)` names a frame, so that labels and calibration can be found beside the scan.

    Args:
        data: Folder or archive.
        split: `"train"` (folder `training`) or `"test"` (`testing`).
        errors: `"keep"` takes of a damaged scan what can be decoded.
    """

    name = "kitti"
    class_names: tuple[str, ...] = ()

    def __init__(self, data: Path, split: str = "train", *, errors: str = "raise") -> None:
        require_split(split, ("train", "test"), "KITTI")
        folder = {"train": "training", "test": "testing"}[split]
        self.path, self.split, self._errors = data, split, errors
        self._archive: Path | None = None
        if data.is_file():
            self._archive = data
            with damage(str(data), "no readable archive"), zipfile.ZipFile(data) as archive:
                names = [item for item in archive.namelist() if item.endswith(".bin")]
            self._frames = sorted(name for name in names if f"{folder}/velodyne/" in f"/{name}")
            root, files = data.parent, [data]
        else:
            require_folder(data / folder / "velodyne", "*.bin")
            files = sorted((data / folder / "velodyne").glob("*.bin"))
            self._frames, root = [str(file) for file in files], data
        if not self._frames:
            raise DataError(f"{data}: no scans {folder}/velodyne/*.bin")
        self.sha256 = files_sha256(root, files)

    def __len__(self) -> int:
        return len(self._frames)

    def id(self, index: int) -> str:
        """Name of a frame, for example `"000008"`."""
        return Path(self._frames[index]).stem

    def __getitem__(self, index: int) -> Points:
        frame = self._frames[index]
        if self._archive is None:
            return read_points(Path(frame), name=frame, path=Path(frame), errors=self._errors, format="kitti")
        with damage(str(self._archive), frame), zipfile.ZipFile(self._archive) as archive:
            data = read_member(archive, frame, str(self._archive))
        return read_points(data, name=f"{self._archive}/{frame}", errors=self._errors, format="kitti")


class AirborneTiles:
    """Labelled tiles of airborne laser scanning in one .npz, split in space.

    For each tile `<tile>_xyz_m` float32 (N, 3) in metres, `<tile>_origin`, `<tile>_unit_to_m`, `<tile>_class` (raw
    codes of ASPRS), `<tile>_intensity`, `<tile>_return` (N, 2) and, where there is colour, `<tile>_rgb16`. There is no
    official split: along the longer horizontal axis of a tile the first 60 % are for training and what is beyond 65 %
    is for the test, so that a strip of 5 % keeps them apart.

    Classes are ground (2), vegetation (3 to 5) and building (6); others are `IGNORED`. Coordinates are those of the map
    in metres: the origin, times the unit, is added in float64.

    Args:
        data: The file.
        split: `"train"`, `"test"`, or `"all"` for whole tiles.
        errors: The file is whole or refused, whatever this says.
        tiles: Names of some tiles; by default all.
    """

    name = "als3"
    class_names = ALS_CLASSES

    def __init__(
        self, data: Path, split: str = "train", *, errors: str = "raise", tiles: tuple[str, ...] | None = None
    ) -> None:
        require_split(split, ("train", "test", "all"), "the airborne tiles")
        self.path, self.split = require_file(data, "an .npz with <tile>_xyz_m and <tile>_class"), split
        with data.open("rb") as file:
            archive, headers = read_members(file, str(data))
            found = [key.removesuffix("_xyz_m") for key in headers if key.endswith("_xyz_m")]
            self.tiles = tuple(found if tiles is None else tiles)
            if missing := [tile for tile in self.tiles if f"{tile}_class" not in headers or tile not in found]:
                raise DataError(f"{data}: no tile {', '.join(missing)} with classes; it holds {', '.join(found)}")
            if not self.tiles:
                raise DataError(f"{data}: expected <tile>_xyz_m and <tile>_class; it holds {', '.join(headers)}")
            self._clouds = []
            for tile in self.tiles:
                parts = {}
                for key in headers:
                    if key.startswith(f"{tile}_"):
                        with archive.open(f"{key}.npy") as stream:
                            array = read_array(stream, str(data), key, max_bytes=_MAX_BYTES)
                        parts[key.removeprefix(f"{tile}_")] = array
                self._clouds.append(self._cloud(tile, parts))
        self.sha256 = files_sha256(data.parent, [data])

    def _cloud(self, tile: str, parts: dict[str, np.ndarray]) -> Points:
        local = parts["xyz_m"].astype(np.float64)
        if local.ndim != 2 or local.shape[1] != 3 or parts["class"].shape != local.shape[:1] or not len(local):
            raise DataError(f"{self.path}: {tile}_xyz_m must be (N, 3) and {tile}_class (N,)")
        low, high = local[:, :2].min(axis=0), local[:, :2].max(axis=0)
        axis = int(np.argmax(high - low))
        share = (local[:, axis] - low[axis]) / max(high[axis] - low[axis], 1e-9)
        masks = {"train": share < _TRAIN_SHARE, "test": share > _TEST_SHARE, "all": np.ones(len(local), bool)}
        origin = np.asarray(parts.get("origin", np.zeros(3)), np.float64) * float(parts.get("unit_to_m", 1.0))
        fields = {"label": lookup(parts["class"], _ALS_CODES), "classification": parts["class"]}
        fields |= {key: parts[key] for key in ("intensity", "return") if key in parts}
        if "rgb16" in parts:
            fields["rgb"] = parts["rgb16"]
        whole = Points(local + origin, fields, name=f"{tile} ({self.split})", path=self.path, format="npz")
        return whole[masks[self.split]]

    def __len__(self) -> int:
        return len(self._clouds)

    def __getitem__(self, index: int) -> Points:
        return self._clouds[index]
