"""A clip: frames with their times."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from zoo.errors import DataError

if TYPE_CHECKING:
    import PIL.Image

__all__ = ["Clip", "Frame", "clip_from_array"]

_DEFAULT_FPS = 30.0


@dataclass(frozen=True, eq=False)
class Frame:
    """One frame of a video.

    Attributes:
        rgb: uint8 (H, W, 3), upright.
        time_s: Seconds since the start of the stream.
    """

    rgb: np.ndarray
    time_s: float

    def to_pil(self) -> PIL.Image.Image:
        """Returns the frame as a PIL image."""
        import PIL.Image

        return PIL.Image.fromarray(self.rgb)


@dataclass(frozen=True, eq=False)
class Clip:
    """Frames in the order they are shown.

    Attributes:
        frames: uint8 (T, H, W, 3), upright (the rotation that the file states is applied).
        times_s: float64 (T,), seconds since the start of the stream; not evenly spaced where the frame rate varies.
        name: The path or address as it was given, or a description of an object in memory.
        path: The file, if it came from one.
        truncated: True when the file is damaged and only a part was decoded.

    Raises:
        DataError: If shapes or types do not fit.
    """

    frames: np.ndarray
    times_s: np.ndarray
    name: str = "clip"
    path: Path | None = None
    truncated: bool = False

    def __post_init__(self) -> None:
        if self.frames.ndim != 4 or self.frames.shape[3] != 3 or self.frames.dtype != np.uint8:
            raise DataError(
                f"{self.name}: frames must be uint8 (time, height, width, 3), not {self.frames.dtype} "
                f"{self.frames.shape}"
            )
        if 0 in self.frames.shape:
            raise DataError(f"{self.name}: a clip without frames or pixels: {self.frames.shape}")
        if self.times_s.shape != (len(self.frames),) or not np.isfinite(self.times_s).all():
            raise DataError(f"{self.name}: expected one finite time per frame, got {self.times_s.shape}")

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) in pixels."""
        return self.frames.shape[1], self.frames.shape[2]

    def at(self, indices: np.ndarray) -> Clip:
        """Returns the frames at positions, int64 (n,), in their order; may repeat."""
        return Clip(self.frames[indices], self.times_s[indices], self.name, self.path, self.truncated)


def clip_from_array(value: Any, name: str, fps: float | None = None) -> Clip:
    """Takes frames in memory as a clip.

    Args:
        value: An array or tensor uint8 (T, H, W, 3), or a `Clip`, which is returned as it is.
        name: What errors call it.
        fps: Frames a second; 30 by default.

    Raises:
        DataError: If it is something else.
    """
    if isinstance(value, Clip):
        return value
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if not isinstance(value, np.ndarray):
        raise DataError(
            f"{name}: a {type(value).__name__} is no clip; pass a path, URL, bytes, or an array uint8 (time, height, "
            "width, 3)"
        )
    rate = _DEFAULT_FPS if fps is None else fps
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate < float("inf"):
        raise DataError(f"{name}: fps must be a positive number, not {fps!r:.40}")
    if value.ndim == 4 and value.shape[3] != 3:
        raise DataError(f"{name}: shape {value.shape}, expected (time, height, width, 3): channels come last")
    return Clip(np.ascontiguousarray(value), np.arange(len(value)) / rate if value.ndim else np.zeros(0), name)
