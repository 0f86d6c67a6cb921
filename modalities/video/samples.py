"""A made-up clip to try models with: a drawn picture before a camera that turns."""

from __future__ import annotations

import io
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from modalities.video.motion import MotionClips, draw_states, render
from modalities.video.presets import MOTIONS
from zoo.errors import require

__all__ = ["turning"]

_SIDE, _FRAMES, _RATE = 160, 32, 16


def turning(motion: str = "rotate-left") -> bytes:
    """An MP4 of two seconds in which the camera moves as one of `MOTIONS` says.

    Raises:
        MissingDependencyError: If PyAV is not installed.
    """
    av: Any = require("av", "video")
    drawn = draw_states(1, seed=5)
    clip = MotionClips(torch.tensor([MOTIONS.index(motion)]), drawn.draws)
    pixels = render(_picture()[None], clip, size=_SIDE, frames=_FRAMES, frame_rate=_RATE)[0]
    frames = pixels.permute(1, 2, 3, 0).round().to(torch.uint8).numpy()
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("h264", rate=Fraction(_RATE), options={"crf": "20", "preset": "veryfast"})
        stream.width = stream.height = _SIDE
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return buffer.getvalue()


def _picture() -> torch.Tensor:
    """Shapes of many colours and sizes, uint8 (3, 320, 320)."""
    from PIL import Image, ImageDraw

    rng = np.random.default_rng(11)
    picture = Image.new("RGB", (320, 320), (150, 170, 190))
    draw = ImageDraw.Draw(picture)
    for _ in range(120):
        x, y = rng.integers(0, 320, 2).tolist()
        width, height = rng.integers(8, 60, 2).tolist()
        shape = draw.ellipse if rng.random() < 0.5 else draw.rectangle
        shape((x - width, y - height, x + width, y + height), fill=tuple(rng.integers(20, 236, 3).tolist()))
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)
