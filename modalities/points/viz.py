"""Pictures of clouds: coloured by class or field, seen along a direction, nearer points over farther ones."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from modalities.points.colours import colouring, scale
from modalities.points.points import Points
from zoo.errors import ConfigError, DataError, require
from zoo.results import one_line
from zoo.viz import INK, new_figure, style

if TYPE_CHECKING:
    import PIL.Image
    from matplotlib.figure import Figure

__all__ = ["VIEWS", "chosen_points", "draw_points", "parse_view", "project", "to_picture"]

VIEWS = {"iso": (45.0, 30.0), "top": (-90.0, 90.0), "front": (0.0, 0.0), "side": (90.0, 0.0)}
"""Azimuth and elevation in degrees of where one looks from; at azimuth 0 the x axis comes towards the eye.

From above it is as on a map: x to the right, y up."""
_MOST_NAMES = 24  # in a legend
_LONGEST_NAME = 40


def chosen_points(points: Points, most: int, seed: int = 0) -> Points:
    """At most so many points, drawn at random without replacement, in the order of the cloud."""
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise ConfigError(f"the most points to show must be a positive whole number, not {most!r:.40}")
    if len(points) <= most:
        return points
    index = np.sort(np.random.default_rng(seed).choice(len(points), most, replace=False))
    return points[index]


def project(xyz: np.ndarray, azimuth: float, elevation: float) -> tuple[np.ndarray, np.ndarray]:
    """Looks at points from far away; z is up.

    Args:
        xyz: float64 (N, 3).
        azimuth: Degrees from the x axis towards y of the direction from which one looks.
        elevation: Degrees above the horizon.

    Returns:
        (N, 2): rightwards and upwards in the unit of xyz; and (N,): nearness, larger in front.
    """
    a, e = math.radians(azimuth), math.radians(elevation)
    right = np.array([-math.sin(a), math.cos(a), 0])
    toward = np.array([math.cos(e) * math.cos(a), math.cos(e) * math.sin(a), math.sin(e)])
    return np.stack([xyz @ right, xyz @ np.cross(toward, right)], axis=1), xyz @ toward


def draw_points(
    points: Points,
    by: str | None = None,
    *,
    view: str | tuple[float, float] = "iso",
    names: Sequence[str] | None = None,
    title: str | None = None,
    max_points: int = 200_000,
    seed: int = 0,
    inches: tuple[float, float] = (8.0, 6.0),
) -> Figure:
    """Draws a cloud; one unit is as long along every axis.

    Args:
        points: The cloud.
        by: What it is coloured by, see `modalities.points.colours.choices`; by default labels, else the colour of the
            file, else the first field, else height.
        view: A name of `VIEWS`, or (azimuth, elevation) in degrees.
        names: Names of the classes of `label`.
        title: Heading; by default the name of the cloud and how many points are shown.
        max_points: Of larger clouds so many are drawn at random.
        seed: Of that draw.
        inches: Width and height; 150 pixels an inch.

    Raises:
        DataError: If there are no points.
        ConfigError: If the view or field is not known.
        MissingDependencyError: If matplotlib is not installed.
    """
    if not len(points):
        raise DataError(f"{points.name}: no points to draw")
    shown = chosen_points(points, max_points, seed)
    azimuth, elevation = _angles(view)
    made = colouring(shown, by, names=names)
    flat, nearness = project(shown.xyz - points.bounds.mean(axis=0), azimuth, elevation)
    order = np.argsort(nearness, kind="stable")  # Painted from back to front.
    with style():
        figure = new_figure(inches)
        axes = figure.subplots()
        # A point is as large as its share of the area, within what can be seen.
        area = float(np.clip(4e4 / len(shown), 0.4, 40))
        axes.scatter(
            flat[order, 0], flat[order, 1], s=area, c=made.rgb[order] / 255, linewidths=0, marker="o", rasterized=True
        )
        axes.set_aspect("equal")
        axes.margins(0.03)
        axes.axis("off")
        _triad(axes, azimuth, elevation)
        if made.classes:
            _legend(figure, made.classes)
        elif made.span is not None:
            _bar(figure, axes, made.name, made.span)
        part = "" if len(shown) == len(points) else f"{len(shown):,} of "
        heading = title or f"{one_line(points.name)}: {part}{len(points):,} points, by {one_line(made.name)}"
        _heading(figure, heading if len(heading) <= 90 else heading[:40] + " … " + heading[-46:], inches[0])
    return figure


def parse_view(text: str) -> str | tuple[float, float]:
    """Reads a name of `VIEWS`, or `"AZIMUTH,ELEVATION"` in degrees.

    Raises:
        ConfigError: If it is neither.
    """
    if text in VIEWS:
        return text
    try:
        azimuth, elevation = (float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"a view is {', '.join(VIEWS)} or AZIMUTH,ELEVATION in degrees, not {text!r:.60}") from None
    return _angles((azimuth, elevation))


def to_picture(figure: Figure) -> PIL.Image.Image:
    """A figure as an RGB picture."""
    from PIL import Image

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", facecolor="white")
    return Image.open(buffer).convert("RGB")


def _angles(view: str | tuple[float, float]) -> tuple[float, float]:
    if isinstance(view, str):
        if view not in VIEWS:
            raise ConfigError(f"view must be one of {', '.join(VIEWS)}, or azimuth and elevation, not {view!r:.60}")
        return VIEWS[view]
    azimuth, elevation = view
    if not (math.isfinite(azimuth) and -90 <= elevation <= 90):
        raise ConfigError(f"a view is an azimuth and an elevation of -90 to 90 degrees, not {view!r:.60}")
    return float(azimuth), float(elevation)


def _heading(figure: Figure, text: str, width: float) -> None:
    """Puts a heading over the whole figure, so that it neither hangs over a narrow cloud nor is cut off."""
    # A letter is about 0.6 of the size wide, which is in 72nds of an inch.
    size = min(12.0, 72 * width / max(1, 0.6 * len(text)))
    figure.suptitle(text, x=0.01, ha="left", fontsize=size, color=INK)


def _triad(axes: object, azimuth: float, elevation: float) -> None:
    """Small arrows of the axes in the corner below left."""
    flat, _ = project(np.eye(3), azimuth, elevation)
    for axis, (right, up) in zip("xyz", flat, strict=True):
        if math.hypot(right, up) < 0.1:  # It points at the eye.
            continue
        axes.annotate(  # type: ignore[attr-defined]
            axis,
            (0.06, 0.07),
            xytext=(32 * right, 32 * up),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=8,
            color=INK,
            arrowprops={"arrowstyle": "<-", "color": INK, "linewidth": 0.8, "shrinkA": 4, "shrinkB": 0},
        )


def _legend(figure: Figure, classes: Sequence[tuple[str, tuple[int, int, int], int]]) -> None:
    lines = require("matplotlib.lines", extra="viz")
    handles = [
        lines.Line2D(
            [],
            [],
            linestyle="none",
            marker="o",
            color=tuple(part / 255 for part in colour),
            label=f"{one_line(label)[:_LONGEST_NAME]} ({count:,})",
        )
        for label, colour, count in classes[:_MOST_NAMES]
    ]
    rest = len(classes) - _MOST_NAMES
    figure.legend(
        handles=handles,
        loc="outside right upper",
        frameon=False,
        fontsize=8,
        title=f"and {rest} more" if rest > 0 else None,
    )


def _bar(figure: Figure, axes: object, name: str, span: tuple[float, float]) -> None:
    colors = require("matplotlib.colors", extra="viz")
    cm = require("matplotlib.cm", extra="viz")
    low, high = span if span[1] > span[0] else (span[0], span[0] + 1)
    mapped = cm.ScalarMappable(colors.Normalize(low, high), colors.ListedColormap(scale() / 255))
    figure.colorbar(mapped, ax=axes, shrink=0.6, aspect=25, label=one_line(name)[:_LONGEST_NAME])  # type: ignore[arg-type]
