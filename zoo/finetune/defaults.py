"""Settings of a fine-tuning run by the amount of data; each may be replaced."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from zoo.finetune.found import Found

__all__ = ["defaults"]


@dataclass(frozen=True)
class _Amount:
    """Settings for an amount of data: the less there are, the less the backbone should move.

    Attributes:
        samples: Up to so many.
        steps: Of a run; `None` for 10 epochs.
        lr: Peak learning rate of the last block.
        head_lr: Factor of a new head.
        head_first: Share of the steps in which only the head learns.
    """

    samples: float
    steps: int | None
    lr: float
    head_lr: float
    head_first: float


_AMOUNTS = (
    _Amount(200, 200, 5e-5, 200.0, 0.4),
    _Amount(2_000, 800, 1e-4, 50.0, 0.2),
    _Amount(20_000, 3_000, 2e-4, 10.0, 0.1),
    _Amount(math.inf, None, 3e-4, 5.0, 0.05),
)
_TRAINED_HEAD = (3e-4, 3.0)  # Learning rate and factor where most of the head has been trained.
_ADAPTERS = (1e-3, 5.0)
_EVALUATIONS = 20
_PATIENCE = 8
_MOST_EPOCHS = 100


def defaults(found: Found, lora: int = 0) -> dict[str, Any]:
    """Recipe keys for data; those of the task itself are in `found.settings`.

    Args:
        found: The data.
        lora: Rank of the adapters; they take a higher learning rate, and no decay of it from layer to layer.
    """
    count = max(2, found.samples)
    batch = 2
    while batch * 2 <= min(found.batch_size, count // 5):
        batch *= 2
    amount = next(amount for amount in _AMOUNTS if count <= amount.samples)
    epochs = 10 if amount.steps is None else min(_MOST_EPOCHS, max(3, round(amount.steps * batch / count)))
    lr, head_lr = (amount.lr, amount.head_lr) if found.new_head else _TRAINED_HEAD
    lr, head_lr = _ADAPTERS if lora else (lr, head_lr)
    steps = epochs * (count // batch)
    return {
        "pretrained": True,
        "epochs": epochs,
        "batch_size": batch,
        "lr": lr,
        "head_lr": head_lr,
        "final_lr": 0.0,
        "weight_decay": 0.05,
        "layer_decay": None if lora else 0.75,
        "head_first": amount.head_first,
        "lora": lora,
        "warmup": 0.05,
        "clip": 1.0,
        "drop_path": 0.05,
        "ema": 0.999 if steps > 2_000 else 0.0,
        "precision": "bf16" if _fast_bfloat16() else "float32",
        "select": found.metric,
        "eval_every": max(1, epochs // _EVALUATIONS),
        "patience": _PATIENCE,
    }


def _fast_bfloat16() -> bool:
    """Whether this machine computes in bfloat16 faster than in float32."""
    if torch.cuda.is_available():
        return True
    told = getattr(torch.cpu, "_is_amx_tile_supported", None)  # Private, so it may go.
    return bool(told is not None and told())
