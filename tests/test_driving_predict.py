"""Prediction on driving scenes: what the model is given, what comes of it, absent sensors, and files of results."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from driving_frames import CAMERAS, CLASSES, TOKENS, detector, same
from driving_tables import SIZE, write_drive

import zoo
from modalities.driving import DrivingBatch
from modalities.driving.evaluate import detect_frames
from modalities.driving.frames import FrameReader
from modalities.driving.geometry import project
from modalities.driving.geometry_scene import resize_intrinsics
from modalities.driving.metrics import Detections
from modalities.driving.nuscenes.dataset import NuScenes
from modalities.driving.nuscenes.truth import global_detections
from modalities.driving.prepare import fit_picture, model_input, read_rig
from modalities.driving.results import SceneDetections, save_submission
from modalities.driving.submission import Modalities, read_submission
from zoo.errors import ConfigError, DataError, WeightsError


@pytest.fixture(scope="module")
def drive(tmp_path_factory):
    return write_drive(tmp_path_factory.mktemp("drive"), frames=2)


@pytest.fixture(scope="module")
def predict():
    return zoo.predictor(detector(), min_score=0.0)


@pytest.mark.parametrize("size", [(32, 48), (24, 64), (48, 80), (90, 100)])
def test_pictures_are_fitted_and_cameras_with_them(size):
    """A spot of the world is at the same place of the picture as its projection, before and after."""
    intrinsics = torch.tensor([[60.0, 0, 39.5], [0, 60, 23.5], [0, 0, 1]])
    point = torch.tensor([[0.15, 0.3, 2.0]])
    where = project(point, torch.eye(4), intrinsics, SIZE).pixels[0]
    rows, columns = np.mgrid[: SIZE[0], : SIZE[1]]
    spot = 255 * np.exp(-((columns - where[0].item()) ** 2 + (rows - where[1].item()) ** 2) / 18)
    image, scale, offset = fit_picture(np.repeat(spot[..., None], 3, 2).astype(np.uint8), size)
    assert image.shape == (3, *size) and image.dtype == torch.uint8
    moved = project(point, torch.eye(4), resize_intrinsics(intrinsics, scale, offset), size)
    weight = image[0].double()
    row, column = torch.meshgrid(*(torch.arange(side, dtype=torch.float64) for side in size), indexing="ij")
    centre = torch.stack([(column * weight).sum(), (row * weight).sum()]) / weight.sum()
    assert moved.inside.all()
    torch.testing.assert_close(moved.pixels[0].double(), centre, atol=0.3, rtol=0)
    # What is cut is at the top, and at both sides alike.
    assert scale[0] == pytest.approx(scale[1], rel=0.02) and (offset[0] == 0 or offset[1] == 0)
    over = round(scale[0] * SIZE[1]) - size[1], round(scale[1] * SIZE[0]) - size[0]
    assert offset == (over[0] // 2, over[1])


def test_a_picture_without_pixels_is_refused():
    with pytest.raises(DataError, match="without pixels: 0 x 4"):
        fit_picture(np.zeros((4, 0, 3), np.uint8), (8, 8))


def test_cameras_are_in_the_order_of_the_model(drive):
    sample = NuScenes(drive).sample("scene-0061-1")
    config = detector().data_config
    rig = read_rig(sample, config.replace(cameras=("CAM_BACK", "CAM_NONE", "CAM_FRONT")))
    assert rig.mask.tolist() == [True, False, True] and not rig.images[1].any()
    by_name = {camera.name: camera for camera in sample.cameras}
    for row, name in ((0, "CAM_BACK"), (2, "CAM_FRONT")):
        torch.testing.assert_close(
            rig.camera_from_ego[row].double(), torch.from_numpy(by_name[name].camera_from_ego), atol=1e-6, rtol=1e-6
        )
    assert torch.equal(rig.camera_from_ego[1], torch.eye(4))
    given = model_input(sample, config)
    np.testing.assert_allclose(
        given.images[0].mean((1, 2)).numpy(), (np.array([40, 90, 160]) / 255 - config.mean) / config.std, atol=0.05
    )


def test_the_result_of_a_key_frame(drive, predict):
    data = NuScenes(drive, classes=CLASSES)
    result = predict(drive, sample="scene-0061-1")
    assert isinstance(result, SceneDetections) and result.name == "scene-0061-1" and result.path == drive
    sample = data.sample("scene-0061-1", sweeps=1)
    model = predict.model
    with torch.no_grad():
        expected = model(DrivingBatch.from_samples([model_input(sample, model.data_config)]))[0]
    same(result.boxes, expected)
    assert len(result) == 16 and result.cameras == CAMERAS and result.points == len(sample.points) > 200
    assert result.scene == "scene-0061" and result.timestamp_us == sample.timestamp
    lifted = global_detections({"scene-0061-1": Detections(expected)}, data)["scene-0061-1"].boxes
    same(result.global_boxes, lifted)
    assert set(result.labels) <= set(CLASSES) and result.scores == tuple(sorted(result.scores)[::-1])

    told = json.loads(result.to_json())
    assert told["cameras"] == list(CAMERAS) and told["points"] == result.points and len(told["detections"]) == 16
    first = told["detections"][0]
    assert first["label"] == result.labels[0] and first["score"] == pytest.approx(result.scores[0])
    assert first["ego"]["centre"] == pytest.approx(expected.centre[0].tolist())
    assert first["global"]["centre"] == pytest.approx(lifted.centre[0].tolist())
    assert first["global"]["velocity"] == pytest.approx(lifted.velocity[0].tolist(), abs=1e-6)
    row = dict(zip(result.columns, result.rows()[0], strict=True))
    assert row["yaw"] == pytest.approx(expected.yaw[0].item()) and row["length"] == pytest.approx(first["size"][0])
    assert row["global_yaw"] == pytest.approx(lifted.yaw[0].item()) and row["rank"] == 1
    lines = str(result).splitlines()
    assert lines[0] == f"scene-0061-1 (2 cameras, {result.points} points)" and len(lines) == 17
    assert " m away at x " in lines[1] and lines[1].endswith(" m/s")
    pytest.importorskip("pandas")
    assert list(result.to_pandas().columns) == list(result.columns)


def test_scores_choose_what_is_shown_and_not_what_is_scored(drive, predict, tmp_path):
    scores = predict(drive, sample=TOKENS[0]).scores
    few = zoo.predictor(predict.model, min_score=(scores[4] + scores[5]) / 2)(drive, sample=TOKENS[0])
    best = zoo.predictor(predict.model, min_score=0.0, top_k=2)(drive, sample=TOKENS[0])
    none = zoo.predictor(predict.model, min_score=1.0)(drive, sample=TOKENS[0])
    assert (len(few), len(best), len(none)) == (5, 2, 0)
    assert len(few.found) == len(best.found) == len(none.found) == 16
    assert (
        str(none).endswith("points): nothing found")
        and none.rows() == []
        and json.loads(none.to_json())["detections"] == []
    )
    path = none.save(tmp_path / "deep" / "one.json")
    assert len(read_submission(path).results[TOKENS[0]].boxes) == 16


def test_a_submission_is_what_was_found(drive, predict, tmp_path):
    results = predict(drive, split="mini_val")
    assert [result.name for result in results] == TOKENS[2:]
    submission = read_submission(save_submission(results, tmp_path / "val.json"), classes=CLASSES)
    assert submission.modalities == Modalities(use_camera=True, use_lidar=True)
    for result in results:
        same(submission.results[result.name].boxes, result.global_boxes)
        for label, attribute in zip(result.labels, submission.results[result.name].attributes, strict=True):
            assert attribute.partition(".")[0] == {"car": "vehicle", "barrier": ""}.get(label, label)
    with pytest.raises(DataError, match="two results of the key frame scene-0103-0"):
        save_submission([results[0]] * 2, tmp_path / "twice.json")
    with pytest.raises(DataError, match="at least one"):
        save_submission([], tmp_path / "none.json")
    with pytest.raises(DataError, match="cannot be written"):
        save_submission(results, tmp_path / "val.json" / "x.json")
    other = zoo.predictor(detector(sensors="lidar"))(drive, sample=TOKENS[0])
    with pytest.raises(DataError, match="of one model"):
        save_submission([*results, other], tmp_path / "two.json")
    assert [path.name for path in tmp_path.iterdir()] == ["val.json"]


def test_what_is_submitted_is_what_is_evaluated(drive, tmp_path):
    """Every query, whatever score is shown, and whatever score the model itself leaves out."""
    model = detector(min_score=0.3, max_boxes=3)
    path = save_submission(zoo.predictor(model)(drive), tmp_path / "all.json")
    data = NuScenes(drive, classes=CLASSES)
    frames = FrameReader(data, data.sample_tokens(), model.data_config, model.sizes)
    evaluated = detect_frames(model, frames, workers=0)
    submitted = read_submission(path, classes=CLASSES).results
    for token, boxes in zip(frames.tokens, evaluated, strict=True):
        assert len(boxes) == 16
        same(submitted[token].boxes, global_detections({token: Detections(boxes)}, data)[token].boxes)


def test_models_whose_classes_are_none_of_nuscenes(drive, tmp_path):
    model = detector()
    model.reset_classifier(2)
    result = zoo.predictor(model, min_score=0.0)(drive, sample=TOKENS[0], truth=True)
    assert set(result.labels) <= {"0", "1"}
    with pytest.raises(DataError, match="none of car, truck"):
        result.save(tmp_path / "x.json")
    assert result.plot().size[0] > 0  # The truth keeps its own names.


def test_which_key_frames(drive, predict):
    def names(found):
        return [result.name for result in found]

    assert names(predict(drive)) == names(predict(str(drive), version="v1.0-mini")) == TOKENS
    assert names(predict(drive, limit=3)) == TOKENS[:3]
    assert names(predict(drive, split="mini_val", limit=1)) == TOKENS[2:3]
    assert names(predict(drive, sample=TOKENS[::-2])) == TOKENS[::-2]
    data = NuScenes(drive)
    assert names(predict(data, sample=[TOKENS[1]])) == [TOKENS[1]]
    sample = data.sample(TOKENS[2], sweeps=1)
    one = predict(sample)
    same(one.boxes, predict(data, sample=TOKENS[2]).boxes)
    assert one.path is None and one.name == TOKENS[2]
    stream = predict(iter([sample, data.sample(TOKENS[0])]), stream=True, batch_size=1)
    assert names(stream) == [TOKENS[2], TOKENS[0]]
    assert [source.name for source in predict.sources(drive, split="mini_train")] == TOKENS[:2]
    # Batches change nothing.
    for alone, together in zip(predict(drive, batch_size=1), predict(drive), strict=True):
        same(alone.boxes, together.boxes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sample": "gone"}, "no sample 'gone'; of its 4 some are scene-0061-0, scene-0061-1, scene-0103-0"),
        ({"sample": [TOKENS[0], "gone"]}, "no sample 'gone'"),
        ({"split": "dev"}, "no split 'dev'; there are mini_train, mini_val, test, train, val"),
        ({"split": "test"}, "none of its scenes is in the split 'test'"),
        ({"split": "mini_val", "sample": TOKENS[0]}, "exclude each other"),
        ({"limit": 0}, "limit must be a positive whole number"),
        ({"version": "v2"}, "v2: no such folder of nuScenes tables"),
        ({"version": 1}, "version must be the name of a folder of tables, not 1"),
        ({"sample": 7}, "sample must be a token or a list of them, not 7"),
        ({"sample": [7]}, "no sample 7"),
        ({"sample": []}, "no key frames"),
        ({"version": "../x"}, "version must be the name of a folder"),
        ({"sweeps": 3}, "unknown option 'sweeps'; of driving scenes: errors, limit, sample, split, truth, version"),
    ],
)
def test_bad_choices(drive, predict, options, message):
    with pytest.raises((ConfigError, DataError), match=message):
        predict(drive, **options)


def test_bad_sources(drive, predict, tmp_path):
    with pytest.raises(DataError, match="gone: no such folder"):
        predict(tmp_path / "gone")
    with pytest.raises(DataError, match="not the root of a data set in the format of nuScenes: it has no folder"):
        predict(tmp_path)
    with pytest.raises(DataError, match=f"it holds the tables themselves: pass {drive}"):
        predict(drive / "v1.0-mini")
    with pytest.raises(DataError, match="takes the folder of a data set .* not int"):
        predict(3)
    with pytest.raises(DataError, match="takes the folder of a data set"):
        predict("")
    with pytest.raises(ConfigError, match="sample: a single key frame leaves nothing to choose"):
        predict(NuScenes(drive).sample(TOKENS[0]), sample=TOKENS[0])
    found = predict([tmp_path / "gone", drive], on_error="skip", limit=1)
    assert [result.name for result in found] == TOKENS[:1]
    assert len(predict.failures) == 1 and "no such folder" in str(predict.failures[0].error)
    with pytest.raises(ConfigError, match="key frames make no video"):
        predict.video("x.mp4")


def test_sixteen_bit_and_other_sizes(drive, predict):
    exact = predict(drive, sample=TOKENS[0])
    near = zoo.predictor(detector(), dtype="bfloat16", min_score=0.0)(drive, sample=TOKENS[0])
    assert near.boxes.centre.dtype == torch.float32 and len(near) == 16
    assert abs(near.scores[0] - exact.scores[0]) < 0.05
    large = zoo.predictor(detector(), size=(64, 96), min_score=0.0)
    found = large(drive, sample=TOKENS[0])
    given = model_input(NuScenes(drive).sample(TOKENS[0], sweeps=1), large.data_config)
    assert given.images.shape == (2, 3, 64, 96)
    with torch.no_grad():
        same(found.boxes, large.model(DrivingBatch.from_samples([given]))[0])
    with pytest.raises(DataError, match="multiples of the patch, 8 pixels; got 30 x 48"):
        zoo.predictor(detector(), size=(30, 48))(drive, sample=TOKENS[0])


def test_damaged_weights_are_told(drive):
    model = detector()
    torch.nn.init.constant_(model.head.heat_classes.bias, torch.nan)
    with pytest.raises(WeightsError, match="scene-0061-0: the model's scores are not finite"):
        zoo.predictor(model)(drive, sample=TOKENS[0])
