"""Made-up clouds to try models with: a table of boxes, and a village as an airborne laser would see it."""

from __future__ import annotations

import io

import numpy as np

__all__ = ["table", "village"]

_SIDE = 60.0  # metres of the village


def table() -> bytes:
    """A table as an OFF mesh: a top and four legs, in metres."""
    boxes = [((0.0, 0.0, 0.72), (1.4, 0.8, 0.05))]
    boxes += [((x, y, 0.35), (0.06, 0.06, 0.70)) for x in (-0.62, 0.62) for y in (-0.32, 0.32)]
    corners = np.array([(x, y, z) for z in (-0.5, 0.5) for y in (-0.5, 0.5) for x in (-0.5, 0.5)])
    sides = ((0, 2, 3, 1), (4, 5, 7, 6), (0, 1, 5, 4), (2, 6, 7, 3), (0, 4, 6, 2), (1, 3, 7, 5))
    lines = ["OFF", f"{8 * len(boxes)} {6 * len(boxes)} 0"]
    for centre, size in boxes:
        lines += [" ".join(f"{value:.4f}" for value in point) for point in np.array(centre) + corners * np.array(size)]
    for number in range(len(boxes)):
        lines += [" ".join(map(str, (4, *(8 * number + corner for corner in side)))) for side in sides]
    return ("\n".join(lines) + "\n").encode()


def village() -> bytes:
    """Ground, houses and trees with intensity and returns, as an `.npz` of `xyz`, `intensity` and `return`."""
    rng = np.random.default_rng(3)
    parts = [_ground(rng)]
    houses = ((14.0, 14.0, 11.0, 8.0), (42.0, 16.0, 9.0, 12.0), (20.0, 44.0, 14.0, 9.0))
    parts += [_house(rng, *house) for house in houses]
    for x, y in ((30.0, 30.0), (46.0, 44.0), (52.0, 36.0), (6.0, 34.0), (38.0, 54.0), (28.0, 8.0), (8.0, 55.0)):
        parts.append(_tree(rng, x, y))
    xyz, intensity, returns = (np.concatenate(found) for found in zip(*parts, strict=True))
    # A laser from above sees no ground below a roof.
    covered = np.zeros(len(xyz), bool)
    for x, y, length, width in houses:
        inside = (np.abs(xyz[:, 0] - x) < length / 2) & (np.abs(xyz[:, 1] - y) < width / 2)
        covered |= inside & (xyz[:, 2] < 2.5)
    arrays = {
        "xyz": xyz[~covered].astype(np.float32),
        "intensity": intensity[~covered].astype(np.uint16),
        "return": returns[~covered].astype(np.uint8),
    }
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


_Part = tuple[np.ndarray, np.ndarray, np.ndarray]


def _ground(rng: np.random.Generator) -> _Part:
    count = 24_000
    x, y = rng.uniform(0, _SIDE, (2, count))
    z = 0.3 * np.sin(x / 15) + 0.2 * np.cos(y / 12) + rng.normal(0, 0.03, count)
    return np.stack([x, y, z], 1), rng.normal(2400, 600, count).clip(1), np.ones((count, 2))


def _house(rng: np.random.Generator, x: float, y: float, length: float, width: float) -> _Part:
    """The two halves of a gabled roof."""
    count = int(8.0 * length * width)
    u, v = rng.uniform(-0.5, 0.5, (2, count))
    z = 3.5 + 2.5 * (1 - 2 * np.abs(v)) + rng.normal(0, 0.03, count)
    xyz = np.stack([x + u * length, y + v * width, z], 1)
    return xyz, rng.normal(1650, 350, count).clip(1), np.ones((count, 2))


def _tree(rng: np.random.Generator, x: float, y: float) -> _Part:
    """A crown that the laser goes into: several returns of a pulse."""
    count, radius, height = 900, rng.uniform(2.2, 3.2), rng.uniform(8, 12)
    direction = rng.normal(size=(count, 3))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    offset = direction * rng.uniform(0.3, 1, (count, 1)) ** (1 / 3) * (radius, radius, 0.4 * height)
    total = rng.integers(2, 5, count)
    number = (1 + rng.random(count) * total).astype(int).clip(1, total)
    xyz = np.array([x, y, 0.6 * height]) + offset
    return xyz, rng.normal(900, 500, count).clip(50), np.stack([number, total], 1)
