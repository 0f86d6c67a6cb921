"""Which frames make a clip, how frames become model input, and which windows a video has."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from modalities.video.data_config import VideoDataConfig
from modalities.video.predict import windows_of
from modalities.video.sampling import DenseClips, TubeletSteps, UniformSegments, sampler_for
from modalities.video.transforms import preprocess_clip, resize_clip
from zoo.errors import ConfigError, DataError

DENSE = VideoDataConfig(input_size=(3, 16, 16), frames=8, frame_rate=8.0)


def times(count: int, fps: float = 25.0) -> np.ndarray:
    return np.arange(count) / fps


def test_the_released_sampling_takes_pairs_of_the_first_fifty_frames() -> None:
    (sample,) = TubeletSteps()(times(200))
    assert sample.indices.tolist() == [0, 1, 10, 11, 20, 21, 30, 31, 40, 41] and sample.length == 10
    assert sample.times_s.tolist() == times(200)[sample.indices].tolist()
    assert not TubeletSteps().random


@pytest.mark.parametrize(("count", "length"), [(50, 10), (42, 10), (41, 8), (32, 8), (31, 6), (12, 4), (2, 2), (1, 2)])
def test_shorter_videos_have_fewer_tubelets_and_repeat_the_last_frame(count: int, length: int) -> None:
    (sample,) = TubeletSteps()(times(count))
    assert sample.length == length and len(sample.indices) == 10
    assert (sample.indices[length:] == sample.indices[length - 1]).all() and sample.indices.max() < count


def test_uniform_segments_are_middles_or_anywhere_in_equal_parts() -> None:
    sampler = UniformSegments(4)
    assert sampler(times(40))[0].indices.tolist() == [5, 15, 25, 35]
    assert sampler(times(2))[0].indices.tolist() == [0, 0, 1, 1]
    drawn = np.stack([sampler(times(40), np.random.default_rng(seed))[0].indices for seed in range(200)])
    assert (drawn // 10 == np.arange(4)).all() and len(np.unique(drawn)) == 40


def test_dense_clips_start_in_the_middle_or_spread_over_the_video() -> None:
    assert DenseClips(4, step=2)(times(27))[0].indices.tolist() == [10, 12, 14, 16]
    spread = [sample.indices.tolist() for sample in DenseClips(4, step=2, clips=3)(times(27))]
    assert spread == [[0, 2, 4, 6], [10, 12, 14, 16], [20, 22, 24, 26]]
    assert DenseClips(4, step=2)(times(3))[0].indices.tolist() == [0, 2, 2, 2]
    starts = {DenseClips(4)(times(9), np.random.default_rng(s))[0].indices[0] for s in range(100)}
    assert starts == set(range(6))


def test_a_frame_rate_takes_what_is_shown_at_each_time() -> None:
    # 25 frames a second seen at 10: every 2.5th frame, the one on show.
    assert DenseClips(5, frame_rate=10.0).from_time(times(100), 0.0).tolist() == [0, 2, 5, 7, 10]
    slow = np.array([0.0, 0.5, 0.55, 2.0])  # Of a variable rate.
    assert DenseClips(5, frame_rate=2.0).from_time(slow, 0.0).tolist() == [0, 1, 2, 2, 3]
    rounded = np.round(np.arange(30) / 30, 3)  # Matroska rounds to milliseconds.
    assert DenseClips(30, frame_rate=30.0).from_time(rounded, 0.0).tolist() == list(range(30))


def test_samplers_follow_the_data_config() -> None:
    assert sampler_for(DENSE, 3) == DenseClips(8, 1, 8.0, 3)
    assert sampler_for(VideoDataConfig(frames=6, sampling="uniform")) == UniformSegments(6)
    released = VideoDataConfig(frames=10, sampling="released-ucf101", frame_step=10)
    assert sampler_for(released) == TubeletSteps(5, 2, 10)
    with pytest.raises(ConfigError, match="takes one clip"):
        sampler_for(released, 2)
    for bad in (lambda: UniformSegments(0), lambda: DenseClips(4, step=2, frame_rate=3.0), lambda: TubeletSteps(True)):
        with pytest.raises(ConfigError):
            bad()
    with pytest.raises(DataError, match="without frames"):
        UniformSegments(2)(np.zeros(0))


def test_windows_follow_one_another_and_the_last_ends_with_the_video() -> None:
    starts = [sample.times_s[0] for sample in windows_of(times(80), DENSE)]  # 3.2 s in windows of 1 s.
    assert starts == pytest.approx([0, 1, 2], abs=0.04)
    starts = [sample.times_s[0] for sample in windows_of(times(90), DENSE)]  # 3.6 s.
    assert starts == pytest.approx([0, 1, 2, 2.6], abs=0.04)
    assert len(windows_of(times(80), DENSE, stride_s=0.1)) == 23
    assert len(windows_of(times(3), DENSE)) == 1


def test_windows_of_other_samplers() -> None:
    released = VideoDataConfig(frames=10, sampling="released-ucf101", frame_step=10)
    found = windows_of(times(120), released)
    assert [sample.indices[0] for sample in found] == [0, 50] and found[1].indices.tolist()[-1] == 91
    assert [sample.indices[0] for sample in windows_of(times(120), released, stride_s=1.0)] == [0, 25, 50]
    assert windows_of(times(20), released)[0].length == 4
    uniform = VideoDataConfig(frames=4, sampling="uniform")
    assert [sample.indices.tolist() for sample in windows_of(times(40), uniform)] == [[5, 15, 25, 35]]
    assert [sample.indices[0] for sample in windows_of(times(75), uniform, stride_s=1.0)] == [3, 28, 53]


def test_preprocessing_is_that_of_pictures_for_every_frame() -> None:
    from modalities.image.transforms import preprocess
    from zoo.data_config import DataConfig

    frames = np.random.default_rng(0).integers(0, 256, (3, 40, 60, 3), dtype=np.uint8)
    about = {"input_size": (3, 16, 16), "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4), "crop_fraction": 0.9}
    found = preprocess_clip(frames, VideoDataConfig(frames=2, **about))  # type: ignore[arg-type]
    expected = torch.stack([preprocess(frame, DataConfig(**about)) for frame in frames], dim=1)  # type: ignore[arg-type]
    assert found.shape == (1, 3, 3, 16, 16) and torch.allclose(found[0], expected, atol=1e-6)
    as_bytes = VideoDataConfig(input_size=(3, 40, 60), resize="squash", frames=2, pixel_range="bytes")
    assert torch.equal(preprocess_clip(frames, as_bytes)[0], torch.from_numpy(frames).permute(3, 0, 1, 2).float())


@pytest.mark.parametrize("shape", [(8, 32), (32, 8)])
def test_three_crops_lie_along_the_longer_side(shape: tuple[int, int]) -> None:
    ramp = np.arange(32, dtype=np.uint8)[None, None, :, None] * np.ones((2, 8, 1, 3), np.uint8)
    frames = ramp if shape == (8, 32) else ramp.transpose(0, 2, 1, 3)
    found = resize_clip(frames, VideoDataConfig(input_size=(3, 8, 8), frames=2), crops=3)
    assert found.shape == (3, 3, 2, 8, 8)
    assert found.mean((1, 2, 3, 4)).tolist() == pytest.approx([3.5, 15.5, 27.5])
    assert torch.equal(found[1], resize_clip(frames, VideoDataConfig(input_size=(3, 8, 8), frames=2))[0])


def test_what_cannot_be_prepared_is_refused() -> None:
    frames = np.zeros((2, 8, 8, 3), np.uint8)
    for bad in (frames.astype(np.float32), frames[0], frames[:0]):
        with pytest.raises(DataError, match="frames must be uint8"):
            preprocess_clip(bad, DENSE)
    for data, crops in ((DENSE, 2), (VideoDataConfig(resize="squash"), 3)):
        with pytest.raises(ConfigError, match="crops must be 1"):
            preprocess_clip(frames, data, crops)


@pytest.mark.parametrize("last", [1e6, 1e9, 1e15])
def test_damaged_time_stamps_do_not_make_windows_without_end(last):
    with pytest.raises(DataError, match="at most 100,000"):
        windows_of(np.array([0.0, 0.04, 0.08, last]), DENSE)
