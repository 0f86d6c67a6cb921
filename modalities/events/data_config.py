"""What an event model expects of its input; it travels with the weights as the `"data"` part of `config.json`."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zoo.errors import ConfigError

if TYPE_CHECKING:
    from modalities.events.tokenizer import SpikingPatches

__all__ = ["TIME_REFERENCES", "EventDataConfig"]

TIME_REFERENCES = ("start", "end")
_MOST = {
    "width": 65_536,
    "height": 65_536,
    "patch_size": 256,
    "threshold": 32_767,
    "refractory_us": 2**53,
    "buckets": 40,
    "window_us": 2**53,
    "max_events": 2**40,
}
_OPTIONAL = ("window_us", "max_events")
_LARGEST_GRID = 1 << 20  # patches of the sensor
_LARGEST_STATE = 1 << 27  # events that the tokenizer may hold: 1 GiB


@dataclass(frozen=True, kw_only=True)
class EventDataConfig:
    """Sensor, tokenizer and clock of an event model.

    Attributes:
        width: Columns of the sensor in pixels.
        height: Rows of the sensor in pixels.
        patch_size: Side of a patch in pixels, see `SpikingPatches`.
        threshold: Events of a token.
        refractory_us: Microseconds after a token in which its patch drops events.
        buckets: Buckets of age; the model has 2 x buckets input channels.
        time_scale_us: Microseconds per unit of the time coordinate.
        time_reference: `"start"`: the time of a token is counted from the start of the recording (or gesture),
            which is the first event where a file does not say;
            `"end"`: it is the token's age at the end of the events (at the label), as in the released GEN1 network.
        window_us: Microseconds of events of a sample, next to its reference; `None` means all. With a window the extent
            of coordinates is known, which lets encodings choose their arithmetic without waiting for a GPU.
        max_events: The last so many events of a sample alone (500,000 in the released GEN1 network); `None` means all.

    Raises:
        ConfigError: If a value cannot be used.
    """

    width: int
    height: int
    patch_size: int = 16
    threshold: int = 256
    refractory_us: int = 100_000
    buckets: int = 10
    time_scale_us: float = 50_000.0
    time_reference: str = "start"
    window_us: int | None = None
    max_events: int | None = None

    def __post_init__(self) -> None:
        for name, most in _MOST.items():
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            least = 0 if name == "refractory_us" else 1
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise ConfigError(f"data: {name} must be a whole number from {least} to {most}, not {value!r:.80}")
        scale = self.time_scale_us
        usable = isinstance(scale, (int, float)) and not isinstance(scale, bool) and 1e-6 <= scale <= 1e15
        if not usable:
            raise ConfigError(f"data: time_scale_us must be a positive number of microseconds, not {scale!r:.80}")
        object.__setattr__(self, "time_scale_us", float(scale))
        if self.time_reference not in TIME_REFERENCES:
            raise ConfigError(
                f"data: time_reference must be one of {', '.join(TIME_REFERENCES)}, not {self.time_reference!r:.80}"
            )
        patches = math.prod(self.grid)
        if patches > _LARGEST_GRID or patches * self.threshold > _LARGEST_STATE:
            raise ConfigError(
                f"data: {patches} patches of the sensor and a threshold of {self.threshold} events are more than the "
                f"tokenizer takes ({_LARGEST_GRID} patches, {_LARGEST_STATE} events): use larger patches"
            )

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of patches."""
        return -(-self.height // self.patch_size), -(-self.width // self.patch_size)

    @property
    def input_size(self) -> tuple[int, int, int]:
        """(channels, height, width): 2 polarities x buckets, and the sensor in pixels."""
        return 2 * self.buckets, self.height, self.width

    @functools.cached_property
    def tokenizer(self) -> SpikingPatches:
        """The tokenizer with these settings."""
        from modalities.events.tokenizer import SpikingPatches

        return SpikingPatches(
            self.width, self.height, self.patch_size, self.threshold, self.refractory_us, self.buckets
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EventDataConfig:
        """Builds it from the `data` section of a `config.json`; absent keys other than the size take the defaults.

        Raises:
            ConfigError: If a key is unknown or missing, or a value cannot be used.
        """
        if not isinstance(values, Mapping):
            raise ConfigError(f"data: expected a mapping of settings, not {type(values).__name__}")
        known = [field.name for field in dataclasses.fields(cls)]
        if unknown := sorted(str(key)[:40] for key in values if key not in known):
            raise ConfigError(
                f"data: unknown settings {', '.join(unknown[:10])}; those of event models are {', '.join(known)}"
            )
        if missing := [key for key in ("width", "height") if key not in values]:
            raise ConfigError(f"data: missing {' and '.join(missing)}, the size of the sensor in pixels")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain JSON values; `from_dict` restores an equal object."""
        return dataclasses.asdict(self)

    def replace(self, **changes: Any) -> EventDataConfig:
        """Returns a copy with some fields changed, validated again."""
        return dataclasses.replace(self, **changes)

    def with_channels(self, channels: int) -> EventDataConfig:
        """Returns the same: buckets of age cannot stand for others, so the number of channels is fixed.

        Raises:
            ConfigError: For another number of channels.
        """
        if channels != 2 * self.buckets:
            raise ConfigError(
                f"data: {self.buckets} buckets give {2 * self.buckets} channels, not {channels!r:.40}: the channels of "
                "an event model cannot be adapted; train one with other buckets"
            )
        return self

    def with_size(self, size: int | tuple[int, int]) -> EventDataConfig:
        """Returns a copy for another sensor: a side in pixels, or (height, width)."""
        sides = (size, size) if isinstance(size, int) else size
        if isinstance(size, bool) or not isinstance(sides, (list, tuple)) or len(sides) != 2:
            raise ConfigError(f"data: a size is a side in pixels or (height, width), not {size!r:.80}")
        return self.replace(height=sides[0], width=sides[1])
