"""What a video model expects of its clips: fields, limits and JSON."""

from __future__ import annotations

import pytest

import zoo
from modalities.video.data_config import PIXEL_RANGES, SAMPLINGS, VideoDataConfig
from modalities.video.presets import MOTION_DATA, UCF101_DATA
from zoo.data_config import DataConfig


@pytest.mark.parametrize("values", [UCF101_DATA, MOTION_DATA])
def test_values_survive_json(values):
    data = VideoDataConfig.from_dict(values)
    assert data.to_dict() == values and VideoDataConfig.from_dict(data.to_dict()) == data
    assert isinstance(data, DataConfig) and hash(data) == hash(data.replace())


def test_sizes_of_a_clip():
    data = VideoDataConfig(frames=24, tubelet=4, frame_rate=12)
    assert (data.tubelets, data.duration_s, data.frame_rate) == (6, 2.0, 12.0)
    assert VideoDataConfig().duration_s is None


def test_other_channels_and_sizes_keep_the_frames():
    data = VideoDataConfig.from_dict(MOTION_DATA)
    grey = data.with_channels(1)
    assert isinstance(grey, VideoDataConfig) and grey.input_size == (1, 64, 64)
    assert grey.mean == (pytest.approx(sum(data.mean) / 3),) and grey.frames == 16
    assert data.with_size((48, 80)).input_size == (3, 48, 80) and data.with_size(32).frame_rate == 16.0
    assert VideoDataConfig.from_dict(UCF101_DATA).with_channels(4).mean == (0.0,) * 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"frames": 0}, "frames must be a whole number"),
        ({"frames": 16.0}, "frames must be a whole number"),
        ({"frames": True}, "frames must be a whole number"),
        ({"frames": 15}, "15 frames do not divide into tubelets of 2"),
        ({"tubelet": 65}, "tubelet must be a whole number from 1 to 64"),
        ({"frame_step": -1}, "frame_step must be"),
        ({"sampling": "random"}, f"sampling must be one of {', '.join(SAMPLINGS)}"),
        ({"sampling": None}, "sampling must be one of"),
        ({"pixel_range": "255"}, f"pixel_range must be one of {', '.join(PIXEL_RANGES)}"),
        ({"frame_rate": 0}, "frame_rate must be a number"),
        ({"frame_rate": float("nan")}, "frame_rate must be a number"),
        ({"frame_rate": "16"}, "frame_rate must be a number"),
        ({"frame_rate": True}, "frame_rate must be a number"),
        ({"sampling": "uniform", "frame_rate": 16.0}, "frame_rate is for dense sampling"),
        ({"frame_step": 2, "frame_rate": 16.0}, "frame_rate is for dense sampling"),
        ({"sampling": "released-ucf101", "frame_step": 1}, "tubelets of 2 frames every 1 frames overlap"),
        ({"pixel_range": "bytes", "std": (0.5, 0.5, 0.5)}, "have mean 0 and std 1"),
        ({"pixel_range": "bytes", "mean": (0.5, 0.5, 0.5)}, "have mean 0 and std 1"),
        ({"input_size": (3, 0, 64)}, "input_size"),
        ({"resize": "stretch"}, "resize must be one of"),
    ],
)
def test_bad_values_are_refused(changes, message):
    with pytest.raises(zoo.ConfigError, match=message):
        VideoDataConfig(**changes)


def test_unknown_settings_are_named():
    with pytest.warns(UserWarning, match="unknown settings ignored: fps"):
        assert VideoDataConfig.from_dict({"fps": 3}) == VideoDataConfig()
    with pytest.raises(zoo.ConfigError, match="expected a mapping"):
        VideoDataConfig.from_dict([])
