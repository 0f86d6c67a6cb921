"""What prediction needs to know of videos: how a file becomes inputs of a video model, one for each window of time."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import nn

from modalities.video.batches import ClipInputs, View, stack_views, view_of
from modalities.video.clip import Clip, clip_from_array
from modalities.video.data_config import VideoDataConfig
from modalities.video.read import ClipReader
from modalities.video.results import ClipResults, SampleFrames
from modalities.video.sampling import DenseClips, Sample, Sampler, sampler_for
from zoo.errors import ConfigError, DataError
from zoo.reading import Source
from zoo.results import ClassificationResults

__all__ = ["Videos", "windows_of"]

# A day of windows of a second; damaged time stamps may span years.
_MOST_WINDOWS = 100_000


class Videos:
    """Makes inputs of videos, one for each window that the model's sampler takes, one after the other.

    Args:
        model: A video model.
        data_config: Its preprocessing, at the size asked for.

    Raises:
        ConfigError: If the model takes no videos.
    """

    kind = "clip"
    timed = True

    def __init__(self, model: nn.Module, data_config: VideoDataConfig) -> None:
        self.model, self.data_config = model, data_config
        if data_config.input_size[0] != 3:
            raise ConfigError(f"a video has 3 channels; the model takes {data_config.input_size[0]}")

    def samples(self, source: Source, options: dict[str, Any]) -> Iterator[tuple[View, dict[str, Any]]]:
        """The inputs that a video gives, with the fields of their results; memory holds one window of frames.

        Args:
            source: A path, the bytes of a file, an array uint8 (T, H, W, 3) or a `Clip`.
            options: `errors`, see `modalities.video.open_clip`; `stride_s`, seconds from one window to the next, by
                default as long as a window; `fps` of arrays; `progress`, called with the share of the video that is
                done.

        Raises:
            ConfigError: If an option is not known or cannot be used.
            DataError: If the video cannot be read.
        """
        opened, progress, stride_s = self._opened(source, dict(options))
        samples = windows_of(opened.times_s, self.data_config, stride_s)
        picture = SampleFrames(opened)
        for done, (clip, sample) in enumerate(zip(_clips(opened, samples), samples, strict=True), start=1):
            (view,) = view_of(clip, sample, self.data_config)
            fields = {
                "name": opened.name,
                "path": opened.path,
                "size": clip.size,
                "truncated": opened.truncated,
                "time_us": _span(sample, opened.times_s),
                "_picture": picture,
            }
            yield view, fields
            if progress is not None:
                progress(done / len(samples))

    def collate(self, inputs: list[View], device: torch.device, dtype: torch.dtype) -> ClipInputs:
        """A batch for the model."""
        return stack_views(inputs, self.model, device, dtype)

    def merge(self, results: Iterator[ClassificationResults], top_k: int) -> Iterator[ClipResults]:
        """One result for each video, of the results of its windows, which come one after the other."""
        windows: list[ClassificationResults] = []
        for result in results:
            if windows and result._picture is not windows[0]._picture:
                yield ClipResults.of_windows(windows, top_k)
                windows = []
            windows.append(result)
        if windows:
            yield ClipResults.of_windows(windows, top_k)

    def video(self, path: str | os.PathLike[str], **_: object) -> NoReturn:
        """Videos with results are made of event recordings.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(f"{path}: a video model's results are plotted in a picture; save to a folder")

    def _opened(
        self, source: Source, options: dict[str, Any]
    ) -> tuple[ClipReader | Clip, Callable[[float], None] | None, float | None]:
        errors, fps = options.pop("errors", None), options.pop("fps", None)
        progress, stride_s = options.pop("progress", None), options.pop("stride_s", None)
        if options:
            raise ConfigError(f"unknown option {sorted(options)[0]!r}; of videos: errors, stride_s, fps, progress")
        if stride_s is not None:
            number = isinstance(stride_s, (int, float)) and not isinstance(stride_s, bool)
            if not number or not 1e-3 <= stride_s < math.inf:
                raise ConfigError(f"stride_s must be a number of seconds, 0.001 or more, not {stride_s!r:.60}")
        if isinstance(source.value, (Path, bytes)):
            path = source.value if isinstance(source.value, Path) else None
            return ClipReader(source.value, source.name, path, errors), progress, stride_s
        return clip_from_array(source.value, source.name, fps), progress, stride_s


def windows_of(times_s: np.ndarray, data: VideoDataConfig, stride_s: float | None = None) -> list[Sample]:
    """The windows of a video, in the order of time; at least one.

    Windows are as long as the clips that the model's sampler takes. Of uniform sampling, which spreads over all, the
    one window is the whole video, or with a stride a part of that length. What is left at the end is covered by a
    window that ends with the video, if it is more than half a stride.

    Args:
        times_s: float64 (T,), times of the frames.
        data: What the model expects.
        stride_s: Seconds from one window to the next; by default their length.
    """
    sampler = sampler_for(data)
    if isinstance(sampler, DenseClips) and sampler.frame_rate is not None:
        length_s = sampler.frames / sampler.frame_rate
        starts = _starts(float(times_s[0]), float(times_s[-1]) + _step(times_s), length_s, stride_s or length_s)
        return [Sample.of(sampler.from_time(times_s, start), times_s) for start in starts]
    count = len(times_s)
    if data.sampling == "uniform":
        if stride_s is None:
            return sampler(times_s)
        edges = np.searchsorted(times_s, np.arange(float(times_s[0]), float(times_s[-1]) + 1e-9, stride_s))
        parts = [(int(start), int(end)) for start, end in zip(edges, [*edges[1:], count], strict=True) if end > start]
        return [_part(sampler, times_s, start, end) for start, end in parts]
    length = data.tubelets * data.frame_step if data.sampling == "released-ucf101" else data.frames * data.frame_step
    if stride_s is None:
        firsts = [round(start) for start in _starts(0.0, count, length, length)]
    else:
        last = float(times_s[max(count - length, 0)])
        firsts = np.unique(np.searchsorted(times_s, np.arange(float(times_s[0]), last + 1e-9, stride_s))).tolist()
    return [_part(sampler, times_s, first, min(first + length, count)) for first in firsts]


def _part(sampler: Sampler, times_s: np.ndarray, start: int, end: int) -> Sample:
    (sample,) = sampler(times_s[start:end])
    return Sample(sample.indices + start, sample.times_s, sample.length)


def _starts(first: float, end: float, length: float, stride: float) -> list[float]:
    """Starts of windows of a length between two times, or the one at the first."""
    room = max(end - first - length, 0.0)
    count = math.floor(room / stride + 1e-6) + 1
    if count > _MOST_WINDOWS:
        raise DataError(
            f"the frames span {end - first:,.0f} s, which makes {count:,} windows: at most {_MOST_WINDOWS:,} are made; "
            "ask for a longer stride_s, or check the time stamps of the file"
        )
    starts = [first + number * stride for number in range(count)]
    if room - (count - 1) * stride > 0.5 * stride:
        starts.append(first + room)
    return starts


def _step(times_s: np.ndarray) -> float:
    """Seconds that a frame is shown, as a rule."""
    return float(np.median(np.diff(times_s))) if len(times_s) > 1 else 0.0


def _span(sample: Sample, times_s: np.ndarray) -> tuple[int, int]:
    """Microseconds from the first frame to the end of the last."""
    return round(1e6 * sample.times_s[0]), round(1e6 * (sample.times_s[-1] + _step(times_s)))


def _clips(opened: ClipReader | Clip, samples: list[Sample]) -> Iterator[Clip]:
    if isinstance(opened, Clip):
        return (opened.at(sample.indices) for sample in samples)
    return opened.windows([sample.indices for sample in samples])
