"""What a simulated driving set is made of: sizes, weather, traffic."""

from __future__ import annotations

import math
from dataclasses import dataclass

from zoo.errors import ConfigError

__all__ = ["KEY_FRAME_US", "MAX_RANGE", "DriveOptions"]

KEY_FRAME_US = 500_000
"""Between two key frames, which come at 2 Hz as those of nuScenes."""

MAX_RANGE = 60.0
"""Metres from the ego origin, in the plane, up to which an object can be annotated."""

_FULL_IMAGE = (1600, 900)


@dataclass(frozen=True)
class DriveOptions:
    """A set is a function of these and of the versions of NumPy and Pillow.

    Attributes:
        scenes: Scenes of the training split.
        val_scenes: Scenes of the validation split; none has anything of a training scene.
        frames: Key frames of a scene, 0.5 s apart.
        sweeps: Lidar sweeps written before each key frame, 50 ms apart.
        image_size: Width and height in pixels. Pictures of 1600 x 900 are shrunk to the width, then rows are cut off
            at the top, which is how they are commonly given to a network.
        azimuths: Columns of a lidar sweep; the real sensor has about 1,085.
        density: Factor for the number of objects.
        night: Share of the scenes that are at night.
        rain: Share of the scenes with rain.
        seed: Of all draws.
    """

    scenes: int = 200
    val_scenes: int = 40
    frames: int = 5
    sweeps: int = 0
    image_size: tuple[int, int] = (352, 128)
    azimuths: int = 360
    density: float = 1.0
    night: float = 0.1
    rain: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        width, height = self.image_size
        checks = {
            "scenes": 1 <= self.scenes <= 100_000,
            "val_scenes": 0 <= self.val_scenes <= 100_000,
            "frames": 1 <= self.frames <= 40,
            "sweeps": 0 <= self.sweeps <= 9,
            "image_size": 32 <= width <= _FULL_IMAGE[0] and 16 <= height <= width * _FULL_IMAGE[1] // _FULL_IMAGE[0],
            "azimuths": 36 <= self.azimuths <= 2000,
            "density": math.isfinite(self.density) and 0 <= self.density <= 4,
            "night": 0 <= self.night <= 1,
            "rain": 0 <= self.rain <= 1,
            "seed": self.seed >= 0,
        }
        if bad := [name for name, good in checks.items() if not good]:
            raise ConfigError(
                f"simulated driving: {bad[0]} cannot be {getattr(self, bad[0])!r}; see the limits of DriveOptions"
            )
