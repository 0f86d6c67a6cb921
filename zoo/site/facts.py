"""What the site says about every registered model, from the registry and the records of cards, as plain data."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from zoo import registry
from zoo.card_metrics import digits, heading, size_text, unit
from zoo.cards import read_record

__all__ = ["DATA", "MODALITIES", "SIZES", "WEIGHTS", "encoding_name", "model_facts", "models"]

MODALITIES = {
    "image": "Images",
    "video": "Video",
    "events": "Event cameras",
    "points": "Point clouds",
    "driving": "Driving scenes",
    "sequence": "Sequences",
}
SIZES = {"n": "n (nano)", "t": "t (tiny)", "s": "s (small)", "b": "b (base)"}
# Word at the end of a name -> training data. The longest word that fits counts (`imagenette-motion`).
DATA = {
    "als3": "ALS-3 (airborne lidar)",
    "bccd": "BCCD (blood cells)",
    "coco": "COCO",
    "dvsgesture": "DvsGesture",
    "gen1": "GEN1",
    "genome": "Human genome",
    "hg38": "Human DNA (hg38)",
    "imagenette": "Imagenette",
    "imagenette-motion": "Imagenette in motion",
    "in1k": "ImageNet-1K",
    "index": "Indirect indexing",
    "jsb": "JSB Chorales",
    "maestro": "MAESTRO",
    "modelnet10": "ModelNet10",
    "modelnet40": "ModelNet40",
    "nmnist-canvas": "N-MNIST canvas",
    "nmnist1100": "N-MNIST-1100",
    "nuscenes": "nuScenes",
    "owt": "OpenWebText",
    "scannet": "ScanNet",
    "shakespeare": "Shakespeare",
    "simdrive": "simdrive (simulated)",
    "ucf101": "UCF101",
}
# Where weights are -> label and explanation. `recipe` is `none` with a command that trains.
WEIGHTS = {
    "embedded": ("In this package", "the weights come with pape-zoo"),
    "hub": ("On the Hub", "the weights are downloaded from the Hugging Face Hub"),
    "release": ("External", "released by the authors of PaPE; zoo convert turns their archive into ours"),
    "recipe": ("Recipe", "no weights; one command trains it"),
    "none": ("Architecture", "no weights: an architecture to train"),
}


@functools.cache
def encoding_name(encoding: str) -> str:
    """An encoding as it is written in text."""
    from zoo.card_text import NAMES

    return NAMES.get(encoding, encoding)


def models() -> list[dict[str, Any]]:
    """Facts of all registered models; those with weights first, then those that were measured, then by name."""
    found = [model_facts(registry.entry(name)) for name in registry.list_models()]
    order = list(WEIGHTS)
    return sorted(found, key=lambda one: (order.index(one["weights"]), one["result"] is None, one["name"]))


def model_facts(entry: registry.Entry) -> dict[str, Any]:
    """Facts of one model.

    Returns:
        `name`, `modality`, `task`, `encoding`, `size` (the part of the name), `data` (a key of `DATA`), `family` (the
        name without its encoding), `parameters`, `weights` (a key of `WEIGHTS`), `command` and `result`, a sentence on
        the first measured number of its record, or `None`.
    """
    family = entry.name.removeprefix(entry.encoding.replace("+", "-") + "-")
    match = re.fullmatch(r".+?-([ntsb]|\d+m)-(.+)", family)
    size, rest = match.groups() if match else ("", family)
    known = [word for word in DATA if rest == word or rest.startswith(word + "-")]
    record = read_record(entry.name)
    return {
        "name": entry.name,
        "modality": entry.modality,
        "task": entry.task,
        "encoding": entry.encoding,
        "size": size,
        "data": max(known, key=len, default=rest),
        "family": family,
        "parameters": entry.parameters,
        "weights": "recipe" if entry.weights == "none" and entry.command else entry.weights,
        "command": entry.command,
        "result": None if record is None else _result(record, entry.modality),
    }


def _result(record: Mapping[str, Any], modality: str) -> str | None:
    if not record["evaluation"]:
        return None
    first = record["evaluation"][0]
    metric = first["metric"]
    places = digits(metric) if unit(metric) != "%" else 1
    spread = f" ± {first['std']:.{places}f}" if first.get("std") is not None else ""
    return (
        f"{heading(metric)} {first['value']:.{places}f}{spread} {unit(metric)} at {size_text(first['size'], modality)}"
    )
