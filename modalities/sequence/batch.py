"""What a decoder is trained and scored on: token ids, what should follow each of them, and positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from zoo.coordinates import Coordinates

__all__ = ["IGNORED", "TokenBatch"]

IGNORED = -100
"""Target that is not scored."""


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """B sequences of N tokens.

    Attributes:
        ids: int64 (B, N), what the network reads.
        targets: int64 (B, N), the token that follows each of `ids`, or `IGNORED`.
        positions: Of `ids`, with bounds so that a compiler need not look at the values; `None` for 0 .. N - 1.
    """

    ids: Tensor
    targets: Tensor
    positions: Coordinates | None = None

    @property
    def inputs(self) -> Any:
        """Arguments for the network."""
        return self.ids if self.positions is None else (self.ids, self.positions)
