"""Writes clouds as PLY, the format that every viewer of points opens."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from modalities.points.points import Points
from zoo.errors import DataError
from zoo.files import write_whole

__all__ = ["encode_ply", "save_ply"]

_TYPES = {"i1": "char", "u1": "uchar", "i2": "short", "u2": "ushort", "i4": "int", "u4": "uint"}
_TYPES |= {"f4": "float", "f8": "double"}
_NAMES = {"rgb": ("red", "green", "blue"), "normal": ("nx", "ny", "nz")}


def encode_ply(points: Points) -> bytes:
    """A cloud as binary little endian PLY.

    Coordinates are double. `rgb` becomes red, green, blue of one byte (16-bit and float colours are scaled, since
    viewers expect bytes), `normal` becomes nx, ny, nz; other fields keep their name, further columns of one a number
    behind it. int64 and uint64 become int where their values fit, so that labels stay whole numbers, else double; bool
    becomes uchar, half float; text is left out. Faces follow as triangles.
    """
    columns: dict[str, np.ndarray] = {}
    for axis, key in enumerate("xyz"):
        columns[key] = points.xyz[:, axis]
    for key, values in points.fields.items():
        stored = _bytes_of_colour(values) if key == "rgb" else _storable(values)
        if stored is None:
            continue
        flat = stored.reshape(len(stored), -1)
        plain = re.sub(r"[^\w-]", "_", key) or "field"
        names = _NAMES.get(key, ()) if flat.shape[1] == 3 else ()
        for column in range(flat.shape[1]):
            name = names[column] if names else plain if stored.ndim == 1 else f"{plain}_{column}"
            while name in columns:
                name += "_"
            columns[name] = flat[:, column]
    dtype = np.dtype([(key, values.dtype.newbyteorder("<")) for key, values in columns.items()])
    table = np.empty(len(points), dtype)
    for key, values in columns.items():
        table[key] = values
    lines = ["ply", "format binary_little_endian 1.0", f"element vertex {len(points)}"]
    lines += [f"property {_TYPES[values.dtype.str[1:]]} {key}" for key, values in columns.items()]
    data = table.tobytes()
    if points.faces is not None:
        lines += [f"element face {len(points.faces)}", "property list uchar int vertex_indices"]
        faces = np.empty(len(points.faces), np.dtype([("n", "u1"), ("corners", "<i4", (3,))]))
        faces["n"], faces["corners"] = 3, points.faces
        data += faces.tobytes()
    return "\n".join([*lines, "end_header\n"]).encode("ascii", "replace") + data


def save_ply(points: Points, path: str | Path) -> Path:
    """Writes a cloud to a `.ply` file, whole or not at all; folders are made. See `encode_ply`.

    Returns:
        The path.

    Raises:
        DataError: If the suffix is another, or it cannot be written.
    """
    path = Path(path).expanduser()
    if path.suffix.lower() != ".ply":
        raise DataError(f"{path}: clouds are written as .ply")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, encode_ply(points))
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name.
        raise DataError(f"{path}: cannot be written ({getattr(error, 'strerror', None) or error})") from error
    return path


def _bytes_of_colour(values: np.ndarray) -> np.ndarray | None:
    if values.dtype.kind == "f":
        return np.rint(255 * np.nan_to_num(values).clip(0, 1)).astype(np.uint8)
    if values.dtype.kind == "u" and values.dtype.itemsize == 2:
        return (values >> 8).astype(np.uint8)
    return values if values.dtype == np.uint8 else _storable(values)


def _storable(values: np.ndarray) -> np.ndarray | None:
    """An array of a type that PLY has, or `None`."""
    if values.dtype.kind == "b":
        return values.astype(np.uint8)
    if values.dtype.kind not in "iuf":
        return None
    if values.dtype.str[1:] in _TYPES:
        return values
    if values.dtype.kind in "iu" and values.min(initial=0) >= -(2**31) and values.max(initial=0) < 2**31:
        return values.astype(np.int32)
    return values.astype(np.float32 if values.dtype.itemsize < 4 else np.float64)
