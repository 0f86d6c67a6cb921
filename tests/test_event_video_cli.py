"""`zoo predict --save` with event models: videos, folders of videos, what is printed beside, and failures."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import sys

import pytest
from event_files import dat, draw
from event_models import classifier, detector
from saved_models import make_model

import zoo
from modalities.events.detector import EventDetector
from zoo.cli.main import main
from zoo.detection.results import to_coco

av = pytest.importorskip("av", reason="PyAV is not installed (extra video)")

SENSOR = {"width": 64, "height": 48}
HEADER = "% Version 2\n% Width 64\n% Height 48\n"


def recording_bytes(seed=0, count=2_000):
    """About 400 ms."""
    return dat(draw(count, width=64, height=48, seed=seed), HEADER)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    zoo.save(detector(**SENSOR, time_reference="end"), root / "detector")
    zoo.save(classifier(**SENSOR), root / "classifier")
    return root


@pytest.fixture
def name(models):
    return f"local-dir:{models / 'detector'}"


@pytest.fixture
def recording(tmp_path):
    path = tmp_path / "rec.dat"
    path.write_bytes(recording_bytes())
    return path


@pytest.fixture
def run(capsys):
    def call(*arguments, code=0):
        with pytest.raises(SystemExit) as stop:
            main(["predict", *map(str, arguments)])
        out, err = capsys.readouterr()
        assert stop.value.code == code, err
        assert "Traceback" not in err
        return out, err

    return call


def frame_count(path):
    with av.open(str(path)) as container:
        return sum(1 for _ in container.decode(video=0))


def test_a_video_and_the_results(run, name, recording, tmp_path):
    target = tmp_path / "new" / "out.mp4"
    arguments = (name, recording, "--min-score", "0", "--top-k", "2", "--stride-ms", "60", "--save", target)
    out, err = run(*arguments, "--json")
    windows = json.loads(out)
    assert len(windows) == frame_count(target) >= 4 and err == f"1 video: {target}\n"
    assert [one["end_us"] - windows[0]["end_us"] for one in windows] == [60_000 * k for k in range(len(windows))]
    assert all(len(one["detections"]) == 2 for one in windows)
    out, err = run(*arguments, "--csv", "--quiet", "--fps", "5", "--window-ms", "20")  # Replaces the file.
    rows = list(csv.DictReader(io.StringIO(out)))
    assert err == "" and len(rows) == 2 * len(windows) and os.listdir(target.parent) == ["out.mp4"]
    assert [int(row["start_us"]) for row in rows[::2]] == [one["start_us"] for one in windows]
    with av.open(str(target)) as container:
        assert float(container.streams.video[0].average_rate) == 5
    assert run(*arguments)[0].count("(64 x 48, ") == len(windows)


def test_the_forms_of_results_agree(name, recording):
    pandas = pytest.importorskip("pandas")
    results = zoo.predictor(name, min_score=0.0, top_k=2)(recording)
    table = pandas.concat([result.to_pandas() for result in results])
    found = to_coco(results)
    assert len(found) == len(table) == 2 * len(results)
    assert [box["start_us"] for box in found] == list(table["start_us"])
    assert [box["end_us"] for box in found] == list(table["end_us"])
    assert [box["image_id"] for box in found] == [k for k in range(len(results)) for _ in range(2)]
    assert json.loads(results[0].to_json())["end_us"] == found[0]["end_us"]


def test_a_folder_gets_a_video_for_each_recording(run, name, recording, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "rec.dat").write_bytes(recording_bytes(1, 900))
    (other / "bad.dat").write_bytes(recording_bytes()[:-3])
    folder = tmp_path / "videos.v1"
    _, err = run(name, recording, other, tmp_path / "absent.dat", "--save", folder, code=2)
    assert sorted(os.listdir(folder)) == ["rec-2.mp4", "rec.mp4"] and f"2 videos in {folder}" in err
    assert frame_count(folder / "rec.mp4") > frame_count(folder / "rec-2.mp4") >= 1
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 2 and "truncated" in "".join(errors) and "absent.dat" in "".join(errors)
    before = (folder / "rec.mp4").read_bytes()
    run(name, recording, "--save", folder)
    assert (folder / "rec-3.mp4").exists() and (folder / "rec.mp4").read_bytes() == before


def test_a_classifier_with_and_without_windows(run, models, recording, tmp_path):
    name = f"local-dir:{models / 'classifier'}"
    out, _ = run(name, recording, "--json", "--save", tmp_path / "whole.mp4")
    assert len(json.loads(out)) == 1 and frame_count(tmp_path / "whole.mp4") == 3  # It sees 100 ms; 30 a second.
    out, _ = run(name, recording, "--json", "--stride-ms", "50", "--save", tmp_path / "windows.mp4")
    assert len(json.loads(out)) == frame_count(tmp_path / "windows.mp4") > 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rec.dat", "rec.dat", "--save", "out.mp4"], "one video for 2 recordings; pass a folder"),
        (["rec.dat", "--save", "out.avi"], "not .avi"),
        (["rec.dat", "--save", "out.gif"], "not .gif"),
        (["rec.dat", "--save", "plain.mp4/out.mp4"], "cannot be written"),
        (["rec.dat", "--save", "out.mp4", "--fps", "0"], "fps must be a number"),
        (["rec.dat", "--save", "out.mp4", "--window-ms", "nan"], "--window-ms must be"),
        (["rec.dat", "--fps", "5"], "--save out.mp4"),
        (["empty.dat", "--save", "out.mp4"], "empty.dat: the file is empty"),
        (["header.dat", "--save", "out.mp4"], "holds no events"),
        (["header.dat", "--save", "out.mp4", "--errors", "keep"], "no events, so no video was made"),
        (["cut.dat", "--save", "out.mp4"], "truncated"),
        (["words.dat", "--save", "out.mp4"], "words.dat"),
        (["large.dat", "--save", "out.mp4"], "a sensor of 65 x 48 pixels; the model is for 64 x 48"),
        (["rec.dat", "--save", "rec.mp4/"], "cannot be"),
        (["same.mp4", "--save", "same.mp4"], "is the recording itself"),
    ],
)
def test_what_is_refused(run, name, recording, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.dat").write_bytes(b"")
    (tmp_path / "header.dat").write_bytes(dat(draw(0), HEADER))
    (tmp_path / "cut.dat").write_bytes(recording_bytes()[:-3])
    (tmp_path / "words.dat").write_text("words, no events")
    (tmp_path / "large.dat").write_bytes(dat(draw(50, width=64, height=48), HEADER.replace("64", "65")))
    (tmp_path / "same.mp4").write_bytes(recording_bytes())
    (tmp_path / "rec.mp4").write_bytes(b"old")
    (tmp_path / "plain.mp4").write_bytes(b"old")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    if message == "cannot be":  # A slash at the end is dropped: the file is replaced, as asked for.
        run(name, *arguments)
        assert frame_count("rec.mp4") >= 4
        return
    _, err = run(name, *arguments, code=2)
    assert message in err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_what_is_left_of_a_truncated_recording(run, name, tmp_path):
    (tmp_path / "cut.dat").write_bytes(recording_bytes()[:-3])
    out, err = run(name, tmp_path / "cut.dat", "--errors", "keep", "--json", "--save", tmp_path / "out.mp4")
    assert frame_count(tmp_path / "out.mp4") == len(json.loads(out)) >= 4
    assert err.count("truncated") == 1  # The second reading warns of nothing anew.


def test_an_image_model_makes_no_video(run, tmp_path, tiny_config):
    zoo.save(make_model(tiny_config), tmp_path / "model")
    for more, message in ((["--save", tmp_path / "out.mp4"], "image model"), (["--fps", "3"], "event model")):
        _, err = run(f"local-dir:{tmp_path / 'model'}", "x.png", *more, code=2)
        assert message in err
    assert os.listdir(tmp_path) == ["model"]


def test_an_interrupt_leaves_no_file(run, name, recording, tmp_path, monkeypatch):
    forward, calls = EventDetector.forward, []

    def interrupted(self, *arguments):
        calls.append(0)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return forward(self, *arguments)

    monkeypatch.setattr(EventDetector, "forward", interrupted)
    folder = tmp_path / "out"
    out, err = run(name, recording, "--batch-size", "1", "--json", "--save", folder / "out.mp4", code=130)
    assert len(json.loads(out)) == 2 and "error" not in err and os.listdir(folder) == []


def test_a_full_disk(run, name, recording, tmp_path, file_size_limit):
    with file_size_limit(500):
        out, err = run(name, recording, "--json", "--save", tmp_path / "out" / "out.mp4", code=2)
    assert len(json.loads(out)) >= 4 and err.count("cannot be written") == 1
    assert os.listdir(tmp_path / "out") == []


def test_progress_goes_on_within_a_recording(run, name, recording, tmp_path, monkeypatch):
    seen = []

    @contextlib.contextmanager
    def bar(label, total, quiet=False):
        assert total == 2 and not quiet
        yield lambda done, text: seen.append((done, text))

    monkeypatch.setattr("zoo.progress.progress_bar", bar)
    run(name, recording, recording, "--stride-ms", "40", "--save", tmp_path / "out")
    shares = [done for done, _ in seen]
    assert shares == sorted(shares) and len(set(shares)) > 10
    assert shares[0] < 0.2 and shares[-1] == pytest.approx(2) and all(text.startswith("at ") for _, text in seen)


def test_without_pyav(run, name, recording, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    for target in (tmp_path / "out.mp4", tmp_path / "out"):
        _, err = run(name, recording, "--save", target, code=2)
        assert "pip install 'pape-zoo[video]'" in err and not target.exists()


def test_help_says_what_is_printed_and_saved(run):
    out, _ = run("--help")
    text = " ".join(out.replace("│", " ").split())
    for words in ("start_us", "NAME.mp4", "--window-ms", "--fps"):
        assert words in text
