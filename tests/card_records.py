"""Records of cards, results files and a folder of cards of models that were not trained, for tests."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from zoo import cards, registry

__all__ = ["CLASSIFIED", "DETECTED", "EVENT_DETECTOR", "EVENT_VIT", "IMAGE_DETECTOR", "folder_of", "publish", "results"]

IMAGE_DETECTOR = "pape-vit-det-n-bccd"
EVENT_VIT = "pape-event-vit-n-nmnist1100"
EVENT_DETECTOR = "pape-event-det-n-nmnist-canvas"

DETECTED: dict[str, Any] = {
    "name": "local-dir:/tmp/run",
    "task": "detection",
    "dataset": "toys",
    "split": "test",
    "images": 12,
    "command": "zoo eval local-dir:/tmp/run --data /data/toys --split test",
    "device": "a processor",
    "dtype": "float32",
    "results": [
        {
            "size": [240, 320],
            "map": 50.004,
            "ap50": 80.0,
            "ap75": 60.0,
            "ar": 70.0,
            "map/disc": 40.0,
            "map/bar": 60.0,
            "images_per_s": 3.0,
        }
    ],
}
CLASSIFIED: dict[str, Any] = {
    **{key: value for key, value in DETECTED.items() if key != "results"},
    "task": "classification",
    "results": [{"size": [34, 34], "top1": 90.0, "top5": 99.0, "images_per_s": 5.0}],
}


def results(base: dict[str, Any], model: str, seed: int | None = None, **changes: Any) -> dict[str, Any]:
    """A results file; changes of metrics go to its one row."""
    made = copy.deepcopy(base) | {"model": model} | ({} if seed is None else {"seed": seed})
    for key, value in changes.items():
        (made if key in made else made["results"][0])[key] = value
    return made


def folder_of(names: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `folder` that of the cards, with a record without numbers for each name."""
    base = cards.read_record("none-vit-t-imagenette")
    assert base is not None
    monkeypatch.setattr(cards, "card_folder", lambda name: folder / name)
    for name in names:
        entry = registry.entry(name)
        (folder / name).mkdir()
        record = {**copy.deepcopy(base), "name": name, "parameters": entry.parameters, "evaluation": [], "paper": []}
        record["weights"]["source"] = entry.weights
        record["data"] |= {"name": "Toys", "hub_id": None, "revision": None, "eval_note": ""}
        cards.write_record(name, record)


def publish(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models without weights count as published with the package."""
    found = registry.entry
    monkeypatch.setattr(registry, "entry", lambda name: dataclasses.replace(found(name), weights="embedded"))
