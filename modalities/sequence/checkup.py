"""Where the tokens of sequences lie, for `zoo doctor`. Imports no torch but for made-up tasks."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from modalities.sequence.data_config import SequenceDataConfig
from zoo.diagnosis.catalogue import Finding
from zoo.diagnosis.setup import Axis, Layout, Setup

__all__ = ["check", "layout", "of_recipe"]


def layout(config: Mapping[str, Any]) -> Layout:
    """Tokens one after the other; with several axes, ids that reach as far as tokens at the most."""
    model, data = config["model"], SequenceDataConfig.from_dict(config["data"])
    axes = model.get("coord_dim", 1)
    names = {1: ("position",), 2: ("row", "column"), 3: ("time", "row", "column")}[axes]
    known = float(data.length) if axes == 1 else None  # How ids on several axes grow depends on the content.
    return Layout(
        axes=tuple(Axis(name, known, 1.0, "a token") for name in names),
        shapes=((model["dim"], model["num_heads"], model["head_dim"]),),
        causal=True,
    )


def of_recipe(config: Mapping[str, Any], recipe: Any) -> dict[str, Any]:
    """A configuration with the length and the axes of what a recipe trains on."""
    from modalities.sequence.datasets import open_sequences, settings

    options, made = recipe.options, copy.deepcopy(dict(config))
    if settings(options.dataset, options.dataset_options) is None:
        made["data"]["length"] = options.length
        return made
    data = open_sequences(options.dataset, None, "train", length=options.length, options=options.dataset_options)
    made["data"]["length"], made["model"]["coord_dim"] = data.length, data.axes
    return made


def check(setup: Setup) -> Iterator[Finding]:
    """Nothing beyond what holds for all tokens."""
    yield from ()
