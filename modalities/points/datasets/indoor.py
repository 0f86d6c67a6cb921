"""Rooms: ScanNet (Dai et al. 2017) as published and as Pointcept prepares it, and S3DIS (Armeni et al. 2016)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from modalities.points.datasets.base import (
    IGNORED,
    FileSet,
    load_npy,
    lookup,
    require_file,
    require_folder,
    require_split,
)
from modalities.points.normals import vertex_normals
from modalities.points.points import Points
from zoo.errors import ConfigError, DataError

__all__ = ["S3DIS", "S3DIS_CLASSES", "SCANNET_CLASSES", "ScanNet", "ScanNetArrays"]

# Benchmark classes and their code in NYU40, the codes of `*_vh_clean_2.labels.ply`.
_SCANNET = {
    "wall": 1,
    "floor": 2,
    "cabinet": 3,
    "bed": 4,
    "chair": 5,
    "sofa": 6,
    "table": 7,
    "door": 8,
    "window": 9,
    "bookshelf": 10,
    "picture": 11,
    "counter": 12,
    "desk": 14,
    "curtain": 16,
    "refrigerator": 24,
    "shower curtain": 28,
    "toilet": 33,
    "sink": 34,
    "bathtub": 36,
    "otherfurniture": 39,
}
SCANNET_CLASSES = tuple(_SCANNET)
_NYU40 = {code: index for index, code in enumerate(_SCANNET.values())}
_LISTS = ("scannetv2_{}.txt", "Tasks/Benchmark/scannetv2_{}.txt", "splits/scannetv2_{}.txt", "{}.txt")
SCANNET_SPLITS = ("train", "val", "test")

S3DIS_CLASSES: tuple[str, ...] = (
    "ceiling",
    "floor",
    "wall",
    "beam",
    "column",
    "window",
    "door",
    "table",
    "chair",
    "sofa",
    "bookcase",
)
S3DIS_CLASSES += ("board", "clutter")


class ScanNet(FileSet):
    """ScanNet as published: `scans/<id>/<id>_vh_clean_2.ply`, and `<id>_vh_clean_2.labels.ply` with NYU40 codes.

    Field `normal` is made of the faces, since the files have none. The 20 classes are those of the benchmark; other
    codes are `IGNORED`. The test scenes, in `scans_test` or `scans`,
    have no labels: all of theirs are `IGNORED`.

    Args:
        data: Folder with `scans` and the official list `scannetv2_<split>.txt` (beside it or in `Tasks/Benchmark`).
        split: `"train"`, `"val"` or `"test"`.
        errors: `"keep"` takes of a damaged file what can be decoded; its labels must still fit.
    """

    name = "scannet"
    class_names = SCANNET_CLASSES

    def __init__(self, data: Path, split: str = "train", *, errors: str = "raise") -> None:
        require_split(split, SCANNET_SPLITS, "ScanNet")
        require_folder(data, "scans/<id>/<id>_vh_clean_2.ply and scannetv2_train.txt")
        lists = [data / name.format(split) for name in _LISTS]
        listed = next((path for path in lists if path.is_file()), None)
        if listed is None:
            raise DataError(f"{data}: no list of the split; expected {lists[0].name} in it or in Tasks/Benchmark")
        files = []
        for scene in listed.read_text().split():
            if not scene.replace("_", "").isalnum():
                raise DataError(f"{listed}: {scene[:60]!r} is no scene")
            places = [data / folder / scene / f"{scene}_vh_clean_2.ply" for folder in ("scans", "scans_test")]
            files.append(next((p for p in places if p.is_file()), places[0]))
            require_file(files[-1], f"a scene of {listed.name}")
        super().__init__(data, split, files, errors)

    def _identifying(self) -> Iterable[Path]:
        for file in self.files:
            yield file
            if self.split != "test":
                yield require_file(_labels_of(file), "the labels of the scene")

    def _read(self, file: Path, index: int) -> Points:
        points = self._points(file, "ply")
        if points.faces is not None:
            points = points.with_fields(normal=vertex_normals(points.xyz, points.faces))
        if self.split == "test":
            return points.with_fields(label=np.full(len(points), IGNORED, np.int64))
        found = self._points(_labels_of(file), "ply")
        if "label" not in found.fields or len(found) != len(points):
            raise DataError(f"{found.name}: must hold a label of each of the {len(points)} vertices of {file.name}")
        return points.with_fields(label=lookup(found.fields["label"], _NYU40))


def _labels_of(file: Path) -> Path:
    return file.with_name(file.name.removesuffix(".ply") + ".labels.ply")


class ScanNetArrays(FileSet):
    """ScanNet as Pointcept prepares it: `<split>/<scene>/{coord,color,normal,segment20}.npy`.

    Args:
        data: Folder with `train`, `val` and `test`.
        split: One of them.
        errors: Files are whole or refused, whatever this says.
    """

    name = "scannet"
    class_names = SCANNET_CLASSES

    def __init__(self, data: Path, split: str = "train", *, errors: str = "raise") -> None:
        require_split(split, SCANNET_SPLITS, "ScanNet")
        folder = require_folder(data / split, "<scene>/coord.npy, color.npy, normal.npy and segment20.npy")
        super().__init__(data, split, sorted(p.parent for p in folder.glob("*/coord.npy")), errors)

    def _identifying(self) -> Iterable[Path]:
        for folder in self.files:
            yield from sorted(folder.glob("*.npy"))

    def _read(self, file: Path, index: int) -> Points:
        xyz = load_npy(require_file(file / "coord.npy", "coordinates (N, 3)"))
        fields = {}
        for part, key in (("color", "rgb"), ("normal", "normal")):
            if (file / f"{part}.npy").is_file():
                fields[key] = load_npy(file / f"{part}.npy")
        label = np.full(len(xyz), IGNORED, np.int64)
        if (file / "segment20.npy").is_file():
            raw = load_npy(file / "segment20.npy").reshape(-1)
            label = np.where((raw >= 0) & (raw < len(SCANNET_CLASSES)), raw, IGNORED).astype(np.int64)
        if "rgb" in fields and fields["rgb"].dtype.kind == "f":  # 0..255 as floats
            fields["rgb"] = np.rint(fields["rgb"].clip(0, 255)).astype(np.uint8)
        points = self._points_of(xyz, file)
        return replace(points, fields={**fields, "label": label})

    def _points_of(self, xyz: np.ndarray, file: Path) -> Points:
        if xyz.ndim != 2 or xyz.shape[1] != 3 or not np.isfinite(xyz).all():
            raise DataError(f"{file}: coord.npy must be finite coordinates (N, 3), not {xyz.dtype} {xyz.shape}")
        return Points(xyz.astype(np.float64), name=str(file), path=file, format="npy")


class S3DIS(FileSet):
    """S3DIS: `Area_<k>/<room>/Annotations/<class>_<n>.txt` of lines x y z r g b, a file for each object.

    A cloud is a room. `stairs` and other names that are none of the 13 classes count as clutter, as the field does it.

    Args:
        data: Folder with `Area_1` to `Area_6` (those of the split are needed).
        split: `"train"` is all areas but the fifth, `"test"` the fifth, the usual split of rooms nobody trained on.
        errors: `"keep"` takes of a damaged file what can be decoded: one line of the release is damaged.
        test_area: Another area to test on, 1 to 6.
    """

    name = "s3dis"
    class_names = S3DIS_CLASSES

    def __init__(self, data: Path, split: str = "train", *, errors: str = "raise", test_area: int = 5) -> None:
        require_split(split, ("train", "test"), "S3DIS")
        if test_area not in range(1, 7):
            raise ConfigError(f"S3DIS has the areas 1 to 6, not {test_area!r}")
        require_folder(data, "Area_1 to Area_6, in them <room>/Annotations/*.txt")
        areas = [test_area] if split == "test" else [area for area in range(1, 7) if area != test_area]
        rooms = [room for area in areas for room in sorted((data / f"Area_{area}").glob("*/Annotations"))]
        super().__init__(data, split, [room.parent for room in rooms if any(room.glob("*.txt"))], errors)

    def _objects(self, room: Path) -> list[Path]:
        return sorted((room / "Annotations").glob("*.txt"))

    def _identifying(self) -> Iterable[Path]:
        for room in self.files:
            yield from self._objects(room)

    def _read(self, file: Path, index: int) -> Points:
        parts, labels = [], []
        for path in self._objects(file):
            part = self._points(path, "text", columns="x,y,z,red,green,blue")
            kind = path.stem.rpartition("_")[0]
            label = S3DIS_CLASSES.index(kind if kind in S3DIS_CLASSES else "clutter")
            parts.append(part)
            labels.append(np.full(len(part), label, np.int64))
        rgb = np.concatenate([part.fields["rgb"].clip(0, 255).astype(np.uint8) for part in parts])
        xyz = np.concatenate([part.xyz for part in parts])
        truncated = any(part.truncated for part in parts)
        fields = {"rgb": rgb, "label": np.concatenate(labels)}
        return Points(xyz, fields, name=str(file), path=file, format="text", truncated=truncated)
