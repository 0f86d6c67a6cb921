"""Point files of every format: what is written is read, to the last bit that the format holds."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import point_files
import pytest
from point_files import FACES, FILES, cloud

import zoo
from modalities.points import Points, sample_surface
from modalities.points.formats.lzf import decompress
from zoo.errors import ConfigError, DataError
from zoo.reading import Source

DATA = cloud()


@pytest.mark.parametrize("form", FILES)
def test_every_format_is_read(tmp_path, form):
    name, write = FILES[form]
    (tmp_path / name).write_bytes(write(DATA))
    kind = "points" if name == "a.bin" else None  # 800 bytes divide by 5 too.
    points = zoo.read(tmp_path / name, kind=kind)
    assert isinstance(points, Points) and points.path == tmp_path / name and not points.truncated
    assert points.xyz.dtype == np.float64 and np.array_equal(points.xyz, DATA["xyz"])
    if form not in ("off", "kitti", "nuscenes", "npy", "obj"):
        assert points.fields["rgb"].dtype == np.uint8 and np.array_equal(points.fields["rgb"], DATA["rgb"])
    if form.startswith(("ply", "pcd", "npz", "kitti", "nuscenes")):
        assert np.array_equal(points.fields["intensity"], DATA["intensity"])
    again = zoo.read(Source((tmp_path / name).read_bytes(), name), kind="points")  # The same from bytes.
    assert np.array_equal(again.xyz, points.xyz) and again.path is None and again.format == points.format


def test_fields_of_pcd():
    for mode in ("ascii", "binary", "binary_compressed"):
        points = zoo.read(point_files.pcd(DATA, mode, height=5), kind="points")
        assert list(points.fields) == ["rgb", "intensity", "pair"]  # No padding.
        assert points.fields["pair"].tolist() == np.arange(100).reshape(50, 2).tolist()
        assert points.info["viewpoint"] == (1, 2, 3, 1, 0, 0, 0) and points.info["organised"] == (5, 10)


def test_ring_of_nuscenes():
    points = zoo.read(Source(point_files.nuscenes(DATA), "scan.pcd.bin"), kind="points")
    assert points.format == "nuscenes" and points.fields["ring"].tolist() == (np.arange(50) % 32).tolist()


@pytest.mark.parametrize("write", [point_files.ply_ascii, point_files.ply])
def test_faces_of_ply(write):
    points = zoo.read(write(DATA, faces=FACES), kind="points")
    assert points.faces.tolist() == [list(face) for face in FACES]
    assert points.info["comments"] == ("made by a test",)
    mixed = zoo.read(write(DATA, faces=((0, 1, 2), (0, 1, 2, 3))), kind="points")
    assert mixed.faces.tolist() == [[0, 1, 2], [0, 1, 2], [0, 2, 3]]
    assert points[:4].faces is None and len(points[:4]) == 4


@pytest.mark.parametrize("order", ["<", ">"])
def test_lists_and_other_elements_around_the_vertices_of_ply(order):
    import struct

    name = {"<": "binary_little_endian", ">": "binary_big_endian"}[order]
    head = (
        f"ply\r\nformat {name} 1.0\r\nobj_info x\r\nelement camera 2\r\nproperty double f\r\n"
        "property list uchar short ids\r\nelement vertex 2\r\nproperty short x\r\nproperty list int float w\r\n"
        "property int8 y\r\nproperty uint32 z\r\nend_header\r\n"
    ).encode()
    body = struct.pack(f"{order}dBhhdB", 1.0, 2, 7, 8, 2.0, 0)
    body += struct.pack(f"{order}hiffbI", -300, 2, 0.5, 0.5, -5, 4_000_000_000)
    body += struct.pack(f"{order}hibI", 7, 0, 6, 5)
    points = zoo.read(head + body, kind="points")
    assert points.xyz.tolist() == [[-300, -5, 4_000_000_000], [7, 6, 5]] and not points.fields


def test_off_as_modelnet_has_it():
    for joined in (False, True):
        points = zoo.read(point_files.off(DATA, joined=joined), kind="points")
        assert np.array_equal(points.xyz, DATA["xyz"]) and points.faces.tolist() == [list(face) for face in FACES]
    coloured = b"COFF\n# a comment\n3 1 3\n0 0 0 255 0 10 255\n1 0 0 0 0 0 255\n\n0 1 0 9 9 9 255\n3 0 1 2 1 0 0\n"
    points = zoo.read(coloured, kind="points")
    assert points.fields["rgb"].tolist() == [[255, 0, 10], [0, 0, 0], [9, 9, 9]] and points.faces.tolist() == [
        [0, 1, 2]
    ]
    turned = zoo.read(b"NOFF 3 0 0\n0 0 0 0 0 1\n1 0 0 0 0 1\n0 1 0 0 0 1\n", kind="points")
    assert turned.fields["normal"].tolist() == [[0, 0, 1]] * 3 and turned.faces is None


def test_stl_and_obj_agree_with_trimesh(tmp_path):
    trimesh = pytest.importorskip("trimesh")
    box = trimesh.creation.box((2, 4, 6))
    for kind in ("stl", "stl_ascii", "obj", "off", "ply"):
        data = box.export(file_type=kind)
        data = data.encode() if isinstance(data, str) else data
        points = zoo.read(Source(data, f"box.{kind.partition('_')[0]}"), kind="points")
        assert len(points) == 8 and len(points.faces) == 12, kind
        mesh = trimesh.Trimesh(points.xyz, points.faces, process=False)
        assert mesh.volume == pytest.approx(48) and mesh.is_watertight
    lone = zoo.read(Source(point_files.obj(DATA, faces=()), "a.obj"), kind="points")
    assert lone.faces is None and len(lone) == 50


def test_surface_sampling_is_uniform_and_seeded():
    vertices = np.array([[0, 0, 0], [3, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 1.0], [5, 5, 5]])
    faces = np.array([[0, 1, 2], [0, 2, 3], [2, 4, 3], [5, 5, 5]])  # areas 1.5, 0.5, 0.5 and none
    xyz, normals = sample_surface(vertices, faces, 20_000, seed=3)
    floor = xyz[:, 2] == 0
    assert abs(floor.mean() - 0.6) < 0.02 and np.allclose(xyz[~floor, 0], 0)
    assert np.allclose(xyz[floor].mean(axis=0), [1, 1 / 3, 0], atol=0.03)  # The centroid of the triangle.
    assert np.allclose(normals[floor], [0, 0, 1]) and np.allclose(np.abs(normals[~floor]), [1, 0, 0])
    assert np.array_equal(xyz, sample_surface(vertices, faces, 20_000, seed=3)[0])
    assert not np.array_equal(xyz, sample_surface(vertices, faces, 20_000, seed=4)[0])
    with pytest.raises(DataError, match="no finite area"):
        sample_surface(vertices, faces[3:], 5)
    with pytest.raises(DataError, match="outside the 6"):
        sample_surface(vertices, np.array([[0, 1, 6]]), 5)
    with pytest.raises(ConfigError, match="positive whole number"):
        sample_surface(vertices, faces, 0)
    drawn = Points(vertices, faces=faces).sample(10)
    assert len(drawn) == 10 and drawn.fields["normal"].shape == (10, 3)
    with pytest.raises(DataError, match="has no faces"):
        Points(vertices).sample(10)


@pytest.mark.parametrize("compress", [False, True])
def test_las(compress):
    laspy = pytest.importorskip("laspy")
    if compress:
        pytest.importorskip("lazrs")
    points = zoo.read(point_files.las(DATA, compress=compress), kind="points")
    expected = np.rint(DATA["xyz"] * 1000) / 1000 + [500_000, 6_000_000, 0]
    assert np.abs(points.xyz - expected).max() < 1e-9
    assert points.fields["rgb"].dtype == np.uint16 and np.array_equal(points.fields["rgb"] >> 8, DATA["rgb"])
    assert points.fields["intensity"].tolist() == list(range(50))
    assert points.fields["classification"].tolist() == (np.arange(50) % 7).tolist()
    assert points.fields["return"].tolist() == [[1, 2]] * 50
    assert np.array_equal(points.fields["quality"], DATA["intensity"])
    assert points.info["version"] == "1.4" and points.info["scales"] == (0.001,) * 3
    assert laspy


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("1 2 3\n4 5 6\n", {}),
        ("1 2 3 0.5\n4 5 6 0.25\n", {"intensity": [0.5, 0.25]}),
        ("1,2,3,0,0,1\n4,5,6,0.6,0.8,0\n", {"normal": [[0, 0, 1], [0.6, 0.8, 0]]}),
        ("2\n1 2 3 -7 255 0 0\n4 5 6 9 0 1 2\n", {"intensity": [-7, 9], "rgb": [[255, 0, 0], [0, 1, 2]]}),
        ("# made\n//X Y Z Label\n1 2 3 4\n4 5 6 5\n", {"label": [4, 5]}),
        ("1 2 3 4 5\n4 5 6 7 8\n", {"column_3": [4, 7], "column_4": [5, 8]}),
        ('"x"\t"y"\t"z"\t"Reflectance"\n1\t2\t3\t4\n\n% note\n4\t5\t6\t7', {"intensity": [4, 7]}),
    ],
)
def test_columns_of_text(text, fields):
    points = zoo.read(Source(text.encode(), "a.txt"), kind="points")
    assert points.xyz.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert {key: values.tolist() for key, values in points.fields.items()} == fields


def test_columns_named_by_the_caller():
    data = Source(b"9 1 2 3 7\n9 4 5 6 8\n", "a.txt")
    points = zoo.read(data, kind="points", columns="_,x,y,z,label")
    assert points.xyz.tolist() == [[1, 2, 3], [4, 5, 6]] and points.fields["label"].tolist() == [7, 8]
    with pytest.raises(ConfigError, match="must name x, y and z, and all 5 columns"):
        zoo.read(data, kind="points", columns="x,y,z")


def test_numpy_files():
    turned = np.asfortranarray(DATA["xyz"])
    for data in (point_files.npz(coord=turned), point_files.npy(turned), point_files.npz(points=turned.astype("f4"))):
        assert np.array_equal(zoo.read(data, kind="points").xyz, DATA["xyz"])
    table = np.zeros(2, [("x", "f4"), ("y", "f8"), ("z", "i2"), ("label", "i4")])
    table["z"], table["label"] = [1, 2], [8, 9]
    points = zoo.read(point_files.npy(table), kind="points")
    assert points.xyz.tolist() == [[0, 0, 1], [0, 0, 2]] and points.fields["label"].tolist() == [8, 9]
    axes = dict(zip("xyz", DATA["xyz"].T, strict=True))
    points = zoo.read(point_files.npz(**axes, color=DATA["rgb"], names=np.array(["a"])), kind="points")
    assert np.array_equal(points.xyz, DATA["xyz"]) and list(points.fields) == ["rgb"]
    wide = zoo.read(point_files.npy(np.column_stack([DATA["xyz"], DATA["intensity"]])), kind="points")
    assert list(wide.fields) == ["column_3"]


def test_arrays_in_memory():
    import torch

    assert np.array_equal(zoo.read(DATA["xyz"], kind="points").xyz, DATA["xyz"])
    wide = zoo.read(torch.arange(8.0).reshape(2, 4), kind="points")
    assert wide.xyz.tolist() == [[0, 1, 2], [4, 5, 6]] and wide.fields["column_3"].tolist() == [3, 7]
    again = zoo.read(Points(DATA["xyz"], {"rgb": DATA["rgb"]}, name="mine"), kind="points")
    assert again.name == "mine" and np.array_equal(again.fields["rgb"], DATA["rgb"])
    for bad in (np.zeros((3, 2)), "no-such.ply", [1], None, np.zeros((4, 3), complex)):
        with pytest.raises(DataError):
            zoo.read(bad, kind="points")


def test_what_is_saved_is_read_again(tmp_path):
    fields = {
        "rgb": DATA["rgb"],
        "normal": DATA["xyz"].astype(np.float32),
        "intensity": DATA["intensity"],
        "label": np.arange(50),
        "flag": np.arange(50) % 2 == 0,
        "scores": DATA["xyz"][:, :2].copy(),
        "odd name": np.arange(50, dtype=np.uint16),
    }
    far = DATA["xyz"] + [431_234.123456789, 5_954_321.987654321, 12.5]
    points = Points(far, fields, faces=np.array(FACES))
    found = zoo.read(points.save(tmp_path / "deep" / "a.ply"))
    assert np.array_equal(found.xyz, far) and found.faces.tolist() == [list(face) for face in FACES]
    assert np.array_equal(found.fields["normal"], fields["normal"])
    assert found.fields["rgb"].dtype == np.uint8 and np.array_equal(found.fields["rgb"], DATA["rgb"])
    assert found.fields["label"].tolist() == list(range(50)) and found.fields["flag"].sum() == 25
    assert np.array_equal(found.fields["scores_1"], fields["scores"][:, 1])
    assert found.fields["odd_name"].dtype == np.uint16
    bright = Points(DATA["xyz"], {"rgb": DATA["rgb"].astype(np.uint16) * 257}).save(tmp_path / "b.ply")
    assert np.array_equal(zoo.read(bright).fields["rgb"], DATA["rgb"])
    with pytest.raises(DataError, match="written as .ply"):
        points.save(tmp_path / "a.xyz")
    trimesh = pytest.importorskip("trimesh")
    other = trimesh.load(tmp_path / "deep" / "a.ply", process=False)
    assert np.array_equal(other.vertices, far)


def test_large_coordinates_keep_their_precision():
    far = DATA["xyz"] + [1e7 + 1 / 128, 5e6, 0]
    for data, name in ((point_files.npz(xyz=far), "a.npz"), (point_files.text({**DATA, "xyz": far}), "a.xyz")):
        assert np.array_equal(zoo.read(Source(data, name), kind="points").xyz, far)


def test_one_point():
    one = cloud(1)
    for form, (name, write) in FILES.items():
        if form in ("off", "obj"):
            continue
        assert np.array_equal(zoo.read(Source(write(one), name), kind="points").xyz, one["xyz"]), form


@pytest.mark.parametrize("seed", range(4))
def test_lzf_undoes_a_compressor(seed):
    generator = np.random.default_rng(seed)
    data = generator.integers(0, 2 + 80 * (seed % 2), 3000).astype(np.uint8).tobytes() + bytes(2000 * (seed > 1))
    packed = point_files.lzf(data)
    assert decompress(packed, len(data)) == data
    for bad in (packed[:-1], packed + b"\0"):
        with pytest.raises(ValueError, match="ends|gives"):
            decompress(bad, len(data))
    with pytest.raises(ValueError, match="before the start"):
        decompress(b"\xe0\x00\x00", 9)
    with pytest.raises(ValueError, match="cannot hold"):
        decompress(b"\x00\x00", 10**9)


def test_real_files(shared: Path):
    data = shared / "data"
    pytest.importorskip("laspy")
    with zipfile.ZipFile(data / "als_semseg" / "als_semseg_las.zip") as archive:
        tiles = np.load(data / "als_semseg" / "als_semseg.npz")
        for name, tile in (
            ("nebraska_wkt_and_geotiff.las", "nebraska"),
            ("lidarhd_thin_extra_dims.laz", "lidarhd_thin"),
        ):
            points = zoo.read(archive.read(name), kind="points")
            assert np.array_equal(points.fields["classification"], tiles[f"{tile}_class"])
            unit = float(tiles[f"{tile}_unit_to_m"])
            ours = (points.xyz - tiles[f"{tile}_origin"]) * unit
            assert np.abs(ours - tiles[f"{tile}_xyz_m"]).max() < 1e-3
            assert np.array_equal(points.fields["intensity"], tiles[f"{tile}_intensity"])
            assert np.array_equal(points.fields["return"], tiles[f"{tile}_return"])
    with zipfile.ZipFile(data / "kitti_frames" / "kitti_frames.zip") as archive:
        name = "training/velodyne/000008.bin"
        scan = zoo.read(Source(archive.read(name), name), kind="points")
        assert len(scan) == 17_238 and 0 <= scan.fields["intensity"].min() <= scan.fields["intensity"].max() <= 1
    with zipfile.ZipFile(data / "nuscenes_one_sample" / "nuscenes_one_sample.zip") as archive:
        name = next(item for item in archive.namelist() if item.endswith(".pcd.bin"))
        scan = zoo.read(Source(archive.read(name), name), kind="points")
        assert len(scan) == 34_688 and set(scan.fields["ring"].tolist()) == set(range(32))
