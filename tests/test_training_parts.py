from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from training_toys import TINY

import zoo
from zoo.errors import ConfigError
from zoo.training.compile_check import compiled_step_problem, projection
from zoo.training.loop import METRICS
from zoo.training.metrics import MetricsLog, read_metrics
from zoo.training.optim import make_schedule, parameter_groups
from zoo.training.recipe import Recipe, built_in_recipes, load_recipe, parse_overrides, recipe_from_dict
from zoo.training.seeds import derive_seed, host_rng

# Recipes


def test_built_in_recipe_is_the_documented_one() -> None:
    recipe = load_recipe("imagenette")
    assert recipe.model == "pape-vit-t-imagenette"
    assert (recipe.batch_size, recipe.lr, recipe.weight_decay, recipe.warmup) == (256, 8e-4, 0.05, 0.05)
    assert (recipe.options.mixup, recipe.options.cutmix, recipe.options.switch_prob) == (0.8, 1.0, 0.5)
    assert recipe.options.crop_scale == (0.2, 1.0)


def test_every_built_in_recipe_parses_and_survives_a_round_trip() -> None:
    assert built_in_recipes()
    for name in built_in_recipes():
        recipe = load_recipe(name)
        assert recipe_from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epoch": 3}, "unknown key 'epoch'; did you mean 'epochs'"),
        ({"cut_mix": 1.0}, "did you mean 'cutmix'"),
        ({"epochs": "many"}, "epochs must be a whole number, got 'many'"),
        ({"epochs": 2.5}, "epochs must be a whole number"),
        ({"epochs": True}, "epochs must be a whole number"),
        ({"lr": "fast"}, "lr must be a number"),
        ({"lr": float("nan")}, "lr must be above 0"),
        ({"compile": 1}, "compile must be true or false"),
        ({"betas": [0.9]}, "betas must be a list of 2 values"),
        ({"crop_scale": [0.9, 0.1]}, "crop_scale"),
        ({"precision": "fp8"}, "bf16 or float32"),
        ({"model_options": 3}, "model_options must be a mapping"),
        ({"task": "knitting"}, "task must be one of driving-detection"),
        ({"dev_count": 3, "dev_fraction": 0.1}, "not several"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"options": {}}, "unknown key 'options'"),
    ],
)
def test_bad_recipes_name_the_key(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        recipe_from_dict({"model": "pape-vit-t-imagenette", **changes})
    assert message in str(caught.value)


def test_recipe_sources(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="imagenette"):
        load_recipe("no-such-recipe")
    file = tmp_path / "mine.yaml"
    file.write_text("model: rope-vit-t-imagenette\nlr: 1e-4\n")  # YAML 1.1 reads 1e-4 as text
    recipe = load_recipe(file, parse_overrides(["epochs=7", "randaugment=[3, 5]"]))
    assert (recipe.lr, recipe.epochs, recipe.options.randaugment) == (1e-4, 7, (3, 5))
    file.write_text("epochs: 3\n")
    with pytest.raises(ConfigError, match="'model' is missing"):
        load_recipe(file)
    file.write_text("- a list\n")
    with pytest.raises(ConfigError, match="mapping"):
        load_recipe(file)
    with pytest.raises(ConfigError, match="key=value"):
        parse_overrides(["epochs"])


# Parts


def test_metrics_continue_without_duplicates_or_cut_lines(tmp_path: Path) -> None:
    path = tmp_path / METRICS
    log = MetricsLog(path)
    for step in (2, 4, 6):
        log.write({"step": step})
    log.close()
    with path.open("a") as file:
        file.write('{"step": 8, "lo')
    log = MetricsLog(path, after_step=4)
    log.write({"step": 6})
    log.close()
    assert read_metrics(path) == [{"step": 2}, {"step": 4}, {"step": 6}]
    MetricsLog(path).close()
    assert read_metrics(path) == []


def test_host_rng_restores_both_generators() -> None:
    import numpy as np

    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index, union-attr]
    with host_rng(5):
        first = torch.rand(2), np.random.rand(2)
    with host_rng(5):
        second = torch.rand(2), np.random.rand(2)
    assert torch.equal(first[0], second[0]) and (first[1] == second[1]).all()
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()  # type: ignore[index]


def test_seeds_are_fixed_and_distinct() -> None:
    assert derive_seed(0, 1, 2) == derive_seed(0, 1, 2)
    assert len({derive_seed(s, e, i) for s in range(5) for e in range(5) for i in range(5)}) == 125
    assert derive_seed("dev split") == 7775219334922994714  # the same on every machine and version


@pytest.mark.parametrize("encoding", ["pape", "pape-ri", "rope", "alibi", "sincos", "none"])
def test_parameter_groups(encoding: str) -> None:
    model = zoo.load(f"{encoding}-vit-n-in1k", pretrained=False, **TINY)
    names = {id(p): n for n, p in model.named_parameters()}
    groups = parameter_groups(model, 0.05)
    free = {names[id(p)] for g in groups if g["weight_decay"] == 0 for p in g["params"]}
    decayed = {names[id(p)] for g in groups if g["weight_decay"] == 0.05 for p in g["params"]}
    assert free | decayed == set(names.values()) and not free & decayed
    for name in names.values():
        exempt = name.endswith(".bias") or "norm" in name or name == "cls_token"
        exempt |= name.endswith(("encoding.position", "log_scale"))
        assert (name in free) == exempt, name


def test_layer_decay_falls_towards_the_input() -> None:
    model = zoo.load("pape-vit-t-imagenette", pretrained=False, **{**TINY, "depth": 3})
    names = {id(p): n for n, p in model.named_parameters()}
    scale = {names[id(p)]: g["lr_scale"] for g in parameter_groups(model, 0.05, 0.5) for p in g["params"]}
    assert set(scale) == set(names.values())
    order = ["embed.proj.weight", *(f"encoder.blocks.{i}.mlp.fc1.weight" for i in range(3)), "head.weight"]
    values = [scale[name] for name in order]
    assert values == sorted(values) and len(set(values)) >= 4 and values[-1] == 1.0
    # Relative to the peak rate, the schedule keeps the scales.
    recipe = Recipe(model="x", lr=1.0, warmup=0.0)
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.05, 0.5), lr=1.0)
    make_schedule(optimizer, recipe, 10).step_update(0)
    assert {g["lr"] for g in optimizer.param_groups} == {g["lr_scale"] for g in optimizer.param_groups}


def test_schedule_warms_up_linearly_then_follows_a_cosine() -> None:
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([parameter], lr=1.0)
    schedule = make_schedule(optimizer, Recipe(model="x", lr=1.0, warmup=0.1, final_lr=0.0), 100)
    rates = []
    for step in range(100):
        schedule.step_update(step)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates[0] > 0 and rates[10] == pytest.approx(1.0)
    steps = [b - a for a, b in zip(rates[:10], rates[1:11], strict=True)]
    assert max(steps) - min(steps) < 1e-9
    assert rates[55] == pytest.approx(0.5, abs=1e-9)
    assert 0 < rates[99] < 1e-3


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        nn.init.zeros_(self.head.weight)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return self.head(torch.relu(self.fc(x)) * (torch.rand(len(x), 1) < 0.8))


class Wrong(nn.Module):
    """Runs the model as a broken compiler might."""

    def __init__(self, model: nn.Module, fault: str) -> None:
        super().__init__()
        self.model, self.fault = model, fault

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fault == "raises":
            raise RuntimeError("no compiler")
        out = self.model(x)
        if self.fault == "nan":
            out.register_hook(lambda g: g * math.nan)
        elif self.fault == "gradient":
            out.register_hook(lambda g: 1.3 * g)
        return out + torch.tensor([1.0, -1.0]) if self.fault == "loss" else out


def test_the_projection_is_fixed_and_reaches_every_number() -> None:
    tree = {"a": [torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)], "b": torch.zeros(0)}
    first = projection(tree)
    assert first.dim() == 0 and torch.equal(projection(tree), first)
    first.backward()
    gradients = [leaf.grad for leaf in tree["a"]]
    assert all(gradient is not None and gradient.all() for gradient in gradients)
    assert not torch.equal(*gradients)  # Two maps exchanged would not go unnoticed.


@pytest.mark.parametrize(
    ("fault", "problem"),
    [("none", None), ("nan", "not finite"), ("gradient", "differ"), ("loss", "loss"), ("raises", "no compiler")],
)
@pytest.mark.parametrize("projected", [False, True])
def test_compile_check_finds_faults_and_leaves_the_state(fault: str, problem: str | None, projected: bool) -> None:
    """By a loss, or by the projection that the loop takes."""
    torch.manual_seed(0)
    model, inputs, targets = Toy(), torch.randn(16, 4), torch.randint(0, 2, (16,))
    before = {k: v.clone() for k, v in model.state_dict().items()}

    def loss_of(net: nn.Module) -> torch.Tensor:
        return projection(net(inputs)) if projected else nn.functional.cross_entropy(net(inputs), targets)

    found = compiled_step_problem(model, model, Wrong(model, fault), loss_of, seed=3)
    assert (found is None) if problem is None else (found is not None and problem in found)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
