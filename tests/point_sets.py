"""Tiny point data sets in the layouts in which they are published."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import point_files
from point_files import cloud


def modelnet(root: Path) -> Path:
    for label, name in enumerate(("bathtub", "night_stand")):
        for side, count in (("train", 2), ("test", 1)):
            folder = root / name / side
            folder.mkdir(parents=True)
            for item in range(count):
                (folder / f"{name}_{item:04d}.off").write_bytes(
                    point_files.off(cloud(12, 10 * label + item), joined=item == 1)
                )
    (root / "README.txt").write_text("the archive has one")
    return root


def modelnet_sampled(root: Path) -> Path:
    names = ("airplane", "tv_stand")
    (root / "modelnet40_shape_names.txt").write_text("\n".join(names) + "\n")
    for side, numbers in (("train", (1, 2)), ("test", (3,))):
        shapes = [f"{name}_{number:04d}" for name in names for number in numbers]
        (root / f"modelnet40_{side}.txt").write_text("\n".join(shapes) + "\n")
        for shape in shapes:
            folder = root / shape.rpartition("_")[0]
            folder.mkdir(exist_ok=True)
            rows = np.random.default_rng(len(shape)).uniform(-1, 1, (7, 6)).round(6)
            (folder / f"{shape}.txt").write_text("\n".join(",".join(map(str, row)) for row in rows) + "\n")
    return root


def modelnet_arrays(root: Path) -> Path:
    generator = np.random.default_rng(0)
    arrays = {}
    for side, count in (("train", 4), ("test", 2)):
        arrays[f"{side}_xyz"] = generator.integers(-32767, 32768, (count, 16, 3)).astype(np.int16)
        arrays[f"{side}_label"] = (np.arange(count) % 2).astype(np.uint8)
        arrays[f"{side}_id"] = np.array([f"chair_{item}".encode() for item in range(count)])
    np.savez_compressed(root / "tiny.npz", class_names=np.array([b"chair", b"bed"]), **arrays)
    return root / "tiny.npz"


def _labelled_ply(path: Path, xyz: np.ndarray, label: np.ndarray | None) -> None:
    head = ["ply", "format binary_little_endian 1.0", f"element vertex {len(xyz)}"]
    head += [f"property float {axis}" for axis in "xyz"]
    head += [f"property uchar {part}" for part in ("red", "green", "blue", "alpha")]
    dtype = np.dtype([("xyz", "<f4", 3), ("rgba", "u1", 4), *([] if label is None else [("label", "<u2")])])
    table = np.zeros(len(xyz), dtype)
    table["xyz"], table["rgba"] = xyz, 200
    if label is not None:
        head.append("property ushort label")
        table["label"] = label
    head += ["element face 1", "property list uchar int vertex_indices", "end_header", ""]
    path.write_bytes("\n".join(head).encode() + table.tobytes() + b"\3" + np.array([0, 1, 2], "<i4").tobytes())


SCANNET_CODES = (1, 2, 39, 36, 13, 0, 40)
"""wall, floor, otherfurniture, bathtub, and three that are no class of the benchmark"""


def scannet(root: Path) -> Path:
    root.mkdir(exist_ok=True)
    for split, scene in (("train", "scene0000_00"), ("val", "scene0011_00"), ("test", "scene0707_00")):
        (root / f"scannetv2_{split}.txt").write_text(scene + "\n")
        folder = root / ("scans_test" if split == "test" else "scans") / scene
        folder.mkdir(parents=True)
        xyz = cloud(7)["xyz"]
        _labelled_ply(folder / f"{scene}_vh_clean_2.ply", xyz, None)
        if split != "test":
            _labelled_ply(folder / f"{scene}_vh_clean_2.labels.ply", xyz, np.array(SCANNET_CODES))
    return root


def scannet_arrays(root: Path) -> Path:
    data = cloud(7)
    for split in ("train", "val", "test"):
        folder = root / split / "scene0000_00"
        folder.mkdir(parents=True)
        np.save(folder / "coord.npy", data["xyz"].astype(np.float32))
        np.save(folder / "color.npy", data["rgb"])
        np.save(folder / "normal.npy", np.tile(np.float32([0, 0, 1]), (7, 1)))
        if split != "test":
            np.save(folder / "segment20.npy", np.array([0, 1, 19, -1, -1, 5, 2], np.int16))
    return root


def s3dis(root: Path) -> Path:
    for area in (1, 5, 6):
        folder = root / f"Area_{area}" / "office_1" / "Annotations"
        folder.mkdir(parents=True)
        for seed, name in enumerate(("ceiling_1", "chair_12", "stairs_1")):
            (folder / f"{name}.txt").write_bytes(point_files.text(cloud(3, seed)))
    return root


KITTI_CODES = (10, 252, 80, 0, 99, 40, 60, 1)
"""car, moving car, pole, unlabelled, other object, road, lane marking, outlier"""


def semantickitti(root: Path) -> Path:
    for number in (0, 8, 11):
        folder = root / "dataset" / "sequences" / f"{number:02d}"
        (folder / "velodyne").mkdir(parents=True)
        (folder / "velodyne" / "000000.bin").write_bytes(point_files.kitti(cloud(8)))
        if number < 11:
            (folder / "labels").mkdir()
            codes = np.array(KITTI_CODES, "<u4") | np.arange(8, dtype="<u4") << 16
            (folder / "labels" / "000000.label").write_bytes(codes.astype("<u4").tobytes())
    return root


def kitti(root: Path) -> Path:
    folder = root / "training" / "velodyne"
    folder.mkdir(parents=True)
    for item in (8, 1):
        (folder / f"{item:06d}.bin").write_bytes(point_files.kitti(cloud(4, item)))
    return root


def kitti_zip(root: Path) -> Path:
    path = root / "frames.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for item in (8, 1):
            archive.writestr(f"training/velodyne/{item:06d}.bin", point_files.kitti(cloud(4, item)))
        archive.writestr("training/calib/000001.txt", "P0: 1")
    return path


def als(root: Path, count: int = 101) -> Path:
    """Two tiles of points in a line, one along x and one along y."""
    arrays: dict[str, np.ndarray] = {}
    for tile, axis in (("along_x", 0), ("along_y", 1)):
        xyz = np.zeros((count, 3), np.float32)
        xyz[:, axis] = np.arange(count)
        xyz[:, 2] = np.arange(count) % 7
        arrays |= {
            f"{tile}_xyz_m": xyz,
            f"{tile}_origin": np.array([700_000.0, 6_500_000.0, 100.0]),
            f"{tile}_unit_to_m": np.array(1.0 if axis == 0 else 0.5),
            f"{tile}_class": (np.arange(count) % 8).astype(np.uint8),
            f"{tile}_intensity": np.arange(count).astype(np.uint16),
            f"{tile}_return": np.ones((count, 2), np.uint8),
        }
    arrays["along_x_rgb16"] = np.full((count, 3), 65535, np.uint16)
    np.savez_compressed(root / "als.npz", **arrays)
    return root / "als.npz"


def folders(root: Path) -> Path:
    for label, name in enumerate(("cube", "sphere")):
        for side, count in (("train", 3), ("val", 1), ("test", 1)):
            folder = root / side / name
            folder.mkdir(parents=True)
            for item in range(count):
                (folder / f"{item}.off").write_bytes(point_files.off(cloud(12, 10 * label + item)))
    return root


SETS = {
    "modelnet": modelnet,
    "modelnet-sampled": modelnet_sampled,
    "modelnet-arrays": modelnet_arrays,
    "scannet": scannet,
    "scannet-arrays": scannet_arrays,
    "s3dis": s3dis,
    "semantickitti": semantickitti,
    "kitti": kitti,
    "als": als,
    "folders": folders,
}
