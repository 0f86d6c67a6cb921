"""Time coordinates of clips: numbers of tubelets, seconds at a frame rate, and given times."""

from __future__ import annotations

import pytest
import torch
from video_models import VARIANTS, clips, logits, sequences, video_model

import zoo
from modalities.video.embed import clip_coordinates


@pytest.mark.parametrize(("attention", "pool"), VARIANTS)
def test_seconds_are_tubelets_at_the_training_rate(attention, pool):
    shape = {"attention": attention, "pool": pool}
    counted, timed = video_model(**shape), video_model(**shape, time_unit_s=0.125)
    expected = logits(counted, clips())
    assert torch.equal(logits(timed, clips()), expected)
    times = 1.7e9 + torch.arange(10, dtype=torch.float64).expand(3, -1) / 16  # Seconds since 1970.
    torch.testing.assert_close(logits(timed, clips(), None, times), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("attention", "pool"), VARIANTS)
def test_half_the_rate_is_twice_as_far(attention, pool):
    model = video_model(attention=attention, pool=pool, time_unit_s=0.125)
    expected = logits(model, clips())
    times = torch.arange(10, dtype=torch.float64).expand(3, -1) / 8
    halved = logits(model, clips(), None, times)
    assert (halved - expected).abs().max() > 1e-4
    model.data_config = model.data_config.replace(frame_rate=8.0)
    torch.testing.assert_close(logits(model, clips()), halved, rtol=0, atol=1e-6)
    coords = sequences(model, clips()).coords
    counted = sequences(video_model(attention=attention, pool=pool), clips(1, 20)).coords  # Twice as many tubelets.
    kept = counted.values[:, counted.prefix :].unflatten(1, (10, 6))[:, ::2].flatten(1, 2)
    assert torch.equal(coords.values[:, coords.prefix :], kept) and coords.integral
    assert sequences(model, clips(1, 20)).coords.bounds[0] == (0.0, 18.0)


def test_uneven_times_and_times_of_padding():
    model = video_model(time_unit_s=0.5)
    times = torch.tensor([[3.0, 3.5, 4.0, 4.5, 8.0, 8.5]]).double()
    values = sequences(model, clips(1, 6), None, times).coords.values[0, 1:, 0]
    assert values.view(3, 6)[:, 0].tolist() == [0.0, 2.0, 10.0]
    padded = times.clone()
    padded[:, 4:] = float("nan")
    short = logits(model, clips(1, 6), torch.tensor([2]), padded)
    expected = logits(model, clips(1, 6)[:, :, :4], None, times[:, :4])
    torch.testing.assert_close(short, expected, rtol=0, atol=1e-5)
    with pytest.raises(zoo.DataError, match="times_s of real frames must be finite"):
        model(clips(1, 6), None, padded)


@pytest.mark.parametrize(("attention", "pool"), VARIANTS)
def test_every_sample_has_its_own_times(attention, pool):
    model = video_model(attention=attention, pool=pool, time_unit_s=0.125)
    times = torch.arange(10, dtype=torch.float64) * torch.tensor([[1 / 16], [1 / 8], [1 / 30]])
    together = logits(model, clips(), torch.tensor([5, 4, 2]), times)
    for row, length in enumerate((5, 4, 2)):
        one = clips()[row : row + 1, :, : 2 * length]
        alone = logits(model, one, None, times[row : row + 1, : 2 * length])
        torch.testing.assert_close(alone, together[row : row + 1], rtol=0, atol=1e-5)


def test_coordinates_of_given_times_equal_those_of_a_rate():
    device, dtype = torch.device("cpu"), torch.float32
    rate = clip_coordinates((3, 1, 2), origin=1, times=1.5, device=device, dtype=dtype)
    given = clip_coordinates((3, 1, 2), origin=1, times=torch.tensor([[0, 1.5, 3]]), device=device, dtype=dtype)
    assert torch.equal(rate.values, given.values) and rate.bounds[0] == (1.0, 4.0) and given.bounds is None
    assert not rate.integral and not given.integral
    far = clip_coordinates((3, 1, 2), origin=0, times=200.0, device=device, dtype=dtype)
    assert not far.integral and clip_coordinates((3, 1, 2), origin=0, times=100.0, device=device, dtype=dtype).integral
