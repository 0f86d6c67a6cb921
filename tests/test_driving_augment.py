"""Augmentation of driving scenes: what a point is in the pictures, the boxes and the points stays one thing."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from modalities.driving.augment import TrainingScene, drawn, run
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
from modalities.driving.boxes import Boxes3D
from modalities.driving.geometry import points_in_boxes, wrap_angle
from tests.driving_augment import STEPS, marks, rig_without_sensors, shown, training_scene
from tests.driving_toys import CAMERAS, HEIGHT, WIDTH
from zoo.errors import ConfigError, DataError

RANGE = (-12.0, -8.0, -3.0, 12.0, 8.0, 5.0)
MOVES: dict[str, Any] = {
    "flip x": FlipScene(1.0, 0.0),
    "flip y": FlipScene(0.0, 1.0),
    "flip both": FlipScene(1.0, 1.0),
    "rotate": RotateScene(180.0),
    "scale": ScaleScene(0.5, 2.0),
    "translate": TranslateScene((1.0, 2.0, 0.3)),
}
PICTURES: dict[str, Any] = {
    "larger": ResizeCropImages(None, (1.2, 1.6), 0.2),
    "smaller": ResizeCropImages(None, (0.6, 0.9)),
    "other size": ResizeCropImages((20, 64), (0.9, 1.2), 0.1),
    "flip": FlipImages(1.0),
    "rotate": RotateImages(25.0),
}
EVERY = [*MOVES.values(), *PICTURES.values(), JitterColours(hue=0.1), DropPoints(), DropSensors(0.5, 0.5)]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def moved(scene: TrainingScene, step: Any, seed: int, places: torch.Tensor) -> torch.Tensor:
    """Where a step takes places (..., 3): as points, which it moves like those of the lidar."""
    flat = torch.cat([places.reshape(-1, 3), torch.zeros(places.numel() // 3, 2).to(places)], 1)
    points = step(scene.replaced(points=flat), generator(seed)).points
    return points[:, :3].view(places.shape)


@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("seed", range(3))
def test_pictures_show_a_place_as_before_after_the_scene_moved(name, seed):
    scene, step = training_scene(seed), MOVES[name]
    places = marks(scene)
    before, depth = shown(scene, places)
    after, depth_after = shown(step(scene, generator(seed)), moved(scene, step, seed, places))
    assert not before.isnan().any() and not after.isnan().any()
    torch.testing.assert_close(after, before, rtol=0, atol=1e-6)
    factor = depth_after / depth
    torch.testing.assert_close(factor, factor[:1, :1].expand_as(factor))
    assert name == "scale" or abs(factor[0, 0] - 1) < 1e-9


@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("seed", range(3))
def test_boxes_move_with_their_points(name, seed):
    scene, step = training_scene(seed), MOVES[name]
    after = step(scene, generator(seed))
    assert after.points is not None and scene.points is not None
    inside = points_in_boxes(scene.points, scene.boxes)
    assert (inside.sum(1) >= 25).all()
    assert torch.equal(points_in_boxes(after.points, after.boxes), inside)
    # A box that is where it will be in a second, and the end of its heading, are moved as points.
    boxes = scene.boxes.with_(velocity=scene.boxes.velocity.nan_to_num(0.5))
    after = step(scene.replaced(boxes=boxes), generator(seed))
    zero = torch.zeros(len(boxes), 1).to(boxes.velocity)
    heading = torch.stack([boxes.yaw.cos(), boxes.yaw.sin()], 1)
    for change, expected in (
        (boxes.velocity, after.boxes.velocity),
        (heading, heading.new_zeros(len(boxes), 2)),
    ):
        ends = moved(scene, step, seed, boxes.centre + torch.cat([change, zero], 1))
        difference = (ends - after.boxes.centre)[:, :2]
        if change is heading:
            yaw = torch.atan2(difference[:, 1], difference[:, 0])
            assert wrap_angle(yaw - after.boxes.yaw).abs().max() < 1e-9
        else:
            torch.testing.assert_close(difference, expected)
    assert torch.equal(step(scene, generator(seed)).boxes.velocity.isnan(), scene.boxes.velocity.isnan())
    ratio = after.boxes.size / scene.boxes.size
    torch.testing.assert_close(ratio, ratio[:1, :1].expand_as(ratio))
    assert torch.equal(after.points[:, 3:], scene.points[:, 3:]) and torch.equal(after.boxes.label, boxes.label)


@pytest.mark.parametrize("name", PICTURES)
@pytest.mark.parametrize("seed", range(3))
def test_places_project_to_the_same_content_after_pictures_changed(name, seed):
    scene = training_scene(seed)
    places = marks(scene)
    before, depth = shown(scene, places)
    after_scene = PICTURES[name](scene, generator(seed))
    after, depth_after = shown(after_scene, places)
    known = ~after.isnan().any(-1)
    assert known.float().mean() > 0.4
    # Eight bits, of the step and of resizing; a pixel more or less would be 5 or 7 grey levels.
    assert (after - before)[known].abs().max() < 1.6
    assert torch.equal(depth, depth_after) and torch.equal(after_scene.camera_from_ego, scene.camera_from_ego)
    assert not torch.equal(after_scene.intrinsics, scene.intrinsics)
    assert after_scene.images.shape[2:] == ((20, 64) if name == "other size" else (HEIGHT, WIDTH))
    assert after_scene.boxes is scene.boxes and after_scene.points is scene.points


@pytest.mark.parametrize("seed", range(2))
def test_all_steps_one_after_another(seed):
    scene = training_scene(seed)
    places = marks(scene)
    steps = [*PICTURES.values(), *MOVES.values()]
    source = generator(seed)
    after = run(steps, scene, source)
    points = torch.cat([places.reshape(-1, 3), torch.zeros(places[..., 0].numel(), 2).to(places)], 1)
    ends = run(steps, scene.replaced(points=points), generator(seed)).points[:, :3].view(places.shape)
    before, _ = shown(scene, places)
    colours, _ = shown(after, ends)
    difference = (colours - before).abs()
    known = difference[..., 2] < 1  # Blue is the same all over a picture: no black from beyond the borders is in it.
    assert known.sum() > 20 and difference[known].max() < 4
    again = run(steps, scene, generator(seed))
    for name in ("images", "intrinsics", "camera_from_ego", "points"):
        assert torch.equal(getattr(after, name), getattr(again, name))
    assert torch.equal(after.boxes.as_tensor().nan_to_num(9), again.boxes.as_tensor().nan_to_num(9))
    other = run(steps, scene, source)
    assert not torch.equal(other.points, after.points)


def test_each_camera_has_a_draw_of_its_own():
    scene = training_scene()
    for step in (ResizeCropImages(None, (1.0, 1.5)), RotateImages(20.0), JitterColours()):
        after = step(scene, generator())
        changed = after.intrinsics if not isinstance(step, JitterColours) else after.images[:, :2].double().mean((2, 3))
        assert len(torch.unique(changed.flatten(1), dim=0)) == CAMERAS
    flips = torch.stack([FlipImages(0.3)(scene, generator(seed)).intrinsics[:, 0, 0] < 0 for seed in range(200)])
    assert 0.25 < flips.float().mean() < 0.35 and (flips.any(1) & ~flips.all(1)).any()


def test_a_cut_is_at_the_lower_edge_and_black_beyond_borders():
    scene = training_scene()
    after = ResizeCropImages((16, WIDTH), (1.0, 1.0))(scene, generator())
    assert torch.equal(after.images, scene.images[:, :, HEIGHT - 16 :])
    small = ResizeCropImages(None, (0.5, 0.5))(scene, generator())
    assert small.images[:, :, : HEIGHT // 2].eq(0).all() and small.images[:, :2, HEIGHT // 2 :].any()
    far = ResizeCropImages(None, (0.1, 0.1), 1.0)(scene, generator())
    assert far.images.shape == scene.images.shape


def test_colours_change_within_their_strengths():
    scene = training_scene()
    bright = JitterColours(0.5, 0.0, 0.0)
    for seed in range(5):
        after = bright(scene, generator(seed))
        low = (after.images.float() < 250) & (scene.images > 50)
        ratio = after.images.float()[low] / scene.images.float()[low]
        assert ratio.min() > 0.48 and ratio.max() < 1.52
    changed = JitterColours(0.3, 0.4, 0.5)(scene, generator()).images
    for camera, (_, *shares) in enumerate(torch.rand(CAMERAS, 5, generator=generator()).double().tolist()):
        b, c, s = (1 + strength * (2 * share - 1) for strength, share in zip((0.3, 0.4, 0.5), shares, strict=False))
        pixels = scene.images[camera].double() * b
        grey = torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64)
        middle = torch.einsum("chw,c->hw", pixels, grey).mean()
        pixels = middle + c * (pixels - middle)
        pixels = torch.lerp(torch.einsum("chw,c->hw", pixels, grey).expand_as(pixels), pixels, s)
        assert (changed[camera].double() - pixels.round().clamp(0, 255)).abs().max() <= 1
    assert torch.equal(JitterColours(0.5, 0.5, 0.5, 0.1, probability=0.0)(scene, generator()).images, scene.images)
    assert torch.equal(JitterColours(0, 0, 0)(scene, generator()).images, scene.images)
    hue = JitterColours(0, 0, 0, 0.5)(scene, generator()).images.float()
    torch.testing.assert_close(hue.amax(1), scene.images.float().amax(1), rtol=0, atol=2)  # the value of HSV stays


def test_range():
    points = torch.tensor([[-12.0, -8, -3, 0, 0], [12, 0, 0, 0, 0], [11.9, 7.9, 4.9, 0, 0], [0, 0, 5, 0, 0]])
    boxes = Boxes3D.from_arrays([[11.9, -8, 90], [12, 0, 0], [0, 8.1, 0]], [[1, 1, 1]] * 3, [0, 0, 0], label=[3, 4, 5])
    scene = rig_without_sensors().replaced(points=points, boxes=boxes)
    after = LimitRange(RANGE)(scene, generator())
    assert torch.equal(after.points, points[[0, 2]]) and after.boxes.label.tolist() == [3]
    assert LimitRange(RANGE)(rig_without_sensors(), generator()).points is None


def test_dropped_points():
    scene = training_scene()
    shares = []
    for seed in range(40):
        after = DropPoints(0.5)(scene, generator(seed)).points
        rows = [(scene.points == point).all(1).nonzero()[0, 0].item() for point in after[::20]]
        assert rows == sorted(rows)
        shares.append(1 - len(after) / len(scene.points))
    assert 0 <= min(shares) < 0.15 and 0.35 < max(shares) < 0.6
    assert torch.equal(DropPoints(0.5, 0.0)(scene, generator()).points, scene.points)


def test_dead_sensors():
    scene = training_scene()
    for seed in range(5):
        dead = DropSensors(1.0, 1.0)(scene, generator(seed))
        assert not dead.image_mask.any() and not dead.images.any() and torch.equal(dead.points, scene.points)
        blind = DropSensors(1.0, 1.0)(scene.replaced(points=None), generator(seed))
        assert blind.image_mask.sum() == 1
        assert torch.equal(blind.images[blind.image_mask], scene.images[blind.image_mask])
        assert not blind.images[~blind.image_mask].any()
        lidar = DropSensors(0.0, 1.0)(scene, generator(seed))
        assert lidar.points.shape == (0, 5) and lidar.image_mask.all() and len(lidar.boxes) == len(scene.boxes)
    alone = scene.replaced(images=None)
    assert len(DropSensors(0.0, 1.0)(alone, generator()).points)
    one = scene.replaced(points=None, image_mask=torch.tensor([False, True, False, False]))
    assert DropSensors(1.0, 0.0)(one, generator()).image_mask.tolist() == [False, True, False, False]
    masks = torch.stack([DropSensors(0.3, 0.0)(scene, generator(seed)).image_mask for seed in range(200)])
    assert 0.65 < masks.float().mean() < 0.75
    off = [len(DropSensors(0.0, 0.3)(scene, generator(seed)).points) == 0 for seed in range(200)]
    assert 40 < sum(off) < 80


@pytest.mark.parametrize("case", ["nothing", "no cameras", "no lidar", "empty lidar", "no boxes", "no pictures"])
def test_scenes_that_lack_something(case):
    scene = training_scene(dtype=torch.float32)
    changes: dict[str, Any] = {
        "no lidar": {"points": None},
        "empty lidar": {"points": torch.zeros(0, 5)},
        "no boxes": {"boxes": Boxes3D.empty()},
        "no pictures": {"images": None},
    }
    if case in changes:
        scene = scene.replaced(**changes[case])
    else:
        scene = rig_without_sensors(0 if case == "no cameras" else CAMERAS)
    after = run([*EVERY, LimitRange(RANGE)], scene, generator())
    assert (after.images is None) == (scene.images is None) and (after.points is None) == (scene.points is None)
    assert len(after.boxes) <= len(scene.boxes) and after.intrinsics.shape == scene.intrinsics.shape
    assert after.intrinsics.isfinite().all() and after.camera_from_ego.isfinite().all()


def test_steps_refuse_what_they_cannot_do():
    for make in (
        lambda: FlipScene(1.5),
        lambda: RotateScene(-1.0),
        lambda: RotateScene(math.nan),
        lambda: ScaleScene(0.0, 1.0),
        lambda: ScaleScene(1.1, 0.9),
        lambda: TranslateScene((0.0, math.inf, 0.0)),
        lambda: LimitRange((0.0, 0.0, 0.0, 1.0, 0.0, 1.0)),
        lambda: LimitRange((0.0, 1.0)),
        lambda: DropPoints(2.0),
        lambda: DropSensors(-0.1),
        lambda: ResizeCropImages((0, 3)),
        lambda: ResizeCropImages(None, (1.0, math.inf)),
        lambda: FlipImages(math.nan),
        lambda: RotateImages(math.inf),
        lambda: JitterColours(hue=0.6),
        lambda: JitterColours(brightness=2.0),
    ):
        with pytest.raises(ConfigError, match="augmentation: "):
            make()


def test_training_scenes_are_checked():
    scene = training_scene()
    for changes, words in (
        ({"images": scene.images.float()}, "uint8"),
        ({"images": scene.images[:2]}, "images must be"),
        ({"image_mask": torch.ones(4)}, "image_mask must be"),
        ({"image_mask": torch.tensor(True)}, "image_mask must be"),
        ({"intrinsics": scene.intrinsics[:, :2]}, "intrinsics must be"),
        ({"camera_from_ego": scene.camera_from_ego.long()}, "camera_from_ego must be"),
        ({"points": scene.points[:, :2]}, "points must be"),
        ({"points": scene.points.long()}, "points must be"),
    ):
        with pytest.raises(DataError, match=words):
            scene.replaced(**changes)
    back = TrainingScene.of(scene.labelled())
    assert back.images is scene.images and torch.equal(back.image_mask, scene.image_mask)
    plain = scene.labelled()
    assert TrainingScene.of(plain._replace(scene=plain.scene._replace(image_mask=None))).image_mask.all()
    values = drawn(generator(), 1000, -2.0, 3.0)
    assert -2 <= min(values) < -1.9 and 2.9 < max(values) < 3 and values == drawn(generator(), 1000, -2.0, 3.0)
    assert STEPS[0] * WIDTH < 256 and STEPS[1] * HEIGHT < 256
