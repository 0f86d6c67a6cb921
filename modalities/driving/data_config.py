"""What a driving model expects of its scenes; it travels with the weights as the `"data"` part of `config.json`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zoo.errors import ConfigError

__all__ = ["DrivingDataConfig"]

_MOST_SIDE, _MOST_CAMERAS, _MOST_SWEEPS, _MOST_PILLARS = 65_536, 64, 1000, 4096


@dataclass(frozen=True, kw_only=True)
class DrivingDataConfig:
    """Cameras, lidar, grid and classes of a driving model; lengths in metres in the ego frame.

    Attributes:
        image_size: (height, width) of the images in pixels that go into the model.
        mean: Of red, green and blue, in units where black is 0 and white is 1; subtracted first.
        std: The same; divided by.
        cameras: Names of the cameras, in their order in the batch.
        point_range: (x, y, z, x, y, z): smallest and largest coordinates of points that are looked at, and of boxes in
            x and y.
        pillar_size: Edge of a pillar in x and y; the unit of coordinates in the bird's-eye view.
        sweeps: Lidar sweeps that are laid together, the key frame's own among them.

    Raises:
        ConfigError: If a value cannot be used.
    """

    image_size: tuple[int, int]
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    cameras: tuple[str, ...]
    point_range: tuple[float, ...]
    pillar_size: float
    sweeps: int = 1

    def __post_init__(self) -> None:
        size = _numbers("image_size", self.image_size, 2)
        if any(side != int(side) or not 1 <= side <= _MOST_SIDE for side in size):
            raise ConfigError(f"data: image_size must be (height, width) in pixels, not {self.image_size!r:.80}")
        mean, std = _numbers("mean", self.mean, 3), _numbers("std", self.std, 3)
        if min(std) <= 0:
            raise ConfigError(f"data: std must be positive, not {list(std)}")
        cameras = _names("cameras", self.cameras)
        if len(cameras) > _MOST_CAMERAS or len(set(cameras)) < len(cameras):
            raise ConfigError(f"data: cameras must be at most {_MOST_CAMERAS} different names, not {list(cameras)}")
        span = _numbers("point_range", self.point_range, 6)
        if any(low >= high for low, high in zip(span[:3], span[3:], strict=True)):
            raise ConfigError(f"data: point_range must be three smallest, then three larger metres, not {list(span)}")
        (pillar,) = _numbers("pillar_size", (self.pillar_size,), 1)
        if not 1e-3 <= pillar <= 100:
            raise ConfigError(f"data: pillar_size must be 0.001 to 100 metres, not {pillar}")
        for low, high in ((span[0], span[3]), (span[1], span[4])):
            pillars = (high - low) / pillar
            if abs(pillars - round(pillars)) > 1e-6 * pillars or not 1 <= round(pillars) <= _MOST_PILLARS:
                raise ConfigError(
                    f"data: point_range must hold a whole number of pillars, 1 to {_MOST_PILLARS}, along x and y; "
                    f"{low} to {high} is {pillars:.4f} of {pillar} m"
                )
        if type(self.sweeps) is not int or not 1 <= self.sweeps <= _MOST_SWEEPS:
            raise ConfigError(f"data: sweeps must be 1 to {_MOST_SWEEPS}, not {self.sweeps!r:.80}")
        # Lists (from JSON) become tuples, so that equal configurations compare equal.
        made = {"image_size": tuple(map(int, size)), "mean": mean, "std": std, "cameras": cameras, "point_range": span}
        for name, value in {**made, "pillar_size": pillar}.items():
            object.__setattr__(self, name, value)

    @property
    def input_size(self) -> tuple[int, int, int]:
        """(channels, height, width) of an image."""
        return 3, self.image_size[0], self.image_size[1]

    @property
    def grid(self) -> tuple[int, int]:
        """Pillars along x and y."""
        x, y = (self.point_range[axis + 3] - self.point_range[axis] for axis in (0, 1))
        return round(x / self.pillar_size), round(y / self.pillar_size)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> DrivingDataConfig:
        """Builds it from the `data` section of a `config.json`; absent keys with defaults take those.

        Raises:
            ConfigError: If a key is unknown or missing, or a value cannot be used.
        """
        if not isinstance(values, Mapping):
            raise ConfigError(f"data: expected a mapping of settings, not {type(values).__name__}")
        fields = dataclasses.fields(cls)
        known = [field.name for field in fields]
        if unknown := sorted(str(key)[:40] for key in values if key not in known):
            raise ConfigError(
                f"data: unknown settings {', '.join(unknown[:10])}; those of driving models are {', '.join(known)}"
            )
        needed = [field.name for field in fields if field.default is dataclasses.MISSING]
        if missing := [name for name in needed if name not in values]:
            raise ConfigError(f"data: missing {', '.join(missing)}")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain JSON values; `from_dict` restores an equal object."""
        return {key: list(v) if isinstance(v, tuple) else v for key, v in dataclasses.asdict(self).items()}

    def replace(self, **changes: Any) -> DrivingDataConfig:
        """Returns a copy with some fields changed, validated again."""
        return dataclasses.replace(self, **changes)

    def with_channels(self, channels: int) -> DrivingDataConfig:
        """Returns the same: cameras give red, green and blue.

        Raises:
            ConfigError: For another number of channels.
        """
        if channels != 3:
            raise ConfigError(f"data: cameras give 3 channels (red, green, blue), not {channels!r:.40}")
        return self

    def with_size(self, size: int | tuple[int, int]) -> DrivingDataConfig:
        """Returns a copy for images of another size: a side in pixels, or (height, width)."""
        sides = (size, size) if isinstance(size, int) and not isinstance(size, bool) else size
        return self.replace(image_size=sides)


def _numbers(what: str, values: object, count: int) -> tuple[float, ...]:
    usable = isinstance(values, (list, tuple)) and len(values) == count
    if not usable or not all(_finite(value) for value in values):  # type: ignore[attr-defined]
        raise ConfigError(f"data: {what} must be {count} finite number{'s'[: count - 1]}, not {values!r:.80}")
    return tuple(map(float, values))  # type: ignore[call-overload]


def _finite(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _names(what: str, values: object) -> tuple[str, ...]:
    usable = isinstance(values, (list, tuple)) and len(values) > 0
    if not usable or not all(isinstance(value, str) and value for value in values):  # type: ignore[attr-defined]
        raise ConfigError(f"data: {what} must be a list of names, not {values!r:.80}")
    return tuple(values)  # type: ignore[arg-type]
