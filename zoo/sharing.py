"""Several processes at one evaluation: each takes some of the batches, and all get the numbers of all."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from zoo.errors import ZooError, require

__all__ = ["ALONE", "WAIT", "Share", "launched"]

WAIT = timedelta(hours=3)
"""Longest wait of processes for each other: one decodes the data meanwhile, for which ten minutes, the default on
GPUs, are too few."""


@dataclasses.dataclass(frozen=True)
class Share:
    """Which part of the work is that of this process.

    Batches are cut as one process would cut them, and process `rank` takes every `world`-th: so each is computed once,
    by the same numbers. With more than one process, torch.distributed must have been initialised, and all of them call
    the methods together.

    Attributes:
        rank: Of this process.
        world: Number of processes.
    """

    rank: int = 0
    world: int = 1

    def blocks(self, count: int, size: int) -> list[tuple[int, int]]:
        """Where the batches of this process begin and end, of `count` samples in batches of `size`."""
        starts = range(self.rank * size, count, self.world * size)
        return [(start, min(start + size, count)) for start in starts]

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, which pickle can send, in the order of their ranks.

        Raises:
            ZooError: If one of the others has ended.
        """
        if self.world == 1:
            return [value]
        import torch.distributed

        values: list[Any] = [None] * self.world
        try:
            torch.distributed.all_gather_object(values, value)
        except RuntimeError as error:
            if "closed" not in str(error) and "reset" not in str(error):
                raise
            raise ZooError(f"process {self.rank} stops: another one has ended and says why") from error
        return values

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Runs the body in process 0, and then in the others, which find what it has made."""
        if self.rank:
            self.gather(None)
        try:
            yield
        finally:
            if self.world > 1 and not self.rank:
                self.gather(None)


ALONE = Share()


@contextmanager
def launched(device: str) -> Iterator[tuple[Share, str]]:
    """The share of a process that `accelerate launch` or torchrun has started among others; `ALONE` without them.

    Args:
        device: `"cpu"` or `"cuda"`; with an index it is taken as it is.

    Yields:
        The share, and the device of this process.

    Raises:
        MissingDependencyError: If there are others, and accelerate is not installed.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield ALONE, device
        return
    accelerate = require("accelerate", extra="train")
    state = accelerate.PartialState(cpu=device == "cpu", timeout=WAIT)
    try:
        own = str(state.device) if device == "cuda" else device
        yield Share(state.process_index, state.num_processes), own
    finally:
        state.destroy_process_group()
