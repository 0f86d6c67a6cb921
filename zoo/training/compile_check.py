"""Checks the first compiled step against the eager one: a compiler may return wrong gradients without a word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from zoo.training.seeds import seed_device

__all__ = ["REPLAYED", "begin_step", "compile_model", "compiled_step_problem", "projection"]

LOSS_TOLERANCE = 2e-2  # relative to 1 + |loss|
GRADIENT_TOLERANCE = 0.1  # norm of the difference over all parameters, relative to the eager norm; bf16 gives 0.01


# Runs of a step recorded as a CUDA graph until it is replayed: one warms up, one records.
REPLAYED = 3


def compile_model(model: nn.Module, *, graphs: bool = False) -> nn.Module:
    """`torch.compile` with torch's own random numbers, so that stochastic depth draws as in an eager step.

    Args:
        model: What to compile.
        graphs: Record forward and backward as CUDA graphs: small models spend most of a step launching kernels.
    """
    options: dict[str, Any] = {"fallback_random": True, "triton.cudagraphs": graphs}
    return torch.compile(model, options=options)  # type: ignore[return-value]


def begin_step(device: torch.device) -> None:
    """Tells recorded graphs that the outputs of the step before are no longer needed."""
    if device.type == "cuda":
        torch.compiler.cudagraph_mark_step_begin()


def projection(outputs: Any) -> torch.Tensor:
    """Sum of all numbers that a network gives, each times a fixed random one.

    A loss that assigns objects to predictions has jumps, over which the rounding of 16 bit can push single objects;
    this has none, and its gradient reaches as far.

    Args:
        outputs: A tensor, or a tree of them.
    """
    parts = []
    for seed, leaf in enumerate(tree_leaves(outputs)):
        weights = torch.randn(leaf.shape, generator=torch.Generator().manual_seed(seed)) / max(1, leaf.numel()) ** 0.5
        parts.append((leaf.float() * weights.to(leaf.device)).sum())
    return torch.stack(parts).sum()


def compiled_step_problem(
    model: nn.Module,
    eager: nn.Module,
    compiled: nn.Module,
    loss_of: Callable[[nn.Module], torch.Tensor],
    seed: int,
    runs: int = 1,
) -> str | None:
    """Compares loss and gradients of one step; weights, buffers and gradients are as before afterwards.

    Args:
        model: The module that owns the parameters.
        eager: What runs it eagerly (`model` itself or a wrapper).
        compiled: What runs it compiled.
        loss_of: Forward and loss on a fixed batch.
        seed: Seeds the device before each step.
        runs: How often the compiled step is run; the last one is compared (see `REPLAYED`).

    Returns:
        What is wrong with the compiled step, or `None`.
    """
    device = next(model.parameters()).device
    saved = {key: value.detach().clone() for key, value in [*model.named_parameters(), *model.named_buffers()]}
    generator = torch.Generator().manual_seed(seed)
    try:
        with torch.no_grad():  # behind a zero head all gradients are zero and would agree whatever the compiler did
            for parameter in model.parameters():
                if parameter.ndim > 1 and not parameter.any():
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
        loss, gradients = _step(model, eager, loss_of, device, seed)
        try:
            for _ in range(runs):
                compiled_loss, compiled_gradients = _step(model, compiled, loss_of, device, seed)
        except Exception as error:  # compilers fail in many ways; eager is the answer to all of them
            return f"compiling failed ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        return _difference(loss, gradients, compiled_loss, compiled_gradients)
    finally:
        with torch.no_grad():
            for key, value in [*model.named_parameters(), *model.named_buffers()]:
                value.copy_(saved[key])
        model.zero_grad(set_to_none=True)


def _step(
    model: nn.Module, runner: nn.Module, loss_of: Callable[[nn.Module], torch.Tensor], device: torch.device, seed: int
) -> tuple[float, dict[str, torch.Tensor]]:
    model.zero_grad(set_to_none=True)
    begin_step(device)
    seed_device(device, seed)
    loss = loss_of(runner)
    loss.backward()
    gradients = {n: p.grad.detach().float().clone() for n, p in model.named_parameters() if p.grad is not None}
    return float(loss.detach()), gradients


def _difference(
    loss: float, gradients: dict[str, torch.Tensor], other_loss: float, others: dict[str, torch.Tensor]
) -> str | None:
    if gradients.keys() != others.keys():
        return f"gradients are missing or extra: {sorted(gradients.keys() ^ others.keys())[:3]}"
    bad = [name for name, gradient in others.items() if not torch.isfinite(gradient).all()]
    if bad:
        return f"gradients are not finite: {', '.join(bad[:3])}"
    if not abs(loss - other_loss) <= LOSS_TOLERANCE * (1 + abs(loss)):
        return f"the loss is {other_loss:.5g}, eager {loss:.5g}"
    scale = torch.stack([g.square().sum() for g in gradients.values()]).sum().sqrt().item()
    apart = torch.stack([(gradients[n] - others[n]).square().sum() for n in gradients]).sum().sqrt().item()
    if not apart <= GRADIENT_TOLERANCE * scale + 1e-8:
        return f"gradients differ by {apart / max(scale, 1e-30):.2g} of their norm"
    return None
