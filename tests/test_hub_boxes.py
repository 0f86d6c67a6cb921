"""Pictures with a column `objects`, as data sets of the Hub have them: every layout, and everything that is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from detection_toys import NAMES, TINY, toy
from finetune_toys import SHORT, base

import zoo
from modalities.image.detection_data import boxed_pictures
from modalities.image.hub_boxes import corner_columns
from zoo.cli.main import main
from zoo.errors import ConfigError, DataError
from zoo.finetune.report import Report

Row = dict[str, Any]
CLASS = {"names": NAMES, "_type": "ClassLabel"}
VALUE = {"dtype": "float32", "_type": "Value"}
# What versions of `datasets` write for objects with a field `category`.
FEATURES: dict[str, Any] = {
    "sequence of a dict": {"feature": {"bbox": {"feature": VALUE, "_type": "Sequence"}, "category": CLASS}},
    "dict of sequences": {"category": {"feature": CLASS, "_type": "Sequence"}},
    "list": [{"category": CLASS}],
    "lists of version 4": {"feature": {"category": {"feature": CLASS, "_type": "List"}}, "_type": "List"},
}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "zoo-cache"))


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> str:
    return base(tmp_path_factory.mktemp("base"), "pape-vit-det-n-bccd", **TINY, input_size=(64, 64))


def row(index: int = 0, *, corners: bool = False, category: str = "category", names: bool = False, **more: Any) -> Row:
    """A row of a toy picture; `objects` as a dict of lists."""
    image, boxes, labels = toy(index)
    stored = boxes if corners else [[x, y, right - x, bottom - y] for x, y, right, bottom in boxes]
    categories = [NAMES[label] for label in labels] if names else labels
    return {"image": image, "objects": {"bbox": stored, category: categories}, **more}


def write(path: Path, rows: list[Row], features: Any = FEATURES["dict of sequences"], structs: bool = False) -> Path:
    """A Parquet file of such rows; with `structs` objects are lists of structs."""
    cells = []
    for one in rows:
        objects = one["objects"]
        if structs:
            objects = [dict(zip(objects, values, strict=True)) for values in zip(*objects.values(), strict=True)]
        cells.append({**one, "image": {"bytes": one["image"], "path": "a.png"}, "objects": objects})
    table = pa.Table.from_pylist(cells)
    if features is not None:
        text = json.dumps({"info": {"features": {"objects": features}}})
        table = table.replace_schema_metadata({"huggingface": text})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    return path.parent


def found(report: Report) -> dict[str, tuple[bool, int]]:
    return {problem.what: (problem.fatal, problem.count) for problem in [*report.errors, *report.notes]}


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("structs", [False, True])
def test_layouts(tmp_path: Path, features: str, structs: bool) -> None:
    data = write(
        tmp_path / "data" / "train-00000-of-00001.parquet", [row(i) for i in range(5)], FEATURES[features], structs
    )
    packed = boxed_pictures(data.parent, "train")
    wanted = [toy(index) for index in range(5)]
    assert packed.class_names == NAMES and packed.counts.tolist() == [len(labels) for *_, labels in wanted]
    assert np.allclose(packed.boxes, [box for _, boxes, _ in wanted for box in boxes])
    assert packed.labels.tolist() == [label for *_, labels in wanted for label in labels]
    assert not packed.crowd.any() and packed.meta["dropped_boxes"] == 0


@pytest.mark.parametrize("category", ["category", "categories", "category_id", "label", "labels"])
def test_names_of_the_category(tmp_path: Path, category: str) -> None:
    features = {category: {"feature": CLASS, "_type": "Sequence"}}
    packed = boxed_pictures(write(tmp_path / "train.parquet", [row(category=category)], features), "train")
    assert packed.class_names == NAMES and packed.labels.tolist() == [0, 1]


def test_categories_without_names_or_as_text(tmp_path: Path) -> None:
    packed = boxed_pictures(write(tmp_path / "a" / "train.parquet", [row()], features=None), "train")
    assert packed.class_names is None and packed.num_classes == 2
    # Text is numbered over all splits: what only validation has must not shift the others.
    write(tmp_path / "b" / "train.parquet", [row(names=True)], features=None)
    other = row(1, names=True)
    other["objects"]["category"] = ["ant", "bar"]
    data = write(tmp_path / "b" / "validation.parquet", [other], features=None)
    train, validation = (boxed_pictures(data, split) for split in ("train", "validation"))
    assert train.class_names == validation.class_names == ["ant", "bar", "square"]
    assert train.labels.tolist() == [2, 1] and validation.labels.tolist() == [0, 1]
    write(tmp_path / "b" / "validation.parquet", [row(1, names=True)], features=None)
    again = boxed_pictures(data, "train")  # The same file, other numbers: not those of the cache.
    assert again.class_names == ["bar", "square"] and again.labels.tolist() == [1, 0]


def test_crowds_areas_ids_and_sizes(tmp_path: Path) -> None:
    first, second = row(0, image_id=7, width=64, height=64), row(1, image_id=8, width=64, height=64)
    for one in (first, second):
        one["objects"] |= {"id": [1, 2], "area": [5.0, None], "iscrowd": [False, True]}
    packed = boxed_pictures(write(tmp_path / "a" / "train.parquet", [first, second]), "train")
    assert packed.crowd.tolist() == [False, True] * 2
    sides = packed.boxes[1, 2:] - packed.boxes[1, :2]
    assert packed.area[0] == 5 and packed.area[1] == sides.prod()
    with pytest.raises(DataError, match="row 1: image_id 7 occurs twice"):
        boxed_pictures(write(tmp_path / "b" / "train.parquet", [first, {**second, "image_id": 7}]), "train")
    with pytest.raises(DataError, match="its annotations are for 63 x 64"):
        boxed_pictures(write(tmp_path / "c" / "train.parquet", [{**first, "width": 63}]), "train")


def changed(**objects: Any) -> Row:
    one = row(1)
    one["objects"] |= objects
    return one


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (changed(category=[0, 2]), r"row 1: category 2 is not a class of 0\.\.1"),
        (changed(category=[0, None]), "row 1: category None is not a class"),
        (changed(category=[-1, 0]), "row 1: category -1"),
        (changed(category=[0]), "row 1: objects has lists of different lengths: 2 bbox, 1 category"),
        (changed(bbox=[[1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]]), "row 1: bbox must be four numbers"),
        (changed(bbox=[None, [1.0, 2.0, 3.0, 4.0]]), "row 1: bbox must be four numbers"),
        (changed(bbox=[[1.0, 2.0, 3.0, float("inf")]] * 2), "row 1: bbox has coordinates that are not finite"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, bad: Row, message: str) -> None:
    with pytest.raises(DataError, match=message):
        boxed_pictures(write(tmp_path / "train.parquet", [row(), bad]), "train")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"objects": [{"category": [0]}]}, "objects has no field 'bbox'; it has category"),
        ({"objects": [{"bbox": [[1.0, 1, 1, 1]]}]}, r"no field of categories \(category, categories, .*it has bbox"),
        ({"objects": ["text"]}, "objects is string; expected a struct of lists"),
        ({"objects": [{"bbox": [[1.0, 1, 1, 1]], "category": 1}]}, "objects.category is int64; expected a list"),
        ({"objects": [{"bbox": [[1.0, 1, 1, 1]], "category": [0]}], "image": None}, "no column 'image'"),
    ],
)
def test_missing_columns_and_fields(tmp_path: Path, detector: str, table: dict[str, Any], message: str) -> None:
    columns = {"image": [{"bytes": row()["image"]}], **table}
    pq.write_table(pa.table({key: v for key, v in columns.items() if v is not None}), tmp_path / "train.parquet")
    with pytest.raises(DataError, match=message):
        boxed_pictures(tmp_path, "train")
    report = zoo.finetune.check(detector, tmp_path)
    assert found(report) == {"annotations that cannot be used": (True, 1)}


def test_all_faults_at_once(tmp_path: Path, detector: str) -> None:
    objects = {
        "bbox": [[60.0, 5, 40, 5], [200.0, 200, 5, 5], [9.0, 9, 0, 5], [1.0, 2, 3], [1.0, 1, float("nan"), 4]]
        + [[5.0] * 4] * 3,
        "category": [0, 1, 0, 1, 0, 2, None, 1],
    }
    rows = [row(0, image_id=1), {**row(1, image_id=1), "objects": objects}, {**changed(category=[0]), "image_id": 3}]
    rows += [
        {**row(2, image_id=4), "image": b"no picture"},
        {**row(3, image_id=5), "objects": {"bbox": [], "category": []}},
    ]
    write(tmp_path / "train.parquet", rows)
    write(tmp_path / "validation.parquet", [row(0, image_id=9)])
    assert found(zoo.finetune.check(detector, tmp_path)) == {
        "ids of pictures that occur twice": (True, 1),
        "pictures with another number of categories than boxes": (True, 1),
        "categories that are missing or no class": (True, 2),
        "boxes that are not four numbers": (True, 1),
        "boxes with numbers that are not finite": (True, 1),
        "pictures that are missing or cannot be read": (True, 1),
        "samples both in training and in validation": (True, 1),
        "boxes that reach beyond their picture, which are cut": (False, 1),
        "boxes outside of their picture, which are left out": (False, 1),
        "boxes without area, which are left out": (False, 1),
        "pictures without boxes": (False, 1),
    }


def test_no_boxes_at_all(tmp_path: Path, detector: str) -> None:
    empty = [{**row(index), "objects": {"bbox": [], "category": []}} for index in range(3)]
    schema = pa.schema(
        [
            ("image", pa.struct([("bytes", pa.binary())])),
            ("objects", pa.struct([("bbox", pa.list_(pa.list_(pa.float32()))), ("category", pa.list_(pa.int64()))])),
        ]
    )
    rows = [{"image": {"bytes": one["image"]}, "objects": one["objects"] if i else None} for i, one in enumerate(empty)]
    pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / "train.parquet")
    assert found(zoo.finetune.check(detector, tmp_path))["no boxes to train on"] == (True, 1)
    assert boxed_pictures(tmp_path, "train").counts.tolist() == [0, 0, 0]


def test_corners_are_refused_and_rewritten(tmp_path: Path, detector: str) -> None:
    data = tmp_path / "set"
    for split, offset in (("train", 0), ("validation", 20)):
        write(data / f"{split}.parquet", [row(offset + index, corners=True) for index in range(4)])
    with pytest.raises(
        DataError, match=r"x1, y1, x2, y2: as x, y, width, height \d boxes leave .*corner_columns"
    ) as error:
        boxed_pictures(data, "train")
    assert "\n" not in str(error.value) and not list((tmp_path / "zoo-cache").glob("packed/*/meta.json"))
    problems = zoo.finetune.check(detector, data).errors
    assert [problem.what for problem in problems] == ["boxes in another form"] and problems[0].count == 2
    files = corner_columns(data, tmp_path / "out")
    assert [file.name for file in files] == ["train.parquet", "validation.parquet"]
    packed = boxed_pictures(tmp_path / "out", "train")
    assert packed.class_names == NAMES and np.array_equal(packed.boxes[:2], np.float32(toy(0)[1]))
    assert zoo.finetune.check(detector, tmp_path / "out").errors == []
    with pytest.raises(ConfigError, match="not empty"):
        corner_columns(data, tmp_path / "out")
    with pytest.raises(DataError, match="no Parquet files of a split"):
        corner_columns(tmp_path / "out" / "..", tmp_path / "other")


def test_boxes_drawn_beyond_the_edge_are_no_corners(tmp_path: Path) -> None:
    rows = [row(index) for index in range(4)]
    rows[0]["objects"]["bbox"][0] = [10.0, 10.0, 60.0, 50.0]  # Fits as corners alone; the others say otherwise.
    packed = boxed_pictures(write(tmp_path / "train.parquet", rows), "train")
    assert packed.boxes[0].tolist() == [10, 10, 64, 60]


def test_shares_are_refused(tmp_path: Path) -> None:
    one = row()
    one["objects"]["bbox"] = [[0.1, 0.2, 0.3, 0.4], [0.5, 0.5, 0.2, 0.2]]
    with pytest.raises(DataError, match="seem to be shares of the picture's sides"):
        boxed_pictures(write(tmp_path / "train.parquet", [one]), "train")


def test_fine_tuned_and_measured(
    tmp_path: Path, detector: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "datasets--me--cells" / "snapshots" / "0123abcd"
    write(data / "data" / "train-00000-of-00001.parquet", [row(i) for i in range(10)])
    write(data / "data" / "validation-00000-of-00001.parquet", [row(50 + i) for i in range(3)])
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda repo_id, **_: str(data))
    made = zoo.finetune.plan(detector, "hf-hub:me/cells", **SHORT)
    assert made.found.layout == "Parquet files with objects" and made.found.classes == tuple(NAMES)
    result = zoo.finetune(detector, "hf-hub:me/cells", tmp_path / "out", **{**SHORT, "epochs": 2})
    assert result.finished
    model = zoo.load(f"local-dir:{tmp_path / 'out'}")
    assert model.config["labels"] == NAMES and model.config["name"].endswith("-cells")
    arguments = ["--data", "hf-hub:me/cells", "--device", "cpu", "--quiet"]
    with pytest.raises(SystemExit) as stop:
        main(["eval", f"local-dir:{tmp_path / 'out'}", *arguments, "--json"])
    assert not stop.value.code
    report = json.loads(capsys.readouterr().out)
    assert (report["dataset"], report["images"]) == ("cells", 3) and "map" in report["results"][0]
    # `zoo train` repeats the run from the name on the Hub.
    with pytest.raises(SystemExit) as stop:
        main(["train", str(tmp_path / "out" / "recipe.yaml"), "--out", str(tmp_path / "again"), *arguments])
    assert not stop.value.code
    first, again = (zoo.load(f"local-dir:{tmp_path / name}").state_dict() for name in ("out", "again"))
    assert all(torch.equal(first[key], again[key]) for key in first)
