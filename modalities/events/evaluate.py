"""Scores of event classifiers and detectors on the data sets of this modality."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from modalities.events.batches import check_sensor, tokens_of
from modalities.events.datasets.base import ClipSet, EventSample, SceneSet, TimedBoxes
from modalities.events.datasets.find import open_clips, open_scenes
from modalities.events.protocol import BoxProtocol, score
from modalities.events.tokens import EventTokens
from zoo.errors import ConfigError, DataError
from zoo.evaluate import DTYPES
from zoo.progress import Update, progress_bar

__all__ = ["accuracy", "average_precision", "evaluate_events"]


def _no_update(done: float, text: str) -> None:
    pass


@torch.inference_mode()
def _outputs(
    model: nn.Module, samples: Iterator[EventSample], batch_size: int, dtype: str, update: Update
) -> Iterator[Any]:
    """What the model gives in eval mode for the samples, batch by batch; it is left in the mode it was in."""
    if dtype not in DTYPES:
        raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    data_config: Any = model.data_config
    device, was_training, done = next(model.parameters()).device, model.training, 0
    model.eval()
    try:
        while batch := [tokens_of(sample, data_config) for sample in islice(samples, batch_size)]:
            inputs = EventTokens.collate(batch).to(device)
            with torch.autocast(device.type, DTYPES[dtype], enabled=dtype != "float32"):
                yield model(inputs)
            done += len(batch)
            update(done, "")
    finally:
        model.train(was_training)


def _samples(data: ClipSet | SceneSet, indices: np.ndarray) -> Iterator[tuple[int, EventSample]]:
    """Number and sample, read one after the other."""
    return ((index, data.sample(index, events)) for index, events in data.read_all(indices.tolist()))


def accuracy(
    model: nn.Module,
    data: ClipSet,
    indices: np.ndarray | None = None,
    *,
    batch_size: int = 32,
    dtype: str = "float32",
    update: Update = _no_update,
) -> dict[str, float]:
    """Top-1 and top-5 of a classifier in percent.

    Args:
        model: A classifier of events, on the device to use.
        data: Clips of the model's sensor.
        indices: Which ones; `None` = all.
        batch_size: Clips at a time.
        dtype: `"float32"`, or `"bfloat16"` or `"float16"` for autocast.
        update: Called with (clips done, text).

    Raises:
        ConfigError: If the sensors differ.
        DataError: If there are no clips, or more classes than the model has.
    """
    check_sensor(data, model.data_config)  # type: ignore[arg-type]
    chosen = np.arange(len(data)) if indices is None else np.asarray(indices)
    if not len(chosen) or len(data.class_names) > int(model.num_classes):  # type: ignore[arg-type]
        raise DataError(
            f"{data.name}: {len(chosen)} clips of {len(data.class_names)} classes for a model with "
            f"{model.num_classes} classes"
        )
    order: list[int] = []

    def samples() -> Iterator[EventSample]:
        for index, sample in _samples(data, chosen):
            order.append(index)
            yield sample

    best = min(5, int(model.num_classes))  # type: ignore[arg-type]
    top = [logits.float().topk(best).indices.cpu() for logits in _outputs(model, samples(), batch_size, dtype, update)]
    labels: Tensor = torch.from_numpy(data.labels[order])
    hits = (torch.cat(top) == labels[:, None]).sum(0)
    return {"top1": 100 * int(hits[0]) / len(order), "top5": 100 * int(hits.sum()) / len(order)}


def average_precision(
    model: nn.Module,
    data: SceneSet,
    protocol: BoxProtocol,
    *,
    batch_size: int = 16,
    dtype: str = "float32",
    update: Update = _no_update,
) -> dict[str, float]:
    """COCO metrics of a detector in percent, by the protocol of its data set.

    The detector looks at every time that has true boxes; boxes that it finds are clipped to the frame.

    Args:
        model: A detector of events, on the device to use.
        data: Scenes of the model's sensor.
        protocol: What counts.
        batch_size: Scenes at a time.
        dtype: `"float32"`, or `"bfloat16"` or `"float16"` for autocast.
        update: Called with (scenes done, text).

    Raises:
        ConfigError: If the sensors or the classes differ.
    """
    check_sensor(data, model.data_config)  # type: ignore[arg-type]
    classes = int(model.num_classes)  # type: ignore[arg-type]
    if len(data.class_names) != classes:
        raise ConfigError(f"{data.name} has {len(data.class_names)} classes, the model {classes}")
    order: list[int] = []

    def samples() -> Iterator[EventSample]:
        for index, sample in _samples(data, np.arange(len(data))):
            order.append(index)
            yield sample

    rows: list[np.ndarray] = []
    for detections in _outputs(model, samples(), batch_size, dtype, update):
        rows.extend(detections.tensor.float().cpu().numpy())
    found: dict[int, list[TimedBoxes]] = defaultdict(list)
    for index, row in zip(order, rows, strict=True):
        row = row[row[:, 4] > 0]
        times = np.full(len(row), data.times_us[index])
        found[int(data.recordings[index])].append(TimedBoxes.of(times, row[:, :4], row[:, 5], row[:, 4]))
    recordings = [TimedBoxes.concatenate(found[number]) for number in range(len(data.truth))]
    clipped = [protocol.clipped(boxes, data.width, data.height) for boxes in recordings]
    return score(data.truth, clipped, classes, protocol)


def evaluate_events(
    model: nn.Module,
    data: str | os.PathLike[str],
    *,
    split: str = "test",
    dataset: str = "auto",
    half: bool = False,
    name: str | None = None,
    batch_size: int | None = None,
    dtype: str = "float32",
    errors: str = "raise",
    quiet: bool = True,
    command: str | None = None,
) -> dict[str, Any]:
    """Scores a model on a data set from disk: a classifier by its accuracy, a detector by the protocol of the set.

    Args:
        model: On the device to use.
        data: Folder (or archive) of the data set.
        split: `"train"`, `"val"` or `"test"`.
        dataset: One of `modalities.events.datasets.DATASETS`, or `"auto"`.
        half: Events and boxes at half the resolution (1Mpx).
        name: Of the model, for the report; `None` = from its configuration.
        batch_size: Samples at a time; `None` = 32 clips or 16 scenes.
        dtype: Of autocast, or `"float32"`.
        errors: `"keep"` takes of damaged recordings what can be decoded.
        quiet: Show no progress bar.
        command: For the report.

    Returns:
        `{"name", "dataset", "split", "samples", "data_sha256", "command", "device", "dtype", "results"}`; the results
        are those of `accuracy` or `average_precision`, in percent.

    Raises:
        ConfigError: If model and data do not fit, or a setting is not known.
        DataError: If the data cannot be used.
    """
    config: Any = getattr(model, "config", None) or {}
    data_config: Any = model.data_config
    opened: Any
    if config.get("task") == "detection":
        window = {"window_us": data_config.window_us, "window_events": data_config.max_events}
        # Boxes that only training leaves out count when a model is scored, also on the training split.
        opened = open_scenes(data, split, dataset, errors=errors, half=half, training=False, **window)
    else:
        opened = open_clips(data, split, dataset, errors=errors)
    with progress_bar("evaluating", len(opened), quiet) as update:
        if config.get("task") == "detection":
            size = batch_size or 16
            protocol = opened.protocol
            results = average_precision(model, opened, protocol, batch_size=size, dtype=dtype, update=update)
        else:
            results = accuracy(model, opened, batch_size=batch_size or 32, dtype=dtype, update=update)
    device = next(model.parameters()).device
    return {
        "name": name or config.get("name"),
        "dataset": opened.name,
        "split": split,
        "samples": len(opened),
        "data_sha256": opened.sha256,
        "command": command,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "dtype": dtype,
        "results": results,
    }
