"""The sensors of a simulated car: where they are, when they see, and their rays.

The numbers are those of a real car of nuScenes (n015, 2018-07-24): extrinsics, intrinsics and the times of the cameras
are from the calibration of one key frame. The rings of its lidar are at (k - 23) x 4 / 3 degrees: over the points of
that frame farther than 3 m, the median elevation of every ring is within 0.07 degrees of it, but for rings whose points
are mostly on the car or the ground (at most 0.31 degrees, ring 7).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from modalities.driving.rigid import rigid

__all__ = ["CAMERAS", "LIDAR", "RINGS", "SWEEP_US", "Camera", "Mount", "lidar_columns", "lidar_rays"]

RINGS = 32
SWEEP_US = 50_000
"""Of a turn of the lidar; a simulated sweep is taken all at once, at its time stamp."""

_FULL_WIDTH, _FULL_HEIGHT = 1600, 900
_FIRST_AZIMUTH = -172.0
"""Degrees counter-clockwise from the x axis of the lidar at which the sweep begins; it turns clockwise."""


@dataclass(frozen=True)
class Mount:
    """A sensor on the car.

    Attributes:
        channel: Its name in nuScenes.
        offset_us: When it sees, against the time of the key frame.
        translation: Where it is in the ego frame, in metres.
        rotation: Unit quaternion (w, x, y, z) from the sensor's frame to the ego frame.
    """

    channel: str
    offset_us: int
    translation: tuple[float, float, float]
    rotation: tuple[float, float, float, float]

    def ego_from_sensor(self) -> np.ndarray:
        """float64 (4, 4)."""
        return rigid(self.translation, self.rotation)


@dataclass(frozen=True)
class Camera(Mount):
    """A pinhole camera; x right, y down, z forward.

    Attributes:
        focal: In pixels of the picture of 1600 x 900.
        centre: Principal point (col, row) there, the middle of the first pixel being (0, 0).
    """

    focal: float
    centre: tuple[float, float]

    def intrinsics(self, size: tuple[int, int]) -> np.ndarray:
        """float64 (3, 3) for the picture shrunk to the width of `size` and cut at the top to its height."""
        width, height = size
        scale = width / _FULL_WIDTH
        # Middles of pixels are whole numbers before and after.
        col, row = ((c + 0.5) * scale - 0.5 for c in self.centre)
        return np.array(
            [[self.focal * scale, 0, col], [0, self.focal * scale, row - (_FULL_HEIGHT * scale - height)], [0, 0, 1]]
        )


LIDAR = Mount(
    "LIDAR_TOP",
    0,
    (0.943713, 0.0, 1.84023),
    (0.7077955119, -0.0064922419, 0.0106462146, -0.7063073143),
)

CAMERAS = (
    Camera(
        "CAM_FRONT",
        -35_491,
        (1.70079124, 0.01594563, 1.51095757),
        (0.4998015430, -0.5030316163, 0.4997798115, -0.4973708382),
        1266.417203,
        (816.267020, 491.507066),
    ),
    Camera(
        "CAM_FRONT_RIGHT",
        -27_612,
        (1.55084777, -0.49340481, 1.49574804),
        (0.2060347929, -0.2026940540, 0.6824507837, -0.6713610894),
        1260.847445,
        (807.968245, 495.334427),
    ),
    Camera(
        "CAM_FRONT_LEFT",
        -43_107,
        (1.52387798, 0.49463134, 1.50932822),
        (0.6757265040, -0.6736266528, 0.2121401505, -0.2112282692),
        1272.597947,
        (826.615493, 479.751654),
    ),
    Camera(
        "CAM_BACK",
        -10_426,
        (0.02832603, 0.00345137, 1.57910347),
        (0.5037872666, -0.4974024980, -0.4941850225, 0.5045496097),
        809.220991,
        (829.219600, 481.778424),
    ),
    Camera(
        "CAM_BACK_LEFT",
        -528,
        (1.03569102, 0.48479503, 1.59097016),
        (0.6924185586, -0.7031619418, -0.1164834303, 0.1120331823),
        1256.741481,
        (792.112574, 492.775747),
    ),
    Camera(
        "CAM_BACK_RIGHT",
        -20_058,
        (1.01487816, -0.48056823, 1.56239545),
        (0.1228098002, -0.1324008418, -0.7004305823, 0.6904960314),
        1259.513741,
        (807.252905, 501.195799),
    ),
)


def lidar_rays(azimuths: int) -> np.ndarray:
    """Unit directions of a sweep in the frame of the lidar (x right, y forward): float64 (3, `RINGS`, azimuths)."""
    elevation = np.radians((np.arange(RINGS) - 23) * 4 / 3)[:, None]
    angle = np.radians(_FIRST_AZIMUTH - np.arange(azimuths) * 360 / azimuths)[None]
    up = np.broadcast_to(np.sin(elevation), (RINGS, azimuths))
    return np.stack([np.cos(elevation) * np.cos(angle), np.cos(elevation) * np.sin(angle), up])


def lidar_columns(angle: np.ndarray, azimuths: int) -> np.ndarray:
    """Columns (not rounded, not wrapped) at which the lidar looks along angles in radians from its x axis."""
    return (_FIRST_AZIMUTH - np.degrees(angle)) * azimuths / 360
