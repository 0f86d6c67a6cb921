"""The core of attention as a call that can be timed: the encoding on x, q, k and v, and `zoo.kernels.attend`.

Legend: B batch, H heads, N tokens, D head width, C = H D features.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from zoo.bench.timing import precision
from zoo.bench.workloads import Workload
from zoo.encodings import create
from zoo.encodings.base import AttentionEncoding, Frame, Score
from zoo.encodings.terms import Product
from zoo.kernels import Choice, attend, select, use
from zoo.kernels.dispatch import call_of

__all__ = ["STEPS", "Attend", "Core", "Inputs", "core_function", "learned"]

STEPS = ("inference", "train")


@dataclass(frozen=True)
class Inputs:
    """Tensors of a workload, shared by all that is measured on it.

    Attributes:
        workload: What they are for.
        x: (B, N, C) input of the block, with values of the kernel's dtype; float32 `wide_x` is what autocast sees.
        q: (B, H, N, D), and k and v: views of one tensor, as the projection makes them.
        gradient: (B, H, N, D) of the output, in the memory order of the projection after it.
        device: Where they are.
        dtype: Of the kernel.
    """

    workload: Workload
    x: Tensor
    wide_x: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    gradient: Tensor
    device: str
    dtype: torch.dtype

    @classmethod
    def draw(cls, workload: Workload, heads: int, head_dim: int, device: str, dtype: torch.dtype) -> Inputs:
        """Standard normal numbers, always the same."""
        torch.manual_seed(0)
        shape = (workload.batch, workload.tokens)
        x = torch.randn(*shape, heads * head_dim, device=device, dtype=dtype)
        qkv = torch.randn(*shape, 3, heads, head_dim, device=device, dtype=dtype).permute(2, 0, 3, 1, 4)
        gradient = torch.randn(*shape, heads, head_dim, device=device, dtype=dtype).transpose(1, 2)
        q, k, v = qkv
        return cls(workload, x, x.float(), q, k, v, gradient, device, dtype)


class Core:
    """The attention core of one encoding and kernel; calling it runs inference or a train step (without optimiser).

    Args:
        inputs: What it runs on.
        encoding: Name.
        kernel: A kernel to force, a name of `zoo.kernels.FORCIBLE`; `None` for the one that the call gets by default.
        step: A name of `STEPS`.
        compiled: Use `torch.compile`.

    Raises:
        ConfigError: If the encoding does not take such coordinates, or the kernel does not run the call.
        DataError: If the encoding needs more than coordinates.
    """

    def __init__(self, inputs: Inputs, encoding: str, kernel: str | None, step: str, compiled: bool) -> None:
        self.inputs, self.train, self._kernel = inputs, step == "train", kernel
        wide, self._context = precision(inputs.device, inputs.dtype, self.train)
        heads, head_dim = inputs.q.shape[1], inputs.q.shape[3]
        coords = inputs.workload.coords
        torch.manual_seed(0)
        _, module = create(encoding, dim=heads * head_dim, num_heads=heads, head_dim=head_dim, coord_dim=coords.axes)
        self.encoding = module.to(inputs.device, wide).train(self.train)
        # Some kernels ask whether a gradient will be wanted: of all inputs, as in the middle of a network, or of none.
        tensors = (inputs.wide_x if wide == torch.float32 else inputs.x, inputs.q, inputs.k, inputs.v)
        self.tensors = tuple(tensor.detach().requires_grad_(self.train) for tensor in tensors)
        self.scale = head_dim**-0.5
        with torch.inference_mode(not self.train), self._context:
            self.frame = self.encoding.frame(coords, inputs.dtype)
        self.choice = self._choose()
        self._function: Callable[..., Tensor] = core_function(self.encoding, self.frame, self.scale, coords.cu_seqlens)
        if compiled:
            self._function = _compiled(self._function, f"{encoding}_{kernel}_{step}")

    def _choose(self) -> Choice:
        """What would run, without running it."""
        packed = self.inputs.workload.coords.packed
        with torch.inference_mode(), self._context:
            x, q, k, v = (tensor[:1] for tensor in self.tensors)
            q, k, v, score = self.encoding.encode_attention(x, q, k, v, self.frame, self.scale)
            call = call_of(q, k, v, score, None, False, packed)
        with self._forced():
            return select(replace(call, gradients=self.train))

    def _forced(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._kernel is None else use(self._kernel)

    @property
    def variables(self) -> list[Tensor]:
        """What a train step has gradients of: x, q, k, v and the parameters of the encoding."""
        return [*self.tensors, *learned(self.encoding)]

    def __call__(self, gradient: Tensor | None = None) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        """One inference, or one forward and backward.

        Args:
            gradient: Of the output; by default that of the inputs.

        Returns:
            The output, and the gradients of `variables` (none for inference).
        """
        with self._forced():
            if not self.train:
                with torch.inference_mode():
                    return self._function(*self.tensors), ()
            with self._context:
                out = self._function(*self.tensors)
        gradient = self.inputs.gradient if gradient is None else gradient
        return out, torch.autograd.grad(out, self.variables, gradient.to(out.dtype), allow_unused=True)


class Attend(Core):
    """Attention alone: `zoo.kernels.attend` on what the encoding made of x, q, k and v once; gradients are of that.

    What a kernel needs done to q and k first, as folding, is part of the call.
    """

    def __init__(self, inputs: Inputs, encoding: str, kernel: str | None, step: str, compiled: bool) -> None:
        super().__init__(inputs, encoding, kernel, step, compiled=False)
        with torch.inference_mode(not self.train), self._context:
            x, q, k, v = self.tensors
            q, k, v, score = self.encoding.encode_attention(x, q, k, v, self.frame, self.scale)
        fields = {} if score is None else vars(score)
        made = {name: x for name, x in fields.items() if isinstance(x, Tensor) and x.requires_grad}
        self.tensors = tuple(x.detach().requires_grad_(self.train) for x in (q, k, v, *made.values()))
        self._function = _attend_function(score, tuple(made), self.scale, inputs.workload.coords.cu_seqlens)
        if compiled:
            self._function = _compiled(self._function, f"attend_{encoding}_{kernel}_{step}")

    @property
    def variables(self) -> list[Tensor]:
        """What a train step has gradients of: q, k, v, and what of the score was made of content."""
        return list(self.tensors)


def core_function(
    encoding: AttentionEncoding, frame: Frame, scale: float, cu_seqlens: Tensor | None
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """The middle of `zoo.attention.CoordinateAttention`, as a function of x, q, k and v."""

    def core(x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v, score = encoding.encode_attention(x, q, k, v, frame, scale)
        out = attend(q, k, v, scale=scale, score=score, cu_seqlens=cu_seqlens)
        return encoding.transform_output(out, frame) if frame.kind == "group" else out

    return core


def _attend_function(
    score: Score | Product | None, names: tuple[str, ...], scale: float, cu_seqlens: Tensor | None
) -> Callable[..., Tensor]:
    """Attention as a function of q, k, v and the named fields of a score."""

    def function(q: Tensor, k: Tensor, v: Tensor, *made: Tensor) -> Tensor:
        own: Any = score
        if made:  # Of a dataclass, as all scores with fields made of content are.
            own = replace(own, **dict(zip(names, made, strict=True)))
        return attend(q, k, v, scale=scale, score=own, cu_seqlens=cu_seqlens)

    return function


def learned(encoding: AttentionEncoding) -> list[Tensor]:
    """The parameters that training moves."""
    return [parameter for parameter in encoding.parameters() if parameter.requires_grad]


def _compiled(function: Callable[..., Tensor], name: str) -> Callable[..., Tensor]:
    compiled: Callable[..., Tensor] = torch.compile(_own_code(function, name.replace("-", "_")))
    return compiled


def _own_code(function: Callable[..., Tensor], name: str) -> Callable[..., Tensor]:
    """A copy that is compiled apart from others: torch looks for the right version of shared code in every call."""
    assert isinstance(function, types.FunctionType)
    code = function.__code__.replace(co_name=name)
    return types.FunctionType(code, function.__globals__, name, function.__defaults__, function.__closure__)
