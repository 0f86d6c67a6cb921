"""Event files decode to what was written: synthetic files of every format, and recordings with known hashes."""

from __future__ import annotations

import gc
import hashlib
import json
import struct
import tarfile
import tracemalloc
import zipfile

import event_files
import numpy as np
import pytest

import zoo
from modalities.events import Events, open_events
from modalities.events.formats import FORMATS
from modalities.events.formats.base import BLOCK
from zoo.errors import ConfigError, DataError


def table(events: Events) -> np.ndarray:
    return np.stack([events.t_us, events.x, events.y, events.p], 1).astype("<i8")


def check(data: bytes, expected: np.ndarray, **options) -> Events:
    events = open_events(data, **options).read()
    assert np.array_equal(table(events), expected)
    assert [a.dtype for a in (events.t_us, events.x, events.y, events.p)] == [np.int64, np.int32, np.int32, np.bool_]
    return events


@pytest.mark.parametrize("name", event_files.WRITERS)
def test_every_format_gives_what_was_written(tmp_path, name):
    suffix, write, size = event_files.WRITERS[name]
    expected = event_files.sample(name)
    path = tmp_path / f"recording{suffix}"
    path.write_bytes(write(expected))
    events = zoo.read(path, kind="events")
    assert np.array_equal(table(events), expected)
    assert events.format == name
    assert (events.width, events.height) == (size or (None, None))
    assert events.path == path and events.name == str(path) and not events.truncated
    reader = open_events(path)
    assert (reader.format, reader.width, reader.height) == (name, events.width, events.height)
    for size_of_piece in (1, 7, 300, 1000):
        pieces = list(reader.chunks(size_of_piece))
        assert [len(piece) for piece in pieces[:-1]] == [size_of_piece] * (len(pieces) - 1)
        assert np.array_equal(table(Events.concatenate(pieces)), expected)


def test_every_format_is_written_here():
    assert {*event_files.WRITERS, "hdf5"} == set(FORMATS)


@pytest.mark.parametrize("name", ["dat", "nmnist", "evt2", "evt21", "evt3", "aedat2", "npy", "npz"])
def test_state_goes_from_block_to_block(monkeypatch, name):
    expected = event_files.neighbours() if name.startswith("evt") else event_files.sample(name)
    data = event_files.WRITERS[name][1](expected)
    whole = check(data, expected, format=name)
    for size in ("modalities.events.formats.base.BLOCK", "zoo.npy.PIECE"):
        monkeypatch.setattr(size, 5)
    assert np.array_equal(table(open_events(data, format=name).read()), table(whole))


@pytest.mark.parametrize("name", ["dat", "nmnist"])
def test_more_than_a_block(name):
    expected = event_files.sample(name, 10)
    expected = np.repeat(expected, BLOCK // 8, axis=0)
    write = event_files.WRITERS[name][1]
    header = write(expected[:0])
    data = header + b"".join(write(row[None])[len(header) :] * (BLOCK // 8) for row in expected[:: BLOCK // 8])
    events = check(data, expected, format=name)
    assert len(events) > BLOCK


@pytest.mark.parametrize("layout", ["little", "legacy"])
@pytest.mark.parametrize("stated", [True, False])
def test_evt21_layouts(layout, stated):
    expected = event_files.neighbours(400)
    check(event_files.evt21(expected, layout, stated), expected)
    check(event_files.evt21(expected, layout, False), expected, endianness=layout)


def test_evt21_without_a_clear_layout():
    words = np.array([0x1000000010000000], "<u8").tobytes()
    with pytest.raises(DataError, match='pass endianness="little" or "legacy"'):
        open_events(event_files.raw_header("EVT21") + words)
    with pytest.raises(ConfigError, match="endianness 'big'"):
        open_events(event_files.evt21(event_files.draw(3)), endianness="big")


def test_evt3_vectors():
    expected = event_files.neighbours(400)
    check(event_files.evt3(expected), expected)


def test_evt3_low_time_that_steps_back_is_no_wrap():
    words = [0x8002, 0x6064, 0x0005, 0x2001, 0x605A, 0x8002, 0x6070, 0x2802, 0x8003, 0x2003]
    events = open_events(event_files.raw_header("EVT3") + np.array(words, "<u2").tobytes()).read()
    high = 2 << 12
    # The last event comes after a new TIME_HIGH and before its TIME_LOW.
    assert table(events).tolist() == [[high + 100, 1, 5, 0], [high + 112, 2, 5, 1], [3 << 12, 3, 5, 0]]


@pytest.mark.parametrize(("name", "bits"), [("dat", 32), ("aedat2", 32), ("nmnist", 23), ("evt3", 24), ("evt2", 34)])
def test_counters_that_wrap(name, bits):
    expected = event_files.sample(name)
    expected[:, 0] += 2**bits - expected[150, 0]
    assert expected[0, 0] < 2**bits < expected[-1, 0]
    check(event_files.WRITERS[name][1](expected), expected, format=name)


def test_aedat3_counts_overflows():
    expected = event_files.sample("aedat3")
    expected[:, 0] += 3 * 2**31 - expected[150, 0]
    check(event_files.aedat3(expected), expected)


@pytest.mark.parametrize("compression", range(5))
@pytest.mark.parametrize("closed", [True, False])
def test_aedat4_compression(compression, closed):
    pytest.importorskip("lz4")
    pytest.importorskip("zstandard")
    expected = event_files.draw(start=1_700_000_000_000_000)
    check(event_files.aedat4(expected, compression, closed=closed), expected)


def test_aedat4_streams():
    expected = event_files.draw(20)
    data = event_files.aedat4(expected, streams=(2, 5))
    with pytest.raises(DataError, match="2 event streams; pass stream= one of 2, 5"):
        open_events(data)
    check(data, expected, stream=2)
    with pytest.raises(DataError, match="no event stream 9"):
        open_events(data, stream=9)


def test_aedat4_of_dv_processing(tmp_path):
    dv = pytest.importorskip("dv_processing")
    expected, path = event_files.draw(), tmp_path / "a.aedat4"
    writer = dv.io.MonoCameraWriter(str(path), dv.io.MonoCameraWriter.EventOnlyConfig("DVS_1", (640, 480)))
    store = dv.EventStore()
    for t, x, y, p in expected.tolist():
        store.push_back(t, x, y, bool(p))
    writer.writeEvents(store)
    del writer
    events = zoo.read(path, kind="events")
    assert np.array_equal(table(events), expected) and (events.width, events.height) == (640, 480)


@pytest.mark.parametrize("chip", ["ch.unizh.ini.jaer.chip.retina.DVS128", "eu.seebetter.ini.chips.davis.Davis346red"])
def test_aedat2_cameras(chip):
    expected = event_files.draw(width=128, height=128)
    events = check(event_files.aedat2(expected, chip), expected)
    assert events.size == ((128, 128) if "DVS128" in chip else (260, 346))
    with pytest.raises(DataError, match=r"the camera 'odd' is not known; pass camera= one of dvs128, davis128"):
        open_events(event_files.aedat2(expected, "odd"))
    check(event_files.aedat2(expected, "of a davis"), expected, camera="davis346")


@pytest.mark.parametrize("layout", ["rvt", "dsec", "table"])
def test_hdf5_layouts(layout):
    pytest.importorskip("h5py")
    expected = event_files.draw()
    events = check(event_files.hdf5(expected, layout=layout, compression="gzip"), expected)
    assert events.size == ((None, None) if layout == "dsec" else (480, 640))


def test_hdf5_offset_of_the_recording_is_added():
    pytest.importorskip("h5py")
    expected = event_files.draw(start=49_599_300_523)
    check(event_files.hdf5(expected, offset=49_599_300_523, layout="dsec"), expected)


def test_hdf5_compressed_as_dsec_is():
    pytest.importorskip("h5py")
    hdf5plugin = pytest.importorskip("hdf5plugin")
    expected = event_files.draw()
    check(event_files.hdf5(expected, layout="dsec", **hdf5plugin.Blosc()), expected)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("x,y,p,t\n3,4,1,7\n", {}),
        ("t_us x y polarity\n7 3 4 1\n", {}),
        ("# a comment\n%geometry:640,480\ntimestamp [s];x;y;p\n0.000007;3;4;1\n", {}),
        ("7,3,4,1\n", {"columns": "t,x,y,p"}),
        ("3,4,1,7\n", {"columns": "x,y,p,t"}),
        ("0.000007\t3\t4\t1\n", {"columns": "t,x,y,p", "unit": "s"}),
        ("7000,3,4,1\n", {"columns": "t,x,y,p", "unit": "ns"}),
        ("\ufefft,x,y,p\r\n7,3,4,1\r\n\r\n", {}),
    ],
)
def test_csv_variants(text, options):
    events = check(text.encode(), np.array([[7, 3, 4, 1]]), format="csv", **options)
    assert events.width == (640 if "geometry" in text else None)


def test_csv_in_several_blocks(monkeypatch):
    monkeypatch.setattr("modalities.events.formats.csv._LINES", 7)
    expected = event_files.draw()
    check(event_files.csv(expected), expected, format="csv")


def test_epoch_nanoseconds_lose_nothing():
    check(b"t,x,y,p\n1700000000123456789,1,2,-1\n", np.array([[1700000000123457, 1, 2, 0]]), format="csv", unit="ns")


@pytest.mark.parametrize("name", ["csv", "npz"])
def test_times_with_a_fraction_need_a_unit(tmp_path, name):
    t = np.array([0.25, 0.5])
    np.savez(tmp_path / "a.npz", t=t, x=[1, 2], y=[3, 4], p=[0, 1])
    (tmp_path / "a.csv").write_text("t,x,y,p\n0.25,1,3,0\n0.5,2,4,1\n")
    with pytest.raises(DataError, match='without a unit; pass unit="s", "ms"'):
        zoo.read(tmp_path / f"a.{name}")
    assert zoo.read(tmp_path / f"a.{name}", unit="s").t_us.tolist() == [250_000, 500_000]
    assert zoo.read(tmp_path / f"a.{name}", unit="ms").t_us.tolist() == [250, 500]


def recordings() -> list[str]:
    return [
        "evt2_gen3_50ms.raw",
        "evt3_gen41_9ms.raw",
        "ncars_cd_v2.dat",
        "nmnist.bin",
        "dvxplorer_events_imu.aedat4",
        "davis346_events_frames_imu_triggers.aedat4",
    ]


@pytest.mark.parametrize("name", recordings())
def test_real_recordings_decode_to_their_hashes(shared, tmp_path, name):
    archive = shared / "data" / "event_formats" / "event_formats.zip"
    if not archive.exists():
        pytest.skip(f"no {archive}")
    if name.endswith("aedat4"):
        pytest.importorskip("lz4")
    with zipfile.ZipFile(archive) as file:
        expected = json.loads(file.read("expected.json"))
        file.extract(name, tmp_path)
    assert set(recordings()) == {key for key, value in expected.items() if "n_events" in value}
    expected = expected[name]
    events = zoo.read(tmp_path / name)
    assert len(events) == expected["n_events"]
    assert (events.width, events.height) == (expected["width"], expected["height"])
    rows = table(events)
    assert hashlib.sha256(rows.tobytes()).hexdigest() == expected["sha256_int64_le_txyp"]
    assert rows[:3].tolist() == expected["first3_txyp"] and rows[-3:].tolist() == expected["last3_txyp"]
    pieces = Events.concatenate(list(open_events(tmp_path / name).chunks(10_007)))
    assert hashlib.sha256(table(pieces).tobytes()).hexdigest() == expected["sha256_int64_le_txyp"]


def test_dvs_gesture_clips(shared, tmp_path):
    archive = shared / "data" / "dvs_gesture_10" / "dvs_gesture_10.zip"
    if not archive.exists():
        pytest.skip(f"no {archive}")
    with zipfile.ZipFile(archive) as file:
        file.extractall(tmp_path)
    lines = next(tmp_path.rglob("labels.csv")).read_text().splitlines()
    rows = [dict(zip(lines[0].split(","), line.split(","), strict=True)) for line in lines[1:]]
    assert len(rows) == 10
    for row in rows:
        events = zoo.read(next(tmp_path.rglob(row["path"])))
        facts = (len(events), events.t_us[0], events.t_us[-1], events.p.sum())
        assert facts == tuple(int(row[key]) for key in ("n_events", "t_first_us", "t_last_us", "n_on"))
        assert events.size == (128, 128)


def test_nmnist_samples(shared):
    archive = shared / "data" / "nmnist_1100" / "nmnist_1100.tar.xz"
    if not archive.exists():
        pytest.skip(f"no {archive}")
    with tarfile.open(archive) as file:
        data = {
            name: file.extractfile(name).read() for name in file.getnames() if "Test/" in name or name.endswith("csv")
        }
    text = next(value for name, value in data.items() if name.endswith("labels.csv")).decode().splitlines()
    rows = [dict(zip(text[0].split(","), line.split(","), strict=True)) for line in text[1:]]
    rows = [row for row in rows if row["split"].lower() == "test"]
    assert len(rows) == 100
    for row in rows:
        member = next(value for name, value in data.items() if name.endswith(row["path"]))
        events = open_events(member, format="nmnist").read()
        facts = (len(events), events.t_us[0], events.t_us[-1], events.p.sum())
        assert facts == tuple(int(row[key]) for key in ("n_events", "t_first_us", "t_last_us", "n_on"))
        assert events.size == (34, 34)


@pytest.mark.parametrize("name", ["dat", "evt3", "nmnist", "npy", "npz", "aedat4"])
def test_memory_does_not_grow_with_the_file(tmp_path, name):
    """Pieces of a file four times as long take no more memory at their peak."""
    row = event_files.sample(name, 1)
    peaks = []
    for count in (2**20, 2**22):  # Fewer pieces than the collector of garbage waits for would take less.
        path = tmp_path / f"{count}{event_files.WRITERS[name][0]}"
        one = event_files.WRITERS[name][1](row)
        if name in ("npy", "npz"):
            t, x, y, p = np.repeat(row, count, axis=0).T
            columns = {"t": t, "x": x.astype("u2"), "y": y.astype("u2"), "p": p > 0}
            if name == "npz":
                np.savez_compressed(path, **columns)
            else:
                np.save(path, np.rec.fromarrays(list(columns.values()), names=list(columns)))
        elif name == "aedat4":
            many = event_files.aedat4(np.repeat(row, 2**12, axis=0), per_packet=2**12, closed=False)
            start = many.index(struct.pack("<ii", 9, 3) + b"imu")
            path.write_bytes(many[:start] + many[start:] * (count // 2**12))
        else:
            empty = event_files.WRITERS[name][1](row[:0])
            path.write_bytes(empty + one[len(empty) :] * count)
        reader = open_events(path)
        next(iter(reader.chunks()))  # What is imported or kept at first use is not of the file.
        gc.collect()
        tracemalloc.start()
        assert sum(len(piece) for piece in reader.chunks(1000)) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0] < 2**27
