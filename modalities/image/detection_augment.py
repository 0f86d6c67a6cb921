"""Augmentation of pictures with boxes, batched on the model's device.

Each picture is moved by one map along its axes (flip, scale, shift: large-scale jitter, Ghiasi et al., 2021, arXiv
2012.07177), so that resampling is a product with one matrix a side: exact, low-pass filtered where it shrinks, and fast
on a GPU. Its colours are changed by one linear map.

Shapes: B batch, M boxes (padded), (h, w) stored pictures, (H, W) the model's input.
"""

from __future__ import annotations

import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from modalities.image.transforms import BORDER, LUMA
from zoo.data_config import DataConfig
from zoo.detection.targets import Targets
from zoo.training.holdout import check_held_out
from zoo.training.settings import check

__all__ = ["DetectionAugmentation", "DetectionOptions"]

_DRAWS = 10


@dataclasses.dataclass(frozen=True)
class DetectionOptions:
    """Recipe keys of object detection on images.

    Attributes:
        image_size: Training (height, width) in pixels; `None` = the model's own.
        backbone: Model whose patch embedding and encoder the training starts from, as for `zoo.load`; `None` = random
            weights (or the detector's own, with `pretrained`).
        store_size: (height, width) that larger pictures are shrunk to fit in when packed; `None` keeps them.
        skip_bad: Leave out damaged and missing pictures instead of stopping.
        category_ids: Classes are the category ids of COCO annotations as they are, as in the released networks.
        dev_split: Split of the data to evaluate on while training; `None` = what the next two say.
        dev_count: Training pictures held out for evaluation.
        dev_fraction: The same as a share of all.
        dev_by_class: The same as a share of the pictures of each class, that is of the rarest class in each; only one
            of the four may be set.
        flip: Probability of a horizontal flip.
        flip_vertical: Probability of a vertical flip, for pictures without an up (microscopes, aerial views).
        scale: Bounds on the size of the picture relative to the model's input; beyond 1 it is cropped, below it is
            surrounded by grey.
        ratio: Bounds on the change of its aspect ratio.
        min_visible: Boxes keep their place if this share of their area is left in the crop.
        min_side: And if both sides have so many pixels there.
        brightness: Strength: factors are drawn from 1 - strength to 1 + strength.
        contrast: The same for the contrast.
        saturation: The same for the saturation.
        hue: Largest turn of the hue, as a share of the colour circle.
        box_gain: Weight of the box loss (complete IoU).
        dfl_gain: Weight of the distribution focal loss.
        class_gain: Weight of the class loss.
    """

    image_size: tuple[int, int] | None = None
    backbone: str | None = None
    store_size: tuple[int, int] | None = None
    skip_bad: bool = False
    category_ids: bool = False
    dev_split: str | None = None
    dev_count: int = 0
    dev_fraction: float = 0.0
    dev_by_class: float = 0.0
    flip: float = 0.5
    flip_vertical: float = 0.0
    scale: tuple[float, float] = (0.5, 2.0)
    ratio: tuple[float, float] = (0.9, 1.1)
    min_visible: float = 0.25
    min_side: float = 2.0
    brightness: float = 0.3
    contrast: float = 0.3
    saturation: float = 0.5
    hue: float = 0.02
    box_gain: float = 7.5
    dfl_gain: float = 1.5
    class_gain: float = 0.5

    def __post_init__(self) -> None:
        for key in ("image_size", "store_size"):
            value = getattr(self, key)
            good = value is None or all(1 <= side <= 8192 for side in value)
            check(key, value, good, "[height, width], each between 1 and 8192, or null")
        check_held_out(self)
        for key in ("flip", "flip_vertical", "min_visible"):
            check(key, getattr(self, key), 0 <= getattr(self, key) <= 1, "in [0, 1]")
        for key in ("brightness", "contrast", "saturation"):
            check(key, getattr(self, key), 0 <= getattr(self, key) <= 1, "in [0, 1]")
        check("hue", self.hue, 0 <= self.hue <= 0.5, "in [0, 0.5]")
        for key in ("scale", "ratio"):
            low, high = getattr(self, key)
            check(key, (low, high), 0.05 <= low <= high <= 20, "two ascending numbers in 0.05..20")
        for key in ("min_side", "box_gain", "dfl_gain", "class_gain"):
            check(key, getattr(self, key), 0 <= getattr(self, key) < math.inf, "0 or more")


class DetectionAugmentation:
    """Turns stored pictures and their boxes into a training batch.

    Args:
        options: What to do.
        data_config: Input size, mean, std, and whether the whole picture is squashed into the input or fitted in with
            its aspect ratio.
        device: Where batches lie.
    """

    def __init__(self, options: DetectionOptions, data_config: DataConfig, device: torch.device) -> None:
        self.options, self.device = options, device
        self.size = data_config.input_size[1:]
        self.squash = data_config.resize == "squash"
        # Made once: making a tensor on the device from numbers waits for it.
        self.whole = torch.tensor(self.size, dtype=torch.float32, device=device)
        self.luma = torch.tensor(LUMA, device=device)
        self.eye = torch.eye(3, device=device)
        self.cross = torch.tensor([[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]], device=device) / math.sqrt(3)
        self.mean = (255 * torch.tensor(data_config.mean, device=device)).view(1, -1, 1, 1)
        self.std = (255 * torch.tensor(data_config.std, device=device)).view(1, -1, 1, 1)

    def __call__(self, pictures: Tensor, sizes: Tensor, targets: Targets, seed: int) -> tuple[Tensor, Targets]:
        """Augments a batch; the result depends on the arguments alone. No synchronisation with the device.

        Args:
            pictures: uint8 (B, 3, h, w); a smaller picture lies in the top left corner.
            sizes: float32 (B, 2), height and width of the pictures in there.
            targets: Boxes in pixels of the stored pictures.
            seed: For all draws of this batch.

        Returns:
            Images float32 (B, 3, H, W), normalised, and their boxes, as many (M) as there were: those that are cut off
            are masked.
        """
        draws = torch.rand(len(pictures), _DRAWS, generator=torch.Generator().manual_seed(seed))
        if self.device.type == "cuda":
            draws = draws.pin_memory()
        draw = draws.to(self.device, non_blocking=True).unbind(dim=1)
        scale, offset, mirror = self._map(sizes, draw)
        images = pictures.float()
        across = _resampling(self.size[1], images.shape[3], sizes[:, 1], scale[:, 1], offset[:, 1], mirror[:, 1])
        down = _resampling(self.size[0], images.shape[2], sizes[:, 0], scale[:, 0], offset[:, 0], mirror[:, 0])
        images = torch.matmul(images.flatten(1, 2), across.transpose(1, 2)).unflatten(1, (3, -1))
        images = torch.matmul(down.unsqueeze(1), images)
        inside = down.sum(dim=2)[:, None, :, None] * across.sum(dim=2)[:, None, None]  # 1, and 0 in the border
        images = self._colour(images, inside, draw).clamp(0, 255) * inside + BORDER * (1 - inside)
        return images.sub_(self.mean).div_(self.std), self._boxes(targets, sizes, scale, offset, mirror)

    def _map(self, sizes: Tensor, draw: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
        """Scales, offsets and flips (B, 2) along y and x: x' = offset + scale x, of a mirrored x where flipped."""
        options = self.options
        fitted = self.whole / sizes
        if not self.squash:
            fitted = fitted.amin(dim=1, keepdim=True).expand(-1, 2)
        zoom, ratio = _log_uniform(draw[2], options.scale), _log_uniform(draw[3], options.ratio).sqrt()
        scale = fitted * zoom.unsqueeze(1) * torch.stack([1 / ratio, ratio], dim=1)
        offset = torch.stack([draw[4], draw[5]], dim=1) * (self.whole - sizes * scale)
        mirror = torch.stack([draw[1] < options.flip_vertical, draw[0] < options.flip], dim=1)
        return scale, offset, mirror

    def _colour(self, images: Tensor, inside: Tensor, draw: tuple[Tensor, ...]) -> Tensor:
        """Brightness, contrast about the picture's mean luma, saturation and hue, as one linear map of the colours."""
        options = self.options
        brightness, contrast, saturation = (
            1 + strength * (2 * one - 1)
            for strength, one in zip((options.brightness, options.contrast, options.saturation), draw[6:9], strict=True)
        )
        mean = (images * inside * self.luma.view(1, 3, 1, 1)).sum(dim=(1, 2, 3)) / inside.sum(dim=(1, 2, 3)).clamp_min(
            1
        )
        vivid = saturation.view(-1, 1, 1)
        colours = vivid * self.eye + (1 - vivid) * self.luma.expand(3, 3)
        colours = torch.matmul(colours, self._hue_turn(2 * math.pi * options.hue * (2 * draw[9] - 1)))
        colours = (brightness * contrast).view(-1, 1, 1) * colours
        bias = (brightness * (1 - contrast) * mean).view(-1, 1, 1, 1)
        return torch.matmul(colours, images.flatten(2)).view_as(images) + bias

    def _hue_turn(self, angle: Tensor) -> Tensor:
        """Rotations (B, 3, 3) of colours about the grey axis."""
        cos, sin = angle.cos().view(-1, 1, 1), angle.sin().view(-1, 1, 1)
        return cos * self.eye + sin * self.cross + (1 - cos) / 3

    def _boxes(self, targets: Targets, sizes: Tensor, scale: Tensor, offset: Tensor, mirror: Tensor) -> Targets:
        corners = targets.boxes.unflatten(2, (2, 2))  # (B, M, corner, xy)
        whole = sizes.flip(1).view(-1, 1, 1, 2)
        mirrored = (whole - corners).flip(2)
        corners = torch.where(mirror.flip(1).view(-1, 1, 1, 2), mirrored, corners)
        corners = corners * scale.flip(1).view(-1, 1, 1, 2) + offset.flip(1).view(-1, 1, 1, 2)
        full = (corners[:, :, 1] - corners[:, :, 0]).prod(dim=2)
        cut = torch.stack([corners[..., 0].clamp(0, self.size[1]), corners[..., 1].clamp(0, self.size[0])], dim=3)
        sides = cut[:, :, 1] - cut[:, :, 0]
        kept = (sides >= self.options.min_side).all(dim=2) & (sides.prod(dim=2) >= self.options.min_visible * full)
        mask = targets.mask & kept & (sides > 0).all(dim=2)
        return Targets(cut.flatten(2) * mask.unsqueeze(2), targets.labels * mask, mask)


def _log_uniform(draw: Tensor, bounds: tuple[float, float]) -> Tensor:
    low, high = math.log(bounds[0]), math.log(bounds[1])
    return torch.exp(low + (high - low) * draw)


def _resampling(count: int, stored: int, sizes: Tensor, scale: Tensor, offset: Tensor, mirror: Tensor) -> Tensor:
    """Weights (B, count, stored) of the stored pixels in every pixel of the input, along one side.

    A triangle as wide as a pixel of the input or of the picture, whichever is larger; pixels of the input beyond the
    picture have no weights.
    """
    at = (torch.arange(count, device=sizes.device, dtype=torch.float32) + 0.5 - offset.unsqueeze(1)) / scale.unsqueeze(
        1
    )
    inside = (at >= 0) & (at <= sizes.unsqueeze(1))
    at = torch.where(mirror.unsqueeze(1), sizes.unsqueeze(1) - at, at)
    pixels = torch.arange(stored, device=sizes.device, dtype=torch.float32) + 0.5
    reach = (1 / scale).clamp_min(1).view(-1, 1, 1)
    weights = F.relu(1 - (pixels - at.unsqueeze(2)).abs() / reach)
    weights = weights * (inside.unsqueeze(2) & (pixels < sizes.view(-1, 1, 1)))
    return weights / weights.sum(dim=2, keepdim=True).clamp_min(1e-6)
