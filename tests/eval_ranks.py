"""What each of two processes does in `test_eval_processes`: several evaluations, one after the other."""

from __future__ import annotations

import contextlib
import hashlib
from typing import Any

import numpy as np

from zoo import sharing
from zoo.cli.main import main
from zoo.detection import metrics

__all__ = ["evaluated", "run"]


def evaluated(commands: list[list[str]]) -> None:
    """Runs commands of `zoo` in this process, which is joined with others once for all of them."""
    with sharing.launched("cpu") as joined:
        sharing.launched = lambda device: contextlib.nullcontext(joined)  # type: ignore[assignment]
        assert joined[0].world == 2
        for command in commands:
            run(command)


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
