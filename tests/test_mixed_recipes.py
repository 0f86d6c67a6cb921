"""Recipes, models and commands that do not belong together: one line that says so, before any data are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from zoo.cli.main import main


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))


def said(arguments: list[object], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    lines = capsys.readouterr().err.strip().splitlines()
    assert stop.value.code == 2 and len(lines) == 1 and lines[0].startswith("error: "), lines
    return lines[0]


@pytest.mark.parametrize(
    ("recipe", "model", "trains", "given"),
    [
        ("imagenette", "pape-event-vit-n-nmnist1100", "image classification", "events classification"),
        ("imagenette", "pape-vit-det-n-bccd", "image classification", "image detection"),
        ("bccd", "pape-vit-t-imagenette", "image detection", "image classification"),
        ("bccd", "pape-event-det-n-gen1", "image detection", "events detection"),
        ("nmnist1100", "pape-vit-n-in1k", "events classification", "image classification"),
        ("nmnist-canvas", "pape-event-vit-n-nmnist1100", "events detection", "events classification"),
    ],
)
def test_a_recipe_with_a_model_of_another_kind(recipe, model, trains, given, tmp_path, capsys):
    arguments = ["train", recipe, "--model", model, "--data", tmp_path / "nowhere", "--out", tmp_path / "run"]
    line = said([*arguments, "--set", "compile=false", "--quiet"], capsys)
    assert f"trains models for {trains}; {model} is one for {given}" in line
    assert not (tmp_path / "run").exists()


def test_a_sweep_of_detectors_by_a_metric_of_classifiers(tmp_path, capsys):
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text("recipe: bccd\nsizes: [64]\nruns: [{name: a, model: pape-vit-det-n-bccd}]\n")
    line = said(["sweep", sweep, "--data", tmp_path / "nowhere", "--out", tmp_path / "out"], capsys)
    assert "image detection, whose metrics are map" in line and "not top1" in line and not (tmp_path / "out").exists()


def test_the_latency_and_the_bias_of_an_event_model(capsys):
    line = said(["bench", "predict", "pape-event-vit-n-nmnist1100", "--untrained"], capsys)
    assert "image models" in line and "zoo bench events" in line
    line = said(["viz", "bias", "pape-event-det-n-gen1", "--untrained"], capsys)
    assert "image models" in line


def test_a_recording_for_an_image_model(tmp_path, capsys):
    (tmp_path / "clip.bin").write_bytes(bytes([1, 2, 128, 0, 9] * 20))
    line = said(["predict", "pape-vit-n-imagenette", tmp_path / "clip.bin"], capsys)
    assert "clip.bin: not a picture" in line
