"""Line and bar charts as SVG, drawn when the site is built; colours come from the style sheet, light or dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from zoo.site.markup import Html, join, tag

__all__ = ["COLOURS", "Series", "bar_chart", "line_chart", "swatch"]

COLOURS = 8
_DASHES = (None, "6 4", "2 3", "9 3 2 3", "1 4", "12 4")
_WIDTH, _LEFT, _RIGHT = 720, 52, 20


@dataclass(frozen=True)
class Series:
    """A line of a chart.

    Attributes:
        name: As the reader knows it.
        key: Of the element, by which a script finds it.
        values: By place on the horizontal axis.
        style: Number of its look: colours first, then dashes.
        shown: Whether it is visible at first.
    """

    name: str
    key: str
    values: Mapping[float, float]
    style: int = 0
    shown: bool = True


def swatch(style: int) -> Html:
    """A short piece of the line of a series, for its name."""
    line = tag("line", x1=1, y1=7, x2=27, y2=7, stroke_dasharray=_dash(style))
    dot = tag("circle", cx=14, cy=7, r=3)
    return tag("svg", line, dot, class_=f"swatch {_colour(style)}", viewBox="0 0 28 14", aria_hidden="true")


def line_chart(series: Sequence[Series], *, name: str, title: str, about: str, x_label: str, y_label: str) -> Html:
    """Lines over a common axis.

    Args:
        series: The lines.
        name: Start of the ids in it; one on each page.
        title: Name of the picture for readers who cannot see it.
        about: What it shows, for the same.
        x_label: Below the horizontal axis.
        y_label: Above the vertical axis.
    """
    height, top, bottom = 400, 34, 46
    places = sorted({place for one in series for place in one.values})
    low, high = _bounds([value for one in series for value in one.values.values()])
    span = (places[-1] - places[0]) or 1.0

    def x_of(place: float) -> float:
        return round(_LEFT + (place - places[0]) / span * (_WIDTH - _LEFT - _RIGHT), 1)

    def y_of(value: float) -> float:
        return round(top + (high - value) / (high - low) * (height - top - bottom), 1)

    parts = [tag("text", y_label, x=4, y=16, class_="label")]
    for tick in _ticks(low, high):
        parts.append(tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y_of(tick), y2=y_of(tick), class_="grid"))
        parts.append(tag("text", f"{tick:g}", x=_LEFT - 8, y=y_of(tick) + 4, text_anchor="end"))
    for place in places:
        parts.append(tag("line", x1=x_of(place), x2=x_of(place), y1=top, y2=height - bottom, class_="grid"))
        parts.append(tag("text", f"{place:g}", x=x_of(place), y=height - bottom + 18, text_anchor="middle"))
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(tag("text", x_label, x=middle, y=height - 6, text_anchor="middle", class_="label"))
    for one in series:
        points = [(x_of(place), y_of(value)) for place, value in sorted(one.values.items())]
        drawn = "M" + " L".join(f"{x} {y}" for x, y in points)
        dots = [tag("circle", cx=x, cy=y, r=3.5) for x, y in points]
        shown = f"series {_colour(one.style)}" + ("" if one.shown else " off")
        path = tag("path", d=drawn, fill="none", stroke_dasharray=_dash(one.style))
        parts.append(tag("g", path, *dots, class_=shown, data_series=one.key))
    return _picture(parts, name, title, about, height)


def bar_chart(
    groups: Mapping[str, Sequence[float]], columns: Sequence[str], *, name: str, title: str, about: str, base: float
) -> Html:
    """Groups of horizontal bars with their numbers, and a line at a value to compare with.

    Args:
        groups: Name of a group -> a value for each column.
        columns: Names of the bars of a group, in the order of their colours.
        name: Start of the ids in it.
        title: Name of the picture for readers who cannot see it.
        about: What it shows, for the same.
        base: Where the line stands.
    """
    left, bar, gap, top = 96, 16, 12, 30
    step = bar * len(columns) + gap
    height = top + step * len(groups) + 8
    most = max(base, *(value for values in groups.values() for value in values))
    scale = (_WIDTH - left - 60) / (most * 1.02)
    parts, place = [], float(left)
    for column, label in zip(count(), columns):
        parts.append(tag("rect", x=place, y=6, width=11, height=11, class_=f"bar {_colour(column)}"))
        parts.append(tag("text", label, x=place + 16, y=16))
        place += 40 + 7 * len(label)
    for row, (group, values) in enumerate(groups.items()):
        y = top + row * step
        parts.append(tag("text", group, x=left - 10, y=y + (step - gap) / 2 + 4, text_anchor="end", class_="label"))
        for column, value in enumerate(values):
            at, width = y + column * bar, round(value * scale, 1)
            parts.append(tag("rect", x=left, y=at, width=width, height=bar - 2, class_=f"bar {_colour(column)}"))
            parts.append(tag("text", f"{value:.2f}", x=left + width + 6, y=at + bar - 4))
    line = round(left + base * scale, 1)
    parts.append(tag("line", x1=line, x2=line, y1=top - 6, y2=height - 6, class_="base"))
    return _picture(parts, name, title, about, height)


def _picture(parts: Sequence[Html], name: str, title: str, about: str, height: float) -> Html:
    words = [tag("title", title, id=f"{name}-title"), tag("desc", about, id=f"{name}-about")]
    return tag(
        "svg",
        join([*words, *parts]),
        class_="chart",
        id=name,
        viewBox=f"0 0 {_WIDTH} {height}",
        role="img",
        aria_labelledby=f"{name}-title",
        aria_describedby=f"{name}-about",
    )


def _colour(style: int) -> str:
    return f"c{style % COLOURS}"


def _dash(style: int) -> str | None:
    return _DASHES[style // COLOURS % len(_DASHES)]


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    """Multiples of ten around all values; of a narrow range multiples of five."""
    unit = 10 if max(values) - min(values) > 20 else 5
    low, high = unit * (min(values) // unit), unit * -(-max(values) // unit)
    return low, max(high, low + unit)


def _ticks(low: float, high: float) -> list[float]:
    step = 10 if high - low > 25 else 5
    return [low + step * number for number in range(int((high - low) / step) + 1)]
