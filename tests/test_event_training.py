"""Training and scoring on tiny sets in the real layouts: all recipes, end to end on the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from modalities.events.batches import SampleStore, TokenBatches, tokens_of
from modalities.events.canvas import CanvasOptions, make_canvas
from modalities.events.data_config import EventDataConfig
from modalities.events.datasets.base import TimedBoxes
from modalities.events.datasets.find import open_clips, open_scenes
from modalities.events.evaluate import accuracy, average_precision
from modalities.events.presets import NMNIST_DATA
from modalities.events.protocol import ALL_BOXES
from tests.event_sets import MPX1_BOXES, write_gestures, write_nmnist, write_scenes
from tests.training_toys import stop_after
from zoo.cli.main import main
from zoo.detection.detections import Detections
from zoo.errors import ConfigError, DataError
from zoo.training.loop import Trainer, train
from zoo.training.recipe import Recipe, load_recipe

SMALL_NET = {"dim": 32, "depth": 1, "num_heads": 1, "head_dim": 32, "mlp_dim": 64}
QUICK = {
    "device": "cpu",
    "compile": False,
    "precision": "float32",
    "epochs": 1,
    "batch_size": 2,
    "log_every": 1,
    "checkpoint_seconds": 0,
    "workers": 2,
}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def nmnist_set(tmp_path: Path) -> Path:
    return write_nmnist(tmp_path / "nmnist")


@pytest.fixture
def canvas_set(tmp_path: Path, nmnist_set: Path) -> Path:
    make_canvas(nmnist_set, tmp_path / "canvas", CanvasOptions(train=4, val=2, test=3))
    return tmp_path / "canvas"


def recipe(name: str, data: Path, out: Path, **changes: Any) -> Recipe:
    return load_recipe(name, {**QUICK, "data": str(data), "output": str(out), "model_options": SMALL_NET, **changes})


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", ["nmnist1100", "nmnist-canvas", "dvsgesture", "gen1"])
def test_recipes_run_on_sets_in_the_real_layouts(tmp_path: Path, name: str, request: pytest.FixtureRequest) -> None:
    if "canvas" in name or name == "gen1":
        pytest.importorskip("faster_coco_eval")
    changes: dict[str, Any] = {"eval_every": 1}
    if name == "nmnist1100":
        data = request.getfixturevalue("nmnist_set")
        changes |= {"dev_count": 4, "batch_size": 12}
    elif name == "nmnist-canvas":
        data = request.getfixturevalue("canvas_set")
    elif name == "dvsgesture":
        data = write_gestures(tmp_path / "DvsGesture")
        changes |= {"model": "pape-event-vit-n-dvsgesture"}
    else:
        data = write_scenes(tmp_path / "gen1")
        changes |= {"model": "pape-event-det-n-gen1", "model_options": {**SMALL_NET, "pyramid_dim": 16}}
    out = tmp_path / "run"
    result = train(recipe(name, data, out, **changes))
    assert result.finished and np.isfinite(result.loss)
    record = json.loads((out / "train_record.json").read_text())
    assert record["data"]["tokens"] >= 8 and record["data"]["samples"] >= 4
    assert ("dev_map" if "canvas" in name or name == "gen1" else "dev_top1") in record
    if name in ("gen1", "nmnist-canvas"):
        assert {"loss/one2many_box", "loss/one2one_class"} <= lines(out)[0].keys()
    import zoo

    model = zoo.load(f"local-dir:{out}")
    assert model.config["labels"] == list(open_dataset_names(data))


def open_dataset_names(data: Path) -> list[str]:
    from modalities.events.datasets import open_dataset

    return open_dataset(data, "test").class_names


def test_the_recipes_have_the_settings_of_the_paper() -> None:
    gesture, gen1 = load_recipe("dvsgesture"), load_recipe("gen1")
    assert (gesture.epochs, gesture.batch_size, gesture.lr, gesture.final_lr) == (300, 32, 5e-5, 5e-7)
    assert gesture.model == "pape-event-vit-b-dvsgesture" and gesture.options.flip == 0.5
    assert (gen1.epochs, gen1.batch_size, gen1.lr, gen1.precision) == (150, 64, 1e-4, "bf16")
    assert gen1.model == "pape-event-det-b-gen1"
    assert load_recipe("nmnist1100").options.flip == load_recipe("nmnist-canvas").options.flip == 0


def test_an_interrupted_run_ends_as_one_that_was_not(
    tmp_path: Path, nmnist_set: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"epochs": 2, "batch_size": 20}
    train(recipe("nmnist1100", nmnist_set, tmp_path / "whole", **changes))
    parts = recipe("nmnist1100", nmnist_set, tmp_path / "parts", **changes)
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        assert not train(parts).finished
    assert train(parts, resume=True).finished
    whole, resumed = ((tmp_path / n / "model.safetensors").read_bytes() for n in ("whole", "parts"))
    assert whole == resumed


def test_batches_depend_on_seed_epoch_and_index_alone(tmp_path: Path, nmnist_set: Path) -> None:
    def task(**changes: Any) -> Any:
        import accelerate

        chosen = recipe("nmnist1100", nmnist_set, tmp_path / "run", batch_size=8, **changes)
        return Trainer(chosen, accelerate.Accelerator(cpu=True), tmp_path / "run").task

    one, other = task(workers=1), task(workers=3)
    late = [other.batch(*place) for place in ((3, 1), (0, 0), (2, 4))]
    for (tokens, labels), place in zip(late, ((3, 1), (0, 0), (2, 4)), strict=True):
        again, again_labels = one.batch(*place)
        assert tokens.patches.dtype == torch.uint8 and tokens.x.shape == again.x.shape == late[0][0].x.shape
        assert torch.equal(labels, again_labels)
        for name in ("x", "y", "t_us", "patches", "mask"):
            assert torch.equal(getattr(tokens, name), getattr(again, name))
    assert not torch.equal(late[0][0].patches, task(seed=1).batch(3, 1)[0].patches)


def test_batches_without_augmentation_are_what_the_model_sees_elsewhere(nmnist_set: Path) -> None:
    config = EventDataConfig.from_dict({**NMNIST_DATA, "threshold": 8})
    store = SampleStore(open_clips(nmnist_set, "train"), np.arange(0, 40, 3), 1.0)
    batches = TokenBatches(store, config, workers=2)
    tokens, samples = batches([5, 0, 13], seed=0)
    assert batches.facts["longest_tokens"] <= batches.length == tokens.x.shape[1]
    for row, number in enumerate((5, 0, 13)):
        expected = tokens_of(store[number], config)
        count = len(expected)
        assert tokens.mask[row].sum() == count > 0 and samples[row].label == store[number].label
        assert np.array_equal(tokens.patches[row, :count].numpy(), expected.patches)
        assert np.array_equal(tokens.t_us[row, :count].numpy(), expected.t_us)
        assert not tokens.patches[row, count:].any() and not tokens.mask[row, count:].any()
    batches.close()
    few = TokenBatches(store, config, max_tokens=5, workers=1)
    short, _ = few([5], seed=0)
    assert short.x.shape == (1, 5) and few.facts["samples_over_tokens"] > 0
    assert np.array_equal(short.t_us[0].numpy(), tokens_of(store[5], config).t_us[-5:])  # The latest.
    wide = TokenBatches(store, config.replace(threshold=300), workers=1)
    none, _ = wide([0], seed=0)
    assert none.patches.dtype == torch.int16 and not none.mask.any()


def test_samples_that_do_not_fit_into_memory_are_read_again(nmnist_set: Path) -> None:
    data = open_clips(nmnist_set, "train")
    whole, none = (SampleStore(data, np.arange(40), gib) for gib in (1.0, 0.0))
    some = SampleStore(data, np.arange(40), 5 * 400 * 17 / 2**30)
    assert (len(whole._kept), len(some._kept), len(none._kept)) == (40, 5, 0)
    for row in (0, 4, 5, 39):
        for store in (some, none):
            assert np.array_equal(store[row].events.t_us, whole[row].events.t_us)
            assert store[row].label == whole[row].label


class Oracle(torch.nn.Module):
    """A detector that knows the answers, in the order in which it is asked."""

    def __init__(self, data: Any, config: EventDataConfig, num_classes: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.data, self.data_config, self.num_classes, self.asked = data, config, num_classes, 0

    def forward(self, tokens: Any) -> Detections:
        rows = torch.zeros(len(tokens), 10, 6)
        for row in rows:
            sample = self.data.sample(self.asked, self.data.read(self.asked))
            self.asked += 1
            for place, (box, label) in enumerate(zip(sample.boxes, sample.labels, strict=True)):
                row[place] = torch.tensor([*box, 0.9, label])
        return Detections(rows, (240, 304), None)  # type: ignore[arg-type]


def test_an_oracle_has_all_points_and_another_has_not(canvas_set: Path) -> None:
    pytest.importorskip("faster_coco_eval")
    from modalities.events.presets import CANVAS_DATA

    config = EventDataConfig.from_dict(CANVAS_DATA)
    data = open_scenes(canvas_set, "test", window_us=config.window_us, window_events=None)
    scores = average_precision(Oracle(data, config, 10), data, ALL_BOXES, batch_size=2)
    assert scores["map"] == pytest.approx(100)
    late = Oracle(data, config, 10)
    late.asked = -1  # The answers of the scene before.
    assert average_precision(late, data, ALL_BOXES, batch_size=2)["map"] < 50
    with pytest.raises(ConfigError, match="10 classes, the model 3"):
        average_precision(Oracle(data, config, 3), data, ALL_BOXES)
    with pytest.raises(ConfigError, match="304 x 240"):
        average_precision(Oracle(data, config.replace(width=300), 10), data, ALL_BOXES)


class Reader(torch.nn.Module):
    """A classifier of the toy digits by where their events are."""

    def __init__(self, config: EventDataConfig) -> None:
        super().__init__()
        self.weight, self.data_config, self.num_classes = torch.nn.Parameter(torch.zeros(1)), config, 10

    def forward(self, tokens: Any) -> torch.Tensor:
        scores = torch.zeros(len(tokens), 10)
        for row in range(len(tokens)):
            x, y = (getattr(tokens, a)[row][tokens.mask[row]].float().mean() * 4 + 2 for a in "xy")
            scores[row, int(round(float(x - 5) / 6)) + 5 * int(y > 16)] = 1
        return scores


def test_accuracy_counts_every_clip_once(nmnist_set: Path) -> None:
    config = EventDataConfig.from_dict({**NMNIST_DATA, "threshold": 4})
    data = open_clips(nmnist_set, "test")
    for batch_size in (1, 3, 7, 64):
        assert accuracy(Reader(config), data, batch_size=batch_size)["top1"] == 100
    data.labels[:5] = 9
    assert accuracy(Reader(config), data, batch_size=3)["top1"] == 75
    assert accuracy(Reader(config), data, np.arange(5), batch_size=3)["top1"] == 0
    with pytest.raises(DataError, match="0 clips"):
        accuracy(Reader(config), data, np.arange(0))


def test_eval_command(tmp_path: Path, nmnist_set: Path, canvas_set: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main(["eval", *arguments, "--device", "cpu", "--quiet"])
        return (int(stop.value.code or 0), *capsys.readouterr())

    code, out, _ = run("pape-event-vit-n-nmnist1100", "--data", str(nmnist_set), "--split", "test", "--json")
    if code:  # Without weights in the package, a model has to be trained first.
        train(recipe("nmnist1100", nmnist_set, tmp_path / "run", batch_size=20))
        code, out, _ = run(f"local-dir:{tmp_path / 'run'}", "--data", str(nmnist_set), "--split", "test", "--json")
    report = json.loads(out)
    assert code == 0 and report["images"] == 20 and 0 <= report["results"][0]["top1"] <= 100
    pytest.importorskip("faster_coco_eval")
    options = {**SMALL_NET, "pyramid_dim": 16}
    train(recipe("nmnist-canvas", canvas_set, tmp_path / "det", model_options=options))
    code, out, _ = run(f"local-dir:{tmp_path / 'det'}", "--data", str(canvas_set), "--split", "validation", "--json")
    report = json.loads(out)
    assert code == 0 and report["split"] == "val" and "map" in report["results"][0] and report["images"] == 2
    code, out, _ = run(f"local-dir:{tmp_path / 'det'}", "--data", str(canvas_set), "--split", "test", "--limit", "1")
    assert code == 0 and "mAP" in out and "1 samples" in out
    code, _, err = run(f"local-dir:{tmp_path / 'det'}", "--data", str(canvas_set), "--sizes", "64")
    assert code == 2 and "size of their sensor" in err
    code, _, err = run(f"local-dir:{tmp_path / 'det'}", "--data", str(nmnist_set), "--split", "test")
    assert code == 2 and "a detector needs" in err


def test_1mpx_is_halved_for_a_model_of_half_its_size(tmp_path: Path) -> None:
    pytest.importorskip("faster_coco_eval")
    from modalities.events.detector import build
    from modalities.events.evaluate import evaluate_events
    from modalities.events.presets import GEN1_DATA, detector_config

    write_scenes(tmp_path / "set", size=(1280, 720), dtype=MPX1_BOXES)
    data = {**GEN1_DATA, "width": 640, "height": 360}
    config = detector_config("x", encoding="none", size="n", num_classes=3, data=data, pyramid_dim=16)
    config["model"].update(SMALL_NET)
    report = evaluate_events(build(config), tmp_path / "set", split="test", limit=2)
    assert report["results"][0]["size"] == [360, 640] and report["images"] == 2
    with pytest.raises(ConfigError, match="1280 x 720"):
        evaluate_events(build({**config, "data": {**data, "width": 320}}), tmp_path / "set")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"flip": 1.5}, "flip"),
        ({"zoom": 1.0}, "zoom"),
        ({"rotate": -1.0}, "rotate"),
        ({"dataset": "mnist"}, "dataset"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"workers": 0}, "workers"),
        ({"half": True}, "unknown key 'half'"),
        ({"label_smoothing": 1.0}, "label_smoothing"),
        ({"dev_count": -1}, "dev_count"),
    ],
)
def test_recipe_keys_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_recipe("nmnist1100", changes)


def test_tasks_that_do_not_fit(tmp_path: Path, nmnist_set: Path) -> None:
    with pytest.raises(ConfigError, match="no training data"):
        train(load_recipe("nmnist1100", {"output": str(tmp_path / "a"), **QUICK}))
    with pytest.raises(ConfigError, match="41|more than the 40"):
        train(recipe("nmnist1100", nmnist_set, tmp_path / "a", batch_size=41))
    with pytest.raises(DataError, match="dev_count 40"):
        train(recipe("nmnist1100", nmnist_set, tmp_path / "a", dev_count=40))
    with pytest.raises(ConfigError, match="34 x 34"):
        train(recipe("nmnist1100", nmnist_set, tmp_path / "a", model="pape-event-vit-n-dvsgesture"))
    gestures = write_gestures(tmp_path / "g")
    with pytest.raises(ConfigError, match="leave dev_count at 0"):
        train(recipe("dvsgesture", gestures, tmp_path / "a", dev_count=1))
    with pytest.raises(ConfigError, match="trains models for events classification"):
        train(recipe("nmnist1100", nmnist_set, tmp_path / "a", model="pape-vit-t-imagenette", model_options={}))


def test_joining_boxes_of_no_part() -> None:
    assert len(TimedBoxes.concatenate([])) == 0
