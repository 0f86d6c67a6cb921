"""`zoo eval` over two processes gives the numbers of one, to the bit, for models of every modality."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import detection_toys
import event_sets
import finetune_toys as toys
import point_training_sets
import pytest
import torch
import training_toys
from test_finetune import PTV3

import zoo
from tests import eval_ranks
from tests.driving_models import write_model
from tests.driving_tables import write_drive
from tests.processes import together
from zoo.sharing import ALONE, Share

# Of those the data held out in training are measured too.
TRAINED = ("videos", "events", "boxes in events", "clouds", "labelled clouds")
VIDEO = {"patch_size": 8, "input_size": 16}
# Kind: what writes the data, network and its options, and options of `zoo eval`, with batches that do not divide them.
KINDS: dict[str, tuple[Callable[[Path], Path], str, dict[str, Any], list[str]]] = {
    "pictures": (
        lambda p: training_toys.write_toys(p, 2, 7),
        "pape-vit-n-imagenette",
        {"patch_size": 8, "input_size": 16, "num_classes": 2},
        ["--batch-size", "3"],
    ),
    "boxes in pictures": (
        lambda p: detection_toys.write_toys(p, 2, 7),
        "pape-vit-det-n-bccd",
        {**detection_toys.TINY, "input_size": (64, 64), "num_classes": 2},
        ["--batch-size", "3", "--sizes", "64,96"],
    ),
    "videos": (
        lambda p: toys.write_videos(p, 4),
        "pape-video-vit-n-imagenette-motion",
        {**VIDEO, "num_classes": 2},
        ["--clips", "2", "--crops", "3", "--batch-size", "4", "--split", "train"],
    ),
    "camera motions": (
        lambda p: training_toys.write_toys(p, 2, 7),
        "pape-video-vit-n-imagenette-motion",
        VIDEO,
        ["--sizes", "16", "--batch-size", "3"],
    ),
    "events": (event_sets.write_nmnist, "pape-event-vit-n-nmnist1100", {}, ["--batch-size", "3", "--split", "test"]),
    "boxes in events": (
        event_sets.write_scenes,
        "pape-event-det-n-gen1",
        {"pyramid_dim": 32},
        ["--batch-size", "4", "--split", "test"],
    ),
    "clouds": (
        point_training_sets.write_modelnet10,
        "pape-point-vit-n-modelnet10",
        {"num_classes": 2},
        ["--batch-size", "3", "--split", "test"],
    ),
    "labelled clouds": (
        point_training_sets.write_als,
        "pape-ptv3-n-als3",
        PTV3,
        ["--sizes", "100", "--split", "train"],
    ),
    "sequences": (lambda p: Path("index"), "pape-decoder-n-index", {}, ["--limit", "1000"]),
}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "zoo-cache"))


def test_a_process_that_is_left_alone_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def gather(message: str) -> None:
        def fail(*_: Any) -> None:
            raise RuntimeError(message)

        monkeypatch.setattr(torch.distributed, "all_gather_object", fail)
        Share(1, 2).gather(0)

    with pytest.raises(zoo.ZooError, match="process 1 stops: another one has ended"):
        gather("[pair.cc:561] Connection closed by peer [127.0.0.1]:31629. This is typically")
    with pytest.raises(RuntimeError, match="too large"):
        gather("too large")


def results(path: Path) -> dict[str, Any]:
    report = json.loads(path.read_text())
    for row in report["results"]:
        assert row.pop("images_per_s") > 0
    return {key: value for key, value in report.items() if key != "command"}


def test_two_processes_measure_what_one_does(tmp_path: Path) -> None:
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    commands: dict[str, list[str]] = {}
    for kind, (write, name, options, more) in KINDS.items():
        (tmp_path / kind).mkdir()
        data = write(tmp_path / kind / "data")
        model = toys.base(tmp_path / kind / "model", name, **options)
        commands[kind] = ["eval", model, "--data", str(data), *more]
    drive = write_drive(tmp_path / "drive")
    model = write_model(tmp_path / "driving model")
    commands["driving"] = ["eval", model, "--data", str(drive), "--split", "mini_val", "--batch-size", "3"]
    commands["driving"] += ["--drop", "lidar"]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.eval_ranks"])
    ending = ["--device", "cpu", "--quiet", "--out"]
    called = [[*command, *ending, str(shared / f"{kind}.json")] for kind, command in commands.items()]
    recipes = [zoo.finetune.plan(*commands[kind][1:4:2], **toys.SHORT).recipe for kind in TRAINED]
    together(context, eval_ranks.evaluated, called, recipes, tmp_path / "held out.json")
    for kind, command in commands.items():
        eval_ranks.run([*command, *ending, str(alone / f"{kind}.json")])
        one, both = results(alone / f"{kind}.json"), results(shared / f"{kind}.json")
        assert one == both, kind
        assert one["images"] > 4 or kind in ("labelled clouds", "driving"), kind
        assert not kind.startswith("boxes") or all(row["digest"] > 0 for row in one["results"])
    for kind, recipe, found in zip(TRAINED, recipes, json.loads((tmp_path / "held out.json").read_text()), strict=True):
        assert found and found == eval_ranks.held_out(recipe, ALONE), kind
