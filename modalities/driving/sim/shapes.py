"""The objects of a simulated scene: boxes in a frame with x forward, y left, z up, on the ground around the origin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from modalities.driving.sim.parts import GLASS, LIGHT, PAINT, STRIPES, Builder, Parts, Triple

__all__ = ["CATEGORIES", "Shape", "make_shape"]

CATEGORIES = {
    "car": "vehicle.car",
    "truck": "vehicle.truck",
    "bus": "vehicle.bus.rigid",
    "pedestrian": "human.pedestrian.adult",
    "bicycle": "vehicle.bicycle",
    "traffic_cone": "movable_object.trafficcone",
    "barrier": "movable_object.barrier",
}
"""Detection class -> raw category of nuScenes."""

_PAINTS: tuple[Triple, ...] = (
    (0.85, 0.85, 0.86),
    (0.62, 0.64, 0.66),
    (0.12, 0.12, 0.14),
    (0.30, 0.31, 0.33),
    (0.60, 0.10, 0.10),
    (0.10, 0.20, 0.50),
    (0.75, 0.62, 0.15),
    (0.15, 0.38, 0.25),
    (0.45, 0.30, 0.20),
    (0.80, 0.40, 0.10),
)
_DARK: Triple = (0.05, 0.05, 0.06)
_WINDOW: Triple = (0.12, 0.16, 0.20)
_WHITE: Triple = (1.0, 0.98, 0.9)
_RED: Triple = (0.85, 0.06, 0.05)
_SKIN: tuple[Triple, ...] = ((0.85, 0.66, 0.54), (0.62, 0.43, 0.32), (0.36, 0.24, 0.18))


@dataclass(frozen=True)
class Shape:
    """An object without a place.

    Attributes:
        name: Detection class.
        size: Length, width and height of its box, which is a little larger than what is in it.
        parts: Its boxes.
    """

    name: str
    size: Triple
    parts: Parts


def make_shape(name: str, rng: np.random.Generator, rider: bool = False) -> Shape:
    """Draws an object of a class of `CATEGORIES`; a bicycle may have a rider."""
    if name == "bicycle":
        return _bicycle(rng, rider)
    return _MAKERS[name](rng)


def _paint(rng: np.random.Generator, colours: tuple[Triple, ...] = _PAINTS) -> Triple:
    base = np.array(colours[rng.integers(len(colours))])
    r, g, b = (base * rng.uniform(0.8, 1.15) + rng.normal(0, 0.03, 3)).clip(0.02, 1).tolist()
    return r, g, b


def _finished(name: str, builder: Builder, size: Triple) -> Shape:
    """The box gets room around the parts, as annotators leave, so that noise of the lidar stays in it."""
    length, width, height = size
    return Shape(name, (length + 0.06, width + 0.06, height + 0.04), builder.parts())


def _wheels(builder: Builder, places: tuple[float, ...], width: float, radius: float) -> None:
    for x in places:
        for side in (-1, 1):
            y = side * (width / 2 - 0.13)
            builder.add((x - radius, x + radius), (y - 0.12, y + 0.12), (0, 2 * radius), _DARK)


def _lights(builder: Builder, front: float, back: float, width: float, z: float) -> None:
    for side in (-1, 1):
        y = side * width * 0.36
        for x, colour in ((front, _WHITE), (back, _RED)):
            builder.add((x - 0.03, x + 0.03), (y - 0.17, y + 0.17), (z - 0.09, z + 0.09), colour, LIGHT)


def _car(rng: np.random.Generator) -> Shape:
    kind = rng.choice(3, p=[0.45, 0.4, 0.15])  # saloon, estate, van
    length = float(rng.normal((4.6, 4.5, 5.0)[kind], 0.2))
    width = float(rng.normal(1.88, 0.06))
    height = float(rng.normal((1.47, 1.68, 1.95)[kind], 0.05))
    paint = _paint(rng)
    half, belt = length / 2, height * 0.57
    back, front = ((-0.38, 0.2), (-0.48, 0.2), (-0.49, 0.33))[kind]
    b = Builder()
    b.add((-half, half), (-width / 2, width / 2), (0.24, belt), paint)
    side = width * 0.44
    b.add((back * length, front * length), (-side, side), (belt, height - 0.07), _WINDOW, GLASS)
    b.add((back * length + 0.1, front * length - 0.3), (-side, side), (height - 0.07, height), paint)
    if kind == 2:  # no windows behind the doors
        b.add((back * length - 0.01, 0.05 * length), (-side - 0.01, side + 0.01), (belt, height - 0.05), paint)
    _wheels(b, (-0.3 * length, 0.31 * length), width, 0.32)
    _lights(b, half - 0.02, -half + 0.02, width, belt - 0.15)
    return _finished("car", b, (length, width, height))


def _truck(rng: np.random.Generator) -> Shape:
    length, width, height = float(rng.uniform(5.6, 9.5)), float(rng.uniform(2.2, 2.6)), float(rng.uniform(2.6, 3.6))
    paint, load = _paint(rng), _paint(rng, _PAINTS[:3] + _PAINTS[6:])
    half, cab = length / 2, float(rng.uniform(1.6, 2.1))
    top, side = height * rng.uniform(0.68, 0.85), width / 2
    b = Builder()
    b.add((half - cab, half), (-side * 0.94, side * 0.94), (0.45, top), paint)
    b.add((half - 0.8, half + 0.01), (-side * 0.95, side * 0.95), (top * 0.55, top * 0.88), _WINDOW, GLASS)
    b.add((-half, half - cab - 0.2), (-0.5, 0.5), (0.5, 0.9), _DARK)
    if rng.random() < 0.25:  # flat bed with a load
        b.add((-half, half - cab - 0.15), (-side, side), (0.9, 1.3), load)
        b.add((-half + 0.4, half - cab - 1.2), (-side * 0.8, side * 0.8), (1.3, height), _paint(rng))
    else:
        b.add((-half, half - cab - 0.15), (-side, side), (0.9, height), load)
    _wheels(b, (-half + 1.0, -half + 2.1, half - 1.1) if length > 7.5 else (-half + 1.2, half - 1.0), width, 0.47)
    _lights(b, half - 0.01, -half + 0.02, width, 0.8)
    return _finished("truck", b, (length, width, height))


def _bus(rng: np.random.Generator) -> Shape:
    length, width, height = float(rng.uniform(9.5, 12.5)), float(rng.uniform(2.6, 2.95)), float(rng.uniform(3.0, 3.6))
    paint, roof = _paint(rng), _paint(rng)
    half, side = length / 2, width / 2
    low, high = height * 0.42, height * 0.8
    b = Builder()
    b.add((-half, half), (-side, side), (0.35, low), paint)
    b.add((-half + 0.6, half), (-side * 0.98, side * 0.98), (low, high), _WINDOW, GLASS)
    b.add((-half, -half + 0.6), (-side * 0.98, side * 0.98), (low, high), paint)
    for x in np.arange(-half + 1.8, half - 1, 1.7).tolist():  # pillars between the windows
        b.add((x - 0.08, x + 0.08), (-side * 0.99, side * 0.99), (low, high), paint)
    b.add((-half, half), (-side, side), (high, height), roof)
    b.add((half - 0.1, half + 0.02), (-side * 0.7, side * 0.7), (high + 0.08, height - 0.12), (0.9, 0.6, 0.1), LIGHT)
    _wheels(b, (-half + 2.6, half - 2.4), width, 0.48)
    _lights(b, half, -half + 0.02, width, 0.75)
    return _finished("bus", b, (length, width, height))


def _person(b: Builder, rng: np.random.Generator, height: float, x: float, z: float, sitting: bool = False) -> None:
    """A body of `height` from the ground at `z`; legs are short and forward when it sits on a saddle."""
    scale = height / 1.75
    shirt, trousers, skin = _paint(rng), _paint(rng), _SKIN[rng.integers(len(_SKIN))]
    stride = float(rng.uniform(0.0, 0.22)) * scale
    hip = z + 0.82 * scale
    for side in (-1, 1):
        y, step = side * 0.1 * scale, 0.12 * scale if sitting else side * stride
        b.add((x + step - 0.08, x + step + 0.08), (y - 0.075, y + 0.075), (z, hip), trousers)
        arm = side * 0.25 * scale
        swing = 0.2 * scale if sitting else -step * 0.8
        b.add((x + swing - 0.06, x + swing + 0.06), (arm - 0.05, arm + 0.05), (hip, z + 1.4 * scale), shirt)
    b.add((x - 0.12, x + 0.12), (-0.2 * scale, 0.2 * scale), (hip, z + 1.47 * scale), shirt)
    b.add((x - 0.09, x + 0.1), (-0.085, 0.085), (z + 1.5 * scale, z + height), skin)
    b.add((x - 0.11, x + 0.03), (-0.09, 0.09), (z + 1.6 * scale, z + height), _DARK)
    if rng.random() < 0.35:  # a bag on the back, which shows where front is
        b.add((x - 0.27, x - 0.12), (-0.15, 0.15), (hip + 0.1, z + 1.4 * scale), _paint(rng))


def _pedestrian(rng: np.random.Generator) -> Shape:
    height = float(rng.uniform(1.1, 1.4) if rng.random() < 0.1 else rng.normal(1.73, 0.09))
    b = Builder()
    _person(b, rng, height, 0.0, 0.0)
    parts = b.parts()
    reach = (np.abs(parts.centre) + parts.half).max(0)
    return Shape("pedestrian", (2 * reach[0] + 0.1, 2 * reach[1] + 0.1, height + 0.04), parts)


def _bicycle(rng: np.random.Generator, rider: bool) -> Shape:
    length, height = float(rng.uniform(1.65, 1.85)), float(rng.uniform(1.0, 1.12))
    paint, half = _paint(rng), length / 2
    b = Builder()
    for x in (-half + 0.33, half - 0.33):
        for dx, dz in ((0.33, 0.14), (0.24, 0.24), (0.14, 0.33)):  # a disc out of three boxes
            b.add((x - dx, x + dx), (-0.03, 0.03), (0.33 - dz, 0.33 + dz), _DARK)
    b.add((-0.45, 0.5), (-0.035, 0.035), (0.48, 0.62), paint)
    b.add((half - 0.42, half - 0.36), (-0.28, 0.28), (height - 0.08, height), _DARK)
    b.add((half - 0.44, half - 0.36), (-0.03, 0.03), (0.6, height), paint)
    b.add((-0.35, -0.12), (-0.07, 0.07), (0.85, 0.94), _DARK)
    if rider:
        tall = float(rng.uniform(1.45, 1.65))
        _person(b, rng, tall, -0.12, 0.22, sitting=True)
        height = tall + 0.22
    return _finished("bicycle", b, (length, 0.62, height))


def _traffic_cone(rng: np.random.Generator) -> Shape:
    height, foot = float(rng.uniform(0.6, 0.95)), float(rng.uniform(0.17, 0.22))
    orange = _paint(rng, ((0.95, 0.35, 0.08), (0.9, 0.28, 0.12)))
    b = Builder()
    b.add((-foot, foot), (-foot, foot), (0, 0.06), _DARK if rng.random() < 0.5 else orange)
    for k in range(5):
        r, z = foot * (0.78 - 0.14 * k), 0.06 + (height - 0.06) * k / 5
        colour: Triple = (0.95, 0.95, 0.95) if k in (1, 3) else orange
        b.add((-r, r), (-r, r), (z, z + (height - 0.06) / 5), colour, reflectance=0.9 if k in (1, 3) else 0.5)
    return _finished("traffic_cone", b, (2 * foot, 2 * foot, height))


def _barrier(rng: np.random.Generator) -> Shape:
    """Its width is the long side, as in nuScenes."""
    width, height, depth = float(rng.uniform(1.7, 2.5)), float(rng.uniform(0.85, 1.1)), float(rng.uniform(0.4, 0.6))
    side, d = width / 2, depth / 2
    colours = ((0.9, 0.4, 0.1), (0.75, 0.12, 0.1), (0.85, 0.75, 0.1), (0.7, 0.7, 0.68))
    paint = _paint(rng, colours)
    b = Builder()
    if rng.random() < 0.5:  # blocks of plastic or concrete
        b.add((-d, d), (-side, side), (0, height * 0.35), paint, STRIPES)
        b.add((-d * 0.5, d * 0.5), (-side, side), (height * 0.35, height), paint, STRIPES)
    else:  # boards on feet
        for low in (0.35, 0.72):
            b.add((-0.04, 0.04), (-side, side), (height * low, height * (low + 0.25)), paint, STRIPES, 0.7)
        for y in (-side + 0.15, side - 0.15):
            b.add((-d, d), (y - 0.05, y + 0.05), (0, 0.08), _DARK)
            b.add((-0.05, 0.05), (y - 0.05, y + 0.05), (0.08, height), (0.6, 0.6, 0.6), PAINT)
    return _finished("barrier", b, (depth, width, height))


_MAKERS: dict[str, Callable[[np.random.Generator], Shape]] = {
    "car": _car,
    "truck": _truck,
    "bus": _bus,
    "pedestrian": _pedestrian,
    "traffic_cone": _traffic_cone,
    "barrier": _barrier,
}
