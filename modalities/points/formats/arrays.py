"""NumPy files: arrays by name in an .npz, one table (N, k) or one structured array in an .npy."""

from __future__ import annotations

from typing import BinaryIO

import numpy as np

from modalities.points.formats.base import Decoded, Options, from_columns, split_table
from zoo.errors import DataError
from zoo.npy import damage, read_array, read_members

__all__ = ["CLOUD_KEYS", "decode_npy", "decode_npz"]

CLOUD_KEYS = ("xyz", "coord", "coords", "points", "pos", "vertices")
_NAMES = {
    "color": "rgb",
    "colors": "rgb",
    "colour": "rgb",
    "normals": "normal",
    "labels": "label",
    "strength": "intensity",
}
_MAX_ROW = 2**10  # bytes of a point in one array


def decode_npz(file: BinaryIO, name: str, options: Options) -> Decoded:
    """Reads an .npz with an array `xyz` (or `coord`, `points`, `pos`, `vertices`) (N, 3), or x, y and z (N,).

    A table (N, k > 3) under such a name is x, y, z and `column_3`, ... Arrays of N rows beside it are fields; others
    are left out. Arrays of objects (pickles) are refused.
    """
    archive, headers = read_members(file, name)
    main = next((key for key in CLOUD_KEYS if key in headers), None)
    if main is None and not {"x", "y", "z"} <= set(headers):
        raise DataError(
            f"{name}: expected an array xyz (N, 3), or x, y and z; it holds {', '.join(list(headers)[:8]) or 'none'}"
        )
    shape = headers[main or "x"][0]
    if not shape or (main is not None and (len(shape) != 2 or shape[1] < 3)):
        raise DataError(f"{name}: {main or 'x'} must be {'(N, 3)' if main else '(N,)'}, not {shape}")
    count = options.check_count(shape[0], name)
    arrays = {}
    for key, (rows, dtype) in headers.items():
        if len(rows) in (1, 2) and rows[0] == count and dtype.kind in "iufb":
            with damage(name, key), archive.open(f"{key}.npy") as stream:
                arrays[key] = read_array(stream, name, key, max_bytes=count * _MAX_ROW)
    if main is None:
        return from_columns({_NAMES.get(key, key): values for key, values in arrays.items()}, name)
    decoded = _table(arrays.pop(main, np.empty((count, 0))), main, name)
    for key, values in arrays.items():
        target = _NAMES.get(key, key)
        decoded.fields[target if target not in decoded.fields else key] = values
    return decoded


def decode_npy(file: BinaryIO, name: str, options: Options) -> Decoded:
    """Reads one array: (N, 3), (N, k) with `column_3`, ... behind x, y, z, or structured with x, y and z."""
    table = read_array(file, name, "the array", max_bytes=options.max_points * _MAX_ROW)
    if table.ndim and table.dtype.names:
        options.check_count(len(table), name)
        if table.ndim != 1:
            raise DataError(f"{name}: a structured array must be (N,), not {table.shape}")
        return from_columns(split_table(table), name)
    if table.ndim != 2 or table.shape[1] < 3:
        raise DataError(f"{name}: expected an array (N, 3) of points, not {table.shape}")
    options.check_count(len(table), name)
    return _table(table, "the array", name)


def _table(table: np.ndarray, key: str, name: str) -> Decoded:
    if table.ndim != 2 or table.shape[1] < 3 or table.dtype.kind not in "iuf":
        raise DataError(f"{name}: {key} must be numbers (N, 3), not {table.dtype} {table.shape}")
    fields = {f"column_{index}": np.ascontiguousarray(table[:, index]) for index in range(3, table.shape[1])}
    return Decoded(table[:, :3].astype(np.float64), fields)
