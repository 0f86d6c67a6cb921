"""Augmentation of colour, and elastic distortion: changes that the published recipes of indoor scenes have."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from modalities.points.augment import chosen, normal, uniform
from modalities.points.clouds import Clouds

__all__ = ["AutoContrast", "ColorDrop", "ColorJitter", "ColorShift", "Elastic"]


@dataclass(frozen=True)
class Elastic:
    """Bends clouds by smooth noise on a lattice, interpolated between its nodes (as in Submanifold SparseConvNet).

    The lattice has a fixed number of nodes and repeats beyond them, so that shapes do not depend on the cloud.

    Attributes:
        spacing: Distance of the nodes, in units of the cloud.
        magnitude: Standard deviation of the noise before it is smoothed, in the same units.
        probability: Share of the clouds.
        nodes: Nodes along each axis.
    """

    spacing: float = 0.2
    magnitude: float = 0.4
    probability: float = 0.95
    nodes: int = 32

    def __call__(self, clouds: Clouds, generator: Generator) -> Clouds:
        """See `Augmentation`."""
        count, nodes = len(clouds.xyz), self.nodes
        noise = normal(generator, (count, 3, nodes, nodes, nodes)) * self.magnitude
        for _ in range(2):
            noise = F.avg_pool3d(F.pad(noise, (1,) * 6, mode="circular"), 3, stride=1)
        low = clouds.xyz.amin(1, keepdim=True)
        moves = _interpolated(noise, (clouds.xyz - low) / self.spacing)
        return clouds.replace(xyz=clouds.xyz + moves * chosen(generator, count, self.probability))


def _interpolated(values: Tensor, places: Tensor) -> Tensor:
    """Trilinear values (B, P, 3) of a repeating lattice (B, 3, n, n, n) at places (B, P, 3) in units of its spacing."""
    nodes = values.shape[2]
    flat = values.flatten(2).transpose(1, 2)
    base = places.floor()
    part = places - base
    total = torch.zeros_like(places)
    for corner in itertools.product((0, 1), repeat=3):
        step = torch.tensor(corner, device=places.device)
        x, y, z = ((base.long() + step) % nodes).unbind(-1)
        weight = torch.where(step.bool(), part, 1 - part).prod(-1, keepdim=True)
        index = ((x * nodes + y) * nodes + z).unsqueeze(-1).expand(-1, -1, 3)
        total = total + weight * flat.gather(1, index)
    return total


def _recoloured(clouds: Clouds, rgb: Tensor) -> Clouds:
    return clouds.replace(fields={**clouds.fields, "rgb": rgb.clamp(-1, 1)})


@dataclass(frozen=True)
class AutoContrast:
    """Stretches the colours of a cloud, channel by channel, and blends the result with what was there.

    Attributes:
        probability: Share of the clouds.
    """

    probability: float = 0.2

    def __call__(self, clouds: Clouds, generator: Generator) -> Clouds:
        """See `Augmentation`; clouds without colour stay."""
        rgb = clouds.fields.get("rgb")
        if rgb is None:
            return clouds
        low, high = rgb.amin(1, keepdim=True), rgb.amax(1, keepdim=True)
        stretched = 2 * (rgb - low) / (high - low).clamp_min(1e-6) - 1
        stretched = torch.where(high > low, stretched, rgb)
        blend = uniform(generator, (len(rgb), 1, 1)) * chosen(generator, len(rgb), self.probability)
        return _recoloured(clouds, rgb + blend * (stretched - rgb))


@dataclass(frozen=True)
class ColorShift:
    """Adds one random colour to all points of a cloud.

    Attributes:
        amount: Largest change of a channel, of the -1..1 that it spans.
        probability: Share of the clouds.
    """

    amount: float = 0.1
    probability: float = 0.95

    def __call__(self, clouds: Clouds, generator: Generator) -> Clouds:
        """See `Augmentation`; clouds without colour stay."""
        rgb = clouds.fields.get("rgb")
        if rgb is None:
            return clouds
        move = uniform(generator, (len(rgb), 1, 3), -self.amount, self.amount)
        return _recoloured(clouds, rgb + move * chosen(generator, len(rgb), self.probability))


@dataclass(frozen=True)
class ColorJitter:
    """Changes the colour of every point by normal noise.

    Attributes:
        deviation: Standard deviation in a channel of -1..1.
        probability: Share of the clouds.
    """

    deviation: float = 0.1
    probability: float = 0.95

    def __call__(self, clouds: Clouds, generator: Generator) -> Clouds:
        """See `Augmentation`; clouds without colour stay."""
        rgb = clouds.fields.get("rgb")
        if rgb is None:
            return clouds
        noise = normal(generator, rgb.shape) * self.deviation
        return _recoloured(clouds, rgb + noise * chosen(generator, len(rgb), self.probability))


@dataclass(frozen=True)
class ColorDrop:
    """Takes the colour of whole clouds away: all points become mid-grey.

    Attributes:
        probability: Share of the clouds.
    """

    probability: float = 0.2

    def __call__(self, clouds: Clouds, generator: Generator) -> Clouds:
        """See `Augmentation`; clouds without colour stay."""
        rgb = clouds.fields.get("rgb")
        if rgb is None:
            return clouds
        return _recoloured(clouds, rgb * ~chosen(generator, len(rgb), self.probability))
