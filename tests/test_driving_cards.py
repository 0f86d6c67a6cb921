"""Cards of driving models: the metrics of nuScenes in words, tables and the form the Hub reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from card_records import DETECTED, folder_of, front_matter, publish, results, tables

from zoo import card_facts, cards

NAME = "pape-fusion-n-simdrive"
ROW = {"size": [128, 352], "map": 61.25, "nds": 58.5, "mate": 0.31, "mave": 1.7, "map/car": 80.0, "images_per_s": 9.0}
REPORT = DETECTED | {"results": [ROW, ROW | {"map": 40.0, "condition": "without lidar"}]}


def test_a_card_shows_map_and_nds_with_and_without_sensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of([NAME], tmp_path, monkeypatch)
    publish([NAME], monkeypatch)
    record = cards.read_record(NAME)
    assert record is not None
    cards.write_record(NAME, card_facts.add_evaluation(record, results(REPORT, NAME, 0)))
    text = cards.write_card(NAME).read_text()
    assert "The metrics of nuScenes" in text and "COCO" not in text
    assert "12 key frames, at 128 x 352 px (height x width), without lidar, in float32" in text
    rows = [[cell.strip() for cell in row] for table in tables(text) for row in table]
    assert ["NDS", "58.5"] in [row[:2] for row in rows] and ["mAP of car", "80.0"] in [row[:2] for row in rows]
    (entry,) = front_matter(text)["model-index"]
    (found,) = entry["results"]
    assert found["task"]["name"] == "3D Object Detection"
    assert {(metric["type"], metric["value"]) for metric in found["metrics"]} >= {("mAP", 61.25), ("NDS", 58.5)}
    assert any(metric["name"].endswith("without lidar") for metric in found["metrics"])
