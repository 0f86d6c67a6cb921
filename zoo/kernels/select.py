"""Which attention kernel runs: chosen by the call, forced by `use` or `ZOO_KERNEL`, reported by `trace`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.encodings.base import Score
from zoo.encodings.terms import FoldableScore, FusedScore, Product
from zoo.errors import ConfigError
from zoo.kernels.fused import MAX_AXES, shapes_problem

__all__ = [
    "BACKENDS",
    "FORCIBLE",
    "Call",
    "Choice",
    "call_of",
    "forced",
    "problem",
    "record",
    "select",
    "trace",
    "use",
]

# They run anything anywhere: `eager` is the oracle (any dtype, materialises N x N), `sdpa` is torch's fused attention.
BACKENDS = ("eager", "sdpa")
# These refuse calls they are not made for: `dense` is two plain products with an additive score between, by blocks of
# query rows; `triton` our kernels with the position term inside; `flex` a generated kernel for an additive score.
FORCIBLE = (*BACKENDS, "dense", "triton", "flex")

_forced: str | None = None
_traces: list[list[Choice]] = []


@dataclass(frozen=True)
class Choice:
    """One attention call: the backend that ran it, how, and why.

    Attributes:
        backend: A name of `FORCIBLE`.
        method: `"plain"` for one call of a fused kernel, `"fold"` for one over q and k widened by the position term,
            `"rows"` for blocks of query rows whose additive score is made in float32 and given to the kernel,
            `"inside"` for a score evaluated between the two products, or q and k turned by the kernel.
        reason: Why this backend.
    """

    backend: str
    method: str
    reason: str


@dataclass(frozen=True)
class Call:
    """What the choice goes by.

    Attributes:
        device: Where q, k and v are.
        dtype: Theirs.
        width: Head width of q and k.
        value_width: Head width of v.
        square: As many queries as keys.
        scored: There is an additive score.
        folds: It can be folded into q and k.
        product: Something stands in place of q . k (`zoo.encodings.terms.Product`).
        term: The form in which our kernels evaluate it (`zoo.encodings.terms`), `None` for none.
        axes: Coordinate axes of the term.
        generated: FlexAttention can generate a kernel for it.
        mask_dims: Dimensions of the mask, 0 for none.
        causal: Query i sees keys 0..i.
        packed: Several samples lie along the tokens.
        gradients: Gradients will be asked for.
    """

    device: torch.device
    dtype: torch.dtype
    width: int
    value_width: int
    square: bool = True
    scored: bool = False
    folds: bool = False
    product: bool = False
    term: str | None = None
    axes: int = 0
    generated: bool = False
    mask_dims: int = 0
    causal: bool = False
    packed: bool = False
    gradients: bool = False

    @property
    def narrow(self) -> bool:
        """Whether the kernel runs in 16 bit."""
        return self.dtype in (torch.float16, torch.bfloat16)

    @property
    def evaluated(self) -> bool:
        """Whether our kernels have a form of the score; else they can only be given its bias."""
        return self.term is not None and self.axes <= MAX_AXES

    @property
    def to_fold(self) -> bool:
        """Whether PyTorch's kernels get the score folded into q and k.

        Not for gradients in 16 bit: they would be rounded before the terms of the curvature's gradient cancel.
        """
        return self.folds and not (self.gradients and self.narrow)


def call_of(
    q: Tensor, k: Tensor, v: Tensor, score: Score | Product | None, mask: Tensor | None, causal: bool, packed: bool
) -> Call:
    """What the choice of a kernel goes by."""
    return Call(
        device=q.device,
        dtype=q.dtype,
        width=q.shape[-1],
        value_width=v.shape[-1],
        square=q.shape[2] == k.shape[2],
        scored=score is not None and not isinstance(score, Product),
        folds=isinstance(score, FoldableScore) and score.foldable,
        product=isinstance(score, Product),
        term=_term(score),
        axes=score.axes if isinstance(score, FusedScore) else 0,
        generated=score is not None and hasattr(score, "modification"),
        mask_dims=0 if mask is None else mask.dim(),
        causal=causal,
        packed=packed,
        gradients=torch.is_grad_enabled() and (any(x.requires_grad for x in (q, k, v)) or _learns(score)),
    )


def _term(score: Score | Product | None) -> str | None:
    if isinstance(score, Product):
        return "polar" if score.fused else None
    return score.term if isinstance(score, FusedScore) else None


def _learns(score: Score | Product | None) -> bool:
    """Whether a gradient of a score that our kernels have no form of is asked for, where none of q, k and v is."""
    if score is None or (isinstance(score, FusedScore) and score.term is not None):
        return False  # Those that they have a form of look for themselves.
    if isinstance(score, Product):
        return score.requires_grad
    return score.bias(slice(0, 1)).requires_grad


def _check(name: str) -> str:
    if name not in FORCIBLE:
        raise ConfigError(f"unknown attention kernel {name!r}: this version has {', '.join(FORCIBLE)}")
    return name


@contextlib.contextmanager
def use(name: str) -> Iterator[None]:
    """Forces the attention kernel of the process while the context is open.

    A call that the kernel is not made for raises `ConfigError` and says why.

    Args:
        name: A name of `FORCIBLE`. The environment variable `ZOO_KERNEL` does the same for a whole run.

    Raises:
        ConfigError: If there is no such kernel.
    """
    global _forced
    before, _forced = _forced, _check(name)
    try:
        yield
    finally:
        _forced = before


def forced() -> str | None:
    """The kernel that `use` or `ZOO_KERNEL` asks for.

    Raises:
        ConfigError: If `ZOO_KERNEL` names none.
    """
    named = os.environ.get("ZOO_KERNEL")
    return _forced or (_check(named) if named else None)


@contextlib.contextmanager
def trace() -> Iterator[list[Choice]]:
    """Collects a `Choice` for every attention call made inside (not inside compiled code)."""
    choices: list[Choice] = []
    _traces.append(choices)
    try:
        yield choices
    finally:
        # Equal lists are not the same.
        _traces[:] = [open_trace for open_trace in _traces if open_trace is not choices]


def problem(backend: str, call: Call) -> str | None:
    """Why a backend cannot run a call, or `None`."""
    match backend:
        case "dense" if not call.scored:
            return "it is for additive scores"
        case "flex":
            return _flex_problem(call)
        case "triton":
            return _triton_problem(call)
    return None


def _flex_problem(call: Call) -> str | None:
    if not call.generated:
        return "it is for additive scores that have a form for it"
    if call.mask_dims or call.causal or call.packed:
        return "it takes no mask here"
    if call.gradients and call.device.type == "cpu":
        return "on a CPU it has no gradients"
    return "it takes heads at least 16 wide" if call.width < 16 else None


def _triton_problem(call: Call) -> str | None:
    if found := shapes_problem(call.device, call.dtype, call.width, call.value_width):
        return found
    if call.scored and not call.evaluated and (call.packed or call.gradients):
        what = "packed samples" if call.packed else "gradients"
        if call.term is not None:
            return f"with {what} it takes up to {MAX_AXES} coordinate axes, these are {call.axes}"
        return f"it has no form of this position term, which it needs for {what}"
    if call.product and call.term is None:
        return "it has no form of what stands in place of q . k, whose frame was made for another dtype"
    if not call.square:
        return "it takes as many queries as keys"
    return "it takes masks of keys (B, N) only" if call.mask_dims == 4 else None


def select(call: Call) -> Choice:
    """Chooses the backend of a call.

    Raises:
        ConfigError: If the forced backend cannot run it.
    """
    if name := forced():
        how = "forced by zoo.kernels.use" if _forced else "forced by ZOO_KERNEL"
        if found := problem(name, call):
            raise ConfigError(f"attention kernel {name!r} ({how}) cannot run this call: {found}")
        return Choice(name, _method(name, call), how)
    if _triton_problem(call) is None:
        if call.packed:
            return Choice("triton", _method("triton", call), "packed samples without padding")
        if call.product:
            return Choice("triton", "inside", "q and k are turned inside, and stay narrow in memory")
        if call.scored and call.evaluated:
            return Choice("triton", "inside", "the position term is evaluated inside: exact, and q and k stay narrow")
        if call.scored and not call.to_fold:
            return Choice("triton", "rows", "an additive score in 16 bit on CUDA, made for blocks of query rows")
    if call.scored and not call.to_fold and call.device.type == "cuda" and call.narrow:
        return Choice("dense", "inside", "an additive score in 16 bit on CUDA")
    return Choice("sdpa", _method("sdpa", call), "default")


def _method(backend: str, call: Call) -> str:
    if call.product:
        return "inside" if backend == "triton" else "fold"
    if not call.scored:
        return "plain"
    if backend == "triton" and not call.evaluated:
        return "rows"
    if backend in ("dense", "triton", "flex"):
        return "inside"
    return "fold" if call.to_fold else "rows"


def record(choice: Choice) -> None:
    """Adds a choice to the open traces."""
    for choices in _traces:
        choices.append(choice)
