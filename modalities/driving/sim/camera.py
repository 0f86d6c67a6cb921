"""Renders what a camera sees of a simulated scene: picture, distances and the object of each pixel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from modalities.driving.sim.cast import Eye, cast, cast_ground, pairs
from modalities.driving.sim.paint import exposed, hazy, paint_ground, paint_parts, paint_sky
from modalities.driving.sim.rig import Camera
from modalities.driving.sim.world import World

__all__ = ["View", "render"]

_NEAR = 0.1
_CORNERS = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], np.float64)
_EDGES = np.array([(i, j) for i in range(8) for j in range(i) if abs(_CORNERS[i] - _CORNERS[j]).sum() == 2])


@dataclass(frozen=True)
class View:
    """A rendered picture.

    Attributes:
        image: uint8 (H, W, 3) RGB.
        depth: float32 (H, W) metres along the axis of the camera; infinite for the sky.
        owner: int64 (H, W) index of the object, -1 for anything else.
        visible: int64 (objects,) pixels of each object.
        alone: int64 (objects,) pixels that it would have if nothing stood before it.
    """

    image: np.ndarray
    depth: np.ndarray
    owner: np.ndarray
    visible: np.ndarray
    alone: np.ndarray


def render(world: World, camera: Camera, size: tuple[int, int], t: float, rng: np.random.Generator) -> View:
    """Renders one picture.

    Args:
        world: The scene.
        camera: Where on the car, and how it projects.
        size: Width and height in pixels.
        t: Seconds from the first key frame; the car is where it is then.
        rng: For exposure and noise.
    """
    width, height = size
    objects = len(world.shapes)
    view = _Eyesight(world.ego_pose(t) @ camera.ego_from_sensor(), camera.intrinsics(size), size)
    eye = Eye(view.pose[:3, 3], view.rays())
    parts = world.at(t)
    hits = cast(eye, parts, view.rectangles(parts.centre, parts.half, parts.yaw), width, objects)
    ground = cast_ground(eye, world.ground.x, world.ground.z)
    part = np.where(ground < hits.depth, -1, hits.part)
    depth = np.minimum(ground, hits.depth)

    colour = np.empty((3, len(part)), np.float32)
    solid, sky = np.flatnonzero(part >= 0), np.flatnonzero(np.isinf(depth))
    floor = np.flatnonzero((part < 0) & np.isfinite(depth))
    rays = eye.rays[:, sky]
    colour[:, sky] = paint_sky(world.look, rays)
    rays, far = eye.rays[:, solid], depth[solid]
    paint = paint_parts(world, parts, part[solid], eye.origin, rays, far)
    colour[:, solid] = hazy(world.look, paint, rays, far)
    rays, far = eye.rays[:, floor], depth[floor]
    x, y = np.full((2, len(part)), 1e6, np.float32)  # no ground, so under nothing
    x[floor], y[floor] = rays[0] * far + np.float32(eye.origin[0]), rays[1] * far + np.float32(eye.origin[1])
    shadow = _shadows(world, t, view, x, y)[floor]
    paint = paint_ground(world, x[floor], y[floor], far, shadow)
    colour[:, floor] = hazy(world.look, paint, rays, far)

    owner = np.full(len(part), -1)
    owner[solid] = parts.owner[part[solid]]
    visible = np.bincount(owner[owner >= 0], minlength=objects)
    image = exposed(colour, world.look, rng).reshape(height, width, 3)
    return View(image, depth.reshape(height, width), owner.reshape(height, width), visible, hits.pixels)


@dataclass(frozen=True)
class _Eyesight:
    """A camera in the scene: its pose there (4, 4), its intrinsics and the size of the picture."""

    pose: np.ndarray
    intrinsics: np.ndarray
    size: tuple[int, int]

    def rays(self) -> np.ndarray:
        """float32 (3, H x W) in the frame of the scene; distances along them are those along the camera's axis."""
        k = self.intrinsics
        x, y = (np.arange(n) for n in self.size)
        turn = self.pose[:3, :3]
        across = turn[:, :1] * ((x - k[0, 2]) / k[0, 0]) + turn[:, 2:]
        down = turn[:, 1:2] * ((y - k[1, 2]) / k[1, 1])
        return (across.astype(np.float32)[:, None] + down.astype(np.float32)[..., None]).reshape(3, -1)

    def rectangles(self, centre: np.ndarray, half: np.ndarray, yaw: np.ndarray) -> np.ndarray:
        """int64 (P, 4) pixels in which boxes can be: their edges before the camera, projected."""
        offsets = _CORNERS * half[:, None]
        c, s = np.cos(yaw)[:, None], np.sin(yaw)[:, None]
        x, y, z = np.moveaxis(offsets, -1, 0)
        turned = np.stack([c * x - s * y, s * x + c * y, z], -1) + (centre - self.pose[:3, 3])[:, None]
        corners = np.einsum("pci,ij->pcj", turned, self.pose[:3, :3])  # in the frame of the camera
        a, b = corners[:, _EDGES[:, 0]], corners[:, _EDGES[:, 1]]
        za, zb = a[..., 2:], b[..., 2:]
        with np.errstate(divide="ignore", invalid="ignore"):
            cut = a + (b - a) * ((_NEAR - za) / (zb - za))
        ends = np.concatenate([np.where(za < _NEAR, cut, a), np.where(zb < _NEAR, cut, b)], 1)
        hidden = ((za < _NEAR) & (zb < _NEAR))[..., 0]
        hidden = np.concatenate([hidden, hidden], 1)
        depth = np.where(hidden, 1.0, ends[..., 2])
        edges = []
        for axis, limit in enumerate(self.size):
            scale, middle = self.intrinsics[axis, axis], self.intrinsics[axis, 2]
            place = np.where(hidden, 0, ends[..., axis]) / depth * scale + middle
            edges.append(np.ceil(np.where(hidden, np.inf, place).min(1).clip(0, limit)))
            edges.append(np.floor(np.where(hidden, -np.inf, place).max(1).clip(-1, limit - 1)) + 1)
        return np.stack(edges, 1).astype(np.int64)


def _shadows(world: World, t: float, view: _Eyesight, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Which pixels show ground that is dark under an object: bool (N,).

    They are rectangles on the ground itself that reach away from the sun.
    """
    dark = np.zeros(len(x), bool)
    if not world.shapes:
        return dark
    poses, sizes = world.poses(t), world.sizes
    sun = world.look.sun
    away = -sun[:2] / sun[2] * 0.6 * (1.25 - world.look.ambient)
    c, s = np.cos(poses[:, 3]), np.sin(poses[:, 3])
    shift = np.stack([c * away[0] + s * away[1], c * away[1] - s * away[0]], 1) * sizes[:, 2:] / 2
    half = sizes[:, :2] / 2 + np.abs(shift)
    mx = poses[:, 0] + c * shift[:, 0] - s * shift[:, 1]
    my = poses[:, 1] + s * shift[:, 0] + c * shift[:, 1]
    centre = np.stack([mx, my, world.ground.height(mx)], 1)
    # High enough for the slopes of the ground.
    thick = np.concatenate([half, np.full((len(half), 1), 0.3)], 1)
    box, ray = pairs(view.rectangles(centre, thick, poses[:, 3]), view.size[0])
    mx, my, c, s, length, width = (a.astype(np.float32)[box] for a in (mx, my, c, s, *half.T))
    dx, dy = x[ray] - mx, y[ray] - my
    dark[ray[(np.abs(c * dx + s * dy) < length) & (np.abs(c * dy - s * dx) < width)]] = True
    return dark
