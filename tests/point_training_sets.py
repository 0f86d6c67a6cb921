"""Tiny point data sets that can be learned, in the layouts of the recipes."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def write_modelnet10(folder: Path, train: int = 12, test: int = 8, points: int = 48) -> Path:
    """Flat and tall clouds in the layout of the 16-bit arrays."""
    rng, arrays = np.random.default_rng(0), {"class_names": np.array([b"desk", b"tower"])}
    for side, count in (("train", train), ("test", test)):
        labels = np.arange(count) % 2
        xyz = rng.uniform(-1, 1, (count, points, 3))
        xyz[labels == 0, :, 2] *= 0.1
        xyz[labels == 1, :, :2] *= 0.2
        arrays |= {f"{side}_xyz": (xyz * 32767).astype(np.int16), f"{side}_label": labels.astype(np.uint8)}
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "modelnet10.npz", **arrays)
    return folder / "modelnet10.npz"


def write_als(folder: Path, points: int = 240) -> Path:
    """Two tiles with ground, a roof and trees, in the layout of the airborne arrays."""
    rng, arrays = np.random.default_rng(1), {}
    for tile in ("one", "two"):
        codes = rng.choice([1, 2, 5, 6], points)
        xyz = rng.uniform(0, 1, (points, 3)) * [40, 20, 0.2]
        xyz[:, 2] += np.select([codes == 6, codes == 5], [6, rng.uniform(1, 5, points)], 0.0)
        arrays |= {
            f"{tile}_xyz_m": xyz.astype(np.float32),
            f"{tile}_origin": np.array([5e5, 4e6, 0]),
            f"{tile}_unit_to_m": np.array(1.0),
            f"{tile}_class": codes.astype(np.uint8),
            f"{tile}_intensity": rng.integers(0, 2000, points).astype(np.uint16),
            f"{tile}_return": np.ones((points, 2), np.uint8),
        }
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "als.npz", **arrays)
    return folder / "als.npz"


def write_modelnet40(folder: Path) -> Path:
    """Clouds with normals as text, with the official lists."""
    rng, names = np.random.default_rng(2), ["desk", "night_stand"]
    lists: dict[str, list[str]] = {"train": [], "test": []}
    for name in names:
        (folder / name).mkdir(parents=True)
        for number in range(1, 7):
            rows = np.concatenate([rng.uniform(-1, 1, (30 + number, 3)), np.eye(3)[rng.integers(0, 3, 30 + number)]], 1)
            np.savetxt(folder / name / f"{name}_{number:04}.txt", rows, delimiter=",", fmt="%.5f")
            lists["train" if number < 5 else "test"].append(f"{name}_{number:04}")
    (folder / "modelnet40_shape_names.txt").write_text("\n".join(names))
    for split, shapes in lists.items():
        (folder / f"modelnet40_{split}.txt").write_text("\n".join(shapes))
    return folder


def write_scannet(folder: Path) -> Path:
    """Scenes as Pointcept prepares them."""
    rng = np.random.default_rng(3)
    for split, count in (("train", 4), ("val", 2)):
        for scene in range(count):
            place, points = folder / split / f"scene{scene:04}_00", 150 + 40 * scene
            place.mkdir(parents=True)
            np.save(place / "coord.npy", rng.uniform(0, 1.5, (points, 3)).astype(np.float32))
            np.save(place / "color.npy", rng.integers(0, 256, (points, 3)).astype(np.uint8))
            np.save(place / "normal.npy", np.eye(3, dtype=np.float32)[rng.integers(0, 3, points)])
            np.save(place / "segment20.npy", rng.integers(-1, 20, points))
    return folder
