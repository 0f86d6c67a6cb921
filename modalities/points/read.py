"""Reads point files of every format through one door.

What is wrong with a file is stated, never guessed away:

- An empty file, a damaged header, another kind of file, a count beyond `max_points`: `DataError`, whatever `errors`
  says, and before memory is taken for what the header claims.
- Truncated or damaged later on: `DataError`; with `errors="keep"` the points before it, and a warning. Compressed
  points (PCD) are there as a whole or not at all.
- A header without points: `DataError`; with `errors="keep"` no points, and a warning.
- A point whose coordinate is NaN or infinite (no return of a laser, a hole in an organised cloud): `DataError`; with
  `errors="keep"` it is dropped, and a warning says how many. Other fields may be NaN.
- One point is a cloud. Large coordinates (UTM metres) keep all that float64 holds: nothing is subtracted here.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from modalities.points.formats import HEAD, decoder, detect
from modalities.points.formats.base import MAX_POINTS, Decoded, Options
from modalities.points.points import Points
from zoo.errors import ConfigError, DataError

__all__ = ["MAX_POINTS", "as_points", "read_points"]


def read_points(
    value: Any,
    *,
    name: str = "bytes",
    path: Path | None = None,
    errors: str = "raise",
    format: str | None = None,
    **options: Any,
) -> Points:
    """Reads a point file; `zoo.read` is the public door.

    Args:
        value: A `Path` or bytes; an array (N, 3) or (N, k > 3); `Points`, which are only checked.
        name: What errors call it.
        path: The file it came from.
        errors: `"raise"`, or `"keep"` what can be decoded; see the module.
        format: One of `modalities.points.formats.FORMATS`; `None` decides by content, then by suffix.
        **options: `max_points`, and `columns` of text; see `modalities.points.formats.base.Options`.

    Raises:
        DataError: As the module says; names the source.
        ConfigError: If an option is not known or has no such value.
    """
    if errors not in ("raise", "keep"):
        raise ConfigError(f'errors must be "raise" or "keep", not {errors!r}')
    try:
        chosen = Options(**options)
    except TypeError:
        known = list(Options.__dataclass_fields__)
        wrong = ", ".join(sorted(set(options) - set(known)))
        raise ConfigError(f"options of point files are {', '.join(known)} and format, not {wrong}") from None
    decode = None if format is None else decoder(format)
    if isinstance(value, Points):
        return _checked(Decoded(value.xyz, dict(value.fields), value.faces), value, errors)
    if not isinstance(value, (Path, bytes)):
        return as_points(value, name=name, errors=errors)
    with _opened(value, name) as file:
        head = file.read(HEAD)
        if not head:
            raise DataError(f"{name}: the file is empty")
        file.seek(0)
        known_as = Path(name.partition("?")[0]).name.lower()  # Bytes may come from an address.
        form = format or detect(head, known_as, name)
        try:
            decoded: Decoded = (decode or decoder(form))(file, name, chosen)
        except OSError as error:
            raise DataError(f"{name}: cannot be read ({error.strerror or error})") from error
    blank = Points(np.empty((0, 3)), name=name, path=path, format=form)
    return _checked(decoded, blank, errors)


def as_points(values: Any, *, name: str = "array", errors: str = "raise") -> Points:
    """Points of an array or tensor (N, 3) or (N, k): x, y, z, then the fields `column_3`, `column_4`, ...

    Raises:
        DataError: If it is nothing of this kind.
    """
    array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    if array.ndim != 2 or array.shape[1] < 3 or array.dtype.kind not in "iuf":
        raise DataError(
            f"{name}: a {type(values).__name__} of {array.dtype} {array.shape} is no cloud; pass a path, bytes, Points "
            "or an array (N, 3)"
        )
    fields = {f"column_{index}": array[:, index].copy() for index in range(3, array.shape[1])}
    return _checked(Decoded(array[:, :3].astype(np.float64), fields), Points(np.empty((0, 3)), name=name), errors)


def _opened(value: Path | bytes, name: str) -> contextlib.AbstractContextManager[BinaryIO]:
    if isinstance(value, bytes):
        return io.BytesIO(value)
    try:
        return value.open("rb")
    except OSError as error:
        raise DataError(f"{name}: cannot be opened ({error.strerror or error})") from error


def _checked(decoded: Decoded, about: Points, errors: str) -> Points:
    """The checks that hold for every format."""
    name, keep = about.name, errors == "keep"
    notes = []
    if decoded.damage is not None:
        if not keep:
            raise DataError(f'{decoded.damage}; errors="keep" reads what is there')
        notes.append(f"{decoded.damage}; the {len(decoded.xyz)} points before it are kept")
    elif not len(decoded.xyz):
        if not keep:
            raise DataError(f'{name}: holds no points; errors="keep" gives none')
        notes.append(f"{name}: holds no points")
    finite = np.isfinite(decoded.xyz).all(axis=1)
    xyz, fields, faces = decoded.xyz, decoded.fields, decoded.faces
    if not finite.all():
        bad = int((~finite).sum())
        if not keep:
            first = int(finite.argmin())
            raise DataError(
                f"{name}: {bad} of {len(xyz)} points have NaN or infinite coordinates, first point {first}: "
                f'{xyz[first].tolist()}; errors="keep" drops them'
            )
        notes.append(f"{name}: {bad} points with NaN or infinite coordinates were dropped")
        xyz, fields = xyz[finite], {key: values[finite] for key, values in fields.items()}
        if faces is not None:  # Faces of dropped corners go too, the others follow their corners.
            faces = (np.cumsum(finite) - 1)[faces[finite[faces].all(axis=1)]]
    for note in notes:
        warnings.warn(note, stacklevel=3)
    return Points(
        xyz,
        fields,
        name=name,
        path=about.path,
        format=about.format,
        faces=faces,
        info=decoded.info or about.info,
        truncated=decoded.damage is not None or about.truncated,
    )
