"""Batches that other processes make."""

from __future__ import annotations

import os

import pytest
import torch

from modalities.driving.workers import BatchWorkers
from zoo.errors import DataError

HERE = os.getpid()


def squares(number: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    if number == 3:
        raise DataError("no batch 3")
    return torch.tensor([number**2]), {"empty": torch.zeros(0, 2), "away": torch.tensor(os.getpid() != HERE)}


def test_batches_come_from_processes_in_any_order() -> None:
    workers = BatchWorkers(squares, 10, 2, 2)
    for number in (0, 1, 2, 7, 5, 9, 12):
        square, rest = workers(number)
        assert square.tolist() == [number**2] and rest["empty"].shape == (0, 2) and rest["away"]
    with pytest.raises(DataError, match="no batch 3"):
        workers(3)
    assert workers(4)[0].tolist() == [16]
    workers.close()


def test_without_processes_batches_are_made_in_line() -> None:
    square, rest = BatchWorkers(squares, 10, 0, 2)(6)
    assert square.tolist() == [36] and not rest["away"]


def test_a_process_that_ends_is_said() -> None:
    workers = BatchWorkers(lambda number: os._exit(1), 3, 1, 1)
    with pytest.raises(DataError, match="set workers to fewer"):
        workers(0)
