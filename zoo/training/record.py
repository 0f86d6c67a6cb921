"""The record of a finished run: what was trained, on what, by which recipe, and how long it took."""

from __future__ import annotations

import json
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from zoo.files import write_whole
from zoo.training.checkpoint import CHECKPOINT, flush, remove_partials
from zoo.training.recipe import Recipe

__all__ = ["RECORD", "read_record", "write_record"]

RECORD = "train_record.json"


def read_record(folder: Path) -> dict[str, Any] | None:
    """The record of a run, `None` while it is not finished. Removes what a kill after the record has left."""
    if not (folder / RECORD).is_file():
        return None
    (folder / CHECKPOINT).unlink(missing_ok=True)
    remove_partials(folder)
    return json.loads((folder / RECORD).read_text(encoding="utf-8"))


def write_record(folder: Path, recipe: Recipe, device: torch.device, facts: dict[str, Any]) -> None:
    """Writes the record, once the weights are safely on the disk, and removes the checkpoint."""
    import zoo

    cuda = device.type == "cuda"
    record = {
        "name": recipe.model,
        "recipe": recipe.to_dict(),
        "epochs": recipe.epochs,
        "seed": recipe.seed,
        "device": torch.cuda.get_device_name(device) if cuda else platform.processor() or platform.machine(),
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {"torch": torch.__version__, "zoo": zoo.__version__},
        **facts,
    }
    flush(folder, [path.name for path in folder.iterdir() if path.is_file()])
    write_whole(folder / RECORD, json.dumps(record, indent=2) + "\n")
    flush(folder, [RECORD])
    (folder / CHECKPOINT).unlink(missing_ok=True)
