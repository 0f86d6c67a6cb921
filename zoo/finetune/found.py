"""What was found in a folder: the data of a fine-tuning run, or a list of what is there instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zoo.errors import DataError

__all__ = ["Found", "held_share", "measured_on", "no_layout"]

_LISTED = 2000  # Files looked at to say what a folder holds.


@dataclass(frozen=True)
class Found:
    """A data set, as a fine-tuning run uses it.

    Attributes:
        layout: In words.
        task: A key of `zoo.training.recipe.TASKS`.
        metric: Metric of the task's evaluation that the best weights are chosen by.
        samples: That are trained on, about.
        classes: Names of the classes; empty where there are none.
        validation: In words: what training is evaluated on.
        settings: Recipe keys that follow from the data and the task; they go before the defaults.
        batch_size: Most samples of a step.
        new_head: Whether the head begins anew, and not only what knows the classes in it.
    """

    layout: str
    task: str
    metric: str
    samples: int
    classes: tuple[str, ...]
    validation: str
    settings: dict[str, Any] = field(default_factory=dict)
    batch_size: int = 64
    new_head: bool = True


def held_share(samples: int) -> float:
    """Share of each class that is held out of data without a validation split."""
    return 0.2 if samples < 1000 else 0.1


def measured_on(own: bool, share: float, of: str = "each class") -> str:
    """What a run is measured on, in words.

    Args:
        own: Whether the data have a validation split.
        share: That is held out where they have none; 0 for nothing.
        of: What the share is of.
    """
    if own:
        return "the data's own validation split"
    return f"{share:.0%} of {of}, held out" if share else "nothing"


def no_layout(data: Path, task: str, understood: Sequence[str]) -> DataError:
    """The error for data of no known layout: says what is understood, and what was found.

    Args:
        data: File or folder.
        task: What the data should be for.
        understood: The layouts, in words.
    """
    return DataError(
        f"{data}: no data for {task} that are understood; expected {'; or '.join(understood)}. Found: {_listing(data)}"
    )


def _listing(data: Path) -> str:
    if not data.exists():
        return "nothing: there is no such file or folder"
    if data.is_file():
        return f"one file, {data.name}"
    here = sorted(p for p in data.iterdir() if not p.name.startswith("."))
    folders = [p.name for p in here if p.is_dir()]
    kinds: Counter[str] = Counter()
    for number, path in enumerate(data.rglob("*")):
        if number >= _LISTED:
            break
        if path.is_file() and not path.name.startswith("."):
            kinds[path.suffix.lower() or "(no suffix)"] += 1
    parts = []
    if folders:
        parts.append(f"folders {', '.join(folders[:6])}{f' and {len(folders) - 6} more' if len(folders) > 6 else ''}")
    if kinds:
        counted = [f"{count} {suffix}" for suffix, count in kinds.most_common(6)]
        parts.append(f"files in all {', '.join(counted)}")
    return "; ".join(parts) or "an empty folder"
