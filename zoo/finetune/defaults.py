"""Settings of a fine-tuning run by the amount of data; each may be replaced."""

from __future__ import annotations

from typing import Any

import torch

from zoo.finetune.found import Found

__all__ = ["defaults"]

# Training samples up to which a run has so many steps; beyond the last a run has 10 epochs.
_STEPS = ((200, 300), (2_000, 800), (20_000, 3_000))
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
    target = next((steps for most, steps in _STEPS if count <= most), None)
    epochs = 10 if target is None else min(_MOST_EPOCHS, max(3, round(target * batch / count)))
    steps = epochs * (count // batch)
    return {
        "pretrained": True,
        "epochs": epochs,
        "batch_size": batch,
        "lr": 2e-3 if lora else 5e-4,
        "final_lr": 0.0,
        "weight_decay": 0.05,
        "layer_decay": None if lora else 0.75,
        "head_first": 0.2,
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
