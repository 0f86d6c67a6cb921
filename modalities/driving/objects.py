"""Labelled objects cut out of training scenes: their points, boxes and pictures, to be pasted into other scenes.

Ground-truth sampling is of SECOND (Yan et al., Sensors 2018, section 3.2). Objects keep the place relative to the car
at which they were seen, so that their points are as dense as they should be there.

Legend: K objects, P points of all of them, J patches of pictures.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from modalities.driving.augment import TrainingScene
from modalities.driving.boxes import Boxes3D
from modalities.driving.geometry import image_boxes, points_in_boxes
from zoo.errors import DataError
from zoo.files import cache_folder, partial_of
from zoo.npy import damage, read_array, read_members

__all__ = ["ObjectDatabase", "Patch", "collect_objects", "open_objects", "pixel_span"]

_FORMAT = 1
_MAX_BYTES = 2**36  # of an array of a stored database
_BOX_COLUMNS = 9
_SMALLEST_SIDE = 2  # pixels of a patch


@dataclass(frozen=True, eq=False)
class Patch:
    """What one camera shows of an object.

    Attributes:
        camera: Its number.
        pixels: uint8 (3, h, w).
    """

    camera: int
    pixels: Tensor


@dataclass(frozen=True, eq=False)
class ObjectDatabase:
    """Objects of all classes, on the CPU.

    Attributes:
        boxes: K boxes in the ego frame of the scene each is from.
        points: (P, F) float32, as in `TrainingScene`, those of an object together.
        offsets: (K + 1,) int64: object i has points offsets[i] to offsets[i + 1].
        patch_offsets: (K + 1,) int64: it has patches patch_offsets[i] to patch_offsets[i + 1].
        patch_cameras: (J,) int64 numbers of cameras.
        patch_shapes: (J, 2) int64 rows and columns.
        pixels: uint8, the patches (3, rows, columns) one after another.

    Raises:
        DataError: If the parts do not fit together.
    """

    boxes: Boxes3D
    points: Tensor
    offsets: Tensor
    patch_offsets: Tensor
    patch_cameras: Tensor
    patch_shapes: Tensor
    pixels: Tensor

    def __post_init__(self) -> None:
        patches = len(self.patch_cameras)
        if self.points.dim() != 2 or self.points.dtype != torch.float32:
            raise DataError(f"objects: points must be (P, F) float32, got {tuple(self.points.shape)}")
        for name, total in (("offsets", len(self.points)), ("patch_offsets", patches)):
            offsets = getattr(self, name)
            fits = offsets.dtype == torch.int64 and tuple(offsets.shape) == (len(self.boxes) + 1,)
            if not fits or int(offsets[0]) != 0 or int(offsets[-1]) != total or bool((offsets.diff() < 0).any()):
                raise DataError(f"objects: {name} must be {len(self.boxes) + 1} numbers that rise from 0 to {total}")
        if tuple(self.patch_shapes.shape) != (patches, 2) or bool((self.patch_shapes < 1).any()):
            raise DataError(f"objects: patch_shapes must be ({patches}, 2) of at least 1 pixel")
        if self.pixels.dtype != torch.uint8 or tuple(self.pixels.shape) != (self._starts[-1],):
            raise DataError("objects: there are more or fewer pixels than patch_shapes says")

    @cached_property
    def _starts(self) -> list[int]:
        """Where each patch starts among the pixels, and the end of the last."""
        return [0, *(3 * self.patch_shapes.prod(1)).cumsum(0).tolist()]

    def __len__(self) -> int:
        """Number of objects."""
        return len(self.boxes)

    def counts(self, kinds: int) -> list[int]:
        """Objects of each of so many classes."""
        return [int((self.boxes.label == label).sum()) for label in range(kinds)]

    def rows(self, label: int) -> Tensor:
        """Numbers of the objects of a class, int64."""
        return (self.boxes.label == label).nonzero()[:, 0]

    def points_of(self, row: int) -> Tensor:
        """(n, F) points of an object, in the ego frame."""
        return self.points[self.offsets[row] : self.offsets[row + 1]]

    def patches_of(self, row: int) -> list[Patch]:
        """What cameras show of an object; nothing where none sees it."""
        found, starts = [], self._starts
        for number in range(int(self.patch_offsets[row]), int(self.patch_offsets[row + 1])):
            rows, columns = self.patch_shapes[number].tolist()
            pixels = self.pixels[starts[number] : starts[number + 1]].view(3, rows, columns)
            found.append(Patch(int(self.patch_cameras[number]), pixels))
        return found

    def save(self, path: Path) -> None:
        """Writes an .npz file, which appears whole or not at all.

        Raises:
            DataError: If it cannot be written.
        """
        partial = partial_of(path)
        arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in self._arrays().items()}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                np.savez(file, **arrays)
            os.replace(partial, path)
        except OSError as error:
            with suppress(OSError):
                partial.unlink()
            raise DataError(f"cannot write objects to {path} ({error}); set ZOO_CACHE to another folder") from error

    def _arrays(self) -> dict[str, Tensor]:
        names = ("points", "offsets", "patch_offsets", "patch_cameras", "patch_shapes", "pixels")
        return {"boxes": self.boxes.as_tensor(), "labels": self.boxes.label} | {n: getattr(self, n) for n in names}

    @staticmethod
    def load(path: Path) -> ObjectDatabase:
        """Reads what `save` wrote.

        Raises:
            DataError: If there is no such file, or it is damaged.
        """
        arrays: dict[str, Tensor] = {}
        with damage(str(path), "objects"), path.open("rb") as file:
            archive, headers = read_members(file, str(path))
            for key in headers:
                with archive.open(f"{key}.npy") as stream:
                    arrays[key] = torch.from_numpy(read_array(stream, str(path), key, max_bytes=_MAX_BYTES))
            boxes, labels = arrays.pop("boxes"), arrays.pop("labels")
            if boxes.dim() != 2 or boxes.shape[1] != _BOX_COLUMNS:
                raise DataError(f"{path}: boxes must be (K, {_BOX_COLUMNS}), got {tuple(boxes.shape)}")
            made = Boxes3D(boxes[:, :3], boxes[:, 3:6], boxes[:, 6], boxes[:, 7:9], labels)
            return ObjectDatabase(boxes=made, **arrays)


@dataclass(frozen=True, eq=False)
class _Object:
    box: Boxes3D
    points: Tensor | None
    patches: list[Patch]


def collect_objects(
    scenes: Iterable[TrainingScene], *, min_points: int = 5, most: int = 10_000, patches: bool = True, seed: int = 0
) -> ObjectDatabase:
    """Cuts the labelled objects out of scenes.

    Args:
        scenes: One after another, on the CPU, without augmentation; boxes of no class (label -1) are left out.
        min_points: Least points in the box of an object; of scenes without a lidar, what a camera shows is taken.
        most: Objects of a class that are kept; of more, so many are drawn with equal chances.
        patches: Also keep what the cameras show of each.
        seed: Of these draws.

    Returns:
        Objects class by class; it may be empty.

    Raises:
        DataError: If scenes differ in point features.
    """
    generator = torch.Generator().manual_seed(seed)
    kept: dict[int, list[_Object]] = {}
    seen: dict[int, int] = {}
    width = None
    for scene in scenes:
        views = _views(scene) if patches else None
        if scene.points is None:
            inside = torch.zeros(len(scene.boxes), 0, dtype=torch.bool)
            good = torch.zeros(len(scene.boxes), dtype=torch.bool) if views is None else ~views.isnan().all(2).all(0)
        else:
            if width not in (None, scene.points.shape[1]):
                raise DataError(f"objects: scenes with {width} and with {scene.points.shape[1]} point features")
            width = scene.points.shape[1]
            inside = points_in_boxes(scene.points, scene.boxes)
            good = inside.sum(1) >= max(1, min_points)
        for row in (good & (scene.boxes.label >= 0)).nonzero()[:, 0].tolist():
            label = int(scene.boxes.label[row])
            group = kept.setdefault(label, [])
            seen[label] = seen.get(label, 0) + 1
            place = len(group)
            if place >= most:  # a reservoir: the n-th of them is kept with a chance of most / n
                place = int(torch.randint(seen[label], (1,), generator=generator))
                if place >= most:
                    continue
            box = scene.boxes[row : row + 1].to(dtype=torch.float32)
            cut = [] if views is None else _patches(scene, views[:, row])
            points = None if scene.points is None else scene.points[inside[row]].float()
            found = _Object(box, points, cut)
            group[place : place + 1] = [found]
    return _database([found for label in sorted(kept) for found in kept[label]], width or 5)


def open_objects(
    scenes: Callable[[], Iterable[TrainingScene]],
    key: Sequence[object],
    *,
    min_points: int = 5,
    most: int = 10_000,
    patches: bool = True,
    cache: Path | None = None,
) -> ObjectDatabase:
    """The objects of a data set from a file, which is made where there is none or it is damaged.

    Args:
        scenes: Called if they are needed: see `collect_objects`.
        key: What they follow from, such as the data set's `sha256`, its split and how scenes are prepared: values with
            a `repr` of their own.
        min_points: As in `collect_objects`.
        most: As in `collect_objects`.
        patches: As in `collect_objects`.
        cache: Folder of such files; `$ZOO_CACHE/driving` or `~/.cache/pape-zoo/driving` unless given.

    Raises:
        DataError: If scenes cannot be read, or the file cannot be written.
    """
    digest = hashlib.sha256(repr((_FORMAT, *key, min_points, most, patches)).encode()).hexdigest()[:16]
    path = (cache or cache_folder("driving")) / f"objects-{digest}.npz"
    if path.is_file():
        try:
            return ObjectDatabase.load(path)
        except DataError:  # ours to repair: the scenes are at hand
            path.unlink(missing_ok=True)
    database = collect_objects(scenes(), min_points=min_points, most=most, patches=patches)
    database.save(path)
    return database


def _views(scene: TrainingScene) -> Tensor | None:
    """(V, M, 4) columns and rows of the boxes in each picture, NaN where there is nothing."""
    if scene.images is None or not len(scene.image_mask):
        return None
    rows, columns = scene.images.shape[2:]
    corners = scene.boxes.corners().to(scene.intrinsics.dtype)
    cameras = zip(scene.camera_from_ego, scene.intrinsics, strict=True)
    views = torch.stack([image_boxes(corners, pose, intrinsics, (rows, columns)) for pose, intrinsics in cameras])
    return torch.where(scene.image_mask[:, None, None], views, torch.nan)


def _patches(scene: TrainingScene, views: Tensor) -> list[Patch]:
    assert scene.images is not None
    found = []
    for camera, view in enumerate(views.tolist()):
        span = pixel_span(view)
        if span is not None:
            top, bottom, left, right = span
            found.append(Patch(camera, scene.images[camera, :, top:bottom, left:right].clone()))
    return found


def pixel_span(view: list[float]) -> tuple[int, int, int, int] | None:
    """First row, row after the last, and the same of columns, of a box (x1, y1, x2, y2) of `image_boxes`.

    None where there is no such box (NaN), or it is smaller than two pixels.
    """
    if any(value != value for value in view):
        return None
    left, top, right, bottom = (round(value) for value in view)
    tall, wide = bottom + 1 - top, right + 1 - left
    return (top, bottom + 1, left, right + 1) if min(tall, wide) >= _SMALLEST_SIDE else None


def _database(objects: list[_Object], width: int) -> ObjectDatabase:
    patches = [patch for found in objects for patch in found.patches]
    clouds = [torch.zeros(0, width) if found.points is None else found.points for found in objects]
    return ObjectDatabase(
        boxes=Boxes3D.cat([Boxes3D.empty(), *(found.box for found in objects)]),
        points=torch.cat([torch.zeros(0, width), *clouds]),
        offsets=_offsets([len(cloud) for cloud in clouds]),
        patch_offsets=_offsets([len(found.patches) for found in objects]),
        patch_cameras=torch.tensor([patch.camera for patch in patches], dtype=torch.int64),
        patch_shapes=torch.tensor([patch.pixels.shape[1:] for patch in patches], dtype=torch.int64).view(-1, 2),
        pixels=torch.cat([torch.zeros(0, dtype=torch.uint8), *(patch.pixels.flatten() for patch in patches)]),
    )


def _offsets(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0)
