"""Detections as users see them: predictor, pictures with boxes, tables, COCO's form, the command line."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import PIL.Image
import pytest
import torch
from saved_models import make_model

import zoo
from modalities.image.transforms import preprocess
from zoo.cli.main import main
from zoo.detection.results import DetectionResults, to_coco


@pytest.fixture
def model(tiny_config):
    tiny_config |= {"task": "detection", "architecture": "vit-det"}
    tiny_config["model"] |= {"pyramid_dim": 16, "class_width": 12, "max_detections": 20}
    tiny_config["data"] |= {"resize": "letterbox", "input_size": [3, 64, 64]}
    model = make_model(tiny_config)
    for towers in (model.head.one2one_cv3, model.head.cv3):
        for tower in towers:
            torch.nn.init.normal_(tower[-1].weight, std=0.5, generator=torch.Generator().manual_seed(3))
            torch.nn.init.constant_(tower[-1].bias, -1.0)
    return model


def picture(seed=0, height=40, width=90):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.fixture
def results():
    return DetectionResults(
        name="a.png",
        path=None,
        boxes=((10.0, 20.0, 30.5, 60.0), (0.0, 0.0, 400.0, 200.0)),
        indices=(2, 0),
        labels=("cell\nred", "plate"),
        scores=(0.75, 0.5),
        size=(200, 400),
        _picture=lambda: zoo.read(np.full((200, 400, 3), 255, np.uint8)),
    )


# ---- predictor


def test_boxes_are_those_of_the_model_in_the_pixels_of_the_picture(model):
    array = picture()
    with torch.no_grad():
        found = model(preprocess(array, model.data_config)[None]).for_image(0, (40, 90))
    result = zoo.predictor(model, min_score=0)(array)
    assert isinstance(result, DetectionResults) and len(result) == len(found) > 3
    torch.testing.assert_close(torch.tensor(result.boxes), found[:, :4])
    assert list(result.scores) == pytest.approx(found[:, 4].tolist()) == sorted(result.scores, reverse=True)
    assert result.labels == tuple(("circle", "square", "triangle")[int(index)] for index in found[:, 5])
    assert all(0 <= x1 < x2 <= 90 and 0 <= y1 < y2 <= 40 for x1, y1, x2, y2 in result.boxes)
    few = zoo.predictor(model, min_score=result.scores[2], top_k=2)(array)
    assert few.boxes == result.boxes[:2]
    assert zoo.predictor(model, min_score=result.scores[2])(array).boxes == result.boxes[:3]
    assert len(zoo.predictor(model, min_score=1.0)(array)) == 0


def test_the_size_asked_for_is_the_one_that_boxes_come_back_from(model):
    array = picture()
    data = model.data_config.with_size((96, 128))
    with torch.no_grad():
        tensor = model(preprocess(array, data)[None]).tensor
    result = zoo.predictor(model, size=(96, 128), min_score=0)(array)
    scale = 128 / 90  # The wide picture fills the width; the rest is border.
    rows = [row for row in tensor[0].tolist() if row[4] > 0]
    x1 = max(0.0, rows[0][0] / scale)
    top = (96 - round(40 * scale)) // 2
    assert result.boxes[0][0] == pytest.approx(x1, abs=1e-3)
    y1 = (rows[0][1] - top) * 40 / round(40 * scale)
    assert result.boxes[0][1] == pytest.approx(min(max(0.0, y1), 40), abs=1e-3)


def test_batches_of_different_pictures_give_the_same_as_each_alone(model):
    predict = zoo.predictor(model, min_score=0)
    arrays = [picture(0), picture(1, 64, 20), picture(2, 5, 5)]
    for together, array in zip(predict(arrays, batch_size=2), arrays, strict=True):
        alone = predict(array)
        assert together.size == alone.size == array.shape[:2]
        torch.testing.assert_close(torch.tensor(together.boxes), torch.tensor(alone.boxes), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("options", [{"min_score": -1}, {"min_score": "x"}, {"min_score": True}, {"top_k": 0}])
def test_options_that_cannot_be_used(model, options):
    with pytest.raises(zoo.ConfigError, match=next(iter(options))):
        zoo.predictor(model, **options)


def test_min_score_is_for_detectors(tiny_config):
    with pytest.raises(zoo.ConfigError, match="min_score is for detectors"):
        zoo.predictor(make_model(tiny_config), min_score=0.5)


def test_damaged_weights_are_told(model):
    with torch.no_grad():
        model.head.one2one_cv3[0][-1].bias[0] = float("nan")
    with pytest.raises(zoo.WeightsError, match="not finite"):
        zoo.predictor(model, min_score=0)(picture())


# ---- results


def test_text_dict_and_tables(results):
    assert str(results).splitlines() == [
        "a.png (400 x 200)",
        "   75.0 %  cell red  (10, 20, 30, 60)",
        "   50.0 %  plate     (0, 0, 400, 200)",
    ]
    found = json.loads(results.to_json())
    assert (found["width"], found["height"], found["source"]) == (400, 200, "a.png")
    assert found["detections"][0] == {"box": [10, 20, 30.5, 60], "score": 0.75, "index": 2, "label": "cell\nred"}
    pytest.importorskip("pandas")
    table = results.to_pandas()
    assert list(table.columns) == list(results.COLUMNS)
    assert table.iloc[1].tolist() == ["a.png", 2, 0, 0, 400, 200, 0.5, 0, "plate"]


def test_nothing_found():
    empty = DetectionResults("b.png", None, (), (), (), (), (5, 6))
    assert str(empty) == "b.png (6 x 5): nothing found"
    assert empty.to_dict()["detections"] == empty.rows() == to_coco([empty]) == []
    pytest.importorskip("pandas")
    assert empty.to_pandas().shape == (0, 9)


def test_the_form_of_coco(results):
    empty = DetectionResults("b.png", None, (), (), (), (), (5, 6))
    assert to_coco([empty, results], [7, 9], categories=[1, 2, 44]) == [
        {"image_id": 9, "category_id": 44, "bbox": [10, 20, 20.5, 40], "score": 0.75},
        {"image_id": 9, "category_id": 1, "bbox": [0, 0, 400, 200], "score": 0.5},
    ]
    assert [item["image_id"] for item in to_coco([results])] == [0, 0]
    assert [item["category_id"] for item in to_coco([results])] == [2, 0]
    with pytest.raises(zoo.DataError, match="1 image_ids for 2"):
        to_coco([empty, results], [7])
    with pytest.raises(zoo.DataError, match="class 2 has no category"):
        to_coco([results], categories=[5])


def test_boxes_are_drawn_where_they_are(results, tmp_path):
    drawn = np.asarray(results.plot())
    assert drawn.shape == (200, 400, 3)
    frame = drawn[40, 10]  # On the left side of the first box, away from its label.
    assert not np.array_equal(frame, [255, 255, 255])
    assert np.array_equal(drawn[50, 20], [255, 255, 255])  # Inside of it.
    assert np.array_equal(drawn[40, 29], frame) and np.array_equal(drawn[59, 20], frame)
    assert not np.array_equal(drawn[199, 200], [255, 255, 255]) and not np.array_equal(drawn[199, 200], frame)
    path = results.save(tmp_path / "new" / "out.png")
    assert np.array_equal(np.asarray(PIL.Image.open(path)), drawn)
    with pytest.raises(zoo.DataError, match="hold no picture"):
        DetectionResults("b.png", None, (), (), (), (), (5, 6)).plot()


def test_plots_scale_boxes_with_the_picture_and_leave_the_source_alone():
    array = np.zeros((300, 2048, 3), np.uint8)
    boxes = ((1024.0, 0.0, 2048.0, 300.0), (5.0, 5.0, 5.1, 5.1))
    large = DetectionResults(
        "c", None, boxes, (0, 1), ("a", "b" * 90), (0.9, 0.8), (300, 2048), _picture=lambda: zoo.read(array)
    )
    drawn = np.asarray(large.plot())
    assert drawn.shape == (150, 1024, 3)
    assert drawn[:, 1022].any(axis=1).all() and drawn[:, 513].any(axis=1).all() and drawn[148, 512:].any(axis=1).all()
    assert not drawn[30:140, 530:1015].any() and not drawn[30:, :505].any()
    assert not array.any()


# ---- command line


def test_zoo_predict_saves_pictures_with_boxes(model, tmp_path, capsys):
    zoo.save(model, tmp_path / "model")
    for index in range(2):
        PIL.Image.fromarray(picture(index)).save(tmp_path / f"{index}.png")
    files = [str(tmp_path / f"{index}.png") for index in range(2)]
    name = f"local-dir:{tmp_path / 'model'}"

    def run(*options):
        with pytest.raises(SystemExit) as stop:
            main(["predict", name, *files, *options])
        out, err = capsys.readouterr()
        assert stop.value.code == 0, err
        return out

    expected = zoo.predictor(name, min_score=0.1)(files)
    assert sum(map(len, expected)) > 2
    assert run("--min-score", "0.1", "--save", str(tmp_path / "out")) == f"{expected[0]}\n\n{expected[1]}\n"
    assert np.array_equal(np.asarray(PIL.Image.open(tmp_path / "out" / "1.png")), np.asarray(expected[1].plot()))
    assert json.loads(run("--min-score", "0.1", "--json")) == [result.to_dict() for result in expected]
    rows = list(csv.reader(io.StringIO(run("--min-score", "0.1", "--csv"))))
    assert rows[0] == list(DetectionResults.COLUMNS)
    assert rows[1:] == [[str(value) for value in row] for result in expected for row in result.rows()]
