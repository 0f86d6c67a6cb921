"""A semi-synthetic set: real pictures filmed by a camera that moves in one of ten ways; the class is the motion.

A picture, continued by its mirror images without end, fills a plane. The camera looks at a square of it and has a
place, an angle and a zoom as functions of time. All ten classes draw the state at time 0 from one distribution and
start there, so that the first frame says nothing of the class; place (uniform over the period of the plane) and angle
(uniform over the circle) keep their distribution at all later times, whatever the motion. Zoom cannot be uniform
without bounds: its range at the start is wide beside what a motion changes.

Clips follow from a seed and a number alone; they are drawn on any device, in batches, and never stored. Time is in
seconds, so that the same clip can be drawn longer, larger or at another frame rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from modalities.video.presets import MOTIONS
from zoo.errors import ConfigError, DataError
from zoo.training.seeds import derive_seed

__all__ = ["MotionClips", "draw_states", "render"]

# Ranges of what is drawn. The side of the view is in sides of the picture, speeds are in views (pan), log units (zoom)
# and radians (rotate) per second, the amplitude of shaking in views, its frequency in Hz.
_VIEW = (0.35, 0.9)
_PAN = (0.2, 0.8)
_ZOOM = (0.2, 0.6)
_TURN = (math.radians(25), math.radians(100))
_SHAKE = (0.02, 0.06)
_SHAKE_HZ = (3.0, 7.0)
# Numbers drawn for a clip: the class, the place (2), the angle, the view, the speed, and of each axis that shakes
# amplitude, frequency and phase.
_DRAWS = 6 + 3 * 2
_FINER = 2  # pixels of the picture per pixel of the clip, at most: larger pictures are made smaller first, as lenses do


@dataclass(frozen=True, eq=False)
class MotionClips:
    """What is drawn for B clips; every field follows from uniform numbers.

    Attributes:
        labels: int64 (B,), positions in `MOTIONS`.
        draws: float32 (B, D), uniform in 0..1: all other properties of the clips.
    """

    labels: Tensor
    draws: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> MotionClips:
        """The same on a device."""
        return MotionClips(self.labels.to(device, non_blocking=True), self.draws.to(device, non_blocking=True))

    def __getitem__(self, rows: slice | Tensor) -> MotionClips:
        return MotionClips(self.labels[rows], self.draws[rows])


def draw_states(count: int, seed: int, *, balanced: bool = False) -> MotionClips:
    """Draws the motions of clips on the CPU, so that they are the same on every machine and device.

    Args:
        count: Clips.
        seed: Of all draws; the first clips are the same whatever `count`.
        balanced: The classes take turns, clip i has class i modulo 10, instead of being drawn.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, "motion"))
    draws = torch.rand(count, _DRAWS, generator=generator)
    drawn = (draws[:, 0] * len(MOTIONS)).long().clamp_(max=len(MOTIONS) - 1)
    labels = torch.arange(count) % len(MOTIONS) if balanced else drawn
    return MotionClips(labels, draws)


def render(pictures: Tensor, clips: MotionClips, *, size: int, frames: int, frame_rate: float) -> Tensor:
    """Films pictures.

    The arithmetic is float32 and waits for nothing on a GPU; on different devices results differ by rounding alone.

    Args:
        pictures: uint8 or float (B, 3, S, S) in 0..255, square, on the device to use. Those of more than twice
            `size` are resized first (bilinear, antialiased).
        clips: Of B clips, on the same device.
        size: Side of the clips in pixels. The same scene is shown at any size.
        frames: Frames of a clip.
        frame_rate: Frames a second.

    Returns:
        float32 (B, 3, frames, size, size) in 0..255.

    Raises:
        ConfigError: If size, frames or rate cannot be used.
        DataError: If the pictures are not square or not as many as the clips.
    """
    if min(size, frames) < 1 or not 0 < frame_rate < math.inf:
        raise ConfigError(f"clips of {frames} frames of {size} px at {frame_rate} frames/s cannot be drawn")
    if pictures.ndim != 4 or pictures.shape[2] != pictures.shape[3] or len(pictures) != len(clips):
        raise DataError(f"expected {len(clips)} square pictures (B, 3, S, S), got {tuple(pictures.shape)}")
    scene = pictures.float()
    if scene.shape[2] > _FINER * size:
        scene = F.interpolate(scene, (_FINER * size,) * 2, mode="bilinear", antialias=True).clamp_(0, 255)
    times = torch.arange(frames, device=scene.device, dtype=torch.float32) / frame_rate
    grid = _grid(clips, times, size)
    # Frames lie below each other in the grid: pictures need not be repeated. "reflection" makes the mirrored plane.
    shown = F.grid_sample(scene, grid.flatten(1, 2), mode="bilinear", padding_mode="reflection", align_corners=False)
    return shown.view(len(clips), 3, frames, size, size)


def _grid(clips: MotionClips, times: Tensor, size: int) -> Tensor:
    """Where each pixel looks: float32 (B, T, size, size, 2) as x, y, with the picture from -1 to 1."""
    centre, angle, view = _camera(clips, times)
    pixels = (torch.arange(size, device=times.device, dtype=torch.float32) + 0.5) * (2 / size) - 1
    y, x = torch.meshgrid(pixels, pixels, indexing="ij")
    cos, sin = (view * angle.cos())[..., None, None], (view * angle.sin())[..., None, None]
    across = centre[..., 0, None, None] + cos * x - sin * y
    down = centre[..., 1, None, None] + sin * x + cos * y
    return torch.stack([across, down], dim=-1)


def _camera(clips: MotionClips, times: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The camera at each time: centre (B, T, 2), angle (B, T) and side of the view (B, T) in sides of the picture."""
    draws, t = clips.draws, times[None]

    def between(column: int, bounds: tuple[float, float]) -> Tensor:
        low, high = (math.log(bound) for bound in bounds)  # Uniform in the logarithm.
        return (low + (high - low) * draws[:, column, None]).exp()

    def has(*names: str) -> list[Tensor]:
        return [(clips.labels == MOTIONS.index(name)).float()[:, None] for name in names]

    left, right, up, down = has("pan-left", "pan-right", "pan-up", "pan-down")
    closer, wider, turn_left, turn_right, shake, _ = has(*MOTIONS[4:])
    # A mirrored plane repeats after two sides, which is 4 here.
    start = 4 * draws[:, 1:3] - 2
    first_angle = 2 * math.pi * draws[:, 3, None]
    first_view = between(4, _VIEW)
    pan, zoom, turn = between(5, _PAN), between(5, _ZOOM), between(5, _TURN)
    # Rows count downwards: for a camera that turns left (against the clock) the angle of its axes gets smaller.
    angle = first_angle + (turn_right - turn_left) * turn * t
    view = first_view * ((wider - closer) * zoom * t).exp()
    moved = []
    for axis, (back, forth) in enumerate(((left, right), (up, down))):
        column = 6 + 3 * axis
        phase = 2 * math.pi * draws[:, column + 2, None]
        swing = between(column, _SHAKE) * (
            (2 * math.pi * between(column + 1, _SHAKE_HZ) * t + phase).sin() - phase.sin()
        )
        moved.append((forth - back) * pan * t + shake * swing)
    # Along the axes of the view: 2 is the side of the picture in the grid, so a view is 2 x view wide.
    across, along = (2 * first_view * part for part in moved)
    cos, sin = first_angle.cos(), first_angle.sin()
    centre = torch.stack([start[:, :1] + cos * across - sin * along, start[:, 1:] + sin * across + cos * along], dim=-1)
    return centre, angle, view
