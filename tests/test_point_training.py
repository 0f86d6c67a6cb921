"""Training and scoring of point models on tiny sets in the real layouts: all recipes, end to end on the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import zoo
from modalities.points.data_config import PointDataConfig
from modalities.points.datasets import open_dataset
from modalities.points.evaluate import evaluate_points, scale_votes, score_classes, score_points, turn_votes
from modalities.points.options import ClassificationOptions, SegmentationOptions
from modalities.points.store import PointStore
from tests.training_toys import stop_after
from zoo.cli.main import main
from zoo.errors import ConfigError, DataError
from zoo.training.loop import Trainer, train
from zoo.training.optim import parameter_groups
from zoo.training.recipe import Recipe, load_recipe

CPU = torch.device("cpu")
VIT = {"dim": 32, "depth": 1, "num_heads": 1, "head_dim": 32, "mlp_dim": 64, "groups": 8, "patch_size": 8}
PTV3 = {"channels": [16, 32], "depths": [1, 1], "stem_kernel": 3, "patch_size": 64}
SEGMENTER = {**PTV3, "decoder_channels": [16], "decoder_depths": [1]}
QUICK = {"device": "cpu", "compile": False, "precision": "float32", "epochs": 1, "log_every": 1, "warmup": 0.0}


def write_modelnet10(folder: Path, train: int = 12, test: int = 8, points: int = 48) -> Path:
    """Flat and tall clouds in the layout of the 16-bit arrays."""
    rng, arrays = np.random.default_rng(0), {"class_names": np.array([b"desk", b"tower"])}
    for side, count in (("train", train), ("test", test)):
        labels = np.arange(count) % 2
        xyz = rng.uniform(-1, 1, (count, points, 3))
        xyz[labels == 0, :, 2] *= 0.1
        xyz[labels == 1, :, :2] *= 0.2
        arrays |= {f"{side}_xyz": (xyz * 32767).astype(np.int16), f"{side}_label": labels.astype(np.uint8)}
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "modelnet10.npz", **arrays)
    return folder / "modelnet10.npz"


def write_als(folder: Path, points: int = 240) -> Path:
    """Two tiles with ground, a roof and trees, in the layout of the airborne arrays."""
    rng, arrays = np.random.default_rng(1), {}
    for tile in ("one", "two"):
        codes = rng.choice([1, 2, 5, 6], points)
        xyz = rng.uniform(0, 1, (points, 3)) * [40, 20, 0.2]
        xyz[:, 2] += np.select([codes == 6, codes == 5], [6, rng.uniform(1, 5, points)], 0.0)
        arrays |= {
            f"{tile}_xyz_m": xyz.astype(np.float32),
            f"{tile}_origin": np.array([5e5, 4e6, 0]),
            f"{tile}_unit_to_m": np.array(1.0),
            f"{tile}_class": codes.astype(np.uint8),
            f"{tile}_intensity": rng.integers(0, 2000, points).astype(np.uint16),
            f"{tile}_return": np.ones((points, 2), np.uint8),
        }
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "als.npz", **arrays)
    return folder / "als.npz"


def write_modelnet40(folder: Path) -> Path:
    """Clouds with normals as text, with the official lists."""
    rng, names = np.random.default_rng(2), ["desk", "night_stand"]
    lists: dict[str, list[str]] = {"train": [], "test": []}
    for name in names:
        (folder / name).mkdir(parents=True)
        for number in range(1, 7):
            rows = np.concatenate([rng.uniform(-1, 1, (30 + number, 3)), np.eye(3)[rng.integers(0, 3, 30 + number)]], 1)
            np.savetxt(folder / name / f"{name}_{number:04}.txt", rows, delimiter=",", fmt="%.5f")
            lists["train" if number < 5 else "test"].append(f"{name}_{number:04}")
    (folder / "modelnet40_shape_names.txt").write_text("\n".join(names))
    for split, shapes in lists.items():
        (folder / f"modelnet40_{split}.txt").write_text("\n".join(shapes))
    return folder


def write_scannet(folder: Path) -> Path:
    """Scenes as Pointcept prepares them."""
    rng = np.random.default_rng(3)
    for split, count in (("train", 4), ("val", 2)):
        for scene in range(count):
            place, points = folder / split / f"scene{scene:04}_00", 150 + 40 * scene
            place.mkdir(parents=True)
            np.save(place / "coord.npy", rng.uniform(0, 1.5, (points, 3)).astype(np.float32))
            np.save(place / "color.npy", rng.integers(0, 256, (points, 3)).astype(np.uint8))
            np.save(place / "normal.npy", np.eye(3, dtype=np.float32)[rng.integers(0, 3, points)])
            np.save(place / "segment20.npy", rng.integers(-1, 20, points))
    return folder


WRITERS = {"modelnet10": write_modelnet10, "modelnet10-vit": write_modelnet10, "als3": write_als}
WRITERS |= {"modelnet40": write_modelnet40, "scannet": write_scannet}
CHANGES: dict[str, dict[str, Any]] = {
    "modelnet10": {"model_options": PTV3 | {"head_dims": [16]}, "num_points": 48, "batch_size": 4},
    "modelnet10-vit": {"model_options": VIT, "batch_size": 4, "num_points": 48},
    "als3": {"model_options": SEGMENTER, "num_points": 64, "crops": 4, "batch_size": 2},
    "modelnet40": {"model_options": PTV3 | {"head_dims": [16]}, "num_points": 32, "batch_size": 4},
    "scannet": {"model_options": SEGMENTER, "num_points": 160, "batch_size": 2},
}


def recipe(name: str, data: Path, out: Path, **changes: Any) -> Recipe:
    return load_recipe(name, {**QUICK, "data": str(data), "output": str(out), **CHANGES[name], **changes})


def task(name: str, data: Path, **changes: Any) -> Any:
    import accelerate

    return Trainer(recipe(name, data, data.parent / "run", **changes), accelerate.Accelerator(cpu=True), data).task


def same(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    parts = [torch.equal(getattr(one[0], name), getattr(other[0], name)) for name in ("xyz", "features", "offsets")]
    return all(parts) and torch.equal(one[1], other[1])


@pytest.mark.parametrize("name", list(WRITERS))
def test_recipes_run_on_sets_in_the_real_layouts(tmp_path: Path, name: str) -> None:
    data, out = WRITERS[name](tmp_path / "data"), tmp_path / "run"
    held = {} if name in ("als3", "scannet") else {"dev_fraction": 0.25}
    result = train(recipe(name, data, out, eval_every=1, **held))
    assert result.finished and result.loss is not None and np.isfinite(result.loss)
    record = json.loads((out / "train_record.json").read_text())
    expected = {"scannet": "dev_miou", "als3": None}.get(name, "dev_top1")
    assert expected is None or 0 <= record[expected] <= 100
    assert record["data"]["samples"] == {"als3": 4, "scannet": 4, "modelnet40": 6}.get(name, 9)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert ("loss/lovasz" in lines[0]) == (name in ("als3", "scannet"))
    model = zoo.load(f"local-dir:{out}")
    opened = open_dataset(data, "train")
    assert model.config["labels"] == list(opened.class_names)
    report = evaluate_points(model, data, split="val" if name == "scannet" else "test")
    (row,) = report["results"]
    metrics = {"miou", "miou_voted", "macc", "accuracy"}
    if name not in ("als3", "scannet"):
        metrics = {"top1", "macc", "top1_voted", "top1_so3"}
    assert metrics < row.keys() and all(0 <= row[key] <= 100 for key in metrics)
    assert (
        report["task"] == model.config["task"] and report["data_sha256"] == open_dataset(data, report["split"]).sha256
    )


def test_the_recipes_have_the_published_settings() -> None:
    forty, scans = load_recipe("modelnet40"), load_recipe("scannet")
    assert (forty.epochs, forty.batch_size, forty.lr, forty.block_lr, forty.weight_decay) == (300, 32, 1e-3, 0.1, 0.01)
    assert (forty.options.scale, forty.options.anisotropic, forty.options.shift) == ((0.7, 1.5), True, 0.2)
    assert (scans.epochs, scans.batch_size, scans.lr, scans.block_lr, scans.weight_decay) == (800, 12, 6e-3, 0.1, 0.05)
    assert (scans.options.mix3d, scans.options.num_points, scans.drop_path, scans.warmup) == (0.8, 102400, 0.3, 0.05)
    assert [load_recipe(name).model for name in ("modelnet40", "scannet")] == [
        "pape-ptv3-b-modelnet40",
        "pape-ptv3-b-scannet",
    ]
    assert load_recipe("als3").options.crops and not load_recipe("modelnet10").compile


@pytest.mark.parametrize("name", ["modelnet10-vit", "als3"])
def test_an_interrupted_run_ends_as_one_that_was_not(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = WRITERS[name](tmp_path / "data")
    changes = {"epochs": 2}
    train(recipe(name, data, tmp_path / "whole", **changes))
    parts = recipe(name, data, tmp_path / "parts", **changes)
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        assert not train(parts).finished
    torch.manual_seed(77)  # What a process drew before must not matter.
    assert train(parts, resume=True).finished
    whole, resumed = ((tmp_path / n / "model.safetensors").read_bytes() for n in ("whole", "parts"))
    assert whole == resumed


@pytest.mark.parametrize("name", ["modelnet10-vit", "modelnet40", "als3", "scannet"])
def test_batches_depend_on_seed_epoch_and_index_alone(tmp_path: Path, name: str) -> None:
    data = WRITERS[name](tmp_path / "data")
    one, other = task(name, data), task(name, data)
    places = [(3, 1), (0, 0), (2, 1)]
    late = [other.batch(*place) for place in places[::-1]][::-1]
    for found, place in zip(late, places, strict=True):
        torch.manual_seed(place[0])
        again = one.batch(*place)
        assert same(found, again)
        assert found[0].xyz.shape == late[0][0].xyz.shape and found[0].xyz.isfinite().all()
    assert not same(late[0], late[1]) and not same(late[0], task(name, data, seed=1).batch(3, 1))


def test_crops_are_of_all_classes_alike_and_around_one_point(tmp_path: Path) -> None:
    made = task("als3", write_als(tmp_path / "data", 2000), crops=400, batch_size=200, rotate=0.0, tilt=0.0, drop=0.0)
    counted = np.zeros(3)
    rng = np.random.default_rng(0)
    for _ in range(300):
        point = made._centre(0, rng)
        counted[int(made.store.labels[point])] += 1
        if counted.sum() < 4:
            numbers = made._crop(point)
            row = int(np.searchsorted(made.store.offsets, point, side="right")) - 1
            start, stop = made.store.offsets[row : row + 2]
            distance = (made.store.xyz[start:stop] - made.store.xyz[point]).norm(dim=1)
            assert sorted((numbers - start).tolist()) == sorted(distance.argsort()[: made.points].tolist())
    assert counted.min() > 70
    inputs, targets = made.batch(0, 0)
    assert (
        inputs.xyz.shape == (200 * 64, 3) and targets.shape == (200 * 64,) and set(targets.tolist()) <= {0, 1, 2, 255}
    )
    heights = inputs.xyz.unflatten(0, (200, 64))[..., 2]
    assert heights.amin(1).abs().max() < 0.5  # The lowest point of each crop, give or take the jitter.


def test_small_clouds_fill_a_crop_again(tmp_path: Path) -> None:
    made = task("als3", write_als(tmp_path / "data"), num_points=500)
    inputs, _ = made.batch(0, 0)
    assert inputs.offsets.tolist() == [0, 500, 1000]


def test_samples_of_larger_clouds_are_drawn_without_repetition(tmp_path: Path) -> None:
    data = open_dataset(write_modelnet40(tmp_path / "data"), "train")
    config = PointDataConfig(feature_names=("xyz", "normal"))
    store = PointStore(data, range(len(data)), config, CPU)
    generator = torch.Generator().manual_seed(0)
    clouds = store.sample([3, 0], 20, generator)
    assert clouds.xyz.shape == clouds.fields["normal"].shape == (2, 20, 3)
    for row, place in enumerate((3, 0)):
        start, stop = store.offsets[place : place + 2]
        distance = (clouds.xyz[row].unsqueeze(1) - store.xyz[start:stop]).abs().amax(-1)
        found = distance.argmin(1)
        assert distance.amin(1).max() == 0 and len(found.unique()) == 20
        torch.testing.assert_close(clouds.fields["normal"][row], store.fields["normal"][start:stop][found])
    more = store.sample([0], 100, generator).xyz[0]
    assert len(more.unique(dim=0)) == store.lengths[0]


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


def test_segmenters_are_scored_on_every_point(tmp_path: Path) -> None:
    data = open_dataset(write_als(tmp_path / "data", 900), "test")
    config = {"normalise": "centre", "feature_names": ["height"]}
    model = Nearest("segmentation", **config)
    store = PointStore(data, range(len(data)), model.data_config, CPU, pointwise=True)
    whole = score_points(model, store)
    assert model.seen == store.lengths.tolist()
    assert whole["iou/0"] == whole["iou/2"] == 100 or whole["miou"] > 80
    model.seen.clear()
    cropped = score_points(model, store, points=100, batch_size=3, votes=turn_votes())
    assert sum(model.seen) / 8 >= store.lengths.sum() and max(model.seen) == 300
    assert cropped["miou"] > 60 and cropped.keys() == whole.keys()


def test_what_cannot_be_scored_or_trained_says_why(tmp_path: Path) -> None:
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
    with pytest.raises(ConfigError, match="no training data"):
        train(load_recipe("modelnet10", {"output": str(tmp_path / "run")}))
    with pytest.raises(ConfigError, match="points classification"):
        train(recipe("modelnet10", data, tmp_path / "run", model="pape-ptv3-n-als3"))
    with pytest.raises(DataError, match="'intensity'"):
        config = PointDataConfig(feature_names=("intensity",))
        PointStore(open_dataset(data, "train"), range(2), config, CPU)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_points": 0}, "num_points"),
        ({"flip": 2.0}, "flip"),
        ({"scale": (0.0, 1.0)}, "scale"),
        ({"rotate": 200.0}, "rotate"),
        ({"jitter": -1.0}, "jitter"),
        ({"elastic_spacing": (0.0, 1.0)}, "elastic_spacing"),
        ({"dev_fraction": 1.0}, "dev_fraction"),
        ({"crops": -1}, "crops"),
        ({"lovasz": -1.0}, "lovasz"),
        ({"mix3d": 1.5}, "mix3d"),
    ],
)
def test_bad_keys_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SegmentationOptions(**change)


def test_augmentations_that_are_off_are_left_out() -> None:
    assert ClassificationOptions().augmentations() == []
    names = [type(step).__name__ for step in load_recipe("scannet").options.augmentations()]
    assert names == ["Drop", "Rotate", "Rotate", "Rotate", "Scale", "Flip", "Jitter", "Elastic", "Elastic"] + [
        "AutoContrast",
        "ColorShift",
        "ColorJitter",
    ]


def test_blocks_learn_at_a_rate_of_their_own() -> None:
    model = zoo.load("pape-ptv3-n-modelnet10", pretrained=False, **PTV3)
    plain, slow = parameter_groups(model, 0.1), parameter_groups(model, 0.1, block_lr=0.1)
    assert [len(group["params"]) for group in plain] == [
        sum(len(group["params"]) for group in slow if group["weight_decay"] == decay) for decay in (0.0, 0.1)
    ]
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    inside = {names[id(p)] for group in slow if group["lr_scale"] == 0.1 for p in group["params"]}
    assert inside == {name for name in names.values() if name.startswith("encoder.")} and len(inside) > 10
    with pytest.raises(ConfigError, match="one of them"):
        load_recipe("modelnet40", {"layer_decay": 0.9})


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = write_modelnet10(tmp_path / "data"), tmp_path / "run"
    settings = {"epochs": 1, "batch_size": 4, "compile": "false", "precision": "float32", "num_points": 48}
    arguments = [f"--set={key}={value}" for key, value in settings.items()] + [f"--set=model_options={json.dumps(VIT)}"]
    model = "pape-ri-point-vit-n-modelnet10"
    train_it = ["train", "modelnet10-vit", "--model", model, "--data", str(data), "--out", str(out), "--device", "cpu"]
    eval_it = ["eval", f"local-dir:{out}", "--data", str(data), "--split", "test", "--out", str(out / "e.json")]
    for command in ([*train_it, *arguments], eval_it):
        with pytest.raises(SystemExit, match="0"):
            main(command)
    assert "points" in capsys.readouterr().out
    assert json.loads((out / "e.json").read_text())["results"][0]["size"] == 48
