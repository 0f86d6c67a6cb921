"""What each of two processes does in `test_eval_processes`: several evaluations, one after the other."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

import zoo
from zoo import sharing
from zoo.cli.main import main
from zoo.detection import metrics
from zoo.training.recipe import recipe_from_dict, task_class

__all__ = ["evaluated", "held_out", "run"]


def evaluated(commands: list[list[str]], recipes: list[dict[str, Any]], out: Path) -> None:
    """Runs commands of `zoo` and `held_out` in this process, which is joined with others once for all of them."""
    with sharing.launched("cpu") as joined:
        sharing.launched = lambda device: contextlib.nullcontext(joined)  # type: ignore[assignment]
        share = joined[0]
        assert share.world == 2
        for command in commands:
            run(command)
        found = share.gather([held_out(recipe, share) for recipe in recipes])
    assert found[0] == found[1]
    if not share.rank:
        out.write_text(json.dumps(found[0]))


def held_out(recipe: dict[str, Any], share: sharing.Share) -> dict[str, float]:
    """What training by a recipe would measure on the data held out before it begins."""
    parsed = recipe_from_dict(recipe)
    task, model = task_class(parsed.task)(parsed), zoo.load(str(parsed.model), device="cpu")
    task.start(model, torch.device("cpu"), share.rank, share.world)
    return task.evaluate(model, "float32")


def run(command: list[str]) -> None:
    """A command of `zoo`; boxes that are scored get one more metric, `digest`, which no two different sets share."""
    add, compute = metrics.CocoMetrics.add, metrics.CocoMetrics.compute

    def adding(self: Any, *arrays: Any, **more: Any) -> None:
        every = [np.asarray(value).tobytes() for value in (*arrays, *more.values()) if value is not None]
        self.seen = [*getattr(self, "seen", ()), *every]
        add(self, *arrays, **more)

    def computing(self: Any) -> dict[str, float]:
        digest = hashlib.sha256(b"".join(self.seen)).digest()
        return compute(self) | {"digest": float(int.from_bytes(digest[:6], "big"))}

    metrics.CocoMetrics.add, metrics.CocoMetrics.compute = adding, computing  # type: ignore[method-assign]
    try:
        main(command)
    except SystemExit as stop:
        assert not stop.code, command
    finally:
        metrics.CocoMetrics.add, metrics.CocoMetrics.compute = add, compute  # type: ignore[method-assign]
