"""A drawn picture to try the detector of blood cells with; nothing in it was photographed."""

from __future__ import annotations

import io

import numpy as np

__all__ = ["cells"]

_SIZE = (640, 480)  # width, height
_RED, _PALE, _BACK = (206, 144, 148), (228, 186, 184), (226, 214, 210)
_WHITE, _NUCLEUS, _PLATELET = (196, 178, 214), (116, 82, 160), (146, 104, 172)


def cells() -> bytes:
    """A PNG of a drawn blood smear: red cells, one white cell, a few platelets."""
    from PIL import Image, ImageDraw, ImageFilter

    rng = np.random.default_rng(7)
    picture = Image.new("RGB", _SIZE, _BACK)
    draw = ImageDraw.Draw(picture)

    def disc(x: float, y: float, radius: float, colour: tuple[int, int, int], flat: float = 1.0) -> None:
        draw.ellipse((x - radius, y - radius * flat, x + radius, y + radius * flat), fill=colour)

    white = (330.0, 230.0, 92.0)
    placed: list[tuple[float, float, float]] = []
    for _ in range(400):
        radius = rng.uniform(44, 52)
        x, y = rng.uniform(-20, _SIZE[0] + 20), rng.uniform(-20, _SIZE[1] + 20)
        others = [white, *placed]
        if all(np.hypot(x - a, y - b) > 0.95 * (radius + other) for a, b, other in others):
            placed.append((x, y, radius))
    for x, y, radius in placed:
        disc(x, y, radius, _RED, rng.uniform(0.92, 1.0))
        disc(x, y, 0.45 * radius, _PALE)
    disc(*white, _WHITE)
    for x, y, radius in ((-28, -18, 46), (24, -26, 42), (6, 28, 48)):
        disc(white[0] + x, white[1] + y, radius, _NUCLEUS)
    for _ in range(60):
        x, y = rng.uniform(30, _SIZE[0] - 30), rng.uniform(30, _SIZE[1] - 30)
        if all(np.hypot(x - a, y - b) > radius + 16 for a, b, radius in [white, *placed]):
            disc(x, y, rng.uniform(9, 12), _PLATELET)
            placed.append((x, y, 12.0))
    pixels = np.asarray(picture.filter(ImageFilter.GaussianBlur(3)), dtype=np.float64)
    pixels = pixels + rng.normal(0, 3, pixels.shape)
    buffer = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()
