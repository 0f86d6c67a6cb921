"""Point files that are damaged, cut, empty, hostile or of another kind: what is said, and what is kept."""

from __future__ import annotations

import struct
import time
import tracemalloc
import warnings

import numpy as np
import point_files
import pytest
from point_files import FILES, cloud

import zoo
from modalities.points import Points
from zoo.errors import ConfigError, DataError, MissingDependencyError
from zoo.reading import Source

DATA = cloud()
PLY_HEAD = "ply\nformat {} 1.0\nelement vertex {}\nproperty float x\nproperty float y\nproperty float z\nend_header\n"
PCD_HEAD = "FIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nWIDTH {0}\nHEIGHT 1\nPOINTS {0}\nDATA {1}\n"


@pytest.mark.parametrize("form", [form for form in FILES if form not in ("xyz", "csv", "txt", "obj")])
def test_truncated(form):
    name, write = FILES[form]
    whole = write(DATA)
    cut = Source(whole[: len(whole) * 7 // 10 + 3], name)
    with pytest.raises(DataError, match=rf"{name}: .*(truncated|damaged|is no point)"):
        zoo.read(cut, kind="points")
    if form in ("npz", "npy", "pcd-compressed"):  # As a whole or not at all.
        with pytest.raises(DataError):
            zoo.read(cut, kind="points", errors="keep")
        return
    with pytest.warns(UserWarning, match=r"the \d+ points before it are kept"):
        kept = zoo.read(cut, kind="points", errors="keep")
    assert kept.truncated and 25 < len(kept) < 50 and np.array_equal(kept.xyz[:-1], DATA["xyz"][: len(kept) - 1])


def test_truncated_las():
    pytest.importorskip("laspy")
    pytest.importorskip("lazrs")
    for compress in (False, True):
        whole = point_files.las(cloud(2000), compress=compress)
        cut = Source(whole[: len(whole) * 7 // 10], "a.las")
        with pytest.raises(DataError, match=r"a\.las: .*truncated"):
            zoo.read(cut, kind="points")
        with pytest.warns(UserWarning, match="points before it are kept"):
            kept = zoo.read(cut, kind="points", errors="keep")
        assert kept.truncated and (len(kept) > 1000 or compress)
        with pytest.raises(DataError, match="truncated"):
            zoo.read(Source(whole[:150], "a.las"), kind="points", errors="keep")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.ply", PLY_HEAD.format("binary_little_endian", 0).encode()),
        ("a.ply", PLY_HEAD.format("ascii", 0).encode()),
        ("a.pcd", PCD_HEAD.format(0, "ascii").encode()),
        ("a.pcd", PCD_HEAD.format(0, "binary").encode()),
        ("a.pcd", PCD_HEAD.format(0, "binary_compressed").encode() + bytes(8)),
        ("a.off", b"OFF\n0 0 0\n"),
        ("a.xyz", b"# nothing\n\n"),
        ("a.npz", point_files.npz(xyz=np.zeros((0, 3)))),
        ("a.npy", point_files.npy(np.zeros((0, 3)))),
        ("a.obj", b"# nothing\n"),
    ],
)
def test_no_points(name, data):
    with pytest.raises(DataError, match=rf"{name}: holds no points; errors="):
        zoo.read(Source(data, name), kind="points")
    with pytest.warns(UserWarning, match="holds no points"):
        assert zoo.read(Source(data, name), kind="points", errors="keep").xyz.shape == (0, 3)


@pytest.mark.parametrize("form", FILES)
def test_empty_file(tmp_path, form):
    name = FILES[form][0]
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(DataError, match=rf"{name}: the file is empty"):
        zoo.read(tmp_path / name, kind="points", errors="keep")


@pytest.mark.parametrize("form", ["ply", "ply-ascii", "pcd-compressed", "xyz", "kitti", "npz", "off"])
def test_nan_and_infinite_coordinates(form):
    data = cloud()
    data["xyz"][[3, 9], [0, 2]] = np.nan, np.inf
    name, write = FILES[form]
    with pytest.raises(DataError, match=rf"{name}: 2 of 50 points have NaN or infinite .*first point 3.*drops them"):
        zoo.read(Source(write(data), name), kind="points")
    with pytest.warns(UserWarning, match="2 points with NaN or infinite coordinates were dropped"):
        kept = zoo.read(Source(write(data), name), kind="points", errors="keep")
    good = np.delete(data["xyz"], [3, 9], axis=0)
    assert np.array_equal(kept.xyz, good) and not kept.truncated
    if form == "off":  # The face (2, 1, 3) goes; corners behind the dropped one move up.
        assert kept.faces.tolist() == [[0, 1, 2], [0, 2, 3]]


HOSTILE = 10**12
CLAIMS = [
    ("a.ply", PLY_HEAD.format("binary_little_endian", HOSTILE).encode()),
    ("a.ply", PLY_HEAD.format("binary_little_endian", 2**26).encode()),
    ("a.ply", PLY_HEAD.format("ascii", 2**26).encode() + b"1 2 3\n"),
    ("a.ply", PLY_HEAD.format("ascii", -5).encode()),
    ("a.ply", PLY_HEAD.format("binary_little_endian", 1).replace("float z", "list int double z").encode() + bytes(12)),
    (
        "a.ply",
        b"ply\nformat binary_little_endian 1.0\nelement vertex 1\nproperty list int double w\nproperty float x\n"
        b"property float y\nproperty float z\nend_header\n\xff\xff\xff\x7f" + bytes(12),
    ),
    (
        "a.ply",
        b"ply\nformat ascii 1.0\nelement big 1000000000000\nproperty list int int i\nelement vertex 1\nend_header\n",
    ),
    ("a.pcd", PCD_HEAD.format(HOSTILE, "binary").encode()),
    ("a.pcd", PCD_HEAD.format(-1, "ascii").encode()),
    ("a.pcd", PCD_HEAD.format(2**26, "binary_compressed").encode() + struct.pack("<II", 8, 12 * 2**26) + bytes(8)),
    ("a.pcd", PCD_HEAD.format(4, "binary").replace("SIZE 4 4 4", "SIZE 4 4 -4").encode() + bytes(48)),
    ("a.pcd", PCD_HEAD.format(4, "ascii").replace("WIDTH", "COUNT 1 1 999999999\nWIDTH").encode()),
    ("a.off", b"OFF\n1000000000000 1 0\n0 0 0\n"),
    ("a.off", b"OFF\n60000000 1 0\n0 0 0\n"),
    ("a.off", b"OFF\n-3 1 0\n0 0 0\n"),
    ("a.stl", bytes(80) + struct.pack("<I", 2**32 - 1)),
    ("a.pts", b"1000000000000\n1 2 3\n"),
]


@pytest.mark.parametrize(("name", "data"), CLAIMS)
def test_hostile_claims_take_no_memory(name, data):
    pytest.importorskip("trimesh")
    start = time.monotonic()
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=rf"^{name}: "):
            zoo.read(Source(data, name), kind="points")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**25 and time.monotonic() - start < 5


def _header_of(shape: tuple[int, ...], dtype: str = "<f8", order: bool = False) -> bytes:
    text = repr({"descr": dtype, "fortran_order": order, "shape": shape}).encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


@pytest.mark.parametrize(
    "header",
    [_header_of((HOSTILE, 3)), _header_of((2**26, 3)), _header_of((4, HOSTILE)), _header_of((-4, 3))]
    + [_header_of((4, 3), "|O"), _header_of((2**26, 3), "<f8", True), _header_of((2**60, 2**60))],
)
def test_hostile_arrays_take_no_memory(header):
    import io
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("xyz.npy", header + bytes(96))
    tracemalloc.start()
    try:
        for name, data in (("a.npy", header + bytes(96)), ("a.npz", buffer.getvalue())):
            with pytest.raises(DataError, match=rf"^{name}: "):
                zoo.read(Source(data, name), kind="points")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**25


def test_a_decompression_bomb_is_refused():
    import io
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xyz.npy", _header_of((4, 3)) + bytes(96))
        archive.writestr("rgb.npy", _header_of((4, 3 * 10**6), "|u1") + bytes(12 * 10**6))
    with pytest.raises(DataError, match="rgb .* is 12000000 bytes; at most"):
        zoo.read(Source(buffer.getvalue(), "a.npz"), kind="points")


def test_hostile_las_headers():
    pytest.importorskip("laspy")
    whole = bytearray(point_files.las(DATA))
    for at, value in ((100, struct.pack("<I", 2**32 - 1)), (96, struct.pack("<I", 2**31)), (94, struct.pack("<H", 5))):
        bad = bytes(whole[:at]) + value + bytes(whole[at + len(value) :])
        with pytest.raises(DataError, match=r"^a\.las: "):
            zoo.read(Source(bad, "a.las"), kind="points")
    many = bytes(whole[:247]) + struct.pack("<Q", HOSTILE) + bytes(whole[255:])
    with pytest.raises(DataError, match=f"the header says {HOSTILE} points"):
        zoo.read(Source(many, "a.las"), kind="points", errors="keep")


def test_more_points_than_asked_for():
    for form in ("ply", "ply-ascii", "pcd", "pcd-compressed", "off", "kitti", "xyz", "npz", "npy", "obj"):
        name, write = FILES[form]
        with pytest.raises(DataError, match="max_points|at most 49"):
            zoo.read(Source(write(DATA), name), kind="points", max_points=49)
        assert len(zoo.read(Source(write(DATA), name), kind="points", max_points=50)) == 50


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.ply", b"ply\nformat ascii 2.0\n", "no end_header|format"),
        ("a.ply", b"ply\nelement vertex 1\nproperty float x\nend_header\n", "has no format"),
        ("a.ply", b"ply\nformat ascii 1.0\nelement face 0\nend_header\n", "has no element vertex"),
        (
            "a.ply",
            b"ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\nend_header\n1\n",
            "must have x, y and z",
        ),
        ("a.ply", b"ply\nformat ascii 1.0\nelement vertex one\nend_header\n", "'one', not a whole number"),
        ("a.ply", b"ply\nformat ascii 1.0\nelement vertex 1\nproperty half x\nend_header\n", "is no property"),
        ("a.ply", PLY_HEAD.format("ascii", 2).encode() + b"1 2 3\n4 oops 6\n", "vertex 1: '4 oops 6' is no point"),
        ("a.pcd", b"FIELDS x y z\nSIZE 4 4\nTYPE F F F\nWIDTH 1\nHEIGHT 1\nDATA ascii\n", "differ in length"),
        ("a.pcd", PCD_HEAD.format(1, "zipped").encode(), "DATA is 'zipped'"),
        ("a.pcd", PCD_HEAD.format(2, "ascii").replace("POINTS 2", "POINTS 3").encode(), "is not POINTS 3"),
        ("a.pcd", PCD_HEAD.format(2, "ascii").replace("x y z", "a b c").encode() + b"1 2 3\n1 2 3\n", "no x, y and z"),
        ("a.off", b"PLY\n", "is not OFF"),
        ("a.off", b"OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 7\n", "face 0: '3 0 1 7' is no face of the 3 vertices"),
        ("a.off", b"OFF BINARY\n", "binary OFF is not read"),
        ("a.xyz", b"6\nmolecule\nC 0 0 0\n", "line 2: 'molecule' is no point"),
        ("a.xyz", b"1 2 3\n4 5\n", "line 2: '4 5' is no point"),
        ("a.csv", b"x,y,z\n1,2,3\n1,2,oops\n", "line 3: '1,2,oops' is no point"),
        ("a.txt", b"hello\n", "'hello' is no point"),
        ("a.pts", b"2\n1 2 3\n4 5 6\n7 8 9\n", "says 2 points, 3 are there"),
        ("a.npz", b"PK\x03\x04 no archive", "no readable .npz"),
        ("a.npz", point_files.npz(frames=np.zeros(3)), r"expected an array xyz \(N, 3\).* holds frames"),
        ("a.npy", point_files.npy(np.zeros((3, 2))), r"expected an array \(N, 3\)"),
        ("a.obj", b"v 1 2\n", "line 1: 'v 1 2' is damaged"),
        ("a.stl", b"solid\nfacet\nvertex a b c\nendsolid\n" + b" " * 90, "no readable mesh"),
        ("a.pcd.bin", np.full(5, 0.5, "<f4").tobytes(), "this is no nuScenes scan"),
        ("a.foo", b"what is this", "no point file: it starts with"),
    ],
)
def test_wrong_files(name, data, message):
    pytest.importorskip("trimesh")
    with pytest.raises(DataError, match=rf"^{name}: .*({message})"):
        zoo.read(Source(data, name), kind="points")


def test_pickles_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", xyz=np.array([{}], object))
    with pytest.raises(DataError, match="xyz is a pickle, which is not opened"):
        zoo.read(tmp_path / "a.npz", kind="points")


def test_bad_options():
    data = point_files.ply(DATA)
    for options, message in (
        ({"max_points": 0}, "max_points must be a positive"),
        ({"format": "dxf"}, "format must be one of kitti, las"),
        ({"colour": 3}, "options of point files are max_points, columns and format, not colour"),
        ({"errors": "ignore"}, 'errors must be "raise" or "keep"'),
        ({"columns": 3}, "columns must be names"),
    ):
        with pytest.raises(ConfigError, match=message):
            zoo.read(data, kind="points", **options)
    with pytest.raises(DataError, match=r"xyz must be float64 \(N, 3\)"):
        Points(np.zeros((3, 3), np.float32))
    with pytest.raises(DataError, match="the field rgb must be an array of 3 rows"):
        Points(np.zeros((3, 3)), {"rgb": np.zeros((2, 3))})
    with pytest.raises(DataError, match="no points, so no bounds"):
        Points(np.zeros((0, 3))).bounds  # noqa: B018


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("a.csv", b"x,y,z\n1,2,3\n", "points"),
        ("a.csv", b"t,x,y,p\n1,2,3,1\n", "events"),
        ("a.txt", b"1 2 3\n", "points"),
        ("a.txt", b"# t x y p\n", "events"),
        ("a.npz", point_files.npz(coord=np.zeros((2, 3))), "points"),
        ("a.npz", point_files.npz(t=[1], x=[1], y=[1], p=[1]), "events"),
        ("a.npy", point_files.npy(np.zeros((2, 3))), "points"),
        ("a.npy", point_files.npy(np.zeros(2, [("t", "i8"), ("x", "i4"), ("y", "i4"), ("p", "?")])), "events"),
        ("a.pcd.bin", point_files.nuscenes(DATA), "points"),
        ("a.PLY", point_files.ply(DATA), "points"),
    ],
)
def test_kind_by_content(tmp_path, name, data, kind):
    from zoo.reading import _kind_of, as_source

    (tmp_path / name).write_bytes(data)
    assert _kind_of(as_source(tmp_path / name)) == kind


def test_four_columns_may_be_either(tmp_path):
    (tmp_path / "a.txt").write_text("1 2 3 4\n")
    with pytest.raises(DataError, match='four columns without names.*pass kind="points" or kind="events"'):
        zoo.read(tmp_path / "a.txt")
    assert len(zoo.read(tmp_path / "a.txt", kind="points")) == 1


@pytest.mark.parametrize(
    ("module", "data"), [("laspy", b"LASF" + bytes(300)), ("trimesh", point_files.stl(DATA["xyz"]))]
)
def test_missing_library_says_what_to_install(monkeypatch, module, data):
    import sys

    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependencyError, match=rf"{module} .*pip install 'pape-zoo\[points\]'"):
        zoo.read(Source(data, "a.stl"), kind="points")


def test_good_files_give_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, write in FILES.values():
            zoo.read(Source(write(DATA), name), kind="points")


@pytest.mark.parametrize("form", [*FILES, "las", "laz"])
@pytest.mark.filterwarnings("ignore")
def test_random_damage_is_an_error_of_ours_or_decodes(form):
    """Whatever is in a file, nothing but points or a `DataError` comes out."""
    if form in ("las", "laz"):
        pytest.importorskip("lazrs")
        name, data = "a.las", point_files.las(cloud(20), compress=form == "laz")
    else:
        name, data = FILES[form][0], FILES[form][1](cloud(20))
    generator = np.random.default_rng(0)
    for trial in range(60):
        bad = bytearray(data)
        first = 0 if trial % 2 else len(data) // 2
        for at in generator.integers(first, len(data), generator.integers(1, 6)):
            bad[at] = generator.integers(0, 256)
        for errors in ("raise", "keep"):
            try:
                points = zoo.read(Source(bytes(bad), name), kind="points", errors=errors, max_points=10_000)
            except DataError as error:
                assert str(error).startswith(f"{name}: ")
            else:
                assert np.isfinite(points.xyz).all()
