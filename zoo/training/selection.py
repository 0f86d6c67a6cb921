"""Which weights of a run are kept: the best by a validation metric, and when there is no use in going on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import nn

from zoo.card_metrics import unit
from zoo.errors import ConfigError

__all__ = ["Selection"]


class Selection:
    """Keeps the weights of the best evaluation so far, and says when evaluations have become worse for good.

    Of equal evaluations the weights of the last are kept, since the learning rate has fallen further; and they are no
    reason to stop: few samples held out may all be right long before the end.

    Args:
        metric: A key of `Task.evaluate`, such as `"dev_top1"`; `None` keeps the last weights of the run.
        patience: Evaluations in a row that are worse than the best, after which the run ends; 0 for never.
        first_step: Evaluations up to this step are not counted, such as those of a run whose backbone is frozen.
    """

    def __init__(self, metric: str | None, patience: int = 0, first_step: int = 0) -> None:
        self.metric, self.patience, self.first_step = metric, patience, first_step
        self._sign = -1.0 if metric is not None and unit(metric.removeprefix("dev_")) == "nats" else 1.0
        self.best: float | None = None
        self.step: int | None = None
        self.waited = 0
        self._weights: dict[str, Any] | None = None

    @property
    def stopped(self) -> bool:
        """Whether the run should end."""
        return bool(self.patience) and self.waited >= self.patience

    def observe(self, step: int, metrics: Mapping[str, float], model: nn.Module) -> None:
        """Takes note of an evaluation.

        Args:
            step: Steps done.
            metrics: Of the evaluation.
            model: What was evaluated; its weights are copied to the CPU if it is the best.

        Raises:
            ConfigError: If the evaluation has no such metric.
        """
        if self.metric is None:
            return
        if self.metric not in metrics:
            known = ", ".join(metrics) or "none: no data are held out"
            raise ConfigError(f"recipe: select {self.metric!r} is no metric of the evaluation ({known})")
        value = float(metrics[self.metric])
        score = self._sign * value if math.isfinite(value) else -math.inf
        best = -math.inf if self.best is None else self._sign * self.best
        self.waited = 0 if score >= best or step <= self.first_step else self.waited + 1
        if score >= best:
            self.best, self.step = value, step
            self._weights = {key: tensor.detach().to("cpu", copy=True) for key, tensor in model.state_dict().items()}

    def restore(self, model: nn.Module) -> None:
        """Gives a model the best weights, if there was an evaluation."""
        if self._weights is not None:
            model.load_state_dict(self._weights)

    def facts(self) -> dict[str, Any]:
        """For the record of the run; empty without a metric."""
        return {} if self.metric is None else {"selected_by": self.metric, "selected_step": self.step}

    def state(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {"best": self.best, "step": self.step, "waited": self.waited, "weights": self._weights}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continues from what `state` gave."""
        self.best, self.step, self.waited = state["best"], state["step"], state["waited"]
        self._weights = state["weights"]
