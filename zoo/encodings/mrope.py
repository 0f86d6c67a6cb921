"""Multimodal rotary encoding: one frequency ladder whose pairs are shared out among the axes of mixed content."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from zoo.coordinates import Coordinates
from zoo.encodings.base import AttentionEncoding, Frame, number_option
from zoo.encodings.rope import RoPE
from zoo.encodings.rotary import Rotation, ladder, make_positions, make_rotation, rotate
from zoo.errors import ConfigError

__all__ = ["MRoPE"]

# Which axis each pair turns by, highest frequency first: (pairs per axis) -> axis of each pair, or None where the
# arrangement has no room for so uneven shares.
Arrangement = Callable[[Sequence[int]], list[int] | None]


def chunked(sections: Sequence[int]) -> list[int]:
    """Contiguous bands: axis 0 (time) has the highest frequencies, the last axis the lowest (Qwen2-VL)."""
    return [axis for axis, count in enumerate(sections) for _ in range(count)]


def interleaved(sections: Sequence[int]) -> list[int] | None:
    """Pair j is of axis a = j mod p while j < p times its share; all others are of axis 0 (Qwen3-VL)."""
    p = len(sections)
    axes = [j % p if j < p * sections[j % p] else 0 for j in range(sum(sections))]
    return axes if all(axes.count(axis) == count for axis, count in enumerate(sections)) else None


def videorope(sections: Sequence[int]) -> list[int]:
    """Axes 1, 2, ... in turn on the highest frequencies, axis 0 (time) alone on the lowest (VideoRoPE)."""
    rounds = range(max(sections))
    space = [axis for turn in rounds for axis in range(1, len(sections)) if turn < sections[axis]]
    return space + [0] * sections[0]


ARRANGEMENTS: dict[str, Arrangement] = {"chunked": chunked, "interleaved": interleaved, "videorope": videorope}

# Share of a spatial axis where there are three; time has the rest: 16, 24, 24 and 24, 20, 20 of 64 pairs.
_SPATIAL_SHARE = {"chunked": 24 / 64, "interleaved": 20 / 64, "videorope": 24 / 64}


class MRoPE(AttentionEncoding):
    """M-RoPE: pair j turns by the angle r_a(j) base^(-2j / R), on one ladder over all pairs.

    R = 2 floor(D / 2) channels are rotary, in the half layout; a(j) is the axis that the arrangement gives pair j. Text
    whose ids are the same on every axis (`zoo.position_ids`) gets the scores of RoPE on one axis: that is what lets a
    language model take pictures. Scores of tokens that have a position depend on r_i - r_j alone; the others are not
    rotated, as a token at the origin is not. Sources: Qwen2-VL (2409.12191, section 2.1), Qwen3-VL (2511.21631),
    VideoRoPE (2502.05173), MRoPE-Interleave (2510.23095).

    Unlike in `rope`, the axes do not have a ladder each. In the chunked arrangement with a base for language the last
    axis turns by less than 0.01 rad per unit: trained on small grids it sees nearly nothing along it. Extensions
    count pair j as the j-th of a ladder of all pairs, with the factor of its axis.

    Args:
        dim: Unused, part of the common signature.
        num_heads: Unused.
        head_dim: Head width D, at least 2p.
        coord_dim: Coordinate axes p. Axis 0 is time where there are three: (t, row, column).
        sections: Pairs of each axis, which sum to floor(D / 2). `None` means, for three axes, 16, 24, 24 of 64 pairs
            (24, 20, 20 when interleaved) scaled to the head, and equal shares for other numbers of axes; what does not
            divide goes to axis 0.
        arrangement: `"chunked"` gives every axis a contiguous band, axis 0 the highest frequencies (Qwen2-VL,
            Qwen2.5-VL). `"interleaved"` takes turns (Qwen3-VL). `"videorope"` takes turns between axes 1, 2, ... on the
            highest frequencies and leaves the lowest to axis 0.
        base: Base of the ladder: 1000000 in Qwen2-VL, 5000000 in Qwen3-VL, for language. 100 suits grids of 14 to 64
            patches that are trained from scratch.

    Raises:
        ConfigError: If the head is too narrow or an option is bad.
    """

    extension_methods = RoPE.extension_methods

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        head_dim: int,
        coord_dim: int,
        sections: Sequence[int] | None = None,
        arrangement: str = "chunked",
        base: float = 1e6,
    ) -> None:
        super().__init__()
        if not isinstance(arrangement, str) or arrangement not in ARRANGEMENTS:
            known = ", ".join(repr(name) for name in ARRANGEMENTS)
            raise ConfigError(f"encoding option 'arrangement' must be one of {known}, got {arrangement!r:.80}")
        pairs = head_dim // 2
        if pairs < coord_dim:
            raise ConfigError(f"mrope with {coord_dim} axes needs a head width of {2 * coord_dim}, got {head_dim}")
        shares = _default_sections(pairs, coord_dim, arrangement) if sections is None else sections
        if (
            not isinstance(shares, (list, tuple))
            or len(shares) != coord_dim
            or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in shares)
            or sum(shares) != pairs
        ):
            raise ConfigError(
                f"encoding option 'sections' must be {coord_dim} whole numbers of pairs with sum {pairs}, "
                f"got {sections!r:.80}"
            )
        axes = ARRANGEMENTS[arrangement](shares)
        if axes is None:
            raise ConfigError(f"sections {list(shares)} cannot interleave: give axis 0 more pairs or use 'chunked'")
        self.sections, self.arrangement, self.pair_axes = list(shares), arrangement, axes
        self.base = number_option("base", base, low=1.0001, high=1e9)

    def frame(self, coords: Coordinates, dtype: torch.dtype) -> Rotation:
        """Cosines and sines of all angles, in float32 or wider."""
        values = make_positions(self.extended(coords, dtype), dtype).values
        theta = ladder(self.base, len(self.pair_axes), values).expand(coords.axes, -1)
        theta = self.multiplied(theta, [self.base] * coords.axes, coords)  # Each pair has use for that of its axis.
        angles = [values[..., axis] * theta[..., axis, pair] for pair, axis in enumerate(self.pair_axes)]
        return make_rotation(torch.stack(angles, dim=-1).unsqueeze(1), self.gain(coords.axes))

    def fold(self, x: Tensor, q: Tensor, k: Tensor, frame: Frame) -> tuple[Tensor, Tensor]:
        """Rotates q and k; the arithmetic is float32, the result has the dtype of the input."""
        assert isinstance(frame, Rotation)
        return rotate(q, frame), rotate(k, frame)


def _default_sections(pairs: int, axes: int, arrangement: str) -> list[int]:
    """Shares of the axes; those of axes 1, 2, ... are equal."""
    others = pairs // axes
    if axes == 3:
        widest = pairs // 3 if arrangement == "interleaved" else (pairs - 1) // 2  # So that axis 0 gets its turn.
        others = min(max(round(pairs * _SPATIAL_SHARE[arrangement]), 1), widest)
    return [pairs - (axes - 1) * others] + [others] * (axes - 1)
