"""Scores of video classifiers, on files and on pictures under camera motions."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from modalities.video.batches import View, stack_views, view_of
from modalities.video.datasets.base import VideoSet
from modalities.video.datasets.find import open_videos
from modalities.video.motion_evaluate import evaluate_motion
from modalities.video.presets import MOTIONS
from modalities.video.sampling import sampler_for
from zoo.errors import ConfigError, DataError
from zoo.evaluate import data_facts, evaluating, report
from zoo.matching import align_labels
from zoo.model_inputs import call_model
from zoo.progress import Update, no_update, progress_bar
from zoo.read_ahead import in_order
from zoo.sharing import ALONE, Share

__all__ = ["accuracy", "evaluate_video"]

_WORKERS = 8


def _views(data: VideoSet, indices: np.ndarray, model: Any, clips: int, crops: int, workers: int) -> Iterator[Any]:
    """The views of each video, decoded by several threads."""
    data_config = model.data_config
    sampler = sampler_for(data_config, clips)

    def read(index: int) -> list[View]:
        reader = data.reader(index)
        samples = sampler(reader.times_s)
        clip = reader.at(np.concatenate([sample.indices for sample in samples]))
        steps = np.cumsum([0, *(len(sample.indices) for sample in samples)])
        parts = [clip.at(np.arange(start, end)) for start, end in zip(steps, steps[1:], strict=False)]
        return [
            view
            for part, sample in zip(parts, samples, strict=True)
            for view in view_of(part, sample, data_config, crops)
        ]

    return in_order(read, indices.tolist(), workers)


@torch.inference_mode()
def accuracy(
    model: nn.Module,
    data: VideoSet,
    indices: np.ndarray | None = None,
    *,
    clips: int = 1,
    crops: int = 1,
    batch_size: int = 16,
    dtype: str = "float32",
    workers: int = _WORKERS,
    update: Update = no_update,
    share: Share = ALONE,
) -> dict[str, float]:
    """Top-1 and top-5 of a classifier in percent; a video's score is the mean of the softmax over its views.

    Args:
        model: On the device to use; left in the mode it was in.
        data: Videos.
        indices: Which ones; `None` = all.
        clips: Clips of each video, spread over it.
        crops: 1 or 3 of each clip, along its longer side.
        batch_size: Views at a time.
        dtype: `"float32"`, or `"bfloat16"` or `"float16"` for autocast.
        workers: Threads that decode.
        update: Called with (videos done, text).
        share: Of this process, where several evaluate together; all of them get the results of all videos.

    Raises:
        ConfigError: If a setting cannot be used with this model.
        DataError: If there are no videos, or more classes than the model has, or a file cannot be read.
    """
    chosen = np.arange(len(data)) if indices is None else np.asarray(indices)
    classes = int(model.num_classes)  # type: ignore[arg-type]
    if not len(chosen) or len(data.class_names) > classes:
        raise DataError(
            f"{data.name}: {len(chosen)} videos of {len(data.class_names)} classes for a model with {classes} classes"
        )
    known = align_labels(data.labels, len(data.class_names), data.class_names, model)[chosen]
    device = next(model.parameters()).device
    # Whole videos whose views fill whole batches: so batches are the same ones however many processes there are.
    blocks = share.blocks(len(chosen), math.lcm(batch_size, clips * crops) // (clips * crops))
    own = np.array([row for start, end in blocks for row in range(start, end)], dtype=np.int64)
    ends = {end for _, end in blocks}
    sums = torch.zeros(len(chosen), classes, dtype=torch.float64)
    waiting: list[tuple[int, View]] = []

    def run() -> None:
        inputs = stack_views([view for _, view in waiting], model, device, torch.float32)
        with autocast():
            logits: Tensor = call_model(model, inputs)
        rows = torch.tensor([row for row, _ in waiting])
        sums.index_add_(0, rows, logits.float().softmax(1).double().cpu())
        waiting.clear()

    with evaluating(model, dtype) as autocast:
        read = _views(data, chosen[own], model, clips, crops, workers)
        for done, (row, views) in enumerate(zip(own.tolist(), read, strict=True), start=1):
            for view in views:
                waiting.append((row, view))
                if len(waiting) == batch_size:
                    run()
            if waiting and row + 1 in ends:
                run()
            update(min(share.world * done, len(chosen)), "")
    hits = (sums[own].topk(min(5, classes)).indices == torch.from_numpy(known[own])[:, None]).sum(0)
    first, all_ = (sum(counts) for counts in zip(*share.gather((int(hits[0]), int(hits.sum()))), strict=True))
    return {"top1": 100 * first / len(chosen), "top5": 100 * all_ / len(chosen)}


def evaluate_video(
    model: nn.Module,
    data: str | os.PathLike[str],
    *,
    split: str = "test",
    dataset: str = "auto",
    fold: int = 1,
    clips: int = 1,
    crops: int = 1,
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
    """Scores a model on data from disk.

    A model of camera motions takes a folder of pictures and is measured under several conditions, see
    `modalities.video.motion_evaluate.conditions`; others take one of `modalities.video.datasets`.

    Args:
        model: On the device to use.
        data: Folder of the data.
        split: `"train"`, `"val"` (or `"validation"`) or `"test"`; of pictures as they are called.
        dataset: One of `modalities.video.datasets.DATASETS`, or `"auto"`.
        fold: Official split of UCF101 and HMDB51.
        clips: Clips of each video, see `accuracy`.
        crops: Crops of each clip.
        sizes: Of a model of camera motions, sides in pixels.
        name: Of the model, for the report; `None` = from its configuration.
        batch_size: Views at a time.
        limit: Only the first videos or pictures; `None` = all.
        dtype: Of autocast, or `"float32"`.
        extend: `None`: context extension is for image models.
        factor: `None`, likewise.
        skip_bad: Take of damaged videos what can be decoded, and leave out damaged pictures.
        quiet: Show no progress bar.
        command: For the report.
        share: See `accuracy`.

    Returns:
        As `zoo.evaluate.evaluate_data`; results may have a `condition`, what clips were measured on.

    Raises:
        ConfigError: If model and data do not fit, or a setting is not known or not one for this model.
        DataError: If the data cannot be used.
    """
    if extend is not None or factor is not None:
        raise ConfigError("context extension is measured on image models: leave out extend and factor")
    config: Any = getattr(model, "config", None) or {}
    common: Any = {"name": name, "dtype": dtype, "command": command}
    if tuple(config.get("labels") or ()) == MOTIONS:
        if (dataset, fold, clips, crops) != ("auto", 1, 1, 1):
            raise ConfigError("camera motions are shown on pictures, in one clip each: leave out fold, clips and crops")
        sides = _squares(sizes)
        about: Any = {"split": split, "sizes": sides, "batch_size": batch_size, "limit": limit}
        return evaluate_motion(model, data, **about, **common, skip_bad=skip_bad, quiet=quiet, share=share)
    if sizes is not None:
        raise ConfigError("sizes are for models of camera motions; zoo.load(name, input_size=...) sets that of others")
    errors = "keep" if skip_bad else "raise"
    videos = open_videos(data, split, dataset, fold=fold, errors=errors)
    chosen = np.arange(min(limit or len(videos), len(videos)))
    began = time.perf_counter()
    with progress_bar("evaluating", len(chosen), quiet) as update:
        about = {"clips": clips, "crops": crops, "batch_size": batch_size or 16, "dtype": dtype, "share": share}
        scores = accuracy(model, videos, chosen, **about, update=update)
    speed = len(chosen) / (time.perf_counter() - began)
    data_config: Any = model.data_config
    where = {"size": list(data_config.input_size[1:])}
    views = [f"fold {fold}"] if videos.name in ("ucf101", "hmdb51") else []
    views += [f"{clips} clips x {crops} crops"] if clips * crops > 1 else []
    return report(
        model,
        [{**where, **({"condition": ", ".join(views)} if views else {}), **scores, "images_per_s": speed}],
        **data_facts(videos, videos.split, len(chosen)),
        **common,
        missing=videos.missing,
    )


def _squares(sizes: Sequence[int | tuple[int, int]] | None) -> list[int] | None:
    if sizes is None:
        return None
    found = []
    for size in sizes:
        side = size if isinstance(size, int) else size[0] if len(set(size)) == 1 else 0
        if isinstance(side, bool) or side < 1:
            raise ConfigError(f"clips of camera motions are square: give sides in pixels, not {size!r:.60}")
        found.append(side)
    return found
