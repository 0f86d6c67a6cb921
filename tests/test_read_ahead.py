"""Work that threads do ahead."""

from __future__ import annotations

import contextlib
import threading

import pytest

from zoo.read_ahead import in_order


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_results_come_in_the_order_of_the_items(workers: int) -> None:
    assert list(in_order(lambda item: item * 10, range(20), workers)) == list(range(0, 200, 10))
    assert list(in_order(str, [], workers)) == []


def test_only_a_few_items_are_begun_ahead() -> None:
    begun: list[int] = []
    with contextlib.closing(in_order(begun.append, range(100), 2)) as ahead:
        next(ahead)
        assert len(begun) <= 5
    assert len(begun) <= 5
    lazy = in_order(begun.append, range(100), 0)
    begun.clear()
    next(lazy)
    assert begun == [0]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_comes_at_its_place(workers: int) -> None:
    results = in_order(lambda item: 1 // (2 - item), range(9), workers)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_items_are_worked_on_at_once() -> None:
    both = threading.Barrier(2, timeout=10)
    assert len(list(in_order(lambda _: both.wait(), range(4), 2))) == 4
