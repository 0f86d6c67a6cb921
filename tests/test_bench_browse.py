"""`zoo bench browse` asks a running server."""

from __future__ import annotations

import json

import pytest

from zoo.cli.main import main


def run_command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(["bench", "browse", *arguments])
    return int(stop.value.code or 0)


def test_a_small_model(capsys):
    assert run_command("pape-vit-n-imagenette", "--size", "32", "--repeats", "1", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["size"], result["environment"]["threads"]) == (32, 1)
    assert set(result["timings"]) == {"predict", "bias"} and result["load_ms"] > 0
    assert run_command("pape-vit-n-imagenette", "--size", "112", "--repeats", "1") == 0
    assert "goal of 1 s for a picture at 112 px: " in capsys.readouterr().out


def test_what_cannot_be_timed(capsys):
    assert run_command("pape-ptv3-n-als3") == 2
    assert "models of pictures" in capsys.readouterr().err
    assert run_command("pape-vit-n-imagenette", "--size", "33") == 2
    assert "multiple of 8" in capsys.readouterr().err
