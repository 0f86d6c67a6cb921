"""Randomness that depends on (seed, epoch, step) alone, so that a resumed run repeats what the killed one would do."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

__all__ = ["derive_seed", "host_rng", "permutation", "seed_device"]


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed from numbers and words; equal parts give equal seeds on every machine."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def permutation(n: int, seed: int) -> torch.Tensor:
    """A random order of `range(n)`: int64 (n,), on the CPU."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


@contextmanager
def host_rng(seed: int) -> Iterator[None]:
    """Seeds torch's CPU generator and numpy's global one, which torchvision and timm draw from; restores both after.

    Device generators are left alone, so this may run in a thread beside a step on the GPU.
    """
    generator = torch.random.default_generator
    torch_state, numpy_state = generator.get_state(), np.random.get_state()
    generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        generator.set_state(torch_state)
        np.random.set_state(numpy_state)


def seed_device(device: torch.device, seed: int) -> None:
    """Seeds the default generator of one device and no other (stochastic depth draws from it)."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    else:
        torch.random.default_generator.manual_seed(seed)
