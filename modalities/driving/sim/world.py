"""A simulated scene: a street with what stands and moves on it.

The frame of the scene has x along the street, y to its left, z up. The ground is a strip of planes along x, gently up
and down. One street may cross the other. Traffic keeps to the right.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from modalities.driving.sim.motion import Footprints, Motion, positions
from modalities.driving.sim.options import KEY_FRAME_US, DriveOptions
from modalities.driving.sim.parts import FOLIAGE, PAINT, WALL, Builder, Parts
from modalities.driving.sim.rig import SWEEP_US
from modalities.driving.sim.shapes import Shape
from modalities.driving.sim.street import Street
from modalities.driving.sim.traffic import Placed, place_ego, place_traffic

__all__ = ["Ground", "Look", "World", "make_world"]

_EGO_SIZE = (4.6, 2.0)
_EGO_AHEAD = 1.4  # the middle of the car before the ego origin, which is at the rear axle


@dataclass(frozen=True)
class Ground:
    """Heights along x.

    Attributes:
        x: (K,) places in ascending order; beyond them it is level.
        z: (K,) heights in metres.
    """

    x: np.ndarray
    z: np.ndarray

    def height(self, x: np.ndarray | float) -> np.ndarray:
        """Heights at places, of their shape, in metres."""
        return np.interp(x, self.x, self.z)

    def tilt(self, x: float) -> float:
        """Slope along x that a car stands on."""
        return float(self.height(x + 1.5) - self.height(x - 1.5)) / 3


@dataclass(frozen=True)
class Look:
    """Light and weather.

    Attributes:
        sun: Unit vector to the sun or the brightest part of the sky.
        ambient: Share of the light that has no direction.
        brightness: Of the whole picture, 1 by day.
        haze: Metres over which colours fade into the sky.
        sky: (2, 3) colours at the horizon and above.
        ground: (3, 3) colours of street, pavement and the rest.
        night: Whether lamps shine.
        rain: Whether it rains.
    """

    sun: np.ndarray
    ambient: float
    brightness: float
    haze: float
    sky: np.ndarray
    ground: np.ndarray
    night: bool
    rain: bool


@dataclass(frozen=True)
class World:
    """All that a scene is.

    Attributes:
        street: Where streets are.
        ground: Heights.
        look: Light and weather.
        ego: Way of the ego origin.
        shapes: Of the M objects.
        motions: float64 (M, 5), see `positions`.
        attributes: Of the M objects, "" for none.
        parts: Boxes of the objects, each in the frame of its object.
        static: Boxes of everything else, in the frame of the scene.
    """

    street: Street
    ground: Ground
    look: Look
    ego: Motion
    shapes: list[Shape]
    motions: np.ndarray
    attributes: list[str]
    parts: Parts
    static: Parts

    @property
    def sizes(self) -> np.ndarray:
        """float64 (M, 3): length, width, height of the objects."""
        return np.array([shape.size for shape in self.shapes]).reshape(-1, 3)

    def poses(self, t: float) -> np.ndarray:
        """float64 (M, 4): x, y, height of the ground, yaw of the objects at a time in seconds."""
        x, y, yaw = positions(self.motions, np.array(t)).T
        return np.stack([x, y, self.ground.height(x), yaw], 1)

    def boxes(self, t: float) -> np.ndarray:
        """float64 (M, 7): x, y, z of the middle, length, width, height, yaw at a time."""
        x, y, z, yaw = self.poses(t).T
        sizes = self.sizes
        # Two centimetres up: the ground is not in the box.
        return np.concatenate([np.stack([x, y, z + 0.02 + sizes[:, 2] / 2], 1), sizes, yaw[:, None]], 1)

    def at(self, t: float) -> Parts:
        """All boxes at a time, those of objects first."""
        x, y, z, yaw = self.poses(t).T
        moved = self.parts.placed(x, y, z, yaw)
        both = Parts.joined([moved, self.static])
        owner = np.concatenate([moved.owner, self.static.owner])
        return Parts(both.centre, both.half, both.yaw, both.colour, both.material, both.reflectance, owner)

    def ego_pose(self, t: float) -> np.ndarray:
        """float64 (4, 4) from the ego frame to the frame of the scene; the car lies on the slope."""
        x, y, yaw = self.ego.at(t).tolist()
        slope = self.ground.tilt(x)
        up = np.array([-slope, 0, 1]) / np.hypot(slope, 1)
        left = np.cross(up, (np.cos(yaw), np.sin(yaw), 0))
        left /= np.linalg.norm(left)
        pose = np.eye(4)
        pose[:3, :3] = np.stack([np.cross(left, up), left, up], 1)
        pose[:3, 3] = x, y, self.ground.height(x)
        return pose


def make_world(options: DriveOptions, rng: np.random.Generator) -> World:
    """Draws a scene; time 0 is its first key frame."""
    street = Street.drawn(rng)
    knots = np.arange(-160, 161, 40) + rng.uniform(-15, 15, 9)
    slopes = rng.uniform(-0.025, 0.025, 8) * (rng.random() < 0.7)
    ground = Ground(knots, np.concatenate([[0], np.cumsum(slopes * np.diff(knots))]))
    look = _look(options, rng)
    first, last = -(options.sweeps + 1) * SWEEP_US / 1e6, (options.frames - 1) * KEY_FRAME_US / 1e6
    free = Footprints(np.arange(first, last + 0.1, 0.1))
    ego = place_ego(street, rng)
    middle = Motion(*_ahead(ego, _EGO_AHEAD), ego.yaw, ego.speed, ego.turn)
    free.add(middle, *_EGO_SIZE)
    builder = Builder()
    _buildings(builder, street, ground, free, rng)
    placed: list[Placed] = place_traffic(street, ego, free, options.density, last, rng)
    _plants(builder, street, ground, free, rng)
    motions = np.array([[p.motion.x, p.motion.y, p.motion.yaw, p.motion.speed, p.motion.turn] for p in placed])
    empty = Builder().parts()
    return World(
        street,
        ground,
        look,
        ego,
        [p.shape for p in placed],
        motions.reshape(-1, 5),
        [p.attribute for p in placed],
        Parts.joined([p.shape.parts for p in placed]) if placed else empty,
        builder.parts(),
    )


def _ahead(motion: Motion, distance: float) -> tuple[float, float]:
    return motion.x + distance * np.cos(motion.yaw), motion.y + distance * np.sin(motion.yaw)


def _look(options: DriveOptions, rng: np.random.Generator) -> Look:
    night, rain = bool(rng.random() < options.night), bool(rng.random() < options.rain)
    cloudy = rain or rng.random() < 0.4
    azimuth, height = rng.uniform(-np.pi, np.pi), np.radians(rng.uniform(25, 70))
    sun = np.array([np.cos(azimuth) * np.cos(height), np.sin(azimuth) * np.cos(height), np.sin(height)])
    sky = np.array([[0.75, 0.76, 0.78], [0.66, 0.68, 0.72]] if cloudy else [[0.72, 0.80, 0.90], [0.32, 0.52, 0.82]])
    street = rng.uniform(0.26, 0.42)
    rest = np.array([[0.28, 0.36, 0.18], [0.42, 0.38, 0.30], [0.45, 0.45, 0.44]])[rng.integers(3)]
    ground = np.stack([np.full(3, street), np.full(3, street + 0.18), rest]) * (0.75 if rain else 1.0)
    return Look(
        sun,
        ambient=0.8 if cloudy or night else 0.5,
        brightness=0.22 if night else float(rng.uniform(0.85, 1.1)),
        haze=70.0 if rain else 350.0,
        sky=sky * (0.25 if night else 1.0),
        ground=(ground + rng.normal(0, 0.015, (3, 3))).clip(0.05, 0.9),
        night=night,
        rain=rain,
    )


def _buildings(b: Builder, street: Street, ground: Ground, free: Footprints, rng: np.random.Generator) -> None:
    """Rows of houses along both sides, and along the crossing street."""
    for side in (-1, 1):
        x = -130.0
        while x < 130:
            length, depth, height = rng.uniform(9, 28), rng.uniform(8, 16), rng.uniform(4, 22)
            y = side * (street.edge + rng.uniform(4, 18) + depth / 2)
            middle = x + length / 2
            clear = street.crossing is None or abs(middle - street.crossing) > street.crossing_edge + 3 + length / 2
            if clear and rng.random() < 0.8 and free.add(Motion(middle, y, 0.0), length, depth):
                colour = (rng.uniform(0.35, 0.85, 1) + rng.normal(0, 0.06, 3)).clip(0.1, 0.95).tolist()
                z = float(ground.height(middle))
                b.add(
                    (x, x + length),
                    (y - depth / 2, y + depth / 2),
                    (z - 1.5, z + height),
                    (colour[0], colour[1], colour[2]),
                    WALL,
                    float(rng.uniform(0.15, 0.5)),
                )
            x += length + rng.uniform(2, 14)


def _plants(b: Builder, street: Street, ground: Ground, free: Footprints, rng: np.random.Generator) -> None:
    """Trees, bushes, poles and boxes on the pavement, which are clutter: of no class."""
    for _ in range(int(rng.integers(14, 40))):
        x = float(rng.uniform(-80, 80))
        y = float(rng.choice((-1, 1)) * (street.half + rng.choice((0.5, rng.uniform(0.5, 14)))))
        kind, yaw = rng.random(), float(rng.uniform(0, np.pi))
        foot = 0.4 if kind < 0.6 else 1.3
        if street.on_road(x, y) or not free.add(Motion(x, y, yaw), foot, foot):
            continue
        z = float(ground.height(x))
        if kind < 0.6:
            _pole_or_tree(b, x, y, z, yaw, kind < 0.25, rng)
        else:
            height, grey = float(rng.uniform(0.5, 1.7)), float(rng.uniform(0.2, 0.6))
            wide, deep = float(rng.uniform(0.3, 0.65)), float(rng.uniform(0.3, 0.65))
            bush = kind < 0.85
            colour = (0.14, 0.28, 0.08) if bush else (grey, grey, grey * 0.95)
            b.add(
                (x - wide, x + wide), (y - deep, y + deep), (z, z + height), colour, FOLIAGE if bush else PAINT, yaw=yaw
            )


def _pole_or_tree(b: Builder, x: float, y: float, z: float, yaw: float, pole: bool, rng: np.random.Generator) -> None:
    height = float(rng.uniform(4, 8))
    r = 0.07 if pole else float(rng.uniform(0.1, 0.2))
    colour = (0.45, 0.45, 0.47) if pole else (0.27, 0.2, 0.14)
    b.add((x - r, x + r), (y - r, y + r), (z, z + height), colour, yaw=yaw)
    if pole:
        w = float(rng.uniform(0.2, 0.5))
        b.add((x - 0.04, x + 0.04), (y - w, y + w), (z + 2.3, z + 2.3 + w), _sign(rng), yaw=yaw)
        return
    for _ in range(3):
        dx, dy = rng.normal(0, 0.5, 2).tolist()
        size = float(rng.uniform(0.7, 1.5))
        low = z + height * float(rng.uniform(0.45, 0.75))
        green = (0.12, float(rng.uniform(0.22, 0.36)), 0.07)
        sides = ((x + dx - size, x + dx + size), (y + dy - size, y + dy + size), (low, low + size * 1.6))
        b.add(*sides, green, FOLIAGE, yaw=float(rng.uniform(0, np.pi)))


def _sign(rng: np.random.Generator) -> tuple[float, float, float]:
    """Colour of a traffic sign."""
    return ((0.1, 0.2, 0.6), (0.7, 0.1, 0.1), (0.8, 0.8, 0.8))[rng.integers(3)]
