"""How many events a second the tokenizer of event cameras takes, whole and in pieces, and how fast a file is read."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from zoo.bench.timing import environment, interleaved, threads
from zoo.errors import ConfigError

if TYPE_CHECKING:
    from modalities.events import Events, SpikingPatches

__all__ = ["GOAL", "measure", "moving_edges"]

GOAL = 10.0
"""Million events a second that the tokenizer is to reach on one core."""


def moving_edges(count: int, width: int, height: int, rate: float, seed: int = 0) -> Events:
    """Events of vertical edges that move over the sensor, and one in four anywhere: dense in place and time.

    Args:
        count: Number of events.
        width: Columns of the sensor.
        height: Rows of the sensor.
        rate: Events a second.
        seed: Of the random numbers.
    """
    from modalities.events import Events

    rng = np.random.default_rng(seed)
    t_us = np.cumsum(rng.exponential(1e6 / rate, count)).astype(np.int64)
    edges = rng.integers(0, 8, count) * (width / 8) + t_us * (width / 2e6)  # The sensor's width in 2 s.
    x = np.where(rng.random(count) < 0.25, rng.integers(0, width, count), edges + rng.normal(0, 2, count))
    x = np.mod(x, width).astype(np.int32).clip(0, width - 1)
    y = rng.integers(0, height, count, dtype=np.int32)
    return Events(t_us, x, y, rng.integers(0, 2, count) > 0, width, height, name="moving edges")


def measure(
    recording: Path | None = None,
    *,
    count: int = 10_000_000,
    width: int = 1280,
    height: int = 720,
    rate: float = 20e6,
    patch_size: int = 16,
    threshold: int = 256,
    refractory_us: int = 100_000,
    piece: int = 100_000,
    repeats: int = 5,
) -> dict[str, Any]:
    """Times the tokenizer on one core, with the refractory period asked for and without (where no event is dropped).

    Args:
        recording: An event file; by default events are made.
        count: Events made.
        width: Columns of the sensor; for a recording only where it does not say itself.
        height: Rows of the sensor, likewise.
        rate: Events a second of those made.
        patch_size: Side of a patch.
        threshold: Events of a token.
        refractory_us: Refractory period in microseconds.
        piece: Events of a piece in the streaming form.
        repeats: Samples of each timing.

    Returns:
        `events`, `seconds` (of the recording), `rows` (what, refractory_us, tokens, median_ms, p90_ms, million events
        a second), `read` (of a recording: million events a second), `goal`, `environment`.

    Raises:
        ConfigError: On values that cannot be used.
        DataError: If the recording cannot be read.
    """
    from modalities.events import SpikingPatches

    for name, value in (("events", count), ("rate", rate), ("piece", piece)):
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}")
    read = None
    if recording is None:
        events = moving_edges(count, width, height, rate)
    else:
        events, read = _read(recording, repeats)
        width, height = events.width or width, events.height or height
    calls: dict[str, Callable[[], object]] = {}
    facts: dict[str, tuple[str, int, int]] = {}
    for refractory in dict.fromkeys((refractory_us, 0)):
        tokenizer = SpikingPatches(width, height, patch_size, threshold, refractory)
        tokens = len(tokenizer(events))
        for what, call in (("whole", _whole), (f"pieces of {piece}", _pieces)):
            key = f"{what}, {refractory}"
            calls[key] = lambda call=call, tokenizer=tokenizer: call(tokenizer, events, piece)  # type: ignore[misc]
            facts[key] = what, refractory, tokens
    with threads(1):
        timings = interleaved(calls, repeats=repeats, warmup=1)
        made = environment("cpu")
    rows = [
        {
            "what": facts[key][0],
            "refractory_us": facts[key][1],
            "tokens": facts[key][2],
            "median_ms": timing.median_ms,
            "p90_ms": timing.p90_ms,
            "million_events_per_s": len(events) / timing.median_ms / 1e3,
        }
        for key, timing in timings.items()
    ]
    seconds = float(events.t_us[-1] - events.t_us[0]) / 1e6 if len(events) else 0.0
    return {
        "source": events.name,
        "events": len(events),
        "seconds": seconds,
        "size": [width, height],
        "patch_size": patch_size,
        "threshold": threshold,
        "rows": rows,
        "read": read,
        "goal": GOAL,
        "environment": made,
    }


def _whole(tokenizer: SpikingPatches, events: Events, piece: int) -> None:
    tokenizer(events)


def _pieces(tokenizer: SpikingPatches, events: Events, piece: int) -> None:
    stream = tokenizer.stream()
    for start in range(0, len(events), piece):
        stream.push(events[start : start + piece])


def _read(path: Path, repeats: int) -> tuple[Events, float]:
    """Reads a recording, and how many million events a second that gave at best."""
    from modalities.events import open_events

    best = float("inf")
    for _ in range(max(1, repeats)):
        start = time.perf_counter()
        events = open_events(path).read()
        best = min(best, time.perf_counter() - start)
    return events, len(events) / best / 1e6
