"""Broken, hostile and missing nuScenes tables and files: errors that name the table and the record."""

from __future__ import annotations

import copy
import json
import os
import random

import numpy as np
import pytest

from modalities.driving.nuscenes.dataset import NuScenes
from modalities.driving.nuscenes.tables import Tables, file_of, read_json_file, whole_number
from tests.driving_tables import write_drive
from zoo.errors import ConfigError, DataError


def _first(table, key, value):
    return lambda tables: tables[table][0].update({key: value})


def _each(table, key, value):
    return lambda tables: [record.update({key: value}) for record in tables[table]]


BROKEN = {
    "no such pose": (_first("sample_data", "ego_pose_token", "gone"), "sample_data l-a-0 refers to ego_pose 'gone'"),
    "token is a list": (
        _first("sample_data", "ego_pose_token", ["x"]),
        "record 'l-a-0': ego_pose_token must be str",
    ),
    "no calibration": (_each("sample_data", "calibrated_sensor_token", "gone"), "sample_data.json.*calibrated_sensor"),
    "no sensor": (_each("calibrated_sensor", "sensor_token", "gone"), "calibrated_sensor k-LIDAR_TOP refers to sensor"),
    "rotation": (_first("ego_pose", "rotation", [0, 0, 0, 0]), "ego_pose.json: record 'p-l-a-0'.*quaternion"),
    "rotation is text": (_first("ego_pose", "rotation", "1000"), "ego_pose.json: record 'p-l-a-0'.*quaternion"),
    "translation": (_first("ego_pose", "translation", [1, 2]), "ego_pose.json.*three finite"),
    "mounting": (_each("calibrated_sensor", "rotation", None), "calibrated_sensor.json.*quaternion"),
    "intrinsics": (_each("calibrated_sensor", "camera_intrinsic", [[1, 2], [3]]), "camera_intrinsic"),
    "timestamp": (_first("sample", "timestamp", "noon"), "sample.json: record 'a-0': timestamp"),
    "time of data": (_first("sample_data", "timestamp", -5), "sample_data.json.*timestamp"),
    "category": (_first("instance", "category_token", "gone"), "instance i-a-0 refers to category 'gone'"),
    "instance": (_first("sample_annotation", "instance_token", 7), "sample_annotation i-a-0-0 refers to instance 7"),
    "size": (_first("sample_annotation", "size", [1, 0, 2]), "sample_annotation.json: record 'i-a-0-0'.*not positive"),
    "size is short": (_first("sample_annotation", "size", [1]), "size must be 3 finite"),
    "place": (
        _first("sample_annotation", "translation", ["a", 1, 2]),
        "record 'i-a-0-0': a translation must",
    ),
    "huge": (_first("sample_annotation", "size", [10**400, 1, 1]), "size must be 3 finite"),
    "huge pose": (_first("ego_pose", "translation", [10**400, 1, 1]), "ego_pose.json.*three numbers"),
    "turn": (_first("sample_annotation", "rotation", [9, 9, 9, 9]), "sample_annotation.json.*quaternion"),
    "attribute": (_first("sample_annotation", "attribute_tokens", ["gone"]), "attribute 'gone'"),
    "attributes": (_first("sample_annotation", "attribute_tokens", ["a", "b"]), "at most one"),
    "next is gone": (_first("sample_annotation", "next", "gone"), "i-a-0-0 .next. refers to sample_annotation 'gone'"),
    "next is itself": (_first("sample_annotation", "next", "i-a-0-0"), "not before and after"),
    "next is another": (_first("sample_annotation", "next", "i-a-1-1"), "of another instance"),
    "scene": (_first("sample", "scene_token", "gone"), "sample a-0 refers to scene 'gone'"),
    "scene has no name": (_first("scene", "name", None), "scene.json.*name must be str"),
    "twice": (lambda t: t["sample"].append(t["sample"][0]), "sample.json: token 'a-0' appears twice"),
    "no token": (lambda t: t["sample"].append({}), "sample.json: record 2 has no token"),
    "no record": (lambda t: t["sample"].append("x"), "sample.json: record 2 has no token"),
    "no list": (lambda t: t.update(sample={"a": 1}), "sample.json: must be a list of records, is a JSON dict"),
    "two key frames": (_each("sample_data", "is_key_frame", True), "a second key frame of LIDAR_TOP"),
    "no table": (lambda t: t.pop("ego_pose"), "lacks the tables ego_pose.json"),
    "climbs": (_first("sample_data", "filename", "../../etc/passwd"), "sample_data l-a-0: the filename .* leads out"),
    "absolute": (_first("sample_data", "filename", "/etc/passwd"), "leads out"),
    "backslash": (_first("sample_data", "filename", "samples\\x.bin"), "leads out"),
    "long": (_first("sample_data", "filename", "a" * 300), "or is no name"),
    "far": (_first("ego_pose", "translation", [1e300, 0, 0]), "ego_pose.json: record 'p-l-a-0'.*three finite"),
    "null": (_first("sample_data", "filename", "samples/\0"), "leads out"),
    "no name": (_first("sample_data", "filename", None), "filename must be a path"),
    "missing": (_first("sample_data", "filename", "samples/none.bin"), "none.bin: cannot be read"),
    "folder": (_first("sample_data", "filename", "samples"), "not a regular file"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_tables(tmp_path, case):
    change, message = BROKEN[case]
    write_drive(tmp_path, scenes=("a",), frames=2, change=change)
    with pytest.raises(DataError, match=message):
        data = NuScenes(tmp_path)
        data.sample("a-0")
        data.sample_tokens("train" if "scene" in case else None)


def test_a_chain_of_sweeps_that_comes_back(tmp_path):
    def change(tables):
        next(row for row in tables["sample_data"] if row["token"] == "l-a-1")["prev"] = "l-a-3"

    write_drive(tmp_path, scenes=("a",), frames=2, change=change)
    with pytest.raises(DataError, match="sample_data.json: record 'l-a-3'.*comes back"):
        NuScenes(tmp_path).sample("a-1")

    def other(tables):
        tables["sample_data"][1]["prev"] = "CAM_FRONT-a-0"

    write_drive(tmp_path / "other", scenes=("a",), frames=2, change=other)
    with pytest.raises(DataError, match="another sensor"):
        NuScenes(tmp_path / "other").sample("a-1")


def test_broken_files(tmp_path):
    root = write_drive(tmp_path, scenes=("a",), frames=2)
    points = root / "samples/LIDAR_TOP/a-0.pcd.bin"
    points.write_bytes(points.read_bytes()[:-7])
    with pytest.raises(DataError, match="a-0.pcd.bin: .* not whole points"):
        NuScenes(root).sample("a-0")
    points.write_bytes(b"")
    assert NuScenes(root).sample("a-0").points.shape == (0, 5)
    (root / "sweeps/LIDAR_TOP/a-2.pcd.bin").unlink()
    with pytest.raises(DataError, match="a-2.pcd.bin"):
        NuScenes(root).sample("a-1")
    sample = NuScenes(root).sample("a-0")
    (root / "samples/CAM_FRONT/a-0.jpg").write_bytes(b"\xff\xd8\xff not a picture")
    with pytest.raises(DataError, match="a-0.jpg"):
        sample.cameras[0].read()
    (root / "samples/CAM_FRONT/a-0.jpg").write_bytes((root / "samples/CAM_BACK/a-0.jpg").read_bytes())
    object.__setattr__(sample.cameras[0], "size", (900, 1600))
    with pytest.raises(DataError, match="the table says 1600 x 900"):
        sample.cameras[0].read()


@pytest.mark.parametrize(
    "text", ["", "[{]", '[{"token": NaN}]', "[" * 100_000, "\udcff", '{"a": 1}', "[[]]", "null"], ids=range(8)
)
def test_tables_that_are_no_tables(tmp_path, text):
    root = write_drive(tmp_path, scenes=("a",), frames=1)
    (root / "v1.0-mini/sample.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError, match="sample.json"):
        NuScenes(root)


def test_what_is_no_data_set(tmp_path):
    with pytest.raises(DataError, match="no folder of nuScenes tables, such as"):
        NuScenes(tmp_path / "gone")
    write_drive(tmp_path, scenes=("a",), frames=1)
    (tmp_path / "v1.0-mini").rename(tmp_path / "one")
    write_drive(tmp_path, scenes=("a",), frames=1)
    with pytest.raises(DataError, match="several folders of tables .one, v1.0-mini."):
        NuScenes(tmp_path)
    data = NuScenes(tmp_path, "one")
    with pytest.raises(DataError, match="no sample 'x'; there are a-0"):
        data.sample("x")
    with pytest.raises(DataError, match="no such folder"):
        NuScenes(tmp_path, "two")
    with pytest.raises(ConfigError, match="version must be"):
        NuScenes(tmp_path, "../one")
    with pytest.raises(ConfigError, match="classes must be"):
        NuScenes(tmp_path, "one", classes=("car", "tram"))
    with pytest.raises(ConfigError, match="missing_images"):
        NuScenes(tmp_path, "one", missing_images="skip")


def test_bounded_files(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(list(range(100))))
    assert read_json_file(path) == list(range(100))
    with pytest.raises(DataError, match="at most 10 are read"):
        read_json_file(path, 10)
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(DataError, match="not a regular file"):
        read_json_file(tmp_path / "pipe.json")
    with pytest.raises(DataError, match="no such folder"):
        Tables(tmp_path / "none")
    assert [whole_number(value) for value in (3, 3.0, 3.5, True, "3", float("inf"), 2**63)] == [3, 3, *[None] * 5]
    assert file_of(tmp_path, "samples/a__b+0800.jpg", "x") == tmp_path / "samples" / "a__b+0800.jpg"
    with pytest.raises(DataError, match="leads out"):
        file_of(tmp_path, "C:/x", "x")


def test_no_changed_value_escapes(tmp_path):
    """Values of every kind in random fields: read, or refused with an error of ours."""
    root = write_drive(tmp_path, scenes=("a",), frames=2)
    tables = {path: json.loads(path.read_text()) for path in sorted((root / "v1.0-mini").glob("*.json"))}
    values = [None, True, -1, 1.5, 10**400, 1e308, "", "x", "a-0", [], {}, [1e308] * 3, [0] * 4, [[1]], [10**400] * 3]
    rng, refused = random.Random(0), 0
    for path in rng.choices([path for path, table in tables.items() if table], k=80):
        table = copy.deepcopy(tables[path])
        record = rng.choice(table)
        record[rng.choice(sorted(record))] = rng.choice(values)
        path.write_text(json.dumps(table))
        try:
            data = NuScenes(root)
            for token in data.sample_tokens():
                sample = data.sample(token, sweeps=3)
                assert sample.points is None or np.isfinite(sample.points).all()
        except DataError:
            refused += 1
        path.write_text(json.dumps(tables[path]))
    assert 20 < refused < 80
