"""Detection metrics and submissions of nuScenes: by hand, against numbers recorded from the devkit, and the devkit."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from modalities.driving.boxes import Boxes3D
from modalities.driving.metrics import ERRORS, Detections, DetectionScores, DetectionTruth, score_detections
from modalities.driving.nuscenes.classes import DETECTION_CLASSES
from modalities.driving.nuscenes.dataset import NuScenes
from modalities.driving.nuscenes.truth import detection_truth, global_detections
from modalities.driving.submission import Modalities, read_submission, write_submission
from tests.driving_scores import crowded_drive, guesses
from tests.driving_tables import write_drive
from zoo.errors import ConfigError, DataError

# What `nuscenes.eval.detection` (devkit 1.2.0, detection_cvpr_2019) says about `guesses(crowded_drive(...))`: AP at
# 0.5, 1, 2 and 4 m, then ATE, ASE, AOE, AVE, AAE. Recorded with `test_the_devkit_says_the_same`.
NAN = math.nan
DEVKIT = {
    "car": [0.13183704, 0.2439503, 0.44484608, 0.61944422, 0.55933805, 0.17219337, 0.80898828, 1.20577256, 0.63762396],
    "truck": [0.07555838, 0.24535336, 0.46034487, 0.46034487, 0.62921238, 0.19732811, 0.423271, 1.02404383, 0.5875441],
    "bus": [0.22044231, 0.30465253, 0.43050525, 0.4633394, 0.42045367, 0.16562245, 0.44407004, 1.21690636, 0.7999785],
    "trailer": [0.07771346, 0.26857511, 0.50878566, 0.52516445]
    + [0.52301913, 0.15315264, 0.43727759, 1.09204869, 0.86981384],
    "construction_vehicle": [0.0245414, 0.21910887, 0.41056781, 0.44378445]
    + [0.64403928, 0.18151515, 0.41240556, 1.13034916, 0.30259655],
    "pedestrian": [0.01832815, 0.13534456, 0.29229004, 0.32938128]
    + [0.71183249, 0.27675122, 0.45108165, 1.65793097, 0.76060429],
    "motorcycle": [0.17599095, 0.39319414, 0.50982865, 0.56714009]
    + [0.41635503, 0.16675611, 0.54980283, 1.54370757, 0.55173109],
    "bicycle": [0.24679436, 0.49755971, 0.6300423, 0.6300423]
    + [0.44665628, 0.14136055, 0.1289462, 1.24108542, 0.48980629],
    "traffic_cone": [0.12653612, 0.2021785, 0.49375906, 0.49375906, 0.66698951, 0.1427612, NAN, NAN, NAN],
    "barrier": [0.11320213, 0.1982351, 0.41463796, 0.58996116, 0.53962103, 0.16484425, 0.20626866, NAN, NAN],
}
DEVKIT_MEANS = {
    "mAP": 0.3409266365416367,
    "NDS": 0.39185671293237834,
    "mATE": 0.5557516849422843,
    "mASE": 0.176228505838035,
    "mAOE": 0.42912353483896637,
    "mAVE": 1.2639805711661998,
    "mAAE": 0.6249623277651147,
}


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> NuScenes:
    return crowded_drive(tmp_path_factory.mktemp("crowded"))


def truth_of(data: NuScenes) -> dict[str, DetectionTruth]:
    return detection_truth(data, data.sample_tokens())


def _rows(scores: DetectionScores) -> dict[str, list[float]]:
    return {
        name: [*scores.class_ap[name].values(), *(scores.class_errors[name][error] for error in ERRORS)]
        for name in scores.class_ap
    }


def test_scores_are_those_recorded_from_the_devkit(crowded):
    scores = score_detections(truth_of(crowded), guesses(crowded))
    for name, expected in DEVKIT.items():
        np.testing.assert_allclose(_rows(scores)[name], expected, atol=1e-6, err_msg=name)
    found = scores.to_dict()
    for name, value in DEVKIT_MEANS.items():
        assert found[name] == pytest.approx(value, abs=1e-6)
    assert found["AP_car"] == pytest.approx(np.mean(DEVKIT["car"][:4]), abs=1e-6)


def test_scores_in_the_frame_of_the_car_are_the_same(crowded):
    """But for the tilt of the car, a hundredth of a radian: within 1e-2."""
    truth, found = truth_of(crowded), guesses(crowded)
    local_truth, local = {}, {}
    for token, (boxes, attributes) in found.items():
        frame_from_global = np.linalg.inv(crowded.ego_pose(token))
        local_truth[token] = DetectionTruth.of(crowded.annotations(token, frame_from_global))
        local[token] = Detections(boxes.transform(frame_from_global), attributes)
    one, two = score_detections(truth, found), score_detections(local_truth, local)
    assert abs(one.mean_ap - two.mean_ap) < 1e-2 and abs(one.nds - two.nds) < 1e-2
    back = score_detections(truth, global_detections(local, crowded))
    assert abs(one.mean_ap - back.mean_ap) < 1e-6 and abs(one.nds - back.nds) < 1e-3


def test_test_sets_have_no_truth(tmp_path):
    root = write_drive(tmp_path, scenes=("a",), frames=1, change=lambda tables: tables.pop("sample_annotation"))
    with pytest.raises(DataError, match="no annotations"):
        truth_of(NuScenes(root))


def test_a_submission_comes_back_and_scores_the_same(crowded, tmp_path):
    found = guesses(crowded)
    path = tmp_path / "found.json"
    write_submission(path, found, Modalities(use_camera=True, use_lidar=True))
    back = read_submission(path)
    assert back.modalities == Modalities(use_camera=True, use_lidar=True) and list(back.results) == list(found)
    for token, (boxes, _) in found.items():
        again = back.results[token].boxes
        torch.testing.assert_close(again.corners(), boxes.corners())
        torch.testing.assert_close(again.velocity, boxes.velocity)
        assert torch.equal(again.label, boxes.label) and torch.equal(again.score, boxes.score)
    assert _rows(score_detections(truth_of(crowded), back.results))["car"][:4] == pytest.approx(DEVKIT["car"][:4])


@pytest.mark.slow
def test_the_devkit_says_the_same(crowded, tmp_path):
    """Needs nuscenes-devkit: `pip install --no-deps nuscenes-devkit` and what it imports."""
    pytest.importorskip("nuscenes", reason="nuscenes-devkit is not installed")
    from nuscenes import NuScenes as Official
    from nuscenes.eval.detection.config import config_factory
    from nuscenes.eval.detection.evaluate import DetectionEval

    path = tmp_path / "found.json"
    found = guesses(crowded)
    write_submission(path, found, Modalities(use_lidar=True))
    official = Official("v1.0-mini", str(crowded.dataroot), verbose=False)
    config = config_factory("detection_cvpr_2019")
    metrics, _ = DetectionEval(official, config, str(path), "mini_val", str(tmp_path / "out"), verbose=False).evaluate()
    result = metrics.serialize()
    scores = score_detections(truth_of(crowded), found)
    assert result["mean_ap"] == pytest.approx(scores.mean_ap, abs=1e-3)
    assert result["nd_score"] == pytest.approx(scores.nds, abs=1e-3)
    keys = ("trans_err", "scale_err", "orient_err", "vel_err", "attr_err")
    for name, row in _rows(scores).items():
        errors = [result["label_tp_errors"][name][key] for key in keys]
        expected = [*(result["label_aps"][name][distance] for distance in (0.5, 1.0, 2.0, 4.0)), *errors]
        np.testing.assert_allclose(row, expected, atol=1e-3, err_msg=name)
        np.testing.assert_allclose(DEVKIT[name], expected, atol=1e-6, err_msg=name)
    for token in crowded.sample_tokens():
        record = official.get("sample", token)
        velocities = [official.box_velocity(annotation)[:2] for annotation in record["anns"]]
        np.testing.assert_allclose(crowded.annotations(token).boxes.velocity, velocities, atol=1e-9)
    from nuscenes.utils.data_classes import LidarPointCloud

    token = crowded.sample_tokens()[-1]
    cloud, ages = LidarPointCloud.from_file_multisweep(
        official, official.get("sample", token), "LIDAR_TOP", "LIDAR_TOP", nsweeps=10
    )
    finite = np.isfinite(cloud.points[:3]).all(0)
    sample = crowded.sample(token, sweeps=10)
    mounting = sample.ego_from_lidar
    expected = cloud.points[:3, finite].T @ mounting[:3, :3].T + mounting[:3, 3]
    np.testing.assert_allclose(sample.points[:, :3], expected, atol=1e-3)
    np.testing.assert_allclose(sample.points[:, 4], ages[0, finite], atol=1e-5)


def boxes_at(*places: tuple[float, float], score: list[float] | None = None, **fields: object) -> Boxes3D:
    count = len(places)
    defaults: dict[str, object] = {"size": [[4.0, 2, 1.5]] * count, "yaw": [0.0] * count, "velocity": [[0, 0]] * count}
    return Boxes3D.from_arrays([[x, y, 0] for x, y in places], score=score, **(defaults | fields), dtype=torch.float64)


def score(truth: Boxes3D, found: Boxes3D, **options: object) -> DetectionScores:
    settings = {"classes": ("car",)} | options
    return score_detections({"a": DetectionTruth(truth)}, {"a": Detections(found)}, **settings)


def test_by_hand():
    truth = boxes_at((10, 0), (20, 0))
    perfect = score(truth, boxes_at((10, 0), (20, 0), score=[0.9, 0.8]))
    assert perfect.mean_ap == pytest.approx(1) and perfect.errors == pytest.approx(
        {"ATE": 0, "ASE": 0, "AOE": 0, "AVE": 0, "AAE": 1}  # no attribute is known
    )
    assert perfect.nds == pytest.approx((5 + 4) / 10)
    # Found within 1 m only, and half of them: recall 0.5 at precision 1 for 2 and 4 m.
    half = score(truth, boxes_at((10, 1.5), score=[0.9]))
    flat = pytest.approx(40 / 90, abs=1e-9)  # recalls 0.11 to 0.50 of 0.11 to 1.00
    assert half.class_ap["car"] == {0.5: 0, 1.0: 0, 2.0: flat, 4.0: flat} and half.errors["ATE"] == 1.5
    # The better-scored prediction takes the box; the nearer one is then a false positive.
    taken = score(boxes_at((10, 0)), boxes_at((10, 0.1), (10, 1), score=[0.5, 0.9]))
    assert taken.errors["ATE"] == pytest.approx(1)
    # Equal scores: the later box comes first.
    tied = score(boxes_at((10, 0)), boxes_at((10, 0.1), (10, 0.4), score=[0.5, 0.5]))
    assert tied.errors["ATE"] == pytest.approx(0.4)
    turned = score(boxes_at((10, 0), yaw=[3.1]), boxes_at((10, 0), yaw=[-3.1], size=[[2, 2, 1.5]], score=[1]))
    assert turned.errors["AOE"] == pytest.approx(2 * math.pi - 6.2) and turned.errors["ASE"] == pytest.approx(0.5)
    moving = score(boxes_at((10, 0), velocity=[[3, 4]]), boxes_at((10, 0), score=[1]))
    assert moving.errors["AVE"] == pytest.approx(5) and moving.nds == pytest.approx((5 + 3) / 10)
    unknown = score(boxes_at((10, 0), velocity=[[NAN, NAN]]), boxes_at((10, 0), score=[1]))
    assert unknown.errors["AVE"] == 1


def test_what_counts():
    far = score(boxes_at((10, 0), (50.5, 0)), boxes_at((10, 0), (50.5, 0), (60, 0), score=[0.5, 0.9, 0.9]))
    assert far.mean_ap == pytest.approx(1)
    near = score(boxes_at((10, 0), (30, 0)), boxes_at((10, 0), score=[0.5]), ranges={"car": 20.0})
    assert near.mean_ap == pytest.approx(1)
    found = {"a": Detections(boxes_at((10, 0), score=[0.5]))}
    empty = DetectionTruth(boxes_at((10, 0), (20, 0)), num_points=np.array([5, 0]))
    assert score_detections({"a": empty}, found, classes=("car",)).mean_ap == pytest.approx(1)
    from_afar = DetectionTruth(boxes_at((10, 0)), origin=(70.0, 0.0))
    assert score_detections({"a": from_afar}, found, classes=("car",)).mean_ap == 0
    rack = boxes_at((10, 0))
    parked = DetectionTruth(boxes_at((10, 0), (20, 0)), bike_racks=rack)
    for name, expected in (("bicycle", 1.0), ("pedestrian", 40 / 90)):
        guess = {"a": Detections(boxes_at((20, 0), score=[0.5]))}
        assert score_detections({"a": parked}, guess, classes=(name,)).mean_ap == pytest.approx(expected)
    barrier = score(boxes_at((10, 0)), boxes_at((10, 0), yaw=[math.pi], score=[1]), classes=("barrier",))
    assert barrier.errors["AOE"] == pytest.approx(0) and math.isnan(barrier.class_errors["barrier"]["AVE"])
    assert barrier.errors["AVE"] == 1  # no class has it
    none = score(boxes_at((10, 0)), Boxes3D.empty(scored=True))
    assert none.mean_ap == 0 and none.nds == 0 and set(none.errors.values()) == {1}
    absent = score(boxes_at((10, 0)), boxes_at((10, 0), score=[1]), classes=("car", "bus"))
    assert absent.mean_ap == pytest.approx(0.5) and absent.class_errors["bus"]["ATE"] == 1


def test_attributes():
    truth = DetectionTruth(boxes_at((10, 0), (20, 0), (30, 0)), ("vehicle.moving", "", "vehicle.parked"))
    boxes = boxes_at((10, 0), (20, 0), (30, 0), score=[0.9, 0.8, 0.7])
    found = Detections(boxes, ("vehicle.parked", "vehicle.parked", "vehicle.parked"))
    scores = score_detections({"a": truth}, {"a": found}, classes=("car",))
    confidences = np.interp(np.linspace(0, 1, 101), [1 / 3, 2 / 3, 1], [0.9, 0.8, 0.7])[11:]
    expected = np.interp(-confidences, [-0.9, -0.8, -0.7], [1, 1, 0.5]).mean()
    assert scores.errors["AAE"] == pytest.approx(expected)


def test_what_cannot_be_scored(tmp_path):
    truth, good = boxes_at((10, 0)), boxes_at((10, 0), score=[0.5])
    for found, message in (
        (truth, "no scores"),
        (good.with_(label=torch.tensor([1])), "none of the 1 classes"),
        (Boxes3D.cat([good] * 501), "at most 500"),
    ):
        with pytest.raises(DataError, match=message):
            score(truth, found)
    with pytest.raises(DataError, match="1 have no predictions .a., 1 predicted ones"):
        score_detections({"a": DetectionTruth(truth)}, {"b": Detections(good)})
    with pytest.raises(DataError, match="2 attributes"):
        score_detections({"a": DetectionTruth(truth)}, {"a": Detections(good, ("", ""))})
    with pytest.raises(ConfigError, match="no evaluation range for tram"):
        score(truth, good, classes=("car", "tram"))
    with pytest.raises(ConfigError, match="error distance"):
        score(truth, good, distances=(1.0,))


def test_writing_what_models_give(tmp_path):
    path = tmp_path / "found.json"
    boxes = boxes_at((10, 0), (20, 0), score=[0.5, 0.25], velocity=[[NAN, NAN], [3, 0]], label=[3, 0])
    classes = ("car", "truck", "bus", "pedestrian")
    write_submission(
        path, {"a": Detections(boxes), "b": Detections(Boxes3D.empty(scored=True))}, Modalities(), classes=classes
    )
    content = json.loads(path.read_text())
    assert content["results"]["b"] == [] and content["meta"]["use_radar"] is False
    first, second = content["results"]["a"]
    assert first["velocity"] == [0, 0] and first["attribute_name"] == "pedestrian.standing"
    assert second["attribute_name"] == "vehicle.moving" and second["size"] == [2, 4, 1.5]
    assert second["rotation"] == [1, 0, 0, 0] and second["detection_name"] == "car"
    assert read_submission(path, classes=classes).results["a"].boxes.label.tolist() == [3, 0]
    with pytest.raises(DataError, match="detection_name 'pedestrian' is none of car"):
        read_submission(path, classes=("car",))
    for bad, message in (
        (boxes.with_(score=None), "needs scores"),
        (boxes.with_(label=torch.tensor([3, 4])), "box 1 of a has the label 4"),
        (boxes.with_(score=boxes.score * 4), "detection_score must be 0 to 1"),
        (boxes.with_(size=boxes.size * 0), "size must be positive"),
    ):
        with pytest.raises(DataError, match=message):
            write_submission(tmp_path / "bad.json", {"a": Detections(bad)}, Modalities(), classes=classes)
    assert not (tmp_path / "bad.json").exists()


BOX = {
    "sample_token": "a",
    "translation": [1, 2, 3],
    "size": [1, 2, 3],
    "rotation": [1, 0, 0, 0],
    "velocity": [0, 0],
    "detection_name": "car",
    "detection_score": 0.5,
    "attribute_name": "",
}
META = dict.fromkeys(("use_camera", "use_lidar", "use_radar", "use_map", "use_external"), False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sample_token": "b"}, "its sample_token is 'b'"),
        ({"translation": [1, 2]}, "translation must be 3"),
        ({"translation": [1, 2, 10**400]}, "translation must be 3"),
        ({"translation": [1, 2, True]}, "translation must be 3"),
        ({"size": [1, -2, 3]}, "size must be positive"),
        ({"rotation": [0, 0, 0, 0]}, "quaternion"),
        ({"velocity": None}, "velocity must be 2"),
        ({"detection_name": "tram"}, "'tram' is none of"),
        ({"detection_name": ["car"]}, "is none of"),
        ({"detection_score": 1.5}, "detection_score"),
        ({"detection_score": "high"}, "detection_score"),
        ({"attribute_name": "vehicle.flying"}, "attribute_name"),
    ],
)
def test_bad_boxes_in_files(tmp_path, change, message):
    path = tmp_path / "found.json"
    path.write_text(json.dumps({"meta": META, "results": {"a": [BOX, BOX | change]}}))
    with pytest.raises(DataError, match=f"box 1 of sample 'a'.*{message}"):
        read_submission(path)


@pytest.mark.parametrize(
    "content",
    [
        [],
        {"results": {}},
        {"meta": META, "results": []},
        {"meta": META | {"use_map": 1}, "results": {}},
        {"meta": META, "results": {"a": {}}},
        {"meta": META, "results": {"a": [7]}},
        {"meta": META, "results": {"a": [BOX] * 501}},
    ],
)
def test_bad_files(tmp_path, content):
    path = tmp_path / "found.json"
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match="found.json"):
        read_submission(path)
    path.write_text(json.dumps({"meta": META, "results": {"a": [BOX]}})[:-5])
    with pytest.raises(DataError, match="cannot be read as JSON"):
        read_submission(path)


def test_the_truth_as_predictions_is_perfect(tmp_path):
    """Through files: all frames of a drive, truth written as a submission and read back."""
    data = NuScenes(write_drive(tmp_path, scenes=("a",), frames=3))
    truth, found = truth_of(data), {}
    for token in data.sample_tokens():
        annotations = data.annotations(token)
        kept = annotations.select(annotations.boxes.label.numpy() >= 0)
        boxes = kept.boxes.with_(score=torch.ones(len(kept), dtype=torch.float64))
        found[token] = Detections(boxes, kept.attributes)
    write_submission(tmp_path / "truth.json", found, Modalities())
    scores = score_detections(truth, read_submission(tmp_path / "truth.json").results)
    present = {"car", "pedestrian", "bicycle"}  # the barrier has no points
    assert {name for name in DETECTION_CLASSES if scores.class_ap[name][0.5] > 0.99} == present
    assert all(scores.class_errors[name]["ATE"] < 1e-9 for name in present)
