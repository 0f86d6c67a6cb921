"""What a modality supplies to the training loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

__all__ = ["Task", "batches"]


class Task(Protocol):
    """Data, batches, loss and metric of one kind of training; `modalities.image.task` has the first."""

    num_classes: int
    labels: list[str] | None
    steps_per_epoch: int
    facts: dict[str, Any]

    def model_arguments(self) -> dict[str, Any]:
        """Keyword arguments for `zoo.load` that follow from the data."""

    def start(self, model: nn.Module, device: torch.device, rank: int, world: int) -> None:
        """Called once when the model is there."""

    def batch(self, epoch: int, index: int) -> tuple[Any, Any]:
        """Inputs and targets on the device; a function of its arguments and the recipe's seed alone."""

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """Scalar loss."""

    def evaluate(self, model: nn.Module, precision: str) -> dict[str, float]:
        """Metrics on data held out from training; empty when there are none."""


def batches(task: Task, first: int, last: int, device: torch.device) -> Iterator[tuple[Any, Any]]:
    """Yields the batches of steps `first` to `last` (exclusive).

    On CUDA a thread makes the next two on a stream of its own while the model works on this one. On the CPU they are
    made in line, since there the model's random numbers come from the generator that augmentation seeds.
    """
    steps = iter(range(first, last))
    if device.type != "cuda":
        for step in steps:
            yield task.batch(*divmod(step, task.steps_per_epoch))
        return
    stream = torch.cuda.Stream(device)

    def make(step: int) -> tuple[Any, Any, torch.cuda.Event]:
        with torch.cuda.device(device), torch.cuda.stream(stream):
            inputs, targets = task.batch(*divmod(step, task.steps_per_epoch))
            return inputs, targets, stream.record_event()

    stream.wait_stream(torch.cuda.current_stream(device))
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches") as pool:
        waiting: deque[Future[tuple[Any, Any, torch.cuda.Event]]] = deque()
        try:
            for step in steps:
                waiting.append(pool.submit(make, step))
                if len(waiting) > 2:
                    yield _hand_over(waiting.popleft(), device)
            while waiting:
                yield _hand_over(waiting.popleft(), device)
        finally:
            for future in waiting:
                future.cancel()


def _hand_over(future: Future[tuple[Any, Any, torch.cuda.Event]], device: torch.device) -> tuple[Any, Any]:
    inputs, targets, ready = future.result()
    current = torch.cuda.current_stream(device)
    current.wait_event(ready)
    for tensor in tree_leaves((inputs, targets)):
        tensor.record_stream(current)  # or its memory could be reused while the model still reads it
    return inputs, targets
