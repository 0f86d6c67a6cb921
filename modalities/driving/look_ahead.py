"""Work for numbered steps, done by threads a few steps before it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, Generic, TypeVar

import torch

__all__ = ["LookAhead"]

T = TypeVar("T")


class LookAhead(Generic[T]):
    """Gives the results of steps asked for in any order; in rising order they are made ahead.

    Threads work on the CUDA stream of whoever asks, so that what they leave on the device is ready in its order.

    Args:
        jobs: The parts of a step, from its number: calls that may run at the same time.
        steps: Steps 0 to this one (exclusive) exist.
        workers: Threads; 0 makes everything when asked, and nothing ahead.
        ahead: How many further steps are begun.
        device: Of what is made.
    """

    def __init__(
        self,
        jobs: Callable[[int], Sequence[Callable[[], T]]],
        steps: int,
        workers: int,
        ahead: int,
        device: torch.device,
    ) -> None:
        self._jobs, self._steps, self._ahead, self._device = jobs, steps, ahead, device
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="scenes") if workers else None
        self._begun: dict[int, list[Future[T]]] = {}

    def __call__(self, step: int) -> list[T]:
        """The results of the parts of a step, in their order."""
        if self._pool is None:
            return [job() for job in self._jobs(step)]
        for old in [begun for begun in self._begun if not step <= begun <= step + self._ahead]:
            for future in self._begun.pop(old):
                future.cancel()
        for coming in range(step, max(step + 1, min(step + self._ahead + 1, self._steps))):
            if coming not in self._begun:
                stream = torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None
                self._begun[coming] = [self._pool.submit(_on, stream, job) for job in self._jobs(coming)]
        return [future.result() for future in self._begun.pop(step)]


def _on(stream: Any, job: Callable[[], T]) -> T:
    with nullcontext() if stream is None else torch.cuda.stream(stream):
        return job()
