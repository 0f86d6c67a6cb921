"""From a folder in each layout to a loaded model: a few steps each."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import finetune_toys as toys
import point_training_sets
import pytest
from event_sets import write_scenes
from finetune_toys import SHORT, base
from training_toys import toy_picture, write_parquet, write_toys

import zoo
from zoo.training.loop import RECORD

DETECTOR = {"pyramid_dim": 32, "class_width": 32, "input_size": (64, 64)}
PICTURES = {"patch_size": 8, "input_size": 16}


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path_factory.getbasetemp() / "zoo-cache"))


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Names of small networks, each saved once."""
    made: dict[str, str] = {}

    def named(name: str, **options: Any) -> str:
        key = f"{name} {options}"
        if key not in made:
            made[key] = base(tmp_path_factory.mktemp("base"), name, **options)
        return made[key]

    return named


def with_validation(write: Callable[..., Path], root: Path) -> Path:
    write(root / "train", 4)
    write(root / "val", 2, 50)
    return root


def parquet(root: Path) -> Path:
    return write_toys(root, 20, 6)


def hub_copy(root: Path) -> Path:
    """As the Hub has many: files in `data`, and other names of columns."""
    import pyarrow.parquet as pq

    write_parquet(root / "plain.parquet", [(toy_picture(i % 2, i), i % 2) for i in range(12)], ["dark", "bright"])
    table = pq.read_table(root / "plain.parquet").rename_columns({"image": "img", "label": "labels"})
    text = json.dumps({"info": {"features": {"labels": {"names": ["dark", "bright"]}}}})
    (root / "data").mkdir()
    pq.write_table(table.replace_schema_metadata({"huggingface": text}), root / "data" / "train-00000-of-00001.parquet")
    (root / "plain.parquet").unlink()
    return root


def packed(root: Path) -> Path:
    from modalities.image.data import pictures

    pictures(write_toys(root / "source", 12, 2), "train", cache=root / "packed")
    return next((root / "packed").iterdir())


def scenes_without_validation(root: Path) -> Path:
    shutil.rmtree(write_scenes(root) / "val")
    return root


def text_file(root: Path) -> Path:
    root.mkdir()
    (root / "notes.txt").write_text("to be or not to be, that is the question. " * 40)
    return root / "notes.txt"


PTV3 = {"channels": [16, 32], "depths": [1, 1], "stem_kernel": 3, "patch_size": 64}
PTV3 |= {"decoder_channels": [16], "decoder_depths": [1]}
VIDEO = {"patch_size": 8, "input_size": 16}
# Layout: what writes it, architecture and options of the network, settings, and the split that is reported.
LAYOUTS: dict[str, tuple[Callable[[Path], Path], str, dict[str, Any], dict[str, Any], str]] = {
    "class folders": (lambda p: toys.write_pictures(p, 8), "pape-vit-n-imagenette", PICTURES, {}, "of each class"),
    "class folders with val": (
        lambda p: with_validation(toys.write_pictures, p),
        "pape-vit-n-imagenette",
        PICTURES,
        {},
        "own validation",
    ),
    "Parquet": (parquet, "pape-vit-n-imagenette", PICTURES, {}, "own validation"),
    "copy of a Hub data set": (hub_copy, "pape-vit-n-imagenette", PICTURES, {}, "of each class"),
    "packed": (packed, "pape-vit-n-imagenette", PICTURES, {}, "of each class"),
    "COCO": (toys.write_coco, "pape-vit-det-n-bccd", DETECTOR, {}, "of each class"),
    "COCO with val": (
        lambda p: toys.write_coco(p, {"train": 8, "val": 3}),
        "pape-vit-det-n-bccd",
        DETECTOR,
        {},
        "own validation",
    ),
    "YOLO": (lambda p: toys.write_yolo(p, {"train": 8, "val": 3}), "pape-vit-det-n-bccd", DETECTOR, {}, "own"),
    "videos": (toys.write_videos, "pape-video-vit-n-imagenette-motion", VIDEO, {}, "of each class"),
    "videos with val": (
        lambda p: with_validation(toys.write_videos, p),
        "pape-video-vit-n-imagenette-motion",
        VIDEO,
        {},
        "own validation",
    ),
    "recordings": (toys.write_recordings, "pape-event-vit-n-nmnist1100", {}, {}, "of each class"),
    "scenes": (write_scenes, "pape-event-det-n-gen1", {"pyramid_dim": 32}, {"eval_every": 4}, "own validation"),
    "scenes without val": (
        scenes_without_validation,
        "pape-event-det-n-gen1",
        {"pyramid_dim": 32},
        {"eval_every": 4},
        "of the recordings",
    ),
    "clouds": (toys.write_clouds, "pape-point-vit-n-modelnet10", {}, {}, "of each class"),
    "clouds with val": (
        lambda p: with_validation(toys.write_clouds, p),
        "pape-point-vit-n-modelnet10",
        {},
        {},
        "own validation",
    ),
    "labelled clouds": (point_training_sets.write_als, "pape-ptv3-n-als3", PTV3, {"crops": 8}, "50% of the clouds"),
    "text": (text_file, "pape-decoder-n-shakespeare", {}, {"size": 16}, "own"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_becomes_a_model(layout: str, tmp_path: Path, start: Callable[..., str]) -> None:
    write, name, options, settings, validation = LAYOUTS[layout]
    data, out = write(tmp_path / "mine"), tmp_path / "out"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        origin = start(name, **options)
        made = zoo.finetune.plan(origin, data, **{**SHORT, **settings})
        result = zoo.finetune(origin, data, out, **{**SHORT, **settings})
    assert validation in made.found.validation
    assert result.finished and result.output == out
    record = json.loads((out / RECORD).read_text())
    assert record["selected_by"] == made.found.metric and made.found.metric in record
    model = zoo.load(f"local-dir:{out}")
    if made.found.classes:
        assert model.config["labels"] == list(made.found.classes) and model.num_classes == len(made.found.classes)
    assert model.config["name"].endswith(f"-{data.stem}")
    card = (out / "README.md").read_text()
    for words in ("## Fine-tuned from", "Licence of these data: unknown", record["data"]["sha256"][:16], "zoo train"):
        assert words in card
    assert str(tmp_path) not in card
