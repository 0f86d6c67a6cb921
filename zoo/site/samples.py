"""Files to try models with: the photographs of a checkout, and what the modalities make up, always the same."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo.errors import DataError

__all__ = ["names", "sample"]

# Name -> modality and task that it is for, "module:function() -> bytes" that makes it, and a package that this needs.
MADE: dict[str, tuple[str, str, str, str | None]] = {
    "cells.png": ("image", "detection", "modalities.image.samples:cells", None),
    "digit.bin": ("events", "classification", "modalities.events.samples:digit", None),
    "digits.dat": ("events", "detection", "modalities.events.samples:digits", None),
    "table.off": ("points", "classification", "modalities.points.samples:table", None),
    "village.npz": ("points", "segmentation", "modalities.points.samples:village", None),
    "turning.mp4": ("video", "classification", "modalities.video.samples:turning", "av"),
    "drive.zip": ("driving", "detection", "modalities.driving.samples:drive", None),
}
PHOTOGRAPHS = Path(__file__).resolve().parent.parent.parent / "samples"
"""In a checkout alone: the terms of these pictures keep them out of the package."""


def names(config: Mapping[str, Any]) -> list[str]:
    """Names of the samples for a model, as `sample` takes them."""
    place = config["modality"], config["task"]
    made = [name for name, (*about, _, needs) in MADE.items() if tuple(about) == place and _installed(needs)]
    photographs = [path.name for path in _photographs()] if place == ("image", "classification") else []
    return photographs + made


@functools.lru_cache(maxsize=32)
def sample(name: str) -> bytes:
    """The content of a sample.

    Raises:
        DataError: If there is none of this name, or it cannot be made.
        MissingDependencyError: If what makes it is not installed.
    """
    if name in MADE:
        module, function = MADE[name][2].split(":")
        content: bytes = getattr(importlib.import_module(module), function)()
        return content
    for path in _photographs():
        if path.name == name:
            return path.read_bytes()
    raise DataError(f"no sample is called {name!r:.80}")


def _photographs() -> list[Path]:
    # Beside an installed package there may be anything: only a folder with the notes of ours counts.
    return sorted(PHOTOGRAPHS.glob("*.jpg")) if (PHOTOGRAPHS.parent / "pyproject.toml").is_file() else []


def _installed(package: str | None) -> bool:
    return package is None or importlib.util.find_spec(package) is not None
