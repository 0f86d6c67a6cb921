"""Coordinates: actual grids, large origins, centring, prefixes, packing."""

import pytest
import torch

from zoo import DataError, coordinates
from zoo.coordinates import Coordinates


def test_grid_is_column_row_of_the_actual_grid():
    coords = coordinates.grid(2, 3, origin=1)
    assert coords.values.tolist() == [[[1, 1], [2, 1], [3, 1], [1, 2], [2, 2], [3, 2]]]
    assert coords.values.dtype == torch.float32
    assert coords.extents() == (1.0, 0.5)
    assert coordinates.grid(2, 3, dtype=torch.bfloat16).values.dtype == torch.float32
    assert coordinates.grid(2, 3, dtype=torch.float64).values.dtype == torch.float64


def test_equal_token_counts_do_not_share_positions():
    assert not torch.equal(coordinates.grid(2, 8).values, coordinates.grid(4, 4).values)
    transposed = coordinates.grid(8, 2).values.view(8, 2, 2).transpose(0, 1).flip(-1).reshape(1, 16, 2)
    assert torch.equal(coordinates.grid(2, 8).values, transposed)


def test_clip_runs_time_slowest():
    coords = coordinates.clip(2, 1, 2, origin=1)
    assert coords.values[0].tolist() == [[1, 1, 1], [1, 1, 2], [2, 1, 1], [2, 1, 2]]


def test_event_times_survive_epoch_microseconds():
    start = 1_790_000_000_000_000
    t_us = torch.tensor([[start, start + 1, start + 60_000_000]])
    zero = torch.zeros(1, 3, dtype=torch.int32)
    coords = coordinates.events(zero, zero, t_us, time_scale=50_000)
    assert torch.allclose(coords.values[0, :, 2], torch.tensor([0.0, 1 / 50_000, 1200.0]), rtol=1e-6, atol=0)


def test_point_origins_are_subtracted_in_float64():
    utm = torch.tensor([[[4_500_000.0, 500_000.0, 10.0], [4_500_000.01, 500_000.0, 10.0]]], dtype=torch.float64)
    coords = coordinates.points(utm, unit=0.01)
    assert torch.allclose(coords.values[0, 1], torch.tensor([1.0, 0.0, 0.0]), atol=1e-5)


def test_declared_bounds_are_those_of_the_values():
    made = coordinates.clip(2, 3, 5, origin=1).shifted((3, -1, 0)).scaled(-0.5).with_prefix(1, at=(9, 9, 9))
    undeclared = Coordinates(made.values)
    assert made.bounds is not None and made.extents() == undeclared.extents()
    assert coordinates.grid(2, 3).shifted(torch.ones(2)).extents() == (1.0, 0.5)


@pytest.mark.parametrize("offset", [0.0, 1e4, -3e5])
def test_centring_removes_an_offset_exactly(offset):
    coords = coordinates.grid(5, 8).shifted(offset)
    assert torch.equal(coords.centred(torch.float32), coordinates.grid(5, 8).centred(torch.float32))


def test_prefix_without_position_is_not_a_token_at_the_origin():
    coords = coordinates.grid(2, 2).with_prefix(2)
    assert coords.positioned is not None and coords.positioned[0].tolist() == [False, False, True, True, True, True]
    placed = coordinates.grid(2, 2, origin=1).with_prefix(1, at=(0, 0))
    assert placed.positioned is None
    assert placed.values[0, 0].tolist() == [0, 0]
    assert placed.bounds == ((0, 2), (0, 2)) and placed.extents() == (1.0, 1.0)  # The class token widens the sample.
    assert placed.integral and not coordinates.grid(2, 2).with_prefix(1, at=(0.5, 0)).integral
    assert not coordinates.grid(2, 2).with_prefix(1, at=(-300, 0)).integral
    both = coords.with_prefix(1, at=(0, 0))
    assert both.positioned is not None and both.positioned[0, :3].tolist() == [True, False, False]


def test_hidden_tokens_do_not_move_the_centre():
    values = torch.tensor([[[0.0], [2.0], [float("nan")]]])
    coords = Coordinates(values).hide(torch.tensor([[False, False, True]]))
    assert coords.centred(torch.float32)[0, :, 0].tolist() == [-1, 1, 0]


def test_packed_samples_are_centred_apart():
    coords = Coordinates(torch.tensor([[0.0], [4.0], [100.0], [106.0]]), cu_seqlens=torch.tensor([0, 2, 2, 4]))
    assert coords.centred(torch.float32)[:, 0].tolist() == [-2, 2, -3, 3]
    assert coords.extents() == (3.0,)
    assert coords.segments().tolist() == [0, 0, 2, 2]


def test_mixtures_join():
    joined = coordinates.concatenate([coordinates.text(2), coordinates.text(3, start=2).with_prefix(1)])
    assert joined.values.shape == (1, 6, 1)
    assert joined.positioned is not None and joined.positioned[0].tolist() == [True, True, False, True, True, True]
    with pytest.raises(DataError, match="same coordinate axes"):
        coordinates.concatenate([coordinates.text(2), coordinates.grid(1, 2)])


def test_bad_coordinates_are_refused():
    with pytest.raises(DataError, match="float32 or float64"):
        Coordinates(torch.zeros(1, 2, 2, dtype=torch.bfloat16))
    with pytest.raises(DataError, match=r"\(B, N, p\)"):
        Coordinates(torch.zeros(2, 2))
    with pytest.raises(DataError, match="positioned"):
        Coordinates(torch.zeros(1, 2, 2), positioned=torch.ones(1, 3, dtype=torch.bool))
    for sides in ((0, 3), (2.5, 4)):
        with pytest.raises(DataError, match="whole number of tokens"):
            coordinates.grid(*sides)
    for offsets in (torch.tensor([]), torch.tensor([0.0, 2.0]), torch.tensor(3)):
        with pytest.raises(DataError, match="cu_seqlens"):
            Coordinates(torch.zeros(2, 2), cu_seqlens=offsets)
    with pytest.raises(DataError, match="time_scale"):
        coordinates.events(*(torch.zeros(1, 1, dtype=torch.int64),) * 3, time_scale=0)


def test_scaling_keeps_track_of_exactness():
    coords = coordinates.grid(4, 4)
    assert coords.integral and not coords.scaled(0.5).integral
    assert coords.scaled(0.5).extents() == (0.75, 0.75)
    assert not coordinates.grid(300, 2).integral  # 299 steps are not exact in bfloat16.


def test_the_origin_of_event_times_is_the_first_token_unless_stated():
    x, t_us = torch.tensor([[3, 4]]), torch.tensor([[2**60 + 500, 2**60 + 1500]])
    first = coordinates.events(x, x, t_us, time_scale=500.0).values[0, :, 2]
    assert first.tolist() == [0.0, 2.0]
    stated = coordinates.events(x, x, t_us, time_scale=500.0, origin_us=2**60).values[0, :, 2]
    assert stated.tolist() == [1.0, 3.0]
    whole = coordinates.events(x, x, torch.tensor([[500, 1500]]), time_scale=500.0, origin_us=0).values[0, :, 2]
    assert whole.tolist() == [1.0, 3.0]
