"""Oriented boxes in three dimensions, and their padding into training targets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from zoo.errors import DataError

__all__ = ["Boxes3D", "BoxTargets", "pad_boxes"]

# Corners in units of half the size: the bottom face counter-clockwise from front left, then the top one.
_CORNERS = ((1, 1, -1), (-1, 1, -1), (-1, -1, -1), (1, -1, -1), (1, 1, 1), (-1, 1, 1), (-1, -1, 1), (1, -1, 1))
_SHAPES = {"centre": (3,), "size": (3,), "yaw": (), "velocity": (2,), "label": (), "score": ()}


@dataclass(frozen=True, eq=False)
class Boxes3D:
    """M boxes that stand upright in a frame with z up.

    Attributes:
        centre: (M, 3) float, middle of the box in metres.
        size: (M, 3) float, length along the heading, width across it, height; metres.
        yaw: (M,) float, heading in radians, counter-clockwise from x.
        velocity: (M, 2) float, m/s along x and y; NaN where unknown.
        label: (M,) int64, index into the class names of whoever made the boxes; -1 for none of them.
        score: (M,) float in 0..1, or None for ground truth.

    Raises:
        DataError: If shapes, dtypes or devices do not fit, or (on the CPU, where looking costs nothing) a value other
            than a velocity is not finite or a size is negative.
    """

    centre: Tensor
    size: Tensor
    yaw: Tensor
    velocity: Tensor
    label: Tensor
    score: Tensor | None = None

    def __post_init__(self) -> None:
        tensors = self._tensors()
        if not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
            raise DataError("boxes: every field must be a tensor (Boxes3D.from_arrays makes them)")
        count = len(self.centre) if self.centre.dim() else 0
        for name, tensor in tensors.items():
            if tuple(tensor.shape) != (count, *_SHAPES[name]):
                wanted = ", ".join(map(str, ("M", *_SHAPES[name])))
                raise DataError(f"boxes: {name} must be ({wanted}) with M = {count}, got {tuple(tensor.shape)}")
            if (tensor.dtype != torch.int64) if name == "label" else not tensor.is_floating_point():
                wanted = "int64" if name == "label" else "floating point"
                raise DataError(f"boxes: {name} must be {wanted}, got {tensor.dtype}")
        devices = {str(tensor.device) for tensor in tensors.values()}
        if len(devices) > 1:
            raise DataError(f"boxes: tensors are on {', '.join(sorted(devices))}: use .to(device)")
        if devices == {"cpu"} and not torch.compiler.is_compiling():
            for name in ("centre", "size", "yaw", "score"):
                if name in tensors and not bool(torch.isfinite(tensors[name]).all()):
                    raise DataError(f"boxes: {name} holds a value that is not finite")
            if bool((self.size < 0).any()):
                raise DataError("boxes: a size is negative; sizes are (length, width, height) in metres")

    def _tensors(self) -> dict[str, Tensor]:
        return {name: value for name in _SHAPES if (value := getattr(self, name)) is not None}

    def __len__(self) -> int:
        """Number of boxes."""
        return len(self.centre)

    def __getitem__(self, index: Any) -> Boxes3D:
        """Boxes chosen by a slice, a list, a mask or a tensor of indices."""
        if isinstance(index, int):
            raise DataError("boxes: choose with a slice, a list, a mask or a tensor; a single box is boxes[i : i + 1]")
        return Boxes3D(**{name: tensor[index] for name, tensor in self._tensors().items()})

    @property
    def device(self) -> torch.device:
        """Where the boxes are."""
        return self.centre.device

    def as_tensor(self) -> Tensor:
        """(M, 9) x, y, z, length, width, height, yaw, velocity along x and y."""
        return torch.cat([self.centre, self.size, self.yaw[:, None], self.velocity], 1)

    @property
    def bottom(self) -> Tensor:
        """(M, 3) middle of the bottom face."""
        return torch.cat([self.centre[:, :2], self.centre[:, 2:] - self.size[:, 2:] / 2], 1)

    @staticmethod
    def empty(*, scored: bool = False, dtype: torch.dtype = torch.float32) -> Boxes3D:
        """No boxes; `scored` says whether as predictions."""
        fields = {name: torch.zeros((0, *shape), dtype=dtype) for name, shape in _SHAPES.items()}
        fields["label"] = fields["label"].long()
        return Boxes3D(**{name: value for name, value in fields.items() if scored or name != "score"})

    @staticmethod
    def from_arrays(
        centre: Any,
        size: Any,
        yaw: Any,
        velocity: Any | None = None,
        label: Any | None = None,
        score: Any | None = None,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> Boxes3D:
        """Makes boxes from arrays or lists; without velocities they are NaN, without labels 0.

        Raises:
            DataError: As the class says.
        """
        try:
            middle = torch.as_tensor(np.asarray(centre, dtype=np.float64)).reshape(-1, 3)
            count = len(middle)
            fields = {
                "centre": middle,
                "size": torch.as_tensor(np.asarray(size, dtype=np.float64)).reshape(-1, 3),
                "yaw": torch.as_tensor(np.asarray(yaw, dtype=np.float64)).reshape(-1),
                "velocity": torch.full((count, 2), math.nan, dtype=torch.float64)
                if velocity is None
                else torch.as_tensor(np.asarray(velocity, dtype=np.float64)).reshape(-1, 2),
            }
            if score is not None:
                fields["score"] = torch.as_tensor(np.asarray(score, dtype=np.float64)).reshape(-1)
            fields = {name: value.to(dtype) for name, value in fields.items()}
            labels = np.zeros(count, np.int64) if label is None else np.asarray(label, dtype=np.int64)
            fields["label"] = torch.as_tensor(labels.reshape(-1))
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"boxes: cannot be made of these arrays ({error})") from error
        return Boxes3D(**fields)

    @staticmethod
    def cat(parts: Sequence[Boxes3D]) -> Boxes3D:
        """Joins boxes of one frame; all or none of the parts have scores.

        Raises:
            DataError: If there are no parts, or only some have scores.
        """
        if not parts or len({part.score is None for part in parts}) > 1:
            raise DataError("boxes: to join them takes at least one part, and scores in all of them or in none")
        names = parts[0]._tensors()
        return Boxes3D(**{name: torch.cat([getattr(part, name) for part in parts]) for name in names})

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Boxes3D:
        """Moves to a device; a dtype is for all but the labels."""
        moved = {
            name: tensor.to(device=device, dtype=None if name == "label" else dtype)
            for name, tensor in self._tensors().items()
        }
        return Boxes3D(**moved)

    def with_(self, **fields: Tensor | None) -> Boxes3D:
        """A copy with some fields replaced."""
        return replace(self, **fields)  # type: ignore[arg-type]

    def corners(self) -> Tensor:
        """(M, 8, 3): the bottom face counter-clockwise from front left, then the top face in the same order."""
        signs = self.centre.new_tensor(_CORNERS)
        local = signs * self.size[:, None] / 2
        cos, sin = self.yaw.cos()[:, None], self.yaw.sin()[:, None]
        x = local[..., 0] * cos - local[..., 1] * sin
        y = local[..., 0] * sin + local[..., 1] * cos
        return torch.stack([x, y, local[..., 2]], -1) + self.centre[:, None]

    def transform(self, matrix: Any) -> Boxes3D:
        """Boxes in another frame, whose z axis is (nearly) that of this one.

        The heading and the velocity are turned in three dimensions and then seen from above, as the devkit of nuScenes
        does; with a matrix that only turns about z nothing is lost.

        Args:
            matrix: (4, 4) rigid transform `new_from_old`, an array or a tensor.

        Raises:
            DataError: If it is no (4, 4) rigid transform.
        """
        rigid = torch.as_tensor(matrix, dtype=torch.float64, device=self.device)
        if tuple(rigid.shape) != (4, 4):
            raise DataError(f"boxes: a transform must be (4, 4), got {tuple(rigid.shape)}")
        rotation, translation = rigid[:3, :3], rigid[:3, 3]
        if self.device.type == "cpu":
            off = (rotation @ rotation.T - torch.eye(3, dtype=torch.float64)).abs().max()
            if not bool(off < 1e-3) or not bool(torch.linalg.det(rotation) > 0):
                raise DataError("boxes: a transform must be a rotation and a translation (scale_scene scales)")
        dtype = self.centre.dtype
        heading = torch.stack([self.yaw.cos(), self.yaw.sin()], 1).double() @ rotation[:, :2].T
        return replace(
            self,
            centre=(self.centre.double() @ rotation.T + translation).to(dtype),
            yaw=torch.atan2(heading[:, 1], heading[:, 0]).to(dtype),
            velocity=(self.velocity.double() @ rotation[:2, :2].T).to(dtype),
        )

    def to_dict(self) -> dict[str, list[Any]]:
        """Lists for JSON: an unknown velocity is None."""
        lists: dict[str, list[Any]] = {name: tensor.tolist() for name, tensor in self._tensors().items()}
        lists["velocity"] = [None if any(map(math.isnan, v)) else v for v in lists["velocity"]]
        return lists


class BoxTargets(NamedTuple):
    """Boxes of several scenes, padded to one number.

    Attributes:
        boxes: (B, M, 9) float: x, y, z, length, width, height, yaw, velocity along x and y (NaN unknown); 0 in padding.
        labels: (B, M) int64, -1 in padding.
        mask: (B, M) bool, True where there is a box.
    """

    boxes: Tensor
    labels: Tensor
    mask: Tensor

    def to(self, device: torch.device | str) -> BoxTargets:
        """Moves to a device."""
        return BoxTargets(*(tensor.to(device) for tensor in self))


def pad_boxes(scenes: Sequence[Boxes3D], count: int | None = None) -> BoxTargets:
    """Pads the boxes of B scenes to `count` each (the most of them unless given), for losses of constant shape.

    Raises:
        DataError: If there is no scene, or one has more boxes than `count`.
    """
    if not scenes:
        raise DataError("boxes: no scenes to pad")
    most = max(len(scene) for scene in scenes)
    count = most if count is None else count
    if most > count:
        raise DataError(f"boxes: a scene has {most} boxes, more than the {count} of a batch")
    first = scenes[0].centre
    boxes = first.new_zeros((len(scenes), count, 9))
    labels = torch.full((len(scenes), count), -1, dtype=torch.int64, device=first.device)
    for row, scene in enumerate(scenes):
        boxes[row, : len(scene)] = scene.as_tensor()
        labels[row, : len(scene)] = scene.label
    lengths = torch.tensor([len(scene) for scene in scenes], device=first.device)
    return BoxTargets(boxes, labels, torch.arange(count, device=first.device) < lengths[:, None])
