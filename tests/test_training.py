from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from training_toys import SIZE, TINY, stop_after, tiny_settings, write_toys

import zoo
from zoo.errors import ConfigError, DataError, WeightsError, ZooError
from zoo.training.checkpoint import CHECKPOINT, load_checkpoint
from zoo.training.loop import METRICS, RECORD, Trainer, train
from zoo.training.metrics import read_metrics
from zoo.training.recipe import recipe_from_dict
from zoo.training.snapshot import snapshot


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toys(tmp_path_factory.mktemp("toys"))


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path_factory.getbasetemp() / "zoo-cache"))


def deterministic(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in r.items() if k not in ("seconds", "images_per_s")} for r in records]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return zoo.load(f"local-dir:{folder}").state_dict()


# Runs


def test_loss_falls_and_the_result_loads(data: Path, tmp_path: Path) -> None:
    settings = tiny_settings(data, tmp_path / "run", epochs=12, mixup=0.0, cutmix=0.0, weights_dtype="float16")
    result = train(recipe_from_dict({**settings, "dev_count": 8, "eval_every": 6, "drop_path": 0.0}), command="zoo x")
    assert result.finished and result.step == result.total_steps == 12 * 3
    records = read_metrics(result.output / METRICS)
    losses = [r["loss"] for r in records if "loss" in r]
    assert len(losses) == 12 and losses[-1] < 0.75 * losses[0]
    assert [r["epoch"] for r in records if "dev_top1" in r] == [6, 12]
    assert records[-1]["dev_top1"] == 100.0
    record = json.loads((result.output / RECORD).read_text())
    assert record["command"] == "zoo x" and record["data"]["pictures"] == 24 and record["seed"] == 0
    assert record["final_train_loss"] == losses[-1] and record["dev_top1"] == 100.0
    assert not (result.output / CHECKPOINT).exists()
    model = zoo.load(f"local-dir:{result.output}")
    assert model.config["labels"] == ["dark", "bright"] and model.num_classes == 2
    assert model.data_config.input_size == (3, SIZE, SIZE)


@pytest.mark.parametrize("changes", [{}, {"mixup": 0.0, "cutmix": 0.0, "augmentation": "randaugment", "ema": 0.0}])
def test_interrupted_run_equals_the_uninterrupted_one(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    whole = recipe_from_dict(tiny_settings(data, tmp_path / "whole", **changes))
    parts = recipe_from_dict(tiny_settings(data, tmp_path / "parts", **changes))
    train(whole)
    with monkeypatch.context() as patch:
        stop_after(patch, 3)  # inside the first epoch of 4 steps
        first = train(parts)
        assert not first.finished and first.step == 3 and first.reason == "test"
        stop_after(patch, 5)  # at an epoch's end
        assert train(parts, resume=True).step == 8
    torch.manual_seed(99)  # whatever else has drawn random numbers
    assert train(parts, resume=True).finished
    a, b = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(a[key], b[key]) for key in a)
    lines = [deterministic(read_metrics(tmp_path / name / METRICS)) for name in ("whole", "parts")]
    assert lines[0] == lines[1] and len(lines[0]) == 3


def test_snapshot_of_a_stopped_run_loads(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_from_dict(tiny_settings(data, tmp_path / "run", ema=0.9))
    with pytest.raises(WeightsError, match="resume from"):
        snapshot(tmp_path / "run", tmp_path / "none")
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        train(recipe)
    folder, step = snapshot(tmp_path / "run", tmp_path / "cut")
    average = load_checkpoint(tmp_path / "run")["ema"]
    loaded = zoo.load(f"local-dir:{folder}").state_dict()
    assert step == 3 and all(torch.equal(loaded[key], average[key]) for key in average)
    assert train(recipe, resume=True).finished  # The run itself is as it was.
    with pytest.raises(WeightsError, match="finished: load it as local-dir:"):
        snapshot(tmp_path / "run", tmp_path / "late")


def test_killed_run_repeats_the_steps_after_its_checkpoint(data: Path, tmp_path: Path) -> None:
    whole = tiny_settings(data, tmp_path / "whole", log_every=1, checkpoint_every=1)
    train(recipe_from_dict(whole))
    recipe = recipe_from_dict({**whole, "output": str(tmp_path / "killed")})

    class Killed(BaseException):
        pass

    original = Trainer._train_step

    def dying(self: Trainer, inputs: Any, targets: Any) -> Any:
        if self.step == 6:  # two steps after the checkpoint of the first epoch
            raise Killed
        return original(self, inputs, targets)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_train_step", dying)
        with pytest.raises(Killed):
            train(recipe)
    assert read_metrics(tmp_path / "killed" / METRICS)[-1]["step"] == 6  # beyond the checkpoint
    assert load_checkpoint(tmp_path / "killed")["step"] == 4
    train(recipe, resume=True)
    a, b = weights(tmp_path / "whole"), weights(tmp_path / "killed")
    assert all(torch.equal(a[key], b[key]) for key in a)
    lines = [deterministic(read_metrics(tmp_path / name / METRICS)) for name in ("whole", "killed")]
    assert lines[0] == lines[1] and [r["step"] for r in lines[0]] == list(range(1, 13))


def test_resume_refuses_another_run(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tiny_settings(data, tmp_path / "run")
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.warns(UserWarning, match="no checkpoint to resume from: the run starts at its first step"):
            assert train(recipe_from_dict(settings), resume=True).step == 2
    with pytest.raises(ConfigError, match="--resume"):
        train(recipe_from_dict(settings))
    with pytest.raises(ConfigError, match="lr was 0.003 and is now 0.1"):
        train(recipe_from_dict({**settings, "lr": 0.1}), resume=True)
    other = write_toys(tmp_path / "other", train=40)
    with pytest.raises(ConfigError, match="training data differ"):
        train(recipe_from_dict({**settings, "data": str(other)}), resume=True)
    path = tmp_path / "run" / CHECKPOINT
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(WeightsError, match="damaged checkpoint"):
        train(recipe_from_dict(settings), resume=True)


def test_run_killed_before_its_first_checkpoint_starts_over(data: Path, tmp_path: Path) -> None:
    settings = tiny_settings(data, tmp_path / "run", epochs=1, log_every=1)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / METRICS).write_text('{"step": 1}\n{"st')
    with pytest.warns(UserWarning, match="starts at its first step"):
        assert train(recipe_from_dict(settings), resume=True).finished
    assert [r["step"] for r in read_metrics(tmp_path / "run" / METRICS)] == [1, 2, 3, 4]


def test_resuming_a_finished_run_changes_nothing(data: Path, tmp_path: Path) -> None:
    recipe = recipe_from_dict(tiny_settings(data, tmp_path / "run", epochs=1))
    first = train(recipe)
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    again = train(recipe, resume=True)
    assert again.finished and again.loss == first.loss
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before


def test_time_budget_saves_and_stops(data: Path, tmp_path: Path) -> None:
    recipe = recipe_from_dict(tiny_settings(data, tmp_path / "run", max_minutes=1e-9))
    result = train(recipe)
    assert not result.finished and result.step == 1 and "max_minutes" in (result.reason or "")
    assert load_checkpoint(tmp_path / "run")["step"] == 1
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_loss_that_is_not_finite_stops_with_the_step(data: Path, tmp_path: Path) -> None:
    recipe = recipe_from_dict(tiny_settings(data, tmp_path / "run", log_every=4))
    original = Trainer._train_step

    def poisoned(self: Trainer, inputs: Any, targets: Any) -> Any:
        return original(self, inputs * math.nan if self.step == 5 else inputs, targets)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_train_step", poisoned)
        with pytest.raises(ZooError, match="step 6 of 12: loss nan"):
            train(recipe)


def test_ema_is_what_is_exported(data: Path, tmp_path: Path) -> None:
    from accelerate import Accelerator

    recipe = recipe_from_dict(tiny_settings(data, tmp_path / "run", ema=0.9))
    trainer = Trainer(recipe, Accelerator(cpu=True), tmp_path / "run")
    plain = [p.clone() for p in trainer.model.parameters()]
    for step in range(4):
        trainer._train_step(*trainer.task.batch(0, step))
        trainer.step += 1
    averaged = list(trainer.smoothed.parameters())
    trained = list(trainer.model.parameters())
    assert trainer.smoothed is not trainer.model
    assert any(not torch.equal(a, b) for a, b in zip(averaged, trained, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(averaged, plain, strict=True))
    trainer._export("zoo train")
    saved = weights(tmp_path / "run")
    assert all(torch.equal(saved[k], v) for k, v in trainer.smoothed.state_dict().items())


@pytest.mark.parametrize("encoding", ["pape", "pape-ri", "rope", "alibi", "sincos", "none"])
def test_every_trainable_parameter_gets_a_gradient(data: Path, tmp_path: Path, encoding: str) -> None:
    from accelerate import Accelerator

    options = {**TINY, "depth": 2}
    settings = tiny_settings(
        data, tmp_path, model=f"{encoding}-vit-n-in1k", model_options=options, image_size=32, drop_path=0.0
    )
    trainer = Trainer(recipe_from_dict(settings), Accelerator(cpu=True), tmp_path)
    images, targets = trainer.task.batch(0, 0)
    nn.init.normal_(trainer.model.head.weight, std=0.02)  # it starts at zero, which stops all gradients behind it
    trainer.task.loss(trainer.net(images), targets).backward()
    parameters = dict(trainer.model.named_parameters())
    assert [n for n, p in parameters.items() if p.grad is None] == []
    # The class token has no position and alone is read out, so positions in the last block do not reach the loss.
    unread = [n for n in parameters if n.startswith("encoder.blocks.1.attn.encoding.")]
    assert [n for n, p in parameters.items() if not p.grad.any()] == unread


def test_fine_tuning_starts_from_weights(data: Path, tmp_path: Path) -> None:
    source = train(recipe_from_dict(tiny_settings(data, tmp_path / "source", epochs=1)))
    settings = tiny_settings(
        data, tmp_path / "tuned", model=f"local-dir:{source.output}", pretrained=True, model_options={}, lr=1e-12
    )
    train(recipe_from_dict({**settings, "weight_decay": 0.0}))
    a, b = weights(source.output), weights(tmp_path / "tuned")
    assert all(torch.allclose(a[k], b[k], atol=1e-6) for k in a)


def test_batches_that_cannot_be_made_are_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="batch_size 64 is more than the 32"):
        train(recipe_from_dict(tiny_settings(data, tmp_path, batch_size=64)))
    with pytest.raises(ConfigError, match="must be even"):
        train(recipe_from_dict(tiny_settings(data, tmp_path, batch_size=7)))
    with pytest.raises(DataError, match="leaves no training pictures"):
        train(recipe_from_dict(tiny_settings(data, tmp_path, dev_count=32)))
    with pytest.raises(ConfigError, match="--data"):
        train(recipe_from_dict({**tiny_settings(data, tmp_path), "data": None}))
    with pytest.raises(ConfigError, match="--out"):
        train(recipe_from_dict({**tiny_settings(data, tmp_path), "output": None}))


def test_missing_accelerate_says_how_to_install(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(zoo.MissingDependencyError, match=r"pip install 'pape-zoo\[train\]'"):
        train(recipe_from_dict(tiny_settings(data, tmp_path / "run")))


def test_matmul_precision_is_restored(data: Path, tmp_path: Path) -> None:
    before = torch.get_float32_matmul_precision()
    train(recipe_from_dict(tiny_settings(data, tmp_path / "run", epochs=1)))
    assert torch.get_float32_matmul_precision() == before
