"""Augmentation of point clouds on the device: each class is a function of the clouds and a generator.

Legend: B clouds, P points of each. Random numbers are drawn once for every cloud; nothing is read back from the device,
and shapes stay, except where a class says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Generator, Tensor

from modalities.points.batch import PointBatch
from modalities.points.clouds import Clouds
from zoo.errors import ConfigError

__all__ = [
    "Augmentation",
    "Drop",
    "Flip",
    "Jitter",
    "Mix3D",
    "Rotate",
    "RotateAny",
    "Scale",
    "Shift",
    "SphereCrop",
    "axis_rotations",
    "random_rotations",
    "run",
]


class Augmentation(Protocol):
    """A change of clouds in training."""

    def __call__(self, clouds: Clouds, generator: Generator) -> Clouds:
        """Changed clouds; a function of the arguments alone."""


def run(steps: Sequence[Augmentation], clouds: Clouds, generator: Generator) -> Clouds:
    """Applies augmentations in order."""
    for step in steps:
        clouds = step(clouds, generator)
    return clouds


def uniform(generator: Generator, shape: Sequence[int], low: float = 0.0, high: float = 1.0) -> Tensor:
    """Uniform random numbers in [low, high), float32, where the generator is."""
    return torch.rand(tuple(shape), generator=generator, device=generator.device) * (high - low) + low


def normal(generator: Generator, shape: Sequence[int]) -> Tensor:
    """Standard normal random numbers, float32, where the generator is."""
    return torch.randn(tuple(shape), generator=generator, device=generator.device)


def chosen(generator: Generator, count: int, probability: float) -> Tensor:
    """Which of so many clouds something happens to: bool (count, 1, 1)."""
    return uniform(generator, (count, 1, 1)) < probability


def axis_rotations(angles: Tensor, axis: str) -> Tensor:
    """Rotations by angles (B,) in radians about `"x"`, `"y"` or `"z"`: (B, 3, 3)."""
    number = "xyz".index(axis)
    one, other = (number + 1) % 3, (number + 2) % 3
    matrices = torch.zeros(len(angles), 3, 3, dtype=angles.dtype, device=angles.device)
    matrices[:, number, number] = 1
    matrices[:, one, one] = matrices[:, other, other] = angles.cos()
    matrices[:, other, one] = angles.sin()
    matrices[:, one, other] = -angles.sin()
    return matrices


def random_rotations(count: int, generator: Generator) -> Tensor:
    """Rotations drawn uniformly from SO(3): (count, 3, 3), by normalised quaternions of normal numbers."""
    w, x, y, z = torch.nn.functional.normalize(normal(generator, (count, 4)), dim=1).unbind(1)
    rows = [
        torch.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)], dim=1),
        torch.stack([2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)], dim=1),
        torch.stack([2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], dim=1),
    ]
    return torch.stack(rows, dim=1)


@dataclass(frozen=True)
class Rotate:
    """Turns clouds about an axis through the origin.

    Attributes:
        degrees: Largest angle to either side.
        axis: `"x"`, `"y"` or `"z"`.
        probability: Share of the clouds.
    """

    degrees: float = 180.0
    axis: str = "z"
    probability: float = 1.0

    def __post_init__(self) -> None:
        if self.axis not in ("x", "y", "z"):
            raise ConfigError(f"a rotation is about x, y or z, not {self.axis!r:.40}")

    def __call__(self, clouds: Clouds, generator: Generator) -> Clouds:
        """See `Augmentation`."""
        count, reach = len(clouds.xyz), math.radians(self.degrees)
        angles = uniform(generator, (count,), -reach, reach)
        angles = angles * chosen(generator, count, self.probability).flatten()
        return clouds.transformed(axis_rotations(angles, self.axis))


@dataclass(frozen=True)
class RotateAny:
    """Turns clouds by rotations drawn uniformly from SO(3)."""

    def __call__(self, clouds: Clouds, generator: Generator) -> Clouds:
        """See `Augmentation`."""
        return clouds.transformed(random_rotations(len(clouds.xyz), generator))


@dataclass(frozen=True)
class Scale:
    """Stretches clouds about the origin.

    Attributes:
        low: Smallest factor.
        high: Largest factor.
        anisotropic: A factor for each axis, instead of one for all.
    """

    low: float = 0.7
    high: float = 1.5
    anisotropic: bool = True

    def __call__(self, clouds: Clouds, generator: Generator) -> Clouds:
        """See `Augmentation`."""
        shape = (len(clouds.xyz), 3 if self.anisotropic else 1)
        return clouds.transformed(torch.diag_embed(uniform(generator, shape, self.low, self.high).expand(-1, 3)))


@dataclass(frozen=True)
class Shift:
    """Moves clouds by up to `amount` along each axis."""

    amount: float = 0.2

    def __call__(self, clouds: Clouds, generator: Generator) -> Clouds:
        """See `Augmentation`."""
        return clouds.replace(xyz=clouds.xyz + uniform(generator, (len(clouds.xyz), 1, 3), -self.amount, self.amount))


@dataclass(frozen=True)
class Jitter:
    """Moves every point by normal noise.

    Attributes:
        deviation: Standard deviation along each axis.
        limit: Largest move along an axis.
    """

    deviation: float = 0.01
    limit: float = 0.05

    def __call__(self, clouds: Clouds, generator: Generator) -> Clouds:
        """See `Augmentation`."""
        noise = normal(generator, clouds.xyz.shape) * self.deviation
        return clouds.replace(xyz=clouds.xyz + noise.clamp(-self.limit, self.limit))


@dataclass(frozen=True)
class Flip:
    """Mirrors clouds in x and, independently, in y.

    Attributes:
        probability: Of each.
        axes: Which axes.
    """

    probability: float = 0.5
    axes: str = "xy"

    def __call__(self, clouds: Clouds, generator: Generator) -> Clouds:
        """See `Augmentation`."""
        signs = torch.ones(len(clouds.xyz), 3, device=clouds.xyz.device)
        mirrored = uniform(generator, (len(clouds.xyz), len(self.axes))) < self.probability
        for place, axis in enumerate(self.axes):
            signs[:, "xyz".index(axis)] -= 2 * mirrored[:, place]
        return clouds.transformed(torch.diag_embed(signs))


@dataclass(frozen=True)
class Drop:
    """Drops points at random: up to a share of each cloud, which becomes copies of another of its points.

    The shape stays, as in the published code of PointNet++; networks that voxelise or take maxima do not see copies.

    Attributes:
        most: Largest share.
        probability: Share of the clouds.
    """

    most: float = 0.2
    probability: float = 1.0

    def __call__(self, clouds: Clouds, generator: Generator) -> Clouds:
        """See `Augmentation`."""
        count, points = clouds.xyz.shape[:2]
        share = uniform(generator, (count, 1), 0.0, self.most)
        share = share * chosen(generator, count, self.probability)[:, :, 0]
        ranks = uniform(generator, (count, points))
        kept = ranks.argmin(1, keepdim=True)  # Never dropped: the one with the smallest number.
        dropped = (ranks < share).scatter(1, kept, False)
        places = torch.arange(points, device=ranks.device)
        # A copy of any point that stays: the next kept one in a random order would cost a sort; one is enough.
        return clouds.taken(torch.where(dropped, kept, places))


@dataclass(frozen=True)
class SphereCrop:
    """Keeps the points nearest to a random point of each cloud; clouds become smaller.

    Attributes:
        points: How many are kept.
    """

    points: int

    def __call__(self, clouds: Clouds, generator: Generator) -> Clouds:
        """See `Augmentation`; clouds of no more points stay as they are."""
        count, have = clouds.xyz.shape[:2]
        if have <= self.points:
            return clouds
        at = (uniform(generator, (count, 1)) * have).long().clamp_max(have - 1)
        centre = clouds.xyz.gather(1, at.unsqueeze(-1).expand(-1, -1, 3))
        distance = (clouds.xyz - centre).square().sum(-1)
        return clouds.taken(distance.topk(self.points, dim=1, largest=False).indices)


@dataclass(frozen=True)
class Mix3D:
    """Lays the clouds of a batch over each other two by two (Nekrasov et al., 3DV 2021, arXiv 2110.02210).

    Attributes:
        probability: Of a batch.
    """

    probability: float = 0.8

    def __call__(self, batch: PointBatch, generator: Generator) -> PointBatch:
        """A batch of half as many clouds, or the same batch; the order of the points, and so of labels, stays.

        Args:
            batch: Clouds around a common origin.
            generator: On the CPU, since what follows depends on the outcome.
        """
        if len(batch) < 2 or uniform(generator, (1,)).item() >= self.probability:
            return batch
        offsets = torch.cat([batch.offsets[::2], batch.offsets[-1:]]) if len(batch) % 2 else batch.offsets[::2]
        return PointBatch(batch.xyz, batch.features, offsets)
