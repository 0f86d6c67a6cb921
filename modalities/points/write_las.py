"""Writes classes of points back into the LAS or LAZ file that they came from."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from modalities.points.colours import ASPRS
from modalities.points.points import Points
from zoo.errors import DataError, require
from zoo.files import write_whole

__all__ = ["LAS_SUFFIXES", "las_codes", "las_suffix", "save_las"]

LAS_SUFFIXES = (".las", ".laz")
_OWN = 64  # From here on codes are for users to define (LAS 1.4, table 17).
_MOST = 255
_FIVE_BITS = 31  # The largest code of point formats 0 to 5.
# What models call several classes of the standard together; vegetation as the one that most of its points have.
_TOGETHER = {"vegetation": 5, "noise": 7}
_CODES = {name: code for code, name in ASPRS.items()} | _TOGETHER


def las_codes(names: Sequence[str]) -> np.ndarray:
    """Classification codes of the classes of a model.

    Args:
        names: Of the classes, in the order of the model.

    Returns:
        uint8 (classes,): the code of the standard (LAS 1.4, table 17) for a class of that name, "vegetation" as high
        vegetation (5) and "noise" as low noise (7); 64 + index for other names, as codes from there on are free.

    Raises:
        DataError: If there are more classes than codes.
    """
    codes = [_CODES.get(name.strip().lower().replace("_", " "), _OWN + index) for index, name in enumerate(names)]
    if max(codes, default=0) > _MOST:
        raise DataError(f"LAS has codes up to {_MOST}, too few for {len(names)} classes; save .ply or .npz instead")
    return np.array(codes, np.uint8)


def las_suffix(points: Points, names: Sequence[str]) -> str | None:
    """The suffix of the file that a cloud was read from if classes can be written into a copy of it, else `None`."""
    try:
        _check(points, names)
    except DataError:
        return None
    return None if points.path is None else points.path.suffix.lower()


def _check(points: Points, names: Sequence[str]) -> np.ndarray:
    """The codes of the classes, if the file that the cloud was read from can take them; else a `DataError`."""
    codes = las_codes(names)
    if points.path is None or points.path.suffix.lower() not in LAS_SUFFIXES or points.truncated:
        raise DataError(
            f"{points.name}: classes are written as .las or .laz into a copy of the file that was read, which must be "
            "a LAS or LAZ file on this machine, and whole; save .ply or .npz instead"
        )
    form = int(points.info.get("point_format", 6))
    if form < 6 and codes.max(initial=0) > _FIVE_BITS:
        raise DataError(
            f"{points.name}: its point format {form} has codes up to {_FIVE_BITS}, too few for these classes; save "
            ".ply or .npz instead"
        )
    return codes


def save_las(points: Points, indices: np.ndarray, scores: np.ndarray, names: Sequence[str], path: Path) -> Path:
    """Writes a copy of the file that a cloud was read from, with new classification codes.

    Coordinates, other dimensions and records such as the coordinate system stay as they are; the classification is
    replaced (see `las_codes`), and the scores are added as the extra dimension `score`.

    Args:
        points: As read from a LAS or LAZ file.
        indices: whole numbers (N,): class of each point.
        scores: float32 (N,): probability of that class.
        names: Of the classes.
        path: `.las`, or `.laz` to compress; its folder must exist.

    Returns:
        The path.

    Raises:
        DataError: If the cloud is not from such a file, the file is no longer the same, or it has no room for the
            codes.
        MissingDependencyError: If laspy or, for LAZ, lazrs is not installed.
        OSError: If the file cannot be written.
    """
    codes = _check(points, names)[indices]
    laspy = require("laspy", "points")
    source, compress = Path(str(points.path)), path.suffix.lower() == ".laz"
    if compress or source.suffix.lower() == ".laz":
        require("lazrs", "points")
    try:
        file = laspy.read(source, laz_backend=laspy.LazBackend.Lazrs)
        same = len(file.points) == len(points) and np.array_equal(np.asarray(file.xyz), points.xyz)
    except Exception as error:  # What laspy and lazrs raise of a file that was changed is of many kinds.
        raise DataError(f"{source}: can no longer be read ({' '.join(str(error).split())[:100]})") from error
    if not same:
        raise DataError(f"{source}: does not hold the points of this cloud (any more)")
    added = "score"
    while added in file.point_format.dimension_names:
        added += "_"
    file.add_extra_dim(laspy.ExtraBytesParams(added, np.float32, "probability of the class"))
    file.classification = codes
    file[added] = scores.astype(np.float32)
    buffer = io.BytesIO()
    file.write(buffer, do_compress=compress, laz_backend=laspy.LazBackend.Lazrs)
    write_whole(path, buffer.getvalue())
    return path
