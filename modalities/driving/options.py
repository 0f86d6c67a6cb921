"""Recipe keys of training on driving scenes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from modalities.driving.augment import Augmentation
from modalities.driving.augment_images import FlipImages, JitterColours, ResizeCropImages, RotateImages
from modalities.driving.augment_scene import (
    DropPoints,
    DropSensors,
    FlipScene,
    LimitRange,
    RotateScene,
    ScaleScene,
    TranslateScene,
)
from modalities.driving.data_config import DrivingDataConfig
from zoo.training.settings import check

__all__ = ["DrivingOptions"]


@dataclass(frozen=True)
class DrivingOptions:
    """Keys of `driving-detection`; what an augmentation does says `modalities.driving.augment`.

    Attributes:
        version: Name of the folder of tables; `None` = the only one.
        split: Split that is trained on.
        dev_split: Split that `eval_every` and the end of training measure on; `None` for none.
        classes: Detection classes, in the order of the labels; `None` = those of the model.
        missing_images: What a picture without a file is: an error (`"raise"`) or an absent camera (`"mask"`).
        memory_gib: Most memory for the key frames of a split, of each process that trains; sets that need more are read
            from disk as they are asked for.
        workers: Processes that read and augment, of each process that trains; 0 does so between the steps.
        ahead: Batches that are begun before they are needed.
        balance: Key frames with rare classes come more often (`modalities.driving.balance`).
        paste: Class -> objects of it that a scene shall have: others are pasted in (`augment_paste`); empty for none.
        paste_opacity: Weight of what cameras show of a pasted object; 0 pastes points and boxes only.
        paste_min_points: Least lidar points of an object that is pasted.
        paste_off: Epochs at the end in which nothing is pasted.
        eval_batch_size: Key frames at a time when measuring.
        image_scale: Smallest and largest factor of each picture, of which the model's size is then cut out.
        image_above: Largest share of the height by which the cut is above the lower edge of the picture.
        image_rotate: Largest turn of each picture in degrees.
        image_flip: Probability that a picture is mirrored and the scene is not.
        colour: Largest change of brightness, contrast and saturation of each picture.
        flip: Probabilities of a mirrored scene, front and back, and left and right.
        rotate: Largest turn of the scene about the vertical axis in degrees.
        scale: Smallest and largest factor of the scene.
        translate: Standard deviations of a shift of the scene along x, y and z in metres.
        drop_points: Largest share of lidar points left out.
        drop_camera: Probability that a camera is switched off.
        drop_lidar: Probability that the lidar is switched off.
        heat_weight: Of the loss of the heat map.
        class_weight: Of the loss of the queries' classes.
        box_weight: Of the loss of the boxes.
        velocity_weight: Of the velocities beside that.
    """

    version: str | None = None
    split: str = "train"
    dev_split: str | None = "val"
    classes: tuple[str, ...] | None = None
    missing_images: str = "raise"
    memory_gib: float = 16.0
    workers: int = 2
    ahead: int = 4
    balance: bool = False
    paste: dict[str, Any] = field(default_factory=dict)
    paste_opacity: float = 0.7
    paste_min_points: int = 5
    paste_off: int = 0
    eval_batch_size: int = 8
    image_scale: tuple[float, float] = (1.0, 1.0)
    image_above: float = 0.0
    image_rotate: float = 0.0
    image_flip: float = 0.0
    colour: float = 0.0
    flip: tuple[float, float] = (0.0, 0.0)
    rotate: float = 0.0
    scale: tuple[float, float] = (1.0, 1.0)
    translate: tuple[float, float, float] = (0.0, 0.0, 0.0)
    drop_points: float = 0.0
    drop_camera: float = 0.0
    drop_lidar: float = 0.0
    heat_weight: float = 1.0
    class_weight: float = 1.0
    box_weight: float = 0.25
    velocity_weight: float = 0.2

    def __post_init__(self) -> None:
        check("missing_images", self.missing_images, self.missing_images in ("raise", "mask"), "raise or mask")
        for key in (
            "memory_gib",
            "rotate",
            "image_rotate",
            "heat_weight",
            "class_weight",
            "box_weight",
            "velocity_weight",
        ):
            check(key, getattr(self, key), 0 <= getattr(self, key) <= 1e6, "0 or more")
        check("paste", self.paste, all(type(number) is int for number in self.paste.values()), "numbers by class")
        check("paste_min_points", self.paste_min_points, self.paste_min_points >= 1, "at least 1")
        check("paste_off", self.paste_off, self.paste_off >= 0, "0 or more")
        for key in ("workers", "ahead"):
            check(key, getattr(self, key), 0 <= getattr(self, key) <= 256, "between 0 and 256")
        check("eval_batch_size", self.eval_batch_size, self.eval_batch_size >= 1, "at least 1")
        for key in ("paste_opacity", "image_above", "image_flip", "colour", "drop_points", "drop_camera", "drop_lidar"):
            check(key, getattr(self, key), 0 <= getattr(self, key) <= 1, "in [0, 1]")
        check("flip", list(self.flip), all(0 <= value <= 1 for value in self.flip), "two probabilities")
        for key in ("scale", "image_scale"):
            low, high = getattr(self, key)
            check(key, [low, high], 0.01 <= low <= high <= 100, "two factors above 0, rising")
        check("translate", list(self.translate), all(0 <= v <= 1000 for v in self.translate), "three lengths")

    def augmentations(self, config: DrivingDataConfig) -> list[Augmentation]:
        """The augmentations that are on, in the order in which they are applied."""
        every: list[tuple[object, Augmentation]] = [
            (
                tuple(self.image_scale) != (1, 1) or self.image_above,
                ResizeCropImages(config.image_size, self.image_scale, self.image_above),
            ),
            (self.image_rotate, RotateImages(self.image_rotate)),
            (self.image_flip, FlipImages(self.image_flip)),
            (self.colour, JitterColours(self.colour, self.colour, self.colour)),
            (any(self.flip), FlipScene(*self.flip)),
            (self.rotate, RotateScene(self.rotate)),
            (tuple(self.scale) != (1, 1), ScaleScene(*self.scale)),
            (any(self.translate), TranslateScene(self.translate)),
            (True, LimitRange(config.point_range)),
            (self.drop_points, DropPoints(self.drop_points)),
            (self.drop_camera or self.drop_lidar, DropSensors(self.drop_camera, self.drop_lidar)),
        ]
        return [step for amount, step in every if amount]
