"""The detection loss as compiled code, after a check against the eager one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from zoo.detection.loss import DetectionLoss
from zoo.detection.targets import Targets

__all__ = ["CompiledDetectionLoss", "detection_loss"]

Maps = Mapping[str, Sequence[Tensor]]
# Of sums in float32 in another order: the losses relative to the eager ones, the norm of the gradients' difference
# relative to the eager norm. One object that goes to another cell for a rounding moves them by more than rounding.
LOSS_TOLERANCE, GRADIENT_TOLERANCE = 1e-3, 1e-2


def detection_loss(loss: DetectionLoss, *, compiled: bool, device: torch.device | str) -> Callable[..., Any]:
    """`loss`, compiled where that pays: on CUDA, where the eager one waits for its launches."""
    return CompiledDetectionLoss(loss) if compiled and torch.device(device).type == "cuda" else loss


class CompiledDetectionLoss:
    """A `DetectionLoss` in about a seventh of the kernels.

    The first call runs both on the same maps. Should compiling fail, or losses or gradients differ by more than
    rounding, a warning says so and the loss stays eager.

    Args:
        loss: What to compile.
        backend: Of `torch.compile`.
    """

    def __init__(self, loss: DetectionLoss, backend: Any = "inductor") -> None:
        self.eager = loss
        self.compiled = torch.compile(loss, fullgraph=True, dynamic=False, backend=backend)
        self.chosen: Callable[..., Any] | None = None

    def __call__(self, maps: Maps, targets: Targets) -> dict[str, Tensor]:
        """See `DetectionLoss.forward`."""
        if self.chosen is None:
            problem = self._problem(maps, targets)
            if problem:
                warnings.warn(f"training without the compiled detection loss: {problem}", stacklevel=2)
            self.chosen = self.eager if problem else self.compiled
        losses: dict[str, Tensor] = self.chosen(maps, targets)
        return losses

    def _problem(self, maps: Maps, targets: Targets) -> str | None:
        losses, gradients = _run(self.eager, maps, targets)
        try:
            others, other_gradients = _run(self.compiled, maps, targets)
        except Exception as error:  # Compilers fail in many ways; eager is the answer to all of them.
            return f"compiling failed ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        for name, value in losses.items():
            if not abs(others[name] - value) <= LOSS_TOLERANCE * (1 + abs(value)):
                return f"{name} is {others[name]:.6g}, eager {value:.6g}"
        apart = float(torch.stack([(a - b).norm() for a, b in zip(gradients, other_gradients, strict=True)]).norm())
        scale = float(torch.stack([gradient.norm() for gradient in gradients]).norm())
        if not apart <= GRADIENT_TOLERANCE * scale:
            return f"gradients differ by {apart / max(scale, 1e-30):.2g} of their norm"
        return None


def _run(loss: Callable[..., Any], maps: Maps, targets: Targets) -> tuple[dict[str, float], list[Tensor]]:
    leaves = {branch: [level.detach().clone().requires_grad_() for level in levels] for branch, levels in maps.items()}
    with torch.enable_grad():
        losses = loss(leaves, targets)
        gradients = torch.autograd.grad(losses["loss"], [level for levels in leaves.values() for level in levels])
    return {name: float(value.detach()) for name, value in losses.items()}, [level.float() for level in gradients]
