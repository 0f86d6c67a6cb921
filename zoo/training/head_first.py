"""The first part of fine-tuning: only the head learns, so that its first gradients do not spoil the backbone."""

from __future__ import annotations

import torch
from torch import nn

from zoo.errors import ConfigError

__all__ = ["HeadFirst", "head_names"]


def head_names(model: nn.Module) -> set[str]:
    """Names of the parameters of a model's `head`."""
    return {name for name, _ in model.named_parameters() if name.startswith("head.")}


class HeadFirst:
    """Freezes all but the head for the first steps, then raises the learning rate of the others linearly.

    A function of the step alone, so that a resumed run does the same. Frozen parameters have no gradient: the
    optimiser passes over them, and they do not count for the norm that is clipped.

    Args:
        model: Not yet wrapped.
        optimizer: Over its parameters.
        steps: In which only the head learns; 0 for none.
        ramp: Steps from then on until the others have their whole learning rate.
        skip_backward: Whether autograd may be told what is frozen, which spares the backward pass of the backbone; not
            where a wrapper or a compiler has noted which parameters learn.

    Raises:
        ConfigError: If there are such steps, and the model has no head or nothing else that learns.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, ramp: int, *, skip_backward: bool
    ) -> None:
        self.steps, self.ramp, self._skip = steps, ramp, skip_backward
        head = head_names(model)
        learning = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        self._others = [parameter for name, parameter in learning if name not in head]
        if steps and (not self._others or len(self._others) == len(learning)):
            raise ConfigError("head_first: this model has no head apart from the rest; set it to 0")
        own = {id(parameter) for parameter in self._others}
        self._groups = [g for g in optimizer.param_groups if all(id(parameter) in own for parameter in g["params"])]

    def begin(self, step: int) -> None:
        """Before the forward pass of a step, after the schedule has set its learning rates."""
        if not self.steps:
            return
        if self._skip:
            for parameter in self._others:
                parameter.requires_grad_(step >= self.steps)
        share = min(1.0, (step - self.steps + 1) / (self.ramp + 1))
        if self.steps <= step and share < 1:
            for group in self._groups:
                group["lr"] *= share

    def drop_frozen(self, step: int) -> None:
        """After the backward pass of a step."""
        if step < self.steps:
            for parameter in self._others:
                parameter.grad = None
