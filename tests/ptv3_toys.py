"""Small clouds and Point Transformers for tests, and plain Python references of what they are made of."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from modalities.points import PointBatch
from zoo import registry

CHANNELS = 3
TINY: dict[str, Any] = {
    "channels": [16, 32, 32],
    "depths": [1, 2, 1],
    "patch_size": 16,
    "mlp_ratio": 2,
    "encoding_options": {},
    "drop_path": 0.0,
    "head_dims": [],
    "head_dropout": 0.0,
}


def cloud(points: int, seed: int = 0, extent: Sequence[float] = (3.0, 2.0, 1.5)) -> tuple[Tensor, Tensor]:
    """Points in a box around the origin, and features."""
    generator = torch.Generator().manual_seed(seed)
    xyz = (torch.rand(points, 3, generator=generator) - 0.5) * torch.tensor(extent) * 2
    return xyz, torch.randn(points, CHANNELS, generator=generator)


def clouds(*lengths: int) -> PointBatch:
    """A batch of clouds with so many points."""
    return PointBatch.from_clouds([cloud(length, seed) for seed, length in enumerate(lengths)])


def tiny_config(task: str = "classification", **model: Any) -> dict[str, Any]:
    """Configuration of a network with three stages, on voxels of edge 0.5 and three features."""
    name = "pape-ptv3-n-modelnet10" if task == "classification" else "pape-ptv3-n-als3"
    config = copy.deepcopy(registry.entry(name).new_config())
    decoder = {} if task == "classification" else {"decoder_channels": [16, 16], "decoder_depths": [1, 1]}
    if model.get("encoding", "pape") == "pape":
        model.setdefault("encoding_options", {"parabolas": 4})
    config["model"] |= TINY | decoder | {"in_chans": CHANNELS, "num_classes": 5} | model
    config["data"] |= {"grid_size": 0.5, "feature_names": ["xyz"], "class_names": None, "num_points": None}
    return config | {"labels": None, "name": "tiny"}


def tiny(task: str = "classification", *, seed: int = 0, **model: Any) -> Any:
    """A network of `tiny_config` in eval mode; its head gives logits that differ."""
    config = tiny_config(task, **model)
    torch.manual_seed(seed)
    network = registry.architecture(config).build(config)
    last = network.head[-1] if isinstance(network.head, torch.nn.Sequential) else network.head
    if hasattr(last, "weight"):
        torch.nn.init.normal_(last.weight, std=0.3)
    return network.eval()


def cells_of(batch: PointBatch, size: float) -> list[tuple[int, int, int, int]]:
    """(cloud, x, y, z) of every point, in plain Python arithmetic."""
    found = []
    for number in range(len(batch)):
        cells = [[int(c // size) for c in point] for point in batch.cloud(number).xyz.double().tolist()]
        low = [min(axis) for axis in zip(*cells, strict=True)]
        found += [(number, *(c - o for c, o in zip(cell, low, strict=True))) for cell in cells]
    return found


def neighbours_of(cells: list[tuple[int, int, int, int]], kernel_size: int) -> list[list[int]]:
    """Row of the neighbour at each place of a kernel, or the number of cells."""
    rows = {cell: row for row, cell in enumerate(cells)}
    steps = range(-(kernel_size // 2), kernel_size // 2 + 1)
    places = list(itertools.product(steps, repeat=3))
    return [[rows.get((number, x + i, y + j, z + k), len(cells)) for i, j, k in places] for number, x, y, z in cells]


def skilling(cell: Sequence[int], levels: int) -> int:
    """Hilbert code of one cell, bit by bit as the paper describes it."""
    axes = list(cell)
    for level in range(levels - 1, 0, -1):
        bit, low = 1 << level, (1 << level) - 1
        for i in range(3):
            if axes[i] & bit:
                axes[0] ^= low
            else:
                swap = (axes[0] ^ axes[i]) & low
                axes[0] ^= swap
                axes[i] ^= swap
    axes[1] ^= axes[0]
    axes[2] ^= axes[1]
    flip = 0
    for level in range(levels - 1, 0, -1):
        if axes[2] >> level & 1:
            flip ^= (1 << level) - 1
    return interleave([axis ^ flip for axis in axes], levels)


def interleave(cell: Sequence[int], levels: int) -> int:
    """Z-order code of one cell."""
    code = 0
    for level in reversed(range(levels)):
        for axis in cell:
            code = code << 1 | (axis >> level & 1)
    return code
