"""Where the streets of a simulated scene are, and the colour of the ground."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["LANE", "Street"]

LANE = 3.5
"""Width of a lane in metres."""

_FINE, _MARKS = 45.0, 120.0  # metres up to which texture and paint are seen


@dataclass(frozen=True)
class Street:
    """A street along x, and maybe one across.

    Attributes:
        lanes: In each direction.
        parking: Width of the strip for parked cars at either side, 0 for none.
        pavement: Width.
        crossing: x of the middle of the street across, which has one lane in each direction; `None` for none.
    """

    lanes: int
    parking: float
    pavement: float
    crossing: float | None

    @staticmethod
    def drawn(rng: np.random.Generator) -> Street:
        """Draws one."""
        lanes, parking = int(rng.integers(1, 4)), float(rng.choice((0.0, 2.5)))
        pavement, crossing = float(rng.uniform(2.5, 5)), float(rng.uniform(-25, 35))
        return Street(lanes, parking, pavement, crossing if rng.random() < 0.55 else None)

    @property
    def half(self) -> float:
        """From the middle of the street to the kerb."""
        return self.lanes * LANE + self.parking

    @property
    def edge(self) -> float:
        """From the middle to the outer edge of the pavement."""
        return self.half + self.pavement

    @property
    def crossing_half(self) -> float:
        """Likewise `half` of the street across."""
        return LANE + 0.5

    @property
    def crossing_edge(self) -> float:
        """Likewise `edge` of the street across."""
        return self.crossing_half + self.pavement

    def on_road(self, x: float, y: float) -> bool:
        """Whether a place is on either street, with half a metre to spare."""
        across = self.crossing is not None and abs(x - self.crossing) < self.crossing_half + 0.5
        return abs(y) < self.half + 0.45 or across

    def colours(self, x: np.ndarray, y: np.ndarray, depth: np.ndarray, palette: np.ndarray) -> np.ndarray:
        """float32 (3, N) of the ground.

        Args:
            x: (N,) places.
            y: Likewise.
            depth: (N,) distances from the eye, over which fine texture fades.
            palette: (3, 3) colours of street, pavement, rest.
        """
        ay = np.abs(y)
        to_crossing = np.abs(x - self.crossing) if self.crossing is not None else np.full_like(x, np.inf)
        road = (ay < self.half) | (to_crossing < self.crossing_half)
        walk = (ay < self.edge) | (to_crossing < self.crossing_edge)
        kind = np.where(road, 0, np.where(walk, 1, 2))
        colour = np.stack([row[kind] for row in palette.T.astype(np.float32)])
        near = np.flatnonzero(depth < _FINE)
        x_near, y_near = x[near], y[near]
        grain = _grain(x_near * 5, y_near * 5) + _grain(x_near * 0.7, y_near * 0.7)
        tiles = (kind[near] == 1) & ((_modulo(x_near, 1.2) < 0.06) | (_modulo(y_near, 1.2) < 0.06))
        fine = np.exp(depth[near] * np.float32(-1 / 14))
        colour[:, near] *= 1 + (0.16 * (grain - 1) - 0.25 * tiles) * fine
        where = np.flatnonzero(road & (depth < _MARKS))
        marks = self._marks(x[where], y[where], ay[where], to_crossing[where])
        colour[:, where[marks]] = 0.8
        return colour

    def _marks(self, x: np.ndarray, y: np.ndarray, ay: np.ndarray, to_crossing: np.ndarray) -> np.ndarray:
        """(n,) bool: white paint on the street."""
        clear = to_crossing > self.crossing_half + 5
        dashed = (_modulo(x, 9) < 3) & (np.abs(_modulo(ay, LANE) - LANE / 2) > LANE / 2 - 0.08) & (ay > LANE / 2)
        solid = (np.abs(ay - 0.15) < 0.07) | (np.abs(ay - self.lanes * LANE) < 0.08)
        marks = clear & (ay < self.lanes * LANE + 0.1) & (dashed | solid)
        if self.crossing is not None:
            zebra = (np.abs(to_crossing - self.crossing_half - 2.5) < 1.5) & (ay < self.half) & (_modulo(y, 1.1) < 0.55)
            centre = (to_crossing < 0.08) & (ay > self.half + 2) & (_modulo(y, 6) < 2)
            marks |= zebra | centre
        return marks


def _modulo(x: np.ndarray, period: float) -> np.ndarray:
    """`x % period` in a fifth of the time."""
    turns = np.floor(x * np.float32(1 / period))
    turns *= np.float32(period)
    return x - turns


def _grain(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Numbers from 0 to 1 that look drawn at random, one for each square of side 1."""
    value = np.sin(np.floor(a) * np.float32(12.9898) + np.floor(b) * np.float32(78.233)) * np.float32(43.75)
    return value - np.floor(value)
