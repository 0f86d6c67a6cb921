"""What all decoders share: what they return, names that mean the same, counts checked before memory is taken."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np

from zoo.errors import ConfigError, DataError

__all__ = [
    "MAX_POINTS",
    "Decoded",
    "Options",
    "bytes_behind",
    "from_columns",
    "remaining",
    "split_table",
    "take_records",
]

MAX_POINTS = 2**26
"""Most points read at once (1.6 GB of coordinates); more on demand with `max_points`."""

_ALIASES: dict[str, tuple[tuple[str, ...], ...]] = {
    "xyz": (("x", "y", "z"),),
    "rgb": (("red", "green", "blue"), ("r", "g", "b"), ("diffuse_red", "diffuse_green", "diffuse_blue")),
    "normal": (("nx", "ny", "nz"), ("normal_x", "normal_y", "normal_z")),
}
_SYNONYMS = {
    "reflectance": "intensity",
    "scalar_intensity": "intensity",
    "reflectivity": "intensity",
    "i": "intensity",
    "scalar_label": "label",
    "scalar_classification": "classification",
}


@dataclass(frozen=True)
class Options:
    """What the caller says about a file that it may not say itself.

    Attributes:
        max_points: Refuses more points than this before memory is taken for them.
        columns: Names of the columns of a text table without a line of names, for example `"x,y,z,nx,ny,nz"`; `_`
            leaves one out.
    """

    max_points: int = MAX_POINTS
    columns: str | None = None

    def __post_init__(self) -> None:
        most = self.max_points
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise ConfigError(f"max_points must be a positive whole number, not {most!r:.40}")
        if self.columns is not None and not isinstance(self.columns, str):
            raise ConfigError(f'columns must be names such as "x,y,z,intensity", not {self.columns!r:.40}')

    def check_count(self, count: int, name: str) -> int:
        """Returns a number of points that a header claims.

        Raises:
            DataError: If it is negative or more than `max_points`.
        """
        if count < 0:
            raise DataError(f"{name}: the header says {count} points: damaged")
        if count > self.max_points:
            raise DataError(
                f"{name}: the header says {count} points; at most {self.max_points} are read; pass max_points= for more"
            )
        return count


@dataclass
class Decoded:
    """What is in a file: coordinates float64 (N, 3), fields, triangles, and what is wrong after the N points."""

    xyz: np.ndarray
    fields: dict[str, np.ndarray] = field(default_factory=dict)
    faces: np.ndarray | None = None
    info: dict[str, Any] = field(default_factory=dict)
    damage: str | None = None


def from_columns(columns: Mapping[str, np.ndarray], name: str, *, packed: bool = False) -> Decoded:
    """Coordinates and fields of columns by name; names of one meaning become one (see `Points.fields`).

    Args:
        columns: (N,) or (N, k) each.
        name: What errors call the file.
        packed: `rgb` and `rgba` are one number of four bytes, as in PCD.

    Raises:
        DataError: If x, y or z is missing or no numbers.
    """
    lower = {key.lower(): key for key in columns}
    found: dict[str, np.ndarray] = {}
    used: set[str] = set()
    for target, variants in _ALIASES.items():
        for variant in variants:
            if all(part in lower and columns[lower[part]].ndim == 1 for part in variant) and target not in found:
                keys = [lower[part] for part in variant]
                kinds = {columns[key].dtype for key in keys}
                dtype = np.dtype(np.float64) if target == "xyz" else np.result_type(*kinds)
                stacked = np.empty((len(columns[keys[0]]), 3), dtype)
                for axis, key in enumerate(keys):
                    stacked[:, axis] = columns[key]
                found[target] = stacked
                used.update(keys)
    if "xyz" not in found:
        raise DataError(f"{name}: has no x, y and z; its columns are {', '.join(list(columns)[:12]) or 'none'}")
    xyz = found.pop("xyz")
    for key, values in columns.items():
        if key in used:
            continue
        plain = key.lower()
        if packed and plain in ("rgb", "rgba") and values.ndim == 1 and values.dtype.itemsize == 4:
            # Blue is the lowest byte; alpha, where there is one, the highest.
            parts = np.ascontiguousarray(values).view(np.uint32)
            found["rgb"] = np.stack([parts >> 16 & 255, parts >> 8 & 255, parts & 255], axis=1).astype(np.uint8)
            if plain == "rgba":
                found["alpha"] = (parts >> 24).astype(np.uint8)
            continue
        target = _SYNONYMS.get(plain, plain if plain in ("intensity", "label") else key)
        found[key if target in found else target] = np.ascontiguousarray(values)
    return Decoded(xyz, found)


def split_table(table: np.ndarray) -> dict[str, np.ndarray]:
    """Columns of a structured array by name."""
    return {key: table[key] for key in table.dtype.names or ()}


def bytes_behind(file: BinaryIO, offset: int) -> int:
    """Bytes from an offset to the end of the file, negative where it ends before; the position does not change."""
    here = file.tell()
    end = file.seek(0, 2)
    file.seek(here)
    return end - offset


def remaining(file: BinaryIO) -> int:
    """Bytes from here to the end of the file."""
    return bytes_behind(file, file.tell())


def take_records(file: BinaryIO, dtype: np.dtype, count: int, name: str) -> tuple[np.ndarray, str | None]:
    """Reads so many records, or those that are there.

    Returns:
        Structured array, and what is wrong when there are fewer.
    """
    whole = min(count, remaining(file) // dtype.itemsize) if dtype.itemsize else 0
    data = file.read(whole * dtype.itemsize)
    whole = min(whole, len(data) // dtype.itemsize) if dtype.itemsize else 0
    table = np.frombuffer(data, dtype, whole)
    return table, None if whole == count else f"{name}: truncated: {whole} of the {count} points are there"


def whole_number(text: str, what: str, name: str) -> int:
    """Reads a number of a header.

    Raises:
        DataError: If it is none.
    """
    try:
        return int(text)
    except ValueError:
        raise DataError(f"{name}: {what} is {text[:40]!r}, not a whole number") from None


def triangles(polygons: list[np.ndarray], vertices: int) -> np.ndarray | None:
    """Cuts polygons into fans of triangles.

    Args:
        polygons: int64 (n, k) each: n polygons of k corners.
        vertices: How many there are; polygons with corners outside are left out.

    Returns:
        int64 (F, 3), or `None` where there are none.
    """
    fans = []
    for polygon in polygons:
        inside = polygon[((polygon >= 0) & (polygon < vertices)).all(axis=1)]
        fans += [inside[:, [0, corner, corner + 1]] for corner in range(1, polygon.shape[1] - 1)]
    return np.concatenate(fans) if fans and math.prod(fans[0].shape) else None
