"""A run that is killed again and again, at random moments, ends as the run that nobody disturbed."""

from __future__ import annotations

import multiprocessing
import random
import signal
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
import torch
from training_toys import tiny_settings, write_toys

import zoo
from tests import killed_runs
from zoo.training.checkpoint import CHECKPOINT, load_checkpoint
from zoo.training.loop import METRICS, RECORD
from zoo.training.metrics import read_metrics

Moment = tuple[str, float]
PER_EPOCH = 4


@pytest.fixture(scope="module")
def context() -> ForkServerContext:
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(
        ["tests.killed_runs", "accelerate", "modalities.image.task", "torchvision.transforms.v2"]
    )
    return found


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path_factory.getbasetemp() / "zoo-cache"))


def run(context: ForkServerContext, settings: dict[str, Any], moment: Moment = ("never", 0)) -> bool:
    """Runs until the moment; whether it was killed."""
    process = context.Process(target=killed_runs.run, args=(settings, moment))
    process.start()
    process.join(120)
    assert process.exitcode in (0, -signal.SIGKILL), (moment, process.exitcode)
    return process.exitcode != 0


def lines(folder: Path) -> list[dict[str, Any]]:
    times = ("seconds", "images_per_s")
    return [{k: v for k, v in r.items() if k not in times} for r in read_metrics(folder / METRICS)]


def check_kills(context: ForkServerContext, folder: Path, epochs: int, moments: list[Moment]) -> None:
    data = write_toys(folder / "data")
    settings = tiny_settings(data, folder / "whole", epochs=epochs, checkpoint_every=1, log_every=1)
    settings |= {"accumulate": 2, "dev_count": 0}
    assert not run(context, settings)
    settings["output"] = str(folder / "killed")
    killed = folder / "killed"
    for moment in moments:
        before = load_checkpoint(killed)["step"] if (killed / CHECKPOINT).exists() else 0
        assert run(context, settings, moment), f"the run was over before {moment}"
        if moment[0] == "after":
            assert (killed / RECORD).exists() and (killed / CHECKPOINT).exists()
            continue
        # A whole checkpoint is there, no older than before, with the steps but those of the last interval.
        step = load_checkpoint(killed)["step"] if (killed / CHECKPOINT).exists() else 0
        assert step >= before and step % PER_EPOCH == 0
        if killed.exists():
            # What earlier kills left has been removed.
            assert sum(p.name.startswith(".") or p.name.endswith(".tmp") for p in killed.iterdir()) <= 1
            assert max([0, *(r["step"] for r in lines(killed))]) - step <= PER_EPOCH
    assert not run(context, settings)
    weights = [zoo.load(f"local-dir:{folder / name}").state_dict() for name in ("whole", "killed")]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    assert lines(folder / "whole") == lines(killed)
    assert [r["step"] for r in lines(killed)] == list(range(1, epochs * PER_EPOCH + 1))
    assert sorted(p.name for p in killed.iterdir()) == sorted(p.name for p in (folder / "whole").iterdir())


def test_killed_five_times(context: ForkServerContext, tmp_path: Path) -> None:
    check_kills(context, tmp_path, 2, [("calls", 60_000), ("write", 0.6), ("save", 0), ("export", 0), ("after", 0)])


@pytest.mark.slow
def test_killed_twenty_times_at_random(context: ForkServerContext, tmp_path: Path) -> None:
    draw = random.Random(9)
    moments: list[Moment] = [
        ("write", draw.random()) if draw.random() < 0.3 else ("calls", draw.randrange(1, 150_000)) for _ in range(17)
    ]
    assert {kind for kind, _ in moments} == {"write", "calls"}
    check_kills(context, tmp_path, 30, [*moments, ("save", 0), ("export", 0), ("after", 0)])
