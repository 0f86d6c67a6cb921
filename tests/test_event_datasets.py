from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from modalities.events.datasets import open_dataset
from modalities.events.datasets.dat import DatWindows
from modalities.events.datasets.dvsgesture import DvsGesture
from modalities.events.datasets.find import open_clips, open_scenes
from modalities.events.datasets.nmnist import NMNIST
from modalities.events.datasets.prophesee import BoxedRecordings, read_boxes
from tests.event_files import aedat3, dat, draw, nmnist
from tests.event_sets import (
    GEN1_BOXES,
    MPX1_BOXES,
    boxes,
    digit_events,
    write_archive,
    write_gestures,
    write_nmnist,
    write_recording,
    write_scenes,
)
from zoo.errors import ConfigError, DataError
from zoo.files import files_sha256


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))


def test_nmnist_reads_folders_in_order(tmp_path: Path) -> None:
    data = NMNIST(write_nmnist(tmp_path / "set"), "train")
    assert len(data) == 40 and data.labels.tolist() == sorted(list(range(10)) * 4)
    events = data.read(5)
    expected = digit_events(1, 1)
    assert np.array_equal(np.stack([events.t_us, events.x, events.y, events.p], 1), expected)
    assert events.size == (34, 34)
    assert data.sample(5, events).label == 1 and data.sample(5, events).start_us == 0
    assert len(NMNIST(tmp_path / "set", "test")) == 20


def test_nmnist_archive_equals_its_folder_and_is_unpacked_once(tmp_path: Path) -> None:
    folder = write_nmnist(tmp_path / "set", train=1, test=1)
    archive = write_archive(folder, tmp_path / "set.tar.xz")
    data = open_clips(archive, "test")
    assert isinstance(data, NMNIST) and data.name == "set"
    for index, events in data.read_all(range(len(data))):
        assert np.array_equal(events.t_us, NMNIST(folder, "test").read(index).t_us)
    before = [p.stat().st_mtime_ns for p in sorted(data.path.rglob("*.bin"))]
    again = NMNIST(archive, "test")
    assert again.sha256 == data.sha256 and again.path == data.path
    assert NMNIST(folder, "test").sha256 == data.sha256 != NMNIST(folder, "train").sha256  # Copies are the same data.
    assert before == [p.stat().st_mtime_ns for p in sorted(data.path.rglob("*.bin"))]


def test_files_are_identified_by_what_is_in_them(tmp_path: Path) -> None:
    """Not by when they were written: a record of results is of data that others have a copy of."""
    files = [tmp_path / "a.dat", tmp_path / "b.dat"]
    content = bytes(range(256)) * 1200  # Longer than both ends together.
    for file in files:
        file.write_bytes(content)
    first = files_sha256(tmp_path, files)
    os.utime(files[0], (1, 1))
    assert files_sha256(tmp_path, files) == first != files_sha256(tmp_path, files[:1])
    for position in (0, len(content) - 1):
        changed = bytearray(content)
        changed[position] ^= 1
        files[1].write_bytes(changed)
        assert files_sha256(tmp_path, files) != first
    files[1].write_bytes(content)
    assert files_sha256(tmp_path, files) == first
    files[1].unlink()
    with pytest.raises(DataError, match="cannot read .*b.dat"):
        files_sha256(tmp_path, files)


def test_hostile_archive_writes_nothing_outside(tmp_path: Path) -> None:
    path = tmp_path / "evil.tar"
    payload = nmnist(draw(20, width=34, height=34))
    with tarfile.open(path, "w") as archive:
        for name in (
            "../Train/0/a.bin",
            "/Train/1/b.bin",
            "x/../../../Train/2/..bin",
            "Train/3/c.bin",
            "Train/evil.bin",
        ):
            member = tarfile.TarInfo(name)
            member.size = len(payload)
            archive.addfile(member, io.BytesIO(payload))
        link = tarfile.TarInfo("Train/4/d.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(DataError, match="expected Train/0 to Train/9"):
        NMNIST(path)
    written = sorted(p for p in tmp_path.rglob("*") if p.is_file() and p != path)
    assert written and all((tmp_path / "cache" / "events") in p.parents for p in written)
    assert not any(p.is_symlink() for p in tmp_path.rglob("*"))


def test_archive_of_a_huge_recording_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "big.tar"
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("Train/0/a.bin")
        member.size = 2**24 + 5
        archive.addfile(member, io.BytesIO(bytes(member.size)))
    with pytest.raises(DataError, match="too large"):
        NMNIST(path)
    assert not list((tmp_path / "cache" / "events").iterdir())


@pytest.mark.parametrize("content", [b"", b"no archive at all" * 100])
def test_file_that_is_no_archive(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "set.tar.xz"
    path.write_bytes(content)
    with pytest.raises(DataError, match="set.tar.xz"):
        NMNIST(path)


def test_truncated_archive(tmp_path: Path) -> None:
    archive = write_archive(write_nmnist(tmp_path / "set", 1, 1), tmp_path / "set.tar.xz")
    archive.write_bytes(archive.read_bytes()[:-200])
    with pytest.raises(DataError, match="cannot be unpacked"):
        NMNIST(archive)


def test_nmnist_says_what_is_missing_and_what_is_damaged(tmp_path: Path) -> None:
    folder = write_nmnist(tmp_path / "set", 1, 1)
    with pytest.raises(ConfigError, match="val"):
        NMNIST(folder, "val")
    (folder / "Train" / "3" / "00001.bin").write_bytes(b"")
    (folder / "Train" / "4" / "00001.bin").write_bytes(nmnist(digit_events(4, 0))[:-2])
    data = NMNIST(folder)
    with pytest.raises(DataError, match="empty"):
        data.read(3)
    with pytest.raises(DataError, match="truncated"):
        data.read(4)
    with pytest.warns(UserWarning, match="truncated"):
        assert len(NMNIST(folder, errors="keep").read(4)) == 399
    (folder / "Train" / "9" / "00001.bin").unlink()
    (folder / "Train" / "9").rmdir()
    with pytest.raises(DataError, match="Train/0 to Train/9"):
        NMNIST(folder)


def test_gestures_are_cut_from_their_recordings(tmp_path: Path) -> None:
    folder = write_gestures(tmp_path / "DvsGesture")
    splits = {split: DvsGesture(folder, split) for split in ("train", "val", "test")}
    assert {name: len(data) for name, data in splits.items()} == {"train": 6, "val": 3, "test": 3}
    data = splits["train"]
    assert data.labels[:3].tolist() == [1, 2, 3]  # The table has classes from 1.
    raw = np.sort(np.random.default_rng(1).integers(0, 3_000_000, 3_000))
    for index in range(3):
        events = data.read(index)
        inside = raw[(raw >= 900_000 * index) & (raw < 800_000 + 900_000 * index)]
        assert np.array_equal(events.t_us, inside - 900_000 * index)
        assert data.sample(index, events).end_us == 800_000
    read = dict(data.read_all([5, 0, 4]))
    assert sorted(read) == [0, 4, 5] and np.array_equal(read[0].x, data.read(0).x)


def test_gesture_without_events_and_overlapping_gestures(tmp_path: Path) -> None:
    folder = write_gestures(tmp_path / "set", users=(1, 24))
    table = "class,startTime_usec,endTime_usec\n2,3000000,3900000\n1,1000000,3500000\n11,90000000,91000000\n"
    (folder / "user01_led_labels.csv").write_text(table)
    data = DvsGesture(folder)
    lengths = [len(data.read(index)) for index in range(3)]
    assert lengths[2] == 0 and lengths[0] > 0 and lengths[1] > 1_500
    assert data.labels.tolist() == [1, 0, 10]
    assert data.read(2).size == (128, 128)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("", "expected the columns"),
        ("a,b,c\n1,2,3\n", "expected the columns"),
        ("class,startTime_usec,endTime_usec\n0,1,2\n", "line 2: class 0"),
        ("class,startTime_usec,endTime_usec\n12,1,2\n", "class 12"),
        ("class,startTime_usec,endTime_usec\n1,2,2\n", "start before the end"),
        ("class,startTime_usec,endTime_usec\n1,2\n", "three whole numbers"),
        ("class,startTime_usec,endTime_usec\n1,2,x\n", "three whole numbers"),
        ("class,startTime_usec,endTime_usec\n", "list no gesture"),
    ],
)
def test_damaged_gesture_tables(tmp_path: Path, table: str, message: str) -> None:
    folder = write_gestures(tmp_path / "set", users=(1, 24))
    (folder / "user01_led_labels.csv").write_text(table)
    with pytest.raises(DataError, match=message):
        DvsGesture(folder)


def test_gesture_files_that_are_missing_or_lead_elsewhere(tmp_path: Path) -> None:
    folder = write_gestures(tmp_path / "set", users=(1, 24))
    (folder / "trials_to_train.txt").write_text("../../etc/user01_led.aedat\n")
    with pytest.raises(DataError, match="is no recording"):
        DvsGesture(folder)
    (folder / "trials_to_train.txt").write_text("user02_led.aedat\n")
    with pytest.raises(DataError, match=r"user02_led.aedat is missing"):
        DvsGesture(folder)
    (folder / "trials_to_train.txt").write_text("user22_led.aedat\n")
    with pytest.raises(DataError, match="lists no recording of the split 'train'"):
        DvsGesture(folder)
    (folder / "trials_to_train.txt").unlink()
    with pytest.raises(DataError, match="trials_to_train.txt"):
        DvsGesture(folder)


def test_gesture_recording_of_another_camera(tmp_path: Path) -> None:
    folder = write_gestures(tmp_path / "set", users=(1, 24))
    (folder / "user01_led.aedat").write_bytes(aedat3(draw(50, width=240, height=180), source="DAVIS240C"))
    with pytest.raises(DataError, match="240 x 180"):
        DvsGesture(folder).read(0)


@pytest.mark.parametrize("dtype", [GEN1_BOXES, MPX1_BOXES], ids=["ts", "t"])
def test_scenes_have_a_sample_for_each_labelled_time(tmp_path: Path, dtype: np.dtype) -> None:
    data = BoxedRecordings(write_scenes(tmp_path, dtype=dtype), "train", window_us=100_000)
    assert data.times_us.tolist() == [800_000, 1_200_000, 1_600_000] * 2  # The box at 0.4 s does not count.
    assert data.recordings.tolist() == [0, 0, 0, 1, 1, 1]
    events = data.read(1)
    assert len(events) and events.t_us[0] >= 1_100_000 and events.t_us[-1] < 1_200_000
    sample = data.sample(1, events)
    assert sample.end_us == 1_200_000 and sample.labels.tolist() == [1, 1]
    assert sample.boxes.tolist() == [[50, 30, 110, 100], [150, 91, 230, 181]]
    data.window = None, 10
    last = data.read(1)
    assert len(last) == 10 and last.t_us[-1] == events.t_us[-1]


def test_boxes_out_of_order_are_sorted_and_clipped(tmp_path: Path) -> None:
    rows = [(900_000, 290.0, 100.0, 60.0, 60.0, 0), (700_000, -20.0, -20.0, 80.0, 80.0, 1)]
    write_recording(tmp_path / "train", "a", boxes(rows))
    data = BoxedRecordings(tmp_path, "train")
    assert data.times_us.tolist() == [700_000, 900_000]
    assert data.truth[0].boxes.tolist() == [[0, 0, 60, 60], [290, 100, 304, 160]]


def test_scenes_without_events_and_boxes_that_none_counts(tmp_path: Path) -> None:
    late = draw(50, width=304, height=240, start=1_900_000)
    write_recording(tmp_path / "train", "a", boxes([(800_000, 10.0, 10.0, 60.0, 60.0, 0)]), events=late)
    assert len(BoxedRecordings(tmp_path, "train").read(0)) == 0
    write_recording(tmp_path / "val", "a", boxes([(800_000, 10.0, 10.0, 9.0, 60.0, 0)]))
    with pytest.raises(DataError, match="no box is left"):
        BoxedRecordings(tmp_path, "val")
    np.save(tmp_path / "train" / "a_bbox.npy", np.zeros(0, GEN1_BOXES))
    with pytest.raises(DataError, match="no box is left"):
        BoxedRecordings(tmp_path, "train")


def test_huge_boxes_are_dropped_in_training_only(tmp_path: Path) -> None:
    rows = [(800_000, 1.0, 10.0, 290.0, 60.0, 0), (900_000, 1.0, 10.0, 60.0, 60.0, 0)]
    for split in ("train", "test"):
        write_recording(tmp_path / split, "a", boxes(rows))
    assert len(BoxedRecordings(tmp_path, "train")) == 1
    assert len(BoxedRecordings(tmp_path, "train", training=False)) == 2
    assert len(BoxedRecordings(tmp_path, "test")) == 2


def test_1mpx_uses_three_classes_also_at_half_the_resolution(tmp_path: Path) -> None:
    rows = [(800_000, 100.0, 100.0, 200.0, 200.0, 2), (800_000, 400.0, 100.0, 200.0, 200.0, 4)]
    rows += [(900_000, 100.0, 100.0, 45.0, 45.0, 0), (950_000, 100.0, 100.0, 40.0, 40.0, 1)]
    write_recording(tmp_path / "train", "a", boxes(rows, MPX1_BOXES), size=(1280, 720))
    data = open_scenes(tmp_path, "train")
    assert data.class_names == ["pedestrian", "two wheeler", "car"] and (data.width, data.height) == (1280, 720)
    assert data.truth[0].labels.tolist() == [2, 0]  # 40 x 40 has a diagonal below 60, and class 4 is not used.
    half = open_scenes(tmp_path, "train", half=True)
    assert (half.width, half.height) == (640, 360) and half.truth[0].boxes[0].tolist() == [50, 50, 150, 150]
    assert half.times_us.tolist() == data.times_us.tolist()
    full, small = data.read(0), half.read(0)
    assert len(full) == len(small) and np.array_equal(full.x // 2, small.x) and small.size == (360, 640)


def test_scene_layouts_that_cannot_be_used(tmp_path: Path) -> None:
    write_scenes(tmp_path)
    with pytest.raises(ConfigError, match="split"):
        BoxedRecordings(tmp_path, "validation")
    with pytest.raises(ConfigError, match="window"):
        BoxedRecordings(tmp_path, "train", window_us=0)
    first = sorted((tmp_path / "train").glob("*_bbox.npy"))[0]
    content = first.read_bytes()
    first.unlink()
    with pytest.raises(DataError, match=r"there is no .*_bbox.npy"):
        BoxedRecordings(tmp_path, "train")
    first.write_bytes(content[:-10])
    with pytest.raises(DataError, match="no readable NumPy file"):
        BoxedRecordings(tmp_path, "train")
    first.write_bytes(content)
    next((tmp_path / "train").glob("*_td.dat")).unlink()
    with pytest.raises(DataError, match=r"there is no .*_td.dat"):
        BoxedRecordings(tmp_path, "train")
    with pytest.raises(DataError, match="no recordings"):
        BoxedRecordings(tmp_path / "elsewhere", "train")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table[["ts", "x", "y", "w", "class_id"]], "has"),
        (lambda table: table.reshape(1, -1), "expected an array"),
        (lambda table: np.arange(5.0), "expected an array"),
        (lambda table: _with(table, "x", np.nan), "not finite"),
        (lambda table: _with(table, "w", np.inf), "not finite"),
        (lambda table: _with(table, "class_id", 2), "class 2"),
    ],
)
def test_box_files_that_cannot_be_used(tmp_path: Path, change: object, message: str) -> None:
    table = boxes([(800_000, 1.0, 2.0, 60.0, 60.0, 0)])
    np.save(tmp_path / "a_bbox.npy", change(table))  # type: ignore[operator]
    with pytest.raises(DataError, match=message):
        read_boxes(tmp_path / "a_bbox.npy", 2)


def test_pickled_boxes_are_not_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "a_bbox.npy", np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(DataError, match="NumPy"):
        read_boxes(tmp_path / "a_bbox.npy", 2)


def _with(table: np.ndarray, name: str, value: float) -> np.ndarray:
    changed = table.copy()
    changed[name] = value
    return changed


def test_windows_of_damaged_recordings(tmp_path: Path) -> None:
    header = "% Version 2\n% Height 240\n% Width 304\n"
    path = tmp_path / "a_td.dat"
    events = draw(100, width=304, height=240)
    path.write_bytes(dat(events, header)[:-3])
    with pytest.raises(DataError, match="truncated"):
        DatWindows(path, 304, 240)
    assert len(DatWindows(path, 304, 240, "keep").before(2**40)) == 99
    path.write_bytes(dat(events[:0], header))
    with pytest.raises(DataError, match="holds no events"):
        DatWindows(path, 304, 240)
    assert len(DatWindows(path, 304, 240, "keep").before(10**6)) == 0
    outside = events.copy()
    outside[50, 1] = 310
    path.write_bytes(dat(outside, header))
    with pytest.raises(DataError, match="outside"):
        DatWindows(path, 304, 240).before(2**40)
    assert len(DatWindows(path, 304, 240, "keep").before(2**40)) == 99
    swapped = events.copy()
    swapped[[40, 60], 0] = swapped[[60, 40], 0]
    path.write_bytes(dat(swapped, header))
    with pytest.raises(DataError, match="steps back"):
        DatWindows(path, 304, 240).before(2**40)
    kept = DatWindows(path, 304, 240, "keep").before(2**40)
    assert len(kept) == 100 and (np.diff(kept.t_us) >= 0).all()
    path.write_bytes(dat(events[::-1], header))
    with pytest.raises(DataError, match="71.6 minutes"):
        DatWindows(path, 304, 240)


def test_data_sets_are_told_apart(tmp_path: Path) -> None:
    write_nmnist(tmp_path / "a", 1, 1)
    write_gestures(tmp_path / "b")
    write_scenes(tmp_path / "c")
    assert isinstance(open_dataset(tmp_path / "a", "test"), NMNIST)
    assert isinstance(open_dataset(tmp_path / "b", "test"), DvsGesture)
    assert open_dataset(tmp_path / "c", "test").class_names == ["car", "pedestrian"]
    with pytest.raises(DataError, match="a detector needs"):
        open_scenes(tmp_path / "a", "test")
    with pytest.raises(DataError, match="a classifier needs"):
        open_clips(tmp_path / "c", "test")
    (tmp_path / "d").mkdir()
    with pytest.raises(DataError, match="no known layout"):
        open_dataset(tmp_path / "d", "train")
    with pytest.raises(DataError, match="no such data"):
        open_dataset(tmp_path / "e", "train")
    with pytest.raises(ConfigError, match="dataset must be"):
        open_dataset(tmp_path / "a", "train", "mnist")


def test_real_archive(shared: Path) -> None:
    archive = shared / "data" / "nmnist_1100" / "nmnist_1100.tar.xz"
    train, test = NMNIST(archive, "train"), NMNIST(archive, "test")
    assert np.bincount(train.labels).tolist() == [97, 116, 99, 93, 105, 92, 94, 117, 87, 100]
    assert np.bincount(test.labels).tolist() == [8, 14, 8, 11, 14, 7, 10, 15, 2, 11]
    lengths = [len(events) for _, events in test.read_all(range(100))]
    assert min(lengths) >= 1_069 and max(lengths) <= 7_152
