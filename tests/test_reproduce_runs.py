"""Runs of reproductions: every built-in one can be made, dry runs, interruptions, and processes side by side."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from reproduce_toys import write_sweep
from sequence_training import write_chorales
from training_toys import stop_after

import zoo
from modalities.sequence.task import SequenceGeneration
from zoo.cli.main import main
from zoo.errors import ConfigError, ZooError
from zoo.model_inputs import call_model
from zoo.reproduce import reproduce, reproductions
from zoo.training import sweep_workers
from zoo.training.sweep import run_sweep
from zoo.training.sweep_claims import claim
from zoo.training.sweep_plan import load_sweep

DECODERS = [name for name in reproductions() if name != "comparison"]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))


def toy_data(name: str, folder: Path) -> str | None:
    """Small files in the form of those that a reproduction needs."""
    if name.startswith("jsb"):
        return str(write_chorales(folder))
    if name == "shakespeare":
        (folder / "input.txt").write_text("abcdefghij\n" * 90)
        return str(folder / "input.txt")
    if name == "hg38":
        (folder / "a.fa").write_text(">a\n" + "ACGGTTA" * 150)
        return str(folder / "a.fa")
    return None


@pytest.mark.parametrize("name", DECODERS)
def test_every_run_of_every_reproduction_builds(name: str, tmp_path: Path) -> None:
    whole = load_sweep(name)
    sweep, data = whole.dry_sweep(), toy_data(name, tmp_path)
    assert (data is None) == (whole.data is not None)
    for run, seed in sweep.jobs():
        assert whole.recipe_of(run, seed, data, tmp_path).model == run.model
        recipe = sweep.recipe_of(run, seed, data, tmp_path, "cpu")
        if data is not None:  # Windows that fit into the toys.
            recipe = dataclasses.replace(recipe, options=dataclasses.replace(recipe.options, length=16))
        task = SequenceGeneration(recipe)
        model: Any = zoo.load(run.model, pretrained=False, **task.model_arguments(), **recipe.model_options)
        if run.encoding:
            assert model.config["model"]["encoding"] == run.encoding
        task.start(model, torch.device("cpu"), 0, 1)
        inputs, targets = task.batch(0, 0)
        assert call_model(model, inputs).shape == (*targets.shape, task.num_classes)
        if data is None:
            assert task.data.trained_size() == sweep.sizes[0] == sweep.trained_size
            assert set(whole.sizes) <= set(task.data.default_sizes())
        else:
            assert whole.recipe_of(run, seed, data, tmp_path).options.length == whole.sizes[0] == sweep.trained_size
        known = model.encoder.blocks[0].attn.encoding.extension_methods if run.extend else ()
        assert set(run.extend) <= set(known)


def test_settings_of_runs_reach_the_recipe(tmp_path: Path) -> None:
    runs = {run.name: run for run in load_sweep("picture-questions").runs}
    sweep = load_sweep("picture-questions")
    scheme = {
        name: sweep.recipe_of(run, 0, None, tmp_path).options.dataset_options["scheme"] for name, run in runs.items()
    }
    wanted = {"rope-count": "count", "mrope": "mrope", "mrope-100": "mrope", "v2pe": "v2pe"}
    assert scheme == {**wanted, "pape-3d": "mrope", "pape-3d-released": "mrope"}
    assert sweep.recipe_of(runs["mrope-100"], 0, None, tmp_path).model_options == {
        "encoding": "mrope",
        "encoding_options": {"base": 100.0},
    }
    plan = load_sweep(write_sweep(tmp_path))
    options = plan.recipe_of(plan.runs[1], 0, None, tmp_path).options.dataset_options
    assert options == {"columns": [1, 2], "train_samples": 64, "positions": "rows"}  # Of the sweep and of the run.
    recipe = plan.dry_sweep().recipe_of(plan.runs[1], 0, None, tmp_path)
    assert (recipe.steps, recipe.batch_size, recipe.model_options["depth"]) == (2, 2, 1)


def test_a_dry_run_goes_all_the_way_and_says_what_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    plan, out = write_sweep(tmp_path), tmp_path / "out"
    with pytest.raises(SystemExit, match="^0$"):
        main(["reproduce", str(plan), "--dry-run", "--device", "cpu", "--out", str(out)])
    captured = capsys.readouterr()
    assert "**Dry run:" in captured.out and "the numbers mean nothing" in captured.out
    assert "| Setting | Extension | n | 2 | 4 | Paper | Remarks |" in captured.out
    assert "toy: 2 of 2 runs to do" in captured.err
    assert {path.name for path in out.iterdir()} == {"dry-run"}
    names = {path.name for path in (out / "dry-run").iterdir()}
    assert names == {"table.md", "results.json", "plot.png", "rope-0", "rope-0.json", "pape-0", "pape-0.json"}
    facts = json.loads((out / "dry-run" / "results.json").read_text())
    assert facts["dry_run"] is True and [row["extend"] for row in facts["rows"]] == ["none", "pi", "none"]
    assert set(facts["rows"][1]["exact"]) == {"4"}
    record = json.loads((out / "dry-run" / "rope-0" / "train_record.json").read_text())
    assert record["steps"] == 2 and record["recipe"]["steps"] == 2


def test_a_reproduction_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, out, told = str(write_sweep(tmp_path)), tmp_path / "out", []
    arguments: dict[str, Any] = {"out": out, "device": "cpu", "say": told.append}
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        with pytest.raises(ZooError, match="rope-0: stopped by test; the same command goes on from here"):
            reproduce(plan, only=["rope"], **arguments)
    assert [path.name for path in out.iterdir()] == ["rope-0"] and not any("failed" in line for line in told)
    made = reproduce(plan, only=["rope"], **arguments)
    assert "Not done: pape-0." in made.table and "3 steps" in made.table
    lines = (out / "rope-0" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["step"] == 3
    told.clear()
    assert "Not done" not in reproduce(plan, **arguments).table
    assert "toy: 1 of 3 runs to do" in told[0] and "time for all: not measured" in told[0]
    assert not any(line.startswith("rope") for line in told)
    told.clear()
    reproduce(plan, **arguments)
    assert len(told) == 1 and told[0].startswith("toy: 0 of 3 runs to do")


def test_a_failed_run_leaves_a_table_of_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [{"name": "a", "model": "rope-decoder-n-index", "extend": ["nothing"]}, {"name": "b", "model": "none-vit-n"}]
    plan = write_sweep(tmp_path, runs=[*runs, {"name": "c", "model": "none-decoder-n-index"}])
    with pytest.raises(SystemExit, match="^2$"):
        main(["reproduce", str(plan), "--device", "cpu", "--out", str(tmp_path / "out")])
    err = capsys.readouterr().err
    assert "a-0: failed (ConfigError" in err and "b-0: failed (UnknownModelError" in err
    assert err.splitlines()[-1] == "error: 2 runs failed: a-0, b-0"
    assert "Not done: a-0, b-0." in (tmp_path / "out" / "table.md").read_text()


def test_steps_end_a_run_before_its_epochs(tmp_path: Path) -> None:
    sweep = load_sweep(write_sweep(tmp_path))
    with pytest.raises(ConfigError, match="steps must be at least 1"):
        dataclasses.replace(sweep.recipe_of(sweep.runs[0], 0, None, tmp_path), steps=0)
    longer = dataclasses.replace(sweep, settings={**sweep.settings, "steps": 1000, "epochs": 1})
    run_sweep(longer, None, tmp_path / "out", only=["pape"], device="cpu")
    record = json.loads((tmp_path / "out" / "pape-0.json").read_text())["training"]
    assert (record["steps"], record["epochs"]) == (8, 1)  # 64 samples in batches of 8.


# ---- claims


def test_a_claim_is_for_one_process_and_as_long_as_it_lives(tmp_path: Path) -> None:
    told: list[str] = []
    with claim(tmp_path, "a-0", told.append) as mine:
        assert mine
        stated = json.loads((tmp_path / "a-0.taken").read_text())
        assert stated == {"host": platform.node(), "pid": os.getpid()}
        with claim(tmp_path, "a-0", told.append) as other:
            assert not other
        assert (tmp_path / "a-0.taken").exists()
    assert not list(tmp_path.iterdir()) and not told
    (tmp_path / "a-0.json").write_text("{}")
    with claim(tmp_path, "a-0") as mine:
        assert not mine  # It is done.


def test_a_claim_of_a_dead_process_is_taken_over_and_one_of_another_machine_is_not(tmp_path: Path) -> None:
    told: list[str] = []
    path = tmp_path / "a-0.taken"
    path.write_text(json.dumps({"host": platform.node(), "pid": 1}))
    with claim(tmp_path, "a-0", told.append) as mine:
        assert mine and json.loads(path.read_text())["pid"] == os.getpid()
    assert not path.exists() and not told
    for text, who in ((json.dumps({"host": "elsewhere", "pid": 1}), "on elsewhere"), ("", "by somebody"), ("[", "by")):
        path.write_text(text)
        with claim(tmp_path, "a-0", told.append) as mine:
            assert not mine
        assert path.read_text() == text and who in told[-1] and str(path) in told[-1]


# ---- processes side by side


def test_a_process_that_is_killed_leaves_the_others_at_work(tmp_path: Path) -> None:
    runs = [
        {"name": "long", "model": "none-decoder-n-index", "settings": {"steps": 10**6, "epochs": 10**6}},
        {"name": "b", "model": "rope-decoder-n-index", "settings": {}},
        {"name": "c", "model": "none-decoder-n-index", "settings": {}},
    ]
    plan, out, told = write_sweep(tmp_path, runs=runs, sizes=[2]), tmp_path / "out", []

    def kill() -> None:
        end = time.monotonic() + 120
        while time.monotonic() < end:
            if (out / "b-0.json").exists():  # The other process has passed the long run over.
                os.kill(json.loads((out / "long-0.taken").read_text())["pid"], signal.SIGKILL)
                return
            time.sleep(0.02)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(ZooError, match="not all runs are done"):
        reproduce(str(plan), out=out, jobs=2, device="cpu", say=told.append)
    killer.join()
    assert any("died (SIGKILL); the others went on" in line for line in told)
    assert (out / "c-0.json").is_file() and "Not done: long-0." in (out / "table.md").read_text()
    assert (out / "long-0.taken").is_file()
    with claim(out, "long-0") as mine:  # Nobody has to delete anything.
        assert mine


def test_processes_take_turns_at_the_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []

    class Worker:
        pid, exitcode = 1, 0

        def __init__(self, target: Any, args: tuple[Any, ...]) -> None:
            seen.append(args[4])

        def start(self) -> None: ...

        def join(self) -> None: ...

    context = type("Context", (), {"Process": Worker})
    monkeypatch.setattr(sweep_workers.multiprocessing, "get_context", lambda kind: context)
    sweep = load_sweep(write_sweep(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 5")
    sweep_workers.run_side_by_side(sweep, None, tmp_path, 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    sweep_workers.run_side_by_side(sweep, None, tmp_path, 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    sweep_workers.run_side_by_side(sweep, None, tmp_path, 2)
    sweep_workers.run_side_by_side(sweep, None, tmp_path, 2, device="cpu")
    assert seen == ["2", "5", "2", None, None, "0", "1", None, None]
    monkeypatch.setattr(Worker, "exitcode", 2)
    with pytest.raises(ZooError, match="not all runs"):
        sweep_workers.run_side_by_side(sweep, None, tmp_path, 2, device="cpu")
