from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from modalities.events import canvas
from modalities.events.canvas import CanvasOptions, compose, extent, make_canvas
from modalities.events.datasets.find import open_scenes
from modalities.events.datasets.nmnist import NMNIST
from modalities.events.datasets.prophesee import CANVAS_FILE
from modalities.events.events import Events
from tests.event_sets import write_nmnist
from zoo.cli.main import main
from zoo.errors import ConfigError, DataError

SMALL = CanvasOptions(train=6, val=2, test=3)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_the_set_is_in_the_layout_of_gen1_and_depends_on_the_seed_alone(tmp_path: Path) -> None:
    source = write_nmnist(tmp_path / "nmnist")
    digests = make_canvas(source, tmp_path / "a", SMALL)
    assert make_canvas(source, tmp_path / "b", SMALL) == digests
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    other = make_canvas(source, tmp_path / "c", CanvasOptions(train=6, val=2, test=3, seed=1))
    assert not set(other.values()) & set(digests.values())
    facts = json.loads((tmp_path / "a" / CANVAS_FILE).read_text())
    assert facts["semi_synthetic"] is True and facts["sha256"] == digests and facts["options"]["train"] == 6
    for split, count in (("train", 6), ("val", 2), ("test", 3)):
        data = open_scenes(tmp_path / "a", split, window_us=300_000, window_events=None)
        assert len(data) == count and data.class_names == list("0123456789")
        for index in range(count):
            sample = data.sample(index, data.read(index))
            assert 1 <= len(sample.boxes) <= 5 and sample.end_us == 300_000 and len(sample.events) > 300
            assert (sample.boxes[:, :2] >= 0).all() and (sample.boxes[:, 2:] <= (304, 240)).all()


def test_more_recordings_leave_the_first_ones_as_they_are(tmp_path: Path) -> None:
    source = write_nmnist(tmp_path / "nmnist")
    make_canvas(source, tmp_path / "a", SMALL)
    make_canvas(source, tmp_path / "b", CanvasOptions(train=8, val=2, test=3))
    few, more = contents(tmp_path / "a"), contents(tmp_path / "b")
    assert all(more[name] == data for name, data in few.items() if name != CANVAS_FILE)


def test_no_recording_of_a_digit_is_in_two_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_nmnist(tmp_path / "nmnist")
    used: dict[str, set[str]] = {}
    read = NMNIST.read
    splits = iter(("train", "val", "test"))
    seen: set[str] = set()

    def spy(self: NMNIST, index: int) -> Events:
        seen.add(str(self.files[index][0].relative_to(source)))
        return read(self, index)

    written = canvas.compose

    def spy_compose(*arguments: object) -> object:
        nonlocal seen
        if seen:
            used[next(splits)], seen = seen, set()
        return written(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(NMNIST, "read", spy)
    monkeypatch.setattr(canvas, "compose", spy_compose)
    make_canvas(source, tmp_path / "a", SMALL)
    assert len(used["train"]) == 36 and len(used["val"]) == 4 and len(used["test"]) == 20
    assert not used["train"] & used["val"]
    assert all(name.startswith("Train") for name in used["train"] | used["val"])
    assert all(name.startswith("Test") for name in used["test"])


def test_boxes_are_where_the_digits_are_at_the_end(tmp_path: Path) -> None:
    data = NMNIST(write_nmnist(tmp_path / "nmnist"))
    options = CanvasOptions(noise=0.0, travel=60.0)
    for seed in range(5):
        events, boxes = compose([(int(data.labels[0]), data.read(0))], options, np.random.default_rng(seed))
        assert (np.diff(events.t_us) >= 0).all() and events.t_us[0] >= 0 and events.t_us[-1] < 300_000
        last = events.t_us > 290_000
        (box,) = boxes.tolist()
        x1, y1, w, h = box[1:5]
        inside = (events.x >= x1 - 3) & (events.x < x1 + w + 3) & (events.y >= y1 - 3) & (events.y < y1 + h + 3)
        assert last.any() and inside[last].mean() > 0.95
        assert box[5] == 0 and box[0] == 300_000


def test_digits_move_and_hardly_cover_each_other(tmp_path: Path) -> None:
    data = NMNIST(write_nmnist(tmp_path / "nmnist"))
    digits = [(int(data.labels[i]), data.read(i)) for i in range(0, 40, 4)]
    rng = np.random.default_rng(0)
    counts = []
    for _ in range(10):
        _, boxes = compose(digits, CanvasOptions(digits=(10, 10), noise=0.0), rng)
        counts.append(len(boxes))
        corners = np.stack([boxes["x"], boxes["y"], boxes["x"] + boxes["w"], boxes["y"] + boxes["h"]], 1)
        for i in range(len(boxes)):
            for j in range(i):
                assert canvas._covered(corners[i : i + 1], corners[j : j + 1]) <= 0.1 + 1e-6
    assert max(counts) > 5
    still, _ = compose(digits[:1], CanvasOptions(noise=0.0, travel=0.0), np.random.default_rng(1))
    moving, _ = compose(digits[:1], CanvasOptions(noise=0.0, travel=100.0), np.random.default_rng(1))

    def way(events: Events) -> float:
        early, late = events.t_us < 20_000, events.t_us > 280_000
        return float(np.hypot(*(getattr(events, a)[early].mean() - getattr(events, a)[late].mean() for a in "xy")))

    assert way(still) < 8 and way(moving) > way(still)


def test_noise_has_the_stated_rate(tmp_path: Path) -> None:
    data = NMNIST(write_nmnist(tmp_path / "nmnist"))
    digit = [(0, data.read(0))]
    options = CanvasOptions(noise=1.0, scale=(1.0, 1.0))
    events, _ = compose(digit, options, np.random.default_rng(0))
    assert abs(len(events) - 400 - 304 * 240 * 0.3) < 1_000


def test_extent_leaves_out_lone_events(tmp_path: Path) -> None:
    x, y = np.tile(np.arange(10, 20), 100), np.repeat(np.arange(5, 15), 100)
    x[0], y[0] = 33, 0
    events = Events(np.arange(1000), x.astype(np.int32), y.astype(np.int32), np.ones(1000, bool), width=34, height=34)
    assert extent(events).tolist() == [10, 5, 20, 15]
    with pytest.raises(DataError, match="no digit"):
        extent(events[:0])


@pytest.mark.parametrize(
    "change",
    [
        {"train": 0},
        {"digits": (0, 3)},
        {"digits": (4, 3)},
        {"scale": (2.0, 1.0)},
        {"val_share": 1.0},
        {"noise": -1.0},
        {"seed": -1},
        {"overlap": 2.0},
        {"noise": float("nan")},
    ],
)
def test_options_that_cannot_be(change: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        CanvasOptions(**change)


def test_failures_leave_nothing_behind(tmp_path: Path) -> None:
    source = write_nmnist(tmp_path / "nmnist")
    (source / "Test" / "3" / "00001.bin").write_bytes(b"")
    with pytest.raises(DataError, match="empty"):
        make_canvas(source, tmp_path / "out" / "a", SMALL)
    assert not list((tmp_path / "out").iterdir())
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine").write_text("")
    with pytest.raises(ConfigError, match="exists already"):
        make_canvas(source, tmp_path / "b", SMALL)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write"):
        make_canvas(source, tmp_path / "file" / "a", SMALL)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_nmnist(tmp_path / "nmnist")
    line = ["make-canvas", "--data", str(source), "--out", str(tmp_path / "a"), "--train", "3", "--val", "1"]
    with pytest.raises(SystemExit) as stop:
        main([*line, "--test", "2", "--quiet"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert "train: 3 recordings, sha256" in out and len(list((tmp_path / "a" / "test").iterdir())) == 4
    (tmp_path / "plain").mkdir()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "plain").stat().st_mode  # Others may read it, as any folder.
    with pytest.raises(SystemExit) as stop:
        main(line)
    assert stop.value.code == 2 and "exists already" in capsys.readouterr().err
