"""Two processes on two GPUs, joined by NCCL and started as users start them, train and evaluate as one does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from conftest import ROOT
from safetensors.torch import load_file
from test_training_processes import PLAIN
from training_toys import tiny_settings, write_toys

from zoo.training.loop import METRICS, RECORD
from zoo.training.metrics import read_metrics

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices"),
]
DDP = ["--multi_gpu"]
FSDP2 = ["--use_fsdp", "--fsdp_version", "2", "--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP"]
FSDP2 += ["--fsdp_transformer_layer_cls_to_wrap", "Block"]
COMMON = ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]


def zoo_command(cache: Path, launch: list[str], *command: str) -> None:
    """A command of `zoo`: in two processes with the options of `accelerate launch`, in one without any."""
    prefix = ["accelerate.commands.launch", "--num_processes", "2", *launch, *COMMON, "-m"] if launch else []
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "ZOO_CACHE": str(cache)}
    if not launch:
        environment["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    whole = [sys.executable, "-m", *prefix, "zoo.cli.main", *command, "--quiet"]
    done = subprocess.run(whole, capture_output=True, text=True, env=environment, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data and `one`, a run by one process."""
    root = tmp_path_factory.mktemp("gpus")
    settings = tiny_settings(write_toys(root / "data", validation=13), root / "one", **PLAIN, device="cuda")
    (root / "recipe.yaml").write_text(yaml.safe_dump(settings))
    zoo_command(root / "cache", [], "train", str(root / "recipe.yaml"))
    return root


@pytest.mark.parametrize("launch", [DDP, FSDP2], ids=["ddp", "fsdp2"])
def test_two_gpus_train_and_evaluate_as_one(runs: Path, tmp_path: Path, launch: list[str]) -> None:
    two, cache = tmp_path / "two", runs / "cache"
    zoo_command(cache, launch, "train", str(runs / "recipe.yaml"), "--out", str(two))
    records = [json.loads((folder / RECORD).read_text()) for folder in (runs / "one", two)]
    assert [record["processes"] for record in records] == [1, 2]
    assert records[0]["steps"] == records[1]["steps"] == 9
    one, both = (load_file(folder / "model.safetensors") for folder in (runs / "one", two))
    assert one.keys() == both.keys()
    for key in one:
        torch.testing.assert_close(
            one[key], both[key], rtol=1e-3, atol=1e-4, msg=lambda text, key=key: f"{key}: {text}"
        )
    lines = [read_metrics(folder / METRICS) for folder in (runs / "one", two)]
    for key in ("loss", "grad_norm", "lr"):
        values = [[line[key] for line in own if key in line] for own in lines]
        assert values[0] == pytest.approx(values[1], rel=1e-3, abs=1e-5) and values[0], key
    found = []
    for name, options in (("alone", []), ("shared", DDP)):
        out = tmp_path / f"{name}.json"
        about = ["--data", str(runs / "data"), "--device", "cuda", "--batch-size", "3", "--out", str(out)]
        zoo_command(cache, options, "eval", f"local-dir:{two}", *about)
        report = json.loads(out.read_text())
        found.append((report["images"], report["results"][0]["top1"], report["results"][0]["top5"]))
    assert found[0] == found[1] and found[0][0] == 13
