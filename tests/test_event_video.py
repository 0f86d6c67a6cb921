"""Videos of event recordings: decoded again and looked at; bounded memory; nothing left behind by failures."""

from __future__ import annotations

import os
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from event_files import dat
from event_models import classifier, detector
from saved_models import make_model

import zoo
from modalities.events import EventVideo, open_events
from modalities.events.frames import BRIGHTER, DARKER, RecordedWindow
from zoo.detection.results import DetectionResults

av = pytest.importorskip("av", reason="PyAV is not installed (extra video)")

WIDTH, HEIGHT, FACTOR = 304, 240, 2
HEADER = f"% Version 2\n% Width {WIDTH}\n% Height {HEIGHT}\n"
SENSOR = {"width": WIDTH, "height": HEIGHT}
STRIDE = 50_000
RED = (217, 33, 33)  # of class 0


def moving_block(windows=4, each=300):
    """Events of window k in the 20 x 20 pixels from (50 k, 100), brighter in even windows, darker in odd ones."""
    rng = np.random.default_rng(0)
    rows = []
    for k in range(windows):
        t = np.sort(rng.integers(k * STRIDE, (k + 1) * STRIDE, each))
        t[0], t[-1] = k * STRIDE, (k + 1) * STRIDE - 1
        x, y = 50 * k + rng.integers(0, 20, each), 100 + rng.integers(0, 20, each)
        rows.append(np.stack([t, x, y, np.full(each, k % 2 == 0)], 1))
    return np.concatenate(rows)


@pytest.fixture
def recording(tmp_path):
    path = tmp_path / "rec.dat"
    path.write_bytes(dat(moving_block(), HEADER))
    return path


def result_of(reader, number, boxes=(), stride=STRIDE):
    """A result of a detector for a window, with boxes of our choice."""
    start, end = number * stride, (number + 1) * stride
    count = len(boxes)
    return DetectionResults(
        name=reader.name,
        path=reader.path,
        boxes=tuple(boxes),
        indices=(0,) * count,
        labels=("car",) * count,
        scores=(0.9,) * count,
        size=(HEIGHT, WIDTH),
        _picture=RecordedWindow(reader, start, end, (HEIGHT, WIDTH), stride),
        time_us=(start, end),
    )


def frames_of(path):
    with av.open(str(path)) as container:
        assert container.streams.video[0].codec_context.name == "h264"
        return [frame.to_ndarray(format="rgb24").astype(int) for frame in container.decode(video=0)]


def near(pixels, colour, tolerance=40):
    return (np.abs(np.asarray(pixels) - colour) <= tolerance).all(-1)


def rate_of(path):
    with av.open(str(path)) as container:
        return float(container.streams.video[0].average_rate)


# ---- what is to be seen


def test_boxes_events_and_time_are_in_the_frames(recording, tmp_path):
    reader = open_events(recording)
    box = (60.0, 20.0, 140.0, 90.0)
    with EventVideo(tmp_path / "out.mp4") as video:
        for number in range(4):
            video.add(result_of(reader, number, [box] if number == 2 else []))
        assert video.frames == 4 and video.done == pytest.approx(1, abs=0.01)
    frames = frames_of(tmp_path / "out.mp4")
    assert len(frames) == 4 and rate_of(tmp_path / "out.mp4") == 20  # Real time: one every 50 ms.
    height, width, _ = frames[0].shape
    assert width == FACTOR * WIDTH and height > FACTOR * HEIGHT and height % 2 == 0
    for number, frame in enumerate(frames):
        left, right = FACTOR * int(box[0]), FACTOR * int(box[2])
        top, bottom = FACTOR * int(box[1]), FACTOR * int(box[3])
        edges = [frame[top + 40 : bottom - 10, left], frame[bottom - 1, left + 10 : right - 10]]
        for edge in edges:
            assert near(edge, RED).mean() == pytest.approx(1.0 if number == 2 else 0.0, abs=0.1)
        assert not near(frame[top + 40 : bottom - 10, left + 20 : right - 20], RED).any()
        colour, other = (BRIGHTER, DARKER) if number % 2 == 0 else (DARKER, BRIGHTER)
        block = frame[FACTOR * 100 : FACTOR * 120, FACTOR * 50 * number : FACTOR * (50 * number + 20)]
        sensor = frame[FACTOR * 95 : FACTOR * HEIGHT]
        assert near(block, np.array(colour) / 2).mean() > 0.1 and not near(sensor, other, 30).any()
        outside = sensor.copy()
        outside[:, FACTOR * 50 * number - 4 * (number > 0) : FACTOR * (50 * number + 20) + 4] = 0
        assert outside.max() < 40
    lines = [frame[FACTOR * HEIGHT :, :120] for frame in frames]
    assert all(np.abs(one - lines[0]).max() > 100 for one in lines[1:]) and lines[0].max() > 180


def test_a_longer_window_shows_earlier_events_too(recording, tmp_path):
    reader = open_events(recording)
    with EventVideo(tmp_path / "out.mp4", window_us=2 * STRIDE, fps=7) as video:
        for number in range(4):
            video.add(result_of(reader, number))
    frames = frames_of(tmp_path / "out.mp4")
    assert len(frames) == 4 and rate_of(tmp_path / "out.mp4") == 7
    for number in range(4):
        blocks = [frames[number][200:240, 100 * k : 100 * k + 40].max() > 60 for k in range(4)]
        assert blocks == [k in (number, number - 1) for k in range(4)]


@pytest.mark.parametrize(("stride", "fps"), [(1_000, 60), (2_000_000, 1), (33_333, 1e6 / 33_333)])
def test_real_time_within_what_players_show(tmp_path, recording, stride, fps):
    with EventVideo(tmp_path / "out.mp4") as video:
        video.add(result_of(open_events(recording), 0, stride=stride))
    assert rate_of(tmp_path / "out.mp4") == pytest.approx(fps, rel=1e-4)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 700), (721, 33), (480, 641)])
def test_sensors_of_any_shape(tmp_path, height, width):
    rows = np.array([[t, 0, 0, t % 2] for t in range(100)])
    path = tmp_path / "rec.dat"
    path.write_bytes(dat(rows, f"% Version 2\n% Width {width}\n% Height {height}\n"))
    reader = open_events(path)
    result = result_of(reader, 0)
    object.__setattr__(result, "size", (height, width))
    object.__setattr__(result, "_picture", RecordedWindow(reader, 0, 100, (height, width), 100))
    with EventVideo(tmp_path / "out.mp4") as video:
        video.add(result)
    (frame,) = frames_of(tmp_path / "out.mp4")
    assert frame.shape[0] % 2 == 0 and frame.shape[1] % 2 == 0 and frame.shape[1] >= width


@pytest.mark.parametrize(
    "name", ["evt3_gen41_9ms.raw", "dvxplorer_events_imu.aedat4", "davis346_events_frames_imu_triggers.aedat4"]
)
def test_recordings_of_real_cameras(shared, tmp_path, name):
    with zipfile.ZipFile(shared / "data" / "event_formats" / "event_formats.zip") as archive:
        path = Path(archive.extract(name, tmp_path))
    reader = open_events(path)
    events = reader.read()
    start, stride = int(events.t_us[0]), 3_000
    shares = []
    with EventVideo(tmp_path / "out.mp4") as video:
        for number in range(3):
            result = result_of(reader, 0)
            view = RecordedWindow(reader, 0, start + (number + 1) * stride, (reader.height, reader.width), stride)
            object.__setattr__(result, "size", view.size)
            object.__setattr__(result, "_picture", view)
            video.add(result)
            shares.append(video.done)
    assert shares == sorted(shares) and 0 < shares[0] < shares[-1] <= 1
    frames = frames_of(tmp_path / "out.mp4")
    factor = max(1, 720 // reader.width)
    for number, frame in enumerate(frames):
        inside = events[(events.t_us >= start + number * stride) & (events.t_us < start + (number + 1) * stride)]
        lit = frame[factor * inside.y + factor // 2, factor * inside.x + factor // 2].max(-1)
        assert len(inside) > 100 and np.median(lit) > 60 > np.median(frame[: factor * reader.height])
    assert len(frames) == 3


# ---- with models


@pytest.mark.parametrize("reference", ["start", "end"])
def test_a_frame_for_each_result_of_a_detector(recording, tmp_path, reference):
    predict = zoo.predictor(detector(**SENSOR, time_reference=reference), min_score=0.0, top_k=2)
    results = []
    with predict.video(tmp_path / "streamed.mp4") as video:
        for result in predict(recording, stream=True, stride_us=STRIDE, batch_size=3):
            video.add(result)
            results.append(result)
    assert video.frames == len(results) == (4 if reference == "end" else len(results)) >= 3
    assert all(len(result) == 2 and set(result.to_dict()) >= {"start_us", "end_us"} for result in results)
    frames = frames_of(tmp_path / "streamed.mp4")
    assert len(frames) == len(results) and all(near(frame[:480], RED).sum() > 50 for frame in frames)
    with predict.video(tmp_path / "listed.mp4") as video:  # Results that were kept do as well.
        for result in predict(recording, stride_us=STRIDE):
            video.add(result)
    assert (tmp_path / "listed.mp4").stat().st_size == (tmp_path / "streamed.mp4").stat().st_size
    with pytest.raises(zoo.DataError, match="one window makes no video"):
        results[0].save(tmp_path / "one.mp4")
    assert not (tmp_path / "one.mp4").exists()


def test_a_classifier_of_the_whole_recording(recording, tmp_path):
    predict = zoo.predictor(classifier(**SENSOR, window_us=None))
    result = predict(recording)
    assert result.save(tmp_path / "out.mp4") == tmp_path / "out.mp4"
    frames = frames_of(tmp_path / "out.mp4")
    assert len(frames) == 6 and rate_of(tmp_path / "out.mp4") == 30  # 0.2 s.
    panel = [frame[490:-30] for frame in frames]
    assert near(panel[0], (255, 255, 255)).mean() > 0.3 and all(np.abs(one - panel[0]).mean() < 2 for one in panel)
    assert [bool(frame[200:240, :40].max() > 60) for frame in frames] == [True, True, False, False, False, False]
    with predict.video(tmp_path / "slow.mp4", fps=100, window_us=5_000) as video:
        video.add(result)
    assert video.frames == 20 and rate_of(tmp_path / "slow.mp4") == 100
    with predict.video(tmp_path / "windows.mp4") as video:
        for window in predict(recording, stride_us=STRIDE, stream=True):
            video.add(window)
    assert video.frames >= 2


def test_a_clock_that_jumps_by_weeks_makes_no_endless_video(tmp_path, monkeypatch):
    monkeypatch.setattr("modalities.events.windows.QUIET", 20)
    zero = np.zeros(3, np.int32)
    np.savez(tmp_path / "clock.npz", t=np.array([0, 10, 2**42]), x=zero, y=zero, p=zero > 0)
    predict = zoo.predictor(classifier(**SENSOR, window_us=None))
    with pytest.raises(zoo.DataError, match=r"clock\.npz: lasts 1,222 hours"):
        predict(tmp_path / "clock.npz").save(tmp_path / "out.mp4")
    assert [path.name for path in tmp_path.iterdir()] == ["clock.npz"]
    with pytest.warns(UserWarning, match="left out"), predict.video(tmp_path / "windows.mp4") as video:
        for window in predict(tmp_path / "clock.npz", stride_us=STRIDE, stream=True):
            video.add(window)
    assert video.frames < 30 and len(frames_of(tmp_path / "windows.mp4")) == video.frames


def test_pictures_make_no_video(tmp_path, tiny_config):
    predict = zoo.predictor(make_model(tiny_config))
    with pytest.raises(zoo.ConfigError, match="image model"):
        predict.video(tmp_path / "out.mp4")
    with pytest.raises(zoo.DataError, match="made of an event recording"):
        predict(np.zeros((9, 9, 3), np.uint8)).save(tmp_path / "out.mp4")


# ---- memory and progress


def test_the_share_read_of_a_file_grows_to_all_of_it(tmp_path):
    path = tmp_path / "long.dat"
    events = np.zeros((700_000, 2), "<u4")
    path.write_bytes(dat(np.zeros((0, 4), int), HEADER) + events.tobytes())
    shares = []
    assert sum(map(len, open_events(path).chunks(on_read=shares.append))) == 700_000
    assert len(shares) >= 3 and shares == sorted(shares) and 0 < shares[0] < 0.5 and shares[-1] == 1


def test_memory_does_not_grow_with_the_recording(tmp_path):
    def peak(windows):
        count = 200_000
        words = np.empty((windows * count, 2), "<u4")
        words[:, 0] = np.arange(windows * count) * STRIDE // count
        words[:, 1] = np.arange(windows * count) % WIDTH | 5 << 14
        path = tmp_path / f"{windows}.dat"
        path.write_bytes(dat(np.zeros((0, 4), int), HEADER) + words.tobytes())
        reader = open_events(path)
        del words
        tracemalloc.start()
        try:
            with EventVideo(tmp_path / "out.mp4") as video:
                for number in range(windows):
                    video.add(result_of(reader, number))
            assert video.frames == windows
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(2)  # What is made at first use stays.
    short, long = peak(6), peak(24)
    assert long < 1.2 * short and long < 24 * 200_000 * 17 / 2  # Less than half of its events.


# ---- what goes wrong


@pytest.mark.parametrize("error", [RuntimeError("mine"), KeyboardInterrupt()])
def test_an_error_or_interrupt_leaves_the_old_file_alone(recording, tmp_path, error):
    target = tmp_path / "out" / "out.mp4"
    target.parent.mkdir()
    target.write_bytes(b"old")
    with pytest.raises(type(error)), EventVideo(target) as video:
        video.add(result_of(open_events(recording), 0))
        raise error
    assert os.listdir(target.parent) == ["out.mp4"] and target.read_bytes() == b"old"


def test_a_full_disk(recording, tmp_path, file_size_limit):
    reader, folder = open_events(recording), tmp_path / "out"
    with (
        file_size_limit(500),
        pytest.raises(zoo.DataError, match=r"out\.mp4: cannot be written"),
        EventVideo(folder / "out.mp4") as video,
    ):
        for number in range(4):
            video.add(result_of(reader, number))
    assert os.listdir(folder) == []


def test_what_cannot_be_added(recording, tmp_path):
    reader = open_events(recording)
    with pytest.raises(zoo.DataError, match="no events, so no video"), EventVideo(tmp_path / "none.mp4"):
        pass
    with pytest.raises(zoo.DataError, match="inside `with`"):
        EventVideo(tmp_path / "out.mp4").add(result_of(reader, 0))
    with EventVideo(tmp_path / "out.mp4") as video:
        video.add(result_of(reader, 1))
        with pytest.raises(zoo.DataError, match="comes after a later one"):
            video.add(result_of(reader, 0))
        with pytest.raises(zoo.DataError, match="another recording"):
            video.add(result_of(open_events(recording), 2))
    assert len(frames_of(tmp_path / "out.mp4")) == 1
    same = tmp_path / "rec.mp4"
    same.write_bytes(recording.read_bytes())
    with pytest.raises(zoo.DataError, match="is the recording itself"), EventVideo(same) as video:
        video.add(result_of(open_events(same), 0))
    assert same.read_bytes() == recording.read_bytes()
    recording.unlink()
    with pytest.raises(zoo.DataError, match=r"rec\.dat: cannot be opened"), EventVideo(tmp_path / "b.mp4") as video:
        video.add(result_of(reader, 0))
    assert sorted(os.listdir(tmp_path)) == ["out.mp4", "rec.mp4"]


@pytest.mark.parametrize(
    "name", ["100%d.mp4", "http:x.mp4", "-i.mp4", "a b'\"\n.MP4", "тест.mp4", os.fsdecode(b"\xff.mp4"), "pipe:1.mp4"]
)
def test_hostile_names(recording, tmp_path, name):
    folder = tmp_path / "concat:%03d"
    with EventVideo(folder / name) as video:
        video.add(result_of(open_events(recording), 0))
    assert os.listdir(folder) == [name]
    (tmp_path / "plain.mp4").write_bytes((folder / name).read_bytes())
    assert len(frames_of(tmp_path / "plain.mp4")) == 1


def test_names_that_cannot_be_written(tmp_path):
    (tmp_path / "folder.mp4").mkdir()
    (tmp_path / "file").write_text("words")
    for name in ("folder.mp4", "x" * 300 + ".mp4", "a\0b.mp4", "file/out.mp4"):
        with pytest.raises(zoo.DataError, match=r"is a folder|cannot be written"), EventVideo(tmp_path / name):
            pytest.fail("the body must not run")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder.mp4"]
    for name in ("out.avi", "out", "out.gif"):
        with pytest.raises(zoo.ConfigError, match=r"written as \.mp4"):
            EventVideo(tmp_path / name)


@pytest.mark.parametrize(
    "options",
    [{"fps": fps} for fps in (0, -1, 1e9, float("nan"), True, "fast")]
    + [{"window_us": window} for window in (0, -5, 2.5, True, "x")],
)
def test_bad_options(options):
    with pytest.raises(zoo.ConfigError, match=next(iter(options))):
        EventVideo("out.mp4", **options)


def test_without_pyav(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(zoo.MissingDependencyError, match=r"av is needed .* pip install 'pape-zoo\[video\]'"):
        EventVideo(tmp_path / "out.mp4")
    assert list(Path(tmp_path).iterdir()) == []
