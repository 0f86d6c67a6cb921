"""Pasting of objects of other scenes: points, boxes and what cameras show of them.

What is pasted is consistent as far as this: no box touches another from above, lidar points of the scene inside a
pasted box go, and each picture gets the object's patch at the place to which its box projects, nearer objects over
farther ones.

What is not: patches are rectangles, with the background of the scene they are from, in its light, and with whatever
stood in front of the object there; the lidar sees through what is pasted, and what is pasted behind an object of the
scene keeps its points, though pictures hide it. Cameras and lidar contradict each other there a little, and without
patches wholly: a pasted object is then in no picture. Recipes therefore stop pasting some epochs before the end, that
of UniTR (arXiv 2308.07732) for the last 2 of 10; it also has the patches and their opacity of 0.7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from modalities.driving.augment import TrainingScene, check_probability
from modalities.driving.boxes import Boxes3D
from modalities.driving.geometry import image_boxes, points_in_boxes, transform_points
from modalities.driving.iou import bev_intersection
from modalities.driving.objects import ObjectDatabase, Patch, pixel_span
from zoo.errors import ConfigError, DataError

__all__ = ["PasteObjects"]

_MOST = 1000


@dataclass(frozen=True)
class PasteObjects:
    """Pastes objects until a scene has a number of each class, as far as they find room.

    It comes before steps that move the scene, since objects keep the place relative to the car at which they were seen.
    An object is only pasted where it leaves a trace: points in a scene with a lidar, patches in one without.

    Attributes:
        database: Where objects are from; on the CPU, as scenes should be: what collides is decided by the host.
        numbers: Objects of each class, by label, that a scene shall have, its own among them; 0 pastes none.
        opacity: Weight of patches over the picture below them; 0 pastes points and boxes only, which leaves scenes
            without a lidar as they are.
    """

    database: ObjectDatabase = field(repr=False)
    numbers: tuple[int, ...]
    opacity: float = 0.7
    _rows: tuple[Tensor, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not all(type(number) is int and 0 <= number <= _MOST for number in self.numbers):
            raise ConfigError(f"augmentation: numbers of objects must be 0 to {_MOST}, not {self.numbers!r:.60}")
        check_probability("opacity", self.opacity)
        object.__setattr__(self, "_rows", tuple(self.database.rows(label) for label in range(len(self.numbers))))

    def __call__(self, scene: TrainingScene, generator: Generator) -> TrainingScene:
        """See `Augmentation`.

        Raises:
            DataError: If points of the scene have other features than those of the database.
        """
        rows = self._candidates(scene, generator)
        if scene.points is not None and len(rows) and scene.points.shape[1] != self.database.points.shape[1]:
            raise DataError(
                f"objects have {self.database.points.shape[1]} point features, the scene {scene.points.shape[1]}: "
                "collect them from scenes read the same way"
            )
        rows = self._without_collisions(scene.boxes, [row for row in rows if self._leaves_trace(scene, row)])
        if not rows:
            return scene
        like = scene.boxes.centre
        pasted = self.database.boxes[rows].to(like.device, like.dtype)
        scene = self._with_points(scene, pasted, rows)
        scene = self._with_patches(scene, pasted, rows)
        return scene.replaced(boxes=Boxes3D.cat([scene.boxes, pasted]))

    def _candidates(self, scene: TrainingScene, generator: Generator) -> list[int]:
        """Different objects in random order: of each class as many as the scene lacks."""
        have = scene.boxes.label.tolist()
        chosen: list[int] = []
        for label, (number, rows) in enumerate(zip(self.numbers, self._rows, strict=True)):
            picks = torch.rand(number, generator=generator)  # as many draws whatever the scene has
            if len(rows):
                found = rows[(picks * len(rows)).long().clamp_max(len(rows) - 1)].tolist()
                chosen += list(dict.fromkeys(found[: max(0, number - have.count(label))]))
        order = torch.rand(sum(self.numbers), generator=generator)[: len(chosen)].argsort(stable=True)
        return [chosen[place] for place in order.tolist()]

    def _leaves_trace(self, scene: TrainingScene, row: int) -> bool:
        if scene.points is not None:
            return bool(self.database.offsets[row] < self.database.offsets[row + 1])
        patches = range(int(self.database.patch_offsets[row]), int(self.database.patch_offsets[row + 1]))
        cameras = self.database.patch_cameras[patches.start : patches.stop].tolist()
        there = scene.image_mask.tolist() if scene.images is not None and self.opacity else []
        return any(camera < len(there) and there[camera] for camera in cameras)

    def _without_collisions(self, boxes: Boxes3D, rows: list[int]) -> list[int]:
        """Those whose outline from above meets none of the scene's nor of an earlier one; boxes of no class count."""
        candidates = self.database.boxes[rows].as_tensor()[:, :7].double()
        there = boxes.as_tensor()[:, :7].double().cpu()
        meets = bev_intersection(torch.cat([there, candidates]), candidates) > 0
        free = ~meets[: len(there)].any(0)
        among = meets[len(there) :]
        kept: list[int] = []
        for place in range(len(rows)):
            if bool(free[place]) and not bool(among[kept, place].any()):
                kept.append(place)
        return [rows[place] for place in kept]

    def _with_points(self, scene: TrainingScene, pasted: Boxes3D, rows: Sequence[int]) -> TrainingScene:
        if scene.points is None:
            return scene
        outside = ~points_in_boxes(scene.points, pasted).any(0)
        added = torch.cat([self.database.points_of(row) for row in rows]).to(scene.points)
        return scene.replaced(points=torch.cat([scene.points[outside], added]))

    def _with_patches(self, scene: TrainingScene, pasted: Boxes3D, rows: Sequence[int]) -> TrainingScene:
        if scene.images is None or not self.opacity:
            return scene
        images = scene.images.clone()
        patches = [self.database.patches_of(row) for row in rows]
        boxes = Boxes3D.cat([pasted, scene.boxes])
        for camera in sorted({patch.camera for found in patches for patch in found}):
            if camera < len(images) and bool(scene.image_mask[camera]):
                shown = [next((p for p in found if p.camera == camera), None) for found in patches]
                layers = [*shown, *([None] * len(scene.boxes))]
                images[camera] = self._painted(scene, camera, boxes, layers, len(rows))
        return scene.replaced(images=images)

    def _painted(
        self, scene: TrainingScene, camera: int, boxes: Boxes3D, patches: list[Patch | None], pasted: int
    ) -> Tensor:
        """A picture with patches of the first `pasted` boxes, from far to near.

        Where an object of the scene is nearer than what is pasted, its part of the picture is put back.
        """
        assert scene.images is not None
        before = scene.images[camera]
        pose, intrinsics = scene.camera_from_ego[camera], scene.intrinsics[camera]
        corners = boxes.corners().to(intrinsics.dtype)
        views = image_boxes(corners, pose, intrinsics, (before.shape[1], before.shape[2])).tolist()
        depth = transform_points(boxes.centre.to(pose.dtype), pose)[:, 2]
        picture = before.clone()
        for row in depth.argsort(descending=True, stable=True).tolist():
            span, patch = pixel_span(views[row]), patches[row]
            if span is None or (patch is None and row < pasted):
                continue
            top, bottom, left, right = span
            below = picture[:, top:bottom, left:right]
            if patch is None:
                below.copy_(before[:, top:bottom, left:right])
                continue
            fitted = patch.pixels.to(picture.device)[None].float()
            if fitted.shape[2:] != below.shape[1:]:
                fitted = F.interpolate(fitted, below.shape[1:], mode="bilinear", antialias=True)
            mixed = self.opacity * fitted[0] + (1 - self.opacity) * below.float()
            below.copy_(mixed.round().clamp(0, 255).to(torch.uint8))
        return picture
