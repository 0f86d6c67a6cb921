from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from training_toys import stop_after, tiny_settings, write_toys

from zoo.training.checkpoint import load_checkpoint
from zoo.training.loop import METRICS, RECORD, Trainer, train
from zoo.training.metrics import read_metrics
from zoo.training.recipe import recipe_from_dict

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toys(tmp_path_factory.mktemp("toys"))


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path_factory.getbasetemp() / "zoo-cache"))


def run_cli(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Runs the command line in this process; returns the exit code."""
    from zoo.cli.main import main

    monkeypatch.setattr(sys, "argv", ["zoo", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


# Command line


def write_recipe(path: Path, settings: dict[str, Any]) -> Path:
    import yaml

    path.write_text(yaml.safe_dump(settings))
    return path


def test_cli_trains_evaluates_and_reports_errors(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tiny_settings(data, tmp_path / "ignored", epochs=10, mixup=0.0, cutmix=0.0)
    recipe, out = write_recipe(tmp_path / "toy.yaml", settings), tmp_path / "run"
    assert run_cli(monkeypatch, "train", recipe, "--out", out, "--seed", 1, "--set", "warmup=0.1", "--quiet") == 0
    assert f"local-dir:{out}" in capsys.readouterr().out
    record = json.loads((out / RECORD).read_text())
    assert record["recipe"]["warmup"] == 0.1 and record["seed"] == 1 and record["command"].startswith("zoo train")

    report = tmp_path / "results" / "eval.json"
    arguments = ("eval", f"local-dir:{out}", "--data", data, "--sizes", "16,32", "--device", "cpu")
    assert run_cli(monkeypatch, *arguments, "--out", report) == 0
    assert "top-1" in capsys.readouterr().out
    written = json.loads(report.read_text())
    assert [row["size"] for row in written["results"]] == [16, 32]
    assert written["images"] == 12 and written["command"].startswith("zoo eval local-dir:")
    assert written["results"][0]["top1"] == 100.0
    assert run_cli(monkeypatch, *arguments, "--json", "--limit", 4) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 4

    for arguments, message in (
        (("train", recipe, "--set", "epoch=3"), "did you mean 'epochs'"),
        (("train", recipe, "--out", out), "--resume"),
        (("eval", f"local-dir:{out}", "--data", tmp_path / "nowhere"), "no such data"),
        (("eval", f"local-dir:{out}", "--data", data, "--sizes", "big"), "--sizes takes whole numbers"),
    ):
        assert run_cli(monkeypatch, *arguments) == 2
        errors = capsys.readouterr().err
        assert message in errors and errors.startswith("error: ") and errors.count("\n") == 1


def test_cli_stop_says_how_to_continue(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(tmp_path / "toy.yaml", tiny_settings(data, tmp_path / "run"))
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        assert run_cli(patch, "train", recipe) == 0
    errors = capsys.readouterr().err
    assert "stopped at step 3 of 12" in errors and f"zoo train {recipe} --resume" in errors
    assert run_cli(monkeypatch, "train", recipe, "--resume") == 0
    assert "12 steps" in capsys.readouterr().out


def test_sigterm_saves_a_checkpoint(data: Path, tmp_path: Path) -> None:
    import time

    recipe = write_recipe(tmp_path / "toy.yaml", tiny_settings(data, tmp_path / "run", epochs=100_000, log_every=1))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "zoo.cli.main", "train", str(recipe)], stderr=subprocess.PIPE, text=True, env=environment
    )
    deadline = time.monotonic() + 120
    while not read_metrics(tmp_path / "run" / METRICS) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "SIGTERM" in errors and "--resume" in errors
    assert load_checkpoint(tmp_path / "run")["step"] >= 1


@pytest.mark.slow
def test_two_processes_share_the_batch(data: Path, tmp_path: Path) -> None:
    settings = tiny_settings(data, tmp_path / "run", epochs=4, drop_path=0.0, dev_count=8)
    recipe = write_recipe(tmp_path / "toy.yaml", settings)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    done = subprocess.run(
        [*command, "zoo.cli.main", "train", str(recipe)], capture_output=True, text=True, env=environment, timeout=280
    )
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "run" / RECORD).read_text())
    assert record["processes"] == 2 and record["steps"] == 12
    losses = [r["loss"] for r in read_metrics(tmp_path / "run" / METRICS)]
    assert len(losses) == 4 and losses[-1] < losses[0]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_compiled_training(precision: str, data: Path, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    settings = tiny_settings(data, tmp_path / "run", compile=True, precision=precision)
    train(recipe_from_dict(settings))
    train(recipe_from_dict({**settings, "compile": False, "output": str(tmp_path / "eager")}))
    assert not [w for w in recwarn if "torch.compile" in str(w.message)]
    assert json.loads((tmp_path / "run" / RECORD).read_text())["compiled"] is True
    losses = [[r["loss"] for r in read_metrics(tmp_path / name / METRICS)] for name in ("run", "eager")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3 if precision == "float32" else 2e-2)


@pytest.mark.parametrize(
    ("broken", "compiled", "said"),
    [
        ((), True, []),
        ((True,), True, ["training without CUDA graphs: gradients differ"]),
        ((True, False), False, ["training without CUDA graphs", "training without torch.compile"]),
    ],
)
def test_training_takes_the_first_way_that_agrees_with_eager(
    broken: tuple[bool, ...],
    compiled: bool,
    said: list[str],
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    recwarn: pytest.WarningsRecorder,
) -> None:
    from zoo.training import loop

    def check(model: Any, eager: Any, net: Any, loss_of: Any, seed: int, runs: int) -> str | None:
        assert runs == (loop.REPLAYED if tried[-1] else 1)
        return "gradients differ by 0.5 of their norm" if tried[-1] in broken else None

    def compile_model(model: Any, *, graphs: bool) -> Any:
        tried.append(graphs)
        return model

    tried: list[bool] = []
    monkeypatch.setattr(loop, "compile_model", compile_model)
    monkeypatch.setattr(loop, "compiled_step_problem", check)
    monkeypatch.setattr(Trainer, "_graph_choices", lambda self: (True, False))
    train(recipe_from_dict(tiny_settings(data, tmp_path / "run", compile=True, epochs=1)))
    assert tried == [True, False][: len(broken) + 1]
    assert json.loads((tmp_path / "run" / RECORD).read_text())["compiled"] is compiled
    messages = [str(w.message) for w in recwarn if "training without" in str(w.message)]
    assert len(messages) == len(said) and all(m.startswith(s) for m, s in zip(messages, said, strict=True))


@pytest.mark.gpu
def test_batches_made_ahead_on_the_gpu_equal_those_made_in_line(data: Path, tmp_path: Path) -> None:
    from accelerate import Accelerator

    from zoo.training.task import batches

    settings = tiny_settings(data, tmp_path, device="cuda", precision="bf16")
    trainer = Trainer(recipe_from_dict(settings), Accelerator(), tmp_path)
    places = [divmod(step, 4) for step in range(12)]
    ahead = [(x.clone(), y.clone()) for x, y in batches(trainer.task, places, trainer.device)]
    assert len(ahead) == 12
    for step, (images, targets) in enumerate(ahead):
        expected, labels = trainer.task.batch(*divmod(step, 4))
        assert torch.equal(images, expected) and torch.equal(targets, labels)


@pytest.mark.gpu
def test_training_on_the_gpu_resumes(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tiny_settings(data, tmp_path / "whole", device="cuda", precision="bf16", compile=True)
    train(recipe_from_dict(settings))
    parts = recipe_from_dict({**settings, "output": str(tmp_path / "parts")})
    with monkeypatch.context() as patch:
        stop_after(patch, 5)
        assert train(parts).step == 5
    assert train(parts, resume=True).finished
    lines = [read_metrics(tmp_path / name / METRICS) for name in ("whole", "parts")]
    assert [r["lr"] for r in lines[0]] == [r["lr"] for r in lines[1]]
    assert [r["loss"] for r in lines[0]] == pytest.approx([r["loss"] for r in lines[1]], rel=1e-2)
