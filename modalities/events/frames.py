"""Events as pictures."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from modalities.events.events import Events
from zoo.errors import DataError

if TYPE_CHECKING:
    import PIL.Image

    from modalities.events.read import EventReader
    from zoo.results import PictureResults

__all__ = ["BRIGHTER", "DARKER", "EventFrame", "RecordedWindow", "draw_events"]

# Orange and sky blue of the palette of Okabe and Ito (Color Universal Design, 2008): told apart with every common
# deficiency of colour vision, and of similar lightness, so that neither polarity stands out.
BRIGHTER, DARKER = (230, 159, 0), (86, 180, 233)
_FULL = 3  # events of a pixel that give the full colour
_FAINTEST = 0.5  # of the full colour, for a single event
_LONGEST_US = 24 * 3_600_000_000  # of a video with one result: a clock that jumps by years would give it no end
_SHOWN = 720  # pixels of the long side that small sensors are enlarged to, at most


@dataclass(frozen=True, eq=False)
class EventFrame:
    """A picture of events.

    Attributes:
        rgb: uint8 (height, width, 3).
    """

    rgb: np.ndarray

    def to_pil(self) -> PIL.Image.Image:
        """The picture as a PIL image; one of a small sensor is enlarged by a whole number, to 720 pixels at most."""
        import PIL.Image

        factor = max(1, _SHOWN // max(self.rgb.shape[:2]))
        picture = PIL.Image.fromarray(self.rgb)
        return (
            picture
            if factor == 1
            else picture.resize((factor * picture.width, factor * picture.height), PIL.Image.Resampling.NEAREST)
        )


def draw_events(events: Events, height: int, width: int) -> EventFrame:
    """Draws events on black: orange where it became brighter and blue where it became darker, more events more colour.

    Args:
        events: Events; those outside of the picture are left out.
        height: Rows.
        width: Columns.
    """
    inside = (events.x >= 0) & (events.x < width) & (events.y >= 0) & (events.y < height)
    place = events.y[inside].astype(np.int64) * width + events.x[inside]
    brighter = events.p[inside]
    ups, downs = (
        np.minimum(np.bincount(place[chosen], minlength=height * width), _FULL) for chosen in (brighter, ~brighter)
    )
    return EventFrame(_palette()[(_FULL + 1) * ups + downs].reshape(height, width, 3))


@functools.cache
def _palette() -> np.ndarray:
    """uint8 ((_FULL + 1)^2, 3): the colour of a pixel with i events of the one kind and j of the other, both capped."""
    counts = np.arange(_FULL + 1)
    strength = np.where(counts > 0, _FAINTEST + (1 - _FAINTEST) * (counts - 1) / (_FULL - 1), 0.0)[:, None]
    mixed = (strength * np.array(BRIGHTER))[:, None] + (strength * np.array(DARKER))[None]
    return np.minimum(mixed, 255).astype(np.uint8).reshape(-1, 3)


@dataclass(frozen=True, eq=False)
class RecordedWindow:
    """Where the events of a result are in its recording: they are read again when wanted, results hold none.

    Attributes:
        reader: The recording.
        start_us: Start of the window, in the clock of the recording.
        end_us: Its end.
        size: (height, width) of the picture.
        stride_us: Microseconds from one result to the next; `None`: it is the one result of the recording.
    """

    reader: EventReader
    start_us: int
    end_us: int
    size: tuple[int, int]
    stride_us: int | None = None

    def __call__(self) -> EventFrame:
        """A picture of the events of the window.

        Raises:
            DataError: If the recording has none or cannot be read any more.
        """
        parts = [chunk[(chunk.t_us >= self.start_us) & (chunk.t_us < self.end_us)] for chunk in self.reader.chunks()]
        if not parts:
            raise DataError(f"{self.reader.name}: holds no events to draw")
        return draw_events(Events.concatenate(parts), *self.size)

    def frame_ends(self, fps: float) -> Iterator[int]:
        """Times at which the frames of a video end: that of the window, or `fps` a second over the whole recording.

        Raises:
            DataError: If the whole recording lasts longer than a day.
        """
        if self.stride_us is not None:
            yield self.end_us
            return
        if self.end_us - self.start_us > _LONGEST_US:
            raise DataError(
                f"{self.reader.name}: lasts {(self.end_us - self.start_us) / 3.6e9:,.0f} hours by its clock, more than "
                "a video of one result may (24): ask for results with a stride"
            )
        number, end_us = 0, self.start_us
        while end_us < self.end_us:
            number += 1
            end_us = self.start_us + max(number, round(number * 1e6 / fps))
            yield end_us

    def save_video(self, result: PictureResults, path: Path) -> None:
        """Writes the recording with its one result as a video.

        Raises:
            DataError: If the result is one of many, or as `EventVideo`.
        """
        from modalities.events.video import EventVideo

        if self.stride_us is not None:
            raise DataError(f"{path}: the result of one window makes no video; add them all to Predictor.video({path})")
        with EventVideo(path) as video:
            video.add(result)
