"""Absent, missing and damaged sensors of driving scenes: what is predicted, what is told, and what is an error."""

from __future__ import annotations

import warnings

import PIL.Image
import pytest
import torch
from driving_frames import CAMERAS, detector, same
from driving_tables import MOUNTINGS, write_drive

import zoo
from modalities.driving import DrivingBatch
from modalities.driving.nuscenes.dataset import NuScenes
from modalities.driving.prepare import model_input
from modalities.driving.submission import Modalities
from zoo.errors import DataError


@pytest.fixture(scope="module")
def predict():
    return zoo.predictor(detector(), min_score=0.0)


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
def test_absent_sensors(tmp_path, absent, how):
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
    given = given._replace(image_mask=mask, images=given.images if mask.any() else None)
    if "LIDAR_TOP" in absent:
        given = given._replace(points=None)
    if how == "no file" or "LIDAR_TOP" not in absent:  # Else the frame is that of another moment: of the first camera.
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


@pytest.mark.filterwarnings("ignore:.*predicted without CAM_BACK")
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
