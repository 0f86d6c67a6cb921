"""KITTI object detection: labels, calibration and lidar points, moved into the conventions of this package.

The ego frame is that of the lidar (x forward, y left, z up). Source: "Are we ready for autonomous driving? The KITTI
vision benchmark suite" (CVPR 2012) and the description of its object development kit.
"""

from __future__ import annotations

import math
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from modalities.driving.boxes import Boxes3D
from modalities.driving.rigid import MAX_COORDINATE, invert_rigid
from modalities.driving.scene import Annotations, Camera, Sample
from modalities.driving.sweeps import move, read_floats
from zoo.errors import DataError
from zoo.files import write_whole

__all__ = [
    "CLASSES",
    "Calibration",
    "Kitti",
    "KittiObject",
    "boxes_of_objects",
    "objects_of_boxes",
    "read_calibration",
    "read_objects",
    "write_objects",
]

CLASSES = ("Car", "Pedestrian", "Cyclist")
"""The classes that are evaluated."""

DONT_CARE = "DontCare"
_MAX_BYTES = 16 * 2**20
_SUFFIXES = (".png", ".jpg", ".jpeg")


@dataclass(frozen=True)
class KittiObject:
    """One line of a label or result file, in the rectified frame of camera 0 (x right, y down, z forward).

    Attributes:
        type: "Car", "Van", "Truck", "Pedestrian", "Person_sitting", "Cyclist", "Tram", "Misc" or "DontCare".
        truncated: Share of the object outside of the picture, 0 to 1; -1 unknown.
        occluded: 0 fully visible to 2 largely hidden, 3 unknown; -1 in results.
        alpha: Angle at which the camera sees the object, radians.
        box: Left, top, right, bottom in the picture, pixels.
        size: Height, width, length in metres; -1 for DontCare.
        bottom: x, y, z of the middle of the bottom face, metres; -1000 for DontCare.
        rotation_y: Turn about the downward axis from x, radians.
        score: Confidence of a result, in any unit; None for labels.
    """

    type: str
    truncated: float
    occluded: int
    alpha: float
    box: tuple[float, float, float, float]
    size: tuple[float, float, float]
    bottom: tuple[float, float, float]
    rotation_y: float
    score: float | None = None


@dataclass(frozen=True, eq=False)
class Calibration:
    """Where camera 2 (left, colour) is.

    Attributes:
        intrinsics: (3, 3) float64 of the rectified picture.
        camera_from_rect: (4, 4) float64: from the rectified frame of camera 0, in which labels are, to camera 2.
        rect_from_lidar: (4, 4) float64.
    """

    intrinsics: np.ndarray
    camera_from_rect: np.ndarray
    rect_from_lidar: np.ndarray

    @property
    def camera_from_ego(self) -> np.ndarray:
        """(4, 4) float64: from the frame of the lidar to camera 2."""
        return self.camera_from_rect @ self.rect_from_lidar


class Kitti:
    """Frames in the layout of the object benchmark: `training/{velodyne,label_2,calib,image_2}/000000.*`.

    Args:
        root: Folder with `training` or `testing`.
        split: Which of the two.
        classes: Types that get labels 0, 1, ...; others get -1, and DontCare no box at all.

    Raises:
        DataError: If there is no such folder.
    """

    def __init__(self, root: str | Path, split: str = "training", *, classes: Sequence[str] = CLASSES) -> None:
        self.folder = Path(root) / split
        self.classes = tuple(classes)
        if not (self.folder / "velodyne").is_dir():
            raise DataError(f"{self.folder}: no folder velodyne in it: not the layout of KITTI objects")

    def tokens(self) -> list[str]:
        """Names of the frames that have lidar points, sorted."""
        return sorted(path.stem for path in (self.folder / "velodyne").glob("*.bin"))

    def objects(self, token: str) -> list[KittiObject] | None:
        """The labels of a frame; None where it has none (testing)."""
        path = self._path("label_2", token, ".txt")
        return read_objects(path) if path.exists() else None

    def calibration(self, token: str) -> Calibration:
        """The calibration of a frame."""
        return read_calibration(self._path("calib", token, ".txt"))

    def sample(self, token: str) -> Sample:
        """Reads a frame; the picture stays a file until `Camera.read`.

        Raises:
            DataError: If a file but that of the labels or the picture is missing, or one is broken.
        """
        calibration = self.calibration(token)
        points = read_floats(self._path("velodyne", token, ".bin"), 4)
        objects = self.objects(token)
        pictures = [self._path("image_2", token, suffix) for suffix in _SUFFIXES]
        picture = next((path for path in pictures if path.is_file()), None)
        annotations = None
        if objects is not None:
            seen = [thing for thing in objects if thing.type != DONT_CARE]
            boxes = boxes_of_objects(seen, calibration, self.classes)
            annotations = Annotations.of(boxes.to(dtype=torch.float32), [thing.type for thing in seen])
        return Sample(
            token=token,
            timestamp=0,
            cameras=(Camera("image_2", picture, calibration.intrinsics, calibration.camera_from_ego),),
            points=np.concatenate([points, np.zeros((len(points), 1), np.float32)], 1),
            annotations=annotations,
        )

    def _path(self, kind: str, token: str, suffix: str) -> Path:
        if not token.isdigit():
            raise DataError(f"{self.folder}: the name of a frame is a number such as 000123, not {token!r:.60}")
        return self.folder / kind / f"{token}{suffix}"


def read_objects(path: str | Path) -> list[KittiObject]:
    """Reads a label or result file: 15 columns, or 16 with a score.

    Raises:
        DataError: Names the file and the line.
    """
    found = []
    for number, line in enumerate(_lines(Path(path)), 1):
        words = line.split()
        if not words:
            continue
        try:
            values = [float(word) for word in words[1:]]
        except ValueError:
            values = []
        bounded = all(abs(value) < MAX_COORDINATE for value in values)  # False for NaN.
        if len(values) not in (14, 15) or not bounded or not values[1].is_integer():
            raise DataError(f"{path}: line {number} is not an object of KITTI (a type and 14 or 15 numbers)")
        found.append(
            KittiObject(
                words[0],
                values[0],
                int(values[1]),
                values[2],
                (values[3], values[4], values[5], values[6]),
                (values[7], values[8], values[9]),
                (values[10], values[11], values[12]),
                values[13],
                values[14] if len(values) == 15 else None,
            )
        )
        if found[-1].type != DONT_CARE and min(found[-1].size) < 0:
            raise DataError(f"{path}: line {number}: the size of a {found[-1].type} is negative")
    return found


def write_objects(path: str | Path, objects: Sequence[KittiObject]) -> None:
    """Writes a label or result file, as the benchmark takes it; its folder must exist."""
    lines = []
    for thing in objects:
        numbers = [thing.alpha, *thing.box, *thing.size, *thing.bottom, thing.rotation_y]
        numbers += [] if thing.score is None else [thing.score]
        lines.append(f"{thing.type} {thing.truncated:.2f} {thing.occluded} " + " ".join(f"{n:.4f}" for n in numbers))
    write_whole(Path(path), "".join(f"{line}\n" for line in lines))


def read_calibration(path: str | Path) -> Calibration:
    """Reads P2, R0_rect and Tr_velo_to_cam of a calibration file.

    Raises:
        DataError: If one is missing, or is no matrix of its kind.
    """
    rows: dict[str, list[float]] = {}
    for line in _lines(Path(path)):
        name, _, numbers = line.partition(":")
        try:
            rows[name.strip()] = [float(word) for word in numbers.split()]
        except ValueError as error:
            raise DataError(f"{path}: {name.strip()[:40]} is not numbers") from error
    projection = _matrix(rows, "P2", (3, 4), path)
    rectified, lidar = np.eye(4), np.eye(4)
    rectified[:3, :3] = _matrix(rows, "R0_rect", (3, 3), path)
    lidar[:3] = _matrix(rows, "Tr_velo_to_cam", (3, 4), path)
    intrinsics = projection[:, :3]
    if not (intrinsics[0, 0] > 0 and intrinsics[1, 1] > 0 and np.allclose(intrinsics[2], [0, 0, 1], atol=1e-6)):
        raise DataError(f"{path}: P2 is not the projection of a rectified camera")
    for name, rotation in (("R0_rect", rectified[:3, :3]), ("Tr_velo_to_cam", lidar[:3, :3])):
        if np.abs(rotation @ rotation.T - np.eye(3)).max() > 1e-2 or np.linalg.det(rotation) < 0:
            raise DataError(f"{path}: {name} is not a rotation")
    camera = np.eye(4)
    camera[:3, 3] = np.linalg.solve(intrinsics, projection[:, 3])  # P2 = K [I, t]
    return Calibration(intrinsics, camera, rectified @ lidar)


def boxes_of_objects(
    objects: Sequence[KittiObject], calibration: Calibration, classes: Sequence[str] = CLASSES
) -> Boxes3D:
    """Boxes of float64 in the frame of the lidar; types that are none of the classes get the label -1."""
    if not objects:
        return Boxes3D.empty(dtype=torch.float64)
    lidar_from_rect = _nearest_rigid_inverse(calibration.rect_from_lidar)
    size = np.array([thing.size for thing in objects])
    middle = np.array([thing.bottom for thing in objects]) - size[:, :1] / 2 * np.array([0, 1, 0])  # y points down
    turn = np.array([thing.rotation_y for thing in objects])
    heading = np.stack([np.cos(turn), np.zeros_like(turn), -np.sin(turn)], 1) @ lidar_from_rect[:3, :3].T
    label = {name: number for number, name in enumerate(classes)}
    scores = [thing.score for thing in objects if thing.score is not None]
    return Boxes3D.from_arrays(
        move(middle, lidar_from_rect),
        size[:, [2, 1, 0]],
        np.arctan2(heading[:, 1], heading[:, 0]),
        label=[label.get(thing.type, -1) for thing in objects],
        score=scores if len(scores) == len(objects) else None,
        dtype=torch.float64,
    )


def objects_of_boxes(
    boxes: Boxes3D, flat: torch.Tensor, calibration: Calibration, classes: Sequence[str] = CLASSES
) -> list[KittiObject]:
    """Lines of a result file from boxes in the frame of the lidar.

    Args:
        boxes: M boxes with labels of the classes.
        flat: (M, 4) their boxes in the picture: see `modalities.driving.geometry.image_boxes`.
        calibration: Of the frame.
        classes: Types of labels 0, 1, ....

    Raises:
        DataError: If a label is none of the classes, or a box is not in the picture (NaN): leave it out.
    """
    values = flat.double().numpy()
    labels = boxes.label.tolist()
    if not np.isfinite(values).all() or any(not 0 <= label < len(classes) for label in labels):
        raise DataError("results of KITTI need boxes in the picture, with labels of its classes")
    rotation = calibration.rect_from_lidar
    size = boxes.size.double().numpy()[:, [2, 1, 0]]
    bottom = move(boxes.centre.double().numpy(), rotation) + size[:, :1] / 2 * np.array([0, 1, 0])
    yaw = boxes.yaw.double().numpy()
    heading = np.stack([np.cos(yaw), np.sin(yaw), np.zeros_like(yaw)], 1) @ rotation[:3, :3].T
    turn = np.arctan2(-heading[:, 2], heading[:, 0])
    alpha = turn - np.arctan2(bottom[:, 0], bottom[:, 2])
    alpha = (alpha + math.pi) % (2 * math.pi) - math.pi
    scores = [None] * len(boxes) if boxes.score is None else boxes.score.tolist()
    return [
        KittiObject(
            classes[labels[row]],
            -1.0,
            -1,
            float(alpha[row]),
            tuple(values[row].tolist()),
            tuple(size[row].tolist()),
            tuple(bottom[row].tolist()),
            float(turn[row]),
            scores[row],
        )
        for row in range(len(boxes))
    ]


def _nearest_rigid_inverse(matrix: np.ndarray) -> np.ndarray:
    """Calibration has rotations with 1e-4 of noise: the inverse of the nearest true one."""
    u, _, v = np.linalg.svd(matrix[:3, :3])
    true = matrix.copy()
    true[:3, :3] = u @ v
    return invert_rigid(true)


def _matrix(rows: Mapping[str, list[float]], name: str, shape: tuple[int, int], path: str | Path) -> np.ndarray:
    values = np.array(rows.get(name, []))
    if values.size != shape[0] * shape[1] or not (np.abs(values) < MAX_COORDINATE).all():  # False for NaN.
        raise DataError(f"{path}: {name} must be {shape[0] * shape[1]} finite numbers")
    return values.reshape(shape)


def _lines(path: Path) -> list[str]:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
            raise DataError(f"{path}: not a regular file of at most {_MAX_BYTES} bytes")
        return path.read_text(encoding="utf-8").splitlines()
    except DataError:
        raise
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or 'not text'})") from error
