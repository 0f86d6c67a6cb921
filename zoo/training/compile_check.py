"""Checks the first compiled step against the eager one: a compiler may return wrong gradients without a word."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from zoo.training.seeds import seed_device

__all__ = ["compile_model", "compiled_step_problem"]

LOSS_TOLERANCE = 2e-2  # relative to 1 + |loss|
GRADIENT_TOLERANCE = 0.1  # norm of the difference over all parameters, relative to the eager norm; bf16 gives 0.01


def compile_model(model: nn.Module) -> nn.Module:
    """`torch.compile` with torch's own random numbers, so that stochastic depth draws as in an eager step."""
    return torch.compile(model, options={"fallback_random": True})  # type: ignore[return-value]


def compiled_step_problem(
    model: nn.Module, eager: nn.Module, compiled: nn.Module, loss_of: Callable[[nn.Module], torch.Tensor], seed: int
) -> str | None:
    """Compares loss and gradients of one step; weights, buffers and gradients are as before afterwards.

    Args:
        model: The module that owns the parameters.
        eager: What runs it eagerly (`model` itself or a wrapper).
        compiled: What runs it compiled.
        loss_of: Forward and loss on a fixed batch.
        seed: Seeds the device before each of the two steps.

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
