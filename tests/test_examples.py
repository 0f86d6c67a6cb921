"""Every example runs, says what it should, and stays under a minute."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
WEIGHTS = ROOT / "hub_cards/pape-vit-t-imagenette/model.safetensors"
NEED_WEIGHTS = pytest.mark.skipif(not WEIGHTS.is_file(), reason="the embedded weights are not there")


def run_example(name: str, tmp_path: Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "examples" / name)]
    # From another folder: an example must not depend on where it is started.
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert not list(tmp_path.iterdir())
    return result.stdout


@NEED_WEIGHTS
def test_predict(tmp_path: Path) -> None:
    output = run_example("predict.py", tmp_path)
    for size in (112, 224):
        for picture, label in {"church": "church", "golf_ball": "golf ball", "garbage_truck": "garbage truck"}.items():
            assert re.search(rf"{size} px  {picture}\.jpg: {label} ", output), output
    assert "tokens (1, 197, 256)" in output and output.count("(1, 256, 14, 14)") == 3


@NEED_WEIGHTS
def test_finetune_head(tmp_path: Path) -> None:
    output = run_example("finetune_head.py", tmp_path)
    assert "10 -> 3" in output
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", output)]
    assert losses[-1] < losses[0] / 2
    right, total = map(int, re.findall(r"(\d+) of (\d+) unseen", output)[0])
    assert total == 30 and right >= 24


def test_custom_encoding(tmp_path: Path) -> None:
    lines = run_example("custom_encoding.py", tmp_path).splitlines()[1:]
    reach = {name: (float(small), float(large)) for name, small, large in (line.split() for line in lines)}
    assert list(reach) == ["none", "rope", "alibi", "pape", "pape-ri", "king"]
    # Without positions attention spreads over the whole grid; a bias keeps its reach when the grid grows.
    assert reach["none"][1] > 2 * reach["none"][0]
    for name in ("pape", "king"):
        assert reach[name][1] < 1.5 * reach[name][0] < reach["none"][0]


def test_every_example_is_run() -> None:
    tested = {"adapt_timm.py", "predict.py", "finetune_head.py", "custom_encoding.py"}
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == tested


def test_adapt_timm(tmp_path: Path) -> None:
    output = run_example("adapt_timm.py", tmp_path)
    assert "pape in 6 attention layers of VisionTransformer" in output and "outputs unchanged at the start" in output
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", output)]
    assert len(losses) == 12 and min(losses) < losses[0] / 2
    gates = re.findall(r"opened to ([\d.]+) \.\.\. ([\d.]+)", output)[0]
    assert all(float(gate) > 0 for gate in gates)
    sizes = re.findall(r"^(.*) px: ([\d.]+) % of 4 pictures", output, re.MULTILINE)
    assert [size for size, _ in sizes] == ["64", "96", "128", "(96, 160)"]
