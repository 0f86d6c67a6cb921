"""Every example runs, says what it should, and stays under a minute."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
WEIGHTS = ROOT / "hub_cards/pape-vit-t-imagenette/model.safetensors"
NEED_WEIGHTS = pytest.mark.skipif(not WEIGHTS.is_file(), reason="the embedded weights are not there")


def run_example(name: str, tmp_path: Path, *arguments: str, timeout_s: float = 60) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    # From another folder: an example must not depend on where it is started.
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=timeout_s)
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


@pytest.mark.slow
@NEED_WEIGHTS
def test_export_onnx(tmp_path: Path) -> None:
    for module in ("onnxruntime", "onnxscript"):
        pytest.importorskip(module)
    lines = run_example("export_onnx.py", tmp_path, timeout_s=180).splitlines()
    assert "opset" in lines[0] and "-> logits" in lines[1]
    assert lines[-3:] == ["112 x 112 px: golf ball", "224 x 224 px: golf ball", "320 x 240 px: golf ball"]


def test_custom_encoding(tmp_path: Path) -> None:
    lines = run_example("custom_encoding.py", tmp_path).splitlines()[1:]
    reach = {name: (float(small), float(large)) for name, small, large in (line.split() for line in lines)}
    assert list(reach) == ["none", "rope", "alibi", "pape", "pape-ri", "king"]
    # Without positions attention spreads over the whole grid; a bias keeps its reach when the grid grows.
    assert reach["none"][1] > 2 * reach["none"][0]
    for name in ("pape", "king"):
        assert reach[name][1] < 1.5 * reach[name][0] < reach["none"][0]


def test_every_example_is_run() -> None:
    tested = {"adapt_timm.py", "predict.py", "finetune_head.py", "custom_encoding.py", "driving_frame.py"}
    tested |= {"bccd_cells.py", "export_onnx.py", "publish.py"}
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == tested


@NEED_WEIGHTS
def test_publish(tmp_path: Path) -> None:
    output = run_example("publish.py", tmp_path)
    assert re.search(r"^ +[\d,]+ bytes  sha256 [0-9a-f]{16}\.\.\.  model\.safetensors$", output, re.MULTILINE), output
    assert "to https://huggingface.co/my-organisation/my-model, branch main" in output
    assert "through the mixin and back: the same weights" in output


def test_bccd_cells(tmp_path: Path) -> None:
    from detection_toys import toy, write_boxes

    for place, split in enumerate(("train", "validation", "test")):
        records = []
        for number in range(4):
            image, boxes, labels = toy(10 * place + number)
            boxes, labels = [*boxes, [2.0, 50.0, 12.0, 62.0]], [*labels, 2]  # At the edge.
            name = "BloodImage_00037" if number == 3 else f"BloodImage_{place}{number}"
            records.append({"image": image, "boxes": boxes, "labels": labels, "image_id": name})
        write_boxes(tmp_path / "bccd" / f"{split}.parquet", records)
    (tmp_path / "here").mkdir()
    cells = tmp_path / "cells"
    arguments = ("crop", str(tmp_path / "bccd"), str(cells), "--count", "7")
    output = run_example("bccd_cells.py", tmp_path / "here", *arguments)
    assert "train/RBC: 3 cells" in output and "train/WBC: 2 cells" in output and "test/Platelets: 6 cells" in output
    from PIL import Image

    assert {Image.open(file).size for file in cells.rglob("*.png")} == {(112, 112)}
    output = run_example("bccd_cells.py", tmp_path / "here", "probe", str(cells))
    assert len(re.findall(r"weight decay \S+: top-1 \d+\.\d %", output)) == 4 and "best of these" in output


def test_adapt_timm(tmp_path: Path) -> None:
    output = run_example("adapt_timm.py", tmp_path)
    assert "pape in 6 attention layers of VisionTransformer" in output and "outputs unchanged at the start" in output
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", output)]
    assert len(losses) == 12 and min(losses) < losses[0] / 2
    gates = re.findall(r"opened to ([\d.]+) \.\.\. ([\d.]+)", output)[0]
    assert all(float(gate) > 0 for gate in gates)
    sizes = re.findall(r"^(.*) px: ([\d.]+) % of 4 pictures", output, re.MULTILINE)
    assert [size for size, _ in sizes] == ["64", "96", "128", "(96, 160)"]


def test_driving_frame(tmp_path: Path) -> None:
    output = run_example("driving_frame.py", tmp_path, "--model", "pape-fusion-n-simdrive-lidar", "--steps", "3")
    assert re.search(r"6 cameras, [\d,]+ points, \d+ boxes", output), output
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", output)]
    assert len(losses) == 2 and losses[1] < 0.85 * losses[0]
    assert re.search(r"mAP 0\.\d+ over car, ", output) and "labelled with points in them" in output
    assert "wrote labelled.png, predicted.png, submission.json" in output


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_driving_frame_overfits_the_real_key_frame(shared: Path, tmp_path: Path) -> None:
    archive = shared / "data" / "nuscenes_one_sample" / "nuscenes_one_sample.zip"
    if not archive.is_file():
        pytest.skip(f"no {archive}")
    (tmp_path / "here").mkdir()
    with zipfile.ZipFile(archive) as file:
        file.extractall(tmp_path / "real")
    arguments = ("--dataroot", str(tmp_path / "real"), "--out", str(tmp_path / "out"))
    output = run_example("driving_frame.py", tmp_path / "here", *arguments, timeout_s=3600)
    assert "6 cameras, 26,414 points, 69 boxes" in output
    assert float(re.findall(r"mAP ([\d.]+) over car, truck, pedestrian", output)[0]) > 0.9
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"labelled.png", "predicted.png", "submission.json"}
