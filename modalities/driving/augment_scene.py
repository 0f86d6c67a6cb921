"""Steps that change a scene as a whole: its frame, which points and boxes are in it, and which sensors work.

The frame is turned, mirrored, scaled and moved by `geometry_scene`, so that points, boxes, velocities and cameras agree
after a step as they did before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from modalities.driving.augment import TrainingScene, check_probability, check_span, drawn
from modalities.driving.geometry_scene import flip_scene, rotate_scene, scale_scene, translate_scene
from zoo.errors import ConfigError

__all__ = ["DropPoints", "DropSensors", "FlipScene", "LimitRange", "RotateScene", "ScaleScene", "TranslateScene"]


@dataclass(frozen=True)
class FlipScene:
    """Mirrors scenes, their pictures among them (`geometry_scene.flip_scene`).

    Attributes:
        front_back: Probability that x changes its sign.
        left_right: Probability that y does, independently.
    """

    front_back: float = 0.5
    left_right: float = 0.5

    def __post_init__(self) -> None:
        check_probability("front_back", self.front_back)
        check_probability("left_right", self.left_right)

    def __call__(self, scene: TrainingScene, generator: Generator) -> TrainingScene:
        """See `Augmentation`."""
        x, y = drawn(generator, 2)
        labelled = scene.labelled()
        if x < self.front_back:
            labelled = flip_scene(labelled, "x")
        if y < self.left_right:
            labelled = flip_scene(labelled, "y")
        return TrainingScene.of(labelled)


@dataclass(frozen=True)
class RotateScene:
    """Turns scenes about the vertical axis, up to `degrees` to either side."""

    degrees: float = 45.0

    def __post_init__(self) -> None:
        check_span("degrees", (0.0, self.degrees), 0.0)

    def __call__(self, scene: TrainingScene, generator: Generator) -> TrainingScene:
        """See `Augmentation`."""
        (angle,) = drawn(generator, 1, -self.degrees, self.degrees)
        return TrainingScene.of(rotate_scene(scene.labelled(), math.radians(angle)))


@dataclass(frozen=True)
class ScaleScene:
    """Scales scenes about the origin by a factor from `low` to `high`; velocities too."""

    low: float = 0.9
    high: float = 1.1

    def __post_init__(self) -> None:
        check_span("low and high", (self.low, self.high), 1e-3)

    def __call__(self, scene: TrainingScene, generator: Generator) -> TrainingScene:
        """See `Augmentation`."""
        (factor,) = drawn(generator, 1, self.low, self.high)
        return TrainingScene.of(scale_scene(scene.labelled(), factor))


@dataclass(frozen=True)
class TranslateScene:
    """Moves scenes by normal noise.

    Attributes:
        deviation: Standard deviations along x, y and z in metres.
    """

    deviation: tuple[float, float, float] = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        if len(self.deviation) != 3 or not all(0 <= value < math.inf for value in self.deviation):
            raise ConfigError(f"augmentation: deviation must be three metres of at least 0, not {self.deviation!r:.60}")

    def __call__(self, scene: TrainingScene, generator: Generator) -> TrainingScene:
        """See `Augmentation`."""
        noise = torch.randn(3, generator=generator).tolist()
        x, y, z = (value * deviation for value, deviation in zip(noise, self.deviation, strict=True))
        return TrainingScene.of(translate_scene(scene.labelled(), (x, y, z)))


@dataclass(frozen=True)
class LimitRange:
    """Leaves out points outside a range, and boxes whose centre is outside it in x and y.

    Attributes:
        point_range: (x, y, z, x, y, z), smallest and then largest coordinates in metres, as in `DrivingDataConfig`; the
            largest are outside.
    """

    point_range: tuple[float, ...]

    def __post_init__(self) -> None:
        span = self.point_range
        if len(span) != 6 or not all(low < high for low, high in zip(span[:3], span[3:], strict=True)):
            raise ConfigError(f"augmentation: point_range must be three smallest, then three larger metres, not {span}")

    def __call__(self, scene: TrainingScene, generator: Generator) -> TrainingScene:
        """See `Augmentation`; draws nothing."""
        points = scene.points
        if points is not None:
            points = points[self._within(points[:, :3])]
        return scene.replaced(points=points, boxes=scene.boxes[self._within(scene.boxes.centre[:, :2])])

    def _within(self, places: Tensor) -> Tensor:
        axes = places.shape[1]
        low, high = places.new_tensor(self.point_range[:axes]), places.new_tensor(self.point_range[3 : 3 + axes])
        return ((places >= low) & (places < high)).all(1)


@dataclass(frozen=True)
class DropPoints:
    """Leaves out lidar points at random; those that stay keep their order.

    Attributes:
        most: Largest share; the share of a scene is drawn from 0 to it.
        probability: Share of the scenes.
    """

    most: float = 0.2
    probability: float = 1.0

    def __post_init__(self) -> None:
        check_probability("most", self.most)
        check_probability("probability", self.probability)

    def __call__(self, scene: TrainingScene, generator: Generator) -> TrainingScene:
        """See `Augmentation`."""
        chance, share = drawn(generator, 2)
        if scene.points is None:
            return scene
        ranks = torch.rand(len(scene.points), generator=generator)
        if chance >= self.probability:
            return scene
        return scene.replaced(points=scene.points[(ranks >= share * self.most).to(scene.points.device)])


@dataclass(frozen=True)
class DropSensors:
    """Switches sensors off, so that a model learns to do without them.

    A dead camera is black and not in `image_mask`; a dead lidar has no points. Boxes stay, also those that no sensor
    sees any more. One sensor always works: where all would be off, the lidar stays on, or without a lidar one camera.

    Attributes:
        camera: Probability of each camera.
        lidar: Probability of the lidar.
    """

    camera: float = 0.1
    lidar: float = 0.1

    def __post_init__(self) -> None:
        check_probability("camera", self.camera)
        check_probability("lidar", self.lidar)

    def __call__(self, scene: TrainingScene, generator: Generator) -> TrainingScene:
        """See `Augmentation`."""
        cameras = len(scene.image_mask)
        chances = torch.rand(cameras, generator=generator)
        (lidar,) = drawn(generator, 1)
        there = scene.image_mask if scene.images is not None else torch.zeros_like(scene.image_mask)
        on = there & (chances >= self.camera).to(there.device)
        if scene.points is None:
            # The one with the largest number of those that are there: no answer from the device is waited for.
            best = torch.where(there, chances.to(there.device), -1.0)
            last = torch.arange(cameras, device=there.device) == best.argmax() if cameras else on
            on = torch.where(on.any(), on, there & last)
        scene = scene.replaced(image_mask=torch.where(there, on, scene.image_mask))
        if scene.images is not None:
            scene = scene.replaced(images=scene.images * on.to(scene.images.device)[:, None, None, None])
        if scene.points is None or lidar >= self.lidar:
            return scene
        return scene.replaced(points=scene.points[:0]) if bool(on.any()) else scene
