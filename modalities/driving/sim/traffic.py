"""Draws what drives, walks and stands in a simulated street."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from modalities.driving.sim.motion import Footprints, Motion
from modalities.driving.sim.shapes import Shape, make_shape
from modalities.driving.sim.street import LANE, Street

__all__ = ["Placed", "place_ego", "place_traffic"]

_REACH = 55.0  # metres before and behind the ego
_TRIES = 8


@dataclass(frozen=True)
class Placed:
    """An object with its way.

    Attributes:
        shape: What it looks like.
        motion: Of the middle of its ground.
        attribute: Its attribute in the words of nuScenes, "" for none.
    """

    shape: Shape
    motion: Motion
    attribute: str


def place_ego(street: Street, rng: np.random.Generator) -> Motion:
    """The way of the ego origin: along its lane, with small swerves, or turning where two streets meet."""
    if street.crossing is not None and rng.random() < 0.3:
        turn = float(rng.choice((-1, 1)) * rng.uniform(0.1, 0.3))
        yaw = float(rng.uniform(-np.pi, np.pi))
        return Motion(street.crossing + rng.uniform(-3, 3), float(rng.uniform(-4, 2)), yaw, rng.uniform(2, 5), turn)
    lane = int(rng.integers(street.lanes))
    speed = 0.0 if rng.random() < 0.2 else float(rng.uniform(2, 12))
    yaw = float(rng.normal(0, 0.06))
    return Motion(0.0, -(lane + 0.5) * LANE + rng.normal(0, 0.15), yaw, speed, float(np.clip(-yaw * 0.3, -0.05, 0.05)))


def place_traffic(
    street: Street, ego: Motion, free: Footprints, density: float, last: float, rng: np.random.Generator
) -> list[Placed]:
    """All objects of a scene.

    Args:
        street: Where streets are.
        ego: Around whose way they are.
        free: Where nothing is yet; filled.
        density: Factor for their number.
        last: Time of the last key frame in seconds.
        rng: For all draws.
    """
    crew = _Crew(street, ego, free, last, rng)
    roles: tuple[tuple[Callable[[], None], float], ...] = (
        (lambda: crew.driving("bus"), 2.2),
        (lambda: crew.parked("bus"), 0.8),
        (lambda: crew.driving("truck"), 2.5),
        (lambda: crew.parked("truck"), 2.5),
        (crew.works, 1.3),
        (lambda: crew.driving("car"), 7.0),
        (lambda: crew.parked("car"), 9.0),
        (crew.barriers, 1.2),
        (crew.cones, 1.2),
        (lambda: crew.bicycle(True), 2.5),
        (lambda: crew.bicycle(False), 3.0),
        (crew.pedestrians, 6.5),
    )
    for role, mean in roles:
        for _ in range(int(rng.poisson(mean * density))):
            role()
    return crew.placed


class _Crew:
    """Places one object, or one group, at each call; what finds no place is left out."""

    def __init__(self, street: Street, ego: Motion, free: Footprints, last: float, rng: np.random.Generator) -> None:
        self.street, self.free, self.rng = street, free, rng
        self.placed: list[Placed] = []
        self.middle = ego.at(last / 2)

    def _along(self) -> float:
        return float(self.middle[0] + self.rng.uniform(-_REACH, _REACH))

    def _put(self, shape: Shape, motion: Motion, attribute: str) -> bool:
        free = self.free.add(motion, shape.size[0], shape.size[1])
        if free:
            self.placed.append(Placed(shape, motion, attribute))
        return free

    def _try(self, shape: Shape, draw: Callable[[], Motion | None], attribute: str) -> None:
        for _ in range(_TRIES):
            motion = draw()
            if motion is not None and self._put(shape, motion, attribute):
                return

    def driving(self, name: str) -> None:
        """A vehicle in a lane of either street, now and then waiting, or turning where they meet."""
        rng, street = self.rng, self.street
        waits = rng.random() < 0.25
        speed = 0.0 if waits else float(rng.uniform(2, 13))

        def draw() -> Motion | None:
            way, side = rng.random(), float(rng.choice((-1, 1)))
            if street.crossing is not None and way < 0.15:
                yaw = float(rng.uniform(-np.pi, np.pi))
                turn = float(rng.choice((-1, 1)) * rng.uniform(0.15, 0.35))
                x = street.crossing + float(rng.uniform(-3, 3))
                return Motion(x, float(rng.uniform(-4, 4)), yaw, min(speed, 6.0), turn if speed else 0.0)
            if street.crossing is not None and way < 0.35:
                y = float(rng.uniform(-45, 45))
                return Motion(street.crossing + side * LANE / 2, y, side * np.pi / 2 + rng.normal(0, 0.02), speed)
            lane = -side * (int(rng.integers(street.lanes)) + 0.5) * LANE + rng.normal(0, 0.2)
            yaw = (0.0 if side > 0 else np.pi) + rng.normal(0, 0.03)
            return Motion(self._along(), float(lane), float(yaw), speed)

        self._try(make_shape(name, rng), draw, "vehicle.stopped" if waits else "vehicle.moving")

    def parked(self, name: str) -> None:
        """A vehicle at the kerb, or at any angle on the ground beside the street."""
        rng, street = self.rng, self.street
        shape = make_shape(name, rng)

        def draw() -> Motion | None:
            side = float(rng.choice((-1, 1)))
            x = self._along()
            if street.parking and rng.random() < 0.6:
                y = side * (street.half - max(street.parking, shape.size[1]) / 2)
                yaw = (0.0 if side < 0 else np.pi) + rng.normal(0, 0.03)
            else:
                base = float(rng.choice((0.0, np.pi / 2, np.pi / 4))) + np.pi * int(rng.integers(2))
                yaw = base + rng.normal(0, 0.1)
                reach = (abs(np.sin(yaw)) * shape.size[0] + abs(np.cos(yaw)) * shape.size[1]) / 2
                y = side * (street.edge + reach + rng.uniform(0.2, 10))
            if street.crossing is not None and abs(x - street.crossing) < street.crossing_edge + shape.size[0] / 2 + 1:
                return None
            return Motion(x, float(y), float(yaw))

        self._try(shape, draw, "vehicle.parked")

    def pedestrians(self) -> None:
        """One to three people, on a pavement or on their way across a street."""
        rng, street = self.rng, self.street
        count = int(rng.choice((1, 2, 3), p=(0.6, 0.28, 0.12)))
        walks = rng.random() < 0.65
        speed = float(rng.uniform(0.7, 1.8)) if walks else 0.0
        for _ in range(_TRIES):
            side = float(rng.choice((-1, 1)))
            if rng.random() < 0.75:
                x, y = self._along(), side * (street.half + rng.uniform(0.4, street.pavement + 4))
                yaw = float(rng.choice((0, np.pi)) + rng.normal(0, 0.4))
            elif street.crossing is not None:
                x = street.crossing + float(rng.choice((-1, 1))) * (street.crossing_half + rng.uniform(1.2, 3.8))
                y, yaw = float(rng.uniform(-street.half, street.half)), float(side * np.pi / 2 + rng.normal(0, 0.1))
            else:
                x, y = self._along(), float(rng.uniform(-street.half, street.half))
                yaw = float(side * np.pi / 2 + rng.normal(0, 0.15))
            if not walks:
                yaw = float(rng.uniform(-np.pi, np.pi))
            before = len(self.placed)
            for k in range(count):
                away = rng.normal(0, 0.25, 2) + (0.0, 0.9 * k)
                motion = Motion(x + float(away[0]), y + float(away[1]), yaw + rng.normal(0, 0.05), speed)
                attribute = "pedestrian.moving" if walks else "pedestrian.standing"
                self._put(make_shape("pedestrian", rng), motion, attribute)
            if len(self.placed) > before:
                return

    def bicycle(self, rider: bool) -> None:
        """Ridden at the edge of the street, or left on the pavement."""
        rng, street = self.rng, self.street

        def draw() -> Motion | None:
            side = float(rng.choice((-1, 1)))
            if rider:
                y = -side * (street.lanes * LANE - rng.uniform(0.4, 1.2))
                yaw = (0.0 if side > 0 else np.pi) + rng.normal(0, 0.05)
                return Motion(self._along(), float(y), float(yaw), float(rng.uniform(2.5, 7)))
            y = side * (street.half + rng.uniform(0.5, street.pavement + 3))
            x = self._along()
            return None if street.on_road(x, y) else Motion(x, float(y), float(rng.uniform(-np.pi, np.pi)))

        attribute = "cycle.with_rider" if rider else "cycle.without_rider"
        self._try(make_shape("bicycle", rng, rider), draw, attribute)

    def _row(self, name: str, x: float, y: float, heading: float, count: int, gap: float) -> None:
        """Things in a row along a heading, all alike in kind."""
        along = 0.0
        for _ in range(count):
            shape = make_shape(name, self.rng)
            room = max(shape.size[:2]) + gap
            along += room / 2
            yaw = float(heading + np.pi / 2 + self.rng.normal(0, 0.04))
            self._put(shape, Motion(x + along * np.cos(heading), y + along * np.sin(heading), yaw), "")
            along += room / 2

    def barriers(self) -> None:
        """A row of two to six along the kerb, or at any angle beside the street."""
        rng, street = self.rng, self.street
        x, side = self._along(), float(rng.choice((-1, 1)))
        if rng.random() < 0.6:
            y, heading = side * (street.half + 0.45), 0.0
        else:
            y, heading = side * (street.edge + rng.uniform(0, 6)), float(rng.uniform(-np.pi, np.pi))
        self._row("barrier", x, float(y), heading, int(rng.integers(2, 7)), 0.5)

    def cones(self) -> None:
        """A few cones, more or less in a row."""
        rng, street = self.rng, self.street
        y = float(rng.choice((-1, 1)) * (street.half - rng.uniform(-1.5, 1.0)))
        self._row(
            "traffic_cone", self._along(), y, float(rng.normal(0, 0.15)), int(rng.integers(1, 5)), rng.uniform(0.8, 3)
        )

    def works(self) -> None:
        """Works on the outer lane: cones that lead around barriers."""
        rng, street = self.rng, self.street
        side, x = float(rng.choice((-1, 1))), self._along()
        inner = (street.lanes - 1) * LANE + 0.7 if street.lanes > 1 else street.half - 1.4
        self._row("traffic_cone", x, side * inner, 0.0, int(rng.integers(3, 6)), 2.0)
        self._row("barrier", x + 1.0, side * (inner + 1.2), 0.0, int(rng.integers(1, 4)), 0.5)
