"""Records of cards, results files and a folder of cards of models that were not trained, for tests."""

from __future__ import annotations

import copy
import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from zoo import card_facts, cards, registry

__all__ = [
    "CASES",
    "CLASSIFIED",
    "DETECTED",
    "EVENT_DETECTOR",
    "EVENT_VIT",
    "IMAGE_DETECTOR",
    "NAMES",
    "folder_of",
    "front_matter",
    "publish",
    "results",
    "tables",
    "with_seeds",
]

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
CASES = [(IMAGE_DETECTOR, DETECTED), (EVENT_DETECTOR, DETECTED), (EVENT_VIT, CLASSIFIED)]
NAMES = [name for name, _ in CASES]


def results(base: dict[str, Any], model: str, seed: int | None = None, **changes: Any) -> dict[str, Any]:
    """A results file; changes of metrics go to its one row."""
    made = copy.deepcopy(base) | {"model": model} | ({} if seed is None else {"seed": seed})
    for key, value in changes.items():
        (made if key in made else made["results"][0])[key] = value
    return made


def folder_of(names: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `folder` that of the cards, with a record without numbers or weights for each name."""
    base = cards.read_record("none-vit-t-imagenette")
    assert base is not None
    _weights_are("none", monkeypatch)
    monkeypatch.setattr(cards, "card_folder", lambda name: folder / name)
    for name in names:
        entry = registry.entry(name)
        (folder / name).mkdir()
        record = {**copy.deepcopy(base), "name": name, "parameters": entry.parameters, "evaluation": [], "paper": []}
        record["data"] |= {"name": "Toys", "hub_id": None, "revision": None, "eval_note": ""}
        cards.write_record(name, record)


def publish(names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of `folder_of` count from now on as published with the package."""
    records = [cards.read_record(name) for name in names]
    _weights_are("embedded", monkeypatch)
    for record in records:
        assert record is not None
        record["weights"] |= {"source": "embedded", "sha256": "0" * 64, "size_bytes": 1 << 20, "dtype": "float16"}
        cards.write_record(record["name"], record)


def _weights_are(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = registry.entry
    monkeypatch.setattr(registry, "entry", lambda name: dataclasses.replace(found(name), weights=where))


def with_seeds(name: str, base: dict[str, Any], seeds: tuple[int, ...] = (0, 1, 2), **changes: Any) -> dict[str, Any]:
    """The record of a name with results of some seeds; the main metric rises by a point with each."""
    record = cards.read_record(name)
    assert record is not None
    main_metric = "top1" if base is CLASSIFIED else "map"
    for seed in seeds:
        value = base["results"][0][main_metric] + seed
        record = card_facts.add_evaluation(record, results(base, name, seed, **{main_metric: value}, **changes))
    return record


def front_matter(text: str) -> dict[str, Any]:
    """The metadata of a card."""
    import yaml

    found = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
    assert found
    return dict(yaml.safe_load(found[1]))


def tables(text: str) -> list[list[list[str]]]:
    """Tables as lists of rows of cells, an escaped bar being part of its cell."""
    blocks = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    return [[re.split(r"(?<!\\)\|", line)[1:-1] for line in block.splitlines()] for block in blocks]
