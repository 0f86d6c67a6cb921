"""What a modality supplies to the training loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import register_pytree_node, tree_leaves

from zoo.coordinates import Coordinates
from zoo.errors import ConfigError
from zoo.training.seeds import derive_seed, permutation

__all__ = ["EpochOrder", "Loss", "Task", "batches", "check_model", "loss_parts"]

# Of a task: the scalar to minimise; or "loss" with that, and further scalars by name that are logged with it.
Loss = Tensor | dict[str, Tensor]


_TENSORS = ("values", "positioned", "cu_seqlens", "poses", "sample")


def _flatten(coords: Coordinates) -> tuple[list[Tensor], tuple[Any, ...]]:
    there = tuple(name for name in _TENSORS if getattr(coords, name) is not None)
    return [getattr(coords, name) for name in there], (there, coords.integral, coords.bounds, coords.unit)


def _unflatten(parts: Iterable[Any], context: tuple[Any, ...]) -> Coordinates:
    there, integral, bounds, unit = context
    tensors = dict(zip(there, parts, strict=True))
    return Coordinates(**tensors, integral=integral, bounds=bounds, unit=unit)


# Batches are handed between CUDA streams as trees of tensors.
register_pytree_node(Coordinates, _flatten, _unflatten, serialized_type_name="zoo.Coordinates")


class Task(Protocol):
    """Data, batches, loss and metric of one kind of training; `modalities.image.task` has the first.

    A task whose networks draw random numbers on the CPU in training, whatever the device, says so by an attribute
    `draws_on_host = True`; its batches must not draw from torch's default generator then, since they are made in a
    thread beside the step.

    A task that holds what does not end by itself, such as processes, ends it in a method `close()` without arguments,
    which is called after training, however that ends.
    """

    modality: str
    task: str
    num_classes: int
    labels: list[str] | None
    steps_per_epoch: int
    facts: dict[str, Any]

    def model_arguments(self) -> dict[str, Any]:
        """Keyword arguments for `zoo.load` that follow from the data."""

    def start(self, model: nn.Module, device: torch.device, rank: int, world: int) -> None:
        """Called once when the model is there."""

    def batch(self, epoch: int, index: int) -> tuple[Any, Any]:
        """Inputs of the model and targets on the device; a function of its arguments and the recipe's seed alone.

        The inputs are the model's one argument, or a tuple of its arguments.
        """

    def loss(self, outputs: Any, targets: Any) -> Loss:
        """Scalar loss, or a mapping with it as `"loss"` and its parts, the same keys at every step."""

    def evaluate(self, model: nn.Module, precision: str) -> dict[str, float]:
        """Metrics on data held out from training; empty when there are none.

        All processes call it, with the same weights, and get the same numbers; a task may divide the work over them.
        """


def check_model(config: Mapping[str, Any], task: type[Task]) -> None:
    """Refuses a model that a task does not train, before the data are read for it.

    Args:
        config: The model's.
        task: Class of the task.

    Raises:
        ConfigError: If the model is for another modality or task.
    """
    if (config["modality"], config["task"]) != (task.modality, task.task):
        raise ConfigError(
            f"this recipe trains models for {task.modality} {task.task}; {config['name']} is one for "
            f"{config['modality']} {config['task']}"
        )


def loss_parts(loss: Loss) -> dict[str, Tensor]:
    """A task's loss as a mapping, `"loss"` first."""
    return {"loss": loss} if isinstance(loss, Tensor) else {"loss": loss["loss"], **loss}


class EpochOrder:
    """Which samples are in a batch, in a new random order every epoch; a function of the recipe's seed alone.

    Args:
        count: Samples.
        batch_size: Of one optimiser step, over all processes.
        seed: The recipe's.

    Raises:
        ConfigError: If there are fewer samples than a batch needs.
    """

    def __init__(self, count: int, batch_size: int, seed: int) -> None:
        if count < batch_size:
            raise ConfigError(f"batch_size {batch_size} is more than the {count} training samples")
        self.count, self.batch_size, self.seed = count, batch_size, seed
        self.steps_per_epoch = count // batch_size  # The remainder waits for another epoch's order.
        self.device, self.rank, self.local = torch.device("cpu"), 0, batch_size
        self._order: tuple[int, Tensor] | None = None

    def start(self, device: torch.device, rank: int, world: int) -> None:
        """Says where indices should lie, and which share of a batch is that of this process.

        Raises:
            ConfigError: If a batch cannot be divided over the processes.
        """
        local = self.batch_size // world
        if local * world != self.batch_size:
            raise ConfigError(f"batch_size {self.batch_size} cannot be divided over {world} processes")
        self.device, self.rank, self.local, self._order = device, rank, local, None

    def permutation(self, epoch: int) -> Tensor:
        """All samples in the order of an epoch: int64 (count,), on the CPU."""
        return permutation(self.count, derive_seed(self.seed, "order", epoch))

    def rows(self, epoch: int, index: int) -> Tensor:
        """Indices, int64 (B,), of this process in batch `index` of `epoch`."""
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, self.permutation(epoch).to(self.device)
        start = index * self.batch_size + self.rank * self.local
        return self._order[1][start : start + self.local]


def batches(task: Task, places: Iterable[tuple[int, int]], device: torch.device) -> Iterator[tuple[Any, Any]]:
    """Yields the batches at `places`, each an epoch and the index of a batch in it.

    On CUDA a thread makes the next two on a stream of its own while the model works on this one. On the CPU they are
    made in line, since there the model's random numbers come from the generator that augmentation seeds.
    """
    if device.type != "cuda":
        for place in places:
            yield task.batch(*place)
        return
    stream = torch.cuda.Stream(device)

    def make(epoch: int, index: int) -> tuple[Any, Any, torch.cuda.Event]:
        with torch.cuda.device(device), torch.cuda.stream(stream):
            inputs, targets = task.batch(epoch, index)
            return inputs, targets, stream.record_event()

    stream.wait_stream(torch.cuda.current_stream(device))
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches") as pool:
        waiting: deque[Future[tuple[Any, Any, torch.cuda.Event]]] = deque()
        try:
            for place in places:
                waiting.append(pool.submit(make, *place))
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
