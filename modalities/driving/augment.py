"""Training scenes, and the steps that change them: each step is a function of a scene and a generator.

Random numbers are drawn on the CPU from the given generator alone, and as many of them whatever the device, so that a
batch depends on its seed and not on where it is made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Generator, Tensor

from modalities.driving.batch import DrivingInput
from modalities.driving.boxes import Boxes3D
from modalities.driving.geometry_scene import LabelledInput
from zoo.errors import ConfigError, DataError

__all__ = ["Augmentation", "TrainingScene", "check_probability", "check_span", "drawn", "run"]


@dataclass(frozen=True, eq=False)
class TrainingScene:
    """One key frame in training, on any device; images may be on another one than all else, which is small.

    Attributes:
        images: (V, 3, H, W) uint8, or None without cameras.
        image_mask: (V,) bool, True where the camera is there.
        intrinsics: (V, 3, 3) float, pixels of these images from the camera frame (z forward, x right, y down).
        camera_from_ego: (V, 4, 4) float.
        points: (N, F) float: x, y, z in the ego frame, intensity in 0..1, age in seconds; or None without a lidar.
        boxes: M boxes in the ego frame.

    Raises:
        DataError: If shapes or dtypes do not fit.
    """

    images: Tensor | None
    image_mask: Tensor
    intrinsics: Tensor
    camera_from_ego: Tensor
    points: Tensor | None
    boxes: Boxes3D

    def __post_init__(self) -> None:
        cameras = len(self.image_mask) if self.image_mask.dim() else -1
        wanted = {"image_mask": (cameras,), "intrinsics": (cameras, 3, 3), "camera_from_ego": (cameras, 4, 4)}
        for name, shape in wanted.items():
            tensor = getattr(self, name)
            fits = tensor.dtype == torch.bool if name == "image_mask" else tensor.is_floating_point()
            if tuple(tensor.shape) != shape or not fits:
                kind = "bool" if name == "image_mask" else "floats"
                raise DataError(
                    f"training scene: {name} must be {shape} of {kind}, got {tuple(tensor.shape)} {tensor.dtype}"
                )
        images, points = self.images, self.points
        if images is not None and (
            images.dim() != 4 or tuple(images.shape[:2]) != (cameras, 3) or images.dtype != torch.uint8
        ):
            raise DataError(
                f"training scene: images must be ({cameras}, 3, H, W) uint8, got {tuple(images.shape)} {images.dtype}"
            )
        if points is not None and (points.dim() != 2 or points.shape[1] < 3 or not points.is_floating_point()):
            raise DataError(
                "training scene: points must be (N, F) of floats with F at least 3, got "
                f"{tuple(points.shape)} {points.dtype}"
            )

    def replaced(self, **fields: Any) -> TrainingScene:
        """A copy with some fields replaced."""
        return replace(self, **fields)

    def labelled(self) -> LabelledInput:
        """The same as functions of `geometry_scene` take it; images stay uint8."""
        scene = DrivingInput(self.images, self.intrinsics, self.camera_from_ego, self.points, self.image_mask)
        return LabelledInput(scene, self.boxes)

    @staticmethod
    def of(labelled: LabelledInput) -> TrainingScene:
        """The inverse of `labelled`; without a mask all cameras are there.

        Raises:
            DataError: As the class says.
        """
        scene, boxes = labelled
        mask = scene.image_mask
        if mask is None:
            mask = torch.ones(len(scene.intrinsics), dtype=torch.bool, device=scene.intrinsics.device)
        return TrainingScene(scene.images, mask, scene.intrinsics, scene.camera_from_ego, scene.points, boxes)


class Augmentation(Protocol):
    """A change of a scene in training."""

    def __call__(self, scene: TrainingScene, generator: Generator) -> TrainingScene:
        """The changed scene; a function of the arguments alone. The generator is on the CPU."""


def run(steps: Sequence[Augmentation], scene: TrainingScene, generator: Generator) -> TrainingScene:
    """Applies steps in order."""
    for step in steps:
        scene = step(scene, generator)
    return scene


def drawn(generator: Generator, count: int, low: float = 0.0, high: float = 1.0) -> list[float]:
    """So many uniform random numbers in [low, high), from a generator on the CPU."""
    return [low + (high - low) * share for share in torch.rand(count, generator=generator).tolist()]


def check_probability(name: str, value: float) -> None:
    """Refuses what is no probability.

    Raises:
        ConfigError: If it is not in 0..1.
    """
    if not 0 <= value <= 1:
        raise ConfigError(f"augmentation: {name} must be in 0..1, not {value!r:.40}")


def check_span(name: str, span: tuple[float, float], least: float = -math.inf) -> None:
    """Refuses what is no finite smallest and largest value.

    Raises:
        ConfigError: If they are not two finite rising numbers of at least `least`.
    """
    if len(span) != 2 or not least <= span[0] <= span[1] < math.inf or span[0] == -math.inf:
        at_least = "" if least == -math.inf else f" of at least {least:g}"
        raise ConfigError(f"augmentation: {name} must be a smallest and a largest value{at_least}, not {span!r:.60}")
