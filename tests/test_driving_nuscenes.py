"""nuScenes: key frames, sweeps and boxes of a synthetic drive and of the one real key frame."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.ops import box_iou

from modalities.driving.augment import TrainingScene, run
from modalities.driving.augment_paste import PasteObjects
from modalities.driving.augment_scene import FlipScene, RotateScene, ScaleScene, TranslateScene
from modalities.driving.boxes import Boxes3D
from modalities.driving.geometry import image_boxes, points_in_boxes, project, wrap_angle
from modalities.driving.metrics import Detections
from modalities.driving.nuscenes.classes import (
    ATTRIBUTES,
    CLASS_RANGES,
    DETECTION_CLASSES,
    attributes_of,
    default_attribute,
)
from modalities.driving.nuscenes.dataset import NuScenes
from modalities.driving.nuscenes.splits import SPLITS, official_scenes
from modalities.driving.nuscenes.truth import detection_truth, global_detections
from modalities.driving.objects import collect_objects
from tests.driving_tables import INTRINSICS, OBJECTS, SIZE, STEP_US, SWEEPS, pose_at, world_points, write_drive
from zoo.errors import ConfigError, DataError

SIMULATED = ("car", "truck", "bus", "pedestrian", "bicycle", "traffic_cone", "barrier")


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_drive(tmp_path_factory.mktemp("drive"))


def test_samples_and_splits(drive):
    data = NuScenes(drive)
    assert data.version == "v1.0-mini" and len(data) == 8
    assert data.sample_tokens() == [f"{scene}-{i}" for scene in ("scene-0061", "scene-0103") for i in range(4)]
    assert data.sample_tokens("mini_val") == [f"scene-0103-{i}" for i in range(4)]
    assert data.sample_tokens("train") == [f"scene-0061-{i}" for i in range(4)]
    with pytest.raises(ConfigError, match="none of its scenes"):
        data.sample_tokens("test")
    with pytest.raises(ConfigError, match="no split 'vla'"):
        data.sample_tokens("vla")


def test_own_splits(tmp_path):
    write_drive(tmp_path, scenes=("a", "b"), frames=1)
    path = tmp_path / "v1.0-mini" / "splits.json"
    path.write_text(json.dumps({"val": ["b"], "fold1": ["a"]}))
    data = NuScenes(tmp_path)
    assert data.sample_tokens("val") == ["b-0"] and data.sample_tokens("fold1") == ["a-0"]
    path.write_text(json.dumps({"val": "b"}))
    with pytest.raises(DataError, match="splits.json: must be"):
        NuScenes(tmp_path).sample_tokens("val")


def test_official_splits():
    sizes = {split: len(official_scenes(split)) for split in SPLITS}
    assert sizes == {"train": 700, "val": 150, "test": 150, "mini_train": 8, "mini_val": 2}
    scenes = [set(official_scenes(split)) for split in ("train", "val", "test")]
    assert len(set.union(*scenes)) == 1000
    assert set(official_scenes("mini_train")) <= scenes[0] | scenes[1]
    with pytest.raises(ConfigError, match="no split"):
        official_scenes("dev")


def test_sweeps_are_moved_with_the_car(drive):
    sample = NuScenes(drive).sample("scene-0061-2", sweeps=5)
    assert sample.points is not None and sample.points.shape == (5 * 300, 5)  # without the car itself and no returns
    seconds = 2 * STEP_US * 1e-6
    np.testing.assert_allclose(sample.global_from_ego, pose_at(seconds), atol=1e-9)
    world = sample.points[:, :3].astype(np.float64) @ sample.global_from_ego[:3, :3].T + sample.global_from_ego[:3, 3]
    np.testing.assert_allclose(world.reshape(5, 300, 3), np.broadcast_to(world_points(), (5, 300, 3)), atol=1e-4)
    ages = sample.points[:, 4].reshape(5, 300)
    np.testing.assert_allclose(ages, np.arange(5)[:, None] * STEP_US * 1e-6 / SWEEPS * np.ones(300), atol=2e-6)
    np.testing.assert_allclose(sample.points[:300, 3], np.arange(300) % 256 / 255, atol=1e-6)
    # At the start of a drive there is nothing before.
    assert len(NuScenes(drive).sample("scene-0061-0").points) == 300
    assert len(NuScenes(drive, min_distance=0).sample("scene-0061-0").points) == 301
    with pytest.raises(ConfigError, match="sweeps"):
        NuScenes(drive).sample("scene-0061-0", sweeps=0)


def test_cameras_see_standing_points_where_they_are(drive):
    sample = NuScenes(drive).sample("scene-0061-2")
    front, back = sample.cameras
    assert (front.name, back.name) == ("CAM_FRONT", "CAM_BACK") and front.size == SIZE
    assert front.read().shape == (*SIZE, 3) and front.timestamp < sample.timestamp < back.timestamp
    # By hand: from the world through the pose of the car at the time of the camera.
    from tests.driving_tables import MOUNTINGS

    camera = np.linalg.inv(pose_at(2 * STEP_US * 1e-6 - 0.036) @ MOUNTINGS["CAM_FRONT"])
    world = world_points() @ camera[:3, :3].T + camera[:3, 3]
    pixels = world @ np.array(INTRINSICS).T
    seen = project(
        torch.from_numpy(sample.points[:300, :3]).double(),
        torch.from_numpy(front.camera_from_ego),
        torch.from_numpy(front.intrinsics),
        SIZE,
    )
    inside = seen.inside.numpy()
    assert inside.sum() > 20
    np.testing.assert_allclose(seen.pixels.numpy()[inside], (pixels[:, :2] / pixels[:, 2:])[inside], atol=1e-2)
    # With one pose for all it would be visibly wrong: the car moves 0.3 m in that time.
    lidar_pose = np.linalg.inv(pose_at(2 * STEP_US * 1e-6) @ MOUNTINGS["CAM_FRONT"])
    wrong = (world_points() @ lidar_pose[:3, :3].T + lidar_pose[:3, 3]) @ np.array(INTRINSICS).T
    assert np.abs(seen.pixels.numpy()[inside] - (wrong[:, :2] / wrong[:, 2:])[inside]).max() > 0.5


def test_boxes_and_their_velocities(drive):
    data = NuScenes(drive)
    annotations = data.annotations("scene-0061-1")
    assert annotations is not None and len(annotations) == len(OBJECTS)
    assert [annotations.boxes.label.tolist(), list(annotations.categories)] == [
        [0, 5, 9, -1, 7, 7, -1],
        [row[0] for row in OBJECTS],
    ]
    assert list(annotations.attributes) == [row[1] for row in OBJECTS]
    assert annotations.num_lidar_points.tolist() == [row[6] for row in OBJECTS]
    assert annotations.visibility.tolist() == [4] * len(OBJECTS)
    np.testing.assert_allclose(annotations.boxes.velocity, [row[3] for row in OBJECTS], atol=1e-9)
    np.testing.assert_allclose(annotations.boxes.centre[0], [622, 1009.5, 1])
    np.testing.assert_allclose(annotations.boxes.size[0], [4.5, 1.9, 1.6])
    np.testing.assert_allclose(annotations.boxes.yaw, [row[5] for row in OBJECTS], atol=1e-9)
    for end in (0, 3):  # one-sided at the ends
        np.testing.assert_allclose(data.annotations(f"scene-0061-{end}").boxes.velocity[0], [4, -1], atol=1e-9)
    sample = data.sample("scene-0061-1")
    moved = sample.annotations.boxes.transform(sample.global_from_ego)
    torch.testing.assert_close(moved.centre.double(), annotations.boxes.centre, rtol=0, atol=1e-3)
    turned = wrap_angle(moved.yaw.double() - annotations.boxes.yaw)
    assert turned.abs().max() < 1e-3
    assert sample.annotations.boxes.centre.norm(dim=1).max() < 40
    subset = NuScenes(drive, classes=SIMULATED).annotations("scene-0061-1")
    assert subset.boxes.label.tolist() == [0, 3, 6, -1, 4, 4, -1]
    kept = subset.select(subset.boxes.label.numpy() >= 0)
    assert len(kept) == 5 and kept.categories[1] == "human.pedestrian.adult"


def test_velocity_is_unknown_across_gaps_and_for_single_annotations(tmp_path):
    def change(tables):
        for sample in tables["sample"]:
            if sample["token"].endswith("-3"):
                sample["timestamp"] += 1_200_000  # 1.7 s after the last but one

    write_drive(tmp_path / "gap", scenes=("a",), change=change)
    data = NuScenes(tmp_path / "gap")
    assert np.isnan(data.velocity("i-a-0-3")).all()  # one-sided: 1.7 s are too many
    np.testing.assert_allclose(data.velocity("i-a-0-2"), [4 / 2.2, -1 / 2.2])  # central: 2.2 s are not
    write_drive(tmp_path / "single", scenes=("a",), frames=1)
    assert np.isnan(NuScenes(tmp_path / "single").velocity("i-a-0-0")).all()


def test_partial_copies(tmp_path):
    def no_labels(tables):
        for name in ("sample_annotation", "instance", "category", "attribute", "visibility", "map", "log", "scene"):
            del tables[name]

    write_drive(tmp_path / "test", scenes=("a",), frames=2, change=no_labels)
    sample = NuScenes(tmp_path / "test").sample("a-1")
    assert sample.annotations is None and sample.scene == "" and len(sample.points) == 4 * 300

    def bare(tables):
        del tables["attribute"], tables["visibility"], tables["map"]
        for record in tables["sample_annotation"]:
            record["visibility_token"] = ""

    root = write_drive(tmp_path / "bare", scenes=("a",), frames=2, change=bare)
    shutil.rmtree(root / "sweeps")
    sample = NuScenes(root).sample("a-1")
    assert set(sample.annotations.attributes) == {""} and not sample.annotations.visibility.any()
    assert len(sample.points) == 300 and not sample.points[:, 4].any()
    (root / "samples/CAM_BACK/a-1.jpg").unlink()
    with pytest.raises(DataError, match="no such picture.*CAM_BACK"):
        NuScenes(root).sample("a-1")
    masked = NuScenes(root, missing_images="mask").sample("a-1")
    assert masked.cameras[1].image is None and masked.cameras[0].image is not None
    with pytest.raises(DataError, match="no picture"):
        masked.cameras[1].read()

    def no_lidar(tables):
        tables["sample_data"] = [row for row in tables["sample_data"] if "LIDAR" not in row["filename"]]

    sample = NuScenes(write_drive(tmp_path / "dark", scenes=("a",), frames=1, change=no_lidar)).sample("a-0")
    assert sample.points is None and len(sample.cameras) == 2


def test_without_a_lidar_what_is_found_and_what_is_scored_are_at_one_time(tmp_path):
    def cameras_alone(tables):
        tables["sample_data"] = [row for row in tables["sample_data"] if "LIDAR" not in row["filename"]]

    data = NuScenes(write_drive(tmp_path / "drive", change=cameras_alone))
    for number, token in enumerate(data.sample_tokens("mini_val")):
        sample = data.sample(token)
        assert sample.points is None and sample.annotations is not None
        front = next(camera for camera in sample.cameras if camera.name == "CAM_FRONT")
        seconds = number * STEP_US * 1e-6 + (front.timestamp - sample.timestamp) * 1e-6
        np.testing.assert_allclose(sample.global_from_ego, pose_at(seconds), atol=1e-6)
        truth, own = detection_truth(data, [token])[token], {token: Detections(sample.annotations.boxes)}
        lifted = global_detections(own, data)[token].boxes
        torch.testing.assert_close(lifted.centre, truth.boxes.centre, atol=1e-4, rtol=0)
        assert truth.origin == pytest.approx(tuple(sample.global_from_ego[:2, 3]))


def test_names():
    assert set(CLASS_RANGES) == set(DETECTION_CLASSES) and len(ATTRIBUTES) == 8
    for name in DETECTION_CLASSES:
        for speed in (0.0, 5.0, float("nan")):
            assert default_attribute(name, speed) in (attributes_of(name) or ("",))
    assert default_attribute("bus", 0) == "vehicle.stopped" and default_attribute("car", 3) == "vehicle.moving"


@pytest.fixture(scope="module")
def real(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    archive = shared / "data" / "nuscenes_one_sample" / "nuscenes_one_sample.zip"
    if not archive.is_file():
        pytest.skip(f"no {archive}")
    root = tmp_path_factory.mktemp("real")
    with zipfile.ZipFile(archive) as file:
        file.extractall(root)
    return root


def test_the_real_key_frame(real):
    info = json.loads((real / "infos.json").read_text())["data_list"][0]
    data = NuScenes(real)
    (token,) = data.sample_tokens()
    assert token == "ca9a282c9e77460f8360f564131a8af5"
    sample = data.sample(token)
    truth = sample.annotations
    assert truth is not None and len(truth) == 69 and int((truth.boxes.label < 0).sum()) == 1
    assert len(NuScenes(real, min_distance=0).sample(token).points) == 34_688
    # Points counted in the boxes agree with the labels.
    counted = points_in_boxes(torch.from_numpy(sample.points), truth.boxes).sum(1).numpy()
    agree = np.abs(counted - truth.num_lidar_points) <= np.maximum(2, 0.1 * truth.num_lidar_points)
    assert agree.sum() >= 68
    # The tables hold the boxes of the info file.
    given = np.array([instance["bbox_3d"] for instance in info["instances"]])
    boxes = Boxes3D.from_arrays(given[:, :3], given[:, 3:6], given[:, 6], dtype=torch.float64)
    boxes = boxes.transform(np.array(info["lidar_points"]["lidar2ego"]))
    torch.testing.assert_close(truth.boxes.centre.double(), boxes.centre, rtol=0, atol=1e-4)
    torch.testing.assert_close(truth.boxes.size.double(), boxes.size, rtol=0, atol=1e-5)
    assert wrap_angle(truth.boxes.yaw.double() - boxes.yaw).abs().max() < 2e-3  # the tilt of the car
    assert truth.boxes.velocity.isnan().all()
    # Their projections land on the two-dimensional boxes of every camera.
    found = []
    for camera in sample.cameras:
        assert camera.read().shape == (900, 1600, 3)
        flat = image_boxes(
            truth.boxes.corners().double(),
            torch.from_numpy(camera.camera_from_ego),
            torch.from_numpy(camera.intrinsics),
            (900, 1600),
        )
        expected = torch.tensor([row["bbox"] for row in info["cam_instances"][camera.name]], dtype=torch.float64)
        found.append(box_iou(expected, flat).nan_to_num(0).amax(1))
    overlaps = torch.cat(found)
    assert len(overlaps) == 84 and overlaps.min() > 0.8 and overlaps.median() > 0.94


def test_the_real_key_frame_augmented(real):
    data = NuScenes(real)
    sample = data.sample(data.sample_tokens()[0])
    scene = TrainingScene(
        None,
        torch.ones(6, dtype=torch.bool),
        torch.stack([torch.from_numpy(camera.intrinsics) for camera in sample.cameras]),
        torch.stack([torch.from_numpy(camera.camera_from_ego) for camera in sample.cameras]),
        torch.from_numpy(sample.points).double(),
        sample.annotations.boxes.to(dtype=torch.float64),
    )
    inside = points_in_boxes(scene.points, scene.boxes)
    steps = [FlipScene(1.0, 1.0), RotateScene(45.0), ScaleScene(), TranslateScene()]
    moved = run(steps, scene, torch.Generator().manual_seed(0))
    assert torch.equal(points_in_boxes(moved.points, moved.boxes), inside)
    before, after = (
        project(place.boxes.centre, place.camera_from_ego, place.intrinsics, (900, 1600)) for place in (scene, moved)
    )
    front = before.depth > 2
    torch.testing.assert_close(after.pixels[front], before.pixels[front])  # mirrored twice
    # Its objects with five points or more, all found again where they were.
    plain = scene.replaced(boxes=sample.annotations.boxes, points=torch.from_numpy(sample.points))
    found = collect_objects([plain])
    counts = inside.sum(1)[scene.boxes.label >= 0]
    assert len(found) == int((counts >= 5).sum()) and abs(len(found.points) - int(counts[counts >= 5].sum())) <= 2
    bare = plain.replaced(boxes=Boxes3D.empty(), points=plain.points[~inside.any(0)])
    again = PasteObjects(found, (100,) * 10)(bare, torch.Generator().manual_seed(0))
    assert 0 < len(again.boxes) <= len(found)
    rows = torch.cdist(again.boxes.centre, found.boxes.centre).argmin(1)
    expected = [len(found.points_of(row)) for row in rows.tolist()]
    assert points_in_boxes(again.points, again.boxes).sum(1).tolist() == expected
