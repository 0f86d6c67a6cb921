"""Training and scoring of video models: on tiny UCF101 files and on pictures under camera motions."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("av")

from training_toys import TINY, stop_after, write_toys
from video_sets import write_kinetics, write_ucf101

import zoo
from modalities.video.batches import ClipBatches
from modalities.video.datasets import UCF101
from modalities.video.evaluate import accuracy, evaluate_video
from modalities.video.motion_task import MotionClassification
from modalities.video.options import VideoOptions
from modalities.video.presets import MOTIONS
from modalities.video.task import VideoClassification
from zoo.errors import ConfigError, DataError
from zoo.training.loop import train
from zoo.training.recipe import load_recipe

MOTION = "pape-video-vit-n-imagenette-motion"
CPU = torch.device("cpu")


def settings(data: Path, out: Path, **changes: Any) -> dict[str, Any]:
    """Makes a built-in recipe tiny."""
    tiny = {"precision": "float32", "device": "cpu", "compile": False, "checkpoint_seconds": 0.0, "eval_every": 0}
    return {"data": str(data), "output": str(out), "batch_size": 4, "epochs": 1, "ema": 0.0, **tiny, **changes}


def ucf101_recipe(data: Path, out: Path, **changes: Any) -> Any:
    small = {"model_options": {**TINY, "patch_size": 16, "input_size": 32}, "workers": 2}
    return load_recipe("ucf101", settings(data, out, **small, **changes))


@pytest.fixture(scope="module")
def ucf101(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ucf101(tmp_path_factory.mktemp("ucf101"))


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toys(tmp_path_factory.mktemp("toys"), train=32, validation=20)


def test_the_ucf101_recipe_has_the_settings_of_the_paper() -> None:
    recipe = load_recipe("ucf101")
    assert (recipe.model, recipe.epochs, recipe.batch_size, recipe.lr) == ("pape-video-vit-b-ucf101", 200, 32, 3e-5)
    assert recipe.pretrained is False and recipe.options.fold == 1
    assert load_recipe("ucf101", {"fold": 2}).options.fold == 2


def test_the_ucf101_recipe_trains_and_validates_on_the_first_groups(ucf101: Path, tmp_path: Path) -> None:
    result = train(ucf101_recipe(ucf101, tmp_path / "run", eval_every=1))
    assert result.finished and result.total_steps == 2  # Eight videos: of each class groups 3 and 4.
    log = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert '"dev_top1"' in log
    model = zoo.load(f"local-dir:{tmp_path / 'run'}")
    assert model.config["labels"] == ["ApplyEyeMakeup", "YoYo"] and model.num_classes == 2
    report = evaluate_video(model, ucf101, split="test", fold=2)
    assert (report["dataset"], report["split"], report["images"]) == ("ucf101", "test", 4)
    (row,) = report["results"]
    assert row["condition"] == "fold 2" and row["top5"] == 100.0 and row["size"] == [32, 32]


def test_kinetics_is_validated_on_its_validation_split(ucf101: Path, tmp_path: Path) -> None:
    root = write_kinetics(tmp_path / "kinetics")
    clip = sorted(ucf101.rglob("*.avi"))[0].read_bytes()
    for file in root.rglob("*.mp4"):
        file.write_bytes(clip)
    recipe = ucf101_recipe(root, tmp_path / "run", batch_size=2, dataset="kinetics")
    with pytest.warns(UserWarning, match="1 of 3 videos"):
        task = VideoClassification(recipe)
    assert (len(task.rows), len(task.dev_rows), task.dev.split) == (2, 1, "val") and task.facts["dev_videos"] == 1
    model = zoo.load(recipe.model, pretrained=False, num_classes=2, **recipe.model_options)
    task.start(model, CPU, 0, 1)
    with torch.no_grad():
        model.head.bias.copy_(torch.tensor([-99.0, 99.0]))
    assert task.evaluate(model, "float32") == {"dev_top1": 100.0, "dev_top5": 100.0}  # It has the second class.
    with pytest.warns(UserWarning, match="1 of 3 videos"):
        held = VideoClassification(ucf101_recipe(root, tmp_path / "run", batch_size=1, dev_count=1, dataset="auto"))
    assert (len(held.rows), len(held.dev_rows), held.dev.split) == (1, 1, "train")
    shutil.rmtree(root / "val")
    with pytest.warns(UserWarning, match="1 of 3"), pytest.raises(DataError, match=r"validation split.*set dev_count"):
        VideoClassification(recipe)
    (root / "val.csv").unlink()
    with pytest.warns(UserWarning, match="1 of 3"):
        assert not len(VideoClassification(recipe).dev_rows)


def test_batches_of_videos_follow_from_seed_and_index(ucf101: Path, tmp_path: Path) -> None:
    recipe = ucf101_recipe(ucf101, tmp_path)
    made = []
    for _ in range(2):
        task = VideoClassification(recipe)
        task.start(zoo.load(recipe.model, pretrained=False, num_classes=2, **recipe.model_options), CPU, 0, 1)
        made.append((task.batch(0, 1), task.batch(1, 0)))
    (first, later), (again, _) = made
    assert torch.equal(first[0].clips, again[0].clips) and torch.equal(first[1], again[1])
    assert not torch.equal(first[0].clips, later[0].clips)
    inputs, labels = first
    assert inputs.clips.shape == (4, 3, 10, 32, 32) and inputs.times_s is None and labels.dtype == torch.int64
    assert inputs.lengths.tolist() == [2] * 4  # Twelve frames hold {0, 1} and {10, 11}.
    assert 20 < float(inputs.clips.mean()) < 240  # Left in 0..255.


def test_kept_clips_and_crops_give_the_same_batches(ucf101: Path) -> None:
    data = UCF101(ucf101, "train")
    data_config = zoo.load("pape-video-vit-b-ucf101", pretrained=False, **TINY, input_size=16).data_config
    rows = np.arange(len(data))
    plain = ClipBatches(data, rows, data_config, VideoOptions(crop_scale=(0.3, 0.8)))
    kept = ClipBatches(data, rows, data_config, VideoOptions(crop_scale=(0.3, 0.8), memory_gib=1.0, workers=2))
    for _ in range(2):
        for found, expected in zip(kept([0, 3], 5), plain([0, 3], 5), strict=True):
            assert torch.equal(found, expected)
    assert len(kept._kept) == 2 and not plain._kept
    assert not torch.equal(plain([0, 3], 6)[0], plain([0, 3], 5)[0])


def test_accuracy_averages_over_clips_and_crops(ucf101: Path) -> None:
    data = UCF101(ucf101, "test")
    model = zoo.load(MOTION, pretrained=False, num_classes=2, **TINY, input_size=32)
    with torch.no_grad():  # Brighter at the end than at the start: class 1.
        model.head.weight.normal_(generator=torch.Generator().manual_seed(0))
    seen: list[int] = []
    model.register_forward_hook(lambda _, inputs, out: seen.append(len(out)))
    one = accuracy(model, data, batch_size=3, workers=2)
    assert sum(seen) == 4 and set(one) == {"top1", "top5"}
    model.config["labels"] = ["YoYo", "ApplyEyeMakeup"]  # Classes are matched by name.
    assert accuracy(model, data, workers=2)["top1"] == pytest.approx(100 - one["top1"])
    seen.clear()
    many = accuracy(model, data, clips=2, crops=3, batch_size=5, workers=2)
    assert seen == [5, 5, 5, 5, 4] and many["top5"] == 100.0
    assert model.training is False
    with pytest.raises(DataError, match="0 videos of 2 classes"):
        accuracy(model, data, np.zeros(0, np.int64))
    with pytest.raises(ConfigError, match="dtype must be one of"):
        accuracy(model, data, dtype="int8")


def test_a_part_of_the_classes_is_told_by_name(ucf101: Path) -> None:
    data = UCF101(ucf101, "test")
    model = zoo.load(MOTION, pretrained=False, num_classes=3, **TINY, input_size=32)
    with torch.no_grad():
        model.head.bias.copy_(torch.tensor([0.0, 9.0, 0.0]))
    with pytest.raises(DataError, match="2 classes, the model has 3, and by their names it is not clear which"):
        accuracy(model, data, workers=2)
    names = list(data.class_names)
    for labels in ([names[1], names[0], "other"], ["other", names[1], names[0]]):
        model.config["labels"] = labels
        share = 100 * float((data.labels == names.index(labels[1])).mean())
        assert accuracy(model, data, workers=2)["top1"] == pytest.approx(share)


def motion_recipe(data: Path, out: Path, **changes: Any) -> Any:
    small = {"model": MOTION, "model_options": {**TINY, "input_size": 16}}
    return load_recipe("imagenette-motion", settings(data, out, **small, **changes))


def test_the_motion_recipe_trains_resumes_alike_and_is_measured(
    toys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train(motion_recipe(toys, tmp_path / "whole", dev_count=8, eval_every=1)).total_steps == 6
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        assert not train(motion_recipe(toys, tmp_path / "parts", dev_count=8, eval_every=1)).finished
    train(motion_recipe(toys, tmp_path / "parts", dev_count=8, eval_every=1), resume=True)
    models = [zoo.load(f"local-dir:{tmp_path / name}") for name in ("whole", "parts")]
    for name, weights in models[0].state_dict().items():
        assert torch.equal(weights, models[1].state_dict()[name]), name
    assert models[0].config["labels"] == list(MOTIONS)

    report = evaluate_video(models[0], toys, split="validation", limit=10)
    assert report["dataset"].endswith("-motion") and (report["images"], report["task"]) == (10, "classification")
    places = [(row["size"], row["condition"]) for row in report["results"]]
    assert places == [
        (16, "16 frames at 16 a second"),
        (16, "32 frames at 16 a second"),
        (24, "16 frames at 16 a second"),
        (32, "16 frames at 16 a second"),
        (16, "8 frames at 8 a second"),
        (16, "32 frames at 32 a second"),
    ]
    assert all(0 <= row["top1"] <= row["top5"] <= 100 for row in report["results"])
    (row,) = evaluate_video(models[0], toys, split="validation", limit=4, sizes=[16])["results"]
    assert row["size"] == 16
    for bad in ({"clips": 2}, {"fold": 2}, {"extend": "pi"}, {"sizes": [(16, 24)]}):
        with pytest.raises(ConfigError):
            evaluate_video(models[0], toys, split="validation", **bad)


def test_the_loss_falls_on_one_batch_of_motions(toys: Path, tmp_path: Path) -> None:
    task = MotionClassification(motion_recipe(toys, tmp_path, batch_size=16))
    torch.manual_seed(0)
    model = zoo.load(MOTION, pretrained=False, **TINY, input_size=16)
    task.start(model, CPU, 0, 1)
    inputs, labels = task.batch(0, 0)
    assert inputs.shape == (16, 3, 16, 16, 16) and labels.shape == (16,)
    assert torch.equal(task.batch(0, 0)[0], inputs) and not torch.equal(task.batch(0, 1)[0], inputs)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(30):
        loss = task.loss(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(np.log(10), abs=1e-3) and losses[-1] < 0.85 * losses[0]


def test_recipes_that_do_not_fit_are_refused(ucf101: Path, toys: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give --data DIR"):
        VideoClassification(load_recipe("ucf101"))
    with pytest.raises(ConfigError, match="give --data DIR"):
        MotionClassification(load_recipe("imagenette-motion"))
    with pytest.raises(ConfigError, match="leave dev_count at 0"):
        VideoClassification(ucf101_recipe(ucf101, tmp_path, dev_count=2))
    for key, value in (("fold", 4), ("flip", 2.0), ("crop_scale", [0.0, 1.0]), ("workers", 0), ("dataset", "x")):
        with pytest.raises(ConfigError, match=f"recipe: {key} must be"):
            load_recipe("ucf101", {key: value})
    with pytest.raises(ConfigError, match="brightness must be"):
        load_recipe("imagenette-motion", {"brightness": 0.5})
    task = MotionClassification(motion_recipe(toys, tmp_path))
    wide = zoo.load(MOTION, pretrained=False, **TINY, input_size=(16, 24))
    with pytest.raises(ConfigError, match="square and at a stated frame rate"):
        task.start(wide, CPU, 0, 1)
