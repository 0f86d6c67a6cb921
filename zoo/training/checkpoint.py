"""The state of a run on disk: one file, replaced atomically, read without unpickling objects."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from zoo.errors import ConfigError, WeightsError
from zoo.training.recipe import FREE_KEYS

__all__ = ["CHECKPOINT", "check_same_run", "flush", "load_checkpoint", "remove_partials", "save_checkpoint"]

CHECKPOINT = "checkpoint.pt"
_VERSION = 1


def save_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Writes `state` (tensors, numbers, text, lists, dicts) so that a kill leaves the old or the new file whole."""
    partial = folder / f"{CHECKPOINT}.{os.getpid()}.tmp"
    try:
        with partial.open("wb") as file:
            torch.save({"version": _VERSION, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, folder / CHECKPOINT)
        flush(folder)
    finally:
        partial.unlink(missing_ok=True)


def flush(folder: Path, names: Sequence[str] = ()) -> None:
    """Waits until files of a folder, and then the names in it, are on the disk and would survive a loss of power."""
    for path in (*(folder / name for name in names), folder):
        try:
            handle = os.open(path, os.O_RDONLY)
        except OSError:  # Windows opens no folders; a file that is not there has nothing to wait for.
            continue
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def remove_partials(folder: Path) -> None:
    """Removes what a killed process had not finished writing into the folder of a run."""
    any_id = 12 * "[0-9a-f]"
    for pattern in (f"{CHECKPOINT}.*.tmp", "metrics.jsonl.tmp", f".{any_id}.tmp"):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
    for path in folder.glob(f".*.{any_id}"):  # of `zoo.save`
        if path.name[1:-13] == folder.resolve().name:
            shutil.rmtree(path, ignore_errors=True)


def load_checkpoint(folder: Path) -> dict[str, Any]:
    """The state saved last.

    Raises:
        WeightsError: If the file is absent, damaged or of another version.
    """
    path = folder / CHECKPOINT
    if not path.is_file():
        raise WeightsError(f"{folder}: no {CHECKPOINT} to resume from; start the run without --resume")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a damaged file
        raise WeightsError(f"{path}: damaged checkpoint ({type(error).__name__}); start the run anew") from error
    if not isinstance(state, dict) or state.get("version") != _VERSION:
        raise WeightsError(f"{path}: not a checkpoint of this version; start the run anew")
    return state


def check_same_run(state: dict[str, Any], recipe: dict[str, Any], data: str, processes: int) -> None:
    """Refuses to continue a run with something that would change what it computes.

    Raises:
        ConfigError: Naming what differs.
    """
    old = state["recipe"]
    for key in sorted(old.keys() | recipe.keys()):
        if key not in FREE_KEYS and old.get(key) != recipe.get(key):
            raise ConfigError(
                f"cannot resume: {key} was {old.get(key)!r} and is now {recipe.get(key)!r}; "
                "use the old value or another --out"
            )
    if state["data"] != data:
        raise ConfigError("cannot resume: the training data differ from those of the run")
    if state["processes"] != processes:
        raise ConfigError(f"cannot resume: the run had {state['processes']} processes, now there are {processes}")
