"""What a video model expects of its clips; it travels with the weights as the `"data"` part of `config.json`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zoo.data_config import DataConfig
from zoo.errors import ConfigError

__all__ = ["PIXEL_RANGES", "SAMPLINGS", "VideoDataConfig"]

SAMPLINGS = ("released-ucf101", "uniform", "dense")
PIXEL_RANGES = ("unit", "bytes")


@dataclass(frozen=True)
class VideoDataConfig(DataConfig):
    """Frames of a clip, and how they are chosen and prepared.

    Size, resizing, `mean` and `std` are those of `DataConfig`, the same for all frames of a clip.

    Attributes:
        frames: Frames of a clip, a multiple of `tubelet`; any number of tubelets may be asked for.
        tubelet: Frames of a tubelet; the `lengths` of clips count tubelets. A model puts its own here.
        sampling: `"dense"`: a stretch of the file, `frames` frames at `frame_rate`, or every `frame_step`-th frame
            where that is `None`; `"uniform"`: `frames` frames spread evenly over the whole file; `"released-ucf101"`:
            from the first frame on, `tubelet` frames next to each other every `frame_step` frames, fewer tubelets of
            shorter files.
        frame_step: Frames of the file from one frame (dense) or tubelet (released) to the next.
        frame_rate: Frames a second of a clip, by the time stamps of the file; of dense sampling alone. `None` leaves it
            to the file.
        pixel_range: `"unit"`: black is 0 and white 1, then `mean` and `std`; `"bytes"`: pixels are left in 0..255, as
            in the released network, so that `mean` is 0 and `std` 1.

    Raises:
        ConfigError: If a value cannot be used.
    """

    MOST: ClassVar[dict[str, int]] = {"frames": 65_536, "tubelet": 64, "frame_step": 65_536}

    frames: int = 16
    tubelet: int = 2
    sampling: str = "dense"
    frame_step: int = 1
    frame_rate: float | None = None
    pixel_range: str = "unit"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, most in self.MOST.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                raise ConfigError(f"data: {name} must be a whole number from 1 to {most}, not {value!r:.80}")
        for name, choices in (("sampling", SAMPLINGS), ("pixel_range", PIXEL_RANGES)):
            if getattr(self, name) not in choices:
                raise ConfigError(f"data: {name} must be one of {', '.join(choices)}, not {getattr(self, name)!r:.80}")
        rate = self.frame_rate
        if rate is not None:
            if not isinstance(rate, (int, float)) or isinstance(rate, bool) or not 1e-6 <= rate <= 1e6:
                raise ConfigError(f"data: frame_rate must be a number from 1e-6 to 1e6 or null, not {rate!r:.80}")
            object.__setattr__(self, "frame_rate", float(rate))
        self._check_together()

    def _check_together(self) -> None:
        if self.frames % self.tubelet:
            raise ConfigError(
                f"data: {self.frames} frames do not divide into tubelets of {self.tubelet} frames: choose a multiple"
            )
        if self.sampling == "released-ucf101" and self.frame_step < self.tubelet:
            raise ConfigError(
                f"data: tubelets of {self.tubelet} frames every {self.frame_step} frames overlap: raise frame_step"
            )
        if self.frame_rate is not None and (self.sampling != "dense" or self.frame_step != 1):
            raise ConfigError("data: frame_rate is for dense sampling with a frame_step of 1; set it to null")
        if self.pixel_range == "bytes" and (any(self.mean) or any(value != 1 for value in self.std)):
            raise ConfigError("data: pixels left in 0..255 (pixel_range 'bytes') have mean 0 and std 1")

    @property
    def tubelets(self) -> int:
        """Tubelets of a clip of full length."""
        return self.frames // self.tubelet

    @property
    def duration_s(self) -> float | None:
        """Seconds that a clip of full length lasts, `None` where the file decides."""
        return None if self.frame_rate is None else self.frames / self.frame_rate
