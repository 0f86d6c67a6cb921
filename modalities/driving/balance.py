"""Class-balanced sampling of key frames: those with rare classes come more often (CBGS, arXiv 1908.09492)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from zoo.errors import ConfigError, DataError
from zoo.training.seeds import derive_seed
from zoo.training.task import EpochOrder

__all__ = ["BalancedOrder", "balanced_weights", "repeat"]


def balanced_weights(labels: Sequence[Tensor], kinds: int) -> Tensor:
    """How often each key frame should come in an epoch so that all classes are drawn alike.

    A frame counts once for each class in it. With n_c frames of class c and N the sum of these over C classes, a frame
    gets N / (C n_c) for each of its classes: drawing a class, then one of its frames, N times (section 3.1). A class
    in no frame is left out of C.

    Args:
        labels: int64 of the boxes of each frame; labels outside 0..kinds - 1 do not count.
        kinds: Classes.

    Returns:
        float64 (frames,), with the sum N; 0 for frames without boxes.

    Raises:
        DataError: If there is no box in any frame.
    """
    has = torch.zeros(len(labels), kinds, dtype=torch.bool)
    for row, found in enumerate(labels):
        has[row, found[(found >= 0) & (found < kinds)].cpu()] = True
    frames = has.sum(0)
    there = frames > 0
    if not bool(there.any()):
        raise DataError("class-balanced sampling: no frame has a box of any class")
    share = torch.where(there, frames.sum().double() / (there.sum() * frames.clamp_min(1)), 0.0)
    return (has * share).sum(1)


def repeat(weights: Tensor, seed: int) -> Tensor:
    """Rows that come as often as their weights say: floor or ceil of each, so often in the mean over seeds.

    Systematic sampling: marks at a distance of 1 from a random start on the line of all weights.

    Args:
        weights: (frames,) of at least 0, with a sum of at least 0.5; they are scaled so that it is a whole number.
        seed: Of the start.

    Returns:
        Rising int64 row numbers; their count is the rounded sum, whatever the seed.

    Raises:
        ConfigError: If a weight is negative or not finite, or all are 0.
    """
    values = weights.double().cpu().numpy()
    total = round(float(values.sum())) if np.isfinite(values).all() else 0
    if total < 1 or (values < 0).any():
        raise ConfigError("weights of key frames must be finite, at least 0, and at least 1 together")
    start = float(torch.rand((), generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
    ends = np.cumsum(values) * (total / values.sum())
    ends[np.flatnonzero(values)[-1] :] = total  # not a rounding less
    passed = np.floor(ends + start).astype(np.int64)
    return torch.from_numpy(np.repeat(np.arange(len(values)), np.diff(passed, prepend=0)))


class BalancedOrder(EpochOrder):
    """As `EpochOrder`, of key frames that come as often as their weights say.

    Args:
        weights: See `repeat`; an epoch has as many frames as their sum.
        batch_size: Of one optimiser step, over all processes.
        seed: The recipe's.

    Raises:
        ConfigError: If there are fewer samples than a batch needs, or the weights cannot be used.
    """

    def __init__(self, weights: Tensor, batch_size: int, seed: int) -> None:
        self.weights = weights
        self._repeated: tuple[int, Tensor] | None = None
        super().__init__(len(repeat(weights, 0)), batch_size, seed)

    def rows(self, epoch: int, index: int) -> Tensor:
        """Indices of key frames, int64 (B,), of this process in batch `index` of `epoch`."""
        if self._repeated is None or self._repeated[0] != epoch:
            rows = repeat(self.weights, derive_seed(self.seed, "repeated", epoch))
            self._repeated = epoch, rows.to(self.device)
        return self._repeated[1][super().rows(epoch, index)]
