"""What a position encoding is to a block: one method per kind, and the frame shared by all layers of a forward.

Legend: B batch, N tokens, C features, H heads, D head width, p coordinate axes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.coordinates import Coordinates
from zoo.encodings.extendable import Extendable
from zoo.encodings.terms import Product
from zoo.errors import ConfigError

__all__ = ["AttentionEncoding", "DivisibleScore", "Frame", "LastRows", "NoEncoding", "Score", "TokenEncoding"]
__all__ += ["number_option"]

Kind = Literal["none", "fold", "score", "group"]


@dataclass(frozen=True)
class Frame:
    """What an encoding derives from coordinates alone, made once per forward and shared by all layers.

    Attributes:
        kind: How attention is to be encoded: `"fold"` maps q and k, `"group"` maps q, k, v and the output, `"score"`
            adds a function of two tokens to the logits, `"none"` leaves all alone. An encoding may choose by the
            coordinates.
    """

    kind: Kind


class Score(Protocol):
    """An additive position term of the attention logits, evaluated for a block of query rows at a time."""

    def bias(self, rows: slice) -> Tensor:
        """Bias of the queries in `rows` on all keys, added after the softmax scale.

        Returns:
            (B or 1, H, rows, N) float32 (float64 in float64 models).
        """
        ...


@runtime_checkable
class DivisibleScore(Score, Protocol):
    """A score that can be had for some of the tokens, at the cost of those alone."""

    def among(self, tokens: slice) -> Score:
        """The score of `tokens` on each other."""
        ...


@dataclass(frozen=True)
class LastRows:
    """A score of the last tokens of a sample as queries on all its tokens; row 0 is that of the first of them.

    Attributes:
        score: Of all tokens.
        first: Tokens before the last ones.
        count: How many last ones there are.
    """

    score: Score
    first: int
    count: int

    def bias(self, rows: slice) -> Tensor:
        """See `Score`."""
        start, stop, _ = rows.indices(self.count)
        return self.score.bias(slice(self.first + start, self.first + stop))


class TokenEncoding(Extendable, nn.Module, ABC):
    """An encoding that is added to the features once, before the first block."""

    @abstractmethod
    def encode(self, coords: Coordinates) -> Tensor:
        """Encoding of every token: (B or 1, N, C) in the dtype of the coordinates, zero for tokens without position."""

    def no_weight_decay(self) -> set[str]:
        """Names of own parameters that weight decay would harm."""
        return set()


class AttentionEncoding(Extendable, nn.Module, ABC):
    """An encoding that acts inside attention: maps q and k (fold), v and the output too (group), or adds a score."""

    @abstractmethod
    def frame(self, coords: Coordinates, dtype: torch.dtype) -> Frame:
        """Derives from the coordinates what every layer needs.

        Args:
            coords: Coordinates of the tokens.
            dtype: The dtype in which the attention kernel will run.
        """

    def fold(self, x: Tensor, q: Tensor, k: Tensor, frame: Frame) -> tuple[Tensor, Tensor]:
        """Maps q and k (B, H, N, D) so that plain attention over the result is encoded.

        Args:
            x: (B, N, C) the input of the block, for encodings that depend on content.
            q: (B, H, N, D) queries.
            k: (B, H, N, D) keys.
            frame: What `frame` returned for these coordinates.

        Returns:
            q and k of equal, possibly larger width; the softmax scale stays that of D. By default as they are.
        """
        return q, k

    def transform_values(self, v: Tensor, frame: Frame) -> Tensor:
        """Maps v (B, H, N, D) from the frame of each token to one that all share; kind group only.

        Args:
            v: (B, H, N, D) values.
            frame: What `frame` returned for these coordinates.

        Returns:
            Tensor like `v`, by default as it is.
        """
        return v

    def transform_output(self, out: Tensor, frame: Frame) -> Tensor:
        """Maps what attention gathered back to the frame of each query; kind group only.

        Args:
            out: (B, H, N, D) attention output, before the output projection.
            frame: What `frame` returned for these coordinates.

        Returns:
            Tensor like `out`, by default as it is.
        """
        return out

    def score(self, x: Tensor, frame: Frame, scale: float) -> Score | None:
        """The additive position term of the logits, or `None` for encodings that have none (rotary ones).

        Args:
            x: (B, N, C) the input of the block.
            frame: What `frame` returned.
            scale: Softmax scale, for terms that sit inside the product of q and k.
        """
        return None

    def encode_attention(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, frame: Frame, scale: float
    ) -> tuple[Tensor, Tensor, Tensor, Score | Product | None]:
        """q, k, v and the score, each as the kind of the frame has it; arguments as in the methods above.

        After attention, the output of kind group goes through `transform_output`.
        """
        score = None
        if frame.kind in ("fold", "group"):
            q, k = self.fold(x, q, k, frame)
        if frame.kind == "group":
            v = self.transform_values(v, frame)
        if frame.kind == "score":
            score = self.score(x, frame, scale)
        return q, k, v, score

    def encode_last(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, frame: Frame, scale: float
    ) -> tuple[Tensor, Tensor, Tensor, Score | None]:
        """As `encode_attention`, with the last n of N tokens as queries on all of them: decoding step by step.

        Positions are encoded anew, for all keys, in the frame of all tokens: content is what can be kept.

        Args:
            x: (B, n, C) the input of the block at the last tokens.
            q: (B, H, n, D) their queries.
            k: (B, H, N, D) keys of all tokens, not encoded.
            v: (B, H, N, D) values of all tokens, not encoded.
            frame: What `frame` returned for the coordinates of all tokens.
            scale: Softmax scale.

        Returns:
            q of the last tokens, k and v of all, and the score of the former as rows on the latter.
        """
        count = q.shape[2]
        first = k.shape[2] - count
        before = (0, 0, first, 0)  # No encoding looks from one query at another: what stands there is of no effect.
        q, k, v, score = self.encode_attention(F.pad(x, before), F.pad(q, before), k, v, frame, scale)
        if isinstance(score, Product):
            q, k = score.fold(q, k)
            score = None
        return q[:, :, first:], k, v, None if score is None else LastRows(score, first, count)

    def reset_parameters(self) -> None:
        """Draws the initial values of own parameters."""

    def place(self, layer: int, depth: int) -> None:
        """Tells the encoding that it serves block `layer` of `depth`, for those that differ by layer."""

    def freeze(self) -> None:
        """Computes once what follows from the weights alone, which must not change from here on; for export."""

    def project_parameters(self) -> None:
        """Brings own parameters back into their range after an optimiser step, for those that have one."""

    def no_weight_decay(self) -> set[str]:
        """Names of own parameters that weight decay would harm."""
        return set()


class NoEncoding(AttentionEncoding):
    """Attention without positions: the control every claim is measured against."""

    def __init__(self, *, dim: int, num_heads: int, head_dim: int, coord_dim: int) -> None:
        super().__init__()

    def frame(self, coords: Coordinates, dtype: torch.dtype) -> Frame:
        """Nothing to derive."""
        return Frame("none")


def algebra_dtype(*dtypes: torch.dtype) -> torch.dtype:
    """The dtype of position algebra: float32, or float64 as soon as an operand is."""
    return torch.float64 if torch.float64 in dtypes else torch.float32


def number_option(name: str, value: float, *, low: float, high: float, integer: bool = False) -> float:
    """Checks a numeric option of an encoding.

    Raises:
        ConfigError: If it is not a finite number (or whole number) in [low, high].
    """
    kinds: tuple[type, ...] = (int,) if integer else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:  # NaN is in no range.
        what = "a whole number" if integer else "a number"
        raise ConfigError(f"encoding option {name!r} must be {what} from {low:g} to {high:g}, got {value!r:.80}")
    return value
