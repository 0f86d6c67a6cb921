"""`zoo bench driving` on small scenes."""

from __future__ import annotations

import json

import pytest
from driving_frames import detector
from driving_tables import write_drive

import zoo
from zoo.bench import driving as bench
from zoo.cli.main import main
from zoo.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def name(tmp_path_factory):
    return f"local-dir:{zoo.save(detector(), tmp_path_factory.mktemp('model') / 'tiny')}"


def run(*arguments):
    with pytest.raises(SystemExit) as stop:
        main(["bench", "driving", *map(str, arguments), "--device", "cpu", "--threads", "1", "--repeats", "2"])
    assert not stop.value.code


def test_a_key_frame_of_a_data_set(name, tmp_path, capsys):
    root = write_drive(tmp_path / "drive", frames=1)
    run(name, "--dataroot", root, "--sample", "scene-0103-0", "--json", "--out", tmp_path / "out.json")
    result = json.loads(capsys.readouterr().out)
    assert result == json.loads((tmp_path / "out.json").read_text())
    assert (result["sample"], result["cameras"], result["points"]) == ("scene-0103-0", 2, 300)
    assert result["source"] == str(root) and result["limit_s"] == 5 and result["environment"]["threads"] == 1
    times = {key: row["median_ms"] for key, row in result["timings"].items()}
    assert set(times) == {"predict", "read", "forward"} and min(times.values()) > 0


def test_a_simulated_key_frame(name, capsys, monkeypatch):
    monkeypatch.setattr(bench, "_SIZE", (64, 36))
    monkeypatch.setattr(bench, "_AZIMUTHS", 36)
    run(name)
    out = " ".join(capsys.readouterr().out.split())
    assert "2 cameras," in out and "(simulated)" in out and "whole path" in out and "below 5 s" in out


def test_what_cannot_be_measured(name, tmp_path):
    with pytest.raises(ConfigError, match="takes image, not driving scenes"):
        bench.measure("pape-vit-n-imagenette", device="cpu")
    with pytest.raises(ConfigError, match="give dataroot"):
        bench.measure(name, sample="x", device="cpu")
    with pytest.raises(DataError, match="not the root of a data set"):
        bench.measure(name, tmp_path, device="cpu")
