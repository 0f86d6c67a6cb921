"""Cards of models that are measured on several kinds of clips of one size."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from card_records import CLASSIFIED, folder_of, front_matter, publish, tables

import zoo
from zoo import card_facts, cards
from zoo.errors import ConfigError

NAME, OTHER = "pape-video-vit-t-imagenette-motion", "rope-video-vit-t-imagenette-motion"
CONDITIONS = ("16 frames at 16 a second", "32 frames at 16 a second")


def measured(model: str, *top1: float, seed: int = 0) -> dict[str, Any]:
    """A results file with a row for each condition."""
    rows = [
        {"size": 64, "condition": condition, "top1": value, "top5": 99.0, "images_per_s": 5.0}
        for condition, value in zip(CONDITIONS, top1, strict=True)
    ]
    return copy.deepcopy(CLASSIFIED) | {"model": model, "seed": seed, "results": rows}


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    folder_of([NAME], tmp_path, monkeypatch)
    publish([NAME], monkeypatch)
    found = cards.read_record(NAME)
    assert found is not None
    for number in (measured(NAME, 97.0, 91.0), measured(NAME, 98.0, 92.0, seed=1), measured(OTHER, 96.0, 60.0)):
        found = card_facts.add_evaluation(found, number)
    return found


def test_numbers_of_one_size_stay_apart_by_what_they_were_measured_on(record: dict[str, Any]) -> None:
    assert [(item["condition"], item["value"]) for item in record["evaluation"]] == [
        (CONDITIONS[0], 97.5),
        (CONDITIONS[1], 91.5),
    ]
    cards.write_record(NAME, record)
    assert cards.read_record(NAME) == record
    text = zoo.card(NAME).text
    section = text.split("## Comparison")[1].split("## Intended")[0]
    for condition in CONDITIONS:
        assert f"at 64 px, {condition}, in float32" in section
    rows = [[cell.strip() for cell in row] for table in tables(section) for row in table[2:]]
    assert rows == [
        [NAME, "0, 1", "97.5 ± 0.7"],
        [OTHER, "0", "96.0"],
        [NAME, "0, 1", "91.5 ± 0.7"],
        [OTHER, "0", "60.0"],
    ]
    (index,) = front_matter(text)["model-index"]
    metrics = index["results"][0]["metrics"]
    assert [metric["name"] for metric in metrics] == [f"top-1 at 64 px, {condition}" for condition in CONDITIONS]
    assert index["results"][0]["task"]["type"] == "video-classification"


def test_a_condition_is_a_text(record: dict[str, Any]) -> None:
    record["evaluation"][0]["condition"] = ["16"]
    with pytest.raises(ConfigError, match="condition must be a text"):
        cards.check_record(record, NAME)
