"""Event files that are cut, empty, damaged, of another kind or inconsistent: said so, never a silent wrong answer."""

from __future__ import annotations

import struct
import warnings

import event_files
import numpy as np
import pytest

import zoo
from modalities.events import Events, open_events
from zoo.errors import ConfigError, DataError

FORMATS = sorted(event_files.WRITERS)


def write(tmp_path, name: str, data: bytes):
    path = tmp_path / f"bad{event_files.WRITERS[name][0]}"
    path.write_bytes(data)
    return path


def rows(events: Events) -> list[list[int]]:
    return np.stack([events.t_us, events.x, events.y, events.p], 1).tolist()


@pytest.mark.parametrize("name", FORMATS)
def test_empty_file(tmp_path, name):
    path = write(tmp_path, name, b"")
    for errors in ("raise", "keep"):
        with pytest.raises(DataError, match=rf"bad\{path.suffix}: the file is empty"):
            zoo.read(path, kind="events", errors=errors)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "nmnist"])
def test_header_only(tmp_path, name):
    path = write(tmp_path, name, event_files.WRITERS[name][1](event_files.sample(name, 3)[:0]))
    with pytest.raises(DataError, match=rf"bad\{path.suffix}: holds no events, only a header"):
        zoo.read(path, kind="events")
    with pytest.warns(UserWarning, match="holds no events"):
        events = zoo.read(path, kind="events", errors="keep")
    assert len(events) == 0 and events.t_us.dtype == np.int64 and not events.truncated
    with pytest.warns(UserWarning, match="holds no events"):
        assert list(open_events(path, errors="keep").chunks()) == []


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("npz", "evt3")])
@pytest.mark.parametrize("cut", [1, 2, 3, 7])
def test_cut_inside_the_last_event(tmp_path, name, cut):
    expected = event_files.sample(name)
    data = event_files.WRITERS[name][1](expected)
    if name == "csv":
        cut = len(data.splitlines()[-1]) - cut  # Cuts that leave four numbers cannot be seen.
    if name == "aedat4":
        cut += len(b"the table of packets")
    path = write(tmp_path, name, data[:-cut])
    options = {"format": name} if name == "nmnist" else {}
    with pytest.raises(DataError, match=rf"bad\{path.suffix}: .*(truncated|is no event).*; errors=\"keep\" reads"):
        zoo.read(path, kind="events", **options)
    with pytest.warns(UserWarning, match=r"the \d+ events before it are kept"):
        events = zoo.read(path, kind="events", errors="keep", **options)
    assert events.truncated and 200 < len(events) < 301
    assert rows(events) == expected[: len(events)].tolist()
    with pytest.warns(UserWarning, match="are kept"):
        pieces = list(open_events(path, errors="keep", **options).chunks(64))
    assert rows(Events.concatenate(pieces)) == rows(events) and pieces[-1].truncated


@pytest.mark.parametrize("name", FORMATS)
def test_cut_anywhere_is_never_silent(tmp_path, name):
    expected = event_files.sample(name, 40)
    data = event_files.WRITERS[name][1](expected)
    for length in range(1, len(data) - (20 if name == "aedat4" else 0), 13 if len(data) > 3000 else 5):
        path = write(tmp_path, name, data[:length])
        try:
            events = zoo.read(path, kind="events")
        except DataError as error:
            assert str(path) in str(error)
        else:  # Cut between two events: what has neither a count nor an end looks whole.
            assert name in ("dat", "evt2", "evt21", "evt3", "nmnist", "csv", "aedat2", "aedat3")
            assert rows(events) == expected[: len(events)].tolist() or name == "csv"


@pytest.mark.parametrize("cut", [100, 2000, 10])
def test_cut_archives_and_hdf5(tmp_path, cut):
    pytest.importorskip("h5py")
    for name, data in (("a.npz", event_files.npz(event_files.draw())), ("a.h5", event_files.hdf5(event_files.draw()))):
        (tmp_path / name).write_bytes(data[:-cut])
        with pytest.raises(DataError, match=f"{name}: .*truncated or damaged"):
            zoo.read(tmp_path / name, errors="keep")


@pytest.mark.parametrize("name", FORMATS)
def test_outside_the_sensor(tmp_path, name):
    expected = event_files.sample(name)
    expected[123, 1:3] = 100, 20
    expected[124:, 1:3] = 1, 1
    expected[:123, 1:3] %= 20
    path = write(tmp_path, name, event_files.WRITERS[name][1](expected))
    with pytest.raises(DataError, match=r"event 123: \(100, 20\) is outside the 50 x 40 pixels"):
        zoo.read(path, kind="events", width=50, height=40)
    with pytest.warns(UserWarning, match="1 events outside the 50 x 40 pixels of the sensor were dropped"):
        events = zoo.read(path, kind="events", width=50, height=40, errors="keep")
    assert rows(events) == np.delete(expected, 123, axis=0).tolist() and (events.width, events.height) == (50, 40)
    assert len(zoo.read(path, kind="events", width=101, height=40)) == 300


def test_outside_the_stated_sensor():
    expected = event_files.draw(width=700)
    with pytest.raises(DataError, match="outside the 640 x 480 pixels"):
        open_events(event_files.dat(expected)).read()
    with pytest.raises(DataError, match="a coordinate of 200 is outside the 34 x 34 .* pass width= and height="):
        open_events(event_files.nmnist(np.array([[1, 200, 3, 1]])), format="nmnist")
    with pytest.raises(DataError, match=r"\(-1, 2\) is outside the sensor"):
        open_events(b"t,x,y,p\n1,-1,2,0\n", format="csv").read()


@pytest.mark.parametrize("name", FORMATS)
def test_time_that_steps_back(tmp_path, name):
    expected = event_files.sample(name)
    expected[200:, 0] -= expected[200, 0] - expected[199, 0] + 10
    path = write(tmp_path, name, event_files.WRITERS[name][1](expected))
    with pytest.raises(DataError, match="event 200: time steps back by 10 us"):
        zoo.read(path, kind="events")
    with pytest.warns(UserWarning, match="time steps back 1 times"):
        events = zoo.read(path, kind="events", errors="keep")
    assert rows(events) == expected.tolist()
    order = np.argsort(expected[:, 0], kind="stable")
    assert rows(events.sorted()) == expected[order].tolist()
    with pytest.raises(DataError, match="event 200: time steps back"):
        list(open_events(path).chunks(200))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.raw", b"\xff\xd8\xff\xe0 a picture", "no event file: it starts with"),
        ("a.raw", b"% evt 4.0\n", "the header says '4.0'; EVT 2.0, 2.1 and 3.0 are read"),
        ("a.raw", b"% Date x\n", "does not say which EVT version"),
        ("a.raw", b"% Date x", "truncated inside the header"),
        ("a.raw", b"% format EVT2;height=a;width=3\n", "a size of '3' x 'a'"),
        ("a.dat", b"\0" * 80, "no event file"),
        ("a.dat", b"% Version 1\n\0\x08", "DAT version '1'; version 2 is read"),
        ("a.dat", b"% Version 2\n\x0e\x08", "type 14 and 8 bytes; expected type 0 or 12"),
        ("a.dat", b"% Version 2\n\0", "truncated before the type"),
        ("a.aedat", b"#!AER-DAT1.0\n", "AEDAT 1.0 is not read"),
        ("a.aedat", b"#!AER-DAT2.0\n#x\n", r"does not name the camera \(AEChip\)"),
        ("a.aedat", b"#!AER-DAT3.1\n#Format: RAW\n", "the header has no end"),
        ("a.aedat", b"#!AER-DAT3.1\n#Format: SerializedTS\n#!END-HEADER\n", "stored as 'SERIALIZEDTS'; RAW is read"),
        ("a.aedat4", b"#!AER-DAT4.0\r\n\x08\0\0\0abcdefgh", "damaged header"),
        ("a.aedat4", b"#!AER-DAT4.0\r\n\x08\0\0\0abc", "truncated inside the header"),
        ("a.csv", b"hello,world\n1,2\n", "neither numbers nor names"),
        ("a.csv", b"1,2,3,4\n", 'no line of names; pass columns=, for example columns="t,x,y,p"'),
        ("a.csv", b"t,x,y,p\n1,2,3,4\n", "a polarity of 4; expected 0 and 1"),
        ("a.csv", b"t,x,y,p\n1,2,3,1\n2,3\n", "line 3: '2,3' is no event"),
        ("a.csv", b"t,x,y,p\n\n1,2,3,1\n2,3.5,1,1\n", "line 4: '2,3.5,1,1' is no event"),
        ("a.npz", b"PK\x03\x04 no archive", "no readable .npz"),
        ("a.h5", b"\x89HDF\r\n\x1a\n nothing", "no readable HDF5 file"),
    ],
)
def test_wrong_files(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=rf"{name}: .*{message}"):
        zoo.read(tmp_path / name, kind="events")


@pytest.mark.parametrize(("version", "word"), [("EVT2", "<I"), ("EVT21;endianness=little", "<Q"), ("EVT3", "<H")])
def test_words_of_another_version(version, word):
    bits = struct.calcsize(word) * 8
    data = event_files.raw_header(version) + struct.pack(word, 0x8 << bits - 4) + struct.pack(word, 0x9 << bits - 4)
    with pytest.raises(DataError, match=r"word 1 is of type 9, which evt\d+ does not have"):
        open_events(data).read()


@pytest.mark.parametrize(("name", "size"), [("evt2", 4), ("evt3", 2)])
def test_events_before_the_first_time_are_left_out_with_a_warning(name, size):
    expected = event_files.draw(5)
    data = event_files.WRITERS[name][1](expected)
    start = data.index(b"% end\n") + len(b"% end\n")
    data = (
        data[:start]
        + struct.pack("<I" if size == 4 else "<H", (0x1 if size == 4 else 0x2) << size * 8 - 4)
        + data[start:]
    )
    with pytest.warns(UserWarning, match="1 words before the first time"):
        assert rows(open_events(data).read()) == expected.tolist()


def test_damaged_packets():
    data = event_files.aedat3(event_files.sample("aedat3"))
    start = data.index(b"#!END-HEADER\r\n") + 14
    for offset, value, message in ((4, -8, "damaged"), (16, -1, "damaged"), (20, 10**6, "damaged")):
        bad = data[: start + offset] + struct.pack("<i", value) + data[start + offset + 4 :]
        with pytest.raises(DataError, match=f"packet 0: {message}"):
            open_events(bad).read()
    data = event_files.aedat4(event_files.draw())
    at = data.index(b"EVTS", data.index(b"imu"))
    with pytest.raises(DataError, match="packet 1: damaged"):
        open_events(data[:at] + b"FRME" + data[at + 4 :]).read()
    with pytest.raises(DataError, match="packet 1: damaged"):
        open_events(data[: at - 4] + b"\xff\xff\xff\x7f" + data[at:]).read()


@pytest.mark.parametrize("compression", [1, 3])
def test_damaged_compression_and_bombs(monkeypatch, compression):
    pytest.importorskip("lz4")
    pytest.importorskip("zstandard")
    data = event_files.aedat4(event_files.draw(), compression)
    at = data.index(b"imu") + 3 + 8
    with pytest.raises(DataError, match="packet 1: damaged"):
        open_events(data[: at + 20] + bytes(20) + data[at + 40 :]).read()
    monkeypatch.setattr("modalities.events.formats.aedat4.MAX_PACKET", 700)
    with pytest.raises(DataError, match="packet 1: .*700"):
        open_events(data).read()


def test_pickles_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", t=np.array([{}], object), x=[1], y=[1], p=[1])
    with pytest.raises(DataError, match="t is a pickle, which is not opened"):
        zoo.read(tmp_path / "a.npz")


def test_arrays_that_do_not_fit(tmp_path):
    np.savez(tmp_path / "a.npz", t=[1, 2], x=[1], y=[1], p=[1])
    with pytest.raises(DataError, match="one axis and one length"):
        zoo.read(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", t=[1], x=[1.5], y=[1], p=[1])
    with pytest.raises(DataError, match="x must hold whole numbers, not float64"):
        zoo.read(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", frames=[1])
    with pytest.raises(DataError, match="expected arrays t, x, y and p or one structured array; it holds frames"):
        zoo.read(tmp_path / "a.npz")


@pytest.mark.parametrize("x", [2**32 + 5, 2**31 - 1, -(2**33) + 7])
def test_coordinates_beyond_32_bits_are_not_wrapped(tmp_path, x):
    np.savez(tmp_path / "a.npz", t=[1, 2], x=[4, x], y=[1, 1], p=[1, 0])
    with pytest.raises(DataError, match="event 1: .* is outside the sensor"):
        zoo.read(tmp_path / "a.npz")
    with pytest.warns(UserWarning, match="1 events outside the sensor were dropped"):
        assert zoo.read(tmp_path / "a.npz", errors="keep").x.tolist() == [4]


def test_hdf5_columns_must_hold_whole_numbers(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as root:
        for key in "txyp":
            root[f"events/{key}"] = np.ones(3, np.float32 if key == "x" else np.int32)
    with pytest.raises(DataError, match=r"x is no array \(N,\) of whole numbers"):
        zoo.read(tmp_path / "a.h5")


def test_hdf5_without_events_or_out_of_the_file(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as root:
        root["voxels"] = [1]
    with pytest.raises(DataError, match="no events: expected events/x, y, p and t, .* at the top are voxels"):
        zoo.read(tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "w") as root:
        root["events"] = h5py.ExternalLink("secret.h5", "events")
    with pytest.raises(DataError, match="events is a link into another file"):
        zoo.read(tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "w") as root:
        for key, length in (("t", 3), ("x", 3), ("y", 3), ("p", 2)):
            root[f"events/{key}"] = np.ones(length, np.int32)
    with pytest.raises(DataError, match="differ in length"):
        zoo.read(tmp_path / "a.h5")


def test_more_events_than_asked_for():
    data = event_files.dat(event_files.draw())
    with pytest.raises(DataError, match="bytes: more than 299 events; read it in chunks"):
        open_events(data).read(max_events=299)
    assert len(zoo.read(data, kind="events", max_events=300)) == 300


def test_bad_options():
    data = event_files.dat(event_files.draw(3))
    for options, message in (
        ({"width": 3}, "pass both width= and height="),
        ({"width": 0, "height": 3}, "width must be a positive number"),
        ({"unit": "h"}, "unit must be one of ns, us, ms, s, not 'h'"),
        ({"format": "evt4"}, "format must be one of aedat2"),
        ({"errors": "ignore"}, 'errors must be "raise" or "keep"'),
        ({"colour": 3}, "options of event files are width, .* not colour"),
    ):
        with pytest.raises(ConfigError, match=message):
            open_events(data, **options)
    with pytest.raises(ConfigError, match="max_events must be a positive number"):
        next(open_events(data).chunks(0))
    with pytest.raises(DataError, match="a list is no event file; pass a path or bytes"):
        zoo.read([1], kind="events")
    with pytest.raises(DataError, match="x must be int32"):
        Events(np.zeros(1, np.int64), np.zeros(1), np.zeros(1, np.int32), np.zeros(1, bool))


def test_kind_of_bin(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(event_files.nmnist(event_files.sample("nmnist", 3)))
    assert isinstance(zoo.read(path), Events)
    points = np.linspace(-900, 900, 8).astype("<f4")
    path.write_bytes(points.tobytes())
    assert zoo.read(path).xyz.shape == (2, 3)
    for far in (1001, np.nan, np.inf):
        points[5] = far
        path.write_bytes(points.tobytes())
        with pytest.raises(DataError, match='32 bytes holds neither points .* pass kind="events" or kind="points"'):
            zoo.read(path)
    path.write_bytes(bytes(80))
    with pytest.raises(DataError, match="80 bytes may hold points or events; pass kind="):
        zoo.read(path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match="0 bytes holds neither"):
        zoo.read(path)


def test_good_files_give_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, (_, writer, _) in event_files.WRITERS.items():
            open_events(writer(event_files.sample(name)), format=name).read()


def test_missing_library_says_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(zoo.errors.MissingDependencyError, match=r"h5py .*pip install 'pape-zoo\[events\]'"):
        open_events(b"\x89HDF\r\n\x1a\n", name="a.h5")


@pytest.mark.parametrize("name", [*FORMATS, "hdf5"])
@pytest.mark.filterwarnings("ignore")
def test_random_damage_is_an_error_of_ours_or_decodes(name):
    """Whatever is in a file, nothing but events or a `DataError` comes out."""
    if name == "hdf5":
        pytest.importorskip("h5py")
        data = event_files.hdf5(event_files.draw(60))
    else:
        data = event_files.WRITERS[name][1](event_files.sample(name, 60))
    rng = np.random.default_rng(0)
    outcomes = set()
    for trial in range(200):
        bad = bytearray(data)
        first = 0 if trial % 2 else len(data) // 2
        for at in rng.integers(first, len(data), rng.integers(1, 6)):
            bad[at] = rng.integers(0, 256)
        for errors in ("raise", "keep"):
            try:
                events = open_events(bytes(bad), format=name, errors=errors).read()
            except DataError as error:
                outcomes.add("refused")
                assert str(error).startswith("bytes: ")
            else:
                outcomes.add("decoded")
                assert len({len(a) for a in (events.t_us, events.x, events.y, events.p)}) == 1
    assert outcomes == {"refused", "decoded"}
