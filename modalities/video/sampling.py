"""Which frames of a video make a clip. A sampler looks at the times of the frames alone, before anything is decoded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from modalities.video.data_config import VideoDataConfig
from zoo.errors import ConfigError, DataError

__all__ = ["DenseClips", "Sample", "Sampler", "TubeletSteps", "UniformSegments", "sampler_for"]


@dataclass(frozen=True, eq=False)
class Sample:
    """Frames of one clip.

    Attributes:
        indices: int64 (n,), positions of frames, ascending; may repeat.
        times_s: float64 (n,), when they are shown.
        length: How many of them are real; the rest repeats the last and is to be masked.
    """

    indices: np.ndarray
    times_s: np.ndarray
    length: int

    @classmethod
    def of(cls, indices: np.ndarray, times_s: np.ndarray, length: int | None = None) -> Sample:
        """The sample at positions of a video with the given times."""
        return cls(indices, times_s[indices], len(indices) if length is None else length)


class Sampler(ABC):
    """Chooses frames; `rng` makes the choice random (training), without it the choice is fixed."""

    @abstractmethod
    def __call__(self, times_s: np.ndarray, rng: np.random.Generator | None = None) -> list[Sample]:
        """Clips of a video.

        Args:
            times_s: float64 (T,), times of its frames, ascending.
            rng: Source of randomness.

        Raises:
            DataError: If there are no frames.
        """

    @property
    def random(self) -> bool:
        """Whether `rng` makes a difference."""
        return True


@dataclass(frozen=True)
class TubeletSteps(Sampler):
    """`tubelet` neighbouring frames every `step` frames from the first on: {0, 1}, {10, 11}, ... of the first 50.

    The released UCF101 network was trained so (PaPE, released code). A shorter video gives fewer tubelets: `length`
    counts the frames of whole ones, and one at the least, whose last frame is repeated where the video has one alone.

    Attributes:
        tubelets: Tubelets of a clip.
        tubelet: Frames of each.
        step: Frames from one to the next.
    """

    tubelets: int = 5
    tubelet: int = 2
    step: int = 10

    def __post_init__(self) -> None:
        _positive(self, "tubelets", "tubelet", "step")

    def __call__(self, times_s: np.ndarray, rng: np.random.Generator | None = None) -> list[Sample]:
        """See `Sampler`; there is nothing random."""
        count = _count(times_s)
        indices = (np.arange(self.tubelets)[:, None] * self.step + np.arange(self.tubelet)).reshape(-1)
        whole = int((indices.reshape(self.tubelets, -1)[:, -1] < count).sum())
        length = max(whole, 1) * self.tubelet
        return [Sample.of(np.minimum(indices, min(indices[length - 1], count - 1)), times_s, length)]

    @property
    def random(self) -> bool:
        """There is nothing random."""
        return False


@dataclass(frozen=True)
class UniformSegments(Sampler):
    """The video in `frames` equal parts, and the middle frame of each (random: any frame of each).

    As in temporal segment networks (Wang et al. 2016). A video of fewer frames gives some of them several times.

    Attributes:
        frames: Frames of a clip.
    """

    frames: int

    def __post_init__(self) -> None:
        _positive(self, "frames")

    def __call__(self, times_s: np.ndarray, rng: np.random.Generator | None = None) -> list[Sample]:
        """See `Sampler`."""
        count = _count(times_s)
        within = np.full(self.frames, 0.5) if rng is None else rng.random(self.frames)
        indices = ((np.arange(self.frames) + within) * count / self.frames).astype(np.int64)
        return [Sample.of(np.minimum(indices, count - 1), times_s)]


@dataclass(frozen=True)
class DenseClips(Sampler):
    """Stretches of a video: `frames` frames, `step` apart, or at a rate of their own by the times of the video.

    One clip starts in the middle (random: anywhere); several are spread evenly from the start to the end, as the
    published protocols test (30 views = 10 clips x 3 crops, Feichtenhofer et al. 2019). Of a video that is shorter the
    last frame is repeated.

    Attributes:
        frames: Frames of a clip.
        step: Frames of the video from one to the next.
        frame_rate: Frames a second instead, whatever the rate of the video: the frame that is shown at each time.
        clips: Clips of a video.
    """

    frames: int
    step: int = 1
    frame_rate: float | None = None
    clips: int = 1

    def __post_init__(self) -> None:
        _positive(self, "frames", "step", "clips")
        if self.frame_rate is not None and (self.step != 1 or not 0 < self.frame_rate < float("inf")):
            raise ConfigError(f"frame_rate must be a positive number, without a step, not {self.frame_rate!r:.40}")

    def __call__(self, times_s: np.ndarray, rng: np.random.Generator | None = None) -> list[Sample]:
        """See `Sampler`."""
        count = _count(times_s)
        if rng is not None:
            shares = np.sort(rng.random(self.clips))
        else:
            shares = np.linspace(0, 1, self.clips) if self.clips > 1 else np.array([0.5])
        if self.frame_rate is None:
            room = max(count - (self.frames - 1) * self.step - 1, 0)
            starts = np.minimum((shares * (room + 1)).astype(np.int64), room)
            found = [np.minimum(start + np.arange(self.frames) * self.step, count - 1) for start in starts]
        else:
            room_s = max(float(times_s[-1] - times_s[0]) - (self.frames - 1) / self.frame_rate, 0.0)
            found = [self.from_time(times_s, float(times_s[0]) + share * room_s) for share in shares]
        return [Sample.of(indices, times_s) for indices in found]

    def from_time(self, times_s: np.ndarray, start_s: float) -> np.ndarray:
        """Positions, int64 (frames,), of the clip that starts at a time."""
        if self.frame_rate is None:
            start = int(np.searchsorted(times_s, start_s - 1e-6))
            return np.minimum(start + np.arange(self.frames) * self.step, len(times_s) - 1)
        wanted = start_s + np.arange(self.frames) / self.frame_rate
        # What is on show: the last frame that is not later, but for the rounding of time stamps to milliseconds.
        shown = np.searchsorted(times_s, wanted + min(1e-3, 0.25 / self.frame_rate), "right") - 1
        return np.clip(shown, 0, len(times_s) - 1)


def sampler_for(data: VideoDataConfig, clips: int = 1) -> Sampler:
    """The sampler of a model.

    Args:
        data: What the model expects.
        clips: Clips of each video; more than one of dense sampling alone.

    Raises:
        ConfigError: If the model's sampling gives one clip.
    """
    if clips > 1 and data.sampling != "dense":
        raise ConfigError(f"{data.sampling} sampling takes one clip of a video: leave clips at 1")
    if data.sampling == "released-ucf101":
        return TubeletSteps(data.tubelets, data.tubelet, data.frame_step)
    if data.sampling == "uniform":
        return UniformSegments(data.frames)
    return DenseClips(data.frames, data.frame_step, data.frame_rate, clips)


def _positive(sampler: Sampler, *names: str) -> None:
    for name in names:
        value = getattr(sampler, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name} must be a whole number of 1 or more, not {value!r:.40}")


def _count(times_s: np.ndarray) -> int:
    if not len(times_s):
        raise DataError("a video without frames has no clips")
    return len(times_s)
