"""Scores of driving models by the protocol of nuScenes: mAP, NDS and errors of true positives, also without sensors."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from modalities.driving.augment import TrainingScene
from modalities.driving.boxes import Boxes3D
from modalities.driving.data_config import DrivingDataConfig
from modalities.driving.frames import FrameReader, Frames, collate, open_data, to_model
from modalities.driving.metrics import MAX_BOXES, Detections, DetectionScores, DetectionTruth, score_detections
from modalities.driving.nuscenes.classes import DETECTION_CLASSES, default_attribute
from modalities.driving.nuscenes.dataset import NuScenes
from modalities.driving.nuscenes.truth import detection_truth, global_detections
from modalities.driving.query_head import decode
from zoo.errors import ConfigError
from zoo.evaluate import data_facts, evaluating, report
from zoo.progress import Update, no_update, progress_bar
from zoo.read_ahead import in_order
from zoo.sharing import ALONE, Share

__all__ = ["Dropped", "as_metrics", "detect_frames", "evaluate_driving", "model_classes", "score_boxes"]

_WORKERS = 4


@dataclass(frozen=True)
class Dropped:
    """Sensors that are switched off.

    Attributes:
        cameras: Their names.
        lidar: Whether the lidar is.
    """

    cameras: frozenset[str] = frozenset()
    lidar: bool = False

    @staticmethod
    def parse(text: str, config: DrivingDataConfig, sensors: str) -> Dropped:
        """Reads names of sensors joined by `+`: `"lidar"`, `"cameras"` for all of them, or cameras of the model.

        Args:
            text: Such as `"CAM_FRONT+lidar"`.
            config: Of the model.
            sensors: That the model looks at.

        Raises:
            ConfigError: If the model does not look at one of them, or would look at nothing.
        """
        known = {"lidar": "lidar" in sensors, "cameras": "camera" in sensors}
        known |= {name: known["cameras"] for name in config.cameras}
        names = text.split("+")
        if bad := [name for name in names if not known.get(name)]:
            usable = ", ".join(name for name, there in known.items() if there)
            raise ConfigError(f"drop: {bad[0]!r:.60} is no sensor of this model; it has {usable}")
        cameras = frozenset(config.cameras if "cameras" in names else [name for name in names if name != "lidar"])
        blind = not known["cameras"] or cameras == frozenset(config.cameras)
        if blind and (not known["lidar"] or "lidar" in names):
            raise ConfigError(f"drop: without {text} the model has nothing to look at")
        return Dropped(cameras, "lidar" in names)

    def __call__(self, scene: TrainingScene, config: DrivingDataConfig) -> TrainingScene:
        """The scene without these sensors."""
        if self.cameras:
            kept = torch.tensor([name not in self.cameras for name in config.cameras])
            scene = scene.replaced(image_mask=scene.image_mask & kept.to(scene.image_mask.device))
        if self.lidar and scene.points is not None:
            scene = scene.replaced(points=scene.points[:0])
        return scene


def model_classes(model: nn.Module) -> list[str]:
    """Names of the classes of a model, all of them detection classes of nuScenes.

    Raises:
        ConfigError: If it does not name them, or names others.
    """
    config: Any = getattr(model, "config", None) or {}
    names = list(config.get("labels") or ())
    if not names or (unknown := [name for name in names if name not in DETECTION_CLASSES]):
        what = f"it has {', '.join(map(repr, unknown[:5]))}" if names else "it names none"
        raise ConfigError(
            f"a model is scored on the detection classes of nuScenes, {', '.join(DETECTION_CLASSES)}; {what}: name "
            "them in the labels of its config.json"
        )
    return names


@torch.inference_mode()
def detect_frames(
    model: nn.Module,
    frames: Frames,
    *,
    batch_size: int = 8,
    dtype: str = "float32",
    workers: int = _WORKERS,
    dropped: Dropped | None = None,
    update: Update = no_update,
    share: Share = ALONE,
) -> list[Boxes3D]:
    """Detections of key frames, in the frame of the car at each.

    Args:
        model: On the device to use; left in the mode it was in.
        frames: Key frames.
        batch_size: Key frames at a time.
        dtype: `"float32"`, or `"bfloat16"` or `"float16"` for autocast.
        workers: Threads that read.
        dropped: Sensors that are switched off.
        update: Called with (key frames done, text).
        share: Of this process, where several evaluate together; all of them get the boxes of all key frames.

    Returns:
        Boxes of every frame on the CPU, best first.

    Raises:
        ConfigError: For an unknown dtype.
        DataError: If a frame cannot be used.
    """
    config: Any = model.data_config
    device = next(model.parameters()).device
    own = [row for block in share.blocks(len(frames), batch_size) for row in range(*block)]
    ahead = in_order(frames.__getitem__, own, workers)
    found: list[Boxes3D] = []
    with evaluating(model, dtype) as autocast, contextlib.closing(ahead):
        while scenes := list(itertools.islice(ahead, batch_size)):
            if dropped is not None:
                scenes = [dropped(scene, config) for scene in scenes]
            batch = to_model(collate(scenes), config, device)
            with autocast():
                outputs = model.forward_raw(batch)  # type: ignore[operator]
            # Every query: average precision wants the weak ones too, which a picture would not show.
            found += [boxes.to("cpu") for boxes in decode(outputs, MAX_BOXES, 0.0)]
            update(min(share.world * len(found), len(frames)), "")
    every = {row: boxes for part in share.gather(list(zip(own, found, strict=True))) for row, boxes in part}
    return [every[row] for row in range(len(frames))]


def score_boxes(found: Mapping[str, Boxes3D], truth: Mapping[str, DetectionTruth], data: NuScenes) -> DetectionScores:
    """Scores boxes in the frame of the car; the model says no attributes, so the likeliest by class and speed count.

    Args:
        found: By token of the key frame.
        truth: Of the same frames, from `detection_truth`.
        data: The data set, whose classes are those of the labels.
    """
    detections = {}
    for token, boxes in found.items():
        speeds = boxes.velocity.double().norm(dim=1).tolist()
        names = [data.classes[label] for label in boxes.label.tolist()]
        attributes = tuple(default_attribute(name, speed) for name, speed in zip(names, speeds, strict=True))
        detections[token] = Detections(boxes, attributes)
    return score_detections(truth, global_detections(detections, data), classes=data.classes)


def as_metrics(scores: DetectionScores) -> dict[str, float]:
    """Results by the names of results files.

    `map`, `nds` and `map/CLASS` are in percent; the errors are as they are: `mate` (m), `mase` (1 - IoU), `maoe` (rad),
    `mave` (m/s) and `maae` (1 - accuracy).
    """
    numbers = scores.to_dict()
    errors = {f"m{key.lower()}": value for key, value in scores.errors.items()}
    classes = {f"map/{name}": 100 * numbers[f"AP_{name}"] for name in scores.class_ap}
    return {"map": 100 * numbers["mAP"], "nds": 100 * numbers["NDS"], **errors, **classes}


def evaluate_driving(
    model: nn.Module,
    data: str | os.PathLike[str],
    *,
    split: str = "val",
    version: str | None = None,
    drop: Sequence[str] = (),
    sizes: Sequence[int | tuple[int, int]] | None = None,
    name: str | None = None,
    batch_size: int | None = None,
    limit: int | None = None,
    dtype: str = "float32",
    extend: str | None = None,
    factor: float | None = None,
    skip_bad: bool = False,
    workers: int = _WORKERS,
    quiet: bool = True,
    command: str | None = None,
    share: Share = ALONE,
) -> dict[str, Any]:
    """Scores a model on a data set in the format of nuScenes, over the classes that the model has.

    Args:
        model: On the device to use.
        data: Folder with the folder of tables, `samples` and `sweeps`.
        split: `"val"` (or `"validation"`), `"train"`, `"mini_val"`, ..., or one of the set's `splits.json`.
        version: Name of the folder of tables; `None` = the only one.
        drop: Conditions that are measured beside that of all sensors: sensors switched off, see `Dropped.parse`;
            `"each"` stands for every camera, all of them, and the lidar, one after the other.
        sizes: `None`: images have the size of the model.
        name: Of the model, for the report; `None` = from its configuration.
        batch_size: Key frames at a time; `None` = 8.
        limit: Only the first key frames; `None` = all.
        dtype: Of autocast, or `"float32"`.
        extend: `None`: context extension is for image models.
        factor: `None`, likewise.
        skip_bad: A picture without a file is an absent camera, and no error.
        workers: Threads that read.
        quiet: Show no progress bar.
        command: For the report.
        share: See `detect_frames`.

    Returns:
        As `zoo.evaluate.evaluate_data`, `images` being the number of key frames; each result has `size` (of an image),
        the metrics of `as_metrics`, `images_per_s` (key frames, with reading), and without sensors its `condition`.

    Raises:
        ConfigError: If a setting is not known or not one for driving models, or there is no such split.
        DataError: If the data cannot be used, or there is no truth.
    """
    if sizes is not None or extend is not None or factor is not None:
        raise ConfigError("driving models are scored at their own size: leave out sizes, extend and factor")
    config: Any = model.data_config
    network: Any = model.sizes
    conditions = list(_conditions(drop, config, network.sensors))
    missing: Literal["raise", "mask"] = "mask" if skip_bad else "raise"
    opened = open_data(Path(data), version, network.sensors, classes=model_classes(model), missing_images=missing)
    tokens = opened.sample_tokens({"validation": "val"}.get(split, split))[:limit]
    truth = detection_truth(opened, tokens)
    frames = FrameReader(opened, tokens, config, network, boxes=False)
    results = []
    with progress_bar("evaluating", len(tokens) * len(conditions), quiet) as update:
        for number, (condition, dropped) in enumerate(conditions):
            began, before = time.perf_counter(), number * len(tokens)
            found = detect_frames(
                model,
                frames,
                batch_size=batch_size or 8,
                dtype=dtype,
                workers=workers,
                dropped=dropped,
                share=share,
                update=functools.partial(_after, update, before),
            )
            speed = len(tokens) / (time.perf_counter() - began)
            scores = score_boxes(dict(zip(tokens, found, strict=True)), truth, opened)
            row: dict[str, Any] = {"size": list(config.image_size), **as_metrics(scores), "images_per_s": speed}
            results.append(row | ({"condition": condition} if condition else {}))
    return report(
        model,
        results,
        **data_facts(opened, split, len(tokens)),
        name=name,
        command=command,
        dtype=dtype,
    )


def _after(update: Update, before: int, done: float, text: str) -> None:
    update(before + done, text)


def _conditions(drop: Sequence[str], config: DrivingDataConfig, sensors: str) -> Iterator[tuple[str, Dropped | None]]:
    yield "", None
    # A model of one sensor can lose single cameras alone.
    each = {"camera+lidar": [*config.cameras, "cameras", "lidar"], "camera": list(config.cameras), "lidar": []}
    for text in drop:
        for one in each[sensors] if text == "each" else [text]:
            yield f"without {one}", Dropped.parse(one, config, sensors)
