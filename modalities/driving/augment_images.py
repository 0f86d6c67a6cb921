"""Steps that change the pictures of a scene, each camera by draws of its own.

Where pixels move, the intrinsics take the same map, so that a point still projects to the content that shows it. They
then need no longer be upper triangular, nor their focal lengths positive: a mirrored picture has a negative one. Points
and boxes stay: these steps change what a camera is, not where anything is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor
from torchvision.transforms.v2 import functional as colours

from modalities.driving.augment import TrainingScene, check_probability, check_span, drawn
from modalities.driving.geometry_scene import resize_intrinsics
from zoo.errors import ConfigError

__all__ = ["FlipImages", "JitterColours", "ResizeCropImages", "RotateImages"]


@dataclass(frozen=True)
class ResizeCropImages:
    """Resizes each picture by a random factor, then cuts it to one size; what is beyond its borders is black.

    Attributes:
        size: (height, width) of the result in pixels; that of the pictures unless given.
        scale: Smallest and largest factor, where 1 is the least with which a picture covers the size.
        above: Largest share of the height of the resized picture by which the cut is above its lower edge: the road is
            below, the sky above.
    """

    size: tuple[int, int] | None = None
    scale: tuple[float, float] = (0.86, 1.25)
    above: float = 0.0

    def __post_init__(self) -> None:
        check_span("scale", self.scale, 1e-2)
        check_probability("above", self.above)
        if self.size is not None and (len(self.size) != 2 or min(self.size) < 1):
            raise ConfigError(f"augmentation: size must be (height, width) in pixels, not {self.size!r:.60}")

    def __call__(self, scene: TrainingScene, generator: Generator) -> TrainingScene:
        """See `Augmentation`."""
        cameras = len(scene.image_mask)
        factors = drawn(generator, cameras, *self.scale)
        ups, sides = drawn(generator, cameras, 0.0, self.above), drawn(generator, cameras)
        if scene.images is None or not cameras:
            return scene
        rows, columns = scene.images.shape[2:]
        height, width = self.size or (rows, columns)
        cover = max(height / rows, width / columns)
        images, intrinsics = [], []
        for camera, (factor, up, side) in enumerate(zip(factors, ups, sides, strict=True)):
            tall, wide = (max(1, round(length * cover * factor)) for length in (rows, columns))
            top, left = round((1 - up) * tall) - height, round(side * (wide - width))
            images.append(_cut(_resized(scene.images[camera], tall, wide), top, left, height, width))
            intrinsics.append(resize_intrinsics(scene.intrinsics[camera], (wide / columns, tall / rows), (left, top)))
        return scene.replaced(images=torch.stack(images), intrinsics=torch.stack(intrinsics))


@dataclass(frozen=True)
class FlipImages:
    """Mirrors pictures left to right, each with a probability; the scene stays as it is."""

    probability: float = 0.5

    def __post_init__(self) -> None:
        check_probability("probability", self.probability)

    def __call__(self, scene: TrainingScene, generator: Generator) -> TrainingScene:
        """See `Augmentation`."""
        flipped = torch.rand(len(scene.image_mask), generator=generator) < self.probability
        if scene.images is None:
            return scene
        maps = torch.eye(3, dtype=scene.intrinsics.dtype).repeat(len(flipped), 1, 1)
        maps[:, 0, 0] -= 2.0 * flipped
        maps[:, 0, 2] = (scene.images.shape[3] - 1.0) * flipped
        chosen = flipped.to(scene.images.device)[:, None, None, None]
        images = torch.where(chosen, scene.images.flip(3), scene.images)
        return scene.replaced(images=images, intrinsics=_product(maps.to(scene.intrinsics), scene.intrinsics))


@dataclass(frozen=True)
class RotateImages:
    """Turns pictures about their middle, up to `degrees` to either side; beyond their borders is black."""

    degrees: float = 5.4

    def __post_init__(self) -> None:
        check_span("degrees", (0.0, self.degrees), 0.0)

    def __call__(self, scene: TrainingScene, generator: Generator) -> TrainingScene:
        """See `Augmentation`; a positive angle turns clockwise, since rows go down."""
        angles = torch.tensor(drawn(generator, len(scene.image_mask), -self.degrees, self.degrees), dtype=torch.float64)
        if scene.images is None or not len(angles):
            return scene
        rows, columns = scene.images.shape[2:]
        cos, sin = (angles * math.pi / 180).cos(), (angles * math.pi / 180).sin()
        column, row = (columns - 1) / 2, (rows - 1) / 2
        maps = torch.eye(3, dtype=torch.float64).repeat(len(angles), 1, 1)
        maps[:, 0, 0], maps[:, 0, 1], maps[:, 0, 2] = cos, -sin, column - cos * column + sin * row
        maps[:, 1, 0], maps[:, 1, 1], maps[:, 1, 2] = sin, cos, row - sin * column - cos * row
        maps = maps.to(scene.intrinsics)
        # Sampling asks where a pixel comes from, in units of half the picture: the turn back, stretched.
        ratio = rows / columns
        back = torch.zeros(len(angles), 2, 3)
        back[:, 0, 0], back[:, 0, 1] = cos.float(), (sin * ratio).float()
        back[:, 1, 0], back[:, 1, 1] = (-sin / ratio).float(), cos.float()
        grid = F.affine_grid(back.to(scene.images.device), [len(angles), 3, rows, columns], align_corners=False)
        turned = F.grid_sample(scene.images.float(), grid, mode="bilinear", padding_mode="zeros", align_corners=False)
        return scene.replaced(images=_uint8(turned), intrinsics=_product(maps, scene.intrinsics))


@dataclass(frozen=True)
class JitterColours:
    """Changes brightness, contrast, saturation and hue of each picture, in this order.

    Attributes:
        brightness: Largest change of the factor, which is around 1.
        contrast: The same.
        saturation: The same.
        hue: Largest turn, where 1 is all around.
        probability: Share of the pictures.
    """

    brightness: float = 0.2
    contrast: float = 0.2
    saturation: float = 0.2
    hue: float = 0.0
    probability: float = 1.0

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation", "probability"):
            check_probability(name, getattr(self, name))
        if not 0 <= self.hue <= 0.5:
            raise ConfigError(f"augmentation: hue must be in 0..0.5, not {self.hue!r:.40}")

    def __call__(self, scene: TrainingScene, generator: Generator) -> TrainingScene:
        """See `Augmentation`."""
        chances, *shares = torch.rand(len(scene.image_mask), 5, generator=generator).unbind(1)
        images = scene.images
        if images is None or not len(images):
            return scene
        strengths = (self.brightness, self.contrast, self.saturation, self.hue)
        chosen = chances < self.probability
        changes = [strength * (2 * share - 1) * chosen for strength, share in zip(strengths, shares, strict=True)]
        if any(strengths[:3]):
            factors = 1 + torch.stack(changes[:3]).to(images.device)
            images = _uint8(_recoloured(images.float(), *factors[..., None, None, None]))
        if self.hue:
            turned = [
                colours.adjust_hue(picture, turn) for picture, turn in zip(images, changes[3].tolist(), strict=True)
            ]
            images = torch.stack(turned)
        return scene.replaced(images=images)


def _recoloured(pixels: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor) -> Tensor:
    """Pictures (V, 3, H, W) in 0..255, changed by factors (V, 1, 1, 1): all at once, which is few kernels on a GPU."""
    pixels = (pixels * brightness).clamp(0, 255)
    middle = _grey(pixels).mean((1, 2, 3), keepdim=True)
    pixels = (middle + contrast * (pixels - middle)).clamp(0, 255)
    grey = _grey(pixels)
    return (grey + saturation * (pixels - grey)).clamp(0, 255)


def _grey(pixels: Tensor) -> Tensor:
    """Luma of ITU-R BT.601, (V, 1, H, W)."""
    red, green, blue = pixels.split(1, dim=1)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def _product(maps: Tensor, intrinsics: Tensor) -> Tensor:
    """The maps (V, 3, 3) of pixels after the intrinsics; sums of products, which matrix units would round."""
    return (maps[:, :, :, None] * intrinsics[:, None]).sum(2)


def _uint8(pictures: Tensor) -> Tensor:
    return pictures.round().clamp(0, 255).to(torch.uint8)


def _resized(picture: Tensor, rows: int, columns: int) -> Tensor:
    if tuple(picture.shape[1:]) == (rows, columns):
        return picture
    resized = F.interpolate(picture[None].float(), (rows, columns), mode="bilinear", antialias=True)
    return _uint8(resized[0])


def _cut(picture: Tensor, top: int, left: int, height: int, width: int) -> Tensor:
    """The part of a picture from (top, left), which may be outside it."""
    rows, columns = picture.shape[1:]
    return F.pad(picture, (-left, left + width - columns, -top, top + height - rows))
