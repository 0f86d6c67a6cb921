"""Key frames of a data set as training scenes: read as they are asked for, or all of them kept in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import torch

from modalities.driving.augment import TrainingScene
from modalities.driving.batch import DrivingBatch, DrivingInput
from modalities.driving.boxes import Boxes3D
from modalities.driving.config import FusionConfig
from modalities.driving.data_config import DrivingDataConfig
from modalities.driving.metrics import DetectionTruth
from modalities.driving.nuscenes.classes import DETECTION_CLASSES
from modalities.driving.nuscenes.dataset import NuScenes
from modalities.driving.prepare import normalise_images, read_rig
from modalities.driving.scene import Annotations
from zoo.errors import DataError
from zoo.progress import progress_bar
from zoo.read_ahead import in_order

__all__ = [
    "FrameReader",
    "Frames",
    "ResidentFrames",
    "collate",
    "open_data",
    "open_frames",
    "to_model",
    "training_boxes",
]


def open_data(
    dataroot: str | Path,
    version: str | None,
    sensors: str,
    *,
    classes: Sequence[str] = DETECTION_CLASSES,
    missing_images: Literal["raise", "mask"] = "raise",
    missing_lidar: Literal["raise", "mask"] = "raise",
) -> NuScenes:
    """Opens a data set for a model: files of sensors that it does not look at may be missing.

    Args:
        dataroot: See `NuScenes`.
        version: See `NuScenes`.
        sensors: Of the model, a name of `modalities.driving.config.SENSORS`.
        classes: See `NuScenes`.
        missing_images: See `NuScenes`; of a model with cameras.
        missing_lidar: See `NuScenes`; of a model with a lidar.

    Raises:
        DataError: If the tables cannot be used.
        ConfigError: If an option or a class is unknown.
    """
    return NuScenes(
        dataroot,
        version,
        classes=classes,
        missing_images=missing_images if "camera" in sensors else "mask",
        missing_lidar=missing_lidar if "lidar" in sensors else "mask",
    )


class Frames(Protocol):
    """Key frames by number; of several threads each may ask for some."""

    def __len__(self) -> int:
        """Number of frames."""

    def __getitem__(self, row: int) -> TrainingScene:
        """A frame, which must not be changed in place."""


def training_boxes(annotations: Annotations | None) -> Boxes3D:
    """The boxes that a detector is trained on: of its classes, and not known to be without lidar and radar points.

    Raises:
        DataError: If there are no annotations (test sets).
    """
    if annotations is None:
        raise DataError("no annotations (a test set?): nothing to train on")
    counted = np.asarray(DetectionTruth.of(annotations).num_points) != 0
    return annotations.select(counted & (annotations.boxes.label.numpy() >= 0)).boxes


class FrameReader:
    """Reads key frames from disk as they are asked for.

    Args:
        data: The data set; its classes give the labels.
        tokens: Of the frames.
        config: Of the model: cameras, size of the images, sweeps.
        model: Sensors that the model looks at; of others nothing is read.
        boxes: Give the boxes of `training_boxes`; otherwise none.
    """

    def __init__(
        self,
        data: NuScenes,
        tokens: Sequence[str],
        config: DrivingDataConfig,
        model: FusionConfig,
        *,
        boxes: bool = True,
    ) -> None:
        self.data, self.tokens, self.config, self.model, self.boxes = data, list(tokens), config, model, boxes

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, row: int) -> TrainingScene:
        """A frame on the CPU, with uint8 images of the model's size.

        Raises:
            DataError: If a file is missing or damaged, or there is nothing that the model looks at.
        """
        token, config = self.tokens[row], self.config
        sample = self.data.sample(token, sweeps=config.sweeps if self.model.has_lidar else 1)
        count = len(config.cameras)
        images, mask = None, torch.zeros(count, dtype=torch.bool)
        intrinsics, poses = torch.eye(3).repeat(count, 1, 1), torch.eye(4).repeat(count, 1, 1)
        if self.model.has_cameras:
            images, mask, intrinsics, poses = read_rig(sample, config)
            images = images if bool(mask.any()) else None
        points = None
        if self.model.has_lidar and sample.points is not None:
            points = torch.from_numpy(sample.points)
        if images is None and points is None:
            sensors = {"camera": "none of the model's cameras", "lidar": "no lidar"}
            wanted = self.model.sensors.split("+")
            raise DataError(
                f"{self.data.dataroot}: sample {token} has {' and '.join(sensors[sensor] for sensor in wanted)}: the "
                f"model looks at {' and '.join(wanted)}"
            )
        boxes = training_boxes(sample.annotations) if self.boxes else Boxes3D.empty()
        return TrainingScene(images, mask, intrinsics, poses, points, boxes)


class ResidentFrames:
    """Key frames that have been read, in memory.

    Args:
        frames: Where they come from.
        workers: Threads that read.
        quiet: Show no progress bar.

    Raises:
        DataError: As the frames do.
    """

    def __init__(self, frames: Frames, *, workers: int = 1, quiet: bool = True) -> None:
        self._scenes: list[TrainingScene] = []
        with progress_bar("reading key frames", len(frames), quiet) as update:
            for done, scene in enumerate(in_order(frames.__getitem__, range(len(frames)), workers), 1):
                self._scenes.append(scene)
                update(done, "")

    def __len__(self) -> int:
        return len(self._scenes)

    def __getitem__(self, row: int) -> TrainingScene:
        """A frame, on the CPU."""
        return self._scenes[row]


def frame_bytes(scene: TrainingScene) -> int:
    """Memory of images and points of a frame."""
    return sum(tensor.nbytes for tensor in (scene.images, scene.points) if tensor is not None)


def open_frames(frames: Frames, memory_gib: float, *, workers: int = 1, quiet: bool = True) -> Frames:
    """Keeps frames in memory if they take no more than so much, going by the first one; else leaves them on disk.

    What is trained on does not depend on it.

    Args:
        frames: Where they come from.
        memory_gib: In units of 2**30 bytes.
        workers: See `ResidentFrames`.
        quiet: Show no progress bar.
    """
    if not len(frames) or frame_bytes(frames[0]) * len(frames) > memory_gib * 2**30:
        return frames
    return ResidentFrames(frames, workers=workers, quiet=quiet)


def collate(scenes: Sequence[TrainingScene]) -> DrivingBatch:
    """A batch of scenes whose images are still those of the frames (uint8); `to_model` makes them a model's.

    Raises:
        DataError: If scenes do not fit together.
    """
    return DrivingBatch.from_samples(
        [
            DrivingInput(scene.images, scene.intrinsics, scene.camera_from_ego, scene.points, scene.image_mask)
            for scene in scenes
        ]
    )


def to_model(batch: DrivingBatch, config: DrivingDataConfig, device: torch.device) -> DrivingBatch:
    """A batch of `collate` on a model's device, with normalised images."""
    moved = batch.to(device, non_blocking=True)
    return moved if moved.images is None else replace(moved, images=normalise_images(moved.images, config))
