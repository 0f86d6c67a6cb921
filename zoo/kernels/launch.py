"""Triton kernels launched with little Python, and the operators around them.

A kernel is reached in one of three ways:

- in eager mode at once, without an operator: what an operator costs in Python is more than a small kernel takes;
- under torch.compile on CUDA, where no gradients are wanted, from an operator that is taken apart, so that compiled
  code launches the kernel itself;
- otherwise (training, export, fake tensors, tracing, function transforms, the interpreter) from an opaque operator.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

__all__ = [
    "HAS_TRITON",
    "PLANS",
    "Layout",
    "Operation",
    "Plan",
    "eager",
    "forget",
    "inlines",
    "interpreted",
    "kept",
    "layout",
    "ordinary",
    "planned",
    "register",
    "strides_of",
    "traced",
]

# Kinds of calls whose plans are kept, of each operation.
PLANS = 512

# Found once: compiling traces what asks for it.
HAS_TRITON = importlib.util.find_spec("triton") is not None
_INTERPRETED = HAS_TRITON and os.environ.get("TRITON_INTERPRET") == "1"
# ZOO_INLINE_KERNELS at import: 1 lets compiled code launch kernels itself in training too, 0 nowhere. By default it
# does at inference: a train step took a fifth more memory so, see zoo/kernels/README.md.
_INLINE = {"0": False, "1": True}.get(os.environ.get("ZOO_INLINE_KERNELS", ""))
_ORDINARY = (Tensor, torch.nn.Parameter)
Made_co = TypeVar("Made_co", covariant=True)


# Sizes, strides and dtype: all of a tensor that a plan may depend on.
Layout = tuple[torch.Size, tuple[int, ...], torch.dtype]


def interpreted() -> bool:
    """Whether Triton's kernels run on the CPU, by its interpreter (`TRITON_INTERPRET=1` at import), for tests."""
    return _INTERPRETED


def layout(x: Tensor | None) -> Layout | None:
    """What a plan may depend on."""
    return None if x is None else (x.shape, x.stride(), x.dtype)


def ordinary(*tensors: Tensor | None) -> bool:
    """Whether kernels can be launched on these at once: eager mode, and nobody has to see an operator."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    if torch._C._len_torch_dispatch_stack() or torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    return all(x is None or type(x) in _ORDINARY for x in tensors)


def traced(x: Tensor) -> bool:
    """Whether an operator is being taken apart: compilers see what is done with x."""
    return type(x) not in _ORDINARY


def _wants_gradient(inputs: tuple[Any, ...]) -> bool:
    """Whether somebody may differentiate; in forward mode too, which autograd then refuses."""
    if forward_ad._current_level >= 0:
        return True
    return torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in inputs)


def inlines(*tensors: Tensor | None, bounded: bool = False) -> bool:
    """Whether compiled code is to launch the kernels on these itself; exported programs keep the opaque operators.

    Args:
        *tensors: What the kernels take.
        bounded: They are slow without a bound on registers, which compiled code does not set.
    """
    # Not is_exporting(): in PyTorch 2.11 that is true wherever torch.compile traces.
    if _INLINE is False or not torch.compiler.is_compiling() or torch.compiler._is_exporting_flag:
        return False
    given = [x for x in tensors if x is not None]
    if _INLINE is None and (bounded or (torch.is_grad_enabled() and any(x.requires_grad for x in given))):
        return False
    return given[0].is_cuda and not _INTERPRETED and hasattr(torch.library, "triton_op")


@dataclass(slots=True, eq=False)
class Plan:
    """A launch but for its tensors: made once for each kind of call on each device.

    Attributes:
        kernel: A kernel that takes its tensors first.
        grid: Programs along three axes.
        values: All other arguments by name, constants included.
        options: Options of Triton's compiler.
        device: Index of the CUDA device; negative for the interpreter.
    """

    kernel: Any
    grid: tuple[int, int, int]
    values: dict[str, Any]
    options: dict[str, int]
    device: int
    _numbers: tuple[Any, ...] | None = field(default=None, init=False)
    _runner: Callable[..., None] | None = field(default=None, init=False)

    def __call__(self, *tensors: Tensor) -> None:
        """Launches, or puts the launch into the graph that is being traced."""
        if traced(tensors[0]):
            self._trace(tensors)
        elif self.device >= 0 and self.device != torch.cuda.current_device():
            with torch.cuda.device(self.device):  # Triton launches on the current device.
                self._run(tensors)
        else:
            self._run(tensors)

    def _run(self, tensors: tuple[Tensor, ...]) -> None:
        bits = 0
        for x in tensors:
            bits |= x.data_ptr()
        aligned = bits % 16 == 0
        if self._runner is not None and aligned:
            assert self._numbers is not None
            self._runner(*tensors, *self._numbers)
            return
        if self._numbers is None:
            self._numbers = tuple(self.values[name] for name in self.kernel.arg_names[len(tensors) :])
        compiled = self.kernel[self.grid](*tensors, *self._numbers, **self.options)
        # Triton compiles for numbers, dtypes and whether addresses are multiples of 16 (on ROCm for sizes of storages
        # too). All but the last are those of this plan, so that its look-up can be skipped from now on. Interpreted
        # kernels return nothing; those that are still being compiled elsewhere cannot be indexed.
        if aligned and torch.version.hip is None and hasattr(type(compiled), "__getitem__"):
            self._runner = compiled[self.grid]

    def _trace(self, tensors: tuple[Tensor, ...]) -> None:
        options = {name: option for name, option in self.options.items() if name != "maxnreg"}  # Inductor has none.
        torch.library.wrap_triton(self.kernel)[self.grid](*tensors, **self.values, **options)


def strides_of(letters: str, *layouts: Layout) -> dict[str, int]:
    """Arguments such as `qb`, `qh` and `qn`: strides of batch, heads and tokens of a tensor for each letter."""
    pairs = zip(letters, layouts, strict=True)
    return {letter + axis: x[1][i] for letter, x in pairs for i, axis in enumerate("bhn")}


class Planner(Protocol[Made_co]):
    """A function that makes one or more plans, which `kept` keeps."""

    @property
    def __wrapped__(self) -> Callable[..., Made_co]:
        """The function without its cache."""
        ...

    def __call__(self, *key: Any) -> Made_co:
        """What is planned for a kind of call."""
        ...


_kept: list[Any] = []


def kept(planner: Callable[..., Any]) -> Any:
    """Keeps what a function plans for the last `PLANS` kinds of calls."""
    cached = functools.lru_cache(maxsize=PLANS)(planner)
    _kept.append(cached)
    return cached


def forget() -> None:
    """Drops all plans, since what they were made from has changed."""
    for cached in _kept:
        cached.cache_clear()


def planned(planner: Planner[Made_co], like: Tensor, *key: Any) -> Made_co:
    """What is planned for a kind of call; kept, except while tracing, where sizes may be symbols."""
    return planner.__wrapped__(*key) if traced(like) else planner(*key)


@dataclass(frozen=True)
class Operation:
    """What operators and eager mode are made of.

    Attributes:
        forward: Launches, and returns one or more new tensors.
        backward: The same for gradients.
        fake_forward: Returns empty tensors like those of `forward`.
        fake_backward: Returns empty tensors like those of `backward`.
        save: `setup_context(ctx, inputs, output)`, see `torch.library.register_autograd`.
        gradients: Gradients of all inputs, from a `backward`, a context and gradients of outputs (`None` for zero).
        outputs: How many results of `forward` are for the caller; the others are kept for backward.
    """

    forward: Callable[..., Any]
    backward: Callable[..., Any]
    fake_forward: Callable[..., Any]
    fake_backward: Callable[..., Any]
    save: Callable[..., None]
    gradients: Callable[..., Any]
    outputs: int


def eager(operation: Operation) -> Callable[..., tuple[Tensor, ...]]:
    """A function that launches at once, and knows how to differentiate if asked to, once."""

    class Differentiable(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
            results = operation.forward(*inputs)
            operation.save(ctx, inputs, results)
            return results[: operation.outputs]

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, *grads: Tensor | None) -> Any:
            return operation.gradients(operation.backward, ctx, *grads)

    def run(*inputs: Any) -> tuple[Tensor, ...]:
        if _wants_gradient(inputs):
            return Differentiable.apply(*inputs)
        return operation.forward(*inputs)[: operation.outputs]

    return run


def register(operation: Operation, make: Callable[..., Any], name: str) -> Any:
    """Makes the operators of an operation.

    Args:
        operation: The operation.
        make: `torch.library.custom_op` or `torch.library.triton_op`.
        name: Name of the forward operator; the other ends in `_backward`.

    Returns:
        The forward operator.
    """
    forward = make(name, operation.forward, mutates_args=())
    backward = make(f"{name}_backward", operation.backward, mutates_args=())
    forward.register_fake(operation.fake_forward)
    backward.register_fake(operation.fake_backward)

    def gradients(ctx: Any, *grads: Tensor) -> Any:
        return operation.gradients(backward, ctx, *grads)

    forward.register_autograd(gradients, setup_context=operation.save)
    return forward
