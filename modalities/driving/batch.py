"""A batch of driving scenes: what the models take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import GetAttrKey, KeyEntry, register_pytree_node

from zoo.errors import DataError

__all__ = ["DrivingBatch", "DrivingInput"]


class DrivingInput(NamedTuple):
    """One scene, prepared for a model.

    Attributes:
        images: (V, 3, H, W) float or uint8, or None without cameras.
        intrinsics: (V, 3, 3) float, pixels of these images from the camera frame (z forward, x right, y down).
        camera_from_ego: (V, 4, 4) float.
        points: (N, F) float: x, y, z in the ego frame, intensity in 0..1, age in seconds; or None without a lidar.
        image_mask: (V,) bool, True where the camera is there; None for all of them.
    """

    images: Tensor | None
    intrinsics: Tensor
    camera_from_ego: Tensor
    points: Tensor | None
    image_mask: Tensor | None = None


@dataclass(frozen=True, eq=False)
class DrivingBatch:
    """B scenes of V cameras each, and their lidar points laid end to end without padding.

    Attributes:
        images: (B, V, 3, H, W) float, normalised as the model wants it; or uint8 before that; or None where no scene
            has cameras.
        intrinsics: (B, V, 3, 3) float, pixels (column, row) from the camera frame (z forward, x right, y down).
        camera_from_ego: (B, V, 4, 4) float.
        points: (N, F) float: x, y, z in the ego frame in metres, intensity in 0..1, age in seconds (how long before
            the key frame the point was measured); or None where no scene has a lidar.
        offsets: (B + 1,) int64: scene i has points offsets[i] to offsets[i + 1].
        image_mask: (B, V) bool, True where the camera is there.

    Raises:
        DataError: If shapes or dtypes do not fit, or (on the CPU) offsets do not rise from 0 to N.
    """

    images: Tensor | None
    intrinsics: Tensor
    camera_from_ego: Tensor
    points: Tensor | None
    offsets: Tensor
    image_mask: Tensor

    def __post_init__(self) -> None:
        scenes, cameras = self.image_mask.shape if self.image_mask.dim() == 2 else (-1, -1)
        if self.image_mask.dtype != torch.bool or scenes < 0:
            raise DataError(f"driving batch: image_mask must be (B, V) bool, got {tuple(self.image_mask.shape)}")
        wanted = {"intrinsics": (scenes, cameras, 3, 3), "camera_from_ego": (scenes, cameras, 4, 4)}
        for name, shape in wanted.items():
            tensor = getattr(self, name)
            if tuple(tensor.shape) != shape or not tensor.is_floating_point():
                raise DataError(
                    f"driving batch: {name} must be {shape} of floats, got {tuple(tensor.shape)} {tensor.dtype}"
                )
        if self.images is not None and (
            self.images.dim() != 5
            or tuple(self.images.shape[:3]) != (scenes, cameras, 3)
            or not (self.images.is_floating_point() or self.images.dtype == torch.uint8)
        ):
            raise DataError(
                f"driving batch: images must be ({scenes}, {cameras}, 3, H, W) of floats or uint8, got "
                f"{tuple(self.images.shape)} {self.images.dtype}"
            )
        if self.points is not None and (
            self.points.dim() != 2 or self.points.shape[1] < 3 or not self.points.is_floating_point()
        ):
            raise DataError(
                f"driving batch: points must be (N, F) of floats with F at least 3, got {tuple(self.points.shape)} "
                f"{self.points.dtype}"
            )
        if tuple(self.offsets.shape) != (scenes + 1,) or self.offsets.dtype != torch.int64:
            raise DataError(
                f"driving batch: offsets must be ({scenes + 1},) int64, got {tuple(self.offsets.shape)} "
                f"{self.offsets.dtype}"
            )
        if self.offsets.device.type == "cpu" and not torch.compiler.is_compiling():
            count = 0 if self.points is None else len(self.points)
            if int(self.offsets[0]) != 0 or int(self.offsets[-1]) != count or bool((self.offsets.diff() < 0).any()):
                raise DataError(f"driving batch: offsets must rise from 0 to the number of points, {count}")

    def __len__(self) -> int:
        """Number of scenes."""
        return len(self.image_mask)

    @property
    def cameras(self) -> int:
        """Number of cameras of a scene, V."""
        return self.image_mask.shape[1]

    @property
    def device(self) -> torch.device:
        """Where the batch is."""
        return self.offsets.device

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None, *, non_blocking: bool = False
    ) -> DrivingBatch:
        """Moves all tensors to a device; a dtype is for the images alone (geometry stays exact)."""
        images, points = self.images, self.points
        return DrivingBatch(
            None if images is None else images.to(device=device, dtype=dtype, non_blocking=non_blocking),
            self.intrinsics.to(device=device, non_blocking=non_blocking),
            self.camera_from_ego.to(device=device, non_blocking=non_blocking),
            None if points is None else points.to(device=device, non_blocking=non_blocking),
            self.offsets.to(device=device, non_blocking=non_blocking),
            self.image_mask.to(device=device, non_blocking=non_blocking),
        )

    @staticmethod
    def from_samples(samples: Sequence[DrivingInput]) -> DrivingBatch:
        """Lays scenes together.

        A scene without images among scenes with them gets black ones that the mask says are absent; one without a
        lidar among scenes with one has no points.

        Raises:
            DataError: If there is no scene, or they differ in cameras, image size or point features.
        """
        if not samples:
            raise DataError("driving batch: no scenes to collate")
        cameras = sorted({len(sample.intrinsics) for sample in samples})
        pictures = [sample.images for sample in samples if sample.images is not None]
        shapes = sorted({tuple(images.shape) for images in pictures})
        measured = [sample.points for sample in samples if sample.points is not None]
        widths = sorted({points.shape[1] for points in measured})
        for what, found in (("numbers of cameras", cameras), ("images", shapes), ("point features", widths)):
            if len(found) > 1:
                raise DataError(f"driving batch: scenes with different {what}: {', '.join(map(str, found))}")
        masks, images, clouds = [], [], []
        for sample in samples:
            here = sample.images is not None
            mask = torch.full((cameras[0],), here) if sample.image_mask is None or not here else sample.image_mask
            masks.append(mask.to(sample.intrinsics.device))
            if pictures:
                images.append(sample.images if sample.images is not None else torch.zeros_like(pictures[0]))
            if widths:
                clouds.append(sample.points if sample.points is not None else measured[0][:0])
        lengths = [0, *(len(cloud) for cloud in clouds)] if widths else [0] * (len(samples) + 1)
        return DrivingBatch(
            torch.stack(images) if pictures else None,
            torch.stack([sample.intrinsics for sample in samples]),
            torch.stack([sample.camera_from_ego for sample in samples]),
            torch.cat(clouds) if widths else None,
            torch.tensor(lengths, device=masks[0].device).cumsum(0),
            torch.stack(masks),
        )


_FIELDS = ("images", "intrinsics", "camera_from_ego", "points", "offsets", "image_mask")


def _flatten(batch: DrivingBatch) -> tuple[list[Tensor], tuple[str, ...]]:
    there = tuple(name for name in _FIELDS if getattr(batch, name) is not None)
    return [getattr(batch, name) for name in there], there


def _unflatten(values: Iterable[Any], there: tuple[str, ...]) -> DrivingBatch:
    """Without checks: what walks over trees puts other things than tensors in their place."""
    batch = object.__new__(DrivingBatch)
    for name, value in (dict.fromkeys(_FIELDS) | dict(zip(there, values, strict=True))).items():
        object.__setattr__(batch, name, value)
    return batch


def _flatten_with_keys(batch: DrivingBatch) -> tuple[list[tuple[KeyEntry, Tensor]], tuple[str, ...]]:
    values, there = _flatten(batch)
    return [(GetAttrKey(name), value) for name, value in zip(there, values, strict=True)], there


# Batches are handed between CUDA streams as trees of tensors.
register_pytree_node(
    DrivingBatch,
    _flatten,
    _unflatten,
    serialized_type_name="modalities.driving.DrivingBatch",
    flatten_with_keys_fn=_flatten_with_keys,
)
