"""Events in memory: four arrays of equal length and the size of the sensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from zoo.errors import DataError

if TYPE_CHECKING:
    import PIL.Image

__all__ = ["Events"]

_DTYPES = {"t_us": np.int64, "x": np.int32, "y": np.int32, "p": np.bool_}
_LARGEST_PLOT = 2**26  # pixels; a coordinate may be anything where a file does not say the size of its sensor


@dataclass(frozen=True, eq=False)
class Events:
    """Events of a recording or of a part of it, in the order of the file.

    Attributes:
        t_us: int64 (N,) times in microseconds, as the file counts them: nothing is subtracted.
        x: int32 (N,) columns from 0.
        y: int32 (N,) rows from 0, downwards.
        p: bool (N,) polarity: True where it became brighter.
        width: Columns of the sensor; `None` where neither the file nor the caller says.
        height: Rows of the sensor; `None` likewise.
        name: The path or address as it was given, or a description of an object in memory.
        path: The file, if it came from one.
        format: What was read, for example `"evt3"`.
        truncated: True when the file was damaged or ended early and only a part was decoded (`errors="keep"`).
    """

    t_us: np.ndarray
    x: np.ndarray
    y: np.ndarray
    p: np.ndarray
    width: int | None = None
    height: int | None = None
    name: str = "events"
    path: Path | None = None
    format: str | None = None
    truncated: bool = False

    def __post_init__(self) -> None:
        for field, dtype in _DTYPES.items():
            array = getattr(self, field)
            if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != (len(self.t_us),):
                found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
                raise DataError(f"{self.name}: {field} must be {np.dtype(dtype)} ({len(self.t_us)},), not {found}")

    def __len__(self) -> int:
        return len(self.t_us)

    def __getitem__(self, index: slice | np.ndarray) -> Events:
        """A part: a slice, a mask or indices; slices share memory."""
        return replace(self, t_us=self.t_us[index], x=self.x[index], y=self.y[index], p=self.p[index])

    @property
    def size(self) -> tuple[int | None, int | None]:
        """(height, width) of the sensor in pixels."""
        return self.height, self.width

    def sorted(self) -> Events:
        """The same events by time; events of one time stay in their order."""
        if (self.t_us[1:] >= self.t_us[:-1]).all():
            return self
        return self[np.argsort(self.t_us, kind="stable")]

    def plot(self) -> PIL.Image.Image:
        """Draws them on black, orange where it became brighter and blue where it became darker.

        Returns:
            An RGB picture of the sensor (where its size is not known, up to the last row and column with an event),
            enlarged by a whole number when small. Slices give parts: `events[events.t_us < 50_000].plot()`.

        Raises:
            DataError: If there are no events and the size of the sensor is not known.
        """
        from modalities.events.frames import draw_events

        if not len(self) and (self.width is None or self.height is None):
            raise DataError(f"{self.name}: no events to draw, and the size of the sensor is not known")
        height = int(self.y.max()) + 1 if self.height is None else self.height
        width = int(self.x.max()) + 1 if self.width is None else self.width
        if height * width > _LARGEST_PLOT:
            raise DataError(
                f"{self.name}: {width} x {height} pixels are no sensor's; pass width= and height= when reading"
            )
        return draw_events(self, height, width).to_pil()

    @staticmethod
    def concatenate(parts: Sequence[Events]) -> Events:
        """Joins parts of one recording in their order.

        Raises:
            DataError: If there is no part.
        """
        if not parts:
            raise DataError("no events to join: the list of parts is empty")
        t_us, x, y, p = (np.concatenate([getattr(part, field) for part in parts]) for field in _DTYPES)
        return replace(parts[-1], t_us=t_us, x=x, y=y, p=p)
