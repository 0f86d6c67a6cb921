"""What a point model expects of its clouds; it travels with the weights as the `"data"` part of `config.json`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zoo.errors import ConfigError

__all__ = ["FEATURES", "NORMALISATIONS", "PointDataConfig"]

NORMALISATIONS = ("unit-box", "centre", "none")
# Name of a feature -> its channels.
FEATURES = {"xyz": 3, "rgb": 3, "normal": 3, "intensity": 1, "height": 1, "return": 2}
_MOST_POINTS = 1 << 26


@dataclass(frozen=True, kw_only=True)
class PointDataConfig:
    """Normalisation and features of clouds; z is up. `modalities.points.prepare` makes them of a cloud.

    Attributes:
        grid_size: Edge of a voxel in units of the normalised coordinates; 0 for models that do not voxelise.
        normalise: `"unit-box"`: the centre of the bounding box is removed and the largest half extent becomes 1;
            `"centre"`: the centre of the bounding box in x and y, and the smallest z, are removed;
            `"none"`: coordinates stay (a whole-number origin may go).
        feature_names: Features in the order of their channels, names of `FEATURES`, each scaled to about -1..1:
            `"xyz"` the normalised coordinates themselves, divided by 10 unless `"unit-box"` (so that 10 m are 1);
            `"rgb"` black -1 and white 1; `"normal"` unit vectors; `"intensity"` -1 for none, 1 for the largest, whole
            numbers (16 bit) on a logarithmic scale and others (0..1) on a linear one; `"height"` z above the lowest
            point, divided by 10 unless `"unit-box"`; `"return"` two channels, the number of the return over how many
            the pulse gave (-1..1), and how many (1 is -1, 5 or more are 1).
        num_points: Points a cloud is brought to, `None` for any number.
        class_names: Names of the classes, where there are any.
        ignore_label: Label of points that belong to no class.

    Raises:
        ConfigError: If a value cannot be used.
    """

    grid_size: float = 0.0
    normalise: str = "unit-box"
    feature_names: tuple[str, ...] = ("xyz",)
    num_points: int | None = None
    class_names: tuple[str, ...] | None = None
    ignore_label: int = 255

    def __post_init__(self) -> None:
        grid = self.grid_size
        finite = isinstance(grid, (int, float)) and not isinstance(grid, bool) and math.isfinite(grid)
        if not finite or not (grid == 0 or 1e-6 <= grid <= 1e6):
            raise ConfigError(f"data: grid_size must be 0 (no voxels) or a length from 1e-6 to 1e6, not {grid!r:.80}")
        if self.normalise not in NORMALISATIONS:
            raise ConfigError(f"data: normalise must be one of {', '.join(NORMALISATIONS)}, not {self.normalise!r:.80}")
        names = _names("feature_names", self.feature_names)
        if not names or len(set(names)) != len(names) or any(name not in FEATURES for name in names):
            raise ConfigError(
                f"data: feature_names must be different names of {', '.join(FEATURES)}, not {list(names)!r:.120}"
            )
        for name, least, most in (("num_points", 1, _MOST_POINTS), ("ignore_label", -(2**31), 2**31 - 1)):
            value = getattr(self, name)
            if name == "num_points" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise ConfigError(f"data: {name} must be a whole number from {least} to {most}, not {value!r:.80}")
        classes = None if self.class_names is None else _names("class_names", self.class_names)
        # Lists (from JSON) become tuples and integers floats, so that equal configurations compare equal.
        for key, made in {"grid_size": float(grid), "feature_names": names, "class_names": classes}.items():
            object.__setattr__(self, key, made)

    @property
    def in_chans(self) -> int:
        """Channels of the features."""
        return sum(FEATURES[name] for name in self.feature_names)

    @property
    def input_size(self) -> tuple[int, ...]:
        """(channels, points), or (channels,) where clouds have any number of points."""
        return (self.in_chans,) if self.num_points is None else (self.in_chans, self.num_points)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PointDataConfig:
        """Builds it from the `data` section of a `config.json`; absent keys take the defaults.

        Raises:
            ConfigError: If a key is unknown or a value cannot be used.
        """
        if not isinstance(values, Mapping):
            raise ConfigError(f"data: expected a mapping of settings, not {type(values).__name__}")
        known = [field.name for field in dataclasses.fields(cls)]
        if unknown := sorted(str(key)[:40] for key in values if key not in known):
            raise ConfigError(
                f"data: unknown settings {', '.join(unknown[:10])}; those of point models are {', '.join(known)}"
            )
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain JSON values; `from_dict` restores an equal object."""
        return {key: list(v) if isinstance(v, tuple) else v for key, v in dataclasses.asdict(self).items()}

    def replace(self, **changes: Any) -> PointDataConfig:
        """Returns a copy with some fields changed, validated again."""
        return dataclasses.replace(self, **changes)

    def with_channels(self, channels: int) -> PointDataConfig:
        """Returns the same: a feature cannot stand for another, so the number of channels is fixed.

        Raises:
            ConfigError: For another number of channels.
        """
        if channels != self.in_chans:
            raise ConfigError(
                f"data: features {', '.join(self.feature_names)} are {self.in_chans} channels, not {channels!r:.40}: "
                "the channels of a point model cannot be adapted; train one with other features"
            )
        return self

    def with_size(self, size: int) -> PointDataConfig:
        """Returns a copy for clouds of so many points.

        Raises:
            ConfigError: If it is no number of points.
        """
        if isinstance(size, bool) or not isinstance(size, int):
            raise ConfigError(f"data: the size of a cloud is a number of points, not {size!r:.80}")
        return self.replace(num_points=size)


def _names(what: str, values: object) -> tuple[str, ...]:
    if not isinstance(values, (list, tuple)) or not all(isinstance(value, str) for value in values):
        raise ConfigError(f"data: {what} must be a list of names, not {values!r:.80}")
    return tuple(values)
