"""Events to tokens, windows of a recording, and prediction on event files, in Python and on the command line."""

from __future__ import annotations

import csv
import dataclasses
import io
import json

import numpy as np
import pytest
import torch
from event_models import classifier as classifier_of
from event_models import detector as detector_of
from saved_models import make_model

import zoo
from modalities.events import EventDataConfig, Events, EventTokens, open_events
from modalities.events.batches import tokens_of
from modalities.events.datasets.find import open_clips
from modalities.events.frames import BRIGHTER, draw_events
from modalities.events.prepare import prepare
from modalities.events.windows import QUIET, for_windows
from zoo.cli.main import main

START = 40_000
SENSOR = {"width": 34, "height": 34}  # That of every N-MNIST file.


def classifier(**settings):
    return classifier_of(**SENSOR, **settings)


def detector(**settings):
    return detector_of(**SENSOR, **settings)


def some_events(count=2_000, seed=0, span=240_000, width=22, height=16):
    rng = np.random.default_rng(seed)
    t_us = np.sort(rng.integers(0, span, count)) + START
    x, y = rng.integers(0, width, count), rng.integers(0, height, count)
    return Events(t_us.astype(np.int64), x.astype(np.int32), y.astype(np.int32), rng.random(count) < 0.5)


def nmnist_bytes(events):
    """The bytes of an N-MNIST file."""
    word = (events.p.astype(np.int64) << 23) | events.t_us
    rows = [events.x, events.y, word >> 16, (word >> 8) & 255, word & 255]
    return np.stack(rows, 1).astype(np.uint8).tobytes()


@pytest.fixture
def recording(tmp_path):
    path = tmp_path / "clip.bin"
    path.write_bytes(nmnist_bytes(some_events()))
    return path


def data(**changes):
    return EventDataConfig(width=22, height=16, patch_size=4, threshold=5, refractory_us=100, buckets=3, **changes)


# ---- preparing


def test_times_count_from_the_start_or_back_from_the_end():
    events = some_events()
    plain = data().tokenizer(events)
    start = prepare(events, data())
    assert len(start) > 50 and np.array_equal(start.t_us, plain.t_us - events.t_us[0])
    assert np.array_equal(start.patches, plain.patches)
    given = prepare(events, data(), start_us=START - 7)
    assert np.array_equal(given.t_us, plain.t_us - (START - 7))
    end = prepare(events, data(time_reference="end"))
    assert np.array_equal(end.t_us, events.t_us[-1] + 1 - plain.t_us) and end.t_us.min() >= 1
    label = START + 100_000
    before = data().tokenizer(events[events.t_us < label])
    aged = prepare(events, data(time_reference="end"), end_us=label)
    assert np.array_equal(aged.t_us, label - before.t_us) and np.array_equal(aged.x, before.x)


@pytest.mark.parametrize(
    ("settings", "bounds", "chosen"),
    [
        ({"window_us": 50_000}, {}, lambda e: e.t_us < e.t_us[0] + 50_000),
        ({"window_us": 50_000}, {"start_us": START + 9}, lambda e: (e.t_us >= START + 9) & (e.t_us < START + 50_009)),
        ({"window_us": 50_000, "time_reference": "end"}, {}, lambda e: e.t_us >= e.t_us[-1] + 1 - 50_000),
        (
            {"window_us": 50_000, "time_reference": "end"},
            {"end_us": START + 90_000},
            lambda e: (e.t_us >= START + 40_000) & (e.t_us < START + 90_000),
        ),
        ({"max_events": 300}, {}, lambda e: np.arange(len(e)) >= len(e) - 300),
        ({}, {"start_us": START + 10, "end_us": START + 5}, lambda e: e.t_us < 0),
    ],
)
def test_the_events_of_a_sample(settings, bounds, chosen):
    events, config = some_events(), data(**settings)
    expected = data().tokenizer(events[chosen(events)])
    found = prepare(events, config, **bounds)
    assert np.array_equal(found.patches, expected.patches) and np.array_equal(found.x, expected.x)
    if "window_us" in settings:
        assert len(found) and found.t_us.min() >= 0 and found.t_us.max() <= 50_000


def test_no_events_are_no_tokens_and_disorder_is_refused():
    events = some_events()
    for reference in ("start", "end"):
        assert len(prepare(events[:0], data(time_reference=reference, window_us=9), end_us=5)) == 0
    with pytest.raises(zoo.DataError, match="time steps back"):
        prepare(events[np.arange(len(events))[::-1]], data(max_events=10))
    with pytest.raises(zoo.DataError, match="outside the 22 x 16"):
        prepare(some_events(width=30), data())


# ---- windows


def naive(events, config, stride):
    """Windows by their definition, from the whole recording."""
    windows, first = [], int(events.t_us[0])
    length = config.window_us or stride
    while first <= events.t_us[-1]:
        if config.time_reference == "end":
            end = first + stride
            low = end - config.window_us if config.window_us else 0
        else:
            low, end = first, first + length
        chosen = events[(events.t_us >= low) & (events.t_us < end)]
        windows.append((end, chosen if config.max_events is None else chosen[-config.max_events :]))
        first += stride
    return windows


@pytest.mark.parametrize("chunk", [1, 37, 10_000])
@pytest.mark.parametrize("reference", ["start", "end"])
@pytest.mark.parametrize(
    ("window", "most", "stride"),
    [(50_000, None, 20_000), (20_000, None, 50_000), (None, 100, 30_000), (None, None, 70_000), (90_000, 50, 90_000)],
)
def test_windows_of_a_stream_are_those_of_the_whole(chunk, reference, window, most, stride):
    events = some_events(700)
    config = data(time_reference=reference, window_us=window, max_events=most)
    pieces = (events[start : start + chunk] for start in range(0, len(events), chunk))
    found = list(for_windows(pieces, config, stride_us=stride))
    expected = naive(events, config, stride)
    assert [window.end_us for window in found] == [end for end, _ in expected]
    for window, (end, chosen) in zip(found, expected, strict=True):
        assert np.array_equal(window.events.t_us, chosen.t_us) and np.array_equal(window.events.x, chosen.x)
        tokens = window.tokens()
        assert (tokens.t_us >= 0).all() and (tokens.t_us <= end - window.start_us).all()


def test_windows_hold_little_of_a_long_recording():
    config = data(time_reference="end", window_us=10_000)
    held = []

    def pieces():
        for number in range(200):
            t_us = np.arange(1_000, dtype=np.int64) * 10 + 10_000 * number
            yield Events(t_us, *(np.zeros(1_000, np.int32),) * 2, np.zeros(1_000, bool))

    for window in for_windows(pieces(), config, stride_us=10_000):
        base = window.events.t_us
        while base.base is not None:
            base = base.base
        held.append(len(base))
    assert len(held) == 200 and max(held) <= 3_000


@pytest.mark.parametrize("chunk", [1, 2, 1_000])
@pytest.mark.parametrize("reference", ["start", "end"])
@pytest.mark.parametrize("window", [None, 300, 70])
def test_a_clock_that_jumps_by_years_gives_a_bounded_number_of_windows(chunk, reference, window):
    config, stride, jump = data(time_reference=reference, window_us=window), 100, 2**60
    times = np.array([0, 250, 700, jump, jump + 40, jump + 90, 2 * jump + 7], np.int64)
    events = Events(times, *(np.zeros(7, np.int32),) * 2, np.zeros(7, bool), name="clock.npz")
    pieces = (events[start : start + chunk] for start in range(0, len(events), chunk))
    with pytest.warns(UserWarning, match=r"clock\.npz: no event before"):
        found = list(for_windows(pieces, config, stride_us=stride))
    assert len(found) <= 2 * QUIET + 20
    assert all(window.end_us % stride == found[0].end_us % stride for window in found)
    ends = np.array([window.end_us for window in found])
    assert (np.diff(ends) > 0).all() and (np.diff(ends) > stride).sum() == 2
    if window != 70:  # Which sees less than a stride.
        seen = {int(t) for window in found for t in window.events.t_us}
        assert seen == set(times.tolist())


@pytest.mark.parametrize("stride", [0, -1, 2.5, True, "fast"])
def test_bad_strides(stride):
    with pytest.raises(zoo.ConfigError, match="stride_us"):
        for_windows([], data(), stride_us=stride)


def test_a_recording_without_events_has_no_window():
    assert list(for_windows([some_events()[:0]], data())) == []


# ---- prediction


@pytest.mark.parametrize("window", [None, 200_000])
def test_a_classifier_sees_the_recording_as_training_and_evaluation_do(recording, window):
    for digit in range(10):
        (recording.parent / f"Test/{digit}").mkdir(parents=True)
    (recording.parent / "Test/3/1.bin").write_bytes(recording.read_bytes())
    clips = open_clips(recording.parent, "test", "nmnist")
    model = classifier(window_us=window)
    result = zoo.predictor(model)(recording)
    tokens = tokens_of(clips.sample(0, clips.read(0)), model.data_config)
    with torch.no_grad():
        expected = model(EventTokens.collate([tokens]))[0].softmax(0)
    assert len(tokens) > 50 and result.score == pytest.approx(float(expected.max()), abs=1e-6)
    assert result.indices[0] == int(expected.argmax()) and result.labels[0] == model.config["labels"][result.indices[0]]
    times = some_events().t_us
    end = int(times[times < (window or 2**40)][-1]) + 1
    assert result.time_us == (0, end) and result.to_dict()["end_us"] == end


def test_other_formats_and_parts_cut_out_start_with_the_first_event(recording, tmp_path):
    events = some_events()
    np.savez(tmp_path / "clip.npz", t=events.t_us, x=events.x, y=events.y, p=events.p)
    config = classifier(window_us=START).data_config
    for source in (tmp_path / "clip.npz", recording):  # The latter starts after a window from 0.
        model = classifier(window_us=START)
        result = zoo.predictor(model)(source)
        with torch.no_grad():
            expected = model(EventTokens.collate([prepare(events, config)]))[0].softmax(0)
        assert result.time_us[0] == events.t_us[0] and result.score == pytest.approx(float(expected.max()), abs=1e-6)


def test_many_recordings_and_batches_give_the_same(recording, tmp_path):
    (tmp_path / "other.bin").write_bytes(nmnist_bytes(some_events(900, seed=4)))
    predict = zoo.predictor(classifier(window_us=None))
    together = predict(tmp_path)
    assert [result.path.name for result in together] == ["clip.bin", "other.bin"]
    for result in together:
        assert predict(result.path).score == pytest.approx(result.score, abs=1e-6)
    (tmp_path / "bad.bin").write_bytes(b"1234567")
    assert len(predict(tmp_path, on_error="skip")) == 2 and predict.failures[0].name.endswith("bad.bin")
    with pytest.raises(zoo.DataError, match=r"bad\.bin"):
        predict(tmp_path)
    with pytest.raises(zoo.DataError, match="holds no recording"):
        (tmp_path / "empty").mkdir()
        predict(tmp_path / "empty")


def test_a_classifier_with_a_stride_gives_a_result_for_each_window(recording):
    results = zoo.predictor(classifier())(recording, stride_us=50_000)
    assert [end - start for start, end in (result.time_us for result in results)] == [100_000] * len(results)
    assert len(results) == 5


@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_a_detector_gives_boxes_for_each_window(recording, batch_size):
    model = detector(time_reference="end")
    predict = zoo.predictor(model, min_score=0.0)
    results = predict(recording, stride_us=60_000, batch_size=batch_size)
    windows = list(for_windows(open_events(recording).chunks(), model.data_config, stride_us=60_000))
    assert len(results) == len(windows) == 4
    for result, window in zip(results, windows, strict=True):
        with torch.no_grad():
            found = model(EventTokens.collate([window.tokens()])).for_image(0, result.size)
        assert result.time_us == (window.start_us, window.end_us) and len(result) == len(found) > 0
        np.testing.assert_allclose(sorted(result.scores), sorted(found[:, 4].tolist()), atol=1e-5)
        boxes = np.array(result.boxes)
        assert (boxes >= 0).all() and (boxes[:, 2] <= result.size[1]).all() and (boxes[:, 3] <= result.size[0]).all()
    table = results[0].rows()
    assert results[0].columns == predict.columns and len(table[0]) == len(predict.columns)
    assert table[0][-2:] == results[0].time_us
    assert len(list(predict(recording, stream=True))) == 3  # The window, 100 ms, is the stride.


def test_plots_are_of_the_events_of_the_window(recording):
    result = zoo.predictor(classifier())(recording)
    sheet = np.asarray(result.plot())
    assert sheet.shape[1] == 21 * 34 and len(np.unique(sheet.reshape(-1, 3), axis=0)) > 10
    recording.unlink()
    with pytest.raises(zoo.DataError, match=r"clip\.bin"):
        result.plot()


def test_events_are_drawn_where_they_are():
    place = np.array([1, 1, 1, 3], np.int32)
    events = Events(np.arange(4), place, np.array([0, 0, 0, 9], np.int32), np.array([True, True, True, False]))
    rgb = draw_events(events, 2, 4).rgb
    assert rgb.shape == (2, 4, 3) and tuple(rgb[0, 1]) == BRIGHTER and (rgb.any(axis=2).sum()) == 1
    assert 0 < draw_events(events[:1], 2, 4).rgb[0, 1, 0] < BRIGHTER[0]  # More events, more colour.


def test_events_plot_themselves():
    events = some_events()
    whole = np.asarray(events.plot())  # Up to the last row and column with an event.
    assert whole.shape == (32 * 16, 32 * 22, 3)
    part = np.asarray(events[events.t_us < START + 1_000].plot())
    assert part.any() and part.any(axis=2).sum() < whole.any(axis=2).sum() / 4
    assert dataclasses.replace(events, width=300, height=800)[:0].plot().size == (300, 800)
    with pytest.raises(zoo.DataError, match="no events to draw"):
        events[:0].plot()
    far = np.full(1, 2**31 - 1, np.int32)
    with pytest.raises(zoo.DataError, match="no sensor's"):
        dataclasses.replace(events[:1], x=far, y=far).plot()


def test_what_a_predictor_of_events_refuses(recording):
    with pytest.raises(zoo.ConfigError, match="size of an event model"):
        zoo.predictor(classifier(), size=64)
    with pytest.raises(zoo.DataError, match="a sensor of 640 x 480 pixels; the model is for 34 x 34"):
        zoo.predictor(classifier())(recording, width=640, height=480)
    with pytest.raises(zoo.DataError, match="no event file"):
        zoo.predictor(classifier())(np.zeros((3, 4)))
    with pytest.raises(zoo.DataError, match=r"absent\.bin"):
        zoo.predictor(classifier())("absent.bin")


# ---- the command line


@pytest.fixture
def run(capsys):
    def call(*arguments, code=0):
        with pytest.raises(SystemExit) as stop:
            main(["predict", *map(str, arguments)])
        out, err = capsys.readouterr()
        assert stop.value.code == code, err
        return out, err

    return call


def test_command_line(run, recording, tmp_path):
    zoo.save(classifier(), tmp_path / "model")
    zoo.save(detector(time_reference="end"), tmp_path / "detector")
    out, _ = run(f"local-dir:{tmp_path / 'model'}", recording, "--json")
    (found,) = json.loads(out)
    assert found["source"] == str(recording) and abs(sum(one["score"] for one in found["predictions"]) - 1) < 1e-5
    arguments = (f"local-dir:{tmp_path / 'detector'}", recording, "--stride-ms", "60", "--min-score", "0", "--csv")
    out, _ = run(*arguments)
    rows = list(csv.DictReader(io.StringIO(out)))
    assert len({row["end_us"] for row in rows}) == 4 and set(rows[0]) >= {"x1", "score", "label", "start_us"}


@pytest.mark.parametrize("stride", ["0", "-3", "nan"])
def test_bad_strides_on_the_command_line(run, recording, tmp_path, stride):
    zoo.save(classifier(), tmp_path / "model")
    _, err = run(f"local-dir:{tmp_path / 'model'}", recording, "--stride-ms", stride, code=2)
    assert "--stride-ms must be" in err


def test_a_stride_is_for_recordings(run, tmp_path, tiny_config):
    zoo.save(make_model(tiny_config), tmp_path / "model")
    _, err = run(f"local-dir:{tmp_path / 'model'}", "x.png", "--stride-ms", "5", code=2)
    assert "pictures have no time" in err
