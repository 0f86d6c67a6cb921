"""Rotary encodings of the plane along many fixed directions: Spiral RoPE (2602.03227) and golden-angle RoPE."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor

from zoo.coordinates import Coordinates
from zoo.encodings.base import AttentionEncoding, Frame, number_option
from zoo.encodings.rotary import Rotation, direction, make_positions, make_rotation, rotate
from zoo.errors import ConfigError

__all__ = ["GoldenRoPE", "SpiralRoPE"]

# A direction and its opposite turn alike (up to the sense), so that half turns are what is to be filled evenly.
_GOLDEN_STEP = math.pi * (math.sqrt(5) - 1) / 2


class _DirectionalRoPE(AttentionEncoding):
    """Pair k turns by <r, u_k> with fixed frequency vectors u_k of the plane, half layout.

    The vectors run through a frequency ladder, once or several times. An extension changes their components: that of
    axis a as it would change the frequency in an axial ladder on that axis.
    """

    extension_methods = ("pi", "ntk", "dynamic-ntk", "yarn")
    base: float
    pairs: int

    @abstractmethod
    def vectors(self) -> list[list[tuple[float, float]]]:
        """Frequency vectors as rows [head or one for all][pair] of (u_x, u_y), radians per coordinate unit."""

    def frame(self, coords: Coordinates, dtype: torch.dtype) -> Rotation:
        """Cosines and sines of all angles, in float32 or wider."""
        values = make_positions(self.extended(coords, dtype), dtype).values
        vectors = torch.tensor(self.vectors(), device=values.device, dtype=values.dtype).mT  # (H or 1, 2, pairs)
        steps = self.multiplied(values.new_ones(2, self.pairs), (self.base, self.base), coords)
        steps = steps.repeat(*[1] * (steps.dim() - 1), vectors.shape[-1] // self.pairs)
        with torch.autocast(values.device.type, enabled=False):
            if coords.packed and steps.dim() > 2:  # Of every token, (1, N, 2, pairs).
                angles = ((values.unsqueeze(-1) * steps).unsqueeze(1) * vectors.unsqueeze(-3)).sum(dim=-2)
            else:  # Of every sample, (B or 1, 1, 2, pairs), or of all.
                angles = values.unsqueeze(1) @ (vectors * steps)
            return make_rotation(angles, self.gain(2))

    def fold(self, x: Tensor, q: Tensor, k: Tensor, frame: Frame) -> tuple[Tensor, Tensor]:
        """Rotates q and k; the arithmetic is float32, the result has the dtype of the input."""
        assert isinstance(frame, Rotation)
        return rotate(q, frame), rotate(k, frame)


class SpiralRoPE(_DirectionalRoPE):
    """Spiral RoPE: K groups of channels, group g turning by the projection on the direction g pi / K.

    Every group has n = floor(D / 2K) pairs with magnitudes base^(-k / n), so that K = 2 is axial RoPE; the D - 2Kn
    channels left over pass through. Grouping and directions are as reported in the abstract of arXiv 2602.03227; the
    number of directions, the ladder within a group and the base of the authors are unverified. No parameters. Scores
    of positioned tokens depend on r_i - r_j alone; not invariant to rotation (only nearly so for large K). Coordinates
    are in the training patch pitch.

    Args:
        dim: Unused, part of the common signature.
        num_heads: Unused.
        head_dim: Head width D, at least 2K.
        coord_dim: Coordinate axes, 2.
        directions: Number K of directions.
        base: Base of the frequency ladder, see `zoo.encodings.rope.RoPE`.

    Raises:
        ConfigError: If the coordinates are not of the plane, the head is too narrow, or an option is bad.
    """

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        head_dim: int,
        coord_dim: int,
        directions: int = 4,
        base: float = 100.0,
    ) -> None:
        super().__init__()
        _need_plane("spiral-rope", coord_dim)
        self.directions = int(number_option("directions", directions, low=1, high=4096, integer=True))
        self.base = number_option("base", base, low=1.0001, high=1e9)
        self.pairs = head_dim // (2 * self.directions)
        if self.pairs == 0:
            raise ConfigError(
                f"spiral-rope with {self.directions} directions needs a head width of {2 * self.directions} or more, "
                f"got {head_dim}; give fewer 'directions'"
            )

    def vectors(self) -> list[list[tuple[float, float]]]:
        """See `_DirectionalRoPE.vectors`."""
        rows = []
        for group in range(self.directions):
            x, y = direction(group * math.pi / self.directions)
            sizes = [self.base ** (-k / self.pairs) for k in range(self.pairs)]
            rows += [(x * size, y * size) for size in sizes]
        return [rows]


class GoldenRoPE(_DirectionalRoPE):
    """Golden-angle RoPE: every frequency has a direction of its own, a golden section of a half turn after the last.

    Pair k of head h turns by base^(-k / n) <r, (cos phi, sin phi)> with phi = (h n + k) pi (sqrt 5 - 1) / 2 and
    n = floor(D / 2) pairs; an odd channel passes through. The idea is reported in the article "On N-dimensional rotary
    positional embeddings" (jerryxio.ng); numbering directions on through the heads follows public code of it, the
    ladder is that of our `rope`. No parameters. Scores of positioned tokens depend on r_i - r_j alone. Coordinates are
    in the training patch pitch.

    The golden angle spreads directions of the plane; the quasi-random directions that the article uses for more axes
    are another construction, so other numbers of axes are refused here (`rope-mixed` takes any).

    Args:
        dim: Unused, part of the common signature.
        num_heads: Heads H.
        head_dim: Head width D, at least 2.
        coord_dim: Coordinate axes, 2.
        base: Base of the frequency ladder, see `zoo.encodings.rope.RoPE`.

    Raises:
        ConfigError: If the coordinates are not of the plane, the head is too narrow, or the base is bad.
    """

    def __init__(self, *, dim: int, num_heads: int, head_dim: int, coord_dim: int, base: float = 100.0) -> None:
        super().__init__()
        _need_plane("golden-rope", coord_dim)
        if head_dim < 2:
            raise ConfigError(f"golden-rope needs a head width of 2 or more, got {head_dim}")
        self.num_heads, self.pairs = num_heads, head_dim // 2
        self.base = number_option("base", base, low=1.0001, high=1e9)

    def vectors(self) -> list[list[tuple[float, float]]]:
        """See `_DirectionalRoPE.vectors`."""
        heads = []
        for head in range(self.num_heads):
            row = []
            for k in range(self.pairs):
                x, y = direction((head * self.pairs + k) * _GOLDEN_STEP)
                size = self.base ** (-k / self.pairs)
                row.append((x * size, y * size))
            heads.append(row)
        return heads


def _need_plane(name: str, axes: int) -> None:
    if axes != 2:
        raise ConfigError(
            f"{name} is an encoding of the plane and needs 2 coordinate axes, got {axes}; use rope or rope-mixed"
        )
