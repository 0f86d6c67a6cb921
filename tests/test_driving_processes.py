"""Training on driving scenes with the published settings, on two processes under `accelerate launch`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import zoo
from modalities.driving.batch import DrivingBatch
from modalities.driving.boxes import Boxes3D, pad_boxes
from modalities.driving.losses import FusionLoss
from tests.driving_tables import write_drive
from tests.driving_toys import CAMERAS, scene, some_boxes, tiny, tiny_config
from zoo import registry
from zoo.model_inputs import call_model
from zoo.training.loop import METRICS, RECORD
from zoo.training.metrics import read_metrics
from zoo.training.recipe import built_in_recipes, recipe_from_dict

ROOT = Path(__file__).parents[1]
CLASSES = ["car", "pedestrian", "bicycle"]


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    """The recipe for nuScenes with a small network, a small drive and two epochs."""
    torch.manual_seed(0)
    config = tiny_config()
    config["data"] |= {
        "cameras": ["CAM_FRONT", "CAM_BACK"],
        "point_range": [-32.0, -32.0, -3.0, 32.0, 32.0, 5.0],
        "pillar_size": 2.0,
        "sweeps": 2,
    }
    config["labels"] = CLASSES
    zoo.save(registry.architecture(config).build(config), folder / "model")
    given = yaml.safe_load(built_in_recipes()["nuscenes"].read_text())
    given |= {
        "model": f"local-dir:{folder / 'model'}",
        "pretrained": True,
        "data": str(write_drive(folder / "data")),
        "output": str(folder / "run"),
        "epochs": 2,
        "batch_size": 2,
        "precision": "float32",
        "device": "cpu",
        "drop_path": 0.0,
        "workers": 1,
        "paste": dict.fromkeys(CLASSES, 3),
        "paste_min_points": 1,
        "paste_off": 1,
    }
    return given | changes


@pytest.mark.slow
def test_two_processes_train_one_network(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(settings(tmp_path)))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "ZOO_CACHE": str(tmp_path / "cache")}
    # On a machine without a GPU this is how processes are started that talk through gloo; --cpu starts one alone.
    launch = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
    launch += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    done = subprocess.run(
        [sys.executable, *launch, str(ROOT / "tests" / "driving_ranks.py"), str(recipe), str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    ranks: list[dict[str, Any]] = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    first, second = ranks
    assert first["processes"] == second["processes"] == 2 and first["finished"] and second["finished"]
    # Each process has a half of every batch.
    steps = len(first["rows"]) // 2
    assert steps >= 2 and all(len(rows) == 1 for rank in ranks for rows in rank["rows"])
    assert first["points"] == second["points"] and all(count > 100 for count in first["points"])
    assert all(count > 2 for count in first["boxes"])  # some were pasted
    # Its gradient is that of both halves, which each can take alone.
    unused = [name for name, gradient in zip(first["names"], first["together"], strict=True) if gradient is None]
    assert unused == []
    norm = torch.cat([gradient.flatten() for gradient in first["alone"]]).norm()
    for name, *gradients in zip(
        first["names"], first["alone"], second["alone"], first["together"], second["together"], strict=True
    ):
        alone, _, *together = gradients
        assert torch.equal(together[0], together[1]), name
        assert (together[0] - alone).norm() <= 1e-4 * alone.norm() + 1e-6 * norm, name
    # After all steps the weights are the same to the bit, and others than before.
    assert all(torch.equal(a, b) for a, b in zip(first["weights"], second["weights"], strict=True))
    before = zoo.load(f"local-dir:{tmp_path / 'model'}")
    assert any(not torch.equal(a, b) for a, b in zip(before.parameters(), first["weights"], strict=True))
    # One of them writes.
    record = json.loads((tmp_path / "run" / RECORD).read_text())
    assert record["processes"] == 2 and record["steps"] == 2 * steps
    losses = [line["loss"] for line in read_metrics(tmp_path / "run" / METRICS) if "loss" in line]
    assert len(losses) == 2 and all(loss > 0 for loss in losses)
    trained = zoo.load(f"local-dir:{tmp_path / 'run'}")
    assert all(torch.equal(a, b) for a, b in zip(trained.parameters(), first["weights"], strict=True))
    assert len(list((tmp_path / "cache" / "driving").glob("objects-*.npz"))) == 1


def test_the_recipe_of_the_smoke_test_is_that_for_nuscenes(tmp_path):
    recipe = recipe_from_dict(settings(tmp_path))
    assert recipe.options.balance and recipe.options.paste and recipe.options.flip == (0.5, 0.5)


@pytest.mark.parametrize("lacks", ["nothing", "boxes", "cameras", "pictures", "points", "lidar"])
def test_every_parameter_gets_a_gradient_whatever_a_batch_lacks(lacks):
    """Processes wait for each other's gradients of all parameters, so that none may be without one."""
    model = tiny().train()
    sample, boxes = scene(), some_boxes()
    assert sample.points is not None
    changes: dict[str, dict[str, Any]] = {
        "cameras": {"image_mask": torch.zeros(CAMERAS, dtype=torch.bool)},
        "pictures": {"images": None},
        "points": {"points": sample.points[:0]},
        "lidar": {"points": None},
    }
    batch = DrivingBatch.from_samples([sample._replace(**changes.get(lacks, {}))])
    targets = pad_boxes([Boxes3D.empty() if lacks == "boxes" else boxes])
    loss = FusionLoss(config=model.sizes, data=model.data_config, labels=tuple(CLASSES))(
        call_model(model, batch), targets
    )["loss"]
    gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)
