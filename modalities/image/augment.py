"""Augmentation of uint8 batches on the model's device, with the transforms of torchvision and timm.

A batch is cut into groups that share the parameters of one draw: a batch is a random selection, so this costs little
variety, and it turns thousands of small kernels into dozens.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from zoo.data_config import DataConfig
from zoo.training.holdout import check_held_out
from zoo.training.seeds import host_rng
from zoo.training.settings import check

if TYPE_CHECKING:
    from timm.data import Mixup
    from torchvision.transforms import v2

__all__ = ["AUGMENTATIONS", "BatchAugmentation", "ImageOptions"]

AUGMENTATIONS = ("none", "jitter", "randaugment", "3-augment")


@dataclasses.dataclass(frozen=True)
class ImageOptions:
    """Recipe keys of image classification.

    Attributes:
        image_size: Training side in pixels; `None` = the model's own.
        store_size: Side to which pictures are resized and cropped when packed; `None` keeps them.
        skip_bad: Leave out damaged pictures instead of stopping.
        dev_split: Split of the data to evaluate on while training; `None` = what the next three say.
        dev_count: Training pictures held out for model selection.
        dev_fraction: The same as a share of all.
        dev_by_class: The same as a share of each class; only one of the four may be set.
        crop_scale: Bounds on the share of the area that RandomResizedCrop keeps.
        crop_ratio: Bounds on its aspect ratio.
        interpolation: `"bicubic"` or `"bilinear"`.
        flip: Probability of a horizontal flip.
        augmentation: One of `AUGMENTATIONS`, after crop and flip.
        color_jitter: Brightness, contrast and saturation strengths (`jitter` and `3-augment`).
        randaugment: Number of operations and their magnitude (of 31 bins).
        augment_group: Pictures that share one draw.
        mixup: MixUp alpha; 0 for none.
        cutmix: CutMix alpha; 0 for none.
        switch_prob: Probability of CutMix where both are on.
        label_smoothing: Share of the target spread over all classes.
    """

    image_size: int | None = None
    store_size: int | None = None
    skip_bad: bool = False
    dev_split: str | None = None
    dev_count: int = 0
    dev_fraction: float = 0.0
    dev_by_class: float = 0.0
    crop_scale: tuple[float, float] = (0.2, 1.0)
    crop_ratio: tuple[float, float] = (0.75, 4 / 3)
    interpolation: str = "bicubic"
    flip: float = 0.5
    augmentation: str = "jitter"
    color_jitter: tuple[float, float, float] = (0.3, 0.3, 0.3)
    randaugment: tuple[int, int] = (2, 9)
    augment_group: int = 16
    mixup: float = 0.8
    cutmix: float = 1.0
    switch_prob: float = 0.5
    label_smoothing: float = 0.1

    def __post_init__(self) -> None:
        for key in ("image_size", "store_size"):
            value = getattr(self, key)
            check(key, value, value is None or 1 <= value <= 4096, "between 1 and 4096 or null")
        check_held_out(self)
        low, high = self.crop_scale
        check("crop_scale", self.crop_scale, 0 < low <= high <= 1, "two ascending numbers in (0, 1]")
        check("crop_ratio", self.crop_ratio, 0 < self.crop_ratio[0] <= self.crop_ratio[1], "two ascending numbers")
        modes = ("bicubic", "bilinear")
        check("interpolation", self.interpolation, self.interpolation in modes, f"one of {modes}")
        for key in ("flip", "switch_prob"):
            check(key, getattr(self, key), 0 <= getattr(self, key) <= 1, "in [0, 1]")
        check("label_smoothing", self.label_smoothing, 0 <= self.label_smoothing < 1, "in [0, 1)")
        check("augmentation", self.augmentation, self.augmentation in AUGMENTATIONS, f"one of {AUGMENTATIONS}")
        check("color_jitter", self.color_jitter, min(self.color_jitter) >= 0, "three numbers of 0 or more")
        operations, magnitude = self.randaugment
        check("randaugment", self.randaugment, operations >= 1 and 0 <= magnitude < 31, "[count, magnitude below 31]")
        check("augment_group", self.augment_group, self.augment_group >= 1, "at least 1")
        for key in ("mixup", "cutmix"):
            check(key, getattr(self, key), getattr(self, key) >= 0, "0 or more")


class BatchAugmentation:
    """Turns stored pictures into a training batch.

    Args:
        options: What to do.
        data_config: Output size, mean and std.
        num_classes: For the targets of MixUp and CutMix.
        device: Where batches lie.
    """

    def __init__(self, options: ImageOptions, data_config: DataConfig, num_classes: int, device: torch.device) -> None:
        self.group = options.augment_group
        self.size = data_config.input_size[1:]
        self.transform = _transform(options, self.size)
        self.mixup = _mixup(options, num_classes)
        self.mean = (255 * torch.tensor(data_config.mean, device=device)).view(1, -1, 1, 1)
        self.std = (255 * torch.tensor(data_config.std, device=device)).view(1, -1, 1, 1)

    def __call__(self, pictures: Tensor, labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """Augments a batch; the result depends on the arguments alone.

        Args:
            pictures: uint8 (B, 3, h, w).
            labels: int64 (B,).
            seed: For all draws of this batch.

        Returns:
            Images float32 (B, 3, H, W), normalised, and targets: float (B, K) with MixUp or CutMix, else the labels.
        """
        out = torch.empty(len(pictures), 3, *self.size, dtype=torch.uint8, device=pictures.device)
        with host_rng(seed):
            for start in range(0, len(pictures), self.group):
                out[start : start + self.group] = self.transform(pictures[start : start + self.group])
            images = out.float().sub_(self.mean).div_(self.std)
            return self.mixup(images, labels) if self.mixup else (images, labels)


def _transform(options: ImageOptions, size: tuple[int, int]) -> v2.Compose:
    from torchvision.transforms import v2

    interpolation = v2.InterpolationMode(options.interpolation)
    steps: list[Any] = [
        v2.RandomResizedCrop(size, options.crop_scale, options.crop_ratio, interpolation=interpolation, antialias=True),
        v2.RandomHorizontalFlip(options.flip),
    ]
    jitter = v2.ColorJitter(*options.color_jitter)
    if options.augmentation == "jitter":
        steps.append(jitter)
    elif options.augmentation == "randaugment":
        operations, magnitude = options.randaugment
        steps.append(v2.RandAugment(operations, magnitude, interpolation=v2.InterpolationMode.BILINEAR))
    elif options.augmentation == "3-augment":
        blur = v2.GaussianBlur(kernel_size=9, sigma=(0.1, 2.0))
        steps += [v2.RandomChoice([v2.Grayscale(3), v2.RandomSolarize(128, p=1.0), blur]), jitter]
    return v2.Compose(steps)


def _mixup(options: ImageOptions, num_classes: int) -> Mixup | None:
    from timm.data import Mixup

    if not options.mixup and not options.cutmix:
        return None
    return Mixup(
        mixup_alpha=options.mixup,
        cutmix_alpha=options.cutmix,
        switch_prob=options.switch_prob,
        label_smoothing=options.label_smoothing,
        num_classes=num_classes,
    )
