"""Which attention kernel runs: chosen by shape and device, forced by `use` or `ZOO_KERNEL`, reported by `trace`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

from zoo.errors import ConfigError

__all__ = ["BACKENDS", "Choice", "select", "trace", "use"]

# They run anything anywhere: `eager` is the oracle (any dtype, materialises N x N), `sdpa` is torch's fused attention.
BACKENDS = ("eager", "sdpa")
# `flex` generates a kernel for an additive score and refuses other calls.
FORCIBLE = (*BACKENDS, "flex")
# Taken for an additive score in 16 bit on CUDA: plain products with the bias between, by blocks of query rows.
SPECIAL = ("dense",)

_forced: str | None = None
_traces: list[list[Choice]] = []


@dataclass(frozen=True)
class Choice:
    """One attention call: the backend that ran it, how, and why.

    Attributes:
        backend: A name of `FORCIBLE` or `SPECIAL`.
        method: `"plain"` for one fused call, `"rows"` for blocks of query rows with an additive score in float32,
            `"inside"` for a score added between the two products.
        reason: Why this backend.
    """

    backend: str
    method: str
    reason: str


def _check(name: str) -> str:
    if name not in FORCIBLE:
        raise ConfigError(f"unknown attention kernel {name!r}: this version has {', '.join(FORCIBLE)}")
    return name


@contextlib.contextmanager
def use(name: str) -> Iterator[None]:
    """Forces the attention kernel of the process while the context is open.

    Args:
        name: `eager`, `sdpa`, or `flex` (additive scores only). The environment variable `ZOO_KERNEL` does the same for
            a whole run.

    Raises:
        ConfigError: If there is no such kernel.
    """
    global _forced
    before, _forced = _forced, _check(name)
    try:
        yield
    finally:
        _forced = before


@contextlib.contextmanager
def trace() -> Iterator[list[Choice]]:
    """Collects a `Choice` for every attention call made inside (not inside compiled code)."""
    choices: list[Choice] = []
    _traces.append(choices)
    try:
        yield choices
    finally:
        _traces[:] = [
            open_trace for open_trace in _traces if open_trace is not choices
        ]  # Equal lists are not the same.


def select(*, scored: bool = False, special: str | None = None) -> Choice:
    """Chooses the backend.

    Args:
        scored: Whether the logits get an additive score.
        special: The backend of `SPECIAL` that suits the call, if one does.
    """
    method = "rows" if scored else "plain"
    if _forced is not None:
        return Choice(_forced, method, "forced by zoo.kernels.use")
    named = os.environ.get("ZOO_KERNEL")
    if named:
        return Choice(_check(named), method, "forced by ZOO_KERNEL")
    if special is not None:
        return Choice(special, "inside", "an additive score in 16 bit on CUDA")
    return Choice("sdpa", method, "default")


def record(choice: Choice) -> None:
    """Adds a choice to the open traces."""
    for choices in _traces:
        choices.append(choice)
