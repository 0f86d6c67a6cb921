"""From a cloud as it was read to what a point model takes: normalised coordinates and scaled features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modalities.points.data_config import FEATURES, PointDataConfig
from zoo.errors import DataError

__all__ = ["FEATURE_UNIT", "make_features", "normalise"]

# Lengths of this many units become 1 in features of clouds that are not scaled to the unit box.
FEATURE_UNIT = 10.0
_MOST_RETURNS = 5


def normalise(xyz: NDArray[Any], how: str) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Moves and scales coordinates as `PointDataConfig.normalise` says, in float64.

    Args:
        xyz: (N, 3) coordinates, finite.
        how: A name of `NORMALISATIONS`. A cloud without extent keeps scale 1, an empty one stays empty.

    Returns:
        The coordinates (N, 3), and the origin (3,) and scale that lead back: original = normalised * scale + origin.

    Raises:
        DataError: If the shape is wrong or a coordinate is not finite.
    """
    points = np.asarray(xyz, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != 3:
        raise DataError(f"a cloud is (N, 3) coordinates, got {points.shape}")
    if not np.isfinite(points).all():
        raise DataError("a cloud has coordinates that are NaN or infinite: leave those points out")
    origin, scale = np.zeros(3), 1.0
    if len(points) and how != "none":
        low, high = points.min(axis=0), points.max(axis=0)
        origin = low + (high - low) / 2
        if how == "centre":
            origin[2] = low[2]
        else:
            scale = float((high - low).max() / 2) or 1.0
    return (points - origin) / scale, origin, scale


def make_features(
    xyz: NDArray[Any], fields: Mapping[str, NDArray[Any]], config: PointDataConfig
) -> NDArray[np.float32]:
    """Features of every point, in the order and scale that `PointDataConfig.feature_names` states.

    Args:
        xyz: (N, 3) normalised coordinates (after augmentation in training).
        fields: Further fields by name: `"rgb"` (N, 3), `"normal"` (N, 3), `"intensity"` (N,), and `"return"` (N, 2) of
            number and count. `"xyz"` and `"height"` follow from the coordinates.
        config: Which, and in what order.

    Returns:
        (N, `config.in_chans`) float32.

    Raises:
        DataError: If a field is absent or has the wrong shape.
    """
    unit = 1.0 if config.normalise == "unit-box" else FEATURE_UNIT
    columns = []
    for name in config.feature_names:
        if name == "xyz":
            made = xyz / unit
        elif name == "height":
            made = (xyz[:, 2:] - (xyz[:, 2].min() if len(xyz) else 0.0)) / unit
        else:
            made = _scaled(name, _field(name, fields, len(xyz)))
        columns.append(np.asarray(made, dtype=np.float32))
    return np.concatenate(columns, axis=1)


def _field(name: str, fields: Mapping[str, NDArray[Any]], points: int) -> NDArray[Any]:
    if name not in fields:
        have = ", ".join(sorted(map(str, fields))) or "none"
        raise DataError(f"the model takes {name!r} of every point, which this cloud has not; it has: {have}")
    values = np.asarray(fields[name])
    values = values.reshape(len(values), -1)
    if values.shape != (points, FEATURES[name]):
        raise DataError(f"field {name!r} must be ({points}, {FEATURES[name]}), got {values.shape}")
    return values


def _scaled(name: str, values: NDArray[Any]) -> NDArray[Any]:
    whole = values.dtype.kind in "ui"
    if name == "normal":
        return values
    if name == "return":
        number, count = values[:, :1].astype(np.float64), np.maximum(values[:, 1:], 1).astype(np.float64)
        few = np.minimum(count, _MOST_RETURNS) - 1
        return np.concatenate([2 * np.clip(number / count, 0, 1) - 1, 2 * few / (_MOST_RETURNS - 1) - 1], axis=1)
    if name == "intensity" and whole:
        part = np.log1p(values.astype(np.float64)) / np.log(2.0**16)
    elif whole:
        part = values / float(np.iinfo(values.dtype).max)
    else:
        part = values.astype(np.float64)
    return np.clip(2 * part - 1, -1, 1)
