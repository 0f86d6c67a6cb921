"""Pictures with boxes on disk: Parquet, COCO's layout, what is done with bad boxes, and the packed file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from detection_toys import NAMES, SIZE, coco_of, toy, write_boxes, write_coco, write_toys

import modalities.image.packing as packing
from modalities.image.detection_data import boxed_pictures, open_packed_boxes
from modalities.image.detection_sources import open_boxed_source
from zoo.errors import DataError
from zoo.reading import read


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "zoo-cache"))


def record(index: int = 0, **changes: Any) -> dict[str, Any]:
    return {**dict(zip(("image", "boxes", "labels"), toy(index), strict=True)), **changes}


def test_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_toys(tmp_path / "set")
    packed = boxed_pictures(data)
    assert len(packed) == 10 and packed.class_names == NAMES and packed.num_classes == 2
    assert packed.counts.tolist() == [2, 2, 2, 2, 0, 2, 2, 2, 2, 0] and not packed.crowd.any()
    for index in (0, 4, 9):
        encoded, boxes, labels = toy(index)
        assert np.array_equal(packed[index].transpose(1, 2, 0), read(encoded, kind="image").rgb)
        own = packed.objects(index)
        assert packed.boxes[own].tolist() == boxes and packed.labels[own].tolist() == labels
        assert packed.area[own].tolist() == [(x2 - x1) * (y2 - y1) for x1, y1, x2, y2 in boxes]
    with monkeypatch.context() as patch:
        patch.setattr(packing, "decode", lambda *_: pytest.fail("decoded again"))
        assert np.array_equal(boxed_pictures(data).boxes, packed.boxes)
    boxes_, labels_, mask = packed.targets(np.array([4, 1]))
    assert boxes_.shape == (2, 2, 4) and mask.tolist() == [[False, False], [True, True]]
    assert boxes_[1].tolist() == toy(1)[1] and labels_[1].tolist() == [0, 1]


def test_pictures_are_shrunk_and_boxes_follow(tmp_path: Path) -> None:
    records = [record(0), dict(zip(("image", "boxes", "labels"), toy(1, (96, 128)), strict=True))]
    data = write_boxes(tmp_path / "train.parquet", records)
    packed = boxed_pictures(data, size=(64, 64))
    assert packed.shapes.tolist() == [[64, 64], [48, 64]] and packed.sizes.tolist() == [[64, 64], [96, 128]]
    assert packed.boxes[packed.objects(1)].tolist() == records[1]["boxes"]  # In pixels of the picture itself.
    boxes, _, mask = packed.targets(np.arange(2))
    assert mask.all() and np.allclose(boxes[0], records[0]["boxes"])
    assert np.allclose(boxes[1], np.array(records[1]["boxes"]) / 2)
    x1, y1, x2, y2 = (int(v) for v in boxes[1, 0])
    inside = packed[1][:, y1 + 2 : y2 - 2, x1 + 2 : x2 - 2]
    assert np.abs(inside.reshape(3, -1).mean(axis=1) - (230, 200, 40)).max() < 8


def test_coco_layout(tmp_path: Path) -> None:
    data = write_coco(tmp_path / "coco")
    packed = boxed_pictures(data, "train")
    assert packed.class_names == ["square", "bar"] and len(packed) == 8  # By category id.
    assert packed.counts[:5].tolist() == [2, 2, 2, 2, 0]
    assert packed.crowd.tolist()[:2] == [True, False] and set(packed.area.tolist()) == {100.0}
    assert packed.labels[:2].tolist() == [0, 1] and packed.boxes[:2].tolist() == toy(0)[1]
    boxes, labels, mask = packed.targets(np.array([0, 1]))  # The crowd is not trained on.
    assert mask.tolist() == [[True, False], [True, True]] and labels[0, 0] == 1
    assert boxes[0, 0].tolist() == toy(0)[1][1]
    assert len(boxed_pictures(data, "validation")) == len(boxed_pictures(data, "val")) == 4
    raw = boxed_pictures(data, "train", category_ids=True)
    assert raw.num_classes == 8 and raw.labels[:2].tolist() == [3, 7]
    assert raw.class_names == [*(f"unused {i}" for i in range(3)), "square", "unused 4", "unused 5", "unused 6", "bar"]


def test_coco_by_a_relative_path_is_the_same_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_coco(tmp_path / "coco")
    monkeypatch.chdir(tmp_path)
    relative, absolute = boxed_pictures("coco", "train"), boxed_pictures(data, "train")
    assert relative.meta["source_sha256"] == absolute.meta["source_sha256"] and len(relative) == len(absolute) == 8


@pytest.mark.parametrize("layout", ["beside", "images", "split", "file", "roboflow"])
def test_other_layouts_of_coco(tmp_path: Path, layout: str) -> None:
    values, files = coco_of(3)
    pictures = {"images": "images/train", "split": "train", "roboflow": "train"}.get(layout, ".")
    (tmp_path / pictures).mkdir(parents=True, exist_ok=True)
    name = "train/_annotations.coco.json" if layout == "roboflow" else "instances_train.json"
    (tmp_path / name).write_text(json.dumps(values))
    for file, data in files.items():
        (tmp_path / pictures / file).write_bytes(data)
    packed = boxed_pictures(tmp_path / name if layout == "file" else tmp_path, "train")
    assert len(packed) == 3 and packed.counts.tolist() == [2, 2, 2]


def test_bad_boxes(tmp_path: Path) -> None:
    boxes = [[-5.0, 10.0, 20.0, 30.0], [50.0, 50.0, 80.0, 80.0], [70.0, 5.0, 90.0, 9.0], [9.0, 9.0, 9.0, 20.0]]
    boxes += [[30.0, 30.0, 20.0, 40.0]]
    data = write_boxes(tmp_path / "train.parquet", [record(boxes=boxes, labels=[0, 1, 0, 1, 0])])
    with pytest.warns(UserWarning, match="3 boxes without area in their picture left out"):
        packed = boxed_pictures(data)
    assert packed.boxes.tolist() == [[0, 10, 20, 30], [50, 50, 64, 64]] and packed.labels.tolist() == [0, 1]
    assert packed.meta["dropped_boxes"] == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"boxes": [[0.0, 0.0, float("nan"), 5.0]], "labels": [0]}, "row 1: a box has coordinates that are not finite"),
        ({"boxes": [[0.0, 0.0, 5.0]], "labels": [0]}, "row 1: boxes, labels"),
        ({"labels": [0]}, "row 1: 2 boxes, 1 labels"),
        ({"labels": [0, 2]}, r"row 1: label 2 is not a class number of 0\.\.1"),
        ({"labels": [0, -1]}, "row 1: label -1"),
        ({"image_id": "a"}, "image_id 'a' occurs twice"),
        ({"image": b"no picture"}, "row 1: .*skip_bad"),
        ({"width": 32}, "row 1: the picture is 64 x 64 pixels, its annotations are for 32 x 64"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    good = record(0, image_id="a", width=SIZE, height=SIZE)
    data = write_boxes(tmp_path / "train.parquet", [good, {**good, "image_id": "b", **change}])
    with pytest.raises(DataError, match=message):
        boxed_pictures(data)
    if "skip_bad" in message or "annotations" in message:
        with pytest.warns(UserWarning, match="1 damaged pictures left out"):
            assert len(boxed_pictures(data, skip_bad=True)) == 1


def _duplicate(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda values: values[key].append(dict(values[key][0]))


def _set(key: str, **changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda values: values[key][0].update(changes)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_duplicate("images"), "picture id 10 occurs twice"),
        (_duplicate("annotations"), "annotation id 1 occurs twice"),
        (_duplicate("categories"), "category id 7 occurs twice"),
        (_set("annotations", image_id=99), "annotation 1 is of picture 99, which is not there"),
        (_set("annotations", category_id=5), "annotation 1 is of category 5, which is not there"),
        (_set("annotations", bbox=[1, 2, 3]), "annotation 1: bbox must be four numbers"),
        (_set("annotations", bbox=[1, 2, float("inf"), 4]), "not finite"),
        (_set("annotations", bbox=[1, 2, "3", 4]), "annotation 1: bbox must be four numbers"),
        (_set("images", file_name="../../secret.png"), "leaves the folder"),
        (_set("images", file_name="/etc/passwd"), "leaves the folder"),
        (_set("images", file_name="gone.png"), "gone.png: the picture is missing; looked in .*train2017"),
        (lambda values: values.pop("categories"), "not COCO annotations of boxes"),
        (lambda values: values["categories"].clear(), "no categories"),
        (lambda values: values.update(images={"a": 1}), "not COCO annotations of boxes"),
        (lambda values: values["images"][0].update(id=[1]), "not COCO annotations of boxes"),
    ],
)
def test_bad_coco_annotations(tmp_path: Path, damage: Callable[[dict[str, Any]], Any], message: str) -> None:
    data = write_coco(tmp_path / "coco")
    path = data / "annotations" / "instances_train2017.json"
    values = json.loads(path.read_text())
    damage(values)
    path.write_text(json.dumps(values))
    with pytest.raises(DataError, match=message):
        boxed_pictures(data)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\xfe", b'{"images": 1, "annotations": 2, "categories": 3}']
)
def test_files_that_are_no_annotations(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "instances_train.json").write_bytes(content)
    with pytest.raises(DataError, match="not COCO annotations of boxes"):
        boxed_pictures(tmp_path)


def test_what_is_looked_for_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such data"):
        open_boxed_source(tmp_path / "nowhere", "train")
    with pytest.raises(DataError, match=r"no split 'train'; expected train\.parquet .* annotations/instances_train"):
        open_boxed_source(tmp_path, "train")
    for year in (2014, 2017):
        (tmp_path / f"instances_train{year}.json").write_text("{}")
    with pytest.raises(DataError, match="several annotations"):
        open_boxed_source(tmp_path, "train")
    write_boxes(tmp_path / "train.parquet", [record()])
    with pytest.raises(DataError, match="category_ids is for COCO annotations"):
        open_boxed_source(tmp_path, "train", category_ids=True)


@pytest.mark.parametrize("name", ["boxes", "labels", "counts", "crowd", "area", "sizes", "shapes", "pixels"])
def test_damaged_packed_file_is_found_and_repaired(tmp_path: Path, name: str) -> None:
    data = write_toys(tmp_path / "set", train=3)
    whole = boxed_pictures(data)
    pixels = np.array(whole.pixels)
    (folder,) = (tmp_path / "zoo-cache" / "packed").iterdir()
    path = folder / ("pixels.u8" if name == "pixels" else f"{name}.npy")
    content = bytearray(path.read_bytes())
    content[-1] ^= 255
    path.write_bytes(content)
    with pytest.raises(DataError, match="damaged packed pictures"):
        open_packed_boxes(folder)
    again = boxed_pictures(data)
    assert np.array_equal(again.boxes, whole.boxes) and np.array_equal(again.pixels, pixels)
    assert np.array_equal(boxed_pictures(folder).labels, whole.labels)


def test_real_sets(shared: Path) -> None:
    expected = {"bccd": ([2381, 214, 209], 28), "coco-sample": (None, 14)}
    for name, (classes, most) in expected.items():
        packed = boxed_pictures(shared / "data" / name, "train", size=(64, 64))
        if classes:
            assert np.bincount(packed.labels).tolist() == classes
        else:
            assert packed.crowd.sum() == 1 and packed.num_classes == 80 and packed.class_names[0] == "person"
        assert packed.targets(np.arange(len(packed)))[0].shape[1] == most and packed.meta["dropped_boxes"] == 0
