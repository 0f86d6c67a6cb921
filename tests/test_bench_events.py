"""`zoo bench events` on few events."""

from __future__ import annotations

import json

import event_files
import numpy as np
import pytest

from zoo.bench import events as bench
from zoo.cli.main import main
from zoo.errors import ConfigError

pytest.importorskip("numba")
SMALL = ["bench", "events", "--repeats", "1"]


def run_command(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return int(stop.value.code or 0)


def test_made_events(capsys, tmp_path):
    arguments = [*SMALL, "--events", "20000", "--width", "64", "--height", "48", "--piece", "999"]
    assert run_command([*arguments, "--json", "--out", str(tmp_path / "out.json")]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result == json.loads((tmp_path / "out.json").read_text())
    assert result["events"] == 20_000 and result["size"] == [64, 48] and result["read"] is None
    assert [(row["what"], row["refractory_us"]) for row in result["rows"]] == [
        ("whole", 100_000),
        ("pieces of 999", 100_000),
        ("whole", 0),
        ("pieces of 999", 0),
    ]
    for row in result["rows"]:
        assert row["million_events_per_s"] == pytest.approx(20 / row["median_ms"])
        assert 0 < row["tokens"] <= 20_000 // 256
    assert result["environment"]["threads"] == 1


def test_recording(capsys, tmp_path):
    (tmp_path / "a.dat").write_bytes(event_files.dat(event_files.draw(500)))
    assert run_command([*SMALL, str(tmp_path / "a.dat"), "--refractory-us", "0"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "a.dat: 500 events in" in out and "on 640 x 480 pixels" in out and "read at" in out
    assert "goal of 10 million events/s on one core" in out
    assert run_command([*SMALL, str(tmp_path / "b.dat")]) == 2
    assert "b.dat: cannot be opened" in capsys.readouterr().err


def test_made_events_are_dense_and_in_order():
    events = bench.moving_edges(50_000, 64, 48, 1e6)
    assert (np.diff(events.t_us) >= 0).all() and 0.03e6 < events.t_us[-1] < 0.07e6
    assert events.x.min() == 0 and events.x.max() == 63 and events.y.max() == 47
    with pytest.raises(ConfigError, match="piece must be at least 1"):
        bench.measure(count=10, piece=0)
