"""Scores of point models whose answers are known: plain, voted, turned, and by the names of classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from point_training_sets import write_als, write_modelnet10
from torch import nn

from modalities.points.augment import random_rotations
from modalities.points.data_config import PointDataConfig
from modalities.points.datasets import IGNORED, open_dataset
from modalities.points.datasets.indoor import ScanNet
from modalities.points.datasets.outdoor import AirborneTiles
from modalities.points.evaluate import evaluate_points, scale_votes, score_classes, score_points, turn_votes
from modalities.points.points import Points
from modalities.points.store import PointStore
from zoo import registry
from zoo.errors import ConfigError, DataError
from zoo.training.seeds import derive_seed

CPU = torch.device("cpu")


class Nearest(nn.Module):
    """Classifies by the height of a cloud: what a perfect model of the toy set would do."""

    def __init__(self, task: str, **data: Any) -> None:
        super().__init__()
        self.data_config = PointDataConfig(**data)
        self.config = {"task": task, "name": "toy", "labels": None}
        self.scale = nn.Parameter(torch.ones(()))
        self.num_classes = 2 if task == "classification" else 3
        self.seen: list[int] = []

    def forward(self, batch: Any) -> torch.Tensor:
        self.seen.append(len(batch.xyz))
        if self.config["task"] == "segmentation":
            height = batch.features[:, 0] * 10
            return 5 * torch.stack([-((height - at) ** 2) for at in (0.1, 3.0, 6.1)], dim=1) * self.scale
        clouds = [batch.cloud(i).xyz for i in range(len(batch))]
        flat = torch.stack([xyz[:, 2].std() - xyz[:, 0].std() for xyz in clouds])
        return torch.stack([-flat, flat], dim=1) * self.scale


class Files:
    """Clouds as a data set."""

    name = "files"

    def __init__(self, clouds: list[Points]) -> None:
        self.clouds = clouds

    def __getitem__(self, index: int) -> Points:
        return self.clouds[index]


def test_classifiers_are_scored_plain_voted_and_turned(tmp_path: Path) -> None:
    data = write_modelnet10(tmp_path / "data", test=40)
    model = Nearest("classification").train()
    (row,) = evaluate_points(model, data, batch_size=16)["results"]
    assert row["top1"] == row["macc"] == row["top1_voted"] == 100 and row["size"] == 48
    assert 20 < row["top1_so3"] < 90  # Turned clouds stand and lie in any way.
    assert model.training
    limited = evaluate_points(model, data, limit=3)
    assert limited["images"] == 3 and limited["dataset"] == "modelnet10"
    assert scale_votes().shape == (5, 3, 3) and scale_votes(mirror=True).shape == (10, 3, 3)
    torch.testing.assert_close(torch.linalg.det(scale_votes(mirror=True)).sign().sum(), torch.tensor(0.0))


def test_turned_scores_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    data = write_modelnet10(tmp_path / "data", test=40)
    model = Nearest("classification")
    found = [evaluate_points(model, data, batch_size=size)["results"][0]["top1_so3"] for size in (7, 40)]
    assert found[0] == found[1]


@pytest.mark.parametrize("how", ["unit-box", "centre", "none"])
def test_turned_clouds_are_what_is_made_of_turned_files(how: str) -> None:
    rng = np.random.default_rng(0)
    files = [
        Points(rng.uniform(0, [4, 1, 1], (size, 3)) + 10 * size, {"normal": rng.normal(size=(size, 3))})
        for size in (30, 50)
    ]
    config = PointDataConfig(normalise=how, feature_names=("xyz", "normal"))
    store = PointStore(Files(files), range(2), config, CPU)
    turned = store.turned(3)
    turns = [random_rotations(1, torch.Generator().manual_seed(derive_seed("turned", 3, row)))[0] for row in (0, 1)]
    rotated = [
        Points(file.xyz @ turn.T, {"normal": file.fields["normal"] @ turn.T})
        for file, turn in zip(files, (turn.double().numpy() for turn in turns), strict=True)
    ]
    expected = PointStore(Files(rotated), range(2), config, CPU)
    torch.testing.assert_close(turned.xyz, expected.xyz, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(turned.fields["normal"], expected.fields["normal"], atol=1e-5, rtol=1e-5)
    assert not torch.equal(turned.xyz, store.xyz) and not torch.allclose(turns[0], turns[1])
    assert torch.equal(store.turned(3).xyz, turned.xyz) and not torch.equal(store.turned(4).xyz, turned.xyz)


def test_segmenters_are_scored_on_every_point(tmp_path: Path) -> None:
    data = open_dataset(write_als(tmp_path / "data", 900), "test")
    config = {"normalise": "centre", "feature_names": ["height"]}
    model = Nearest("segmentation", **config)
    store = PointStore(data, range(len(data)), model.data_config, CPU, classes=np.arange(3))
    whole = score_points(model, store)
    assert model.seen == store.lengths.tolist()
    assert whole["iou/0"] == whole["iou/2"] == 100 or whole["miou"] > 80
    model.seen.clear()
    cropped = score_points(model, store, points=100, batch_size=3, votes=turn_votes())
    assert sum(model.seen) / 8 >= store.lengths.sum() and max(model.seen) == 300
    assert cropped["miou"] > 60 and cropped.keys() == whole.keys()


def test_segmenters_are_scored_whole_or_in_crops_of_the_size_asked_for(tmp_path: Path) -> None:
    path = write_als(tmp_path / "data", 900)
    model = Nearest("segmentation", normalise="centre", feature_names=["height"])
    (whole,) = evaluate_points(model, path)["results"]
    lengths = [len(open_dataset(path, "test")[row]) for row in range(2)]
    assert model.seen[:2] == lengths and whole["size"] == round(np.mean(lengths)) and "condition" not in whole
    model.seen.clear()
    few, many = evaluate_points(model, path, sizes=[100, 5000], batch_size=1)["results"]
    assert set(model.seen[: len(model.seen) // 2]) == {100} and (few["size"], many["size"]) == (100, 5000)
    assert few["condition"] == many["condition"] == "overlapping crops"
    same = {"miou", "miou_voted", "accuracy", "macc"}
    assert {key: many[key] for key in same} == pytest.approx({key: whole[key] for key in same})
    assert few["miou"] > 60
    for sizes in ([], [0], [(3, 4)], [True]):
        with pytest.raises(ConfigError, match="numbers of points that are seen at once"):
            evaluate_points(model, path, sizes=sizes)


def test_points_are_scored_by_the_names_of_their_classes(tmp_path: Path) -> None:
    path = write_als(tmp_path / "data", 900)
    model = Nearest("segmentation", normalise="centre", feature_names=["height"])
    names = list(open_dataset(path, "test").class_names)
    scored = []
    for labels in (names, names[::-1]):
        model.config = {**model.config, "labels": labels}
        (row,) = evaluate_points(model, path)["results"]
        scored.append(row)
    assert scored[0]["iou/building"] > 80 and scored[0]["miou"] > 80
    assert scored[1].keys() >= {f"iou/{name}" for name in names} and scored[1]["iou/building"] < 20
    model.config = {**model.config, "labels": ["building", "ground", "water"]}
    with pytest.raises(DataError, match="class 0 is 'ground' of the data and 'building' of the model"):
        evaluate_points(model, path)


def test_labels_of_points_are_those_of_the_model(tmp_path: Path) -> None:
    data = open_dataset(write_als(tmp_path / "data"), "train")
    config = PointDataConfig(normalise="centre", feature_names=("height",), ignore_label=-1)
    own = PointStore(data, [0], config, CPU, classes=np.array([4, 5, 3])).labels
    plain = data[0].fields["label"]
    assert own is not None and set(own.tolist()) == {-1, 3, 4, 5}
    assert ((own == -1).numpy() == (plain == IGNORED)).all() and ((own == 3).numpy() == (plain == 2)).all()
    with pytest.raises(DataError, match="outside the 2 classes"):
        PointStore(data, [0], config, CPU, classes=np.arange(2))


def test_presets_name_the_classes_as_the_data_sets_do() -> None:
    for name, classes in (
        ("pape-ptv3-b-scannet", ScanNet.class_names),
        ("pape-ptv3-n-als3", AirborneTiles.class_names),
    ):
        assert tuple(registry.entry(name).new_config()["labels"]) == classes


def test_what_cannot_be_scored_says_why(tmp_path: Path) -> None:
    data = write_modelnet10(tmp_path / "data")
    model = Nearest("classification")
    with pytest.raises(ConfigError, match="leave out sizes"):
        evaluate_points(model, data, sizes=[3])
    with pytest.raises(ConfigError, match="dtype"):
        evaluate_points(model, data, dtype="int8")
    model.num_classes = 3
    with pytest.raises(DataError, match="2 classes, the model has 3"):
        evaluate_points(model, data)
    store = PointStore(open_dataset(data, "test"), range(2), model.data_config, CPU)
    with pytest.raises(DataError, match="labels for a model"):
        score_classes(model, store, np.array([0, 7]))
    with pytest.raises(DataError, match="no clouds with labels"):
        score_points(model, store)
