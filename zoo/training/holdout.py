"""Which samples are held out of training, and where samples lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from zoo.errors import ConfigError, DataError
from zoo.training.seeds import derive_seed, permutation
from zoo.training.settings import check

__all__ = ["check_held_out", "fits_on", "held_out", "split_by_class", "split_dev"]

_KEYS = ("dev_split", "dev_count", "dev_fraction", "dev_by_class")
_DEVICE_SHARE = 0.5  # of the free device memory that the data may take; larger sets stay on the host


def fits_on(device: torch.device, size: int) -> bool:
    """Whether data of `size` bytes should lie on the device."""
    return device.type == "cuda" and size < _DEVICE_SHARE * torch.cuda.mem_get_info(device)[0]


def check_held_out(options: Any) -> None:
    """Checks the recipe keys that say what is held out: `dev_split`, `dev_count`, `dev_fraction`, `dev_by_class`.

    Args:
        options: Of a task, with some of them.

    Raises:
        ConfigError: If one is out of range, or several are set.
    """
    given = {key: getattr(options, key) for key in _KEYS if hasattr(options, key)}
    check("dev_count", given.get("dev_count", 0), given.get("dev_count", 0) >= 0, "0 or more")
    for key in ("dev_fraction", "dev_by_class"):
        check(key, given.get(key, 0), 0 <= given.get(key, 0) < 1, "in [0, 1)")
    if sum(map(bool, given.values())) > 1:
        raise ConfigError(f"recipe: set one of {', '.join(given)}, not several")


def held_out(options: Any, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the training and of the dev samples of one split, both sorted, as the keys of a recipe say.

    Args:
        options: Of a task; of `dev_count`, `dev_fraction` and `dev_by_class`, what it has.
        labels: (N,), classes of all samples.

    Raises:
        DataError: If nothing is left to train on, or nothing can be held out.
    """
    if share := getattr(options, "dev_by_class", 0.0):
        return split_by_class(labels, share)
    return split_dev(len(labels), getattr(options, "dev_count", 0), getattr(options, "dev_fraction", 0.0))


def split_dev(count: int, dev_count: int, dev_fraction: float) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the training and of the dev pictures, both sorted; the same for every recipe and seed.

    Raises:
        DataError: If nothing is left to train on.
    """
    held = dev_count or round(dev_fraction * count)
    if held >= count:
        raise DataError(f"dev_count {held} leaves no training pictures of {count}")
    order = permutation(count, derive_seed("dev split")).numpy()
    return np.sort(order[held:]), np.sort(order[:held])


def split_by_class(labels: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the training and of the dev samples, with `share` of each class in the latter.

    Of a class of two samples or more, at least one is on either side; of a class of one, it is trained on. The same
    for every recipe and seed.

    Args:
        labels: int64 (N,), or other values that are equal within a class.
        share: In (0, 1).

    Returns:
        Both sorted, int64.

    Raises:
        DataError: If no sample can be held out.
    """
    held: list[np.ndarray] = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        count = min(max(1, round(share * len(members))), len(members) - 1)
        order = permutation(len(members), derive_seed("dev split", str(label))).numpy()
        held.append(members[order[:count]])
    dev = np.sort(np.concatenate(held)) if held else np.zeros(0, np.int64)
    if not len(dev):
        raise DataError("no class has a second sample that could be held out: give a validation split, or more data")
    return np.setdiff1d(np.arange(len(labels)), dev), dev
