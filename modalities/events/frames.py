"""Events as pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from modalities.events.events import Events

if TYPE_CHECKING:
    import PIL.Image

__all__ = ["EventFrame", "draw_events"]

_BRIGHTER, _DARKER = np.array([255, 80, 60], np.float32), np.array([70, 130, 255], np.float32)
_FULL = 3  # events of a pixel that give the full colour


@dataclass(frozen=True, eq=False)
class EventFrame:
    """A picture of events.

    Attributes:
        rgb: uint8 (height, width, 3).
    """

    rgb: np.ndarray

    def to_pil(self) -> PIL.Image.Image:
        """The picture as a PIL image."""
        import PIL.Image

        return PIL.Image.fromarray(self.rgb)


def draw_events(events: Events, height: int, width: int) -> EventFrame:
    """Draws events on black: red where it became brighter and blue where it became darker, more events more colour.

    Args:
        events: Events; those outside of the picture are left out.
        height: Rows.
        width: Columns.
    """
    inside = (events.x >= 0) & (events.x < width) & (events.y >= 0) & (events.y < height)
    place = events.y[inside].astype(np.int64) * width + events.x[inside]
    brighter = events.p[inside]
    picture = np.zeros((height * width, 3), np.float32)
    for chosen, colour in ((brighter, _BRIGHTER), (~brighter, _DARKER)):
        count = np.bincount(place[chosen], minlength=height * width)
        picture += np.minimum(count / _FULL, 1.0).astype(np.float32)[:, None] * colour
    return EventFrame(np.minimum(picture, 255).astype(np.uint8).reshape(height, width, 3))
