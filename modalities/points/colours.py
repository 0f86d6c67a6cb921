"""Colours of points: of classes, of numbers, and of what a file says."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from modalities.points.points import Points
from zoo.errors import ConfigError

__all__ = ["ASPRS", "CLASS_FIELDS", "Colouring", "choices", "class_colour", "class_colours", "colouring"]

# Okabe and Ito's colours, told apart with any colour vision, with brown for the yellow that is lost on white.
_CLASSES = ((0, 114, 178), (213, 94, 0), (0, 158, 115), (204, 121, 167), (230, 159, 0), (86, 180, 233), (140, 86, 75))
_IGNORED = (176, 176, 176)
CLASS_FIELDS = ("label", "classification", "segment", "instance")
"""Fields whose whole numbers are names, not amounts."""
_FEW = 256
ASPRS = {
    0: "never classified",
    1: "unclassified",
    2: "ground",
    3: "low vegetation",
    4: "medium vegetation",
    5: "high vegetation",
    6: "building",
    7: "low noise",
    8: "key point",
    9: "water",
    10: "rail",
    11: "road",
    12: "overlap",
    13: "wire guard",
    14: "wire",
    15: "tower",
    16: "wire connector",
    17: "bridge",
    18: "high noise",
    19: "overhead structure",
    20: "ignored ground",
    21: "snow",
    22: "temporal exclusion",
}
"""Names of the classification codes of LAS 1.4 (specification R15, table 17)."""
# What maps show in colours that are expected of it. Taken where all classes are among these, so that none is twice.
_MAPPED = {
    "never classified": (150, 150, 150),
    "unclassified": (176, 176, 176),
    "ground": (150, 105, 60),
    "low vegetation": (170, 205, 90),
    "medium vegetation": (85, 170, 70),
    "high vegetation": (0, 120, 60),
    "vegetation": (0, 140, 70),
    "building": (213, 94, 0),
    "low noise": (204, 0, 160),
    "water": (0, 114, 178),
    "bridge": (86, 80, 160),
    "high noise": (240, 120, 210),
}
# Anchors of a dark blue to yellow scale of rising lightness.
_SCALE = np.array(
    [[0, 32, 81], [34, 62, 108], [87, 92, 109], [127, 124, 117], [170, 159, 107], [215, 198, 81], [253, 234, 69]],
    np.float64,
)


@dataclass(frozen=True, eq=False)
class Colouring:
    """Points coloured by one field.

    Attributes:
        name: Of the field.
        rgb: uint8 (N, 3).
        classes: Of a field of names: (label, colour, points) of each that occurs, largest first; else empty.
        span: Of a field of numbers: values of the darkest and the brightest colour; else `None`.
        values: uint8 (N,): number of the class in `classes`, or place on the scale; `None` for colours of the file.
    """

    name: str
    rgb: np.ndarray
    classes: tuple[tuple[str, tuple[int, int, int], int], ...] = ()
    span: tuple[float, float] | None = None
    values: np.ndarray | None = None


def class_colour(index: int) -> tuple[int, int, int]:
    """Colour of a class: seven that anyone tells apart, then steps of the golden ratio around the hues."""
    if 0 <= index < len(_CLASSES):
        return _CLASSES[index]
    red, green, blue = colorsys.hsv_to_rgb(index * 0.618034 % 1, 0.55 + 0.3 * (index % 3 == 0), 0.85)
    return round(255 * red), round(255 * green), round(255 * blue)


def class_colours(names: Sequence[str]) -> list[tuple[int, int, int]]:
    """Colours of the classes of a model: those of maps (ground brown, vegetation green) where it knows nothing else."""
    if all(name in _MAPPED for name in names):
        return [_MAPPED[name] for name in names]
    return [class_colour(index) for index in range(len(names))]


def choices(points: Points) -> list[str]:
    """What a cloud can be coloured by, the most telling first: labels, colour of the file, fields, axes."""
    names = [key for key in points.fields if key in CLASS_FIELDS and points.fields[key].ndim == 1]
    names.sort(key=CLASS_FIELDS.index)
    names += [key for key in ("rgb",) if key in points.fields]
    names += [
        key
        for key, values in points.fields.items()
        if key not in names and values.ndim == 1 and values.dtype.kind in "iufb"
    ]
    return [*names, *(axis for axis in "zxy" if axis not in names)]


def colouring(
    points: Points, by: str | None = None, *, names: Sequence[str] | None = None, ignore: int = 255
) -> Colouring:
    """Colours points by a field.

    Args:
        points: The cloud.
        by: A name of `choices`; `None` takes the first.
        names: Of the classes, where the field holds labels.
        ignore: Label of points of no class; they are grey.

    Raises:
        ConfigError: If the cloud has no such field.
    """
    known = choices(points)
    by = known[0] if by is None else by
    if by not in known:
        raise ConfigError(f"{points.name}: cannot be coloured by {by!r:.60}; it has {', '.join(known[:20])}")
    if by == "rgb":
        return Colouring("rgb", _bytes(points.fields["rgb"]))
    values = points.xyz[:, "xyz".index(by)] if by in ("x", "y", "z") and by not in points.fields else points.fields[by]
    found = np.unique(values) if by in CLASS_FIELDS else None
    if found is not None and values.dtype.kind == "f" and not (np.isfinite(found) & (found == np.rint(found))).all():
        found = None  # Programs that store classes as floats store whole ones.
    if found is not None and len(found) <= _FEW:
        return _by_class(by, values, found, names, ignore)
    return _by_number(by, values)


def _by_class(by: str, values: np.ndarray, found: np.ndarray, names: Sequence[str] | None, ignore: int) -> Colouring:
    counts = [int((values == code).sum()) for code in found]
    order = sorted(range(len(found)), key=lambda place: -counts[place])
    palette_of = dict(enumerate(class_colours(names or ())))
    classes = []
    place_of = np.zeros(len(found), np.uint8)
    for place, index in enumerate(order):
        code = int(found[index])
        named = names is not None and 0 <= code < len(names)
        label = names[code] if named and names is not None else "ignored" if code == ignore else str(code)
        colour = _IGNORED if code == ignore and not named else palette_of.get(code, class_colour(code))
        if by == "classification" and not named:
            label = ASPRS.get(code, f"code {code}")
            colour = _MAPPED.get(label, class_colour(code))
        classes.append((label, colour, counts[index]))
        place_of[index] = place
    numbers = place_of[np.searchsorted(found, values)] if len(found) else np.empty(0, np.uint8)
    palette = np.array([colour for _, colour, _ in classes], np.uint8).reshape(-1, 3)
    return Colouring(by, palette[numbers], tuple(classes), values=numbers)


def _by_number(by: str, values: np.ndarray) -> Colouring:
    amounts = values.astype(np.float64)
    finite = amounts[np.isfinite(amounts)]
    # A few outliers would take all of the scale.
    low, high = (float(edge) for edge in np.quantile(finite, (0.01, 0.99))) if len(finite) else (0.0, 0.0)
    if high <= low and len(finite):
        low, high = float(finite.min()), float(finite.max())
    with np.errstate(all="ignore"):
        share = np.nan_to_num((amounts - low) / (high - low) if high > low else np.zeros_like(amounts), nan=0.0)
    scaled = np.rint(255 * share.clip(0, 1)).astype(np.uint8)
    return Colouring(by, scale()[scaled], span=(low, high), values=scaled)


def scale() -> np.ndarray:
    """The scale of numbers, uint8 (256, 3) from dark to bright."""
    places = np.linspace(0, len(_SCALE) - 1, 256)
    columns = [np.interp(places, np.arange(len(_SCALE)), _SCALE[:, channel]) for channel in range(3)]
    return np.rint(np.stack(columns, axis=1)).astype(np.uint8)


def _bytes(rgb: np.ndarray) -> np.ndarray:
    if rgb.dtype == np.uint8:
        return rgb
    if rgb.dtype.kind == "f":
        return np.rint(255 * np.nan_to_num(rgb).clip(0, 1)).astype(np.uint8)
    # Some files hold 8 bits in 16.
    return (rgb >> 8 if len(rgb) and rgb.max() > 255 else rgb).astype(np.uint8)
