"""Geometry of driving scenes: cameras, boxes in other conventions, points in boxes, overlaps, moved scenes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from modalities.driving.batch import DrivingBatch, DrivingInput
from modalities.driving.boxes import Boxes3D, pad_boxes
from modalities.driving.geometry import (
    boxes_from_devkit,
    boxes_to_devkit,
    image_boxes,
    points_in_boxes,
    project,
    unproject,
    wrap_angle,
)
from modalities.driving.geometry_scene import (
    LabelledInput,
    flip_scene,
    resize_intrinsics,
    rotate_scene,
    scale_scene,
    translate_scene,
)
from modalities.driving.iou import bev_intersection, iou_3d, iou_bev
from modalities.driving.rigid import invert_rigid, matrix_to_quaternion, quaternion_to_matrix, rigid
from tests.polygons import intersection, rectangle
from zoo.errors import ConfigError, DataError

SIZE = (90, 160)
YAWS = np.concatenate([np.linspace(-math.pi, math.pi, 73), [1e-9, -1e-9, math.pi - 1e-9]])


def cameras(count: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """Cameras all around, each a little tilted: intrinsics (V, 3, 3) and camera_from_ego (V, 4, 4), float64."""
    optical = np.array([[0.0, -1, 0], [0, 0, -1], [1, 0, 0]])  # x right, y down, z forward of x forward, y left, z up
    intrinsics, extrinsics = [], []
    for number in range(count):
        yaw, tilt = number * 2 * math.pi / count, 0.02 * number
        turn = quaternion_to_matrix([math.cos(yaw / 2), 0, 0, math.sin(yaw / 2)])
        lean = quaternion_to_matrix([math.cos(tilt), 0, math.sin(tilt), 0])
        ego_from_camera = np.eye(4)
        ego_from_camera[:3, :3] = turn @ lean @ optical.T
        ego_from_camera[:3, 3] = [1.5 + 0.1 * number, 0.2 * number, 1.6]
        extrinsics.append(invert_rigid(ego_from_camera))
        intrinsics.append([[100.0 + number, 0.3, 81], [0, 101, 44], [0, 0, 1]])
    return torch.tensor(intrinsics, dtype=torch.float64), torch.from_numpy(np.stack(extrinsics))


def some_boxes(count: int = 40, seed: int = 0, dtype: torch.dtype = torch.float64) -> Boxes3D:
    rng = np.random.default_rng(seed)
    angle, far = rng.uniform(-math.pi, math.pi, count), rng.uniform(8, 40, count)
    centre = np.stack([far * np.cos(angle), far * np.sin(angle), rng.normal(0.5, 0.5, count)], 1)
    velocity = rng.normal(0, 5, (count, 2))
    velocity[::7] = np.nan
    size, yaw = rng.uniform(0.5, 5, (count, 3)), rng.uniform(-math.pi, math.pi, count)
    return Boxes3D.from_arrays(centre, size, yaw, velocity, rng.integers(0, 10, count), dtype=dtype)


def some_scene(seed: int = 0) -> LabelledInput:
    generator = torch.Generator().manual_seed(seed)
    intrinsics, extrinsics = cameras()
    images = torch.rand(6, 3, *SIZE, generator=generator, dtype=torch.float64)
    points = torch.randn(200, 5, generator=generator, dtype=torch.float64) * 10
    return LabelledInput(DrivingInput(images, intrinsics, extrinsics, points), some_boxes(seed=seed))


def test_projection_and_its_inverse():
    intrinsics, extrinsics = cameras()
    points = torch.randn(500, 3, dtype=torch.float64) * 20
    seen = project(points, extrinsics, intrinsics, SIZE)
    assert seen.pixels.shape == (6, 500, 2) and seen.inside.any(1).all() and not seen.inside.all()
    back = unproject(seen.pixels, seen.depth, extrinsics, intrinsics)
    front = seen.depth > 0.1
    torch.testing.assert_close(back[front], points.expand(6, -1, -1)[front], rtol=0, atol=1e-9)
    by_hand = (intrinsics @ extrinsics[:, :3]) @ torch.cat([points, torch.ones(500, 1, dtype=torch.float64)], 1).T
    pixels = (by_hand[:, :2] / by_hand[:, 2:]).mT
    torch.testing.assert_close(seen.pixels[front], pixels[front])
    inside = front & (pixels >= -0.5).all(-1) & (pixels[..., 0] < 159.5) & (pixels[..., 1] < 89.5)
    assert torch.equal(seen.inside, inside)
    assert torch.isfinite(seen.pixels).all()  # also behind
    # Batches of scenes with cameras of their own.
    batched = project(points.expand(2, 1, -1, -1), extrinsics.expand(2, -1, -1, -1), intrinsics, SIZE)
    torch.testing.assert_close(batched.pixels[1], seen.pixels)


def test_a_point_straight_ahead_is_at_the_principal_point_and_left_is_left():
    intrinsics, extrinsics = cameras()
    centre = torch.linalg.inv(extrinsics[0])[:3, 3]
    ahead = torch.tensor([[10.0, 0, 0], [10, 1, 0], [10, 0, 1], [-10, 0, 0]], dtype=torch.float64) + centre
    pixels, depth, inside = project(ahead, extrinsics[0], intrinsics[0], SIZE)
    torch.testing.assert_close(pixels[0], intrinsics[0, :2, 2])
    assert depth[:3].tolist() == [10, 10, 10] and depth[3] == -10 and inside.tolist() == [True, True, True, False]
    assert pixels[1, 0] < pixels[0, 0] and pixels[2, 1] < pixels[0, 1]


def test_boxes_to_the_devkit_and_back_for_all_yaws():
    count = len(YAWS)
    boxes = Boxes3D.from_arrays(np.ones((count, 3)), np.tile([4.0, 2, 1.5], (count, 1)), YAWS, dtype=torch.float64)
    centre, wlh, quaternion = boxes_to_devkit(boxes)
    assert wlh[0].tolist() == [2, 4, 1.5]
    back = boxes_from_devkit(centre, wlh, quaternion)
    torch.testing.assert_close(back.size, boxes.size)
    torch.testing.assert_close(
        wrap_angle(back.yaw - boxes.yaw), torch.zeros(count, dtype=torch.float64), atol=1e-12, rtol=0
    )
    # The corners as the devkit has them: length along x, turned by the quaternion, moved to the centre.
    signs = np.array(
        [[1, 1, -1], [-1, 1, -1], [-1, -1, -1], [1, -1, -1], [1, 1, 1], [-1, 1, 1], [-1, -1, 1], [1, -1, 1]]
    )
    corners = (
        signs * wlh[:, None, [1, 0, 2]] / 2 @ quaternion_to_matrix(quaternion).transpose(0, 2, 1) + centre[:, None]
    )
    np.testing.assert_allclose(boxes.corners().numpy(), corners, atol=1e-12)
    negative = boxes_from_devkit(centre, wlh, -quaternion)  # the same rotation
    assert wrap_angle(negative.yaw - back.yaw).abs().max() < 1e-12


def test_quaternions():
    rng = np.random.default_rng(0)
    quaternions = rng.normal(size=(50, 4))
    quaternions = np.concatenate([quaternions, np.eye(4), [[0, 1, 1, 0]]])
    quaternions /= np.linalg.norm(quaternions, axis=1, keepdims=True)
    matrices = quaternion_to_matrix(quaternions)
    np.testing.assert_allclose(matrices @ matrices.transpose(0, 2, 1), np.tile(np.eye(3), (55, 1, 1)), atol=1e-12)
    for quaternion, matrix in zip(quaternions, matrices, strict=True):
        again = matrix_to_quaternion(matrix)
        assert again[0] >= 0 and abs(abs(again @ quaternion) - 1) < 1e-12
    quarter = quaternion_to_matrix([math.sqrt(0.5), 0, 0, math.sqrt(0.5)])
    np.testing.assert_allclose(quarter @ [1, 0, 0], [0, 1, 0], atol=1e-12)  # counter-clockwise
    matrix = rigid([1, 2, 3], quaternions[0])
    np.testing.assert_allclose(invert_rigid(matrix) @ matrix, np.eye(4), atol=1e-12)
    for bad in ([0, 0, 0, 0], [1, 0, 0], [math.nan, 0, 0, 1], "abcd", [2, 0, 0, 0], None):
        with pytest.raises(DataError, match="quaternion"):
            quaternion_to_matrix(bad)
    with pytest.raises(DataError, match="translation"):
        rigid([1, 2, math.inf], [1, 0, 0, 0])


def test_boxes_move_between_frames():
    boxes = some_boxes()
    matrix = rigid([100, -50, 2], [math.cos(0.6), 0, 0, math.sin(0.6)])
    moved = boxes.transform(matrix)
    by_hand = boxes.corners() @ torch.from_numpy(matrix[:3, :3].T) + torch.from_numpy(matrix[:3, 3])
    torch.testing.assert_close(moved.corners(), by_hand)
    torch.testing.assert_close(moved.velocity.norm(dim=1), boxes.velocity.norm(dim=1), equal_nan=True)
    back = moved.transform(invert_rigid(matrix))
    torch.testing.assert_close(back.corners(), boxes.corners())
    torch.testing.assert_close(back.velocity, boxes.velocity, equal_nan=True)
    for bad in (np.eye(3), np.diag([2.0, 2, 2, 1]), np.diag([1.0, -1, 1, 1])):
        with pytest.raises(DataError, match="transform"):
            boxes.transform(bad)


def _columns(labelled: LabelledInput) -> torch.Tensor:
    scene = labelled.scene
    return project(labelled.boxes.corners().reshape(-1, 3), scene.camera_from_ego, scene.intrinsics, SIZE).pixels


def _in_front(labelled: LabelledInput) -> torch.Tensor:
    corners = labelled.boxes.corners().reshape(-1, 3)
    return project(corners, labelled.scene.camera_from_ego, labelled.scene.intrinsics, SIZE).depth > 0.5


@pytest.mark.parametrize("change", ["rotate", "scale", "translate"])
def test_moved_scenes_look_the_same(change):
    before = some_scene()
    after = {
        "rotate": lambda: rotate_scene(before, 2.2),
        "scale": lambda: scale_scene(before, 1.07),
        "translate": lambda: translate_scene(before, (3, -2, 0.5)),
    }[change]()
    front = _in_front(before)
    torch.testing.assert_close(_columns(after)[front], _columns(before)[front], rtol=0, atol=1e-8)
    rotation = after.scene.camera_from_ego[:, :3, :3]
    torch.testing.assert_close(rotation @ rotation.mT, torch.eye(3, dtype=torch.float64).expand(6, 3, 3))
    # Points keep their boxes, and boxes really moved.
    inside = points_in_boxes(before.scene.points, _grown(before.boxes))
    assert inside.any() and torch.equal(points_in_boxes(after.scene.points, _grown(after.boxes)), inside)
    assert not torch.allclose(after.boxes.centre, before.boxes.centre)
    torch.testing.assert_close(after.scene.points[:, 3:], before.scene.points[:, 3:])
    assert after.scene.images is before.scene.images


def test_velocities_and_sizes_move_with_the_scene():
    before = some_scene()
    turned, scaled = rotate_scene(before, math.pi / 2).boxes, scale_scene(before, 2.0).boxes
    moving = ~before.boxes.velocity.isnan().any(1)
    vx, vy = before.boxes.velocity[moving].unbind(1)
    torch.testing.assert_close(turned.velocity[moving], torch.stack([-vy, vx], 1))
    torch.testing.assert_close(scaled.velocity[moving], before.boxes.velocity[moving] * 2)
    torch.testing.assert_close(scaled.size, before.boxes.size * 2)
    assert turned.velocity.isnan().any() and torch.equal(turned.velocity.isnan(), before.boxes.velocity.isnan())
    for factor in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="positive"):
            scale_scene(before, factor)


def _grown(boxes: Boxes3D) -> Boxes3D:
    """Boxes tall enough to hold points whatever their height."""
    size = boxes.size.clone()
    size[:, 2] = 200
    return boxes.with_(size=size)


@pytest.mark.parametrize("axis", ["x", "y"])
def test_mirrored_scenes_look_mirrored(axis):
    before = some_scene()
    after = flip_scene(before, axis)
    front = _in_front(before)
    # Corners come in another order: compare each box's set by sorting along the columns.
    mirrored = _columns(before).clone()
    mirrored[..., 0] = SIZE[1] - 1 - mirrored[..., 0]
    whole = front.unflatten(1, (-1, 8)).all(2)
    one, two = (pixels.unflatten(1, (-1, 8))[whole] for pixels in (mirrored, _columns(after)))
    for dimension in (0, 1):
        torch.testing.assert_close(two[..., dimension].sort(-1)[0], one[..., dimension].sort(-1)[0], rtol=0, atol=1e-8)
    assert torch.equal(after.scene.images, before.scene.images.flip(-1))
    assert (torch.linalg.det(after.scene.camera_from_ego[:, :3, :3]) > 0.99).all()
    inside = points_in_boxes(before.scene.points, _grown(before.boxes))
    assert torch.equal(points_in_boxes(after.scene.points, _grown(after.boxes)), inside)
    # A box that moves ahead keeps doing so.
    speed = before.boxes.velocity.norm(dim=1, keepdim=True)
    ahead = torch.stack([before.boxes.yaw.cos(), before.boxes.yaw.sin()], 1) * speed
    flipped = flip_scene(LabelledInput(before.scene, before.boxes.with_(velocity=ahead)), axis).boxes
    expected = torch.stack([flipped.yaw.cos(), flipped.yaw.sin()], 1) * speed
    torch.testing.assert_close(flipped.velocity, expected, equal_nan=True)
    twice = flip_scene(after, axis)
    torch.testing.assert_close(twice.scene.camera_from_ego, before.scene.camera_from_ego)
    torch.testing.assert_close(twice.scene.intrinsics, before.scene.intrinsics)
    torch.testing.assert_close(twice.boxes.corners(), before.boxes.corners())
    with pytest.raises(ConfigError, match="mirrored"):
        flip_scene(before, "z")


def test_resized_pictures():
    intrinsics, extrinsics = cameras()
    points = torch.tensor([[12.0, 3, 1]], dtype=torch.float64)
    before = project(points, extrinsics[0], intrinsics[0], SIZE).pixels[0]
    after = project(points, extrinsics[0], resize_intrinsics(intrinsics[0], (0.5, 0.25), (3, 2)), SIZE).pixels[0]
    expected = (before + 0.5) * torch.tensor([0.5, 0.25]) - 0.5 - torch.tensor([3.0, 2.0])
    torch.testing.assert_close(after, expected)


def test_image_boxes_are_cut_at_the_camera_and_the_border():
    intrinsics, extrinsics = cameras(1)
    camera = torch.linalg.inv(extrinsics[0])[:3, 3].numpy()
    centres = camera + np.array([[20, 0, 0], [2, 1.5, 0], [-20, 0, 0], [20, 500, 0]])
    boxes = Boxes3D.from_arrays(centres, np.tile([6.0, 2, 2], (4, 1)), np.zeros(4), dtype=torch.float64)
    found = image_boxes(boxes.corners(), extrinsics[0], intrinsics[0], SIZE)
    pixels = project(boxes.corners()[0], extrinsics[0], intrinsics[0], SIZE).pixels
    torch.testing.assert_close(found[0], torch.cat([pixels.amin(0), pixels.amax(0)]))
    assert found[1, 0] == 0 and 60 < found[1, 2] < 81  # beside the camera, in part behind it: the left border only
    assert found[2:].isnan().all()


def test_points_in_boxes():
    boxes = Boxes3D.from_arrays([[10, 0, 0], [0, 0, 0]], [[4, 2, 2], [2, 2, 2]], [math.pi / 2, 0], dtype=torch.float64)
    points = [[10, 1.9, 0], [10, 2.1, 0], [10.9, 0, 0.9], [11.1, 0, 0], [1, 1, 1], [0, 0, 1.01]]
    inside = points_in_boxes(torch.tensor(points, dtype=torch.float64), boxes)
    assert inside.tolist() == [[True, False, True, False, False, False], [False, False, False, False, True, False]]
    assert points_in_boxes(torch.zeros(3, 5), Boxes3D.empty()).shape == (0, 3)
    assert points_in_boxes(torch.zeros(0, 3), boxes.to(dtype=torch.float32)).shape == (2, 0)


def _reference(a: torch.Tensor, b: torch.Tensor) -> tuple[float, float, float]:
    first, second = (rectangle(*(box[i].item() for i in (0, 1, 3, 4, 6))) for box in (a, b))
    common = intersection(first, second)
    areas = [(box[3] * box[4]).item() for box in (a, b)]
    top, floor = min((x[2] + x[5] / 2).item() for x in (a, b)), max((x[2] - x[5] / 2).item() for x in (a, b))
    volume = common * max(0.0, top - floor)
    volumes = [box[3:6].prod().item() for box in (a, b)]
    return common, common / (sum(areas) - common), volume / (sum(volumes) - volume)


@pytest.mark.parametrize("case", ["random", "aligned", "same", "near", "nested", "small angles"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_overlaps_agree_with_clipped_polygons(case, dtype):
    generator = torch.Generator().manual_seed(1)
    draw = torch.rand(2, 16, 7, generator=generator, dtype=torch.float64)
    a, b = draw * torch.tensor([6.0, 6, 2, 5, 5, 3, 2 * math.pi]) + torch.tensor([0.0, 0, 0, 0.5, 0.5, 0.5, -math.pi])
    if case == "aligned":
        a[:, 6], b[:, 6] = (torch.arange(16) % 4) * math.pi / 2, 0
    elif case == "same":
        b = a.clone()
        b[::2, 6] += math.pi
    elif case == "near":  # edges that coincide but for rounding
        b = a.clone()
        b[:, 6] += torch.tensor([0, 1e-12, 1e-9, 1e-6] * 4)
        b[:, 0] += torch.tensor([0.0] * 4 + [1e-9] * 4 + [1e-6] * 8)
    elif case == "nested":
        b = a.clone()
        b[:, 3:6] *= torch.linspace(0.01, 3, 16)[:, None]
    elif case == "small angles":
        b[:, 6] = a[:, 6] + torch.logspace(-12, -1, 16)
    a, b = a.to(dtype), b.to(dtype)
    a[:, :2] += 50  # as far out as boxes are
    b[:, :2] += 50
    area, flat, solid = bev_intersection(a, b), iou_bev(a, b), iou_3d(a, b)
    assert flat.dtype == dtype and flat.shape == (16, 16)
    expected = torch.tensor([[_reference(x, y) for y in b.double()] for x in a.double()], dtype=torch.float64)
    for found, number, limit in ((area, 0, 2e-5), (flat, 1, 1e-5), (solid, 2, 1e-5)):
        assert (found.double() - expected[..., number]).abs().max() < limit
    assert (expected[..., 0] > 0).any()


def test_overlaps_of_batches_and_of_empty_boxes():
    boxes = torch.rand(3, 5, 9, dtype=torch.float64) * 4 + 0.5
    batched = iou_3d(boxes, boxes[:, :4])
    assert batched.shape == (3, 5, 4)
    for row in range(3):
        torch.testing.assert_close(batched[row], iou_3d(boxes[row], boxes[row, :4]))
    torch.testing.assert_close(batched.diagonal(dim1=1, dim2=2), torch.ones(3, 4, dtype=torch.float64))
    nothing = torch.zeros(2, 7)
    assert iou_bev(nothing, nothing).tolist() == [[0, 0], [0, 0]] and iou_bev(nothing[:0], nothing).shape == (0, 2)
    with pytest.raises(DataError, match="7 or more"):
        iou_bev(torch.zeros(2, 6), nothing)


def test_boxes_are_checked():
    good = some_boxes(3)
    assert len(good[[0, 2]]) == 2 and len(good[good.label >= 0]) == 3 and len(Boxes3D.cat([good, good])) == 6
    assert Boxes3D.empty(scored=True).score is not None and good.to_dict()["velocity"][0] is None
    bottom = good.bottom[:, 2] + good.size[:, 2] / 2
    torch.testing.assert_close(bottom, good.centre[:, 2])
    for change, what in (
        ({"yaw": torch.zeros(2)}, "yaw must be"),
        ({"label": torch.zeros(3)}, "label must be int64"),
        ({"size": -good.size}, "negative"),
        ({"centre": good.centre * math.nan}, "not finite"),
        ({"score": torch.zeros(3, 1)}, "score must be"),
        ({"yaw": [0, 0, 0]}, "tensor"),
    ):
        with pytest.raises(DataError, match=what):
            good.with_(**change)
    with pytest.raises(DataError, match="cannot be made"):
        Boxes3D.from_arrays(["a"], [1, 1, 1], [0])
    with pytest.raises(DataError, match="single box"):
        good[0]
    with pytest.raises(DataError, match="scores"):
        Boxes3D.cat([good, good.with_(score=torch.zeros(3))])


def test_padded_targets():
    one, two = some_boxes(3), some_boxes(5, seed=1)
    padded = pad_boxes([one, Boxes3D.empty(dtype=torch.float64), two], 6)
    assert padded.boxes.shape == (3, 6, 9) and padded.mask.sum(1).tolist() == [3, 0, 5]
    torch.testing.assert_close(padded.boxes[2, :5], two.as_tensor(), equal_nan=True)
    assert padded.labels[0, 3:].tolist() == [-1] * 3 and not padded.boxes[0, 3:].any()
    with pytest.raises(DataError, match="more than the 4"):
        pad_boxes([two], 4)
    with pytest.raises(DataError, match="no scenes"):
        pad_boxes([])


def test_batches():
    scene = some_scene().scene
    dark = scene._replace(images=None, points=None)
    half = scene._replace(image_mask=torch.tensor([True, False] * 3), points=scene.points[:7])
    batch = DrivingBatch.from_samples([scene, dark, half])
    assert len(batch) == 3 and batch.cameras == 6 and batch.offsets.tolist() == [0, 200, 200, 207]
    assert batch.image_mask.sum(1).tolist() == [6, 0, 3] and not batch.images[1].any()
    lidar = DrivingBatch.from_samples([scene._replace(images=None)] * 2)
    assert lidar.images is None and not lidar.image_mask.any()
    camera = DrivingBatch.from_samples([scene._replace(points=None)]).to("cpu", torch.float32)
    assert camera.points is None and camera.offsets.tolist() == [0, 0] and camera.images.dtype == torch.float32
    assert camera.intrinsics.dtype == torch.float64
    away = [DrivingInput(*(None if part is None else part.to("meta") for part in one)) for one in (scene, dark)]
    assert {tensor.device.type for tensor in vars(DrivingBatch.from_samples(away)).values()} == {"meta"}
    with pytest.raises(DataError, match="no scenes"):
        DrivingBatch.from_samples([])
    with pytest.raises(DataError, match="different images"):
        DrivingBatch.from_samples([scene, scene._replace(images=scene.images[..., :10])])
    with pytest.raises(DataError, match="offsets must rise"):
        DrivingBatch(None, batch.intrinsics, batch.camera_from_ego, batch.points, batch.offsets + 1, batch.image_mask)
    with pytest.raises(DataError, match="image_mask"):
        DrivingBatch(None, batch.intrinsics, batch.camera_from_ego, None, batch.offsets, batch.image_mask.float())
