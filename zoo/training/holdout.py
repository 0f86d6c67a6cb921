"""Which samples are held out of training, and where samples lie."""

from __future__ import annotations

import numpy as np
import torch

from zoo.errors import DataError
from zoo.training.seeds import derive_seed, permutation

__all__ = ["fits_on", "split_dev"]

_DEVICE_SHARE = 0.5  # of the free device memory that the data may take; larger sets stay on the host


def fits_on(device: torch.device, size: int) -> bool:
    """Whether data of `size` bytes should lie on the device."""
    return device.type == "cuda" and size < _DEVICE_SHARE * torch.cuda.mem_get_info(device)[0]


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
