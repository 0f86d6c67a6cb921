"""Training and evaluation of image detectors: learns, resumes, logs, starts from a backbone, compiles, is measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from detection_toys import NAMES, SIZE, TINY, tiny_settings, write_coco, write_toys
from training_toys import stop_after

import zoo
from modalities.image.detection_data import boxed_pictures
from modalities.image.detection_task import ImageDetection
from zoo.cli.main import main
from zoo.errors import ConfigError, DataError, WeightsError
from zoo.training.loop import METRICS, RECORD, train
from zoo.training.metrics import read_metrics
from zoo.training.recipe import load_recipe, recipe_from_dict

pytest.importorskip("faster_coco_eval", reason="faster-coco-eval is not installed (extra detection)")
from zoo.evaluate_detection import align_classes, evaluate_detector, evaluate_detector_data

PARTS = {f"loss/{branch}{part}" for branch in ("one2many", "one2one") for part in ("", "_box", "_dfl", "_class")}
PLAIN: dict[str, Any] = {"scale": [1.0, 1.0], "ratio": [1.0, 1.0], "drop_path": 0.0, "flip": 0.0, "saturation": 0.1}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toys(tmp_path_factory.mktemp("boxes"))


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path_factory.getbasetemp() / "zoo-cache"))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return zoo.load(f"local-dir:{folder}").state_dict()


def started(data: Path, output: Path, **changes: Any) -> tuple[ImageDetection, Any]:
    """A task and its model, ready for batches."""
    recipe = recipe_from_dict(tiny_settings(data, output, **changes))
    task = ImageDetection(recipe)
    torch.manual_seed(0)
    model = zoo.load(recipe.model, pretrained=False, **task.model_arguments(), **recipe.model_options).train()
    task.start(model, torch.device("cpu"), 0, 1)
    return task, model


def test_it_learns_logs_its_parts_and_is_evaluated(data: Path, tmp_path: Path) -> None:
    settings = tiny_settings(data, tmp_path / "run", epochs=50, batch_size=5, lr=4e-3, ema=0.95, **PLAIN)
    result = train(recipe_from_dict({**settings, "dev_split": "train", "eval_every": 25}), command="zoo x")
    records = read_metrics(result.output / METRICS)
    losses = [r for r in records if "loss" in r]
    assert all(set(r) >= PARTS for r in losses)
    for line in losses:
        assert line["loss"] == pytest.approx(line["loss/one2many"] + line["loss/one2one"], rel=1e-5)
        parts = sum(line[f"loss/one2one_{part}"] for part in ("box", "dfl", "class"))
        assert line["loss/one2one"] == pytest.approx(parts, rel=1e-5)
    assert losses[-1]["loss"] < 0.4 * losses[0]["loss"]
    first, last = [r for r in records if "dev_ap50" in r]
    assert last["dev_ap50"] > 95 and last["dev_map"] > 55 and last["epoch"] == 50
    assert {"dev_map/square", "dev_map/bar", "dev_ar"} <= set(last) and "dev_ap_large" not in last
    record = json.loads((result.output / RECORD).read_text())
    assert record["dev_ap50"] == last["dev_ap50"] and record["data"]["boxes"] == 16
    assert record["data"]["pictures"] == record["data"]["dev_pictures"] == 10

    model = zoo.load(f"local-dir:{result.output}")
    assert model.config["labels"] == NAMES and model.data_config.input_size == (3, SIZE, SIZE)
    report = evaluate_detector_data(model, data, split="train", command="zoo eval")
    (row,) = report["results"]
    assert row["ap50"] == pytest.approx(last["dev_ap50"]) and row["size"] == SIZE  # The same measure, from the file.
    assert report["images"] == 10 and report["task"] == "detection" and report["data_sha256"]
    assert report["dataset"] == data.name and json.dumps(report, allow_nan=False)

    found = zoo.predictor(model, min_score=0.3)(_picture(data))
    assert sorted(found.labels) == ["bar", "square"]


def _picture(data: Path) -> np.ndarray:
    return np.ascontiguousarray(boxed_pictures(data, "train")[0].transpose(1, 2, 0))


def test_interrupted_run_equals_the_uninterrupted_one(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = recipe_from_dict(tiny_settings(data, tmp_path / "whole", dev_count=2, eval_every=3, log_every=2))
    parts = recipe_from_dict(tiny_settings(data, tmp_path / "parts", dev_count=2, eval_every=3, log_every=2))
    train(whole)
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        assert train(parts).step == 3
    torch.manual_seed(99)
    assert train(parts, resume=True).finished
    a, b = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(a[key], b[key]) for key in a)
    lines = [
        [{k: v for k, v in r.items() if k not in ("seconds", "images_per_s")} for r in read_metrics(p / METRICS)]
        for p in (tmp_path / "whole", tmp_path / "parts")
    ]
    assert lines[0] == lines[1] and any("loss/one2many_dfl" in line for line in lines[0])


def test_batches_have_one_shape_and_depend_on_their_number_alone(data: Path, tmp_path: Path) -> None:
    task, _ = started(data, tmp_path)
    made = [task.batch(epoch, index) for epoch in (0, 1) for index in range(task.steps_per_epoch)]
    assert {images.shape for images, _ in made} == {(4, 3, SIZE, SIZE)}
    assert {targets.boxes.shape for _, targets in made} == {(4, 2, 4)}
    again, _ = started(data, tmp_path)
    images, targets = again.batch(1, 0)
    assert torch.equal(images, made[2][0]) and torch.equal(targets.boxes, made[2][1].boxes)
    other, _ = started(data, tmp_path, seed=1)
    assert not torch.equal(other.batch(1, 0)[0], images)
    task.start(task_model := _started_model(task), torch.device("cpu"), 1, 2)
    half, _ = task.batch(1, 0)
    assert half.shape[0] == 2 and task_model.training
    with pytest.raises(ConfigError, match="cannot be divided over 3"):
        task.start(task_model, torch.device("cpu"), 0, 3)


def _started_model(task: ImageDetection) -> Any:
    return zoo.load(task.recipe.model, pretrained=False, **task.model_arguments(), **TINY).train()


def test_starts_from_the_backbone_of_a_classifier(data: Path, tmp_path: Path) -> None:
    sizes = {key: value for key, value in TINY.items() if key not in ("pyramid_dim", "class_width")}
    torch.manual_seed(5)
    classifier = zoo.load("pape-vit-t-imagenette", pretrained=False, **sizes)
    zoo.save(classifier, tmp_path / "classifier")
    name = f"local-dir:{tmp_path / 'classifier'}"
    _, model = started(data, tmp_path, backbone=name)
    own, source = model.state_dict(), classifier.state_dict()
    shared = [key for key in source if key.startswith(("embed.", "encoder."))]
    assert len(shared) > 10 and all(torch.equal(own[key], source[key]) for key in shared)
    result = train(recipe_from_dict(tiny_settings(data, tmp_path / "run", backbone=name, epochs=1)))
    assert json.loads((result.output / RECORD).read_text())["recipe"]["backbone"] == name
    with pytest.raises(WeightsError, match=r"backbone pape-vit-t-imagenette for .* or to null \("):
        started(data, tmp_path, backbone="pape-vit-t-imagenette")


def test_what_cannot_be_trained_is_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no training data"):
        ImageDetection(recipe_from_dict({k: v for k, v in tiny_settings(data, tmp_path).items() if k != "data"}))
    with pytest.raises(ConfigError, match="batch_size 11 is more than the 10"):
        ImageDetection(recipe_from_dict(tiny_settings(data, tmp_path, batch_size=11)))
    with pytest.raises(DataError, match="no split 'test'"):
        ImageDetection(recipe_from_dict(tiny_settings(data, tmp_path, dev_split="test")))
    task, model = started(data, tmp_path)
    with pytest.raises(ConfigError, match="pretrained .* backbone"):
        ImageDetection(
            recipe_from_dict(tiny_settings(data, tmp_path, pretrained=True, backbone="pape-vit-t-imagenette"))
        )
    model.data_config = model.data_config.replace(resize="shortest")
    with pytest.raises(ConfigError, match="squash or letterbox"):
        task.start(model, torch.device("cpu"), 0, 1)
    with pytest.raises(ConfigError, match="did you mean 'backbone'"):
        recipe_from_dict(tiny_settings(data, tmp_path, backbon="x"))


@pytest.mark.parametrize("name", ["bccd", "coco"])
def test_recipes_run_on_the_real_layout(tmp_path: Path, name: str) -> None:
    tiny = {"model_options": dict(TINY), "image_size": [SIZE, SIZE], "epochs": 1, "batch_size": 2, "eval_every": 1}
    coco = name == "coco"
    data = write_coco(tmp_path / "coco", 4, 2) if coco else write_toys(tmp_path / "bccd", 4, 2)
    tiny |= {"data": str(data), "output": str(tmp_path / "run"), "device": "cpu", "precision": "float32"}
    recipe = load_recipe(name, {**tiny, "compile": False, **({} if coco else {"backbone": None})})
    result = train(recipe)
    assert result.finished and result.step == 2
    record = json.loads((result.output / RECORD).read_text())
    assert record["dev_map"] >= 0 and record["data"]["dev_pictures"] == 2
    model = zoo.load(f"local-dir:{result.output}")
    assert model.num_classes == (8 if coco else 2)
    assert model.data_config.resize == ("squash" if coco else "letterbox")
    assert evaluate_detector_data(model, data, split="validation")["results"][0]["map"] >= 0


def test_recipes_say_what_the_paper_and_the_issue_do() -> None:
    coco, bccd = load_recipe("coco"), load_recipe("bccd")
    assert (coco.epochs, coco.batch_size, coco.lr, coco.warmup) == (150, 64, 6e-4, 0.1)
    assert coco.options.category_ids and zoo.registry.entry(coco.model).config["model"]["num_classes"] == 91
    assert bccd.options.backbone == "pape-vit-t-imagenette" and bccd.compile and bccd.ema > 0
    for encoding in ("pape", "rope", "none"):
        for size in ("n", "t"):
            entry = zoo.registry.entry(f"{encoding}-vit-det-{size}-bccd")
            assert entry.config["labels"] == ["RBC", "WBC", "Platelets"]
    # In float16 the nano detector fits into a file of 3 MiB.
    assert 2 * zoo.registry.entry("pape-vit-det-n-bccd").parameters < 2.9 * 2**20
    model = zoo.load("pape-vit-det-t-bccd", pretrained=False)
    model.load_backbone(zoo.load("pape-vit-t-imagenette"))


def test_classes_are_matched_by_name(data: Path, tmp_path: Path) -> None:
    model = zoo.load("pape-vit-det-n-coco", pretrained=False, **TINY, input_size=SIZE)
    names = [name for name in model.config["labels"] if not name.startswith("unused")]
    aligned = align_classes(80, names, model)
    assert len(aligned) == 91 and aligned[1] == 0 and aligned[90] == 79 and aligned[0] == -1
    assert sorted(aligned[aligned >= 0].tolist()) == list(range(80))
    reverse = align_classes(80, names[::-1], model)
    assert reverse[1] == 79 and reverse[0] == -1
    with pytest.raises(
        DataError, match="the data have 2 classes, the model has 91; the model does not know bar, square"
    ):
        evaluate_detector(model, boxed_pictures(data, "train"))
    other = zoo.load("pape-vit-det-n-bccd", pretrained=False, **TINY, input_size=SIZE, num_classes=2)
    assert align_classes(2, NAMES, other).tolist() == [0, 1]  # No names on the model's side: in order.
    assert align_classes(5, None, model).tolist() == [0, 1, 2, 3, 4, *[-1] * 86]  # By the labels that occur.
    with pytest.raises(DataError, match="the data have 92 classes"):
        align_classes(92, None, model)
    with pytest.raises(DataError, match="same name"):
        align_classes(2, ["person", "person"], model)


class Oracle(torch.nn.Module):
    """Gives the true boxes of toy data, in pixels of its own input: classes are those of the model, reversed."""

    def __init__(self, packed: Any, data_config: Any) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))
        self.packed, self.data_config, self.num_classes, self.next = packed, data_config, 3, 0
        self.config = {"task": "detection", "labels": ["bar", "other", "square"]}
        self.queue: list[int] = []

    def forward(self, images: torch.Tensor) -> Any:
        from zoo.detection.detections import Detections
        from zoo.placement import place

        size = (images.shape[2], images.shape[3])
        rows = torch.zeros(len(images), 4, 6)
        for place_, row in enumerate(self.queue[: len(images)]):
            own = self.packed.objects(row)
            boxes = torch.from_numpy(self.packed.boxes[own])
            placed = place(tuple(self.packed.sizes[row].tolist()), self.data_config.with_size(size))
            rows[place_, : len(boxes), :4] = placed.to_input(boxes)
            rows[place_, : len(boxes), 4] = 0.9
            rows[place_, : len(boxes), 5] = torch.tensor([2.0, 0.0])[torch.from_numpy(self.packed.labels[own])]
            rows[place_, 3] = torch.tensor([0, 0, 9, 9, 0.5, 1.0])  # Of a class that the data do not have.
        self.queue = self.queue[len(images) :]
        return Detections(rows, size, self.data_config)


@pytest.mark.parametrize("resize", ["squash", "letterbox"])
@pytest.mark.parametrize("stored", [None, (48, 48)])
def test_boxes_are_compared_in_the_pixels_of_the_user(tmp_path: Path, resize: str, stored: Any) -> None:
    from zoo.data_config import DataConfig

    data = write_toys(tmp_path / "wide", train=6, validation=2, size=(64, 112))
    packed = boxed_pictures(data, "train", size=stored)
    model = Oracle(packed, DataConfig(input_size=(3, 40, 56), resize=resize)).train()
    model.queue = [0, 1, 0, 1, 2, 3, 4, 5]  # The first batch runs twice.
    result = evaluate_detector(model, packed, batch_size=2)
    assert result.metrics["map"] == pytest.approx(100) and result.metrics["map/square"] == pytest.approx(100)
    assert result.size == (40, 56) and result.images == 6 and model.training
    wrong = packed.boxes.copy()
    wrong[:, 0] -= 4
    model.queue = [0, 1, 0, 1, 2, 3, 4, 5]
    moved = type(packed)(**{**vars_of(packed), "boxes": wrong})
    assert 10 < evaluate_detector(model, moved, batch_size=2).metrics["map"] < 95


def vars_of(packed: Any) -> dict[str, Any]:
    import dataclasses

    return {f.name: getattr(packed, f.name) for f in dataclasses.fields(packed) if f.init}


def test_bad_calls_of_the_evaluation(data: Path) -> None:
    packed = boxed_pictures(data, "train")
    model = zoo.load("pape-vit-det-n-bccd", pretrained=False, **TINY, input_size=SIZE, num_classes=2)
    with pytest.raises(ConfigError, match="dtype must be one of"):
        evaluate_detector(model, packed, dtype="int8")
    with pytest.raises(DataError, match="no pictures"):
        evaluate_detector(model, packed, rows=np.array([], dtype=np.int64))
    with pytest.raises(ConfigError, match="give extend too"):
        evaluate_detector(model, packed, factor=2.0)
    with pytest.raises(ConfigError, match="for detectors"):
        evaluate_detector(zoo.load("pape-vit-t-imagenette", pretrained=False), packed)
    with pytest.raises(DataError):
        evaluate_detector(model, packed, size=(SIZE, SIZE + 1))
    result = evaluate_detector(model, packed, size=96, extend="rescale")
    assert result.factor == (1.5, 1.5) and result.to_dict()["extend"] == "rescale"


def run_cli(*arguments: Any) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


def test_cli(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import yaml

    settings = {k: v for k, v in tiny_settings(data, tmp_path, epochs=1).items() if k not in ("data", "output")}
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(settings))
    out = tmp_path / "run"
    assert run_cli("train", tmp_path / "toy.yaml", "--data", data, "--out", out, "--set", "seed=1", "--quiet") == 0
    arguments = ("eval", f"local-dir:{out}", "--data", data, "--split", "validation", "--device", "cpu")
    capsys.readouterr()
    assert run_cli(*arguments, "--sizes", f"{SIZE},96x64") == 0
    printed = capsys.readouterr().out
    assert "mAP (%)" in printed and "AP50" in printed and "96 x 64" in printed and "square" in printed
    assert run_cli(*arguments, "--json", "--out", tmp_path / "report.json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["images"] == 5 and {"map", "ap50", "ap75", "ar", "map/bar"} <= set(report["results"][0])
    assert json.loads((tmp_path / "report.json").read_text()) == report
    assert run_cli(*arguments, "--sizes", "1x2x3") == 2
    assert "--sizes takes whole numbers" in capsys.readouterr().err


def test_compiled_step_is_whole_and_gives_the_eager_loss(data: Path, tmp_path: Path) -> None:
    task, model = started(data, tmp_path, drop_path=0.0)
    images, targets = task.batch(0, 0)
    expected = task.loss(model(images), targets)
    expected["loss"].backward()
    eager = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")  # A break in the graph is an error.
    found = task.loss(compiled(images), targets)
    for name, value in expected.items():
        assert found[name].item() == pytest.approx(value.item(), rel=1e-4), name
    found["loss"].backward()
    for name, parameter in model.named_parameters():
        apart = (parameter.grad - eager[name]).abs().max().item()
        assert apart <= 1e-5 + 1e-3 * eager[name].abs().max().item(), name


@pytest.mark.slow
def test_the_loop_trains_compiled(data: Path, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    result = train(recipe_from_dict(tiny_settings(data, tmp_path / "run", compile=True, epochs=1)))
    assert json.loads((result.output / RECORD).read_text())["compiled"] is True
    assert not [w for w in recwarn if "training without" in str(w.message)]
