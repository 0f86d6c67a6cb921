"""Prediction on clouds: what the model is given, and what comes of it, in Python and at the command line."""

from __future__ import annotations

import csv
import io
import json
import warnings
from typing import Any

import numpy as np
import point_files
import ptv3_toys
import pytest
import torch
from point_files import cloud
from torch import nn

import zoo
from modalities.points import PointBatch, PointDataConfig, Points
from modalities.points.normals import vertex_normals
from modalities.points.predict import parts_of, prepared
from modalities.points.results import CloudClasses, CloudSegments
from zoo.cli.main import main
from zoo.errors import ConfigError, DataError, WeightsError
from zoo.reading import Source

NAMES = ("low", "middle", "high")


class ByHeight(nn.Module):
    """Gives every point a class by its height above the lowest: below 1, below 2, above; notes what it is given."""

    def __init__(self, task: str = "segmentation", **data: Any) -> None:
        super().__init__()
        self.config = {"modality": "points", "task": task, "name": "by-height", "labels": list(NAMES)}
        self.data_config = PointDataConfig(**{"normalise": "centre", "feature_names": ("height",), **data})
        self.num_classes = 3
        self.one = nn.Parameter(torch.ones(1))
        self.seen: list[PointBatch] = []

    def forward(self, batch: PointBatch) -> torch.Tensor:
        self.seen.append(batch)
        height = 10 * batch.features[:, -1]
        logits = torch.stack([height < 1, (height >= 1) & (height < 2), height >= 2], 1).float() * 20 * self.one
        if self.config["task"] == "segmentation":
            return logits
        return torch.stack(
            [batch.cloud(index).features[:, -1].mean() * torch.arange(3.0) for index in range(len(batch))]
        )


def steps(count: int = 30) -> Points:
    """Points far from the origin, at heights 100 + 0.5, 1.5 and 2.5 in turn, and one at 100."""
    generator = np.random.default_rng(0)
    xyz = np.column_stack([generator.uniform(0, 8, (count, 2)), 0.5 + np.arange(count) % 3])
    xyz[0, 2] = 0
    return Points(xyz + [5e5, 6e6, 100], {"intensity": np.arange(count)}, name="steps")


EXPECTED = np.arange(30) % 3


def test_every_point_gets_its_class():
    result = zoo.predictor(ByHeight())(steps())
    assert isinstance(result, CloudSegments) and result.indices.tolist() == EXPECTED.tolist()
    assert result.indices.dtype == np.int64 and (result.scores > 0.99).all() and len(result) == 30
    assert result.counts() == {"low": 10, "middle": 10, "high": 10} and result.labels == NAMES
    assert str(result).splitlines()[:2] == ["steps (30 points)", "   33.3 %  low     10 points"]
    told = json.loads(result.to_json())
    assert told["points"] == 30 and told["source"] == "steps"
    assert told["classes"][1] | {"score": 1} == {
        "index": 1,
        "label": "middle",
        "points": 10,
        "share": pytest.approx(1 / 3),
        "score": 1,
    }
    pytest.importorskip("pandas")
    table = result.to_pandas()
    assert table["points"].tolist() == [10] * 3 and list(table.columns) == list(result.columns)


def test_crops_and_parts_agree_with_the_whole(monkeypatch):
    whole = zoo.predictor(ByHeight())(steps(600))
    model = ByHeight(num_points=100)
    cropped = zoo.predictor(model)(steps(600))
    assert max(batch.lengths.max() for batch in model.seen) == 100
    # Heights count from the lowest point of a crop, which most crops have at 0.5: only the arithmetic is looked at.
    assert len(cropped) == 600 and cropped.scores.min() > 0
    asked = zoo.predictor(model := ByHeight(), size=100)(steps(600))
    assert max(batch.lengths.max() for batch in model.seen) == 100 and np.array_equal(asked.scores, cropped.scores)
    monkeypatch.setattr("modalities.points.predict.LARGEST_PART", 150)
    parted = zoo.predictor(model := ByHeight())(steps(600))
    assert [int(batch.lengths[0]) for batch in model.seen] == [150] * 4
    agreed = parted.indices == whole.indices
    first = parts_of(steps(600).xyz, 150)
    with_lowest = next(index for index in first if 0 in index)
    assert agreed[with_lowest].all()


def test_parts_hold_every_point_once():
    xyz = np.random.default_rng(0).normal(size=(1000, 3)) * [10, 1, 1]
    parts = parts_of(xyz, 300)
    assert len(parts) == 4 and sorted(np.concatenate(parts).tolist()) == list(range(1000))
    # Cut across the longer axis: the parts follow each other along x.
    edges = sorted((xyz[index, 0].min(), xyz[index, 0].max()) for index in parts)
    assert all(before[1] <= after[0] for before, after in zip(edges[:-1], edges[1:], strict=True))
    assert parts_of(np.zeros((700, 3)), 200) and parts_of(np.zeros((0, 3)), 5) == []


def test_coordinates_are_centred_in_double_precision():
    model = ByHeight()
    zoo.predictor(model)(steps())
    expected = steps().xyz - [5e5, 6e6, 100]
    low, high = expected.min(axis=0), expected.max(axis=0)
    origin = (low + high) / 2
    origin[2] = low[2]
    found = model.seen[0].xyz.numpy()
    # Covering takes the points of a crop nearest first.
    assert np.allclose(found[np.lexsort(found.T)], (expected - origin)[np.lexsort((expected - origin).T)], atol=1e-5)


def test_classes_of_clouds():
    model = ByHeight("classification")
    predictor = zoo.predictor(model, top_k=2)
    result = predictor(steps())
    assert isinstance(result, CloudClasses) and result.label == "high" and len(result.scores) == 2
    assert (
        result.to_dict()["points"] == 30 and "width" not in result.to_dict() and str(result).startswith("steps (30 p")
    )
    many = predictor([steps(), cloud(40)["xyz"], steps(9)], batch_size=2)
    assert [one.count for one in many] == [30, 40, 9] and [len(batch) for batch in model.seen] == [1, 2, 1]
    assert many[0].scores == pytest.approx(result.scores)


def test_a_classifier_sees_its_number_of_points():
    model = ByHeight("classification", num_points=16)
    zoo.predictor(model)(steps())
    assert model.seen[0].lengths.tolist() == [16]
    zoo.predictor(model)(steps(5))
    assert model.seen[1].lengths.tolist() == [5]
    mesh = Source(point_files.off(cloud(12)), "chair.off")
    result = zoo.predictor(model)(mesh)
    assert model.seen[2].lengths.tolist() == [16] and result.count == 12
    zoo.predictor(model)(mesh)
    assert torch.equal(model.seen[2].xyz, model.seen[3].xyz)  # The draw is the same each time.
    unbounded = ByHeight("classification")
    zoo.predictor(unbounded)(mesh)
    assert unbounded.seen[0].lengths.tolist() == [10_000]


def test_features_that_are_not_there():
    config = PointDataConfig(normalise="centre", feature_names=("rgb", "normal", "return", "height"))
    with pytest.raises(
        DataError, match=r"steps: the model takes rgb, normal, return .*\(it has intensity\); fill=True"
    ):
        prepared(steps(), config, draw=False)
    model = ByHeight(feature_names=("rgb", "normal", "return", "height"))
    with pytest.raises(DataError, match="fill=True"):
        zoo.predictor(model)(steps())
    with pytest.warns(UserWarning, match="neutral values are taken for rgb, normal, return"):
        result = zoo.predictor(model)(steps(), fill=True)
    assert model.seen[0].features.shape == (30, 9) and (model.seen[0].features[:, :6] == 0).all()
    assert result.indices.tolist() == EXPECTED.tolist() and "normal" not in result.points.fields


def test_normals_of_meshes_are_made():
    vertices = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1.0], [9, 9, 9]])
    faces = np.array([[0, 2, 1], [0, 1, 3]])
    found = vertex_normals(vertices, faces)
    assert np.allclose(found[2], [0, 0, -1]) and np.allclose(found[3], [0, -1, 0]) and (found[4] == 0).all()
    assert np.allclose(found[0], np.array([0, -1, -1]) / np.sqrt(2))
    config = PointDataConfig(normalise="centre", feature_names=("normal",))
    mesh = Points(vertices, faces=faces)
    assert np.array_equal(prepared(mesh, config, draw=False).fields["normal"], found)
    assert np.allclose(np.linalg.norm(prepared(mesh, config, draw=True).fields["normal"], axis=1), 1)


def test_units():
    feet = steps()
    feet = Points(feet.xyz / 0.3048, feet.fields, name="feet")
    result = zoo.predictor(ByHeight())(feet, unit=0.3048)
    assert result.indices.tolist() == EXPECTED.tolist() and np.array_equal(result.points.xyz, feet.xyz)
    assert zoo.predictor(ByHeight())(feet).indices.tolist() != EXPECTED.tolist()
    for bad in (0, -1, float("nan"), "feet", True):
        with pytest.raises(ConfigError, match="unit must be a positive number"):
            zoo.predictor(ByHeight())(feet, unit=bad)


def test_saved_results(tmp_path):
    result = zoo.predictor(ByHeight())(steps())
    found = zoo.read(result.save(tmp_path / "new" / "a.ply"))
    assert np.array_equal(found.xyz, steps().xyz) and found.fields["label"].tolist() == EXPECTED.tolist()
    assert found.fields["label"].dtype == np.int32
    assert len(np.unique(found.fields["rgb"], axis=0)) == 3 and found.fields["intensity"].tolist() == list(range(30))
    arrays = np.load(result.save(tmp_path / "a.npz"))
    assert arrays["label"].tolist() == EXPECTED.tolist() and arrays["class_names"].tolist() == [
        b"low",
        b"middle",
        b"high",
    ]
    assert np.array_equal(zoo.read(tmp_path / "a.npz").xyz, steps().xyz)
    assert "middle" in result.save(tmp_path / "a.html").read_text()
    pytest.importorskip("matplotlib")
    import PIL.Image

    with PIL.Image.open(result.save(tmp_path / "a.png")) as picture:
        assert picture.size[0] > 600
        assert result.draw_on(picture).size[1] > picture.size[1]
    kind = zoo.predictor(ByHeight("classification"))(steps())
    assert kind.save(tmp_path / "b.png").stat().st_size > 1000
    with pytest.raises(DataError, match="no picture format for the suffix '.xyz'"):
        result.save(tmp_path / "a.xyz")
    with pytest.raises(DataError, match="cannot be written"):
        result.save(tmp_path / "new" / "a.ply" / "b.ply")


def test_clouds_without_points():
    data = Source(b"# nothing\n", "a.xyz")
    with pytest.warns(UserWarning, match="holds no points"):
        result = zoo.predictor(ByHeight())(data, errors="keep")
    assert len(result) == 0 and result.to_dict()["classes"] == [] and str(result) == "a.xyz (0 points): no points"
    with pytest.raises(DataError, match="no points to draw"):
        result.plot()
    with warnings.catch_warnings(), pytest.raises(DataError, match=r"a\.xyz: no points to classify"):
        warnings.simplefilter("ignore")
        zoo.predictor(ByHeight("classification"))(data, errors="keep")


def test_what_cannot_be_asked():
    with pytest.raises(ConfigError, match="top_k is for classifiers"):
        zoo.predictor(ByHeight(), top_k=3)
    with pytest.raises(ConfigError, match="clouds make no video"):
        zoo.predictor(ByHeight()).video("a.mp4")
    with pytest.raises(ConfigError, match="options of point files are max_points"):
        zoo.predictor(ByHeight())(steps(), frame=3)
    broken = ByHeight()
    broken.one.data.fill_(float("nan"))
    with pytest.raises(WeightsError, match="scores are not finite"):
        zoo.predictor(broken)(steps())


def run(capsys, *arguments) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    found = capsys.readouterr()
    return stop.value.code, found.out, found.err


@pytest.fixture
def models(monkeypatch) -> None:
    """The names of the command line are tasks of `ByHeight`."""
    plain = zoo.predictor

    def predictor(name: str, **options: Any) -> Any:
        options.pop("local_files_only")
        return plain(
            ByHeight(name, feature_names=("return", "height") if name == "segmentation" else ("height",)), **options
        )

    monkeypatch.setattr(zoo, "predictor", predictor)


def test_command_line(tmp_path, capsys, models):
    data = {**cloud(200), "intensity": np.linspace(0, 1, 200).astype(np.float32)}
    (tmp_path / "a.ply").write_bytes(point_files.ply(data))
    (tmp_path / "b.xyz").write_text("1 2 oops\n")
    code, out, err = run(capsys, "predict", "segmentation", tmp_path / "a.ply")
    assert code == 2 and "takes return of every point" in err and "--fill" in err
    code, out, err = run(
        capsys, "predict", "segmentation", tmp_path, "--fill", "--json", "--save", tmp_path / "out", "--unit", "0.5"
    )
    assert code == 2 and "b.xyz" in err and "neutral values are taken for return" in err
    (told,) = json.loads(out)
    assert told["points"] == 200 and sum(one["points"] for one in told["classes"]) == 200
    saved = zoo.read(tmp_path / "out" / "a.ply")
    assert np.array_equal(saved.xyz, data["xyz"]) and set(saved.fields) >= {"label", "score", "rgb"}
    target = tmp_path / "one.npz"
    code, out, err = run(
        capsys, "predict", "segmentation", tmp_path / "a.ply", "--fill", "--csv", "--save", target, "-q"
    )
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0 and sum(int(row["points"]) for row in rows) == 200 and target.exists()
    for options, message in (
        (("--save", target), "one file for 2 clouds"),
        (("--top-k", "2"), "top_k is for classifiers"),
        (("--stride-ms", "2"), "--stride-ms is for "),
    ):
        code, out, err = run(capsys, "predict", "segmentation", tmp_path / "a.ply", tmp_path / "b.xyz", *options)
        assert code == 2 and message in err


def test_classifier_at_the_command_line(tmp_path, capsys, models):
    (tmp_path / "chair.off").write_bytes(point_files.off(cloud(12)))
    (tmp_path / "c.npz").write_bytes(point_files.npz(xyz=cloud(300)["xyz"]))
    code, out, err = run(capsys, "predict", "classification", tmp_path, "--json", "--top-k", "3")
    told = json.loads(out)
    assert code == 0 and [one["points"] for one in told] == [300, 12] and len(told[0]["predictions"]) == 3
    pytest.importorskip("matplotlib")
    code, out, err = run(capsys, "predict", "classification", tmp_path / "chair.off", "--save", tmp_path / "a.png")
    assert code == 0 and (tmp_path / "a.png").exists() and "saved: " in err
    code, out, err = run(capsys, "predict", "classification", tmp_path / "chair.off", "--save", tmp_path / "a.ply")
    assert code == 2 and "results of a classifier are written as .jpg, .png, .webp" in err


def test_networks():
    """Results of one cloud do not depend on those beside it; every point of a cloud gets a class."""
    clouds = [Points(cloud(count, count)["xyz"]) for count in (50, 120)]
    predictor = zoo.predictor(ptv3_toys.tiny(), top_k=5)
    together = predictor(clouds, batch_size=2)
    for one, result in zip(clouds, together, strict=True):
        alone = predictor(one)
        assert alone.indices == result.indices and alone.scores == pytest.approx(result.scores, abs=1e-5)
    found = zoo.predictor(ptv3_toys.tiny("segmentation"))(clouds)
    assert [len(one) for one in found] == [50, 120] and found[0].class_names == ("0", "1", "2", "3", "4")
    assert len(np.unique(found[1].indices)) > 1
