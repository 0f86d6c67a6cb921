"""Scores of event classifiers and detectors on the data sets of this modality."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
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
from zoo.detection.metrics import measured, require_metrics
from zoo.errors import ConfigError, DataError
from zoo.evaluate import data_facts, evaluating, report
from zoo.progress import Update, no_update, progress_bar
from zoo.sharing import ALONE, Share

__all__ = ["accuracy", "average_precision", "evaluate_events"]


@torch.inference_mode()
def _outputs(
    model: nn.Module, samples: Iterator[EventSample], batch_size: int, dtype: str, update: Update
) -> Iterator[Any]:
    """What the model gives in eval mode for the samples, batch by batch; it is left in the mode it was in."""
    data_config: Any = model.data_config
    device, done = next(model.parameters()).device, 0
    with evaluating(model, dtype) as autocast:
        while batch := [tokens_of(sample, data_config) for sample in islice(samples, batch_size)]:
            inputs = EventTokens.collate(batch).to(device)
            with autocast():
                outputs = model(inputs)
            yield outputs
            done += len(batch)
            update(done, "")


def _samples(
    data: ClipSet | SceneSet, indices: np.ndarray, batch_size: int, share: Share
) -> Iterator[tuple[int, EventSample]]:
    """Number and sample of those of this process, whole batches one after the other."""
    indices = np.concatenate(
        [indices[:0], *(indices[slice(*block)] for block in share.blocks(len(indices), batch_size))]
    )
    return ((index, data.sample(index, events)) for index, events in data.read_all(indices.tolist()))


def accuracy(
    model: nn.Module,
    data: ClipSet,
    indices: np.ndarray | None = None,
    *,
    batch_size: int = 32,
    dtype: str = "float32",
    update: Update = no_update,
    share: Share = ALONE,
) -> dict[str, float]:
    """Top-1 and top-5 of a classifier in percent.

    Args:
        model: A classifier of events, on the device to use.
        data: Clips of the model's sensor.
        indices: Which ones; `None` = all.
        batch_size: Clips at a time.
        dtype: `"float32"`, or `"bfloat16"` or `"float16"` for autocast.
        update: Called with (clips done, text).
        share: Of this process, where several evaluate together; all of them get the results of all clips.

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
        for index, sample in _samples(data, chosen, batch_size, share):
            order.append(index)
            yield sample

    best = min(5, int(model.num_classes))  # type: ignore[arg-type]
    top = [torch.zeros(0, best, dtype=torch.int64)]
    top += [logits.float().topk(best).indices.cpu() for logits in _outputs(model, samples(), batch_size, dtype, update)]
    labels: Tensor = torch.from_numpy(data.labels[order])
    own = (torch.cat(top) == labels[:, None]).sum(0)
    hits = torch.stack(share.gather(own)).sum(0)
    return {"top1": 100 * int(hits[0]) / len(chosen), "top5": 100 * int(hits.sum()) / len(chosen)}


def average_precision(
    model: nn.Module,
    data: SceneSet,
    protocol: BoxProtocol,
    indices: np.ndarray | None = None,
    *,
    batch_size: int = 16,
    dtype: str = "float32",
    update: Update = no_update,
    share: Share = ALONE,
) -> dict[str, float]:
    """COCO metrics of a detector in percent, by the protocol of its data set.

    The detector looks at every time that has true boxes; boxes that it finds are clipped to the frame.

    Args:
        model: A detector of events, on the device to use.
        data: Scenes of the model's sensor.
        protocol: What counts.
        indices: Which scenes; `None` = all.
        batch_size: Scenes at a time.
        dtype: `"float32"`, or `"bfloat16"` or `"float16"` for autocast.
        update: Called with (scenes done, text).
        share: Of this process, where several evaluate together; all of them get the results of all scenes.

    Returns:
        The metrics of `zoo.detection.metrics.CocoMetrics`.

    Raises:
        ConfigError: If the sensors or the classes differ.
        MissingDependencyError: If `faster-coco-eval` is not installed.
    """
    require_metrics()
    check_sensor(data, model.data_config)  # type: ignore[arg-type]
    classes = int(model.num_classes)  # type: ignore[arg-type]
    if len(data.class_names) != classes:
        raise ConfigError(f"{data.name} has {len(data.class_names)} classes, the model {classes}")
    chosen = np.arange(len(data)) if indices is None else np.asarray(indices)
    order: list[int] = []
    truth: dict[int, list[TimedBoxes]] = defaultdict(list)
    found: dict[int, list[TimedBoxes]] = defaultdict(list)

    def samples() -> Iterator[EventSample]:
        for index, sample in _samples(data, chosen, batch_size, share):
            order.append(index)
            times = np.full(len(sample.labels), data.times_us[index])
            truth[int(data.recordings[index])].append(TimedBoxes.of(times, sample.boxes, sample.labels))
            yield sample

    done = 0
    for detections in _outputs(model, samples(), batch_size, dtype, update):
        for rows in detections.tensor.float().cpu().numpy():
            rows, index = rows[rows[:, 4] > 0], order[done]
            times = np.full(len(rows), data.times_us[index])
            boxes = TimedBoxes.of(times, rows[:, :4], rows[:, 5], rows[:, 4])
            found[int(data.recordings[index])].append(protocol.clipped(boxes, data.width, data.height))
            done += 1
    sides = list(zip(*share.gather((dict(truth), dict(found))), strict=True))  # Of all processes.
    recordings = sorted({number for own in sides[0] for number in own})
    true, detected = (
        [TimedBoxes.concatenate([part for own in side for part in own.get(number, ())]) for number in recordings]
        for side in sides
    )
    return score(true, detected, classes, protocol, class_names=data.class_names)


def evaluate_events(
    model: nn.Module,
    data: str | os.PathLike[str],
    *,
    split: str = "test",
    dataset: str = "auto",
    sizes: Sequence[int | tuple[int, int]] | None = None,
    name: str | None = None,
    batch_size: int | None = None,
    limit: int | None = None,
    dtype: str = "float32",
    extend: str | None = None,
    factor: float | None = None,
    skip_bad: bool = False,
    quiet: bool = True,
    command: str | None = None,
    share: Share = ALONE,
) -> dict[str, Any]:
    """Scores a model on a data set from disk: a classifier by its accuracy, a detector by the protocol of the set.

    Args:
        model: On the device to use. Where its sensor has half the size of the data set's, events and boxes are
            halved (1Mpx).
        data: Folder (or archive) of the data set.
        split: `"train"`, `"val"` (or `"validation"`) or `"test"`.
        dataset: One of `modalities.events.datasets.DATASETS`, or `"auto"`.
        sizes: `None`: the size of events is that of the sensor.
        name: Of the model, for the report; `None` = from its configuration.
        batch_size: Samples at a time; `None` = 32 clips or 16 scenes.
        limit: Only the first samples; `None` = all.
        dtype: Of autocast, or `"float32"`.
        extend: `None`: there is no other size to extend to.
        factor: `None`, likewise.
        skip_bad: Take of damaged recordings what can be decoded.
        quiet: Show no progress bar.
        command: For the report.
        share: See `accuracy`.

    Returns:
        `{"name", "task", "dataset", "split", "images", "data_sha256", "command", "device", "dtype", "results"}`: the
        number of samples is `images`, and the one result has `size` (height, width), `images_per_s`, and what
        `accuracy` or `average_precision` gives, in percent and without NaN.

    Raises:
        ConfigError: If model and data do not fit, or a setting is not known or not one for events.
        DataError: If the data cannot be used.
    """
    if sizes is not None or extend is not None or factor is not None:
        raise ConfigError("event models are scored at the size of their sensor: leave out sizes, extend and factor")
    config: Any = getattr(model, "config", None) or {}
    data_config: Any = model.data_config
    split, errors = {"validation": "val"}.get(split, split), "keep" if skip_bad else "raise"
    detects = config.get("task") == "detection"
    opened: Any
    if detects:
        # Boxes that only training leaves out count when a model is scored, also on the training split.
        about: Any = {"errors": errors, "training": False}
        about |= {"window_us": data_config.window_us, "window_events": data_config.max_events}
        opened = open_scenes(data, split, dataset, **about)
        if (opened.width, opened.height) == (2 * data_config.width, 2 * data_config.height):
            opened = open_scenes(data, split, dataset, half=True, **about)
    else:
        with share.main_first():  # Which unpacks an archive.
            opened = open_clips(data, split, dataset, errors=errors)
    chosen = np.arange(min(limit or len(opened), len(opened)))
    began = time.perf_counter()
    with progress_bar("evaluating", len(chosen), quiet) as update:
        common: Any = {"dtype": dtype, "update": update, "share": share}
        if detects:
            size = batch_size or 16
            results = average_precision(model, opened, opened.protocol, chosen, batch_size=size, **common)
        else:
            results = accuracy(model, opened, chosen, batch_size=batch_size or 32, **common)
    speed = len(chosen) / (time.perf_counter() - began)
    return report(
        model,
        [{"size": [opened.height, opened.width], **measured(results), "images_per_s": speed}],
        **data_facts(opened, split, len(chosen)),
        name=name,
        command=command,
        dtype=dtype,
    )
