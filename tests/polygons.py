"""Areas of convex polygons by clipping one with the edges of the other: the reference for overlaps of turned boxes."""

from __future__ import annotations

import math

Point = tuple[float, float]


def rectangle(x: float, y: float, length: float, width: float, yaw: float) -> list[Point]:
    """Corners counter-clockwise."""
    cos, sin = math.cos(yaw), math.sin(yaw)
    local = [(length / 2, width / 2), (-length / 2, width / 2), (-length / 2, -width / 2), (length / 2, -width / 2)]
    return [(x + a * cos - b * sin, y + a * sin + b * cos) for a, b in local]


def clip(polygon: list[Point], start: Point, stop: Point) -> list[Point]:
    """What lies left of the line from start to stop."""

    def side(point: Point) -> float:
        return (stop[0] - start[0]) * (point[1] - start[1]) - (stop[1] - start[1]) * (point[0] - start[0])

    kept: list[Point] = []
    for here, there in zip(polygon, polygon[1:] + polygon[:1], strict=True):
        a, b = side(here), side(there)
        if a >= 0:
            kept.append(here)
        if (a > 0 > b) or (a < 0 < b):
            share = a / (a - b)
            kept.append((here[0] + share * (there[0] - here[0]), here[1] + share * (there[1] - here[1])))
    return kept


def area(polygon: list[Point]) -> float:
    """By the shoelace formula."""
    pairs = zip(polygon, polygon[1:] + polygon[:1], strict=True)
    return abs(sum(a[0] * b[1] - a[1] * b[0] for a, b in pairs)) / 2


def intersection(first: list[Point], second: list[Point]) -> float:
    """Area common to two convex polygons given counter-clockwise."""
    for start, stop in zip(second, second[1:] + second[:1], strict=True):
        first = clip(first, start, stop)
    return area(first)
