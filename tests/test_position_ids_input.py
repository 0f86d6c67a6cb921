"""Position ids where input is wrong, far away, or off by its rounding."""

import math

import pytest
import torch

from zoo import ConfigError, DataError
from zoo.position_ids import (
    V2PE,
    Crop,
    FrameIndex,
    Image,
    Margin,
    MRoPE,
    Padding,
    RandomV2PE,
    ResetMRoPE,
    Seconds,
    SpanV2PE,
    Text,
    Video,
    VideoRoPE,
    timestamped,
)


def test_a_span_takes_its_room_whatever_the_number_of_tokens():
    for tokens in (49, 2987, 2989, 2991, 3003):  # 30 / 2989 * 2989 is more than 30.
        ids = SpanV2PE(30).place([Text(2), Image(1, tokens), Text(1)])
        assert ids.values[-2:, 0].tolist() == [31, 32]


@pytest.mark.parametrize("scheme", [VideoRoPE, MRoPE, ResetMRoPE])
@pytest.mark.parametrize("seconds", [0.05, 1 / 24, 1 / 3])
def test_sums_that_round_differently_are_one_id(scheme, seconds):
    video = Video(60, 9, 9, seconds_per_frame=seconds)
    segments = [Text(3), video, Text(2), video]
    ids = scheme(Seconds(2))(segments, start=0.3).values.double()
    torch.testing.assert_close(ids[0], scheme(Seconds(2)).place(segments, start=0.3).values, atol=1e-4, rtol=0)


def test_ids_that_merge_are_refused_in_float64_too():
    assert MRoPE()([Text(3)], start=10**13, dtype=torch.float64).values[0, 2, 0] == 10**13 + 2
    for start in (10**17, 1e308):
        with pytest.raises(DataError, match="not told apart in float64: subtract a large start with origin$"):
            MRoPE()([Text(3)], start=start, dtype=torch.float64)
    far = Video(2, 1, 1, times=[-1e308, 1e308])
    for dtype in (None, torch.float64):
        with pytest.raises(DataError, match="not told apart"):
            MRoPE(Seconds(2))([far, Text(1)], dtype=dtype)
    assert MRoPE()([Text(2)], start=10**400 + 3, origin=10**400).values[0, :, 0].tolist() == [3, 4]


def test_descriptions_keep_what_was_checked():
    crops, times = [Crop(0, 0, 1, 1)], [0.0, 1.5]
    image, video = Image(2, 2, crops=crops), Video(2, 1, 1, times=(time for time in times))
    crops.append(Crop(7, 7, 1, 1))
    assert image == Image(2, 2, crops=(Crop(0, 0, 1, 1),)) and len({image, video}) == 2
    assert video.seconds() == video.seconds() == times


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Text(-1), "length of a text must be a whole number, 0 or more, got -1"),
        (lambda: Text(1.5), "whole number"),
        (lambda: Padding(True), "whole number"),
        (lambda: Image(0, 2), "rows of a picture must be a whole number, 1 or more"),
        (lambda: Image(2, "3"), "columns of a picture"),
        (lambda: Video(0, 1, 1), "frames of a picture"),
        (lambda: Crop(0, -1, 1, 1), "left of a crop"),
        (lambda: Crop(0, 0, 1, 0), "columns of a crop"),
        (lambda: Margin(top=-1), "top of a margin"),
        (lambda: Image(2, 2, crops=[Crop(0, 1, 1, 2)]), "does not lie inside a picture of 2 rows and 2 columns"),
        (lambda: Image(2, 2, crops=[Crop(0, 0, 1, 1)], margin=Margin(left=1)), "crops or a margin"),
        (lambda: Image(2, 2, margin=(1, 1, 1, 1)), "position_ids.Margin"),
        (lambda: Video(2, 1, 1, seconds_per_frame=0), "seconds_per_frame must be a positive number up to 1e9, got 0"),
        (lambda: Video(2, 1, 1, seconds_per_frame=1, times=[0, 1]), "not both"),
        (lambda: Video(2, 1, 1, times=[0]), "2 numbers of seconds, one per frame, got 1"),
        (lambda: Video(2, 1, 1, times=[0, math.nan]), "2 numbers of seconds"),
        (lambda: Video(2, 1, 1, times=[1, 1]), "must rise"),
        (lambda: Video(2, 1, 1, times=["a", "b"]), "times must be numbers of seconds"),
        (lambda: Video(2, 1, 1, times=5), "times must be numbers of seconds"),
        (lambda: Video(2, 1, 1, times=[0, 10**400]), "times must be numbers of seconds"),
        (lambda: Video(2, 1, 1, seconds_per_frame=10**400), "up to 1e9"),
        (lambda: Image(2, 2, crops=None), "crops of a picture are a list of position_ids.Crop"),
        (lambda: Image(2, 2, crops=Crop(0, 0, 1, 1)), "crops of a picture are a list of position_ids.Crop"),
        (lambda: timestamped(Image(1, 1), before=1), "expected a Video, got a Image"),
        (lambda: timestamped(Video(2, 1, 1), before=None), "length of a text must be a whole number"),
        (lambda: timestamped(Video(2, 1, 1), before=[1]), "before must be one number of tokens or 2"),
        (lambda: MRoPE()([3]), "made of Text, Image, Video and Padding, got int"),
        (lambda: MRoPE()([], origin=0.5), "origin must be a whole number"),
        (lambda: MRoPE()([], start=math.inf), "start must be a number"),
        (lambda: MRoPE()([Text(1)], start=10**400), "out of range once origin is subtracted"),
        (lambda: MRoPE()([Text(1)], start=0.5, origin=10**400), "out of range once origin is subtracted"),
        (lambda: MRoPE()(Text(3)), "a sequence is a list of segments, got a Text"),
        (lambda: MRoPE().batch([Text(3)]), "a sequence is a list of segments, got a Text"),
        (lambda: MRoPE().packed(Text(3)), "expected a list of sequences, got a Text"),
        (lambda: MRoPE().batch([]), "at least one sequence"),
        (lambda: MRoPE().packed([]), "at least one sequence"),
        (lambda: MRoPE().batch([[]], padding_side="top"), "'right' or 'left', got 'top'"),
    ],
)
def test_bad_sequences_are_explained(make, message):
    with pytest.raises(DataError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: V2PE(3), "power of two from 1 to 256, got 3"),
        (lambda: V2PE(512), "power of two"),
        (lambda: V2PE(True), "power of two"),
        (lambda: V2PE(torch.tensor([1, 2])), "power of two"),
        (lambda: RandomV2PE(strides=64), "strides must be a list"),
        (lambda: RandomV2PE(3), "generator must be a torch.Generator"),
        (lambda: SpanV2PE(10**400), "up to 1e9"),
        (lambda: MRoPE(Seconds), "time must be a clock"),
        (lambda: VideoRoPE(2), "time must be a clock"),
        (lambda: RandomV2PE(strides=[]), "at least one stride"),
        (lambda: RandomV2PE(strides=[2, 5]), "power of two"),
        (lambda: SpanV2PE(0), "span must be a positive number"),
        (lambda: FrameIndex(-1), "stride must be a positive number"),
        (lambda: Seconds(math.nan), "per_second must be a positive number"),
    ],
)
def test_bad_schemes_are_explained(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
