"""Accuracy on pictures under camera motions: as trained, longer, larger and at other frame rates."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from modalities.video.motion import draw_states, render
from modalities.video.transforms import normalise
from zoo.errors import ConfigError, DataError
from zoo.evaluate import data_facts, evaluating, report
from zoo.labelled_pictures import labelled_pictures
from zoo.model_inputs import call_model
from zoo.progress import Update, no_update, progress_bar
from zoo.sharing import ALONE, Share

__all__ = ["DEV_SEED", "TEST_SEED", "Condition", "conditions", "evaluate_motion", "filmed", "motion_accuracy"]

TEST_SEED, DEV_SEED = 2026, 2027
"""Seeds of the clips for testing and for model selection: everybody is measured on the same."""

_BATCH_PIXELS = {"cuda": 256 * 16 * 64**2, "cpu": 16 * 16 * 64**2}  # of all frames of a batch


@dataclass(frozen=True)
class Condition:
    """How clips are filmed.

    Attributes:
        size: Side in pixels.
        frames: Frames of a clip.
        frame_rate: Frames a second.
    """

    size: int
    frames: int
    frame_rate: float

    def __str__(self) -> str:
        return f"{self.frames} frames at {self.frame_rate:g} a second"


def conditions(data: Any, tubelet: int, sizes: Sequence[int] | None = None) -> list[Condition]:
    """How a model is measured: as trained; twice as long; larger; at half and twice the frame rate.

    Args:
        data: Of the model.
        tubelet: Frames of a tubelet, of which clips have a whole number.
        sizes: Only these, as long and fast as trained.

    Raises:
        ConfigError: If a model at half the frame rate would see no whole tubelet.
    """
    size, frames, rate = data.input_size[1], data.frames, data.frame_rate
    if sizes is not None:
        return [Condition(side, frames, rate) for side in sizes]
    half = max(frames // (2 * tubelet), 1) * tubelet
    return [
        Condition(size, frames, rate),
        Condition(size, 2 * frames, rate),
        Condition(size * 3 // 2, frames, rate),
        Condition(size * 2, frames, rate),
        Condition(size, half, rate / 2),  # Of the same duration.
        Condition(size, 2 * frames, rate * 2),
    ]


def filmed(data: Any) -> Any:
    """The data configuration of a model that can be trained and measured on camera motions.

    Raises:
        ConfigError: If it takes other clips.
    """
    channels, height, width = data.input_size
    if channels != 3 or height != width or data.frame_rate is None:
        raise ConfigError(
            f"clips under camera motions are RGB, square and at a stated frame rate; the model takes {channels} "
            f"channels, {height} x {width} pixels, frame_rate {data.frame_rate}"
        )
    return data


@torch.inference_mode()
def motion_accuracy(
    model: nn.Module,
    pictures: np.ndarray,
    *,
    size: int,
    frames: int,
    frame_rate: float,
    seed: int = TEST_SEED,
    batch_size: int | None = None,
    dtype: str = "float32",
    update: Update = no_update,
    share: Share = ALONE,
) -> dict[str, float]:
    """Top-1 and top-5 in percent on one clip of each picture; clip i has class i modulo 10.

    Args:
        model: A classifier of camera motions, on the device to use; left in the mode it was in.
        pictures: uint8 (N, 3, S, S).
        size: Side of the clips in pixels.
        frames: Of a clip.
        frame_rate: Frames a second; the model is told the times of the frames where it takes them.
        seed: Of all motions.
        batch_size: Clips at a time; `None` = by their size.
        dtype: `"float32"`, or `"bfloat16"` or `"float16"` for autocast.
        update: Called with (clips done, text).
        share: Of this process, where several evaluate together; all of them get the results of all clips.

    Returns:
        `top1`, `top5` and `clips_per_s`, which counts drawing too.

    Raises:
        ConfigError: If the model takes other clips, or `dtype` is not known.
    """
    data = filmed(model.data_config)
    device = next(model.parameters()).device
    kind = "cuda" if device.type == "cuda" else "cpu"
    step = batch_size or max(1, _BATCH_PIXELS[kind] // (frames * size**2))
    motions = draw_states(len(pictures), seed, balanced=True)
    times = (torch.arange(frames, device=device, dtype=torch.float64) / frame_rate)[None]
    timed = getattr(model, "time_unit_s", None) is not None
    hits, best, began = torch.zeros(5, dtype=torch.int64), min(5, int(model.num_classes)), time.perf_counter()  # type: ignore[arg-type]
    with evaluating(model, dtype) as autocast:
        for start, end in share.blocks(len(pictures), step):
            part = torch.from_numpy(np.array(pictures[start:end])).to(device)
            chosen = motions[slice(start, end)].to(device)
            clips = normalise(render(part, chosen, size=size, frames=frames, frame_rate=frame_rate), data)
            inputs = (clips, None, times.expand(len(part), -1) if timed else None)
            with autocast():  # Not what draws the clips.
                logits = call_model(model, inputs)
            found = logits.float().topk(best).indices == chosen.labels[:, None]
            hits[:best] += found.sum(0).cpu()
            update(end, "")
    count, hits = len(pictures), torch.stack(share.gather(hits)).sum(0)
    speed = count / (time.perf_counter() - began)
    return {"top1": 100 * int(hits[0]) / count, "top5": 100 * int(hits.sum()) / count, "clips_per_s": speed}


def evaluate_motion(
    model: nn.Module,
    data: str | os.PathLike[str],
    *,
    split: str,
    sizes: Sequence[int] | None,
    name: str | None,
    batch_size: int | None,
    limit: int | None,
    dtype: str,
    skip_bad: bool,
    quiet: bool,
    command: str | None,
    share: Share = ALONE,
) -> dict[str, Any]:
    """Scores a model of camera motions on pictures from disk, under `conditions`; see `evaluate_video`.

    Raises:
        ConfigError: If the model takes other clips.
        DataError: If the pictures cannot be used or differ in size.
    """
    data_config = filmed(model.data_config)
    with share.main_first():
        packed = labelled_pictures(data, split, skip_bad=skip_bad, quiet=quiet)
    stored = packed.stacked()
    if stored.shape[2] != stored.shape[3]:
        raise DataError(f"{data}: camera motions are shown on square pictures, these have {stored.shape[2:]} pixels")
    count = min(limit or len(stored), len(stored))
    asked = conditions(data_config, data_config.tubelet, sizes)
    results = []
    with progress_bar("evaluating", count * len(asked), quiet) as update:
        for number, condition in enumerate(asked):
            scores = motion_accuracy(
                model,
                stored[:count],
                size=condition.size,
                frames=condition.frames,
                frame_rate=condition.frame_rate,
                batch_size=batch_size,
                dtype=dtype,
                share=share,
                update=lambda done, _, number=number, size=condition.size: update(number * count + done, f"{size} px"),  # type: ignore[misc]
            )
            speed = scores.pop("clips_per_s")
            results.append({"size": condition.size, "condition": str(condition), **scores, "images_per_s": speed})
    facts = {**data_facts(packed, split, count), "dataset": f"{packed.name}-motion", "skipped": packed.skipped}
    return report(model, results, **facts, name=name, command=command, dtype=dtype)
