"""How a fine-tuning run goes: the head first, the best weights kept, early stopping, resumption, LoRA, the card."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import finetune_toys as toys
import numpy as np
import pytest
import torch
import yaml
from finetune_toys import SHORT, base
from torch import nn
from training_toys import stop_after

import zoo
from zoo.cli.main import main
from zoo.errors import ConfigError, MissingDependencyError
from zoo.finetune.defaults import defaults
from zoo.finetune.found import Found
from zoo.training.checkpoint import CHECKPOINT
from zoo.training.head_first import HeadFirst
from zoo.training.loop import METRICS, RECORD, Trainer, train
from zoo.training.metrics import read_metrics
from zoo.training.recipe import load_recipe, recipe_from_dict
from zoo.training.selection import Selection

PICTURES = {"patch_size": 8, "input_size": 16}
NEEDS_PEFT = pytest.mark.skipif(
    importlib.util.find_spec("peft") is None, reason="peft is not installed (pip install 'pape-zoo[lora]')"
)


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path_factory.getbasetemp() / "zoo-cache"))


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> str:
    return base(tmp_path_factory.mktemp("base"), "pape-vit-n-imagenette", **PICTURES)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.write_pictures(tmp_path_factory.mktemp("mine"), 10)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return zoo.load(f"local-dir:{folder}").state_dict()


def scripted(monkeypatch: pytest.MonkeyPatch, values: list[float]) -> list[dict[str, torch.Tensor]]:
    """Makes evaluations give these values; the list gets the weights that were evaluated."""
    from modalities.image.task import ImageClassification

    left, seen = iter([*values, values[-1]]), []

    def evaluate(self: Any, model: nn.Module, precision: str) -> dict[str, float]:
        seen.append({key: value.clone() for key, value in model.state_dict().items()})
        return {"dev_top1": next(left)}

    monkeypatch.setattr(ImageClassification, "evaluate", evaluate)
    return seen


def test_the_best_weights_are_kept(origin: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = scripted(monkeypatch, [10.0, 30.0, 20.0, 20.0])
    zoo.finetune(origin, data, tmp_path / "out", **{**SHORT, "head_first": 0.0, "eval_every": 1, "patience": 0})
    record = json.loads((tmp_path / "out" / RECORD).read_text())
    kept = weights(tmp_path / "out")
    assert record["selected_step"] == record["steps"] // 2
    assert all(torch.equal(kept[key], seen[1][key]) for key in kept)
    assert any(not torch.equal(kept[key], seen[3][key]) for key in kept)


def test_a_run_that_gets_worse_stops(origin: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, [10.0, 50.0, 50.0, 20.0, 20.0, 20.0, 60.0, 70.0])
    settings = {**SHORT, "epochs": 8, "head_first": 0.0, "eval_every": 1, "patience": 3}
    result = zoo.finetune(origin, data, tmp_path / "out", **settings)
    assert result.finished and result.step == result.total_steps * 6 // 8
    record = json.loads((tmp_path / "out" / RECORD).read_text())
    assert record["selected_step"] == result.total_steps * 3 // 8 and record["steps"] == result.step
    assert not (tmp_path / "out" / CHECKPOINT).exists()
    again = zoo.finetune(origin, data, tmp_path / "out", resume=True)
    assert again.finished and again.step == result.step


def test_selection() -> None:
    model = nn.Linear(1, 1)
    loss = Selection("dev_nll", 2)
    for step, value in enumerate((3.0, 1.0, float("nan"), 2.0)):
        nn.init.constant_(model.weight, float(step))
        loss.observe(step, {"dev_nll": value}, model)
    assert (loss.best, loss.step, loss.stopped) == (1.0, 1, True)  # Less is better, and no number is worse than any.
    other = Selection("dev_nll", 2)
    other.load(loss.state())
    other.restore(model)
    assert model.weight.item() == 1.0 and other.stopped
    frozen = Selection("dev_top1", 1, first_step=5)
    for step, value in ((2, 50.0), (4, 10.0), (5, 10.0)):
        frozen.observe(step, {"dev_top1": value}, model)
    assert not frozen.stopped
    frozen.observe(6, {"dev_top1": 10.0}, model)
    assert frozen.stopped
    with pytest.raises(ConfigError, match=r"'dev_map' is no metric of the evaluation \(dev_top1\)"):
        Selection("dev_map").observe(1, {"dev_top1": 1.0}, model)
    nothing = Selection(None)
    nothing.observe(1, {}, model)
    nothing.restore(model)
    assert nothing.facts() == {} and not nothing.stopped


def test_the_head_learns_first(origin: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = scripted(monkeypatch, [1.0, 2.0, 3.0, 4.0])
    zoo.finetune(origin, data, tmp_path / "out", **{**SHORT, "head_first": 0.5, "eval_every": 1})
    before = zoo.load(origin).state_dict()
    body = [key for key in before if not key.startswith("head.")]
    for epoch in (0, 1):
        assert all(torch.equal(seen[epoch][key], before[key]) for key in body)
    assert any(not torch.equal(seen[2][key], before[key]) for key in body)
    assert not torch.equal(seen[0]["head.weight"], seen[1]["head.weight"])


@pytest.mark.parametrize("skip", [False, True])
def test_head_first_ramps_and_drops(skip: bool) -> None:
    model = nn.ModuleDict({"body": nn.Linear(2, 2), "head": nn.Linear(2, 1)})
    groups = [{"params": list(model["body"].parameters())}, {"params": list(model["head"].parameters())}]
    optimizer = torch.optim.AdamW(groups, lr=1.0)
    first = HeadFirst(model, optimizer, 2, 3, skip_backward=skip)
    rates = []
    for step in range(7):
        for group in optimizer.param_groups:
            group["lr"] = 1.0
        first.begin(step)
        model["head"](model["body"](torch.ones(1, 2))).sum().backward()
        first.drop_frozen(step)
        frozen = [parameter.grad is None for parameter in model["body"].parameters()]
        assert frozen == [step < 2] * 2 and model["head"].weight.grad is not None
        rates.append([group["lr"] for group in optimizer.param_groups])
        model.zero_grad(set_to_none=True)
    assert [rate[0] for rate in rates[2:]] == [0.25, 0.5, 0.75, 1.0, 1.0] and {rate[1] for rate in rates} == {1.0}
    with pytest.raises(ConfigError, match="no head apart"):
        HeadFirst(nn.Linear(1, 1), torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0), 1, 0, skip_backward=False)


def test_the_head_has_its_own_learning_rate(origin: str) -> None:
    from zoo.training.optim import parameter_groups

    model = zoo.load(origin)
    names = {id(parameter): name for name, parameter in model.named_parameters()}

    def scales(**options: Any) -> dict[str, float]:
        groups = parameter_groups(model, 0.05, **options)
        return {names[id(p)]: group.get("lr_scale", 1.0) for group in groups for p in group["params"]}

    plain, fast = scales(layer_decay=0.5), scales(layer_decay=0.5, head_lr=10.0)
    assert plain.keys() == fast.keys() == set(names.values())
    assert all(fast[name] == plain[name] * (10 if name.startswith("head.") else 1) for name in plain)
    both = scales(block_lr=0.1, head_lr=4.0)
    assert (both["head.weight"], both["cls_token"]) == (4.0, 1.0)
    assert {both[name] for name in both if name.startswith("encoder.blocks.0")} == {0.1}


def test_resumed_runs_and_repeated_ones_are_the_same(
    origin: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**SHORT, "head_first": 0.3, "eval_every": 1}
    whole = zoo.finetune(origin, data, tmp_path / "whole", **settings)
    with monkeypatch.context() as patch:
        stop_after(patch, whole.total_steps * 2 // 3)
        cut = zoo.finetune(origin, data, tmp_path / "cut", **settings)
    assert not cut.finished and cut.step == whole.total_steps * 2 // 3
    assert zoo.finetune(origin, data, tmp_path / "cut", resume=True).finished
    train(load_recipe(tmp_path / "whole" / "recipe.yaml", {"output": str(tmp_path / "repeated")}))
    first = weights(tmp_path / "whole")
    for other in ("cut", "repeated"):
        second = weights(tmp_path / other)
        assert all(torch.equal(first[key], second[key]) for key in first)
    kept = [row for row in read_metrics(tmp_path / "whole" / METRICS) if "dev_top1" in row]
    assert kept == [row for row in read_metrics(tmp_path / "cut" / METRICS) if "dev_top1" in row]
    with pytest.raises(ConfigError, match="already holds a run"):
        zoo.finetune(origin, data, tmp_path / "whole", **settings)
    with pytest.raises(ConfigError, match=r"no recipe\.yaml"):
        zoo.finetune(origin, data, tmp_path / "never", resume=True)


def test_other_classes_of_the_same_number_get_a_new_head(data: Path, tmp_path: Path) -> None:
    model = zoo.load(base(tmp_path / "a", "pape-vit-n-imagenette", **PICTURES), num_classes=2)
    nn.init.constant_(model.head.weight, 7.0)
    for labels, kept in ((["cats", "dogs"], False), (["bright", "dark"], True)):
        model.config["labels"] = labels
        folder = tmp_path / labels[0]
        zoo.save(model, folder)
        recipe = zoo.finetune.make_recipe(f"local-dir:{folder}", data, **SHORT)
        trained = Trainer(recipe, _accelerator(), tmp_path / "out").model
        assert bool((trained.head.weight == 7.0).all()) is kept
        assert trained.config["labels"] == ["bright", "dark"]


def _accelerator() -> Any:
    from accelerate import Accelerator

    return Accelerator(cpu=True)


def test_size_and_options_reach_the_model(origin: str, data: Path, tmp_path: Path) -> None:
    zoo.finetune(origin, data, tmp_path / "out", size=24, **SHORT, weights_dtype="int8")
    assert "stored in 8 bits" in (tmp_path / "out" / "README.md").read_text()
    model = zoo.load(f"local-dir:{tmp_path / 'out'}")
    assert model.data_config.input_size == (3, 24, 24)
    recipe = yaml.safe_load((tmp_path / "out" / "recipe.yaml").read_text())
    assert recipe["weights_dtype"] == "int8" and recipe["image_size"] == 24 and recipe["pretrained"] is True
    with pytest.raises(ConfigError, match="did you mean 'epochs'"):
        zoo.finetune(origin, data, tmp_path / "other", epoch=3)


def test_defaults_follow_the_amount_of_data() -> None:
    def of(samples: int, **options: Any) -> dict[str, Any]:
        found = Found("", "image-classification", "dev_top1", samples, ("a", "b"), "")
        made = defaults(found, **options)
        recipe_from_dict({"model": "x", **made})
        assert made["batch_size"] <= max(2, samples // 5)
        return made

    small, large = of(40), of(50_000)
    assert small["epochs"] > large["epochs"] == 10 and small["batch_size"] < large["batch_size"] == 64
    assert of(40, lora=8)["layer_decay"] is None and of(40, lora=8)["lr"] > small["lr"]
    assert of(2)["batch_size"] == 2 and of(1)["epochs"] >= 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"select": "dev_top1"}, "set eval_every"),
        ({"patience": 3}, "set select"),
        ({"head_first": 1.0}, "head_first must be"),
        ({"lora": -1}, "lora must be"),
        ({"dev_split": "validation", "dev_by_class": 0.1}, "set one of"),
    ],
)
def test_bad_keys(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        recipe_from_dict({"model": "pape-vit-t-imagenette", **changes})


def test_lora_without_peft(origin: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'pape-zoo\[lora\]'"):
        zoo.finetune(origin, data, tmp_path / "out", lora=4, **SHORT)
    assert not (tmp_path / "out").exists()


@NEEDS_PEFT
def test_lora(origin: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from zoo.training.lora import add_lora, lora_targets, merge_lora
    from zoo.training.snapshot import snapshot

    model = zoo.load(origin)
    assert len(lora_targets(model)) == 4 * 2
    plain, pixels = set(model.state_dict()), torch.randn(2, 3, 16, 16)
    add_lora(model, 4)
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad == ("lora_" in name or name.startswith("head."))
        if "lora_B" in name:
            nn.init.normal_(parameter)
    with torch.no_grad():
        adapted = model.eval()(pixels)
        merge_lora(model)
        assert set(model.state_dict()) == plain and torch.allclose(model(pixels), adapted, atol=1e-4)

    settings = {**SHORT, "lora": 4, "head_first": 0.2, "eval_every": 1}
    whole = zoo.finetune(origin, data, tmp_path / "whole", **settings)
    with monkeypatch.context() as patch:
        stop_after(patch, whole.total_steps // 2)
        zoo.finetune(origin, data, tmp_path / "cut", **settings)
    zoo.load(f"local-dir:{snapshot(tmp_path / 'cut', tmp_path / 'middle')[0]}")
    zoo.finetune(origin, data, tmp_path / "cut", resume=True)
    first, second, before = weights(tmp_path / "whole"), weights(tmp_path / "cut"), zoo.load(origin).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)
    changed = {key for key in before if not key.startswith("head.") and not torch.equal(first[key], before[key])}
    assert changed and changed <= {f"{name}.weight" for name in lora_targets(zoo.load(origin))}


def test_the_card_says_what_was_done(data: Path, tmp_path: Path) -> None:
    model = zoo.load("pape-vit-n-imagenette")
    assert model.config["labels"]  # An embedded model, whose terms are known.
    out = tmp_path / "out"
    zoo.finetune("pape-vit-n-imagenette", data, out, **{**SHORT, "epochs": 1, "eval_every": 1})
    text = (out / "README.md").read_text()
    front = yaml.safe_load(text.split("---")[1])
    record = json.loads((out / RECORD).read_text())
    assert front["license_name"] == "unknown" and front["model-index"][0]["results"][0]["metrics"] == [
        {"type": "accuracy", "name": "top-1", "value": record["dev_top1"]}
    ]
    for words in (
        "The weights of `pape-vit-n-imagenette`",
        "On 20% of each class of the training data",
        "(4 pictures), in float32",
        "chosen by top-1 on the same data",
        "trained on Imagenette",
        "imagenet-research-non-commercial",
        "Licence of these data: unknown",
        "Classes: bright, dark.",
    ):
        assert words in text
    name = zoo.load(f"local-dir:{out}").config["name"]
    (out / "README.md").write_text(text + "mine\n")
    zoo.finetune("pape-vit-n-imagenette", data, out, resume=True)  # Changes nothing of a finished run.
    assert (out / "README.md").read_text() == text + "mine\n"
    assert zoo.load(f"local-dir:{out}").config["name"] == name == f"pape-vit-n-imagenette-{data.name}"
    again = zoo.finetune.plan(f"local-dir:{out}", data)
    assert Path(again.recipe["output"]).name == f"pape-vit-n-imagenette-{data.name}-{data.name}"


def test_cli_from_folder_to_prediction(
    origin: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"

    def run(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["zoo", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        return int(stop.value.code or 0), capsys.readouterr().out

    common = ("--out", out, "--device", "cpu", "--epochs", 12, "--lr", 3e-3, "--quiet", "--set", "precision=float32")
    with monkeypatch.context() as patch:
        stop_after(patch, 5)
        code, shown = run("finetune", origin, "--data", data, *common)
    assert code == 0 and f"zoo finetune {origin} --out {out} --resume" in shown
    code, shown = run("finetune", origin, "--out", out, "--resume", "--quiet")
    assert code == 0 and "dev_top1 100.00" in shown and "recipe.yaml" in shown
    code, shown = run("predict", f"local-dir:{out}", data / "dark" / "0.png", "--json")
    assert code == 0 and "dark" in shown
    assert run("finetune", origin)[0] == 2


@pytest.mark.slow
def test_fifty_blood_cells(shared: Path, tmp_path: Path) -> None:
    """From 50 cells to a model 10 points above a linear classifier on the pixels, on 450 cells of other pictures."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    try:
        import bccd_cells
    finally:
        sys.path.pop(0)
    cells = tmp_path / "cells"
    bccd_cells.crop(shared / "data" / "bccd", cells, 50, 0, bccd_cells.CONTEXT)
    zoo.finetune("pape-vit-t-imagenette", cells, tmp_path / "out", device="cpu")
    predictor = zoo.predictor(f"local-dir:{tmp_path / 'out'}", top_k=1)
    files = sorted((cells / "test").glob("*/*.png"))
    right = [result.label == file.parent.name for result, file in zip(predictor(files), files, strict=True)]
    assert len(right) == 450
    assert 100 * np.mean(right) >= max(bccd_cells.probe(cells).values()) + 10
