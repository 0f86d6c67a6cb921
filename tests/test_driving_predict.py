"""Prediction on driving scenes: what the model is given, what comes of it, absent sensors, and files of results."""

from __future__ import annotations

import json
import warnings

import numpy as np
import PIL.Image
import pytest
import torch
from driving_tables import MOUNTINGS, SIZE, write_drive
from driving_toys import tiny_config

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
from zoo import registry
from zoo.errors import ConfigError, DataError, WeightsError

CAMERAS = ("CAM_FRONT", "CAM_BACK")
CLASSES = ("car", "pedestrian", "barrier")
TOKENS = [f"scene-{scene}-{frame}" for scene in ("0061", "0103") for frame in range(2)]


def detector(**model):
    """A small network for the cameras of `write_drive` that looks far enough to see its things."""
    torch.manual_seed(0)
    config = tiny_config(**{"min_score": 0.0} | model)
    config["data"] |= {
        "cameras": list(CAMERAS),
        "point_range": [-48.0, -48.0, -3.0, 48.0, 48.0, 5.0],
        "pillar_size": 3.2,
    }
    return registry.architecture(config).build(config).eval()


@pytest.fixture(scope="module")
def drive(tmp_path_factory):
    return write_drive(tmp_path_factory.mktemp("drive"), frames=2)


@pytest.fixture(scope="module")
def predict():
    return zoo.predictor(detector(), min_score=0.0)


def same(one, other):
    for name in ("centre", "size", "yaw", "velocity", "score"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), atol=1e-4, rtol=1e-4)
    assert torch.equal(one.label, other.label)


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


def test_damaged_weights_are_told(drive):
    model = detector()
    torch.nn.init.constant_(model.head.heat_classes.bias, torch.nan)
    with pytest.raises(WeightsError, match="scene-0061-0: the model's scores are not finite"):
        zoo.predictor(model)(drive, sample=TOKENS[0])


def drop(*channels):
    """Takes the records of sensors out of the tables: what a rig without them gives."""

    def change(tables):
        tables["sample_data"] = [
            record
            for record in tables["sample_data"]
            if record["calibrated_sensor_token"].removeprefix("k-") not in channels
        ]

    return change


SENSORS = tuple(MOUNTINGS)
ABSENT = [*((one,) for one in SENSORS), CAMERAS]


@pytest.mark.parametrize("absent", ABSENT, ids="+".join)
@pytest.mark.parametrize("how", ["no record", "no file"])
def test_absent_sensors(drive, tmp_path, absent, how):
    """The result is that of the model without them, and a warning names them, once."""
    predict = zoo.predictor(detector(), min_score=0.0)
    root = write_drive(tmp_path, frames=1, scenes=("scene-0061",), change=drop(*absent) if how == "no record" else None)
    token = "scene-0061-0"
    options = {}
    if how == "no file":
        for channel in absent:
            for path in (root / "samples" / channel).iterdir():
                path.unlink()
        with pytest.raises(DataError, match=absent[0]):
            predict(root, sample=token)
        options = {"errors": "keep"}
    whole = predict(write_drive(tmp_path / "whole", frames=1, scenes=("scene-0061",)), sample=token)
    with pytest.warns(UserWarning, match=f"{token}: predicted without ") as told:
        found = predict(root, sample=token, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predict(root, sample=token, **options)
    named = [name for name in (*CAMERAS, "the lidar") if name in str(told[0].message)]
    assert named == [name for name in CAMERAS if name in absent] + ["the lidar"] * ("LIDAR_TOP" in absent)
    assert found.cameras == tuple(name for name in CAMERAS if name not in absent)
    assert (found.points is None) == ("LIDAR_TOP" in absent)

    # The same by hand: from the whole key frame, what is absent is masked.
    sample = NuScenes(tmp_path / "whole").sample(token, sweeps=1)
    given = model_input(sample, predict.model.data_config)
    mask = torch.tensor([name not in absent for name in CAMERAS])
    if "LIDAR_TOP" not in absent:
        given = given._replace(image_mask=mask, images=given.images if mask.any() else None)
        with torch.no_grad():
            expected = predict.model(DrivingBatch.from_samples([given]))[0]
        same(found.boxes, expected)
    assert not torch.equal(found.boxes.centre, whole.boxes.centre)
    picture = found.plot()
    assert picture.width > 400


@pytest.mark.parametrize(
    ("sensors", "absent", "message"),
    [
        ("camera+lidar", SENSORS, "has neither a lidar sweep nor pictures"),
        ("camera", CAMERAS, r"looks at cameras \(CAM_FRONT, CAM_BACK\), and this key frame has points of a lidar"),
        ("lidar", ("LIDAR_TOP",), r"looks at a lidar \(LIDAR_TOP\), and this key frame has CAM_FRONT, CAM_BACK"),
    ],
)
def test_a_model_that_has_nothing_to_look_at(tmp_path, sensors, absent, message):
    root = write_drive(tmp_path, frames=1, scenes=("scene-0061",), change=drop(*absent))
    with pytest.raises(DataError, match=message):
        zoo.predictor(detector(sensors=sensors))(root)


def test_nothing_at_all_in_files(predict, tmp_path):
    root = write_drive(tmp_path, frames=1, scenes=("scene-0061",))
    for path in (root / "samples").rglob("*.*"):
        path.unlink()
    with pytest.raises(DataError, match="looks at cameras or a lidar .* has neither pictures nor points"):
        predict(root, errors="keep")


@pytest.mark.parametrize("sensors", ["camera", "lidar"])
def test_models_of_one_sensor_do_not_need_the_other(tmp_path, sensors):
    """Nor its files: no warning, no error."""
    root = write_drive(tmp_path, frames=1, scenes=("scene-0061",))
    unused = ("LIDAR_TOP",) if sensors == "camera" else CAMERAS
    predict = zoo.predictor(detector(sensors=sensors), min_score=0.0)
    before = predict(root, sample="scene-0061-0")
    for channel in unused:
        for path in (root / "samples" / channel).iterdir():
            path.unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = zoo.predictor(predict.model, min_score=0.0)(root, sample="scene-0061-0")
    same(found.boxes, before.boxes)
    assert found.plot().width > 400
    assert found.uses == Modalities(use_camera=sensors == "camera", use_lidar=sensors == "lidar")
    assert (found.cameras, found.points is None) == ((CAMERAS, True) if sensors == "camera" else ((), False))


def test_damaged_files(predict, tmp_path):
    root = write_drive(tmp_path, frames=1, scenes=("scene-0061",))
    picture = root / "samples" / "CAM_BACK" / "scene-0061-0.jpg"
    for content in (b"", b"no picture", picture.read_bytes()[:200]):
        picture.write_bytes(content)
        with pytest.raises(DataError, match="scene-0061-0.jpg"):
            predict(root)
        with pytest.warns(UserWarning, match="CAM_BACK is taken as absent"):
            (found,) = predict(root, errors="keep")
        assert found.cameras == ("CAM_FRONT",) and found.plot().width > 400
    PIL.Image.new("RGB", (7, 5)).save(picture)
    with pytest.raises(DataError, match="7 x 5 pixels, the table says 80 x 48"):
        predict(root)
    sweep = next((root / "samples" / "LIDAR_TOP").iterdir())
    sweep.write_bytes(sweep.read_bytes()[:-3])
    for errors in (None, "keep"):
        with pytest.raises(DataError, match="truncated, or another format"):
            predict(root, errors=errors)
    found = predict(root, on_error="skip")
    assert found == [] and [failure.name for failure in predict.failures] == ["scene-0061-0"]
