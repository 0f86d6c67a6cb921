"""Training and scoring of driving models on tiny sets in the format of nuScenes, end to end on the CPU."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

import zoo
from modalities.driving.evaluate import evaluate_driving
from modalities.driving.frames import FrameReader, ResidentFrames
from modalities.driving.task import DrivingDetection
from tests.driving_models import AUGMENTED, CLASSES, PLAIN, write_model
from tests.driving_tables import write_drive
from tests.training_toys import soon, stop_after
from zoo.cli.main import main
from zoo.errors import ConfigError, DataError
from zoo.training.loop import train
from zoo.training.recipe import Recipe, load_recipe

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two scenes, of mini_train and of mini_val."""
    return write_drive(tmp_path_factory.mktemp("drive"))


@pytest.fixture(scope="module", autouse=True)
def network(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The small network that recipes train unless they say otherwise."""
    return _NETWORK.setdefault("name", write_model(tmp_path_factory.mktemp("network") / "model"))


_NETWORK: dict[str, str] = {}


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))


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
    return load_recipe(name, {"model": _NETWORK["name"]} | values | changes)


def task(data: Path, out: Path, rank: int = 0, world: int = 1, **changes: Any) -> Any:
    made = recipe(data, out, **changes)
    started = DrivingDetection(made)
    started.start(zoo.load(made.model, **started.model_arguments()), CPU, rank, world)
    return started


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
    settings = {"epochs": 25, "lr": 5e-3, "clip": 10.0, "dev_split": "mini_train"}
    train(recipe(drive, tmp_path / "run", **PLAIN | settings))
    found = lines(tmp_path / "run")
    losses = [line["loss"] for line in found if "loss" in line]
    assert np.mean(losses[-4:]) < 0.3 * np.mean(losses[:2])
    assert json.loads((tmp_path / "run" / "train_record.json").read_text())["dev_map"] > 40


def test_an_interrupted_run_ends_as_one_that_was_not(
    drive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(multiprocessing.active_children())
    train(recipe(drive, tmp_path / "whole", **AUGMENTED))
    assert soon(lambda: set(multiprocessing.active_children()) <= before)  # Those that made batches are gone.
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
    whole, *parts = (
        task(drive, tmp_path / "run", rank, world, **PLAIN, batch_size=4).batch(0, 0)[0].images
        for rank, world in ((0, 1), (0, 2), (1, 2))
    )
    assert torch.equal(torch.cat(parts), whole)


def test_pasting_stops_before_the_end_and_rare_classes_come_more_often(drive: Path, tmp_path: Path) -> None:
    made = task(drive, tmp_path / "run", **PLAIN, paste={"car": 8}, paste_min_points=1, paste_off=1, balance=True)
    own = [len(made.frames[row].boxes) for row in range(len(made.frames))]
    counts = [[int(target.sum()) for target in made.batch(epoch, 0)[1].mask] for epoch in range(2)]
    assert max(counts[1]) <= max(own) and sum(counts[0]) >= sum(counts[1])
    assert len(made.order.weights) == len(made.tokens)


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
    own = {"model": write_model(tmp_path / "model", **model)} if model else {}
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


def test_files_of_sensors_that_a_model_does_not_look_at_may_be_missing(tmp_path: Path) -> None:
    drive = write_drive(tmp_path / "drive")
    shutil.rmtree(drive / "samples" / "LIDAR_TOP")
    camera, lidar = (write_model(tmp_path / name, sensors=name) for name in ("camera", "lidar"))
    found = task(drive, tmp_path / "run", model=camera, **PLAIN, workers=0).batch(0, 0)[0]
    assert found.points is None and bool(found.image_mask.any())
    assert evaluate_driving(zoo.load(camera), drive, split="mini_val", limit=1)["images"] == 1
    for name in (lidar, _NETWORK["name"]):
        with pytest.raises(DataError, match="LIDAR_TOP"):
            evaluate_driving(zoo.load(name), drive, split="mini_val", limit=1)
    drive = write_drive(tmp_path / "other")
    shutil.rmtree(drive / "samples" / "CAM_BACK")
    found = task(drive, tmp_path / "run", model=lidar, **PLAIN, workers=0).batch(0, 0)[0]
    assert found.points is not None and found.images is None
    assert evaluate_driving(zoo.load(lidar), drive, split="mini_val", limit=1)["images"] == 1


def test_models_of_one_sensor_and_with_other_classes_train(drive: Path, tmp_path: Path) -> None:
    for sensors in ("camera", "lidar"):
        model = write_model(tmp_path / sensors, sensors=sensors)
        assert train(recipe(drive, tmp_path / f"run-{sensors}", model=model, epochs=1)).finished
        assert evaluate_driving(zoo.load(f"local-dir:{tmp_path / f'run-{sensors}'}"), drive, split="mini_val")["images"]
    other = recipe(drive, tmp_path / "other", classes=["bicycle", "car"], epochs=1)
    train(other)
    found = zoo.load(f"local-dir:{tmp_path / 'other'}")
    assert found.config["labels"] == ["bicycle", "car"]
    assert {"map/bicycle", "map/car"} < evaluate_driving(found, drive, split="mini_val")["results"][0].keys()


def test_the_nuscenes_recipe_has_the_published_settings_and_runs(drive: Path, tmp_path: Path) -> None:
    full = load_recipe("nuscenes")
    assert (full.model, full.epochs, full.lr, full.weight_decay) == ("pape-fusion-b-nuscenes", 10, 3e-3, 0.03)
    assert full.options.balance and full.options.paste_off == 2 and full.options.paste["construction_vehicle"] == 7
    numbers = {name: full.options.paste[name] for name in CLASSES}
    made = recipe(drive, tmp_path / "run", "nuscenes", batch_size=3, paste=numbers, paste_off=1, workers=2)
    assert train(made).finished
