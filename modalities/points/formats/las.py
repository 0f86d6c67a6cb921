"""LAS and LAZ (airborne laser scanning) through laspy: coordinates in double precision, all dimensions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from modalities.points.formats.base import Decoded, Options, bytes_behind, remaining
from modalities.points.formats.las_units import horizontal_unit
from modalities.points.formats.laz import points_in_whole_chunks
from zoo.errors import DataError, require

__all__ = ["decode_las"]

_CHUNK = 2**18
_SKIP = frozenset(("X", "Y", "Z", "red", "green", "blue"))
_TRUTH = frozenset(("scan_direction_flag", "edge_of_flight_line", "synthetic", "key_point", "withheld", "overlap"))
_HEADER = 227  # bytes of the header of LAS 1.0 to 1.2, the shortest


def decode_las(file: BinaryIO, name: str, options: Options) -> Decoded:
    """Reads LAS 1.0 to 1.4 and LAZ of all point formats.

    Coordinates are the stored whole numbers times scale plus offset, in float64. Fields are the dimensions under the
    names of the standard (`intensity` uint16, `return_number`, `number_of_returns`, `classification`, `gps_time`,
    ...), number and count of returns also as `return` (N, 2), colour as `rgb` uint16 (N, 3), and extra dimensions
    under their own names; flags are bool.
    `info` holds `scales`, `offsets`, `point_format` and `version`, and where the coordinate system states it `unit_m`,
    the metres of one unit of x and y.

    Raises:
        MissingDependencyError: If laspy or, for LAZ, lazrs is not installed.
    """
    laspy = require("laspy", "points")
    if remaining(file) < _HEADER:
        raise DataError(f"{name}: truncated inside the header")
    start = file.tell()
    head = file.read(_HEADER)
    file.seek(start)
    records, offset = int.from_bytes(head[100:104], "little"), int.from_bytes(head[96:100], "little")
    # Each variable record has 54 bytes at least: a claim that cannot be is refused before laspy loops over it.
    if offset > remaining(file) or records * 54 > offset:
        raise DataError(f"{name}: truncated or damaged header: {records} records before byte {offset}")
    if head[104] & 0x80 or head[104] & 0x40:
        require("lazrs", "points")
    with _damage(laspy, name, "the header"):
        # One thread: the decompressor of many reads ahead what the file claims.
        reader = laspy.open(file, closefd=False, read_evlrs=False, laz_backend=laspy.LazBackend.Lazrs)
        header = reader.header
        count, size = int(header.point_count), int(header.point_format.size)
        start = int(header.offset_to_point_data)
        compressed = bool(header.are_points_compressed)
        settings = header.vlrs.get("LasZipVlr")[0].record_data if compressed else b""
    options.check_count(count, name)
    if compressed:
        there = points_in_whole_chunks(file, start, bytes(settings), count, size, name)
    else:
        there = min(count, max(0, bytes_behind(file, start)) // max(1, size))
    damage = None if there == count else f"{name}: truncated: {there} of the {count} points are there"
    parts: list[tuple[np.ndarray, dict[str, np.ndarray]]] = []
    done = 0
    try:
        while done < there:
            with _damage(laspy, name, f"the points from {done} on"):
                points = reader.read_points(min(_CHUNK, there - done))
                if not len(points):
                    raise DataError(f"{name}: truncated: {done} of the {count} points are there")
                parts.append(_columns(points))
                done += len(points)
    except DataError as error:
        damage = str(error)
    keys = list(parts[0][1]) if parts else []
    decoded = Decoded(
        np.concatenate([xyz for xyz, _ in parts]) if parts else np.empty((0, 3)),
        {key: np.concatenate([fields[key] for _, fields in parts]) for key in keys},
        damage=damage,
    )
    decoded.info |= {
        "scales": tuple(map(float, header.scales)),
        "offsets": tuple(map(float, header.offsets)),
        "point_format": int(header.point_format.id),
        "version": str(header.version),
    }
    if (unit := horizontal_unit(header.vlrs)) is not None:
        decoded.info["unit_m"] = unit
    return decoded


def _columns(points: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    xyz = np.stack([np.asarray(getattr(points, axis), np.float64) for axis in "xyz"], axis=1)
    names = list(points.point_format.dimension_names)
    fields = {}
    for key in names:
        if key not in _SKIP:
            values = np.array(points[key])
            fields[key] = values.astype(bool) if key in _TRUTH else values
    if "red" in names:
        fields["rgb"] = np.stack([np.asarray(points[key], np.uint16) for key in ("red", "green", "blue")], axis=1)
    if "return_number" in fields and "number_of_returns" in fields:
        fields["return"] = np.stack([fields["return_number"], fields["number_of_returns"]], axis=1)
    return xyz, fields


@contextlib.contextmanager
def _damage(laspy: Any, name: str, what: str) -> Iterator[None]:
    try:
        yield
    except (DataError, KeyboardInterrupt, MemoryError):
        raise
    # laspy and lazrs raise what NumPy, struct and Rust raise; a panic of Rust is no Exception at all.
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = " ".join(str(error).split())[:100] or type(error).__name__
        raise DataError(f"{name}: {what}: truncated or damaged ({reason})") from error
