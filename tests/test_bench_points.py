"""`zoo bench points` on small clouds."""

from __future__ import annotations

import json

import pytest
from ptv3_toys import tiny

import zoo
from zoo.bench import points as bench
from zoo.cli.main import main
from zoo.errors import ConfigError


@pytest.fixture
def name(tmp_path):
    zoo.save(tiny(), tmp_path / "model")
    return f"local-dir:{tmp_path / 'model'}"


@pytest.mark.parametrize("train", [False, True])
def test_clouds_together_and_apart(name, train, capsys, tmp_path):
    arguments = ["bench", "points", name, "--lengths", "4,60", "--points", "50", "--repeats", "1", "--device", "cpu"]
    arguments += ["--threads", "1", "--json", "--out", str(tmp_path / "out.json")]
    with pytest.raises(SystemExit) as stop:
        main([*arguments, *(["--train"] if train else [])])
    assert not stop.value.code
    result = json.loads(capsys.readouterr().out)
    assert result == json.loads((tmp_path / "out.json").read_text())
    assert (result["step"], result["lengths"], result["single"]["points"]) == (
        ("inference", "train")[train],
        [4, 60],
        50,
    )
    assert [row["what"] for row in result["rows"]] == ["model", "attention"]
    for row in result["rows"]:
        assert row["ratio"] == pytest.approx(row["together_ms"] / row["apart_ms"]) and row["together_ms"] > 0
    assert result["environment"]["threads"] == 1 and result["limits"] == {"ratio": 1.1, "single_ms": 500.0}


def test_table(name, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["bench", "points", name, "--lengths", "9", "--points", "9", "--repeats", "1", "--device", "cpu"])
    out = " ".join(capsys.readouterr().out.split())
    assert not stop.value.code and "at most 1.1 times one by one:" in out and "one cloud of 9 points:" in out


def test_surface_fills_voxels_as_real_clouds_do():
    xyz, features = bench.surface(6000, 2, 0.5)
    assert xyz.shape == (6000, 3) and features.shape == (6000, 2)
    half = xyz.abs().amax()
    assert ((xyz.abs() - half).abs() < 1e-5).any(dim=1).all()
    cells = (xyz / 0.5).floor().unique(dim=0)
    assert 2500 < len(cells) < 6000


def test_what_cannot_be_measured(name):
    with pytest.raises(ConfigError, match="takes image, not clouds"):
        bench.measure("pape-vit-n-in1k")
    with pytest.raises(ConfigError, match="at least one point"):
        bench.measure(name, lengths=[])
