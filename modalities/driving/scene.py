"""One key frame as it was read: cameras, lidar points and boxes, without a device and without a model in mind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from modalities.driving.boxes import Boxes3D
from zoo.errors import DataError

__all__ = ["Annotations", "Camera", "Sample"]


def _matrix(values: object, shape: tuple[int, int], what: str) -> np.ndarray:
    try:
        matrix = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{what}: must be numbers, shape {shape}") from error
    if matrix.shape != shape or not np.isfinite(matrix).all():
        raise DataError(f"{what}: must be {shape} of finite numbers, got shape {matrix.shape}")
    return matrix


@dataclass(frozen=True, eq=False)
class Camera:
    """One picture of a key frame and where it was taken.

    Attributes:
        name: Channel, such as "CAM_FRONT".
        image: Its file, or uint8 (H, W, 3) RGB in memory; None where the picture is missing (a dead camera).
        intrinsics: (3, 3) float64: pixels (column, row) from the camera frame, which has z forward, x right, y down.
        camera_from_ego: (4, 4) float64, from the ego frame at the time of the key frame's lidar: it holds the motion of
            the car between that time and the camera's.
        timestamp: Microseconds.
        size: (height, width) in pixels, where the tables know it.
        token: Of the sample_data record; "" elsewhere.
    """

    name: str
    image: Path | np.ndarray | None
    intrinsics: np.ndarray
    camera_from_ego: np.ndarray
    timestamp: int = 0
    size: tuple[int, int] | None = None
    token: str = ""

    def __post_init__(self) -> None:
        for name, shape in (("intrinsics", (3, 3)), ("camera_from_ego", (4, 4))):
            object.__setattr__(self, name, _matrix(getattr(self, name), shape, f"camera {self.name}, {name}"))
        if isinstance(self.image, np.ndarray) and (
            self.image.dtype != np.uint8 or self.image.ndim != 3 or self.image.shape[2] != 3
        ):
            raise DataError(
                f"camera {self.name}: a picture must be uint8 (H, W, 3), got {self.image.dtype} {self.image.shape}"
            )

    def read(self) -> np.ndarray:
        """Returns the picture as uint8 (H, W, 3) RGB.

        Raises:
            DataError: If there is none, it cannot be decoded, or it has another size than the tables say.
        """
        if self.image is None:
            raise DataError(f"camera {self.name}: this key frame has no picture of it")
        if isinstance(self.image, np.ndarray):
            return self.image
        from zoo.reading import read

        rgb = read(self.image, "image").rgb
        if self.size is not None and rgb.shape[:2] != self.size:
            raise DataError(
                f"{self.image}: {rgb.shape[1]} x {rgb.shape[0]} pixels, the table says {self.size[1]} x {self.size[0]}"
            )
        return rgb


@dataclass(frozen=True, eq=False)
class Annotations:
    """The labelled boxes of a key frame.

    Attributes:
        boxes: M boxes in the ego frame at the time of the lidar.
        num_lidar_points: (M,) int64 points in each, as labelled; -1 unknown.
        num_radar_points: (M,) int64; -1 unknown.
        tokens: M tokens of the annotations, "" where they have none.
        categories: M names as the data set gives them, such as "vehicle.car".
        attributes: M names such as "vehicle.parked", "" where there is none.
        visibility: (M,) int64: 1 (0 to 40 % visible) to 4 (80 to 100 %), 0 unknown.
    """

    boxes: Boxes3D
    num_lidar_points: np.ndarray
    num_radar_points: np.ndarray
    tokens: tuple[str, ...]
    categories: tuple[str, ...]
    attributes: tuple[str, ...]
    visibility: np.ndarray

    def __post_init__(self) -> None:
        for name in ("num_lidar_points", "num_radar_points", "tokens", "categories", "attributes", "visibility"):
            if len(getattr(self, name)) != len(self.boxes):
                raise DataError(f"annotations: {len(self.boxes)} boxes, but {len(getattr(self, name))} {name}")

    def __len__(self) -> int:
        """Number of boxes."""
        return len(self.boxes)

    def select(self, mask: np.ndarray | torch.Tensor | Sequence[bool]) -> Annotations:
        """The annotations where the (M,) bool mask is True."""
        rows = np.flatnonzero(np.asarray(mask, dtype=bool))
        return Annotations(
            self.boxes[torch.from_numpy(rows)],
            self.num_lidar_points[rows],
            self.num_radar_points[rows],
            tuple(self.tokens[row] for row in rows),
            tuple(self.categories[row] for row in rows),
            tuple(self.attributes[row] for row in rows),
            self.visibility[rows],
        )

    @staticmethod
    def of(boxes: Boxes3D, categories: Sequence[str] = ()) -> Annotations:
        """Annotations of which only the boxes (and their categories) are known."""
        count = len(boxes)
        unknown, blank = np.full(count, -1, np.int64), ("",) * count
        names = tuple(categories) if categories else blank
        return Annotations(boxes, unknown, unknown.copy(), blank, names, blank, np.zeros(count, np.int64))


@dataclass(frozen=True, eq=False)
class Sample:
    """One key frame.

    Attributes:
        token: Its name in the data set.
        timestamp: Time of the lidar (of the key frame, without one), microseconds.
        cameras: In the order of the data set's channels.
        points: (N, 5) float32, x, y, z in the ego frame at the time of the lidar, intensity in 0..1, age in seconds (0
            for the key frame's own sweep, more for earlier ones); None without a lidar.
        annotations: The truth, or None where there is none (test sets).
        global_from_ego: (4, 4) float64 pose of the car at the time of the lidar.
        ego_from_lidar: (4, 4) float64; the identity where it is not known.
        scene: Name of the drive it is from.
    """

    token: str
    timestamp: int
    cameras: tuple[Camera, ...]
    points: np.ndarray | None
    annotations: Annotations | None = None
    global_from_ego: np.ndarray = field(default_factory=lambda: np.eye(4))
    ego_from_lidar: np.ndarray = field(default_factory=lambda: np.eye(4))
    scene: str = ""

    def __post_init__(self) -> None:
        for name in ("global_from_ego", "ego_from_lidar"):
            object.__setattr__(self, name, _matrix(getattr(self, name), (4, 4), f"sample {self.token}, {name}"))
        points = self.points
        if points is not None and (points.ndim != 2 or points.shape[1] != 5 or points.dtype != np.float32):
            raise DataError(
                f"sample {self.token}: points must be (N, 5) float32 (x, y, z, intensity, age), got {points.shape} "
                f"{points.dtype}"
            )
