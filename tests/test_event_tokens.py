"""Batches of event tokens: padding, samples without a token, and what does not fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from modalities.events import EventTokens, Tokens
from zoo.errors import DataError


def sample(count: int, seed: int = 0, buckets: int = 3, side: int = 4) -> Tokens:
    rng = np.random.default_rng(seed)
    x, y, t = (rng.integers(0, 9, count) for _ in range(3))
    return Tokens(x, y, t + 2**60, rng.integers(1, 99, (count, 2, buckets, side, side)).astype(np.int16))


@pytest.mark.parametrize("lengths", [(0, 1, 5), (3,), (0,), (0, 0), (2, 2)])
def test_collate_pads_to_the_longest(lengths):
    samples = [sample(length, seed) for seed, length in enumerate(lengths)]
    batch = EventTokens.collate(samples)
    assert len(batch) == len(lengths) and batch.lengths.tolist() == list(lengths)
    assert batch.patches.shape == (len(lengths), max(lengths), 2, 3, 4, 4) and batch.patches.dtype == torch.int16
    for row, (length, one) in enumerate(zip(lengths, samples, strict=True)):
        for name in ("x", "y", "t_us", "patches"):
            values = getattr(batch, name)[row]
            assert np.array_equal(values[:length].numpy(), getattr(one, name)) and not values[length:].any()
        assert batch.mask[row].tolist() == [True] * length + [False] * (max(lengths) - length)


def test_to_moves_all_and_casts_the_patches():
    moved = EventTokens.collate([sample(2)]).to("meta", torch.float16)
    assert {getattr(moved, name).device.type for name in ("x", "y", "t_us", "patches", "mask")} == {"meta"}
    assert moved.patches.dtype == torch.float16 and moved.t_us.dtype == torch.int64 and moved.mask.dtype == torch.bool


def test_what_does_not_fit_is_refused():
    with pytest.raises(DataError, match="no samples to collate"):
        EventTokens.collate([])
    with pytest.raises(DataError, match="patches of different shapes"):
        EventTokens.collate([sample(1), sample(1, buckets=4)])
    batch = EventTokens.collate([sample(3)])
    good = {name: getattr(batch, name) for name in ("x", "y", "t_us", "patches", "mask")}
    for name, value, message in (
        ("mask", batch.mask.int(), r"mask must be bool \(True: a token\), not torch.int32"),
        ("mask", batch.mask[:, :2], r"x is \(1, 3\), mask is not"),
        ("t_us", batch.t_us.float(), "t_us must be int64, not torch.float32"),
        ("patches", batch.patches[:, :, 0], "patches must be .* not"),
        ("x", batch.x[0], r"must be \(B, S\)"),
    ):
        with pytest.raises(DataError, match=message):
            EventTokens(**(good | {name: value}))


def test_batches_of_constant_shape():
    samples = [sample(2), sample(0), sample(5)]
    batch = EventTokens.collate(samples, length=8)
    assert batch.patches.shape == (3, 8, 2, 3, 4, 4) and batch.lengths.tolist() == [2, 0, 5]
    short = EventTokens.collate(samples)
    assert torch.equal(batch.t_us[:, :5], short.t_us) and not batch.mask[:, 5:].any()
    assert EventTokens.collate(samples, length=5).patches.shape == short.patches.shape
    with pytest.raises(DataError, match="a sample has 5 tokens, more than the 4 places"):
        EventTokens.collate(samples, length=4)


def test_tokens_outside_a_grid_are_named_and_padding_is_not():
    batch = EventTokens.collate([sample(3), sample(1)])
    batch.check_grid((9, 9))
    batch.x[1, 2] = 99  # Padding.
    batch.check_grid((9, 9))
    batch.y[0, 1] = 9
    with pytest.raises(DataError, match="token 1 of sample 0 is at column [0-8], row 9, outside the grid of 9 columns"):
        batch.check_grid((9, 9))
