"""Rotations as quaternions and rigid transforms of frames, in NumPy and float64, without torch."""

from __future__ import annotations

import numpy as np

from zoo.errors import DataError

__all__ = ["MAX_COORDINATE", "invert_rigid", "matrix_to_quaternion", "quaternion_to_matrix", "rigid"]

MAX_COORDINATE = 1e8
"""Largest coordinate taken from a file, in metres: more than twice around the Earth."""


def quaternion_to_matrix(quaternion: object) -> np.ndarray:
    """Rotation matrices (..., 3, 3) float64 of quaternions (..., 4) in the order w, x, y, z.

    Raises:
        DataError: If they are no quaternions, or their length is not 1 within 1 %.
    """
    try:
        values = np.asarray(quaternion, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError("a quaternion must be four numbers w, x, y, z") from error
    if values.ndim == 0 or values.shape[-1] != 4:
        raise DataError(f"a quaternion must be four numbers w, x, y, z, got shape {values.shape}")
    with np.errstate(over="ignore"):
        length = np.linalg.norm(values, axis=-1, keepdims=True)
    if not (np.abs(length - 1) < 0.01).all():  # False for NaN.
        raise DataError("a rotation must be a quaternion of length 1 (w, x, y, z)")
    w, x, y, z = np.moveaxis(values / length, -1, 0)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.stack([np.stack(row, -1) for row in rows], -2)


def matrix_to_quaternion(matrix: np.ndarray) -> np.ndarray:
    """The quaternion (4,) float64 w, x, y, z with w >= 0 of a rotation matrix (3, 3)."""
    # The eigenvector of the largest eigenvalue (Bar-Itzhack, 2000): stable for every angle, also for a matrix that is
    # a rotation only nearly.
    m = np.asarray(matrix, dtype=np.float64)
    off = [m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1]]
    symmetric = np.empty((4, 4))
    symmetric[0, 0] = np.trace(m)
    symmetric[0, 1:] = symmetric[1:, 0] = off
    symmetric[1:, 1:] = m + m.T - np.trace(m) * np.eye(3)
    vector = np.linalg.eigh(symmetric)[1][:, -1]
    return vector if vector[0] >= 0 else -vector


def rigid(translation: object, quaternion: object) -> np.ndarray:
    """The (4, 4) float64 transform of a translation (3,) in metres and a quaternion (4,) w, x, y, z.

    Raises:
        DataError: If either is not finite numbers of that shape.
    """
    try:
        shift = np.asarray(translation, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError("a translation must be three numbers") from error
    if shift.shape != (3,) or not (np.abs(shift) < MAX_COORDINATE).all():  # False for NaN.
        raise DataError(f"a translation must be three finite numbers below {MAX_COORDINATE:g}, got {translation!r:.80}")
    matrix = np.eye(4)
    matrix[:3, :3] = quaternion_to_matrix(quaternion)
    matrix[:3, 3] = shift
    return matrix


def invert_rigid(matrix: np.ndarray) -> np.ndarray:
    """The inverse of a rigid (4, 4) transform in float64 (tensors of any matrices: `zoo.poses.invert`)."""
    inverse = np.eye(4)
    inverse[:3, :3] = matrix[:3, :3].T
    inverse[:3, 3] = -matrix[:3, :3].T @ matrix[:3, 3]
    return inverse
