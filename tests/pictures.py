"""Pictures for tests, made here."""

import io

import numpy as np
import PIL.Image

RGB = np.kron(np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8), np.ones((8, 8, 1), dtype=np.uint8))
HEIGHT, WIDTH = RGB.shape[:2]
SMOOTH = PIL.Image.fromarray(RGB[::8, ::8]).resize((320, 240), PIL.Image.Resampling.BICUBIC)


def encode(form: str, picture: PIL.Image.Image | np.ndarray = RGB, **options) -> bytes:
    buffer = io.BytesIO()
    image = picture if isinstance(picture, PIL.Image.Image) else PIL.Image.fromarray(picture)
    image.save(buffer, form, **options)
    return buffer.getvalue()


def difference(a: np.ndarray, b: np.ndarray) -> float:
    assert a.dtype == np.uint8 and a.shape == b.shape
    return np.abs(a.astype(int) - b.astype(int)).mean()
