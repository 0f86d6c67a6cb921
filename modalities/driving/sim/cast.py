"""Casts the rays of a sensor against boxes and the ground.

No ray is tested against every box: a sensor says in which rectangle of its rays a box can be seen, and only those pairs
of a box and a ray are made. All of them are computed at once, in float32, from the place of the sensor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from modalities.driving.sim.parts import Parts

__all__ = ["Eye", "Hits", "cast", "cast_ground", "pairs"]

_NEAR = 0.05


@dataclass(frozen=True)
class Eye:
    """A place that N rays leave.

    Attributes:
        origin: float64 (3,) in the frame of the scene.
        rays: float32 (3, N) directions there, of any length; distances are in units of it.
    """

    origin: np.ndarray
    rays: np.ndarray


@dataclass(frozen=True)
class Hits:
    """What each of N rays meets first.

    Attributes:
        depth: float32 (N,) distance in lengths of the ray; infinite where nothing is met.
        part: int64 (N,) the box, -1 for none.
        pixels: int64 (objects,) rays that would meet each object if it were alone.
    """

    depth: np.ndarray
    part: np.ndarray
    pixels: np.ndarray


def pairs(rects: np.ndarray, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """All rays in rectangles of a grid of rays.

    Args:
        rects: int64 (P, 4): first and past-the-end column, first and past-the-end row. Columns may lie outside the grid
            and then wrap around.
        columns: Of the grid.

    Returns:
        Rectangle and ray (row x columns + column) of each pair, int64.
    """
    width, height = (rects[:, 1] - rects[:, 0]).clip(0), (rects[:, 3] - rects[:, 2]).clip(0)
    rows = np.repeat(np.arange(len(rects)), height)  # rectangle of every row of every rectangle
    row = np.arange(len(rows)) - np.repeat(np.cumsum(height) - height, height) + rects[rows, 2]
    count = width[rows]
    strip = np.repeat(np.arange(len(rows)), count)
    col = np.arange(len(strip)) - np.repeat(np.cumsum(count) - count - rects[rows, 0], count)
    inside = (rects[:, 0] >= 0) & (rects[:, 1] <= columns)
    if not inside.all():
        col %= columns
    return rows[strip], row[strip] * columns + col


def cast(eye: Eye, parts: Parts, rects: np.ndarray, columns: int, objects: int) -> Hits:
    """The first box that each ray meets.

    Args:
        eye: N rays, in a grid.
        parts: P boxes in the frame of the scene.
        rects: Where each can be seen, see `pairs`.
        columns: Of the grid.
        objects: Number of owners of boxes.
    """
    count = eye.rays.shape[1]
    box, ray = pairs(rects, columns)
    offset = parts.centre - eye.origin
    c, s = np.cos(parts.yaw), np.sin(parts.yaw)
    local = (c * offset[:, 0] + s * offset[:, 1], c * offset[:, 1] - s * offset[:, 0], offset[:, 2])
    c, s = (a.astype(np.float32)[box] for a in (c, s))
    dx, dy, dz = (axis[ray] for axis in eye.rays)
    near = np.full(len(box), _NEAR, np.float32)
    far = np.full(len(box), np.inf, np.float32)
    for axis, direction in enumerate((c * dx + s * dy, c * dy - s * dx, dz)):
        with np.errstate(divide="ignore"):
            inverse = 1 / direction
        # A ray along a face would give 0 x inf; it is taken to be almost along it.
        np.clip(inverse, -1e12, 1e12, out=inverse)
        middle = local[axis].astype(np.float32)[box] * inverse
        reach = parts.half[:, axis].astype(np.float32)[box] * np.abs(inverse)
        np.maximum(near, middle - reach, out=near)
        np.minimum(far, middle + reach, out=far)
    # From inside a box nothing of it is seen.
    hit = np.flatnonzero((near <= far) & (near > _NEAR))
    box, ray, near = box[hit], ray[hit], near[hit]
    depth = np.full(count, np.inf, np.float32)
    np.minimum.at(depth, ray, near)
    part = np.full(count, -1)
    first = near == depth[ray]
    part[ray[first]] = box[first]
    alone = np.zeros((objects, count), bool)
    owner = parts.owner[box]
    alone[owner[owner >= 0], ray[owner >= 0]] = True
    return Hits(depth, part, alone.sum(1))


def cast_ground(eye: Eye, x: np.ndarray, z: np.ndarray) -> np.ndarray:
    """float32 (N,) distances to a ground of planes between heights `z` at ascending places `x`, infinite for none."""
    slopes = np.concatenate([[0.0], np.diff(z) / np.diff(x), [0.0]])
    starts, ends = np.concatenate([[-np.inf], x]), np.concatenate([x, [np.inf]])
    anchors, heights = np.concatenate([x[:1], x]), np.concatenate([z[:1], z])
    dx, _, dz = eye.rays
    best = np.full(len(dx), np.inf, np.float32)
    ox, oz = float(eye.origin[0]), float(eye.origin[2])
    for slope, start, end, anchor, height in zip(slopes, starts, ends, anchors, heights, strict=True):
        over = oz - height - slope * (ox - anchor)
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.float32(over) / (np.float32(slope) * dx - dz)
            at = t * dx
        met = (t > _NEAR) & (at >= np.float32(start - ox)) & (at < np.float32(end - ox)) & (t < best)
        best[met] = t[met]
    return best
