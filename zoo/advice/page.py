"""Everything that `advise` knows, as plain data from which a page without a server can do the same."""

from __future__ import annotations

from typing import Any

from zoo.advice.candidates import MEASURE, candidates, commands, models_of, properties
from zoo.advice.measurements import tables
from zoo.advice.ranking import MODELS
from zoo.advice.rules import check_answers, load_rules, questions

__all__ = ["page_data"]


def page_data() -> dict[str, Any]:
    """Questions, rules, tables, and the properties of every candidate for every kind of tokens, JSON-ready.

    `properties` is by tokens, then by encoding; `beyond_fold` in it is for an unknown side (compare `fold_side`), and
    `weights` for no demand on rotation. `starts` is by tokens, then by the answer to `rotation` where it matters, then
    by encoding: the `models` to name, best first, and the `commands` by phase, to which `measure` adds one by tokens
    where the size is changing in training.
    """
    rules = load_rules()
    return {
        "questions": questions(),
        "tokens": rules["tokens"],
        "rules": rules["rules"],
        "tables": tables(),
        "properties": {
            tokens: {name: properties(name, check_answers({"tokens": tokens})[0]) for name in candidates()}
            for tokens in rules["tokens"]
        },
        "starts": {
            tokens: {
                rotation: _starts(tokens, rotation)
                for rotation in ("no", *(["invariant"] if "invariant" in known else []))
            }
            for tokens, known in rules["tokens"].items()
        },
        "measure": MEASURE,
    }


def _starts(tokens: str, rotation: str) -> dict[str, Any]:
    """Encoding -> models to start from and commands to begin with."""
    by_phase = {
        phase: check_answers({"tokens": tokens, "rotation": rotation, "phase": phase})[0]
        for phase in ("training", "inference")
    }
    return {
        name: {
            "models": models_of(name, by_phase["training"])[:MODELS],
            "commands": {phase: commands(name, None, answers) for phase, answers in by_phase.items()},
        }
        for name in candidates()
    }
