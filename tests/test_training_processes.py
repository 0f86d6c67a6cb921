"""Training and evaluation of pictures over processes, and over the parts of a step: the same as in one."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
import torch
import yaml
from training_toys import stop_after, tiny_settings, write_toys

import zoo
from tests import image_ranks
from tests.processes import together
from zoo.errors import ConfigError
from zoo.evaluate import evaluate_data
from zoo.sharing import Share
from zoo.training.checkpoint import load_checkpoint
from zoo.training.loop import METRICS, RECORD, train
from zoo.training.metrics import read_metrics
from zoo.training.recipe import recipe_from_dict

ROOT = Path(__file__).parents[1]
# Nothing drawn at random: parts and processes draw their own.
PLAIN = {"mixup": 0.0, "cutmix": 0.0, "augmentation": "none", "flip": 0.0, "crop_scale": [1.0, 1.0], "drop_path": 0.0}
PLAIN |= {"crop_ratio": [1.0, 1.0], "dev_count": 7, "eval_every": 1, "log_every": 1}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toys(tmp_path_factory.mktemp("toys"), validation=13)


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path_factory.getbasetemp() / "zoo-cache"))


@pytest.fixture(scope="module")
def context() -> ForkServerContext:
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["tests.image_ranks", "modalities.image.task", "torchvision.transforms.v2"])
    return found


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return zoo.load(f"local-dir:{folder}").state_dict()


def assert_close(first: Path, second: Path) -> None:
    a, b = weights(first), weights(second)
    assert a.keys() == b.keys()
    for key in a:
        torch.testing.assert_close(a[key], b[key], rtol=1e-4, atol=2e-5, msg=lambda text, key=key: f"{key}: {text}")
    lines = [read_metrics(folder / METRICS) for folder in (first, second)]
    for key in ("loss", "grad_norm", "lr", "dev_top1"):
        values = [[line[key] for line in one if key in line] for one in lines]
        assert values[0] == pytest.approx(values[1], rel=1e-3, abs=1e-6) and values[0], key


def test_parts_of_a_step_are_the_whole_step(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tiny_settings(data, tmp_path / "whole", **PLAIN)
    parts = {**whole, "accumulate": 4, "output": str(tmp_path / "parts")}
    assert train(recipe_from_dict(whole)).total_steps == 9
    with monkeypatch.context() as patch:
        stop_after(patch, 4)
        assert train(recipe_from_dict(parts)).step == 4
    assert train(recipe_from_dict(parts), resume=True).total_steps == 9
    assert_close(tmp_path / "whole", tmp_path / "parts")
    with pytest.raises(ConfigError, match="batch_size 8 cannot be cut into 3 equal parts"):
        recipe_from_dict({**whole, "accumulate": 3})
    with pytest.raises(ConfigError, match="batch_size 32 is more than the"):
        train(recipe_from_dict({**whole, "batch_size": 32, "accumulate": 4, "output": str(tmp_path / "none")}))


def test_batches_of_processes_are_those_of_one() -> None:
    for world in (1, 2, 3, 5):
        shares = [Share(rank, world).blocks(23, 4) for rank in range(world)]
        assert sorted(block for blocks in shares for block in blocks) == Share().blocks(23, 4)
    assert Share().blocks(23, 4)[-1] == (20, 23) and Share(1, 2).blocks(3, 4) == []


def test_two_processes_train_and_evaluate_as_one(context: ForkServerContext, data: Path, tmp_path: Path) -> None:
    settings = tiny_settings(data, tmp_path / "one", **PLAIN)
    train(recipe_from_dict(settings))
    settings["accumulate"] = 2
    settings["checkpoint_seconds"] = 1e-4  # A gathered checkpoint after every step, by the clock of one process.
    for name, sharded in (("ddp", False), ("fsdp2", True)):
        together(context, image_ranks.trained_by_clocks, {**settings, "output": str(tmp_path / name)}, sharded)
        assert_close(tmp_path / "one", tmp_path / name)
        record = json.loads((tmp_path / name / RECORD).read_text())
        assert (
            record["processes"] == 2 and record["dev_top1"] == read_metrics(tmp_path / name / METRICS)[-1]["dev_top1"]
        )
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("one", "ddp", "fsdp2")]
    assert len(set(sizes)) == 1
    # The numbers of an evaluation are the same to the bit, whatever the batches are.
    names = [f"local-dir:{tmp_path / name}" for name in ("one", "ddp", "fsdp2")]
    together(context, image_ranks.evaluated, data, names, tmp_path / "reports.json")
    for name, size, report in zip(names, (2, 5, 64), json.loads((tmp_path / "reports.json").read_text()), strict=True):
        (alone,), (shared,) = evaluate_data(zoo.load(name), data, batch_size=size)["results"], report["results"]
        assert report["images"] == 13 and (alone["top1"], alone["top5"]) == (shared["top1"], shared["top5"])


def test_metrics_of_a_run_killed_between_their_lines_are_those_of_all_processes(
    context: ForkServerContext, data: Path, tmp_path: Path
) -> None:
    settings = tiny_settings(data, tmp_path / "whole", checkpoint_every=1, log_every=3, epochs=2)
    together(context, image_ranks.trained, settings)
    settings["output"] = str(tmp_path / "killed")
    together(context, image_ranks.killed_at, settings, 5)
    checkpoint = load_checkpoint(tmp_path / "killed")
    assert checkpoint["step"] == 4 and len(checkpoint["pending"]) == 1
    together(context, image_ranks.trained, settings)
    lines = [read_metrics(tmp_path / name / METRICS) for name in ("whole", "killed")]
    assert [line["step"] for line in lines[1]] == [line["step"] for line in lines[0]] == [3, 6, 8]
    for key in ("loss", "grad_norm"):
        assert [line[key] for line in lines[1]] == pytest.approx([line[key] for line in lines[0]], rel=1e-6)


@pytest.mark.slow
def test_sharded_run_resumes_to_the_bit(context: ForkServerContext, data: Path, tmp_path: Path) -> None:
    settings = tiny_settings(data, tmp_path / "whole", mixup=0.0, cutmix=0.0)
    together(context, image_ranks.trained, settings, True)
    parts = {**settings, "output": str(tmp_path / "parts"), "max_minutes": 1e-9, "log_every": 5}
    whole = {**settings, "log_every": 5, "output": str(tmp_path / "whole5")}
    together(context, image_ranks.trained, whole, True)
    for _ in range(3):  # Processes agree on stopping where they exchange losses, every fifth step of twelve.
        together(context, image_ranks.trained, parts, True)
    a, b, c = weights(tmp_path / "whole"), weights(tmp_path / "parts"), weights(tmp_path / "whole5")
    assert all(torch.equal(a[key], b[key]) and torch.equal(a[key], c[key]) for key in a)


@pytest.mark.slow
def test_accelerate_launch_trains_and_evaluates(data: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(tiny_settings(data, tmp_path / "run", **PLAIN)))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    # On a machine without a GPU this is how processes are started that talk through gloo; --cpu starts one alone.
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    evaluate = ["eval", f"local-dir:{tmp_path / 'run'}", "--data", str(data), "--device", "cpu", "--batch-size", "3"]
    for command in (["train", str(recipe)], [*evaluate, "--out", str(tmp_path / "two.json")]):
        done = subprocess.run(
            [*launch, "-m", "zoo.cli.main", *command], capture_output=True, text=True, env=environment, timeout=280
        )
        assert done.returncode == 0, done.stderr[-4000:]
        assert len(done.stdout.strip().splitlines()) > 0
    alone = evaluate_data(zoo.load(f"local-dir:{tmp_path / 'run'}"), data, batch_size=3)["results"][0]
    shared = json.loads((tmp_path / "two.json").read_text())["results"][0]
    assert (alone["top1"], alone["top5"]) == (shared["top1"], shared["top5"])
