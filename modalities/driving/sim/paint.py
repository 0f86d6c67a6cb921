"""Colours of a rendered picture, in arrays (3, n): rows of red, green and blue, with which NumPy is fastest."""

from __future__ import annotations

import numpy as np

from modalities.driving.sim.parts import FOLIAGE, GLASS, LIGHT, STRIPES, WALL, Parts
from modalities.driving.sim.world import Look, World

__all__ = ["exposed", "hazy", "paint_ground", "paint_parts", "paint_sky"]


def paint_sky(look: Look, rays: np.ndarray) -> np.ndarray:
    """float32 (3, n) colours of the sky along rays (3, n)."""
    share = np.sqrt((rays[2] / _length(rays)).clip(0, 1))
    low, high = look.sky.astype(np.float32)[..., None]
    return low + (high - low) * share


def hazy(look: Look, colour: np.ndarray, rays: np.ndarray, depth: np.ndarray) -> np.ndarray:
    """Colours (3, n) as they are seen from afar."""
    air = look.sky[0].astype(np.float32)[:, None]
    return air + (colour - air) * np.exp(depth * _length(rays) * np.float32(-1 / look.haze))


def paint_ground(world: World, x: np.ndarray, y: np.ndarray, depth: np.ndarray, shadow: np.ndarray) -> np.ndarray:
    """float32 (3, n) colours of the ground.

    Args:
        world: The scene.
        x: (n,) places.
        y: Likewise.
        depth: (n,) distances from the eye.
        shadow: (n,) bool: where an object keeps the sun away.
    """
    look = world.look
    lit = (look.ambient + (1.25 - look.ambient) * look.sun[2]) * look.brightness
    dark = look.ambient * 0.62 * look.brightness
    light = np.where(shadow, np.float32(dark), np.float32(lit))
    return world.street.colours(x, y, depth, look.ground) * light


def paint_parts(
    world: World, parts: Parts, part: np.ndarray, origin: np.ndarray, rays: np.ndarray, depth: np.ndarray
) -> np.ndarray:
    """float32 (3, n) colours where rays meet boxes.

    Args:
        world: The scene.
        parts: All boxes.
        part: (n,) which of them a ray meets.
        origin: (3,) where rays begin.
        rays: (3, n) directions.
        depth: (n,) distances in lengths of the ray.
    """
    centre, half = (a.T.astype(np.float32) for a in (parts.centre - origin, parts.half))
    c, s = (f(parts.yaw).astype(np.float32)[part] for f in (np.cos, np.sin))
    x, y, z = (rays[i] * depth - centre[i][part] for i in range(3))
    x, y = c * x + s * y, c * y - s * x
    tall = half[2][part]
    out_x, out_y, out_z = np.abs(x) - half[0][part], np.abs(y) - half[1][part], np.abs(z) - tall
    flat = out_z > np.maximum(out_x, out_y)
    ends = (out_x > out_y) & ~flat
    face = np.where(flat, z, np.where(ends, x, y)) > 0
    number = part * 6 + np.where(flat, 4, np.where(ends, 0, 2)) + face
    colour = np.stack([row[number] for row in _faces(world.look, parts)])
    material = parts.material.astype(np.uint8)[part]

    wall = np.flatnonzero((material == WALL) & ~flat)
    along = np.where(ends[wall], y[wall], x[wall])
    panes = wall[(along % 2.9 > 1.5) & ((z[wall] + tall[wall]) % 3.1 > 1.6)]
    window = (0.7, 0.62, 0.35) if world.look.night else (0.16, 0.2, 0.25)
    colour[:, panes] = np.array(window, np.float32)[:, None] * np.float32(max(world.look.brightness, 0.6))
    board = np.flatnonzero(material == STRIPES)
    board = board[(y[board] + z[board]) % 0.7 < 0.35]
    colour[:, board] = 0.5 * colour[:, board] + 0.45 * np.float32(world.look.brightness)
    leaf = np.flatnonzero(material == FOLIAGE)
    cells = (np.floor(a[leaf] * 4) * np.float32(f) for a, f in ((x, 12.99), (y, 78.23), (z, 37.72)))
    colour[:, leaf] *= 1 + 0.3 * np.sin(sum(cells, np.float32(0)))
    return colour


def _faces(look: Look, parts: Parts) -> np.ndarray:
    """float32 (3, P x 6) colours of the faces of boxes in light: back, front, right, left, bottom, top."""
    c, s = np.cos(parts.yaw), np.sin(parts.yaw)
    ahead, aside = c * look.sun[0] + s * look.sun[1], c * look.sun[1] - s * look.sun[0]
    up = np.full_like(ahead, look.sun[2])
    shine = np.stack([-ahead, ahead, -aside, aside, -up, up], 1).clip(0)
    # Less of the sky reaches what looks down, and the sides differ a little so that edges show in the shade.
    open_sky = np.array([0.84, 0.84, 0.92, 0.92, 0.5, 1.0])
    shade = (look.ambient * open_sky + (1.25 - look.ambient) * shine) * look.brightness
    shade[parts.material == LIGHT] = 1
    colour = np.repeat(parts.colour[:, None], 6, 1)
    glass = parts.material == GLASS
    colour[glass, :4] = 0.75 * colour[glass, :4] + 0.25 * look.sky[0]  # mirrors the sky
    return (colour * shade[..., None]).reshape(-1, 3).T.astype(np.float32)


def exposed(colour: np.ndarray, look: Look, rng: np.random.Generator) -> np.ndarray:
    """uint8 (n, 3) of colours (3, n), with the gain and the noise of a sensor."""
    gain = np.float32(rng.uniform(0.92, 1.08))
    # The sum of two uniform draws is close to normal and costs a quarter; its deviation is 0.41.
    noise = rng.random(colour.shape, np.float32)
    noise += rng.random(colour.shape, np.float32)
    noise -= 1
    noise *= np.float32(19 if look.night else 7.5)
    noise += colour * (gain * 255)
    if look.rain:
        noise = 120 + (noise - 120) * np.float32(0.85)
    return np.ascontiguousarray(noise.clip(0, 255).astype(np.uint8).T)


def _length(rays: np.ndarray) -> np.ndarray:
    length: np.ndarray = np.sqrt(rays[0] ** 2 + rays[1] ** 2 + rays[2] ** 2)
    return length
