"""The examples that take no arguments, run in this process, which has the libraries loaded."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
Run = Callable[[str], list[str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs an example from an empty folder, which stays empty; gives the lines that it prints."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    if not (ROOT / "hub_cards/pape-vit-t-imagenette/model.safetensors").is_file():
        pytest.skip("the embedded weights are not there")

    def call(name: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", [name])
        capsys.readouterr()
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
        assert not list((tmp_path / "here").iterdir())
        return capsys.readouterr().out.splitlines()

    return call


def test_browse(run: Run) -> None:
    lines = run("browse.py")
    assert int(lines[0].removesuffix(" pages")) > 200
    assert all(re.match(rf"{size} px: golf ball \d", line) for size, line in zip((112, 224), lines[1:3], strict=True))
    assert len(lines) == 7 and all("of [14, 14]" in line for line in lines[3:])


def test_choose_encoding(run: Run) -> None:
    lines = run("choose_encoding.py")
    assert [line[:2] for line in lines[:3]] == ["1.", "2.", "3."] and "top1" in lines[0]
    assert lines[3].startswith("excluded: ") and "rope-1d" in lines[3]
    assert lines[4].startswith("error unseen-angles") and lines[-1].startswith("with YaRN: 0 errors")


def test_predict_video(run: Run) -> None:
    pytest.importorskip("av")
    lines = run("predict_video.py")
    assert lines[0].startswith("rotate-left: 9") and lines[3].startswith("0.00 to ")
    assert lines[-1].startswith("at 96 px: rotate-left ")


def test_predict_points(run: Run) -> None:
    lines = run("predict_points.py")
    assert lines[0].startswith("table.off: table ")
    points = [int(count.replace(",", "")) for count in re.findall(r": ([\d,]+) points, ", "\n".join(lines))]
    assert len(points) == 3 and lines[-1].startswith(f"labelled.ply: {sum(points):,} points")


def test_events(run: Run) -> None:
    pytest.importorskip("numba")
    lines = run("events.py")
    assert lines[0].startswith("digits.dat: ") and lines[0].endswith("on 304 x 240 pixels")
    assert re.fullmatch(r"\d+ tokens, \d+ pieces make the same", lines[1])
    assert set(re.findall(r"(\d) \d+%", lines[-1])) == {"2", "3", "5"}


def test_sequences(run: Run) -> None:
    lines = run("sequences.py")
    differences = [float(found) for found in re.findall(r"logits differ by (\S+)", "\n".join(lines))]
    assert len(differences) == 5 and max(differences) < 1e-4
    pitches = [int(found) for line in lines[6:] for found in re.findall(r" (\d+)", line)]
    assert len(lines) == 14 and len(pitches) == 32 and all(36 <= pitch <= 86 for pitch in pitches)


def test_mixed_positions(run: Run) -> None:
    lines = run("mixed_positions.py")
    heads = [line for line in lines if not line.startswith("  ")]
    assert heads[:4] == ["Qwen2-VL", "MRoPE-I", "VideoRoPE", "V2PE, stride 1/4"]
    assert lines[1] == "  text: 0, 0, 0" and lines[4] == "  image: 2, 2, 3"
    assert float(heads[-1].split()[-1]) < 1e-4


def test_reproduce_table(run: Run) -> None:
    lines = run("reproduce_table.py")
    assert any(line.startswith("index: ") for line in lines) and "**Dry run" in "\n".join(lines)
    assert any(line.startswith("| pope |") for line in lines) and "table.md" in lines[-1]


@pytest.mark.slow
def test_resume(run: Run) -> None:
    lines = run("resume.py")
    assert re.fullmatch(r"killed; goes on at step \d+ of 64", lines[-2]) and lines[-1] == "in the end: the same weights"
