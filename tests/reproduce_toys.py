"""A small sweep of decoders on a made-up task, and results files without the training behind them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from sequence_training import SIZES

ABOUT = {"reproduces": "a paper, table 1", "difference": "everything is\n  smaller", "size": "letters of a line"}


def write_sweep(folder: Path, **changes: Any) -> Path:
    """A sweep of three settings, trained for three steps; lines of two letters, measured up to eight."""
    values = {
        "recipe": "text2d-copy",
        "data": "copy",
        "split": "test",
        "sizes": [2, 4, 8],
        "trained_size": 2,
        "metrics": ["exact", "nll"],
        "limit": 8,
        "settings": {
            "model_options": dict(SIZES),
            "dataset_options": {"columns": [1, 2], "train_samples": 64},
            "steps": 3,
            "batch_size": 8,
            "compile": False,
            "precision": "float32",
            "dev_limit": 8,
        },
        "about": ABOUT,
        "runs": [
            {
                "name": "rope",
                "model": "rope-decoder-n-index",
                "seeds": [0, 1],
                "extend": ["pi"],
                "paper": {"value": 90.5, "std": 1.25},
            },
            {
                "name": "pape",
                "model": "pape-decoder-n-index",
                "settings": {"dataset_options": {"positions": "rows"}},
                "paper": {"value": 99.0, "comparable": False, "note": "other lines"},
            },
        ],
        **changes,
    }
    path = folder / "toy.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def write_result(folder: Path, name: str, seed: int, tables: dict[str, Any], **changes: Any) -> None:
    """A results file; `tables` are values by metric, extension and size."""
    folder.mkdir(parents=True, exist_ok=True)
    training = {"epochs": 8, "device": "a GPU", "duration_s": 30.0, "date": "2026-01-01", "final_train_loss": 0.25}
    result = {
        "name": name,
        "model": f"{name}-decoder-n-index",
        "model_options": {},
        "seed": seed,
        "recipe": "text2d-copy",
        "dataset": "lines-copy",
        "split": "test",
        "images": 100,
        "dtype": "float32",
        "seconds": 45.0,
        "conditions": {"2": "2 columns", "4": "4 columns"},
        "training": training,
        **tables,
        **changes,
    }
    (folder / f"{name}-{seed}.json").write_text(json.dumps(result))


def both(exact: dict[str, list[float]]) -> dict[str, Any]:
    """Tables of `write_result`, from two values for sizes 2 and 4, by extension."""
    sized = {method: dict(zip(("2", "4") if len(v) == 2 else ("4",), v, strict=True)) for method, v in exact.items()}
    return {"exact": sized, "nll": {m: {s: v / 100 for s, v in t.items()} for m, t in sized.items()}}
