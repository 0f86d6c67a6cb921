"""Small videos with frames that tell their number, written with PyAV for the tests of reading."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

SIZE = (48, 64)  # (height, width)
CODECS = {".mp4": "h264", ".mkv": "h264", ".avi": "mpeg4", ".mov": "mpeg4", ".webm": "vp9", ".gif": "gif"}
# (a, b, c, d) of a display matrix, in 16.16 fixed point below: turned clockwise by so many degrees.
TURNS = {0: (1, 0, 0, 1), 90: (0, 1, -1, 0), 180: (-1, 0, 0, -1), 270: (0, -1, 1, 0)}


def frames(count: int, size: tuple[int, int] = SIZE) -> np.ndarray:
    """uint8 (count, H, W, 3): frame i has brightness 5 i + 20 at the left, and a red corner at the top left."""
    made = np.zeros((count, *size, 3), np.uint8)
    made[:, :, : size[1] // 2] = (5 * np.arange(count) + 20)[:, None, None, None]
    made[:, : size[0] // 3, : size[1] // 4] = (250, 0, 0)
    return made


def numbers(clip: np.ndarray) -> np.ndarray:
    """Which frames of `frames` these are, from their brightness."""
    rows, columns = clip.shape[1:3]
    part = clip[:, rows // 2 : -2, columns // 8 : columns * 3 // 8].astype(np.float64)
    return np.rint((part.mean((1, 2, 3)) - 20) / 5).astype(int)


def write_video(
    path: Path,
    count: int = 24,
    *,
    size: tuple[int, int] = SIZE,
    fps: int = 12,
    times_ms: Sequence[int] | None = None,
    key_every: int = 6,
    pixels: np.ndarray | None = None,
    options: dict[str, str] | None = None,
) -> Path:
    """Writes `frames`, or other pixels, with the codec for the suffix.

    Args:
        path: Where to.
        count: Frames.
        size: (height, width).
        fps: Frames a second, unless `times_ms` are given.
        times_ms: Time of each frame in milliseconds.
        key_every: Frames from one key frame to the next.
        pixels: uint8 (count, H, W, 3).
        options: Of the container.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = frames(count, size) if pixels is None else pixels
    base = Fraction(1, fps) if times_ms is None else Fraction(1, 1000)
    with av.open(str(path), "w", options=options or {}) as container:
        stream: Any = container.add_stream(CODECS[path.suffix], rate=fps)
        stream.width, stream.height = pixels.shape[2], pixels.shape[1]
        stream.pix_fmt = "rgb8" if path.suffix == ".gif" else "yuv444p" if pixels.shape[1] % 2 else "yuv420p"
        stream.gop_size, stream.bit_rate = key_every, 2_000_000
        stream.time_base = stream.codec_context.time_base = base
        for number, picture in enumerate(pixels):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts = number if times_ms is None else times_ms[number]
            frame.time_base = base
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def write_sound(path: Path) -> Path:
    """A file with an audio stream alone."""
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("aac", rate=16_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 4096), np.float32), format="fltp", layout="mono")
        frame.sample_rate, frame.pts = 16_000, 0
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def turned(path: Path, degrees: int, mirrored: bool = False) -> Path:
    """States in an MP4 file that it is to be shown turned clockwise, by the matrix of its track header."""
    data = bytearray(path.read_bytes())
    start = data.find(b"tkhd") + 4
    assert data[start] == 0, "a track header of version 0"
    start += 4 + 20 + 8 + 8  # Version and flags, times and numbers, reserved, layer to volume.
    a, b, c, d = TURNS[degrees]
    a, c = (-a, -c) if mirrored else (a, c)  # Then mirrored left to right: x' changes its sign.
    data[start : start + 36] = struct.pack(">9i", a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30)
    path.write_bytes(data)
    return path


def cut(path: Path, share: float) -> Path:
    """The file without what comes after a share of its bytes."""
    short = path.with_name(f"cut-{path.name}")
    data = path.read_bytes()
    short.write_bytes(data[: int(len(data) * share)])
    return short
