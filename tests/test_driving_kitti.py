"""KITTI objects: files, conventions, and AP40."""

from __future__ import annotations

import dataclasses
import math
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.ops import box_iou

from modalities.driving.geometry import image_boxes, points_in_boxes
from modalities.driving.kitti import (
    Kitti,
    KittiObject,
    boxes_of_objects,
    objects_of_boxes,
    read_calibration,
    read_objects,
    write_objects,
)
from modalities.driving.metrics_kitti import DIFFICULTIES, OVERLAPS, score_kitti
from zoo.errors import ConfigError, DataError

CALIBRATION = """P0: 700 0 600 0 0 700 180 0 0 0 1 0
P2: 700 0 600 42 0 700 180 0.7 0 0 1 0.005
R0_rect: 1 0 0 0 1 0 0 0 1
Tr_velo_to_cam: 0 -1 0 0.01 0 0 -1 -0.08 1 0 0 -0.27

"""
LABELS = """Car 0.00 0 1.00 500.00 150.00 700.00 250.00 1.50 1.60 4.00 1.00 1.60 20.00 0.30
Pedestrian 0.00 1 0.10 100.00 150.00 140.00 250.00 1.80 0.60 0.50 -6.00 1.70 12.00 -1.20
Tram 0.00 0 0.10 10.00 10.00 20.00 20.00 3.00 2.50 15.00 -20.00 1.70 40.00 1.57
DontCare -1 -1 -10 300.00 100.00 400.00 160.00 -1 -1 -1 -1000 -1000 -1000 -10
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for kind, text in (("calib", CALIBRATION), ("label_2", LABELS)):
        (tmp_path / "training" / kind).mkdir(parents=True)
        (tmp_path / "training" / kind / "000007.txt").write_text(text)
    (tmp_path / "training" / "velodyne").mkdir()
    points = np.array([[20.27, -1, -0.9, 0.5], [20, 30, 0, 1], [np.nan, 0, 0, 0]], "<f4")
    (tmp_path / "training" / "velodyne" / "000007.bin").write_bytes(points.tobytes())
    return tmp_path


def test_a_frame(root):
    data = Kitti(root)
    assert data.tokens() == ["000007"]
    sample = data.sample("000007")
    assert sample.points.shape == (2, 5) and sample.points[0, 3] == 0.5 and not sample.points[:, 4].any()
    boxes = sample.annotations.boxes
    assert sample.annotations.categories == ("Car", "Pedestrian", "Tram") and boxes.label.tolist() == [0, 1, -1]
    np.testing.assert_allclose(boxes.size[0], [4, 1.6, 1.5])
    # Camera (1, 1.6, 20) is 20 m ahead, 1 m to the right: rotation_y 0.3 heads to the right and a little backwards.
    np.testing.assert_allclose(boxes.centre[0], [20.27, -0.99, -(1.6 - 0.75) - 0.08], atol=1e-6)
    assert boxes.yaw[0].item() == pytest.approx(-math.pi / 2 - 0.3, abs=1e-6)
    assert points_in_boxes(torch.from_numpy(sample.points), boxes)[0].tolist() == [True, False]
    camera = sample.cameras[0]
    assert camera.image is None and camera.camera_from_ego.shape == (4, 4)
    # P2 as it is in the file, by hand.
    projection = np.array([[700, 0, 600, 42], [0, 700, 180, 0.7], [0, 0, 1, 0.005]])
    seen = projection @ np.array([1, 1.6, 20, 1.0])
    ours = camera.intrinsics @ (camera.camera_from_ego @ [20.27, -0.99, -1.68, 1])[:3]
    np.testing.assert_allclose(ours / ours[2], seen / seen[2], atol=1e-6)
    with pytest.raises(DataError, match="no picture"):
        camera.read()
    (root / "training/label_2/000007.txt").unlink()
    assert data.sample("000007").annotations is None


def test_boxes_to_lines_and_back(root, tmp_path):
    data = Kitti(root)
    calibration = data.calibration("000007")
    objects = [thing for thing in data.objects("000007") if thing.type in ("Car", "Pedestrian")]
    for turn in np.linspace(-math.pi + 0.01, math.pi, 25):
        turned = [dataclasses.replace(thing, rotation_y=float(turn)) for thing in objects]
        boxes = boxes_of_objects(turned, calibration).with_(score=torch.tensor([0.5, 0.25], dtype=torch.float64))
        flat = torch.tensor([thing.box for thing in objects], dtype=torch.float64)
        path = tmp_path / "found.txt"
        write_objects(path, objects_of_boxes(boxes, flat, calibration))
        for given, back in zip(turned, read_objects(path), strict=True):
            assert back.type == given.type and back.box == given.box and back.score in (0.5, 0.25)
            np.testing.assert_allclose([*back.size, *back.bottom], [*given.size, *given.bottom], atol=1e-3)
            assert math.cos(back.rotation_y - given.rotation_y) == pytest.approx(1, abs=1e-6)
            away = given.rotation_y - math.atan2(given.bottom[0], given.bottom[2])
            assert math.cos(back.alpha - away) == pytest.approx(1, abs=1e-6)
    with pytest.raises(DataError, match="in the picture"):
        objects_of_boxes(boxes, flat * math.nan, calibration)
    assert len(boxes_of_objects([], calibration)) == 0


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("label_2", lambda t: t.replace("0.30\n", "\n"), "000007.txt: line 1 is not an object"),
        ("label_2", lambda t: t.replace("20.00 0.30", "x 0.30"), "line 1"),
        ("label_2", lambda t: t.replace("20.00 0.30", "nan 0.30"), "line 1"),
        ("label_2", lambda t: t.replace("1.50 1.60 4.00", "1.50 -1.60 4.00"), "line 1: the size of a Car is negative"),
        ("label_2", lambda t: t + "\udcff", "cannot be read"),
        ("calib", lambda t: t.replace("P2:", "P9:"), "P2 must be 12"),
        ("calib", lambda t: t.replace("R0_rect: 1", "R0_rect: x"), "R0_rect is not numbers"),
        ("calib", lambda t: t.replace("R0_rect: 1", "R0_rect: 5"), "R0_rect is not a rotation"),
        ("calib", lambda t: t.replace("P2: 700", "P2: 0"), "P2 is not the projection"),
        ("calib", lambda t: t.replace("-0.27", ""), "Tr_velo_to_cam must be 12"),
        ("calib", lambda t: t.replace("-0.27", "inf"), "Tr_velo_to_cam must be 12"),
        ("velodyne", lambda t: t[:-3], "not whole points"),
    ],
)
def test_broken_files(root, kind, change, message):
    path = next((root / "training" / kind).iterdir())
    text = change(path.read_bytes().decode("latin-1"))
    path.write_bytes(text.encode("latin-1", "surrogateescape"))
    with pytest.raises(DataError, match=message):
        Kitti(root).sample("000007")


def test_what_is_not_there(root):
    with pytest.raises(DataError, match="not the layout of KITTI"):
        Kitti(root / "training")
    with pytest.raises(DataError, match="000008.txt: cannot be read"):
        Kitti(root).sample("000008")
    with pytest.raises(DataError, match="is a number such as"):
        Kitti(root).sample("../000007")
    with pytest.raises(DataError, match="not a regular file"):
        read_calibration(root)


def thing(number: int, type: str = "Car", score: float | None = None, **fields: object) -> KittiObject:
    """Objects side by side, that do not overlap; the first is number 0."""
    box = (100.0 * number, 100.0, 100.0 * number + 60, 200.0)
    default = KittiObject(type, 0.0, 0, 0.0, box, (1.5, 1.6, 4.0), (6.0 * number, 1.6, 20.0), 0.2, score)
    return dataclasses.replace(default, **fields)


def ap(truth: list[KittiObject], found: list[KittiObject], name: str = "Car") -> dict[str, dict[str, float]]:
    return score_kitti({"0": truth}, {"0": found}, classes=(name,))[name]


def test_perfect_detections():
    truth = [thing(i) for i in range(200)]
    scores = ap(truth, [thing(i, score=1 - i / 500) for i in range(200)])
    assert {kind: list(values.values()) for kind, values in scores.items()} == {kind: [1.0] * 3 for kind in OVERLAPS}
    # A known property of the official evaluation: recalls are placed at true positives.
    assert ap(truth[:40], [thing(i, score=1 - i / 500) for i in range(40)])["3d"]["easy"] == pytest.approx(39 / 40)
    assert ap(truth[:1], [thing(0, score=1)])["3d"]["easy"] == 0
    assert ap(truth, [])["2d"]["hard"] == 0 and ap([], [thing(0, score=1)])["bev"]["easy"] == 0


def test_ap40_is_that_of_a_plain_curve():
    """Where no label is contested, precision and recall follow from the ranked list alone."""
    rng = np.random.default_rng(0)
    truth = [thing(i) for i in range(150)]
    hits, values = rng.random(220) < 0.6, rng.permutation(np.linspace(0.01, 0.99, 220))
    hits[150:] = False
    found = [thing(i if hits[i] else 1000 + i, score=float(values[i])) for i in range(220)]
    right = hits[np.argsort(-values)]
    recall, precision = np.cumsum(right) / 150, np.cumsum(right) / np.arange(1, 221)
    # The rank at which the recall is nearest to each multiple of 1/40.
    steps = []
    for target in np.arange(41) / 40:
        if target <= recall[-1] + 0.5 / 40:
            steps.append(precision[np.flatnonzero(right)[np.abs(recall[right] - target).argmin()]])
    expected = sum(max(steps[i:]) for i in range(1, len(steps))) / 40
    scores = ap(truth, found)
    for kind in OVERLAPS:
        assert scores[kind]["moderate"] == pytest.approx(expected, abs=0.01)


def test_overlaps_needed():
    truth = [thing(i) for i in range(100)]

    def moved(**fields: object) -> dict[str, dict[str, float]]:
        return ap(truth, [dataclasses.replace(thing(i, score=0.5 + i / 1000), **fields) for i in range(100)])

    assert moved(size=(1.5, 1.6, 2.9))["3d"]["easy"] > 0.99 > moved(size=(1.5, 1.6, 2.7))["3d"]["easy"] == 0
    low = moved(size=(1.0, 1.6, 4.0))
    assert low["bev"]["easy"] > 0.99 and low["3d"]["easy"] == 0
    turned = moved(rotation_y=0.2 + math.pi)
    assert turned["3d"]["easy"] > 0.99
    people = [thing(i, "Pedestrian") for i in range(100)]
    small = [thing(i, "Pedestrian", 0.5, size=(1.5, 1.6, 2.1)) for i in range(100)]
    assert ap(people, small, "Pedestrian")["3d"]["easy"] > 0.9  # half is enough


def test_difficulties_and_what_is_ignored():
    clear = [thing(i) for i in range(100)]
    hidden = [thing(100 + i, occluded=1) for i in range(100)]
    truth = [*clear, *hidden]
    found = [thing(i, score=0.9 - i / 1000) for i in range(100)]
    scores = ap(truth, found)["3d"]
    assert scores["easy"] == 1 and scores["moderate"] == pytest.approx(0.5, abs=0.02) == scores["hard"]
    # Detections on labels that are too hard, on vans, and small ones are not wrong.
    extra = [thing(100 + i, score=0.95) for i in range(100)]
    assert ap(truth, [*found, *extra])["3d"]["easy"] == 1
    vans = [thing(300 + i, "Van") for i in range(50)]
    assert ap([*clear, *vans], [*found, *(thing(300 + i, score=0.99) for i in range(50))])["2d"]["easy"] == 1
    assert ap(clear, [*found, *(thing(300 + i, score=0.99) for i in range(50))])["2d"]["easy"] < 0.8
    tiny = (0.0, 0.0, 5.0, 20.0)
    small = [thing(400 + i, score=0.99, box=tiny) for i in range(50)]
    assert ap(clear, [*found, *small])["3d"]["hard"] == 1
    # Where nothing is labelled: excused in the picture alone.
    blank = thing(500, "DontCare", box=(30_000.0, 0.0, 40_000.0, 400.0), size=(-1, -1, -1), bottom=(-1000,) * 3)
    wrong = [thing(300 + i, score=0.99) for i in range(50)]
    excused = ap([*clear, blank], [*found, *wrong])
    assert excused["2d"]["easy"] == 1 and excused["3d"]["easy"] < 0.8
    truncated = ap([thing(i, truncated=0.4) for i in range(100)], found)["2d"]
    assert truncated["moderate"] == 0 and truncated["hard"] == 1
    assert set(scores) == set(DIFFICULTIES)


def test_what_cannot_be_scored():
    with pytest.raises(ConfigError, match="not Tram"):
        score_kitti({}, {}, classes=("Tram",))
    with pytest.raises(DataError, match="1 frames are only in one"):
        score_kitti({"0": []}, {})
    with pytest.raises(DataError, match="frame 0 have no scores"):
        score_kitti({"0": []}, {"0": [thing(0)]})


def test_real_frames(shared, tmp_path):
    archive = shared / "data" / "kitti_frames" / "kitti_frames.zip"
    if not archive.is_file():
        pytest.skip(f"no {archive}")
    with zipfile.ZipFile(archive) as file:
        file.extractall(tmp_path)
    data = Kitti(tmp_path)
    assert len(data.tokens()) == 6
    assert len([thing for thing in data.objects("004139") if thing.type == "Pedestrian"]) == 16
    with pytest.raises(DataError, match="calib/004139.txt"):
        data.sample("004139")
    overlaps = []
    truth = {}
    for token in ("000000", "000001", "000002", "000008"):
        sample = data.sample(token)
        picture = sample.cameras[0].read()
        boxes = sample.annotations.boxes.to(dtype=torch.float64)
        camera = sample.cameras[0]
        flat = image_boxes(
            boxes.corners(),
            torch.from_numpy(camera.camera_from_ego),
            torch.from_numpy(camera.intrinsics),
            picture.shape[:2],
        )
        truth[token] = [thing for thing in data.objects(token) if thing.type != "DontCare"]
        labelled = torch.tensor([thing.box for thing in truth[token]], dtype=torch.float64)
        overlaps += box_iou(labelled, flat).diagonal().tolist()
        assert points_in_boxes(torch.from_numpy(sample.points).double(), boxes).sum(1).min() >= 9
    assert len(overlaps) == 12 and min(overlaps) > 0.85 and sum(overlaps) / len(overlaps) > 0.93
