"""Boxes that the simulated world is built of, and their looks."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

__all__ = ["FOLIAGE", "GLASS", "LIGHT", "PAINT", "STRIPES", "WALL", "Builder", "Parts"]

PAINT, GLASS, LIGHT, WALL, STRIPES, FOLIAGE = range(6)

Triple = tuple[float, float, float]


@dataclass(frozen=True)
class Parts:
    """P upright boxes.

    Attributes:
        centre: (P, 3) in metres, in the frame of the object or of the scene.
        half: (P, 3) half of length, width and height.
        yaw: (P,) in radians.
        colour: (P, 3) from 0 to 1.
        material: (P,) one of this module's constants.
        reflectance: (P,) for the lidar, from 0 to 1.
        owner: (P,) index of the object, or -1 for what is no object.
    """

    centre: np.ndarray
    half: np.ndarray
    yaw: np.ndarray
    colour: np.ndarray
    material: np.ndarray
    reflectance: np.ndarray
    owner: np.ndarray

    def __len__(self) -> int:
        return len(self.centre)

    @staticmethod
    def joined(parts: list[Parts]) -> Parts:
        """All of them in order; the owner of each is its place in the list."""
        fields = ("centre", "half", "yaw", "colour", "material", "reflectance")
        arrays = [np.concatenate([getattr(p, name) for p in parts]) for name in fields]
        owner = np.repeat(np.arange(len(parts)), [len(p) for p in parts])
        return Parts(*arrays, *[owner])

    def placed(self, x: np.ndarray, y: np.ndarray, z: np.ndarray, yaw: np.ndarray) -> Parts:
        """In the frame of the scene, from the poses of all objects ((M,) each); parts of no object stay."""
        own = self.owner >= 0
        owner = self.owner.clip(0)
        if not own.any():
            return self
        x, y, z, yaw = (np.where(own, values[owner], 0.0) for values in (x, y, z, yaw))
        c, s = np.cos(yaw), np.sin(yaw)
        cx, cy, cz = self.centre.T
        centre = np.stack([x + c * cx - s * cy, y + s * cx + c * cy, z + cz], 1)
        return Parts(centre, self.half, self.yaw + yaw, self.colour, self.material, self.reflectance, self.owner)


@dataclass
class Builder:
    """Collects boxes given by their sides: `add((x1, x2), (y1, y2), (z1, z2), colour)`."""

    rows: list[tuple[float, ...]] = field(default_factory=list)

    def add(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        z: tuple[float, float],
        colour: Triple,
        material: int = PAINT,
        reflectance: float | None = None,
        yaw: float = 0.0,
    ) -> None:
        """Adds a box; its reflectance is by default that of its material and colour."""
        if reflectance is None:
            reflectance = {GLASS: 0.05, LIGHT: 0.8, FOLIAGE: 0.3}.get(material, 0.1 + 0.5 * sum(colour) / 3)
        middle = tuple((a + b) / 2 for a, b in (x, y, z))
        half = tuple(abs(b - a) / 2 for a, b in (x, y, z))
        self.rows.append((*middle, *half, yaw, *colour, material, reflectance))

    def parts(self) -> Parts:
        """What was added, of no object."""
        rows = np.array(self.rows, np.float64).reshape(-1, 12)
        return Parts(
            rows[:, :3],
            rows[:, 3:6],
            rows[:, 6],
            rows[:, 7:10],
            rows[:, 10].astype(np.int64),
            rows[:, 11],
            np.full(len(rows), -1),
        )
