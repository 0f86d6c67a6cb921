"""Batches made ahead by other processes, so that Python works on them beside the training step."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from zoo.errors import DataError

__all__ = ["BatchWorkers"]

# Set in each process as it starts: what was forked need not be sent with every call.
_make: Callable[[int], Any] | None = None


class BatchWorkers:
    """Gives numbered batches asked for in any order; in rising order they are made ahead.

    Processes are forked at once, before there is work for other threads to be in the middle of; so what `make` reads
    (tables, key frames) is shared with them as it is then. They work on the CPU alone, leave signals to the process
    that asks for batches, and end with it, however it ends. Where processes cannot be forked (Windows) or not without
    harm (macOS, whose libraries may not be used after it), batches are made as they are asked for.

    Args:
        make: Batch of a number: a tree of CPU tensors.
        count: Batches 0 to this one (exclusive) exist.
        workers: Processes; 0 makes everything when asked, and nothing ahead.
        ahead: How many further batches are begun.
    """

    def __init__(self, make: Callable[[int], Any], count: int, workers: int, ahead: int) -> None:
        self._make, self._count, self._ahead = make, count, ahead
        self._begun: dict[int, Future[Any]] = {}
        self._pool: ProcessPoolExecutor | None = None
        self._processes: list[BaseProcess] = []
        if workers and sys.platform != "darwin" and "fork" in multiprocessing.get_all_start_methods():
            context = multiprocessing.get_context("fork")
            self._pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(make,))
            others = set(multiprocessing.active_children())
            # The collector writes to every object that it looks at, which would copy the tables into each process.
            frozen = gc.get_freeze_count()
            gc.freeze()
            try:
                self._pool.submit(_nothing).result()
            finally:
                if not frozen:
                    gc.unfreeze()
            self._processes = [child for child in multiprocessing.active_children() if child not in others]

    def __call__(self, number: int) -> Any:
        """One batch.

        Raises:
            DataError: If a process ended, or as `make` does.
        """
        if self._pool is None:
            return self._make(number)
        for old in [begun for begun in self._begun if not number <= begun <= number + self._ahead]:
            self._begun.pop(old).cancel()
        try:
            for coming in range(number, max(number + 1, min(number + self._ahead + 1, self._count))):
                if coming not in self._begun:
                    self._begun[coming] = self._pool.submit(_made, coming)
            arrays = self._begun.pop(number).result()
        except BrokenProcessPool as error:
            for process in self._processes:
                process.kill()  # The pool asks them by SIGTERM, which they ignore, and waits for them.
            raise DataError(
                "a process that makes batches ended unexpectedly (out of memory?): set workers to fewer, or to 0"
            ) from error
        return tree_map_only(_Array, _Array.tensor, arrays)

    def close(self) -> None:
        """Ends the processes, each after the batch that it is at; nothing may be asked for afterwards."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


class _Array:
    """A tensor on its way: as a NumPy array it goes through a pipe, where tensors would take shared memory."""

    def __init__(self, tensor: Tensor) -> None:
        self.values = tensor.numpy()

    def tensor(self) -> Tensor:
        return torch.from_numpy(self.values)


def _begin(make: Callable[[int], Any]) -> None:
    global _make
    _make = make
    # Those that ask a training run to stop reach all of its processes, and it still takes a step and a checkpoint.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)  # There is a process for every core, and threads of the parent were not forked.


def _end_with_parent() -> None:
    """Waits for the end of the process that forked this one, also one by SIGKILL: no other sign of it would come."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _nothing() -> None:
    """Of the first call, which starts the processes."""


def _made(number: int) -> Any:
    assert _make is not None
    return tree_map_only(Tensor, _Array, _make(number))
