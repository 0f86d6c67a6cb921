"""Which class of a model each class of the data is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import nn

from zoo.errors import DataError

__all__ = ["align_labels", "match_classes"]


def match_classes(num_classes: int, names: Sequence[str] | None, model: nn.Module) -> np.ndarray:
    """The class of a model for every class of the data, which may have a part of the model's.

    Args:
        num_classes: Number of classes of the data.
        names: Their names, if known.
        model: With `num_classes` and `config["labels"]`.

    Returns:
        int64 (`num_classes`,). Classes are matched by name when the model has all names of the data, else they are
        taken in order.

    Raises:
        DataError: If they would be taken in order and their numbers differ, or a name is known at another place.
    """
    expected = int(model.num_classes)  # type: ignore[arg-type]
    config: Any = getattr(model, "config", None) or {}
    own, known = list(names or ()), list(config.get("labels") or ())
    if own and set(own) <= set(known) and len(set(own)) == len(own) == num_classes:
        return np.array([known.index(name) for name in own], dtype=np.int64)
    if num_classes != expected:
        raise DataError(
            f"the data have {num_classes} classes, the model has {expected}, and by their names it is not clear which "
            "they are: evaluate on data with its classes, or name these in the labels of the model's config.json"
        )
    for place, (one, other) in enumerate(zip(own, known, strict=False)):
        if one != other and one in known:
            raise DataError(
                f"class {place} is {one!r:.60} of the data and {other!r:.60} of the model, which has {one!r:.60} at "
                f"{known.index(one)}, and not all names of the data: make the names in the labels of its config.json "
                "and in the data the same"
            )
    return np.arange(expected, dtype=np.int64)


def align_labels(labels: np.ndarray, num_classes: int, names: Sequence[str] | None, model: nn.Module) -> np.ndarray:
    """Labels int64 (N,) of the data in the order of the model's classes; see `match_classes`."""
    return match_classes(num_classes, names, model)[labels]
