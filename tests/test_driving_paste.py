"""Objects of training scenes: collected, kept in a file, pasted into other scenes without collisions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from modalities.driving import objects
from modalities.driving.augment import TrainingScene
from modalities.driving.augment_paste import PasteObjects
from modalities.driving.boxes import Boxes3D
from modalities.driving.geometry import image_boxes, points_in_boxes
from modalities.driving.objects import ObjectDatabase, collect_objects, open_objects, pixel_span
from tests.driving_augment import rig_without_sensors, training_scene
from tests.driving_toys import CAMERAS, HEIGHT, WIDTH
from tests.polygons import intersection, rectangle
from zoo.errors import ConfigError, DataError

KINDS = 3
BIG = (6, 6, 6)


def scenes(count: int = 8) -> list[TrainingScene]:
    return [training_scene(seed, dtype=torch.float32) for seed in range(count)]


@pytest.fixture(scope="module")
def database() -> ObjectDatabase:
    return collect_objects(scenes())


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def key(points: torch.Tensor) -> set[tuple[float, ...]]:
    return {tuple(row) for row in points.tolist()}


def area(boxes: Boxes3D, first: int, second: int) -> float:
    shapes = [rectangle(*boxes.as_tensor()[row, [0, 1, 3, 4, 6]].tolist()) for row in (first, second)]
    return intersection(*shapes)


def test_objects_are_the_points_in_their_boxes():
    given = scenes(4)
    boxes = given[1].boxes
    given[1] = given[1].replaced(boxes=boxes.with_(label=torch.tensor([-1, 0, 2, 2])))
    # A box in the sky has no points; a scene without any sensor gives nothing.
    given.append(given[0].replaced(points=None, images=None))
    sky = Boxes3D.cat([given[2].boxes, boxes[:1].with_(centre=torch.tensor([[0.0, 0, 60]]))])
    given[2] = given[2].replaced(boxes=sky)
    found = collect_objects(given, min_points=5)
    expected = []
    for scene in given[:4]:
        inside = points_in_boxes(scene.points, scene.boxes)
        good = (inside.sum(1) >= 5) & (scene.boxes.label >= 0)
        expected += [(scene.boxes[[row]], scene.points[inside[row]]) for row in good.nonzero()[:, 0].tolist()]
    assert len(found) == len(expected) == 15 and found.counts(KINDS) == [
        sum(int(box.label) == label for box, _ in expected) for label in range(KINDS)
    ]
    counts = points_in_boxes(found.points, found.boxes)
    for row in range(len(found)):
        mine = found.points_of(row)
        assert counts[row, found.offsets[row] : found.offsets[row + 1]].all()
        (match,) = [pair for pair in expected if torch.equal(pair[0].centre, found.boxes.centre[[row]])]
        assert torch.equal(mine, match[1]) and int(match[0].label) == int(found.boxes.label[row])
        assert torch.equal(match[0].velocity.nan_to_num(9), found.boxes.velocity[[row]].nan_to_num(9))
    assert len(collect_objects(given, min_points=1000)) == 0
    assert len(collect_objects([rig_without_sensors()])) == 0


def test_patches_are_what_cameras_show(database):
    given = scenes()
    several = 0
    for row in range(0, len(database), 3):
        box = database.boxes[[row]]
        (scene,) = [s for s in given if (s.boxes.centre == box.centre).all(1).any()]
        patches = {patch.camera: patch.pixels for patch in database.patches_of(row)}
        several += len(patches)
        for camera in range(CAMERAS):
            pose, intrinsics = scene.camera_from_ego[camera], scene.intrinsics[camera]
            span = pixel_span(image_boxes(box.corners(), pose, intrinsics, (HEIGHT, WIDTH))[0].tolist())
            assert (span is None) == (camera not in patches)
            if span is not None:
                top, bottom, left, right = span
                assert torch.equal(patches[camera], scene.images[camera, :, top:bottom, left:right])
    assert several > len(database) / 3
    assert len(collect_objects(scenes(2), patches=False).patch_cameras) == 0
    masked = scenes(1)[0].replaced(image_mask=torch.tensor([True, False, False, False]))
    assert set(collect_objects([masked]).patch_cameras.tolist()) <= {0}


def test_no_more_objects_than_asked_for_and_each_with_the_same_chance():
    given = scenes(6)
    kept = torch.zeros(6)
    for seed in range(60):
        found = collect_objects(given, most=2, patches=False, seed=seed)
        assert found.counts(KINDS) == [2, 2, 2]
        for number, scene in enumerate(given):
            kept[number] += sum(bool((scene.boxes.centre == centre).all(1).any()) for centre in found.boxes.centre)
    assert kept.min() > 40 and kept.max() < 80  # 60 of each in the mean
    again = [collect_objects(given, most=2, patches=False).points for _ in range(2)]
    assert torch.equal(*again)
    with pytest.raises(DataError, match="5 and with 4 point features"):
        collect_objects([given[0], given[1].replaced(points=given[1].points[:, :4])])


@pytest.mark.parametrize("seed", range(6))
def test_pasted_objects_collide_with_nothing(database, seed):
    scene = training_scene(100 + seed, dtype=torch.float32)
    other = scene.boxes[:1].with_(centre=torch.tensor([[11.0, 0.0, 0.8]]), label=torch.tensor([-1]))
    scene = scene.replaced(boxes=Boxes3D.cat([scene.boxes, other]))
    after = PasteObjects(database, BIG)(scene, generator(seed))
    own, boxes = len(scene.boxes), after.boxes
    assert own < len(boxes)
    assert torch.equal(boxes[:own].as_tensor().nan_to_num(9), scene.boxes.as_tensor().nan_to_num(9))
    for second in range(own, len(boxes)):
        for first in range(second):
            assert area(boxes, first, second) < 1e-6
    counts = [(boxes.label == label).sum() for label in range(KINDS)]
    before = [(scene.boxes.label == label).sum() for label in range(KINDS)]
    assert all(count <= max(6, had) for count, had in zip(counts, before, strict=True))
    # Each pasted object has its own points and no others; of the scene's, those in its box alone have gone.
    pasted = boxes[list(range(own, len(boxes)))]
    inside = points_in_boxes(after.points, pasted)
    for number, box in enumerate(pasted.centre):
        (row,) = (database.boxes.centre == box).all(1).nonzero()[0].tolist()
        assert torch.equal(after.points[inside[number]], database.points_of(row))
        assert torch.equal(database.boxes.velocity[row].nan_to_num(9), pasted.velocity[number].nan_to_num(9))
    gone = points_in_boxes(scene.points, pasted).any(0)
    assert torch.equal(after.points[: int((~gone).sum())], scene.points[~gone])
    assert len(after.points) == int((~gone).sum()) + int(inside.sum())
    # The objects of the scene still have their points.
    assert torch.equal(
        points_in_boxes(after.points, scene.boxes).sum(1), points_in_boxes(scene.points, scene.boxes).sum(1)
    )
    again = PasteObjects(database, BIG)(scene, generator(seed))
    assert torch.equal(again.points, after.points) and torch.equal(again.images, after.images)


def test_a_scene_gets_the_number_it_lacks(database):
    empty = training_scene(dtype=torch.float32).replaced(boxes=Boxes3D.empty(), points=torch.zeros(0, 5))
    for numbers in ((0, 1, 0), (2, 0, 0), (0, 0, 0)):
        for seed in range(4):
            after = PasteObjects(database, numbers)(empty, generator(seed)).boxes.label.tolist()
            assert all(after.count(label) <= number for label, number in enumerate(numbers))
            assert set(after) == {label for label, number in enumerate(numbers) if number}
    full = training_scene(3, dtype=torch.float32)  # it has 2, 1 and 1
    assert PasteObjects(database, (2, 1, 1))(full, generator()) is full
    few = collect_objects(scenes(1))
    label = few.boxes.label.tolist()
    after = PasteObjects(few, BIG)(empty, generator()).boxes
    assert len(torch.unique(after.centre, dim=0)) == len(after) <= len(label)  # none comes twice
    assert len(PasteObjects(collect_objects([]), BIG)(empty, generator()).boxes) == 0


def test_pictures_show_what_was_pasted():
    """A car of one colour is pasted between a nearer and a farther object of the scene."""
    near, middle, far = ([x, 0.0, 1.5] for x in (4.0, 7.0, 10.5))
    size = [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [2.0, 3.0, 3.0]]
    boxes = Boxes3D.from_arrays([near, middle, far], size, [0.0] * 3, label=[1, 0, 1])
    base = training_scene(boxes=boxes, dtype=torch.float32)
    red = base.replaced(boxes=boxes[1:2], images=torch.full_like(base.images, 200))
    host = base.replaced(boxes=boxes[[0, 2]])
    step = PasteObjects(collect_objects([red]), (1, 0), opacity=1.0)
    after = step(host, generator())
    assert len(after.boxes) == 3
    corners, size = boxes.corners(), (HEIGHT, WIDTH)
    views = image_boxes(corners, host.camera_from_ego[0], host.intrinsics[0], size).tolist()
    spans = [pixel_span(view) for view in views]
    assert None not in spans
    shown = torch.full((HEIGHT, WIDTH), -1)
    for number in (2, 1, 0):
        top, bottom, left, right = spans[number]
        shown[top:bottom, left:right] = number
    picture, before = after.images[0], host.images[0]
    assert {number: int((shown == number).sum()) > 4 for number in (0, 1)} == {0: True, 1: True}
    assert (picture[:, shown == 1] == 200).all()
    assert torch.equal(picture[:, shown != 1], before[:, shown != 1])
    half = PasteObjects(step.database, (1, 0), opacity=0.5)(host, generator()).images[0]
    mixed = (0.5 * before[:, shown == 1].float() + 100).round()
    assert (half[:, shown == 1].float() - mixed).abs().max() <= 1
    bare = PasteObjects(step.database, (1, 0), opacity=0.0)(host, generator())
    assert torch.equal(bare.images, host.images) and torch.equal(bare.points, after.points) and len(bare.boxes) == 3
    dead = host.replaced(image_mask=torch.tensor([False, True, True, True]))
    assert torch.equal(step(dead, generator()).images[0], before)


def test_scenes_without_a_lidar_or_cameras(database):
    scene = training_scene(50, dtype=torch.float32)
    blind = PasteObjects(database, BIG)(scene.replaced(images=None), generator())
    assert blind.images is None and len(blind.boxes) > 4
    seen = PasteObjects(database, BIG)(scene.replaced(points=None), generator())
    assert seen.points is None and len(seen.boxes) > 4
    for centre in seen.boxes.centre[4:]:
        (row,) = (database.boxes.centre == centre).all(1).nonzero()[0].tolist()
        assert database.patches_of(row)
    # Objects of scenes without a lidar are those that cameras show; in one with a lidar they would leave no trace.
    pictured = collect_objects([one.replaced(points=None) for one in scenes()])
    assert len(pictured) == sum(bool(database.patches_of(row)) for row in range(len(database))) > 0
    assert all(pictured.patches_of(row) and not len(pictured.points_of(row)) for row in range(len(pictured)))
    assert len(PasteObjects(pictured, BIG)(scene.replaced(points=None), generator()).boxes) > 4
    assert len(PasteObjects(pictured, BIG)(scene, generator()).boxes) == 4
    # Without a trace nothing is pasted.
    for lost in (
        {"points": None, "images": None},
        {"points": None, "image_mask": torch.zeros(CAMERAS, dtype=torch.bool)},
    ):
        assert len(PasteObjects(database, BIG)(scene.replaced(**lost), generator()).boxes) == 4
    assert len(PasteObjects(database, BIG, opacity=0.0)(scene.replaced(points=None), generator()).boxes) == 4
    with pytest.raises(DataError, match="objects have 5 point features, the scene 4"):
        PasteObjects(database, BIG)(scene.replaced(points=scene.points[:, :4]), generator())
    for numbers, opacity in (((-1,), 0.5), ((2000,), 0.5), ((1.5,), 0.5), ((1,), 1.5)):
        with pytest.raises(ConfigError, match="augmentation: "):
            PasteObjects(database, numbers, opacity)


def test_file_of_objects(database, tmp_path):
    path = tmp_path / "new" / "objects.npz"
    database.save(path)
    loaded = ObjectDatabase.load(path)
    for name, tensor in database._arrays().items():
        assert torch.equal(loaded._arrays()[name].nan_to_num(9), tensor.nan_to_num(9)), name
    assert [p.name for p in path.parent.iterdir()] == ["objects.npz"]
    empty = collect_objects([])
    empty.save(path)
    assert len(ObjectDatabase.load(path)) == 0
    with pytest.raises(DataError, match="cannot write objects"):
        empty.save(path / "below")


def test_damaged_files_of_objects(database, tmp_path):
    path = tmp_path / "objects.npz"
    database.save(path)
    whole = path.read_bytes()
    for data in (b"", b"PK", whole[: len(whole) // 2], whole[:-30], whole.replace(b"labels", b"lables")):
        path.write_bytes(data)
        with pytest.raises(DataError):
            ObjectDatabase.load(path)
    arrays = {name: tensor.numpy() for name, tensor in database._arrays().items()}
    for name, value in (
        ("boxes", arrays["boxes"][:, :7]),
        ("boxes", arrays["boxes"][1:]),
        ("labels", arrays["labels"].astype(np.float32)),
        ("offsets", arrays["offsets"][::-1].copy()),
        ("offsets", arrays["offsets"] + 1),
        ("patch_offsets", arrays["patch_offsets"].astype(np.int32)),
        ("patch_shapes", -arrays["patch_shapes"]),
        ("pixels", arrays["pixels"][1:]),
        ("points", arrays["points"].astype(np.float64)),
        ("points", np.array([{}], dtype=object)),
    ):
        np.savez(path, **arrays | {name: value})
        with pytest.raises(DataError):
            ObjectDatabase.load(path)
    with pytest.raises(DataError):
        ObjectDatabase.load(tmp_path / "absent.npz")


def test_objects_are_collected_once(tmp_path, monkeypatch):
    calls = []

    def given() -> list[TrainingScene]:
        calls.append(1)
        return scenes(2)

    first = open_objects(given, ["sha", "train"], cache=tmp_path)
    assert len(open_objects(given, ["sha", "train"], cache=tmp_path)) == len(first) and len(calls) == 1
    open_objects(given, ["other", "train"], cache=tmp_path)
    open_objects(given, ["sha", "train"], cache=tmp_path, min_points=6)
    assert len(calls) == 3 and len(list(tmp_path.iterdir())) == 3
    for path in tmp_path.iterdir():
        path.write_bytes(b"damaged")
    assert len(open_objects(given, ["sha", "train"], cache=tmp_path)) == len(first) and len(calls) == 4
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "zoo"))
    open_objects(given, ["sha"])
    assert [path.parent.name for path in Path(tmp_path / "zoo").rglob("objects-*.npz")] == ["driving"]
    assert objects.__all__ == sorted(objects.__all__)
