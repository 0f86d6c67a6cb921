"""Decodes pictures of every common kind into 8-bit RGB, and says clearly what is wrong with those it cannot."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image

from zoo.errors import ConfigError, DataError, ZooError

__all__ = ["FORMATS", "MAX_PIXELS", "Image", "read_image"]

MAX_PIXELS = 178_956_970
"""Largest picture decoded, in pixels (about 16,000 x 11,000); `max_pixels` or `ZOO_MAX_PIXELS` replace it."""

FORMATS = ("AVIF", "BMP", "DIB", "GIF", "ICO", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "QOI", "TIFF", "WEBP")
"""Pillow decoders in use: those with a signature of their own, and none that starts another program (EPS)."""

_ORIENTATION_TAG = 0x0112
_ORIENTATIONS = {
    2: PIL.Image.Transpose.FLIP_LEFT_RIGHT,
    3: PIL.Image.Transpose.ROTATE_180,
    4: PIL.Image.Transpose.FLIP_TOP_BOTTOM,
    5: PIL.Image.Transpose.TRANSPOSE,
    6: PIL.Image.Transpose.ROTATE_270,
    7: PIL.Image.Transpose.TRANSVERSE,
    8: PIL.Image.Transpose.ROTATE_90,
}
_OPEN_LOCK = threading.Lock()
_UNIT_TOLERANCE = 0.5 / 255  # half a level of rounding is not an overshoot


@dataclass(frozen=True, eq=False)
class Image:
    """A decoded picture.

    Attributes:
        rgb: uint8 (H, W, 3): upright (EXIF orientation applied), transparency composited on white.
        name: The path or address as it was given, or a description of an object in memory.
        path: The file, if it came from one.
        truncated: True when the file ended early and only a part was decoded (`errors="keep"`).
    """

    rgb: np.ndarray
    name: str
    path: Path | None = None
    truncated: bool = False

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) in pixels."""
        return self.rgb.shape[0], self.rgb.shape[1]

    def to_pil(self) -> PIL.Image.Image:
        """Returns the picture as an RGB PIL image."""
        return PIL.Image.fromarray(self.rgb)


def read_image(
    value: Any,
    *,
    name: str,
    path: Path | None = None,
    errors: str = "raise",
    frame: int | None = None,
    max_pixels: int | None = None,
) -> Image:
    """Reads one picture; `zoo.read` is the public door.

    Values: 8-bit integers as they are; 16-bit ones (uint16 arrays, 16-bit files) divided by 257; wider integer
    arrays must lie in 0..255 and are taken as 8-bit; booleans as black and white; floats in 0..1. CMYK is converted
    without its colour profile. Alpha is composited on white. Grayscale is repeated three times.

    Args:
        value: `Path`, encoded bytes, PIL image, array or tensor.
        name: What errors call it.
        path: The file it came from.
        errors: `"raise"`, or `"keep"` the decoded part of a truncated file (the rest is black or gray).
        frame: Frame of an animation, from 0. `None`: the first of a file, the current one of a PIL image.
        max_pixels: Refuses larger pictures before decoding; `None` reads `ZOO_MAX_PIXELS` or takes `MAX_PIXELS`.

    Raises:
        DataError: If it is no picture, damaged, too large or has values that cannot be shown; names the source.
    """
    limit = _pixel_limit(max_pixels)
    if isinstance(value, (Path, bytes)):
        rgb, truncated = _decode(value, name, errors == "keep", frame or 0, limit)
        return Image(rgb, name, path, truncated)
    if isinstance(value, PIL.Image.Image):
        return Image(_from_pil(value, name, frame, limit), name)
    if frame:
        raise DataError(f"{name}: an array or tensor has no frame {frame}")
    return Image(_from_array(value, name, limit), name)


def _decode(value: Path | bytes, name: str, keep: bool, frame: int, limit: int) -> tuple[np.ndarray, bool]:
    """Decodes a file; returns uint8 (H, W, 3) and whether it was truncated."""
    try:
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(value.open("rb") if isinstance(value, Path) else io.BytesIO(value))
            head = file.read(64)
            file.seek(0)
            image = stack.enter_context(_open(file, head, name, limit))
            _select_frame(image, frame, name)
            _check_size(image.size, name, limit)
            try:
                image.load()
                return _to_rgb(image, name), False
            except DataError:
                raise
            except Exception as error:
                if not keep:
                    raise DataError(f'{name}: {_damage(error)}; errors="keep" reads what is there') from error
            if image.format in ("JPEG", "MPO"):
                # With an end marker the decoder finishes: also a progressive picture gives its coarse version.
                file.seek(0)
                data = file.read(4 * limit + 2**20)
                image = stack.enter_context(_open(io.BytesIO(data + b"\xff\xd9"), head, name, limit))
                image.load()
            else:
                # What was decoded stays in the image; without tiles load() does not start again.
                image.tile = []  # type: ignore[attr-defined]
            rgb = _to_rgb(image, name)
            if not rgb.any():
                raise DataError(f"{name}: truncated before any of the picture")
            return rgb, True
    except ZooError:
        raise
    except OSError as error:
        reason = error.strerror if error.errno is not None else _damage(error)
        raise DataError(f"{name}: {reason}") from error
    except Exception as error:  # Damaged files make decoders raise nearly anything.
        raise DataError(f"{name}: {_damage(error)}") from error


def _open(file: Any, head: bytes, name: str, limit: int) -> PIL.Image.Image:
    """Reads the header; the size is checked before anything is decoded."""
    # Pillow's own bound is a global with a warning below it. Ours replaces it while a header is parsed.
    with _OPEN_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pillow_limit, PIL.Image.MAX_IMAGE_PIXELS = PIL.Image.MAX_IMAGE_PIXELS, limit
        try:
            image = PIL.Image.open(file, formats=_decoders())
        except PIL.Image.DecompressionBombError as error:
            raise DataError(f"{name}: {_too_large(str(error).partition('(')[2].partition(' ')[0], limit)}") from error
        except PIL.UnidentifiedImageError as error:
            raise DataError(f"{name}: not a picture that can be read: {_describe(head)}") from error
        finally:
            PIL.Image.MAX_IMAGE_PIXELS = pillow_limit
    try:
        _check_size(image.size, name, limit)
    except DataError:
        image.close()
        raise
    return image


def _from_pil(image: PIL.Image.Image, name: str, frame: int | None, limit: int) -> np.ndarray:
    _check_size(image.size, name, limit)
    position = image.tell() if frame is not None else 0
    try:
        if frame is not None:
            _select_frame(image, frame, name)
        image.load()
        return _to_rgb(image, name)
    except ZooError:
        raise
    except Exception as error:
        raise DataError(f"{name}: {_damage(error)}") from error
    finally:
        if frame is not None:
            with contextlib.suppress(Exception):
                image.seek(position)  # The picture is the caller's.


def _to_rgb(image: PIL.Image.Image, name: str) -> np.ndarray:
    """Converts a loaded image of any mode to uint8 (H, W, 3), upright."""
    try:  # After load(): TIFF applies and drops the tag itself, PNG may carry it behind the pixels.
        orientation = image.getexif().get(_ORIENTATION_TAG)
    except Exception:  # Damaged metadata does not make the picture unreadable.
        orientation = None
    if image.mode.startswith(("I", "F")):
        pixels = np.asarray(image)
        if image.mode == "I":  # What Pillow makes of 16-bit PGM and some 16-bit TIFF.
            if pixels.min() < 0 or pixels.max() > 65535:
                raise DataError(f"{name}: 32-bit integer picture with values beyond 16 bits; convert it first")
            pixels = pixels.astype(np.uint16)
        rgb = _from_array(pixels, name, None)
        if orientation in _ORIENTATIONS:
            rgb = np.asarray(PIL.Image.fromarray(rgb).transpose(_ORIENTATIONS[orientation]))
        return np.ascontiguousarray(rgb)
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        image = PIL.Image.alpha_composite(PIL.Image.new("RGBA", layer.size, "white"), layer)
    image = image.convert("RGB")
    if orientation in _ORIENTATIONS:
        image = image.transpose(_ORIENTATIONS[orientation])
    return np.array(image)


def _from_array(value: Any, name: str, limit: int | None) -> np.ndarray:
    """Checks an array or tensor and converts it to uint8 (H, W, 3)."""
    tensor = type(value).__module__.split(".")[0] == "torch"
    if tensor:
        try:
            value = value.detach().cpu()
            array = (value.float() if value.is_floating_point() else value).numpy()
        except Exception as error:  # Sparse, quantised and meta tensors.
            raise DataError(f"{name}: a tensor that cannot be read as an array ({error})") from error
    elif isinstance(value, np.ndarray):
        array = np.asarray(value)  # A np.matrix stays two-dimensional whatever is done to it.
    else:
        raise DataError(
            f"{name}: a {type(value).__name__} is no picture; pass a path, URL, bytes, PIL image, array or tensor"
        )
    shape = tuple(array.shape)
    if tensor and array.ndim == 3:
        array = np.moveaxis(array, 0, -1)
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4):
        expected = "(height, width) or (1, 3 or 4, height, width)" if tensor else "(height, width[, 1, 3 or 4])"
        raise DataError(f"{name}: shape {shape}, expected {expected}{_shape_hint(shape, tensor)}")
    if 0 in shape:
        raise DataError(f"{name}: no pixels, the shape is {shape}")
    if limit is not None:
        _check_size((array.shape[1], array.shape[0]), name, limit)
    levels = _to_levels(array, name)
    if levels.shape[2] == 4:
        alpha = levels[..., 3:].astype(np.uint16)
        return ((levels[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)
    return np.repeat(levels, 3, axis=2) if levels.shape[2] == 1 else np.array(levels, order="C")


def _to_levels(array: np.ndarray, name: str) -> np.ndarray:
    """Scales values to uint8 0..255 by their type."""
    kind = array.dtype.kind
    if array.dtype == np.uint8:
        return array
    if kind == "b":
        return array.astype(np.uint8) * np.uint8(255)
    if kind == "f":
        if not np.isfinite(array).all():
            raise DataError(f"{name}: contains NaN or infinite values")
        low, high = float(array.min()), float(array.max())
        if low < -_UNIT_TOLERANCE or high > 1 + _UNIT_TOLERANCE:
            raise DataError(
                f"{name}: float values must be in 0..1 (black to white), these are in {low:g}..{high:g}; "
                "undo a normalisation, divide by the white value, or pass uint8"
            )
        return np.rint(array.clip(0, 1).astype(np.float32) * 255).astype(np.uint8)
    if kind not in "iu":
        raise DataError(f"{name}: values of type {array.dtype} are no picture; pass uint8, uint16, bool or float")
    low, high = int(array.min()), int(array.max())
    white = 65535 if kind == "u" and array.dtype.itemsize == 2 else 255
    if low < 0 or high > white:
        raise DataError(f"{name}: integer values must be in 0..{white} for {array.dtype}, these are in {low}..{high}")
    return array.astype(np.uint8) if white == 255 else ((array.astype(np.uint32) + 128) // 257).astype(np.uint8)


def _pixel_limit(max_pixels: int | None) -> int:
    given = os.environ.get("ZOO_MAX_PIXELS") if max_pixels is None else max_pixels
    if given is None or given == "":
        return MAX_PIXELS
    try:
        limit = int(given)
    except (TypeError, ValueError):
        limit = 0
    if limit < 1:
        where = "ZOO_MAX_PIXELS" if max_pixels is None else "max_pixels"
        raise ConfigError(f"{where} must be a positive number of pixels, not {given!r}")
    return limit


@functools.cache
def _decoders() -> tuple[str, ...]:
    PIL.Image.init()
    return tuple(name for name in FORMATS if name in PIL.Image.OPEN)  # Older Pillow has no AVIF.


def _check_size(size: tuple[int, int], name: str, limit: int) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise DataError(f"{name}: no pixels, the size is {width} x {height}")
    if width * height > limit:
        raise DataError(f"{name}: {_too_large(f'{width} x {height}', limit)}")


def _too_large(size: str, limit: int) -> str:
    return f"{size} pixels, the limit is {limit}; shrink it, or set max_pixels= or ZOO_MAX_PIXELS if you trust it"


def _select_frame(image: PIL.Image.Image, frame: int, name: str) -> None:
    if isinstance(frame, bool) or not isinstance(frame, int) or frame < 0:
        raise ConfigError(f"frame must be a whole number from 0, not {frame!r}")
    if frame:
        count = getattr(image, "n_frames", 1)  # Before seeking: TIFF counts one too many after a failed seek.
        if frame >= count:
            raise DataError(f"{name}: no frame {frame}, it has {count} (counted from 0)")
        image.seek(frame)


def _damage(error: Exception) -> str:
    """Says what a decoder's exception means for the file."""
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError):
        return "not enough memory to decode the picture"
    if "truncated" in text.lower():
        return f"the picture is truncated ({text})"
    return f"the picture is damaged ({text or type(error).__name__})"


def _describe(head: bytes) -> str:
    """Says what a file that is no picture seems to be, from its first bytes."""
    if not head:
        return "it is empty"
    if head[4:8] == b"ftyp":
        heic = head[8:12] in (b"heic", b"heix", b"hevc", b"mif1", b"msf1")
        return "it is HEIC; convert it to JPEG or PNG" if heic else "it is a video (MP4 or the like)"
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    for magic, what in {
        b"%pdf": "it is a PDF",
        b"%!ps": "it is PostScript",
        b"<svg": "it is SVG (vector graphics)",
        b"<!doctype html": "it is a web page",
        b"<html": "it is a web page",
        b"version https://git-lfs": "it is a Git LFS pointer; fetch the file itself with 'git lfs pull'",
    }.items():
        if start.startswith(magic):
            return what
    if 127 not in head and all(byte >= 32 or byte in b"\t\n\r" for byte in head):
        return "it is text"
    return "unknown or damaged format"


def _shape_hint(shape: tuple[int, ...], tensor: bool) -> str:
    if len(shape) == 4:
        return "; pass a batch as a list of pictures"
    if len(shape) == 3 and tensor and shape[2] in (1, 3, 4):
        return "; channels come first in a tensor: use .permute(2, 0, 1)"
    if len(shape) == 3 and not tensor and shape[0] in (1, 3, 4):
        return "; channels come last in an array: use .transpose(1, 2, 0)"
    return ""
