"""`examples/cells_to_hub.sh`: from a folder of labelled cells to a published model, as good when it comes back."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT
from detection_toys import toy, write_boxes
from hub_client import TOKEN, hub  # noqa: F401
from hub_server import Hub, serve

import zoo
from zoo.cli import main as cli

SCRIPT = ROOT / "examples" / "cells_to_hub.sh"
SMALL, LARGE = "pape-vit-n-imagenette", "pape-vit-t-imagenette"


def needs(name: str) -> pytest.MarkDecorator:
    weights = ROOT / "hub_cards" / name / "model.safetensors"
    return pytest.mark.skipif(not weights.is_file(), reason=f"no embedded weights of {name}")


def tool(folder: Path, name: str, body: str) -> None:
    """A program that the script finds on PATH."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def run_script(here: Path, tools: Path, *arguments: str, timeout_s: float = 60, **variables: str) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")} | variables
    environment["PATH"] = f"{tools}{os.pathsep}{environment['PATH']}"
    command = ["bash", str(SCRIPT), *arguments]
    done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def commands(here: Path, tools: Path, *arguments: str) -> list[list[str]]:
    """What the script would run: the programs it calls only write their arguments down."""
    log = here / "log"
    for name in ("python", "zoo"):
        tool(tools, name, f'printf "%s\\n" {name} "$@" "" >> "{log}"')
    run_script(here, tools, *arguments)
    return [text.split("\n") for text in log.read_text().split("\n\n") if text]


def write_bccd(folder: Path) -> None:
    """A few pictures of BCCD where they are at hand, else made-up ones in its layout."""
    real = (ROOT / os.environ.get("ZOO_SHARED", "../shared")).resolve() / "data" / "bccd"
    for place, (split, count) in enumerate({"train": 12, "validation": 2, "test": 2}.items()):
        if (real / f"{split}.parquet").is_file():
            import pyarrow.parquet as pq

            folder.mkdir(exist_ok=True)
            pq.write_table(pq.read_table(real / f"{split}.parquet").slice(0, count), folder / f"{split}.parquet")
            continue
        records = []
        for number in range(count):
            image, boxes, labels = toy(50 * place + number)
            boxes, labels = [*boxes, [2.0, 50.0, 12.0, 62.0]], [*labels, 2]
            records.append({"image": image, "boxes": boxes, "labels": labels, "image_id": f"{split}-{number}"})
        write_boxes(folder / f"{split}.parquet", records)


def run_cli(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        cli.main(list(arguments))
    captured = capsys.readouterr()
    assert not stop.value.code, captured.err
    return captured.out


def measured(file: Path) -> dict[str, Any]:
    """The report of an evaluation, without name and time, and without the seed, which the folder of the run knows."""
    report = json.loads(file.read_text())
    for row in report["results"]:
        del row["images_per_s"]
    return {key: value for key, value in report.items() if key not in ("name", "command", "seed")}


@needs(SMALL)
def test_the_story_in_small(
    hub: Hub,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_bccd(tmp_path / "bccd")
    here = tmp_path / "here"
    here.mkdir()
    short = ("--epochs", "2", "--device", "cpu", "--quiet")
    found = commands(here, tmp_path / "tools", str(tmp_path / "bccd"), "org/cells", SMALL, *short)
    assert [line[:2] for line in found[1:]] == [["zoo", word] for word in ("finetune", "eval", "publish", "eval")]
    assert len(found) == 5 and found[0][0] == "python"

    monkeypatch.chdir(here)
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "zoo-cache"))
    monkeypatch.setattr(sys, "argv", [*found[0][1:], "--count", "12"])
    runpy.run_path(found[0][1], run_name="__main__")
    for line in found[1:]:
        run_cli(capsys, *line[1:])

    assert measured(Path("runs/folder.json")) == measured(Path("runs/hub.json"))
    card = hub.repositories["org/cells"].files()["README.md"].decode()
    assert "license: cc-by-nc-4.0" in card and "imagenet-research-non-commercial" in card
    cells = [str(file) for file in sorted(Path("cells/test").rglob("*.png"))[::4]]
    folder, back = (
        json.loads(run_cli(capsys, "predict", name, *cells, "--json", "--device", "cpu"))
        for name in ("local-dir:runs/cells", "hf-hub:org/cells")
    )
    assert folder == back and len(folder) == len(cells)
    before, after = zoo.load("local-dir:runs/cells", device="cpu"), zoo.load("hf-hub:org/cells", device="cpu")
    assert before.config["labels"] == after.config["labels"] == ["Platelets", "RBC", "WBC"]
    pixels = torch.randn(4, 3, 112, 112, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert torch.equal(before(pixels), after(pixels))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@needs(LARGE)
def test_the_story(shared: Path, tmp_path: Path) -> None:
    """The real cells and the embedded model, each command as a process of its own."""
    data = shared / "data" / "bccd"
    if not data.is_dir():
        pytest.skip(f"no {data}")
    tools, here = tmp_path / "tools", tmp_path / "here"
    here.mkdir()
    tool(tools, "python", f'exec "{sys.executable}" "$@"')
    tool(tools, "zoo", f'exec "{sys.executable}" -m zoo.cli.main "$@"')
    with serve(tokens={TOKEN: ("org",)}) as server:
        variables = {"HF_ENDPOINT": server.endpoint, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "hf")}
        variables |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "ZOO_CACHE": str(tmp_path / "cache")}
        variables |= {"PYTHONPATH": str(ROOT)}
        run_script(here, tools, str(data), "org/cells", timeout_s=1500, **variables)
    probe = [sys.executable, str(ROOT / "examples" / "bccd_cells.py"), "probe", str(here / "cells")]
    text = subprocess.run(probe, capture_output=True, text=True, check=True, timeout=300).stdout
    folder, back = measured(here / "runs" / "folder.json"), measured(here / "runs" / "hub.json")
    assert folder == back and folder["images"] == 450
    linear = float(re.findall(r"best of these .*: ([\d.]+) %", text)[0])
    print(f"fine-tuned {folder['results'][0]['top1']:.1f} %, linear probe on raw pixels {linear:.1f} %")
    assert folder["results"][0]["top1"] >= linear + 10
