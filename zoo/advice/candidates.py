"""The encodings to choose from, with the properties that rules ask for, and the models to start from."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Mapping
from typing import Any

from zoo import registry
from zoo.advice.measurements import measured, tables
from zoo.advice.rules import load_rules
from zoo.encodings import encodings, split_name
from zoo.encodings.facts import EXTENSIONS, FACTS, facts_row

__all__ = ["MEASURE", "candidates", "commands", "models_of", "properties"]

# Learned numbers a layer beyond which an encoding counts as large: a twentieth of a layer of ViT-B (7.1 million).
_MANY = 354_000
# `zoo.encodings.quadratic.SAFE_RADIUS_16_BIT`, which imports torch: the largest sum over axes of (half extent)^2.
FOLD_RADIUS = 4096.0
# Tokens -> the command that measures what was trained at other sizes.
MEASURE = {"grid": "zoo eval local-dir:OUT --data DIR --sizes 112,160,224"}
_ORDER = ("embedded", "hub", "release", "none")


def candidates() -> list[str]:
    """All registered encodings, and the combinations that were measured or have a registered model."""
    combined = {registry.entry(name).encoding for name in registry.list_models()}
    combined |= {row["encoding"] for table in tables().values() for row in table["rows"]}
    return [*encodings(), *sorted(name for name in combined if "+" in name)]


def properties(name: str, answers: Mapping[str, Any]) -> dict[str, Any]:
    """What rules may ask of an encoding, as plain data.

    Args:
        name: An encoding or a combination.
        answers: To the questions.

    Returns:
        The facts of `zoo encodings` (of a combination those of its attention encoding; `translation` and `rotation`
        where both parts have it), and `combined`, `token_part`, `axes_fit` (it takes coordinates of these tokens),
        `token_axes`, `ladder` (it has a frequency ladder, so that YaRN applies), `ablation`, `weights` (the best of
        models for such tokens), `many_parameters`, `fold_side` (tokens a side up to which a quadratic term folds into
        q and k in 16 bit, on a grid of as many axes) and `beyond_fold` (the answer to `side` exceeds it).
    """
    token, attention = split_name(name)
    parts = [part for part in (token, attention) if part and (part != "none" or token is None)]
    main = parts[-1]
    facts = FACTS[main]
    axes = load_rules()["tokens"][answers["tokens"]]["axes"]
    models = models_of(name, answers)
    side = None if facts.fast_side is None else _fold_side(axes)
    return {
        **facts_row(main),
        "name": name,
        "kind": facts.kind,
        "translation": all(FACTS[part].translation for part in parts),
        "rotation": all(FACTS[part].rotation for part in parts),
        "combined": len(parts) > 1,
        "token_part": token,
        "token_axes": axes,
        "axes_fit": all(_takes(FACTS[part].axes, axes) for part in parts),
        "ladder": "yarn" in EXTENSIONS.get(main, ""),
        "ablation": "ablation" in facts.source,
        "weights": models[0]["weights"] if models else "none",
        "many_parameters": facts_row(main)["parameters_vit_b16"] > _MANY,  # type: ignore[operator]
        "fold_side": side,
        "beyond_fold": side is not None and answers["side"] > side,
    }


def _fold_side(axes: int) -> int:
    """Tokens a side of the largest grid of so many axes on which a quadratic term folds."""
    return int(2 * math.sqrt(FOLD_RADIUS / axes)) + 1


def _takes(axes: str, count: int) -> bool:
    numbers = [int(number) for number in re.findall(r"\d+", axes)]
    return not numbers or numbers[0] <= count <= numbers[-1]


def _facts_of(answers: Mapping[str, Any]) -> dict[str, Any]:
    """What is known of the tokens, see `rules.yaml`."""
    known = load_rules()["tokens"][answers["tokens"]]
    return {**known, **known.get("invariant", {})} if answers["rotation"] == "invariant" else known


def models_of(encoding: str, answers: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Registered models of an encoding for such tokens: with weights, then measured, then with a recipe first."""
    known = {row["model"] for table in measured(answers["tokens"]) for row in table["rows"]}
    found = []
    for pattern in _facts_of(answers)["models"]:
        names = registry.list_models(pattern, encoding=encoding)
        found += [entry for entry in map(registry.entry, names) if _has_facts_of(entry, pattern)]
    found.sort(key=lambda one: (_ORDER.index(one.weights), one.name not in known, one.command is None, one.parameters))
    return [
        {
            "name": entry.name,
            "weights": entry.weights,
            "task": entry.task,
            "modality": entry.modality,
            "measured": entry.name in known,
            "command": entry.command,
        }
        for entry in found
    ]


def _has_facts_of(entry: registry.Entry, pattern: str) -> bool:
    """Whether `*` at the start of a pattern stands for the encoding alone, and no start of a longer name (`video-`)."""
    encoding = entry.encoding.replace("+", "-")
    return not pattern.startswith("*") or fnmatch.fnmatchcase(entry.name, encoding + pattern[1:])


def commands(encoding: str, extend: str | None, answers: Mapping[str, Any]) -> list[str]:
    """Command lines to begin with: to train (or run) a model of an encoding, and to measure it at other sizes."""
    tokens = answers["tokens"]
    models = models_of(encoding, answers)
    if answers["phase"] == "inference":
        lines = [f"zoo predict {model['name']} FILE" for model in models if model["weights"] == "embedded"][:1]
        return lines + [f"zoo card {model['name']}" for model in models if model["weights"] in ("hub", "release")][:1]
    known = [model["command"] for model in models if model["command"]][:1]
    lines = [f"{command} --out OUT" for command in known or [_by_recipe(encoding, _facts_of(answers))]]
    if tokens in MEASURE and answers["size"] == "changing":
        lines.append(MEASURE[tokens] + (f" --extend {extend}" if extend else ""))
    return lines


def _by_recipe(encoding: str, tokens: Mapping[str, Any]) -> str:
    """The command that gives a recipe's model another encoding, by name where one is registered."""
    from zoo.training.recipe import built_in_recipes
    from zoo.training.settings import read_settings

    _, recipe = read_settings(tokens["recipe"], built_in_recipes(), "recipe")
    own = registry.entry(tokens.get("model", recipe["model"]))
    other = encoding.replace("+", "-") + own.name.removeprefix(own.encoding.replace("+", "-"))
    if other in registry.list_models(encoding=encoding):
        change = f"--model {other}"
    else:
        base = "" if own.name == recipe["model"] else f"--model {own.name} "
        change = f'{base}--set "model_options={{encoding: {encoding}}}"'
    return f"zoo train {tokens['recipe']} {change}" + (" --data DIR" if tokens.get("data", True) else "")
