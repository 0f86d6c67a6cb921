"""Lidar sweeps of nuScenes and KITTI: float32 values of points, one after another."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np

from zoo.errors import DataError

__all__ = ["MAX_SWEEP_BYTES", "drop_near", "move", "read_floats"]

MAX_SWEEP_BYTES = 2**30
"""Largest file of points read (a sweep of nuScenes has 0.7 MB, one of KITTI 2 MB)."""


def read_floats(path: Path, columns: int) -> np.ndarray:
    """Reads (N, columns) float32 little endian; rows with a value that is not finite are no returns and are left out.

    Raises:
        DataError: If there is no such file, or its size is not that of whole points.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise DataError(f"{path}: not a regular file")
        if status.st_size > MAX_SWEEP_BYTES:
            raise DataError(f"{path}: {status.st_size} bytes; at most {MAX_SWEEP_BYTES} are read")
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    if len(data) % (4 * columns):
        raise DataError(
            f"{path}: {len(data)} bytes are not whole points of {columns} float32 values ({4 * columns} bytes): "
            "truncated, or another format"
        )
    points = np.frombuffer(data, "<f4").reshape(-1, columns).astype(np.float32)
    finite = np.isfinite(points).all(1)
    return points if finite.all() else points[finite]


def drop_near(points: np.ndarray, distance: float) -> np.ndarray:
    """Leaves out points within a square of `distance` metres to all sides of the sensor: hits of the car itself."""
    near = (np.abs(points[:, 0]) < distance) & (np.abs(points[:, 1]) < distance)
    return points[~near]


def move(xyz: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Points (N, 3) moved by a (4, 4) transform, computed in float64."""
    return xyz.astype(np.float64) @ matrix[:3, :3].T + matrix[:3, 3]
