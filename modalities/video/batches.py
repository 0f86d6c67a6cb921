"""Model inputs from files: decoded, prepared and batched by several threads, in order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from modalities.video.clip import Clip
from modalities.video.data_config import VideoDataConfig
from modalities.video.datasets.base import VideoSet
from modalities.video.options import VideoOptions
from modalities.video.sampling import Sample, sampler_for
from modalities.video.transforms import preprocess_clip, resize_clip
from zoo.training.seeds import derive_seed

__all__ = ["ClipBatches", "ClipInputs", "View", "stack_views", "view_of"]


class ClipInputs(NamedTuple):
    """Arguments of a video model.

    Attributes:
        clips: float32 (B, C, T, H, W).
        lengths: int64 (B,), real tubelets, or `None`.
        times_s: float64 (B, T), or `None` for models whose time is the number of the tubelet.
    """

    clips: Tensor
    lengths: Tensor | None
    times_s: Tensor | None


class View(NamedTuple):
    """One input before batching.

    Attributes:
        pixels: float32 (C, T, H, W).
        length: Real tubelets.
        times_s: float64 (T,).
    """

    pixels: Tensor
    length: int
    times_s: np.ndarray


def view_of(clip: Clip, sample: Sample, data: VideoDataConfig, crops: int = 1) -> list[View]:
    """The inputs that the frames of a sample give, one for each crop.

    Args:
        clip: The frames of the sample.
        sample: How they were chosen.
        data: What the model expects.
        crops: See `preprocess_clip`.
    """
    length = sample.length // data.tubelet
    return [View(pixels, length, clip.times_s) for pixels in preprocess_clip(clip.frames, data, crops)]


def stack_views(views: Sequence[View], model: Any, device: torch.device, dtype: torch.dtype) -> ClipInputs:
    """A batch for a model.

    Args:
        views: Of one shape.
        model: Says whether it takes times.
        device: Where it is.
        dtype: Of its pixels.
    """
    tubelets = views[0].pixels.shape[1] // model.data_config.tubelet
    lengths = None
    if any(view.length < tubelets for view in views):
        lengths = torch.tensor([view.length for view in views], device=device)
    times = None
    if getattr(model, "time_unit_s", None) is not None:
        times = torch.from_numpy(np.stack([view.times_s for view in views])).to(device)
    return ClipInputs(torch.stack([view.pixels for view in views]).to(device, dtype), lengths, times)


class ClipBatches:
    """Makes training batches of one shape from the videos of a data set.

    Args:
        data: Where they come from.
        rows: Which ones; number i here is `rows[i]` of the data.
        data_config: What the model expects.
        options: Augmentation, threads and memory.
    """

    def __init__(self, data: VideoSet, rows: np.ndarray, data_config: VideoDataConfig, options: VideoOptions) -> None:
        self.data, self.rows, self.data_config, self.options = data, rows, data_config, options
        self._sampler = sampler_for(data_config)
        self._pool = ThreadPoolExecutor(options.workers, thread_name_prefix="clips")
        self._kept: dict[int, tuple[Clip, Sample]] = {}
        self._left = 0.0 if self._sampler.random else options.memory_gib * 2**30

    def __call__(self, rows: Sequence[int], seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """A batch; depends on the arguments alone.

        Args:
            rows: Numbers of videos here.
            seed: Of sampling and augmentation.

        Returns:
            On the CPU: clips uint8 (B, 3, T, H, W), not scaled as the model expects yet; lengths int64 (B,) in
            tubelets; times float64 (B, T).
        """
        made = list(self._pool.map(lambda place: self._one(rows[place], derive_seed(seed, place)), range(len(rows))))
        lengths = torch.tensor([sample.length // self.data_config.tubelet for _, sample in made])
        times = torch.from_numpy(np.stack([sample.times_s for _, sample in made]))
        return torch.stack([pixels for pixels, _ in made]), lengths, times

    def _one(self, row: int, seed: int) -> tuple[Tensor, Sample]:
        rng = np.random.default_rng(seed)
        clip, sample = self._read(int(self.rows[row]), rng)
        frames = self._cropped(clip.frames, rng)
        if rng.random() < self.options.flip:
            frames = frames[:, :, ::-1]
        # Bytes travel to the device and are scaled there.
        pixels = resize_clip(np.ascontiguousarray(frames), self.data_config)[0]
        return pixels.round_().to(torch.uint8), sample

    def _read(self, index: int, rng: np.random.Generator) -> tuple[Clip, Sample]:
        if (kept := self._kept.get(index)) is not None:
            return kept
        reader = self.data.reader(index)
        (sample,) = self._sampler(reader.times_s, rng)
        found = reader.at(sample.indices), sample
        if self._left >= found[0].frames.nbytes:
            self._left -= found[0].frames.nbytes
            self._kept[index] = found
        return found

    def _cropped(self, frames: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A random part, the same of all frames, of the shape of the input times a random aspect ratio."""
        low, high = self.options.crop_scale
        if low == 1:
            return frames
        rows, columns = frames.shape[1:3]
        height, width = self.data_config.input_size[1:]
        for _ in range(10):
            area = rows * columns * rng.uniform(low, high)
            least, most = map(math.log, self.options.crop_ratio)
            ratio = width / height * math.exp(rng.uniform(least, most))
            tall, wide = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if 1 <= tall <= rows and 1 <= wide <= columns:
                top, left = rng.integers(rows - tall + 1), rng.integers(columns - wide + 1)
                return frames[:, top : top + tall, left : left + wide]
        return frames
