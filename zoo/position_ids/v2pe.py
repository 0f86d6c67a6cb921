"""V2PE, variable visual position encoding (arXiv 2412.09616): one axis on which image tokens take small steps."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from zoo.errors import ConfigError
from zoo.position_ids.scheme import Scheme
from zoo.position_ids.segments import Vision, positive

__all__ = ["V2PE", "RandomV2PE", "SpanV2PE"]

# Tokens of one tile, over which the stride is spent.
_TILE = 256
_STRIDES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class _SmallSteps(Scheme):
    """Text steps by 1, image tokens by delta from the token before; text goes on at the last id rounded up + 1."""

    axes: ClassVar[int] = 1

    @abstractmethod
    def room(self, tokens: int) -> float:
        """Steps of text that a whole picture of so many tokens is worth, tokens x delta."""

    def vision(self, segment: Vision, cells: Tensor, start: float) -> tuple[Tensor, float]:
        """See `Scheme.vision`."""
        frames, rows, columns = segment.shape
        tokens = frames * rows * columns
        room = self.room(tokens)
        frame, row, column = cells.unbind(-1)
        index = (frame * rows + row) * columns + column
        before = start - 1  # The id of the token in front.
        ids = before + room * (index + 1) / tokens  # The last is rounded up: its product must not exceed the room.
        return ids.unsqueeze(-1), math.ceil(before + room) + 1.0


class V2PE(_SmallSteps):
    """V2PE with a fixed stride, as for evaluation: image tokens step by delta = stride / 256.

    The first image token is delta after the token in front of it, and the text that follows starts at the last id
    rounded up + 1. Steps of 1 / 256 need float32 ids (exact up to 65536) or float64: 16 bit would merge them. Crops
    keep the index of the whole picture, several images continue. With stride 256 ids are those of plain text.

    Args:
        stride: A power of two from 1 to 256.

    Raises:
        ConfigError: For another stride.

    Example:
        >>> V2PE(64)([Text(2), Image(1, 3), Text(2)]).values[0, :, 0].tolist()
        [0.0, 1.0, 1.25, 1.5, 1.75, 3.0, 4.0]
        >>> V2PE(64)([Text(1), Image(2, 3, crops=[Crop(1, 0, 1, 3)]), Text(1)]).values[0, :, 0].tolist()
        [0.0, 1.0, 1.25, 1.5, 3.0]
    """

    def __init__(self, stride: int) -> None:
        self.stride = _stride(stride)

    def room(self, tokens: int) -> float:
        """Tokens x stride / 256."""
        return tokens * self.stride / _TILE


class RandomV2PE(_SmallSteps):
    """V2PE as in training: every image draws its stride.

    Args:
        generator: Source of the draws (a CPU generator); `None` means the global one. It advances with every image.
        strides: What to draw from, all equally often; all powers of two from 1 to 256 in the paper.

    Raises:
        ConfigError: If there is no stride or one is no power of two from 1 to 256, or the generator is none.

    Example:
        >>> scheme = RandomV2PE(torch.Generator().manual_seed(0), strides=[64, 128])
        >>> scheme([Text(1), Image(1, 2), Image(1, 2), Text(1)]).values[0, :, 0].tolist()
        [0.0, 0.25, 0.5, 1.5, 2.0, 3.0]
    """

    def __init__(self, generator: torch.Generator | None = None, strides: Sequence[int] = _STRIDES) -> None:
        if not isinstance(strides, (list, tuple)) or not strides:
            raise ConfigError(f"strides must be a list of at least one stride to draw from, got {strides!r:.80}")
        if generator is not None and not isinstance(generator, torch.Generator):
            raise ConfigError(f"generator must be a torch.Generator or None, got {generator!r:.80}")
        self.generator, self.strides = generator, [_stride(stride) for stride in strides]

    def room(self, tokens: int) -> float:
        """Tokens x a drawn stride / 256."""
        return tokens * self.strides[int(torch.randint(len(self.strides), (), generator=self.generator))] / _TILE


class SpanV2PE(_SmallSteps):
    """Small steps in general: every picture takes the same room, delta = span / number of tokens.

    Args:
        span: Steps of text that a whole picture is worth.

    Raises:
        ConfigError: If it is no number above 0, up to 1e9.

    Example:
        >>> SpanV2PE(1)([Text(1), Image(2, 2), Text(1)]).values[0, :, 0].tolist()
        [0.0, 0.25, 0.5, 0.75, 1.0, 2.0]
    """

    def __init__(self, span: float) -> None:
        self.span = positive("span", span, ConfigError)

    def room(self, tokens: int) -> float:
        """The span."""
        return self.span


def _stride(stride: int) -> int:
    if isinstance(stride, bool) or not isinstance(stride, int) or stride not in _STRIDES:
        raise ConfigError(f"stride must be a power of two from 1 to 256, got {stride!r:.80}")
    return stride
