"""Laser scans without a header: float32 records of KITTI (four values) and nuScenes (five)."""

from __future__ import annotations

from typing import BinaryIO

import numpy as np

from modalities.points.formats.base import Decoded, Options, remaining, take_records
from zoo.errors import DataError

__all__ = ["decode_kitti", "decode_nuscenes"]


def decode_kitti(file: BinaryIO, name: str, options: Options) -> Decoded:
    """Reads little endian float32 x, y, z, reflectance (KITTI, SemanticKITTI): metres, x forward, y left, z up.

    Fields:
        intensity: float32, the reflectance in 0..1.
    """
    return _decode(file, name, options, ("intensity",))


def decode_nuscenes(file: BinaryIO, name: str, options: Options) -> Decoded:
    """Reads little endian float32 x, y, z, intensity, ring (nuScenes `.pcd.bin`): metres in the frame of the lidar.

    Fields:
        intensity: float32, 0..255.
        ring: int32, which laser.
    """
    decoded = _decode(file, name, options, ("intensity", "ring"))
    ring = decoded.fields["ring"]
    if len(ring) and not ((ring >= 0) & (ring < 2**16) & (ring == np.floor(ring))).all():
        raise DataError(f"{name}: the fifth value of a point is its ring, a whole number; this is no nuScenes scan")
    decoded.fields["ring"] = ring.astype(np.int32)
    return decoded


def _decode(file: BinaryIO, name: str, options: Options, others: tuple[str, ...]) -> Decoded:
    width = 3 + len(others)
    count, rest = divmod(remaining(file), 4 * width)
    table, _ = take_records(file, np.dtype(("<f4", (width,))), options.check_count(count, name), name)
    decoded = Decoded(table[:, :3].astype(np.float64))
    decoded.fields = {key: table[:, 3 + index].copy() for index, key in enumerate(others)}
    if rest:
        decoded.damage = f"{name}: truncated: it ends with {rest} of the {4 * width} bytes of point {count}"
    return decoded
