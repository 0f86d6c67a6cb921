"""What fine-tuning adds to the training loop: a new head, LoRA, the head first, the best weights kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from zoo.training.head_first import HeadFirst
from zoo.training.lora import add_lora, merge_lora
from zoo.training.recipe import Recipe
from zoo.training.selection import Selection

__all__ = ["Tuning", "prepare_model"]


def prepare_model(model: Any, recipe: Recipe, labels: Sequence[str] | None) -> None:
    """Gives a model of a run the names of its classes, a new head where the old one names others, and adapters.

    Args:
        model: As `zoo.load` gives it, with as many classes as the data.
        recipe: Of the run.
        labels: Names of the classes of the data, where they have any.
    """
    if labels:
        stated = model.config.get("labels")
        if recipe.pretrained and stated and list(stated) != list(labels):  # As many classes, but others.
            model.reset_classifier(len(labels))
        model.config["labels"] = list(labels)
    if recipe.lora:
        add_lora(model, recipe.lora)


class Tuning:
    """The hooks of a run.

    Args:
        model: After `prepare_model`, not yet wrapped.
        recipe: Of the run.
        optimizer: Over the parameters.
        total_steps: Of the run.
        processes: That train together.
    """

    def __init__(
        self, model: nn.Module, recipe: Recipe, optimizer: torch.optim.Optimizer, total_steps: int, processes: int
    ) -> None:
        first = round(recipe.head_first * total_steps)
        plain = processes == 1 and not recipe.compile
        self.head_first = HeadFirst(model, optimizer, first, round(recipe.warmup * total_steps), skip_backward=plain)
        self.selection = Selection(recipe.select, recipe.patience, first)
        self._lora = bool(recipe.lora)

    def state(self) -> dict[str, Any]:
        """For the checkpoint."""
        return self.selection.state()

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Continues from what `state` gave; `None` of a checkpoint from before there was any."""
        if state is not None:
            self.selection.load(state)

    def finish(self, model: nn.Module) -> dict[str, Any]:
        """Makes the model what is exported: the best weights, adapters merged. Gives facts for the record."""
        self.selection.restore(model)
        if self._lora:
            merge_lora(model)
        return self.selection.facts()
