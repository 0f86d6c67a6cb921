"""Made-up recordings of digits, to try models with: a drawn digit before a simulated event camera."""

from __future__ import annotations

import numpy as np

from modalities.events.canvas import CanvasOptions, compose, write_dat
from modalities.events.events import Events

__all__ = ["digit", "digits"]

_SIDE = 34  # pixels of the sensor, as of N-MNIST
_STEP_US = 1000
# Corners of the path in pixels (x, y), 105 ms between two: an isosceles triangle, as the camera of N-MNIST moved
# (Orchard et al. 2015).
_SACCADES = ((-2.5, -2.0), (0.0, 3.0), (2.5, -2.0), (-2.5, -2.0))
_SACCADE_US = 105_000
_CONTRAST = 0.35  # change of the logarithm of the brightness that makes an event


def digit(number: int = 7) -> bytes:
    """A recording of one digit in the binary format of N-MNIST, 34 x 34 pixels and 315 ms."""
    events = _filmed(number)
    raw = np.empty((len(events), 5), np.uint8)
    raw[:, 0], raw[:, 1] = events.x, events.y
    raw[:, 2] = events.p.astype(np.uint8) << 7 | (events.t_us >> 16).astype(np.uint8)
    raw[:, 3], raw[:, 4] = events.t_us >> 8 & 255, events.t_us & 255
    return raw.tobytes()


def digits(numbers: tuple[int, ...] = (3, 5, 2)) -> bytes:
    """A DAT recording of digits that move over 304 x 240 pixels, as `modalities.events.canvas` composes them."""
    recorded = [(number, _filmed(number)) for number in numbers]
    return write_dat(compose(recorded, CanvasOptions(), np.random.default_rng(0))[0])


def _filmed(number: int) -> Events:
    """Events of a digit that moves as those of N-MNIST do, with a step a millisecond."""
    corners = np.array(_SACCADES)
    times = np.arange(0, (len(corners) - 1) * _SACCADE_US, _STEP_US)
    leg, share = np.divmod(times / _SACCADE_US, 1)
    share = leg + share**2 * (3 - 2 * share)  # From rest to rest.
    path = np.stack([np.interp(share, np.arange(len(corners)), corners[:, axis]) for axis in (0, 1)], 1)
    rng = np.random.default_rng(number)
    before = _logarithm(number, path[0])
    # Pixels start between two events, each at a place of its own.
    reference = before + rng.uniform(-0.5, 0.5, before.shape) * _CONTRAST
    found: list[np.ndarray] = []
    for time, place in zip(times[1:].tolist(), path[1:], strict=True):
        now = _logarithm(number, place)
        for _ in range(3):  # At most so many events of a pixel in a step.
            change = now - reference
            rows, columns = np.nonzero(np.abs(change) > _CONTRAST)
            brighter = change[rows, columns] > 0
            reference[rows, columns] += np.where(brighter, _CONTRAST, -_CONTRAST)
            late = time + rng.integers(0, _STEP_US, len(rows))
            found.append(np.stack([late, columns, rows, brighter], 1))
    t, x, y, p = np.concatenate(found).T
    order = np.argsort(t, kind="stable")
    return Events(
        t[order].astype(np.int64),
        x[order].astype(np.int32),
        y[order].astype(np.int32),
        p[order].astype(bool),
        width=_SIDE,
        height=_SIDE,
        name=f"digit {number}",
    )


def _logarithm(number: int, place: np.ndarray) -> np.ndarray:
    """Logarithm of the brightness of each pixel, float64 (34, 34), of a digit that was moved.

    It is darker than what is around it, by the polarities of N-MNIST.
    """
    from PIL import Image, ImageDraw, ImageFilter, ImageFont

    finer = 4
    picture = Image.new("L", (finer * _SIDE, finer * _SIDE), 0)
    centre = finer * (_SIDE / 2 + place)
    font = ImageFont.load_default(26 * finer)
    ImageDraw.Draw(picture).text(tuple(centre.tolist()), str(number), fill=255, font=font, anchor="mm")
    small = picture.filter(ImageFilter.GaussianBlur(0.4 * finer)).resize((_SIDE, _SIDE), Image.Resampling.BOX)
    brightness: np.ndarray = -np.log(np.asarray(small, dtype=np.float64) / 255 + 0.1)
    return brightness
