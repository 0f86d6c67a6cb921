"""Class-balanced sampling of key frames."""

from __future__ import annotations

import pytest
import torch

from modalities.driving.balance import BalancedOrder, balanced_weights, repeat
from zoo.errors import ConfigError, DataError
from zoo.training.task import EpochOrder

# A class in all frames, one in two, one in a single frame, none of the fourth; a frame without boxes.
LABELS = [torch.tensor(row, dtype=torch.int64) for row in ([0, 0, 0, 1], [0, 2, -1], [0, 1, 9], [0], [0, 0], [])]


def test_weights_give_every_class_the_same_share():
    weights = balanced_weights(LABELS, 4)
    # 8 pairs of frame and class, 3 classes: each class is drawn 8 / 3 times.
    share = 8 / 3
    expected = [share / 5 + share / 2, share / 5 + share, share / 5 + share / 2, share / 5, share / 5, 0.0]
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float64))
    assert weights.sum() == pytest.approx(8)
    alike = balanced_weights([torch.tensor([0]), torch.tensor([1])], 2)
    assert alike.tolist() == [1.0, 1.0]
    with pytest.raises(DataError, match="no frame has a box"):
        balanced_weights([torch.tensor([5]), torch.tensor([], dtype=torch.int64)], 3)


def test_frames_come_as_often_as_their_weights_say():
    weights = balanced_weights(LABELS, 4)
    rounds = torch.stack([torch.bincount(repeat(weights, seed), minlength=6) for seed in range(400)]).double()
    assert (rounds.sum(1) == 8).all()
    assert ((rounds - weights).abs() < 1).all()
    assert (rounds.mean(0) - weights).abs().max() < 0.08
    assert torch.equal(repeat(weights, 3), repeat(weights, 3)) and (rounds != rounds[0]).any()
    third = torch.full((30_000,), 1 / 3)
    assert all(len(repeat(third, seed)) == 10_000 for seed in range(5))
    assert repeat(torch.tensor([0.0, 1.0, 0.0]), 0).tolist() == [1]
    for bad in ([1.0, -0.5], [0.0, 0.0], [1.0, float("nan")], [float("inf")], []):
        with pytest.raises(ConfigError, match="weights of key frames"):
            repeat(torch.tensor(bad), 0)


def test_order_of_an_epoch():
    weights = balanced_weights(LABELS, 4)
    order = BalancedOrder(weights, 4, seed=5)
    assert order.steps_per_epoch == 2
    epochs = [torch.cat([order.rows(epoch, index) for index in range(2)]) for epoch in (0, 1, 0)]
    assert torch.equal(epochs[0], epochs[2]) and not torch.equal(epochs[0], epochs[1])
    for rows in epochs:
        assert ((torch.bincount(rows, minlength=6) - weights).abs() < 1).all()
    # Two processes share a batch.
    parts = []
    for rank in range(2):
        share = BalancedOrder(weights, 4, seed=5)
        share.start(torch.device("cpu"), rank, 2)
        parts.append(share.rows(1, 1))
    assert torch.equal(torch.cat(parts), order.rows(1, 1))
    with pytest.raises(ConfigError, match="batch_size 9"):
        BalancedOrder(weights, 9, seed=0)
    even = BalancedOrder(torch.ones(8), 4, seed=5)
    assert torch.equal(even.rows(2, 1), EpochOrder(8, 4, 5).rows(2, 1))
