"""An interactive page of a cloud: one HTML file that loads nothing else, with a small WebGL viewer."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from modalities.points.colours import choices, colouring, scale
from modalities.points.points import Points
from modalities.points.viz import chosen_points
from zoo.errors import ConfigError, DataError
from zoo.files import write_whole
from zoo.pages import fill_page
from zoo.results import one_line

__all__ = ["MAX_FIELDS", "page", "save_page"]

MAX_FIELDS = 12
"""Most fields that a page offers."""
_STEPS = 32767


def page(
    points: Points,
    by: str | None = None,
    *,
    names: Sequence[str] | None = None,
    title: str | None = None,
    max_points: int = 300_000,
    seed: int = 0,
) -> str:
    """A page that shows a cloud: drag to turn, wheel to zoom, shift and drag to move, choose what colours it.

    Coordinates are stored relative to the middle of the cloud in 16 bits (steps of 1/65,534 of its largest extent),
    fields in 8 bits, so that a point takes six bytes and one for each field (colour three), a third more as text.

    Args:
        points: The cloud.
        by: What it is coloured by at first; see `modalities.points.viz.draw_points`.
        names: Names of the classes of `label`.
        title: Heading; by default the name of the cloud.
        max_points: Of larger clouds so many are drawn at random, which the page says.
        seed: Of that draw.

    Returns:
        The HTML text; text from files stands in it as text, whatever it holds.

    Raises:
        DataError: If there are no points.
        ConfigError: If the field is not known.
    """
    if not len(points):
        raise DataError(f"{points.name}: no points to show")
    shown = chosen_points(points, max_points, seed)
    first = colouring(shown, by, names=names).name  # Says what is wrong with `by`.
    low, high = points.bounds
    middle, half = low + (high - low) / 2, float((high - low).max() / 2) or 1.0
    steps = np.rint((shown.xyz - middle) / half * _STEPS).astype("<i2")
    order = [first, *(name for name in choices(shown) if name != first)][:MAX_FIELDS]
    heading = one_line(title or points.name)
    data: dict[str, Any] = {
        "title": heading,
        "count": len(shown),
        "total": len(points),
        "seed": seed,
        "half": half,
        "middle": [float(value) for value in middle],
        "xyz": _text(steps),
        "scale": _text(scale()),
        "fields": [_field(shown, name, names) for name in order],
    }
    return fill_page("modalities.points", "viewer.html", title=heading, data=data)


def save_page(points: Points, path: str | Path, by: str | None = None, **options: Any) -> Path:
    """Writes `page` to an `.html` file, whole or not at all, and returns its path.

    Raises:
        ConfigError: If the suffix is another or the folder does not exist.
        DataError: If there are no points.
    """
    path = Path(path).expanduser()
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"{path}: pages are written as .html")
    text = page(points, by, **options)
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: the folder {path.parent} does not exist")
    try:
        write_whole(path, text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror or error})") from error
    return path


def _field(points: Points, name: str, names: Sequence[str] | None) -> dict[str, Any]:
    made = colouring(points, name, names=names)
    entry: dict[str, Any] = {"name": one_line(name)}
    if made.values is None:
        return entry | {"kind": "rgb", "data": _text(made.rgb)}
    if made.classes:
        classes = [[one_line(label), list(colour), count] for label, colour, count in made.classes]
        return entry | {"kind": "class", "classes": classes, "data": _text(made.values)}
    return entry | {"kind": "number", "span": list(made.span or (0.0, 0.0)), "data": _text(made.values)}


def _text(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")
