"""Scans a simulated scene with the lidar."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from modalities.driving.sim.cast import Eye, cast, cast_ground
from modalities.driving.sim.parts import GLASS, Parts
from modalities.driving.sim.rig import LIDAR, RINGS, lidar_columns, lidar_rays
from modalities.driving.sim.world import World

__all__ = ["LIDAR_RANGE", "Sweep", "scan"]

LIDAR_RANGE = 80.0
"""Metres; no returns from farther away."""

_RANGE_NOISE = 0.02
_NEAREST = 1.0


@dataclass(frozen=True)
class Sweep:
    """Points of one turn, column after column.

    Attributes:
        points: float32 (n, 5): x, y, z in the frame of the lidar, intensity from 0 to 255, ring.
        scene: float64 (n, 3) the same places in the frame of the scene.
        owner: int64 (n,) object that was met, -1 for anything else.
    """

    points: np.ndarray
    scene: np.ndarray
    owner: np.ndarray


def scan(world: World, azimuths: int, t: float, rng: np.random.Generator) -> Sweep:
    """One sweep, all of it at the same time.

    Args:
        world: The scene.
        azimuths: Columns of the sweep.
        t: Seconds from the first key frame.
        rng: For the noise of distances and intensities, and for lost returns.
    """
    pose = world.ego_pose(t) @ LIDAR.ego_from_sensor()
    own = lidar_rays(azimuths).reshape(3, -1)
    rays = np.einsum("ij,jn->in", pose[:3, :3], own).astype(np.float32)
    eye, parts = Eye(pose[:3, 3], rays), world.at(t)
    hits = cast(eye, parts, _rectangles(parts, pose, azimuths), azimuths, len(world.shapes))
    ground = cast_ground(eye, world.ground.x, world.ground.z)
    part = np.where(ground < hits.depth, -1, hits.part)
    distance = np.minimum(ground, hits.depth).astype(np.float64)

    count = len(distance)
    met = np.flatnonzero((distance < LIDAR_RANGE) & (distance > _NEAREST))
    noise, luck, spread = rng.normal(0, _RANGE_NOISE, count), rng.random(count), rng.normal(1, 0.12, count)
    solid = part[met] >= 0
    reflectance = np.full(len(met), 0.18)
    reflectance[solid] = parts.reflectance[part[met][solid]]
    # Ground is met at a flat angle, and so returns little from far away.
    reflectance[~solid] *= np.abs(rays[2, met[~solid]]).clip(0.15) ** 0.3
    lost = 0.02 + (1 - reflectance) * 0.5 * (distance[met] / LIDAR_RANGE) ** 2
    lost[solid] += 0.45 * (parts.material[part[met][solid]] == GLASS)
    if world.look.rain:
        lost = lost + 0.06 + 0.5 * (distance[met] / LIDAR_RANGE) * (1 - reflectance)
    kept = luck[met] >= lost
    met, reflectance = met[kept], reflectance[kept]
    # Column after column, as the sensor sends them.
    order = np.argsort((met % azimuths) * RINGS + met // azimuths, kind="stable")
    met, reflectance = met[order], reflectance[order]
    # The points are what is written: float32, in the frame of the lidar.
    places = ((distance[met] + noise[met]) * own[:, met]).T.astype(np.float32)
    intensity = np.round((reflectance * spread[met] * 120).clip(0, 255))
    points = np.concatenate([places, intensity[:, None], (met // azimuths)[:, None]], 1).astype(np.float32)
    scene = np.einsum("ij,nj->ni", pose[:3, :3], places.astype(np.float64)) + pose[:3, 3]
    owner = np.full(len(met), -1)
    found = part[met] >= 0
    owner[found] = parts.owner[part[met][found]]
    return Sweep(points, scene, owner)


def _rectangles(parts: Parts, pose: np.ndarray, azimuths: int) -> np.ndarray:
    """int64 (P, 4) columns and rings in which boxes can be."""
    corners = np.array([[x, y] for x in (-1, 1) for y in (-1, 1)], np.float64)
    flat = corners * parts.half[:, None, :2]
    c, s = np.cos(parts.yaw)[:, None], np.sin(parts.yaw)[:, None]
    place = np.stack([c * flat[..., 0] - s * flat[..., 1], s * flat[..., 0] + c * flat[..., 1]], -1)
    place = np.stack([place, place], 1).reshape(len(parts), 8, 2) + (parts.centre[:, None, :2] - pose[:2, 3])
    z = (parts.centre[:, 2] - pose[2, 3])[:, None] + parts.half[:, 2:] * np.repeat((-1, 1), 4)
    local = np.einsum("pci,ij->pcj", np.concatenate([place, z[..., None]], -1), pose[:3, :3])
    angle = np.arctan2(local[..., 1], local[..., 0])
    middle = local.mean(1)
    centre = np.arctan2(middle[:, 1], middle[:, 0])
    away = (angle - centre[:, None] + np.pi) % (2 * np.pi) - np.pi
    around = np.ptp(away, 1) >= np.pi  # the sensor is over or under the box
    high = np.where(around, np.pi, away.max(1))
    low = np.where(around, -np.pi, away.min(1))
    first = np.floor(lidar_columns(centre + high, azimuths)).astype(np.int64)
    last = np.ceil(lidar_columns(centre + low, azimuths)).astype(np.int64)
    last = np.minimum(last, first + azimuths - 1)
    # Between the corners a face is nearer; no part of a box is nearer than the middle less half the diagonal.
    distance = np.hypot(local[..., 0], local[..., 1])
    diagonal = np.hypot(parts.half[:, 0], parts.half[:, 1])
    nearest = np.minimum(distance.min(1), np.hypot(middle[:, 0], middle[:, 1]) - diagonal).clip(0.05)
    top, bottom = local[..., 2].max(1), local[..., 2].min(1)
    farthest = distance.max(1)
    upper = np.degrees(np.arctan2(top, np.where(top > 0, nearest, farthest)))
    lower = np.degrees(np.arctan2(bottom, np.where(bottom < 0, nearest, farthest)))
    ring_low = np.ceil(lower * 0.75 + 23).clip(0, RINGS)
    ring_high = np.floor(upper * 0.75 + 23).clip(-1, RINGS - 1) + 1
    gone = nearest > LIDAR_RANGE
    ring_high[gone] = ring_low[gone]
    return np.stack([first, last + 1, ring_low, ring_high], 1).astype(np.int64)
