"""Training and scoring of driving models on tiny sets in the format of nuScenes, end to end on the CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

import zoo
from modalities.driving.batch import DrivingBatch
from modalities.driving.evaluate import Dropped, as_metrics, detect_frames, evaluate_driving, score_boxes
from modalities.driving.frames import FrameReader, ResidentFrames, collate, open_frames, training_boxes
from modalities.driving.look_ahead import LookAhead
from modalities.driving.nuscenes.dataset import NuScenes
from modalities.driving.nuscenes.truth import detection_truth
from modalities.driving.options import DrivingOptions
from tests.driving_tables import OBJECTS, write_drive
from tests.driving_toys import scenes, tiny_config
from tests.training_toys import stop_after
from zoo import registry
from zoo.cli.main import main
from zoo.errors import ConfigError, DataError
from zoo.training.loop import Trainer, train
from zoo.training.recipe import Recipe, load_recipe

CPU = torch.device("cpu")
CLASSES = ["car", "pedestrian", "bicycle"]
AUGMENTED: dict[str, Any] = {
    "image_scale": [0.9, 1.2],
    "image_rotate": 5.0,
    "image_flip": 0.5,
    "colour": 0.2,
    "flip": [0.5, 0.5],
    "rotate": 20.0,
    "scale": [0.95, 1.05],
    "translate": [0.2, 0.2, 0.1],
    "drop_points": 0.2,
    "drop_camera": 0.2,
    "drop_lidar": 0.2,
    "balance": True,
    "paste": {"car": 2, "bicycle": 3},
    "paste_min_points": 1,
    "paste_off": 1,
}
PLAIN: dict[str, Any] = {
    "image_scale": [1, 1],
    "colour": 0.0,
    "flip": [0, 0],
    "rotate": 0.0,
    "scale": [1, 1],
    "translate": [0, 0, 0],
    "ema": 0.0,
}


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two scenes, of mini_train and of mini_val."""
    return write_drive(tmp_path_factory.mktemp("drive"))


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))


def write_model(folder: Path, *, labels: list[str] = CLASSES, **model: Any) -> str:
    """A small network for the toy drive; its name for `zoo.load`."""
    config = tiny_config("none", num_classes=len(labels), **model)
    config["data"] |= {
        "cameras": ["CAM_FRONT", "CAM_BACK", "CAM_LEFT"],
        "point_range": [-24.0, -16.0, -3.0, 24.0, 16.0, 5.0],
        "pillar_size": 1.6,
        "sweeps": 2,
        "class_names": labels,
    }
    config["labels"] = labels
    torch.manual_seed(0)
    zoo.save(registry.architecture(config).build(config), folder)
    return f"local-dir:{folder}"


def recipe(data: Path, out: Path, name: str = "simdrive", **changes: Any) -> Recipe:
    values: dict[str, Any] = {
        "data": str(data),
        "output": str(out),
        "device": "cpu",
        "precision": "float32",
        "split": "mini_train",
        "dev_split": None,
        "epochs": 2,
        "batch_size": 2,
        "log_every": 1,
        "workers": 1,
    }
    if "model" not in changes:
        values["model"] = write_model(out.parent / "model")
    return load_recipe(name, values | changes)


def task(data: Path, out: Path, **changes: Any) -> Any:
    import accelerate

    return Trainer(recipe(data, out, **changes), accelerate.Accelerator(cpu=True), out).task


def same(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    pairs = zip(tree_leaves(one), tree_leaves(other), strict=True)
    return all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in pairs)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def command(*arguments: object) -> None:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    assert stop.value.code == 0


def test_a_simulated_set_trains_and_is_scored_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = tmp_path / "data", tmp_path / "run"
    made = ["--scenes", "3", "--val-scenes", "1", "--frames", "1", "--size", "64x32", "--azimuths", "60"]
    command("make-drive", "--out", data, *made, "--workers", "1", "--quiet")
    labels = ["car", "truck", "bus", "pedestrian", "bicycle", "traffic_cone", "barrier"]
    model = write_model(tmp_path / "model", labels=labels)
    changes = ["epochs=1", "batch_size=2", "precision=float32", "device=cpu", "log_every=1"]
    options = [part for change in changes for part in ("--set", change)]
    command("train", "simdrive", "--model", model, "--data", data, "--out", out, *options)
    record = json.loads((out / "train_record.json").read_text())
    assert record["data"]["name"] == "simdrive" and (record["data"]["samples"], record["data"]["dev_samples"]) == (3, 1)
    assert 0 <= record["dev_map"] <= 100 and 0 <= record["dev_nds"] <= 100 and "dev_map/car" in record
    assert {"loss/heat", "loss/class", "loss/box", "loss/velocity"} <= lines(out)[0].keys()
    assert zoo.load(f"local-dir:{out}").config["labels"] == labels
    capsys.readouterr()
    where = ["eval", f"local-dir:{out}", "--data", str(data), "--split", "val", "--drop", "cameras,lidar"]
    command(*where, "--json")
    report = json.loads(capsys.readouterr().out)
    assert (report["dataset"], report["images"], report["data_sha256"]) == ("simdrive", 1, record["data"]["sha256"])
    found = [row.get("condition") for row in report["results"]]
    assert found == [None, "without cameras", "without lidar"]
    assert {"map", "nds", "mate", "mase", "maoe", "mave", "maae", "map/barrier"} <= report["results"][0].keys()
    assert report["results"][0]["map"] == pytest.approx(record["dev_map"], abs=1e-6)
    command(*where)
    assert "NDS" in (text := capsys.readouterr().out) and "AP50" not in text


def test_two_frames_are_learnt_by_heart(tmp_path: Path) -> None:
    drive = write_drive(tmp_path / "drive", frames=2)
    model = write_model(tmp_path / "model", query_window=5)
    settings = {"model": model, "epochs": 25, "lr": 5e-3, "clip": 10.0, "dev_split": "mini_train"}
    train(recipe(drive, tmp_path / "run", **PLAIN | settings))
    found = lines(tmp_path / "run")
    losses = [line["loss"] for line in found if "loss" in line]
    assert np.mean(losses[-4:]) < 0.3 * np.mean(losses[:2])
    assert json.loads((tmp_path / "run" / "train_record.json").read_text())["dev_map"] > 40


def test_an_interrupted_run_ends_as_one_that_was_not(
    drive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(recipe(drive, tmp_path / "whole", **AUGMENTED))
    parts = recipe(drive, tmp_path / "parts", **AUGMENTED, workers=0)
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        assert not train(parts).finished
    torch.manual_seed(77)  # What a process drew before must not matter.
    assert train(recipe(drive, tmp_path / "parts", **AUGMENTED, workers=0), resume=True).finished
    whole, resumed = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts"))
    assert whole == resumed


def test_batches_depend_on_seed_epoch_and_index_alone(drive: Path, tmp_path: Path) -> None:
    kept = task(drive, tmp_path / "one", **AUGMENTED, epochs=4, workers=2)
    streamed = task(drive, tmp_path / "one", **AUGMENTED, epochs=4, workers=0, memory_gib=0.0)
    assert isinstance(kept.frames, ResidentFrames) and isinstance(streamed.frames, FrameReader)
    places = [(3, 1), (0, 0), (2, 1), (0, 1)]
    late = [streamed.batch(*place) for place in places[::-1]][::-1]
    for found, place in zip(late, places, strict=True):
        torch.manual_seed(place[0])
        assert same(found, kept.batch(*place)) and same(found, kept.batch(*place))
    assert not same(late[0], late[1])
    assert not same(late[0], task(drive, tmp_path / "one", **AUGMENTED, epochs=4, seed=1).batch(3, 1))


def test_processes_share_a_batch(drive: Path, tmp_path: Path) -> None:
    whole = task(drive, tmp_path / "run", **PLAIN, batch_size=4)
    images = whole.batch(0, 0)[0].images
    parts = []
    for rank in range(2):
        part = task(drive, tmp_path / "run", **PLAIN, batch_size=4)
        part.start(zoo.load(part.recipe.model), CPU, rank, 2)
        parts.append(part.batch(0, 0)[0].images)
    assert torch.equal(torch.cat(parts), images)


def test_pasting_stops_before_the_end_and_rare_classes_come_more_often(drive: Path, tmp_path: Path) -> None:
    made = task(drive, tmp_path / "run", **PLAIN, paste={"car": 8}, paste_min_points=1, paste_off=1, balance=True)
    own = [len(made.frames[row].boxes) for row in range(len(made.frames))]
    counts = [[int(target.sum()) for target in made.batch(epoch, 0)[1].mask] for epoch in range(2)]
    assert max(counts[1]) <= max(own) and sum(counts[0]) >= sum(counts[1])
    assert len(made.order.weights) == len(made.tokens)


def test_frames_hold_what_a_model_looks_at(drive: Path, tmp_path: Path) -> None:
    model = zoo.load(write_model(tmp_path / "model"))
    data = NuScenes(drive, classes=CLASSES)
    tokens = data.sample_tokens("mini_val")
    frames = FrameReader(data, tokens, model.data_config, model.sizes)
    frame = frames[1]
    assert frame.images is not None and frame.images.shape == (3, 3, 32, 48) and frame.images.dtype == torch.uint8
    assert frame.image_mask.tolist() == [True, True, False]  # The drive has no third camera.
    assert frame.points is not None and frame.points.shape[1] == 5 and frame.points[:, 4].max() > 0  # Two sweeps.
    sample = data.sample(tokens[1])
    assert sample.annotations is not None
    # Neither the animal and the rack (no class of ours) nor the barrier.
    assert sorted(frame.boxes.label.tolist()) == [0, 1, 2, 2]
    # What no ray met is not trained on.
    counts = sample.annotations.num_lidar_points.copy()
    counts[:] = 0
    empty = type(sample.annotations)(**{**vars(sample.annotations), "num_lidar_points": counts})
    assert len(training_boxes(empty)) == 0
    with pytest.raises(DataError, match="no annotations"):
        training_boxes(None)
    kept = open_frames(frames, CPU, 1.0, workers=2)
    assert isinstance(kept, ResidentFrames) and open_frames(frames, CPU, 1e-9) is frames
    assert torch.equal(kept[1].images, frame.images) and torch.equal(kept[1].points, frame.points)
    batch = collate([kept[0], kept[1]], model.data_config, CPU)
    assert len(batch) == 2 and batch.images is not None and batch.images.dtype == torch.float32
    lidar = FrameReader(data, tokens, model.data_config, zoo.load(write_model(tmp_path / "l", sensors="lidar")).sizes)
    assert lidar[0].images is None and lidar[0].points is not None


@pytest.mark.parametrize("step", range(11))
def test_images_may_be_on_another_device_than_all_else(drive: Path, tmp_path: Path, step: int) -> None:
    options = DrivingOptions(**{k: v for k, v in AUGMENTED.items() if k not in ("balance",) and "paste" not in k})
    model = zoo.load(write_model(tmp_path / "model"))
    data = NuScenes(drive, classes=CLASSES)
    frame = FrameReader(data, data.sample_tokens("mini_val"), model.data_config, model.sizes)[0]
    assert frame.images is not None
    steps = options.augmentations(model.data_config)
    assert len(steps) == 11
    elsewhere = frame.replaced(images=frame.images.to("meta"))
    for seed in range(3):
        here, there = (steps[step](f, torch.Generator().manual_seed(seed)) for f in (frame, elsewhere))
        assert there.images is not None and there.images.device.type == "meta" and there.points is not None
        assert torch.equal(here.points, there.points) and torch.equal(here.intrinsics, there.intrinsics)
        assert torch.equal(here.boxes.as_tensor()[:, :7], there.boxes.as_tensor()[:, :7])


def test_the_truth_scores_best_and_a_shift_costs(drive: Path) -> None:
    data = NuScenes(drive, classes=CLASSES)
    tokens = data.sample_tokens("mini_val")
    truth = detection_truth(data, tokens)
    boxes = {}
    for token in tokens:
        annotations = data.sample(token, sweeps=1).annotations
        assert annotations is not None
        own = training_boxes(annotations)
        boxes[token] = own.with_(score=torch.ones(len(own)), velocity=own.velocity.nan_to_num(0.0))
    perfect = as_metrics(score_boxes(boxes, truth, data))
    # The default attribute of a standing bicycle is right here, and a car of these is always moving.
    assert perfect["map"] == pytest.approx(100) and perfect["mate"] < 1e-3 and perfect["maae"] < 1e-3
    assert perfect["nds"] == pytest.approx(100, abs=0.5) and perfect["map/car"] == pytest.approx(100)
    moved = {token: own.with_(centre=own.centre + torch.tensor([1.5, 0, 0])) for token, own in boxes.items()}
    shifted = as_metrics(score_boxes(moved, truth, data))
    assert 40 < shifted["map"] < 60 and shifted["mate"] == pytest.approx(1.5, abs=1e-2)


def test_sensors_are_switched_off_by_name(drive: Path, tmp_path: Path) -> None:
    name = write_model(tmp_path / "model")
    model = zoo.load(name)
    config = model.data_config
    off = Dropped.parse("CAM_BACK+lidar", config, "camera+lidar")
    assert off == Dropped(frozenset({"CAM_BACK"}), True)
    data = NuScenes(drive, classes=CLASSES)
    frames = FrameReader(data, data.sample_tokens("mini_val"), config, model.sizes, boxes=False)
    frame = off(frames[0], config)
    assert frame.image_mask.tolist() == [True, False, False] and frame.points is not None and not len(frame.points)
    whole, blind = (detect_frames(model, frames, dropped=d, batch_size=3, workers=0) for d in (None, off))
    assert len(whole) == len(blind) == len(frames) and len(whole[0]) == 16
    assert not torch.equal(whole[0].centre, blind[0].centre)
    for text, sensors, words in (
        ("CAM_TOP", "camera+lidar", "'CAM_TOP' is no sensor"),
        ("lidar", "camera", "'lidar' is no sensor"),
        ("cameras+lidar", "camera+lidar", "nothing to look at"),
        ("CAM_FRONT+CAM_BACK+CAM_LEFT", "camera", "nothing to look at"),
        ("lidar", "lidar", "nothing to look at"),
    ):
        with pytest.raises(ConfigError, match=words):
            Dropped.parse(text, config, sensors)
    with pytest.raises(ConfigError, match="leave out sizes"):
        evaluate_driving(model, drive, split="mini_val", sizes=[32])
    with pytest.raises(ConfigError, match="no split 'valley'"):
        evaluate_driving(model, drive, split="valley")
    each = evaluate_driving(model, drive, split="mini_val", limit=1, drop=["each"])
    assert each["images"] == 1 and [row.get("condition") for row in each["results"]] == [
        None,
        *(f"without {sensor}" for sensor in ("CAM_FRONT", "CAM_BACK", "CAM_LEFT", "cameras", "lidar")),
    ]


def _without_lidar(tables: dict[str, Any]) -> None:
    tables["sample_data"] = [row for row in tables["sample_data"] if "LIDAR" not in row["filename"]]


@pytest.mark.parametrize(
    ("options", "model", "words"),
    [
        ({"split": "test"}, {}, "none of its scenes is in the split 'test'"),
        ({"dev_split": "test"}, {}, "dev_split: null"),
        ({"classes": ["car", "tram"]}, {}, "classes must be different ones of"),
        ({"classes": ["trailer"]}, {}, "no box of the classes trailer"),
        ({"batch_size": 50}, {}, "more than the 4 training samples"),
        ({"paste": {"truck": 3}}, {}, "paste names 'truck'"),
        ({"paste": {"car": "many"}}, {}, "paste must be numbers by class"),
        ({"missing_images": "guess"}, {}, "raise or mask"),
        ({"model": "pape-vit-t-imagenette"}, {}, "trains models for driving detection"),
        ({}, {"labels": ["cat", "dog"]}, "classes must be different ones of"),
    ],
)
def test_what_cannot_be_trained_is_said(
    drive: Path, tmp_path: Path, options: dict[str, Any], model: dict[str, Any], words: str
) -> None:
    own = {} if "model" in options else {"model": write_model(tmp_path / "model", **model)}
    with pytest.raises((ConfigError, DataError), match=words):
        train(recipe(drive, tmp_path / "run", **own | options))


def test_there_must_be_data(tmp_path: Path) -> None:
    settings = {"model": "pape-fusion-n-simdrive", "output": str(tmp_path / "run"), "device": "cpu"}
    with pytest.raises(ConfigError, match="give --data DATAROOT"):
        train(load_recipe("simdrive", settings))
    with pytest.raises(DataError, match="no folder of nuScenes tables"):
        train(load_recipe("simdrive", settings | {"data": str(tmp_path)}))


def test_missing_pictures_and_sweeps(tmp_path: Path) -> None:
    drive = write_drive(tmp_path / "drive", change=_without_lidar)
    assert train(recipe(drive, tmp_path / "cameras", epochs=1, **PLAIN)).finished
    lidar = write_model(tmp_path / "lidar", sensors="lidar")
    with pytest.raises(DataError, match="has no lidar: the model looks at lidar"):
        train(recipe(drive, tmp_path / "run", model=lidar))
    for picture in (drive / "samples" / "CAM_BACK").iterdir():
        picture.unlink()
    with pytest.raises(DataError, match="no such picture"):
        train(recipe(drive, tmp_path / "run2"))
    masked = task(drive, tmp_path / "run3", missing_images="mask", **PLAIN)
    assert masked.batch(0, 0)[0].image_mask.tolist() == [[True, False, False]] * 2
    model = zoo.load(masked.recipe.model)
    with pytest.raises(DataError, match="no such picture"):
        evaluate_driving(model, drive, split="mini_val")
    assert evaluate_driving(model, drive, split="mini_val", skip_bad=True)["images"] == 4
    for picture in (drive / "samples" / "CAM_FRONT").iterdir():
        picture.write_bytes(b"no picture")
    with pytest.raises(DataError, match="CAM_FRONT"):
        train(recipe(drive, tmp_path / "run4", missing_images="mask"))


def test_models_of_one_sensor_and_with_other_classes_train(drive: Path, tmp_path: Path) -> None:
    for sensors in ("camera", "lidar"):
        model = write_model(tmp_path / sensors, sensors=sensors)
        assert train(recipe(drive, tmp_path / f"run-{sensors}", model=model, epochs=1)).finished
        assert evaluate_driving(zoo.load(f"local-dir:{tmp_path / f'run-{sensors}'}"), drive, split="mini_val")["images"]
    other = recipe(drive, tmp_path / "other", classes=["bicycle", "car"], epochs=1)
    train(other)
    found = zoo.load(f"local-dir:{tmp_path / 'other'}")
    assert found.config["labels"] == ["bicycle", "car"] == list(found.data_config.class_names)
    assert {"map/bicycle", "map/car"} < evaluate_driving(found, drive, split="mini_val")["results"][0].keys()


def test_the_nuscenes_recipe_has_the_published_settings_and_runs(drive: Path, tmp_path: Path) -> None:
    full = load_recipe("nuscenes")
    assert (full.model, full.epochs, full.lr, full.weight_decay) == ("pape-fusion-b-nuscenes", 10, 3e-3, 0.03)
    assert full.options.balance and full.options.paste_off == 2 and full.options.paste["construction_vehicle"] == 7
    numbers = {name: full.options.paste[name] for name in CLASSES}
    made = recipe(drive, tmp_path / "run", "nuscenes", batch_size=3, paste=numbers, paste_off=1, workers=2)
    assert train(made).finished


def test_batches_are_trees_of_tensors() -> None:
    batch = scenes(20, 30)
    assert len(tree_leaves(batch)) == 6
    doubled = tree_map(lambda tensor: tensor, batch)
    assert isinstance(doubled, DrivingBatch) and torch.equal(doubled.points, batch.points)
    blind = DrivingBatch(None, batch.intrinsics, batch.camera_from_ego, batch.points, batch.offsets, batch.image_mask)
    again = tree_map(lambda tensor: tensor, blind)
    assert len(tree_leaves(blind)) == 5 and again.images is None


def test_work_is_done_ahead_and_in_order() -> None:
    begun: list[int] = []

    def jobs(step: int) -> list[Callable[[], int]]:
        begun.append(step)
        return [lambda: 10 * step, lambda: 10 * step + 1]

    load = LookAhead(jobs, 5, 2, 2, CPU)
    assert load(0) == [0, 1] and begun == [0, 1, 2]
    assert load(1) == [10, 11] and begun == [0, 1, 2, 3]
    assert load(4) == [40, 41] and load(4) == [40, 41] and load(2) == [20, 21]
    assert load(7) == [70, 71]  # Beyond the end there is nothing ahead, but what is asked for is made.
    assert LookAhead(jobs, 5, 0, 2, CPU)(3) == [30, 31]

    def broken(step: int) -> list[Callable[[], int]]:
        return [lambda: 1 // (1 - step)]

    load = LookAhead(broken, 5, 1, 2, CPU)
    assert load(0) == [1]
    with pytest.raises(ZeroDivisionError):
        load(1)
    assert len(OBJECTS) == 7
