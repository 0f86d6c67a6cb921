"""Event tokens of a batch: where and when each patch spiked, and the events in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import GetAttrKey, KeyEntry, register_pytree_node

from zoo.errors import DataError

if TYPE_CHECKING:
    from modalities.events.tokenizer import Tokens

__all__ = ["EventTokens"]

_FIELDS = ("x", "y", "t_us", "patches", "mask")


@dataclass(frozen=True, eq=False)
class EventTokens:
    """What event models take. Samples may have no token at all; they are padded to the longest.

    Attributes:
        x: (B, S) int64 patch column of each token, from 0.
        y: (B, S) int64 patch row, from 0, downwards.
        t_us: (B, S) int64 time in microseconds.
        patches: (B, S, 2, buckets, P, P) counts of events: polarity (0 darker, 1 brighter), age, row, column.
        mask: (B, S) bool, True where there is a token and False where there is padding, which holds zeros.
    """

    x: Tensor
    y: Tensor
    t_us: Tensor
    patches: Tensor
    mask: Tensor

    def __post_init__(self) -> None:
        shape = tuple(self.x.shape)
        for name in ("y", "t_us", "mask"):
            if len(shape) != 2 or tuple(getattr(self, name).shape) != shape:
                raise DataError(f"event tokens: x, y, t_us and mask must be (B, S); x is {shape}, {name} is not")
        if self.mask.dtype != torch.bool:
            raise DataError(f"event tokens: mask must be bool (True: a token), not {self.mask.dtype}")
        for name in ("x", "y", "t_us"):
            if getattr(self, name).dtype != torch.int64:
                raise DataError(f"event tokens: {name} must be int64, not {getattr(self, name).dtype}")
        volume = tuple(self.patches.shape)
        if len(volume) != 6 or volume[:3] != (*shape, 2) or volume[4] != volume[5]:
            raise DataError(f"event tokens: patches must be {(*shape, 2)} x (buckets, P, P), not {volume}")

    def __len__(self) -> int:
        return self.x.shape[0]

    @property
    def lengths(self) -> Tensor:
        """(B,) int64 tokens of each sample."""
        return self.mask.sum(1)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> EventTokens:
        """Moves all tensors to a device; a dtype is for the patches alone."""
        moved = {f.name: getattr(self, f.name).to(device=device) for f in fields(self)}
        moved["patches"] = moved["patches"].to(dtype)
        return EventTokens(**moved)

    def pad_to(self, length: int) -> EventTokens:
        """Pads samples with hidden zeros until they have at least so many places; shapes alone matter, not values."""
        more = length - self.x.shape[1]
        if more <= 0:
            return self
        flat = {name: F.pad(getattr(self, name), (0, more)) for name in ("x", "y", "t_us", "mask")}
        return EventTokens(**flat, patches=F.pad(self.patches, (0,) * 8 + (0, more)))

    def check_grid(self, grid: tuple[int, int]) -> None:
        """Raises `DataError` if a token, other than padding, is outside a grid of (rows, columns); reads the values."""
        rows, columns = grid
        outside = ((self.x < 0) | (self.x >= columns) | (self.y < 0) | (self.y >= rows)) & self.mask
        if outside.any():
            sample, token = (int(index) for index in outside.nonzero()[0])
            raise DataError(
                f"event tokens: token {token} of sample {sample} is at column {int(self.x[sample, token])}, row "
                f"{int(self.y[sample, token])}, outside the grid of {columns} columns and {rows} rows"
            )

    def pin_memory(self) -> EventTokens:
        """Copies to pinned memory, for loaders."""
        return EventTokens(**{f.name: getattr(self, f.name).pin_memory() for f in fields(self)})

    @staticmethod
    def collate(samples: Sequence[Tokens], length: int | None = None) -> EventTokens:
        """Pads samples of the tokenizer to the longest, or to a fixed length, and stacks them.

        Args:
            samples: Tokens of each.
            length: Places of every sample, for batches of constant shape.

        Raises:
            DataError: If there is no sample, their patches differ in shape, or one has more than `length` tokens.
        """
        if not samples:
            raise DataError("event tokens: no samples to collate")
        volumes = {sample.patches.shape[1:] for sample in samples}
        if len(volumes) > 1:
            raise DataError(f"event tokens: samples with patches of different shapes {sorted(volumes)}")
        longest = max(len(sample) for sample in samples)
        if length is not None and longest > length:
            raise DataError(f"event tokens: a sample has {longest} tokens, more than the {length} places asked for")
        longest = longest if length is None else length
        batch = (len(samples), longest)
        patches = torch.from_numpy(samples[0].patches[:0])
        made = {
            "x": torch.zeros(batch, dtype=torch.int64),
            "y": torch.zeros(batch, dtype=torch.int64),
            "t_us": torch.zeros(batch, dtype=torch.int64),
            "patches": patches.new_zeros((*batch, *patches.shape[1:])),
        }
        mask = torch.zeros(batch, dtype=torch.bool)
        for row, sample in enumerate(samples):
            for name, tensor in made.items():
                tensor[row, : len(sample)] = torch.from_numpy(getattr(sample, name))
            mask[row, : len(sample)] = True
        return EventTokens(**made, mask=mask)


def _flatten(tokens: EventTokens) -> tuple[list[Tensor], None]:
    return [getattr(tokens, name) for name in _FIELDS], None


def _unflatten(values: Iterable[Any], _: None) -> EventTokens:
    """Without checks: what walks over trees puts other things than tensors in their place."""
    tokens = object.__new__(EventTokens)
    for name, value in zip(_FIELDS, values, strict=True):
        object.__setattr__(tokens, name, value)
    return tokens


def _flatten_with_keys(tokens: EventTokens) -> tuple[list[tuple[KeyEntry, Tensor]], None]:
    return [(GetAttrKey(name), getattr(tokens, name)) for name in _FIELDS], None


# Batches are handed between CUDA streams, exported and compiled as trees of tensors.
register_pytree_node(
    EventTokens,
    _flatten,
    _unflatten,
    serialized_type_name="modalities.events.EventTokens",
    flatten_with_keys_fn=_flatten_with_keys,
)
