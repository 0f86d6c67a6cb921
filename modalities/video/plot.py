"""Drawing of videos and of how the scores of classes change over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from zoo.results import one_line

if TYPE_CHECKING:
    import PIL.Image

__all__ = ["COLOURS", "draw_timeline", "side_by_side"]

# The palette of Okabe and Ito (Color Universal Design, 2008), told apart with every common deficiency of colour vision.
COLOURS = ((0, 114, 178), (213, 94, 0), (0, 158, 115), (204, 121, 167), (230, 159, 0), (86, 180, 233))
_GAP = 4  # pixels between frames
_SIDE = 240  # pixels of the longer side of a frame in a row, at most


def side_by_side(frames: np.ndarray) -> PIL.Image.Image:
    """Frames, uint8 (T, H, W, 3), in a row on white, each of at most 240 pixels."""
    from PIL import Image

    height, width = frames.shape[1:3]
    scale = min(1.0, _SIDE / max(height, width))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    sheet = Image.new("RGB", (len(frames) * (size[0] + _GAP) - _GAP, size[1]), "white")
    for place, frame in enumerate(frames):
        sheet.paste(Image.fromarray(frame).resize(size), (place * (size[0] + _GAP), 0))
    return sheet


def draw_timeline(
    picture: PIL.Image.Image, windows_us: Sequence[tuple[int, int]], curves: Sequence[tuple[str, np.ndarray]]
) -> PIL.Image.Image:
    """Puts a diagram of scores over time below a picture.

    Args:
        picture: What is above.
        windows_us: Start and end of each window; a score stands at its middle.
        curves: Label and scores in 0..1, (windows,), of each class; the first six are drawn.
    """
    from PIL import Image, ImageDraw, ImageFont

    text_size = max(12, picture.width // 48)
    font = ImageFont.load_default(text_size)
    margin, room = 4 * text_size, max(120, picture.width // 4)
    shown = curves[: len(COLOURS)]
    legend = round(1.4 * text_size) * len(shown)
    height = room + 4 * text_size + legend
    sheet = Image.new("RGB", (picture.width, picture.height + height), "white")
    sheet.paste(picture, (0, 0))
    draw = ImageDraw.Draw(sheet)
    left, right = margin, picture.width - text_size
    bottom = picture.height + text_size + room
    start, end = windows_us[0][0], max(window[1] for window in windows_us)
    middles = np.array([(first + last) / 2 for first, last in windows_us])
    across = left + (middles - start) / max(end - start, 1) * (right - left)
    for share in (0.0, 0.5, 1.0):
        y = bottom - share * room
        draw.line((left, y, right, y), fill=(210, 210, 210))
        draw.text((left - 6, y), f"{100 * share:.0f} %", fill="black", font=font, anchor="rm")
        x, time = left + share * (right - left), start + share * (end - start)
        draw.text(
            (x, bottom + 4), f"{time / 1e6:.2f} s", fill="black", font=font, anchor=("la", "ma", "ra")[round(2 * share)]
        )
    for (_, scores), colour in reversed(list(zip(shown, COLOURS, strict=False))):
        points = [(float(x), float(bottom - score * room)) for x, score in zip(across, scores, strict=True)]
        draw.line(points, fill=colour, width=max(2, text_size // 6))
    for row, ((label, _), colour) in enumerate(zip(shown, COLOURS, strict=False)):
        y = bottom + 2 * text_size + row * round(1.4 * text_size)
        draw.rectangle((left, y, left + text_size, y + text_size), fill=colour)
        draw.text((left + 2 * text_size, y + text_size / 2), one_line(label), fill="black", font=font, anchor="lm")
    return sheet
