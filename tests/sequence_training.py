"""Tiny recipes and made-up files of sequences, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

SIZES = {"dim": 32, "depth": 2, "num_heads": 2, "head_dim": 16, "mlp_dim": 64}


def write_chorales(folder: Path, seed: int = 0) -> Path:
    """A file like that of JSB Chorales, with two short pieces in every split."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray] = {}
    for split in ("train", "valid", "test"):
        lengths = np.array([20, 13], dtype=np.int32)
        voices = rng.integers(60, 64, (33, 4)).astype(np.int8)
        voices[5, 2] = -1
        roll = np.zeros((33, 88), dtype=np.uint8)
        roll[np.arange(33)[:, None], voices[:, :2] - 21] = 1
        arrays |= {f"satb16_{split}": voices, f"satb16_{split}_len": lengths}
        arrays |= {f"roll4_{split}": np.packbits(roll, axis=1), f"roll4_{split}_len": lengths}
    path = folder / "jsb_chorales.npz"
    np.savez(path, **arrays)
    return path


def tiny_settings(output: Path, **changes: Any) -> dict[str, Any]:
    """Keys of a recipe that trains in a second on the CPU."""
    return {
        "task": "sequence-generation",
        "model": "pope-decoder-n-index",
        "model_options": dict(SIZES),
        "output": str(output),
        "epochs": 1,
        "batch_size": 8,
        "lr": 3e-3,
        "precision": "float32",
        "device": "cpu",
        "drop_path": 0.0,
        "checkpoint_seconds": 0.0,
        **changes,
    }
