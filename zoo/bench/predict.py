"""Latency of one picture after loading: the whole path that a user waits for, and the network alone."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.bench.timing import environment, interleaved, pick_device, pick_dtype, threads
from zoo.errors import ConfigError

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["predict", "sample_picture"]

_PICTURE_SIZE = (500, 375)  # The most common size of a photograph in ImageNet.


def predict(
    name: str,
    *,
    size: int | None = None,
    device: str | None = None,
    dtype: str = "float32",
    cpu_threads: int = 2,
    repeats: int = 30,
    image: str | os.PathLike[str] | None = None,
    pretrained: bool = True,
) -> dict[str, Any]:
    """Measures prediction of a single picture with a loaded model.

    Args:
        name: Registered name, `hf-hub:...` or `local-dir:...`.
        size: Side of the square input in pixels; by default that of the model.
        device: `cpu`, `cuda` or `cuda:N`; by default CUDA where there is one.
        dtype: float32, bfloat16 or float16.
        cpu_threads: Threads of torch on the CPU.
        repeats: Samples of each timing.
        image: Picture file; by default a JPEG of 500 x 375 pixels made here.
        pretrained: Whether to load weights. They do not change the time, so names without weights can be measured.

    Returns:
        A JSON-ready dict. `timings` maps `"predict"` (decode, preprocess, forward, top-k or boxes) and `"forward"` to
        `median_ms` and `p90_ms`.

    Raises:
        ConfigError: If it is no image model.
    """
    import torch

    import zoo

    device, torch_dtype = pick_device(device), pick_dtype(dtype)
    source = sample_picture() if image is None else Path(image)
    with threads(cpu_threads), torch.inference_mode():
        model = zoo.load(name, pretrained=pretrained, device=device, dtype=torch_dtype)
        if (modality := model.config["modality"]) != "image":
            raise ConfigError(
                f"{name}: this times image models, not models of {modality}; `zoo bench points` and `zoo bench "
                "driving` time those for clouds and key frames, `zoo bench events` the reading of recordings"
            )
        channels, *shape = model.data_config.input_size
        rows, columns = (size, size) if size else shape
        pixels = torch.zeros(1, channels, rows, columns, device=device, dtype=torch_dtype)
        predictor = zoo.predictor(model, size=size)
        timings = interleaved(
            {"predict": lambda: predictor(source), "forward": lambda: model(pixels)}, repeats=repeats, device=device
        )
        made = environment(device)
    return {
        "bench": "predict",
        "name": name,
        "size": [rows, columns],
        "dtype": dtype,
        "picture": "made here, 500 x 375 JPEG" if image is None else str(image),
        "repeats": repeats,
        "environment": made,
        "timings": {key: {"median_ms": t.median_ms, "p90_ms": t.p90_ms} for key, t in timings.items()},
    }


def sample_picture() -> bytes:
    """A JPEG with the size and roughly the file size of a photograph: smooth shapes with some texture."""
    import numpy as np
    from PIL import Image

    generator = np.random.default_rng(0)
    coarse = Image.fromarray(generator.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize(_PICTURE_SIZE, Image.Resampling.BICUBIC), dtype=np.float32)
    textured = smooth + generator.normal(0, 12, smooth.shape)
    return _jpeg(Image.fromarray(textured.clip(0, 255).astype(np.uint8)))


def _jpeg(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()
