"""Renders what a camera sees of a simulated scene: picture, distances and the object of each pixel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from modalities.driving.sim.cast import Eye, cast, cast_ground, pairs
from modalities.driving.sim.parts import FOLIAGE, GLASS, LIGHT, STRIPES, WALL, Parts
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
    pose = world.ego_pose(t) @ camera.ego_from_sensor()
    intrinsics = camera.intrinsics(size)
    eye = Eye(pose[:3, 3], _pixel_rays(pose, intrinsics, width, height))
    parts = world.at(t)
    rects = _rectangles(parts.centre, parts.half, parts.yaw, pose, intrinsics, size)
    hits = cast(eye, parts, rects, width, objects)
    ground = cast_ground(eye, world.ground.x, world.ground.z)
    part = np.where(ground < hits.depth, -1, hits.part)
    depth = np.minimum(ground, hits.depth)

    colour = np.empty((len(part), 3), np.float32)
    solid = np.flatnonzero(part >= 0)
    floor = np.flatnonzero((part < 0) & np.isfinite(depth))
    sky = np.flatnonzero(np.isinf(depth))
    colour[sky] = _sky(world, eye.rays[:, sky])
    paint = _paint(world, parts, part[solid], eye.origin, eye.rays[:, solid], depth[solid])
    colour[solid] = _hazy(world, paint, eye.rays[:, solid], depth[solid])
    paint = _paint_ground(world, t, pose, intrinsics, size, eye, floor, depth)
    colour[floor] = _hazy(world, paint, eye.rays[:, floor], depth[floor])

    owner = np.where(part >= 0, parts.owner[part.clip(0)], -1) if len(parts) else part
    visible = np.bincount(owner[owner >= 0], minlength=objects)
    image = _exposed(colour.reshape(height, width, 3), world, rng)
    return View(image, depth.reshape(height, width), owner.reshape(height, width), visible, hits.pixels)


def _pixel_rays(pose: np.ndarray, intrinsics: np.ndarray, width: int, height: int) -> np.ndarray:
    """float32 (3, H x W) in the frame of the scene; distances along them are those along the axis of the camera."""
    x = (np.arange(width) - intrinsics[0, 2]) / intrinsics[0, 0]
    y = (np.arange(height) - intrinsics[1, 2]) / intrinsics[1, 1]
    turn = pose[:3, :3]
    across = (turn[:, :1] * x + turn[:, 2:]).astype(np.float32)
    down = (turn[:, 1:2] * y).astype(np.float32)
    return (across[:, None] + down[..., None]).reshape(3, -1)


def _rectangles(
    centre: np.ndarray,
    half: np.ndarray,
    yaw: np.ndarray,
    pose: np.ndarray,
    intrinsics: np.ndarray,
    size: tuple[int, int],
) -> np.ndarray:
    """int64 (P, 4) pixels in which boxes can be: their edges before the camera, projected."""
    offsets = _CORNERS * half[:, None]
    c, s = np.cos(yaw)[:, None], np.sin(yaw)[:, None]
    x, y, z = np.moveaxis(offsets, -1, 0)
    turned = np.stack([c * x - s * y, s * x + c * y, z], -1) + (centre - pose[:3, 3])[:, None]
    corners = np.einsum("pci,ij->pcj", turned, pose[:3, :3])  # in the frame of the camera
    a, b = corners[:, _EDGES[:, 0]], corners[:, _EDGES[:, 1]]
    za, zb = a[..., 2:], b[..., 2:]
    with np.errstate(divide="ignore", invalid="ignore"):
        cut = a + (b - a) * ((_NEAR - za) / (zb - za))
    ends = np.concatenate([np.where(za < _NEAR, cut, a), np.where(zb < _NEAR, cut, b)], 1)
    hidden = ((za < _NEAR) & (zb < _NEAR))[..., 0]
    hidden = np.concatenate([hidden, hidden], 1)
    depth = np.where(hidden, 1.0, ends[..., 2])
    low, high = [], []
    for axis in (0, 1):
        place = np.where(hidden, 0, ends[..., axis]) / depth * intrinsics[axis, axis] + intrinsics[axis, 2]
        low.append(np.where(hidden, np.inf, place).min(1).clip(0, size[axis]))
        high.append(np.where(hidden, -np.inf, place).max(1).clip(-1, size[axis] - 1))
    edges = (np.ceil(low[0]), np.floor(high[0]) + 1, np.ceil(low[1]), np.floor(high[1]) + 1)
    return np.stack(edges, 1).astype(np.int64)


def _sky(world: World, rays: np.ndarray) -> np.ndarray:
    up = (rays[2] / np.sqrt(rays[0] ** 2 + rays[1] ** 2 + rays[2] ** 2)).clip(0, 1)[:, None]
    low, high = world.look.sky.astype(np.float32)
    share = np.sqrt(up)
    return low * (1 - share) + high * share


def _hazy(world: World, colour: np.ndarray, rays: np.ndarray, depth: np.ndarray) -> np.ndarray:
    """Colours (n, 3) as they are seen from afar."""
    far = depth * np.sqrt(rays[0] ** 2 + rays[1] ** 2 + rays[2] ** 2)
    air = world.look.sky[0].astype(np.float32)
    clear = np.exp(far * np.float32(-1 / world.look.haze))
    return air + (colour - air) * clear[:, None]


def _paint(
    world: World, parts: Parts, part: np.ndarray, origin: np.ndarray, rays: np.ndarray, depth: np.ndarray
) -> np.ndarray:
    """float32 (n, 3) colours where rays meet boxes."""
    centre = (parts.centre - origin).astype(np.float32)[part]
    half = parts.half.astype(np.float32)[part]
    c, s = (f(parts.yaw).astype(np.float32)[part] for f in (np.cos, np.sin))
    x, y, z = (rays[i] * depth - centre[:, i] for i in range(3))
    local = np.stack([c * x + s * y, c * y - s * x, z], 1)
    axis = (np.abs(local) - half).argmax(1)
    side = np.sign(local[np.arange(len(axis)), axis])
    sun = world.look.sun.astype(np.float32)
    facing = np.stack([c * sun[0] + s * sun[1], c * sun[1] - s * sun[0], np.full_like(c, sun[2])], 1)
    shine = (facing[np.arange(len(axis)), axis] * side).clip(0)
    ambient = np.float32(world.look.ambient)
    # Less of the sky reaches what looks down, and the sides alternate a little so that edges show in the shade.
    open_sky = np.array([0.84, 0.92, 1.0], np.float32)[axis] * np.where((axis == 2) & (side < 0), 0.5, 1)
    shade = ambient * open_sky + (1.25 - ambient) * shine
    colour = parts.colour.astype(np.float32)[part]
    material = parts.material[part]

    along = np.where(axis == 0, local[:, 1], local[:, 0])
    over = local[:, 2]
    wall = (material == WALL) & (axis != 2)
    panes = wall & (along % 2.9 > 1.5) & ((over + half[:, 2]) % 3.1 > 1.6)
    colour[panes] = (0.7, 0.62, 0.35) if world.look.night else (0.16, 0.2, 0.25)
    stripes = (material == STRIPES) & ((local[:, 1] + local[:, 2]) % 0.7 < 0.35)
    colour[stripes] = 0.88
    leaves = material == FOLIAGE
    cell = np.floor(local * 4).astype(np.float32)
    grain = np.sin(cell @ np.array([12.99, 78.23, 37.72], np.float32)) if leaves.any() else np.zeros_like(shade)
    colour *= (1 + 0.3 * grain * leaves)[:, None]
    # Glass mirrors the sky above.
    glass = (material == GLASS) & (axis != 2)
    colour[glass] = 0.75 * colour[glass] + 0.25 * world.look.sky[0].astype(np.float32)
    shade = np.where(material == LIGHT, 1.0, shade * world.look.brightness)
    return colour * shade.astype(np.float32)[:, None]


def _paint_ground(
    world: World,
    t: float,
    pose: np.ndarray,
    intrinsics: np.ndarray,
    size: tuple[int, int],
    eye: Eye,
    floor: np.ndarray,
    depth: np.ndarray,
) -> np.ndarray:
    """float32 (n, 3) colours of the rays `floor`, which meet the ground."""
    x = np.zeros(len(depth), np.float32)
    y = np.zeros_like(x)
    x[floor] = eye.rays[0, floor] * depth[floor] + np.float32(eye.origin[0])
    y[floor] = eye.rays[1, floor] * depth[floor] + np.float32(eye.origin[1])
    colour = world.street.colours(x[floor], y[floor], depth[floor], world.look.ground)
    sunny = 1.25 - world.look.ambient
    light = np.full(len(depth), world.look.ambient + sunny * world.look.sun[2], np.float32)
    _shadows(world, t, pose, intrinsics, size, x, y, light)
    return colour * (light[floor, None] * np.float32(world.look.brightness))


def _shadows(
    world: World,
    t: float,
    pose: np.ndarray,
    intrinsics: np.ndarray,
    size: tuple[int, int],
    x: np.ndarray,
    y: np.ndarray,
    light: np.ndarray,
) -> None:
    """Darkens `light` under objects: rectangles that reach away from the sun, on the ground itself."""
    if not world.shapes:
        return
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
    box, ray = pairs(_rectangles(centre, thick, poses[:, 3], pose, intrinsics, size), size[0])
    dx, dy = x[ray] - mx.astype(np.float32)[box], y[ray] - my.astype(np.float32)[box]
    c, s = c.astype(np.float32)[box], s.astype(np.float32)[box]
    half = half.astype(np.float32)
    under = (np.abs(c * dx + s * dy) < half[box, 0]) & (np.abs(c * dy - s * dx) < half[box, 1])
    light[ray[under]] = world.look.ambient * 0.62


def _exposed(colour: np.ndarray, world: World, rng: np.random.Generator) -> np.ndarray:
    """uint8 picture with the noise of a sensor."""
    gain = np.float32(rng.uniform(0.92, 1.08))
    noise = rng.standard_normal(colour.shape, np.float32) * np.float32(0.03 if world.look.night else 0.012)
    shown = (colour * gain + noise) * 255
    if world.look.rain:
        shown = 120 + (shown - 120) * np.float32(0.85)
    return shown.clip(0, 255).astype(np.uint8)
