"""A batch of point clouds, laid end to end without padding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import GetAttrKey, KeyEntry, register_pytree_node

from zoo.errors import DataError

__all__ = ["PointBatch"]

_FIELDS = ("xyz", "features", "offsets")


@dataclass(frozen=True, eq=False)
class PointBatch:
    """What point models take. Clouds may be empty.

    Legend: B clouds, N points of all clouds together, F features of a point.

    Attributes:
        xyz: (N, 3) float32 or float64 coordinates in the units of `PointDataConfig`, each cloud relative to an origin
            of its own that was subtracted in float64 (map coordinates in float32 are off by decimetres).
        features: (N, F) float; F may be 0 for models that take none.
        offsets: (B + 1,) int64: cloud i holds points offsets[i] to offsets[i + 1].

    Raises:
        DataError: If shapes or dtypes do not fit, or (on the CPU, where looking costs nothing) offsets do not rise from
            0 to N.
    """

    xyz: Tensor
    features: Tensor
    offsets: Tensor

    def __post_init__(self) -> None:
        if not all(isinstance(getattr(self, name), Tensor) for name in _FIELDS):
            raise DataError(
                "point batch: xyz, features and offsets must be tensors (PointBatch.from_clouds makes them)"
            )
        if self.xyz.dim() != 2 or self.xyz.shape[1] != 3 or self.xyz.dtype not in (torch.float32, torch.float64):
            raise DataError(
                f"point batch: xyz must be (N, 3) float32 or float64, got {tuple(self.xyz.shape)} {self.xyz.dtype}"
            )
        if self.features.dim() != 2 or not self.features.is_floating_point():
            raise DataError(
                f"point batch: features must be (N, F) of floats, got {tuple(self.features.shape)} "
                f"{self.features.dtype}"
            )
        if len(self.features) != len(self.xyz):
            raise DataError(f"point batch: {len(self.xyz)} points, but features of {len(self.features)}")
        if self.offsets.dim() != 1 or not len(self.offsets) or self.offsets.dtype != torch.int64:
            raise DataError(
                f"point batch: offsets must be (clouds + 1,) int64, got {tuple(self.offsets.shape)} "
                f"{self.offsets.dtype}"
            )
        devices = {getattr(self, name).device for name in _FIELDS}
        if len(devices) > 1:
            raise DataError(f"point batch: tensors are on {', '.join(sorted(map(str, devices)))}: use .to(device)")
        if self.offsets.device.type == "cpu" and not torch.compiler.is_compiling():
            ends = int(self.offsets[0]), int(self.offsets[-1])
            if ends != (0, len(self.xyz)) or bool((self.offsets.diff() < 0).any()):
                raise DataError(f"point batch: offsets must rise from 0 to the number of points, {len(self.xyz)}")

    def __len__(self) -> int:
        """Number of clouds."""
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Tensor:
        """(B,) int64 points of each cloud."""
        return self.offsets.diff()

    @property
    def device(self) -> torch.device:
        """Where the points are."""
        return self.xyz.device

    def cloud(self, index: int) -> PointBatch:
        """Cloud `index` (negative from the end) as a batch of one.

        Raises:
            DataError: If there is no such cloud.
        """
        if not -len(self) <= index < len(self):
            raise DataError(f"point batch: no cloud {index} among {len(self)}")
        start, stop = self.offsets[index % len(self) :][:2].tolist()
        offsets = torch.tensor([0, stop - start], device=self.offsets.device)
        return PointBatch(self.xyz[start:stop], self.features[start:stop], offsets)

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None, *, non_blocking: bool = False
    ) -> PointBatch:
        """Moves all tensors to a device; a dtype is for the features alone."""
        return PointBatch(
            self.xyz.to(device=device, non_blocking=non_blocking),
            self.features.to(device=device, dtype=dtype, non_blocking=non_blocking),
            self.offsets.to(device=device, non_blocking=non_blocking),
        )

    def pin_memory(self) -> PointBatch:
        """Copies to pinned memory, for loaders."""
        return PointBatch(*(getattr(self, name).pin_memory() for name in _FIELDS))

    @staticmethod
    def from_clouds(clouds: Sequence[tuple[Any, Any]]) -> PointBatch:
        """Lays clouds end to end.

        Args:
            clouds: Pairs (xyz (N, 3), features (N, F)) of arrays or tensors. Dtypes other than float32 and float64
                become float32; a batch with one float64 cloud is float64.

        Raises:
            DataError: If there is no cloud, or they do not fit each other.
        """
        pairs = [(_floats(xyz), _floats(features)) for xyz, features in clouds]
        if not pairs:
            raise DataError("point batch: no clouds to collate")
        for number, (xyz, features) in enumerate(pairs):
            if xyz.dim() != 2 or xyz.shape[1] != 3 or features.dim() != 2 or len(features) != len(xyz):
                raise DataError(
                    f"point batch: cloud {number} needs xyz (N, 3) and features (N, F), got {tuple(xyz.shape)} and "
                    f"{tuple(features.shape)}"
                )
        widths = sorted({features.shape[1] for _, features in pairs})
        if len(widths) > 1:
            raise DataError(f"point batch: clouds with different numbers of features: {widths}")
        lengths = torch.tensor([0, *(len(xyz) for xyz, _ in pairs)], device=pairs[0][0].device)
        return PointBatch(torch.cat([p[0] for p in pairs]), torch.cat([p[1] for p in pairs]), lengths.cumsum(0))


def _floats(values: Any) -> Tensor:
    tensor = values if isinstance(values, Tensor) else torch.from_numpy(np.ascontiguousarray(values))
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.to(torch.float32)


def _flatten(batch: PointBatch) -> tuple[list[Tensor], None]:
    return [getattr(batch, name) for name in _FIELDS], None


def _unflatten(values: Iterable[Any], _: None) -> PointBatch:
    """Without checks: what walks over trees puts other things than tensors in their place."""
    batch = object.__new__(PointBatch)
    for name, value in zip(_FIELDS, values, strict=True):
        object.__setattr__(batch, name, value)
    return batch


def _flatten_with_keys(batch: PointBatch) -> tuple[list[tuple[KeyEntry, Tensor]], None]:
    return [(GetAttrKey(name), getattr(batch, name)) for name in _FIELDS], None


# Batches are handed between CUDA streams as trees of tensors.
register_pytree_node(
    PointBatch,
    _flatten,
    _unflatten,
    serialized_type_name="modalities.points.PointBatch",
    flatten_with_keys_fn=_flatten_with_keys,
)
