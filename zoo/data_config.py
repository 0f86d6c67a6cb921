"""What a model expects of its input pictures; it travels with the weights in `config.json`."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from zoo.errors import ConfigError

__all__ = ["INTERPOLATIONS", "RESIZES", "DataConfig"]

RESIZES = ("shortest", "squash", "letterbox")
INTERPOLATIONS = ("bicubic", "bilinear", "nearest")
_MAX_CHANNELS = 4096
_MAX_SIDE = 65_536


@dataclass(frozen=True)
class DataConfig:
    """Input size and preprocessing of a model.

    Attributes:
        input_size: (channels, height, width) the model was trained at; any size the model takes may be asked for.
        resize: `"shortest"`: the short side becomes size / crop_fraction, then the centre is cropped;
            `"squash"`: the whole picture becomes exactly height x width; `"letterbox"`: the whole picture is fitted in
            with its aspect ratio, centred in grey.
        crop_fraction: Part of the resized side that the centre crop of `"shortest"` keeps, in (0, 1].
        interpolation: `"bicubic"`, `"bilinear"` or `"nearest"`.
        antialias: Low-pass filter when shrinking (never for `"nearest"`).
        mean: Per channel, in units where black is 0 and white is 1; subtracted first.
        std: Per channel, in the same units; divided by.

    Raises:
        ConfigError: If a value cannot be used.
    """

    input_size: tuple[int, int, int] = (3, 224, 224)
    resize: str = "shortest"
    crop_fraction: float = 1.0
    interpolation: str = "bicubic"
    antialias: bool = True
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)

    def __post_init__(self) -> None:
        size = _sequence("input_size", self.input_size)
        if len(size) != 3 or not all(_is_int(value) for value in size):
            raise ConfigError(f"data: input_size must be three integers (channels, height, width), not {size!r:.80}")
        if not (1 <= size[0] <= _MAX_CHANNELS and all(1 <= side <= _MAX_SIDE for side in size[1:])):
            raise ConfigError(f"data: input_size {size!r:.80} is out of range (1 to {_MAX_SIDE} pixels a side)")
        if self.resize not in RESIZES:
            raise ConfigError(f"data: resize must be one of {', '.join(RESIZES)}, not {self.resize!r:.80}")
        if self.interpolation not in INTERPOLATIONS:
            raise ConfigError(
                f"data: interpolation must be one of {', '.join(INTERPOLATIONS)}, not {self.interpolation!r:.80}"
            )
        if not isinstance(self.antialias, bool):
            raise ConfigError(f"data: antialias must be true or false, not {self.antialias!r:.80}")
        crop_fraction = _number("crop_fraction", self.crop_fraction)
        # Below 1 % the picture would be enlarged a hundredfold before the crop.
        if not 0.01 <= crop_fraction <= 1:
            raise ConfigError(f"data: crop_fraction must be in 0.01..1, not {crop_fraction}")
        mean = tuple(_number("mean", value) for value in _sequence("mean", self.mean))
        std = tuple(_number("std", value) for value in _sequence("std", self.std))
        if len(mean) != size[0] or len(std) != size[0]:
            raise ConfigError(
                f"data: mean and std need one value per input channel ({size[0]}), got {len(mean)} and {len(std)}"
            )
        if min(std) <= 0:
            raise ConfigError(f"data: std must be positive, not {list(std)}")
        # Lists (from JSON) become tuples and integers floats, so that equal configurations compare equal.
        for name, value in {"input_size": size, "crop_fraction": crop_fraction, "mean": mean, "std": std}.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Builds it from the `data` section of a `config.json`.

        Absent keys take the defaults (mean 0 and std 1 for every channel); unknown keys are ignored with a
        `UserWarning` that names them.

        Raises:
            ConfigError: If a value cannot be used.
        """
        if not isinstance(values, Mapping):
            raise ConfigError(f"data: expected a mapping of settings, not {type(values).__name__}")
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(str(key) for key in values if key not in known):
            names = ", ".join(f"{key:.40}" for key in unknown[:10])
            warnings.warn(f"data: unknown settings ignored: {names}", UserWarning, stacklevel=2)
        settings = {key: value for key, value in values.items() if key in known}
        size = settings.get("input_size")
        if isinstance(size, (list, tuple)) and size and _is_int(size[0]) and 1 <= size[0] <= _MAX_CHANNELS:
            settings.setdefault("mean", (0.0,) * size[0])
            settings.setdefault("std", (1.0,) * size[0])
        return cls(**settings)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain JSON values; `from_dict` restores an equal object."""
        return {key: list(v) if isinstance(v, tuple) else v for key, v in dataclasses.asdict(self).items()}

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with some fields changed, validated again."""
        return dataclasses.replace(self, **changes)

    def with_channels(self, channels: int) -> Self:
        """Returns a copy for another channel count: each new mean and std is the average of the old ones."""
        if channels == self.input_size[0]:
            return self
        average = {name: sum(getattr(self, name)) / self.input_size[0] for name in ("mean", "std")}
        repeat = max(channels, 0) if _is_int(channels) else 0  # A bad count is refused by the constructor.
        return self.replace(
            input_size=(channels, *self.input_size[1:]),
            mean=(average["mean"],) * repeat,
            std=(average["std"],) * repeat,
        )

    def with_size(self, size: int | tuple[int, int]) -> Self:
        """Returns a copy for another input size: a side in pixels, or (height, width)."""
        if not _is_int(size) and not (isinstance(size, (list, tuple)) and len(size) == 2):
            raise ConfigError(f"data: a size is a side in pixels or (height, width), not {size!r:.80}")
        sides = size if isinstance(size, (list, tuple)) else (size, size)
        return self.replace(input_size=(self.input_size[0], *sides))


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _sequence(name: str, value: object) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise ConfigError(f"data: {name} must be a list, not {value!r:.80}")
    return tuple(value)


def _number(name: str, value: object) -> float:
    try:
        if not isinstance(value, bool) and isinstance(value, (int, float)) and math.isfinite(value):
            return float(value)
    except OverflowError:  # An integer beyond every float.
        pass
    raise ConfigError(f"data: {name} must be a finite number, not {value!r:.80}")
