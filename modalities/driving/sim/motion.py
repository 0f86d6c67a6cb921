"""Ways of the objects: constant speed along a line or a circle; and whether two of them meet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Footprints", "Motion", "positions"]


@dataclass(frozen=True)
class Motion:
    """Constant speed and yaw rate.

    Attributes:
        x: Place at time 0, in metres in the frame of the scene.
        y: Likewise.
        yaw: Heading at time 0, in radians.
        speed: Along the heading, in m/s.
        turn: Yaw rate in rad/s.
    """

    x: float
    y: float
    yaw: float
    speed: float = 0.0
    turn: float = 0.0

    def at(self, t: np.ndarray | float) -> np.ndarray:
        """float64 (..., 3): x, y, yaw at times in seconds."""
        return positions(np.array([self.x, self.y, self.yaw, self.speed, self.turn]), np.asarray(t, np.float64))


def positions(motions: np.ndarray, t: np.ndarray) -> np.ndarray:
    """x, y, yaw of motions (..., 5: x, y, yaw, speed, turn) at times that broadcast with them."""
    x, y, yaw, speed, turn = np.moveaxis(motions, -1, 0)
    half = turn * t / 2
    # The chord of the arc, at the mean heading; np.sinc has a factor of pi inside.
    chord = speed * t * np.sinc(half / np.pi)
    parts = (x + chord * np.cos(yaw + half), y + chord * np.sin(yaw + half), yaw + 2 * half)
    return np.stack(np.broadcast_arrays(*parts), -1)


class Footprints:
    """Rectangles on the ground over time, to which others are added when they meet none.

    Args:
        times: (T,) seconds at which they must be apart.
        gap: Least distance in metres.
    """

    def __init__(self, times: np.ndarray, gap: float = 0.3) -> None:
        self.times, self.gap = times, gap
        self._rects = np.empty((64, len(times), 5))
        self._count = 0

    def add(self, motion: Motion, length: float, width: float) -> bool:
        """Adds a rectangle (middle on the motion) if it is free all the time, and says whether it was."""
        rect = np.empty((len(self.times), 5))
        rect[:, :3] = motion.at(self.times)
        rect[:, 3:] = length / 2, width / 2
        if self._meets(rect):
            return False
        if self._count == len(self._rects):
            self._rects = np.concatenate([self._rects, np.empty_like(self._rects)])
        self._rects[self._count] = rect
        self._count += 1
        return True

    def _meets(self, rect: np.ndarray) -> bool:
        others = self._rects[: self._count]
        between = others[..., :2] - rect[:, :2]
        reach = np.hypot(rect[:, 3], rect[:, 4]) + np.hypot(others[..., 3], others[..., 4]) + self.gap
        near = (between**2).sum(-1) < reach**2
        number, time = np.nonzero(near)
        if not len(number):
            return False
        a, b, d = rect[time], others[number, time], between[number, time]
        apart = np.zeros(len(a), bool)
        for first, second in ((a, b), (b, a)):  # separating axes: the sides of both
            c, s = np.cos(first[:, 2]), np.sin(first[:, 2])
            turn = second[:, 2] - first[:, 2]
            tc, ts = np.abs(np.cos(turn)), np.abs(np.sin(turn))
            along, across = np.abs(c * d[:, 0] + s * d[:, 1]), np.abs(c * d[:, 1] - s * d[:, 0])
            apart |= along > first[:, 3] + second[:, 3] * tc + second[:, 4] * ts + self.gap
            apart |= across > first[:, 4] + second[:, 3] * ts + second[:, 4] * tc + self.gap
        return bool((~apart).any())
