"""What a decoder keeps of the tokens it has seen, to go on from them."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.attention import KeyValues
from zoo.coordinates import Coordinates, concatenate

__all__ = ["DecoderCache"]


class DecoderCache:
    """Keys, values and coordinates of the T tokens so far, of a batch of sequences of equal length.

    Keys and values are those of content, before their positions are encoded: what position adds is made anew in every
    step, in the frame of all tokens, since position columns that were made about another centre do not fit together,
    and those about a far one cancel in their rounding. It grows by itself; make one for each batch of sequences.

    Where an encoding looks at a sample as a whole (`Extendable.by_sample`: coordinates divided by the extent of the
    sample, a stretched table, dynamic NTK), everything that was computed changes with each new token. Then the tokens
    are kept instead and run again, which is as slow as no cache.

    Attributes:
        layers: Keys and values of each block.
        coords: Of all tokens, with one axis at least; `None` before the first.
        ids: (B, T) the tokens, where they are run again.
    """

    def __init__(self) -> None:
        self.layers: list[KeyValues] = []
        self.coords: Coordinates | None = None
        self.ids: Tensor | None = None

    @property
    def length(self) -> int:
        """Tokens T so far."""
        return 0 if self.coords is None else self.coords.values.shape[1]

    def place(self, coords: Coordinates) -> Coordinates:
        """Adds the coordinates of new tokens; returns those of all."""
        self.coords = coords if self.coords is None else concatenate([self.coords, coords])
        return self.coords

    def remember(self, ids: Tensor) -> Tensor:
        """Adds new tokens (B, n) to those that are run again; returns all."""
        self.ids = ids if self.ids is None else torch.cat([self.ids, ids], dim=1)
        return self.ids
