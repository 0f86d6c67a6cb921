"""Rows of predictions, without Ray; what Ray adds is `map_batches` over tables of sources."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import zoo
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

    def failing(self: Any, sources: list[str], **options: Any) -> Any:
        if str(SAMPLES[1]) in sources:
            raise DataError("the logits are not finite")
        return call(self, sources, **options)

    monkeypatch.setattr(type(predictor.predictor), "__call__", failing)
    rows = predictor(table(SAMPLES[:3])).to_pylist()
    assert [row["error"] for row in rows] == [None, "the logits are not finite", None]


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
