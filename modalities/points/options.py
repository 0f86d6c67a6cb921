"""Recipe keys of training on point clouds."""

from __future__ import annotations

from dataclasses import dataclass

from modalities.points.augment import Augmentation, Drop, Flip, Jitter, Rotate, RotateAny, Scale, Shift
from modalities.points.augment_fields import AutoContrast, ColorDrop, ColorJitter, ColorShift, Elastic
from zoo.training.holdout import check_held_out
from zoo.training.settings import check

__all__ = ["ClassificationOptions", "PointOptions", "SegmentationOptions"]


@dataclass(frozen=True)
class PointOptions:
    """Keys of classification and segmentation alike; what an augmentation does says `modalities.points.augment`.

    Attributes:
        dataset: Name of the data set, or `"auto"` to tell by the layout.
        num_points: Points of a training sample; `None` = those of the model's data configuration.
        dev_fraction: Share of the training clouds held out for model selection, where there is no validation split.
        dev_by_class: The same as a share of each class, of classification; only one of the two may be set.
        label_smoothing: Share of the target spread over all classes.
        drop: Largest share of points dropped.
        drop_probability: Share of the clouds that points are dropped of.
        rotate: Largest angle about z in degrees.
        rotate_probability: Share of the clouds that are turned.
        tilt: Largest angle about x and about y in degrees.
        rotate_any: Turn by rotations from all of SO(3) instead.
        scale: Smallest and largest factor.
        anisotropic: A factor for each axis.
        shift: Largest shift, in units of the normalised coordinates.
        flip: Probability of a mirror image in x, and in y.
        jitter: Standard deviation of the noise of each point; it is cut off at 5 times of that.
        elastic: Probability of each of the two elastic distortions.
        elastic_spacing: Distance of the nodes of each.
        elastic_magnitude: Noise of each.
        auto_contrast: Probability of stretched colours.
        color_shift: Largest shift of the colours of a cloud.
        color_jitter: Standard deviation of the noise of each colour.
        color_drop: Probability of a cloud without colour.
    """

    dataset: str = "auto"
    num_points: int | None = None
    dev_fraction: float = 0.0
    dev_by_class: float = 0.0
    label_smoothing: float = 0.0
    drop: float = 0.0
    drop_probability: float = 1.0
    rotate: float = 0.0
    rotate_probability: float = 1.0
    tilt: float = 0.0
    rotate_any: bool = False
    scale: tuple[float, float] = (1.0, 1.0)
    anisotropic: bool = False
    shift: float = 0.0
    flip: float = 0.0
    jitter: float = 0.0
    elastic: float = 0.0
    elastic_spacing: tuple[float, float] = (0.2, 0.8)
    elastic_magnitude: tuple[float, float] = (0.4, 1.6)
    auto_contrast: float = 0.0
    color_shift: float = 0.0
    color_jitter: float = 0.0
    color_drop: float = 0.0

    def __post_init__(self) -> None:
        if self.num_points is not None:
            check("num_points", self.num_points, self.num_points >= 1, "at least 1 or null")
        check("label_smoothing", self.label_smoothing, 0 <= self.label_smoothing < 1, "in [0, 1)")
        check_held_out(self)
        for key in ("drop", "drop_probability", "rotate_probability", "flip", "elastic", "auto_contrast", "color_drop"):
            check(key, getattr(self, key), 0 <= getattr(self, key) <= 1, "in [0, 1]")
        for key in ("rotate", "tilt"):
            check(key, getattr(self, key), 0 <= getattr(self, key) <= 180, "between 0 and 180 degrees")
        check("scale", list(self.scale), 0 < self.scale[0] <= self.scale[1] <= 100, "two factors above 0, rising")
        for key in ("shift", "jitter", "color_shift", "color_jitter"):
            check(key, getattr(self, key), 0 <= getattr(self, key) <= 1000, "0 or more")
        for key in ("elastic_spacing", "elastic_magnitude"):
            check(key, list(getattr(self, key)), min(getattr(self, key)) > 0, "two lengths above 0")

    def augmentations(self) -> list[Augmentation]:
        """The augmentations that are on, in the order in which they are applied."""
        every: list[tuple[float, Augmentation]] = [
            (self.drop and self.drop_probability, Drop(self.drop, self.drop_probability)),
            (self.rotate, Rotate(self.rotate, "z", self.rotate_probability)),
            (self.tilt, Rotate(self.tilt, "x", self.rotate_probability)),
            (self.tilt, Rotate(self.tilt, "y", self.rotate_probability)),
            (self.rotate_any, RotateAny()),
            (tuple(self.scale) != (1, 1), Scale(*self.scale, anisotropic=self.anisotropic)),
            (self.flip, Flip(self.flip)),
            (self.shift, Shift(self.shift)),
            (self.jitter, Jitter(self.jitter, 5 * self.jitter)),
        ]
        for spacing, magnitude in zip(self.elastic_spacing, self.elastic_magnitude, strict=True):
            every.append((self.elastic, Elastic(spacing, magnitude, self.elastic)))
        every += [
            (self.auto_contrast, AutoContrast(self.auto_contrast)),
            (self.color_shift, ColorShift(self.color_shift)),
            (self.color_jitter, ColorJitter(self.color_jitter)),
            (self.color_drop, ColorDrop(self.color_drop)),
        ]
        return [step for amount, step in every if amount]


@dataclass(frozen=True)
class ClassificationOptions(PointOptions):
    """Keys of the classification of clouds."""


@dataclass(frozen=True)
class SegmentationOptions(PointOptions):
    """Keys of the segmentation of clouds.

    Attributes:
        crops: Samples of an epoch: crops around random points, whose class is drawn first, all classes alike; 0 takes
            of every cloud one crop around any of its points.
        lovasz: Weight of the Lovasz-softmax loss beside the cross-entropy.
        mix3d: Probability that the crops of a batch are laid over each other two by two.
    """

    crops: int = 0
    lovasz: float = 1.0
    mix3d: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check("dev_by_class", self.dev_by_class, self.dev_by_class == 0, "0: points have classes, clouds have none")
        check("crops", self.crops, self.crops >= 0, "0 or more")
        check("lovasz", self.lovasz, 0 <= self.lovasz <= 1000, "0 or more")
        check("mix3d", self.mix3d, 0 <= self.mix3d <= 1, "in [0, 1]")
