"""Rows of predictions, without Ray; what Ray adds is `map_batches` over tables of sources."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import zoo
from zoo import batch_inference
from zoo.batch_inference import RowPredictor, predict_files, row_schema
from zoo.errors import ConfigError, DataError, MissingDependencyError

SAMPLES = sorted((Path(__file__).parents[1] / "samples").glob("*.jpg"))


def table(sources: list[Any]) -> pa.Table:
    return pa.table({"source": pa.array(map(str, sources), pa.string())})


def test_rows_are_the_results_and_failures_in_order(tmp_path: Path) -> None:
    broken, missing = tmp_path / "broken.jpg", tmp_path / "missing.jpg"
    broken.write_bytes(SAMPLES[0].read_bytes()[:300])
    sources = [SAMPLES[0], broken, SAMPLES[1], missing, broken, SAMPLES[0]]
    rows = RowPredictor("pape-vit-n-imagenette", batch_size=2, top_k=3, device="cpu")(table(sources))
    assert rows.schema == row_schema() and rows.column("source").to_pylist() == [str(s) for s in sources]
    found = rows.to_pylist()
    expected = zoo.predictor("pape-vit-n-imagenette", top_k=3, device="cpu")(SAMPLES[:2], batch_size=2)
    for row, result in zip((found[0], found[2], found[5]), (*expected, expected[0]), strict=True):
        assert row["labels"] == list(result.labels) and row["indices"] == list(result.indices)
        assert row["scores"] == pytest.approx(result.scores, abs=1e-5) and row["boxes"] is None
        assert (row["height"], row["width"]) == result.size and row["error"] is None
    for place, name in ((1, "broken.jpg"), (3, "missing.jpg"), (4, "broken.jpg")):
        assert name in found[place]["error"] and "\n" not in found[place]["error"]
        assert found[place]["labels"] is None and found[place]["scores"] is None


def test_nothing_but_failures(tmp_path: Path) -> None:
    rows = RowPredictor("pape-vit-n-imagenette", device="cpu")(table([tmp_path / "a.jpg", tmp_path / "b.jpg"]))
    assert [row["error"] is None for row in rows.to_pylist()] == [False, False]


def test_one_picture_that_the_model_fails_on_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = RowPredictor("pape-vit-n-imagenette", device="cpu")
    call = type(predictor.predictor).__call__

    def failing(self: Any, sources: list[Any], **options: Any) -> Any:
        if str(SAMPLES[1]) in [source.name for source in sources]:
            raise DataError("the logits are not finite")
        return call(self, sources, **options)

    monkeypatch.setattr(type(predictor.predictor), "__call__", failing)
    rows = predictor(table(SAMPLES[:3])).to_pylist()
    assert [row["error"] for row in rows] == [None, "the logits are not finite", None]


def test_a_source_has_one_row_whatever_it_names(tmp_path: Path) -> None:
    many, pattern = tmp_path / "many", tmp_path / "photo[1].jpg"
    many.mkdir()
    for sample in SAMPLES[:3]:
        shutil.copy(sample, many)
    shutil.copy(SAMPLES[2], pattern)
    sources = [many, SAMPLES[3], f"{many}/*.jpg", pattern, "s3://bucket/a.jpg", "", SAMPLES[0]]
    rows = RowPredictor("pape-vit-n-imagenette", device="cpu", top_k=1)(table(sources)).to_pylist()
    assert [row["source"] for row in rows] == [str(source) for source in sources]
    expected = zoo.predictor("pape-vit-n-imagenette", device="cpu", top_k=1)([SAMPLES[i] for i in (3, 2, 0)])
    assert [row["labels"] for row in rows if not row["error"]] == [list(result.labels) for result in expected]
    assert [row["error"] is None for row in rows] == [False, True, False, True, False, False, True]
    assert "is a folder" in rows[0]["error"] and "addresses are not read" in rows[4]["error"]


def test_what_is_finished_is_not_done_again(tmp_path: Path) -> None:
    settings = {"model": "a", "top_k": 3}
    batch_inference._claim(tmp_path / "out", settings)
    assert batch_inference._finished(tmp_path / "out") == set()
    rows = [{"source": "a.jpg", "labels": ["x"]}, {"source": "b.jpg", "error": "damaged"}]
    pq.write_table(pa.Table.from_pylist(rows, schema=row_schema()), tmp_path / "out" / "0.parquet")
    whole = (tmp_path / "out" / "0.parquet").read_bytes()
    (tmp_path / "out" / "1.parquet").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "out" / "2.parquet").touch()
    batch_inference._claim(tmp_path / "out", dict(reversed(settings.items())))
    with pytest.warns(UserWarning, match=r"[12]\.parquet: not complete, removed"):
        assert batch_inference._finished(tmp_path / "out") == {"a.jpg", "b.jpg"}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["0.parquet", "_settings.json"]
    with pytest.raises(ConfigError, match="of another model or other options"):
        batch_inference._claim(tmp_path / "out", settings | {"top_k": 5})
    with pytest.raises(ConfigError, match="choose a new or empty folder"):
        batch_inference._claim(tmp_path, settings)


def test_detectors_give_boxes(tmp_path: Path) -> None:
    zoo.save(zoo.load("pape-vit-det-n-bccd", pretrained=False), tmp_path / "model")
    predictor = RowPredictor(f"local-dir:{tmp_path / 'model'}", device="cpu", min_score=0.0, top_k=4)
    (row,) = predictor(table(SAMPLES[:1])).to_pylist()
    assert row["error"] is None and len(row["boxes"]) == len(row["scores"]) == len(row["labels"]) <= 4
    assert row["boxes"] and all(len(box) == 4 for box in row["boxes"])


def test_what_cannot_be_done_is_said_before_ray_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="rows are for image classification and detection, not points"):
        RowPredictor("pape-ptv3-n-modelnet10")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'pape-zoo\[ray\]'"):
        predict_files(SAMPLES, "pape-vit-n-imagenette", tmp_path / "out")
