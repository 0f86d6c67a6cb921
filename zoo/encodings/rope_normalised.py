"""Axial RoPE on coordinates normalised to [-1, 1], as in DINOv3 (arXiv 2508.10104), with its augmentation."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from zoo.coordinates import Coordinates
from zoo.encodings.base import AttentionEncoding, Frame, algebra_dtype, number_option
from zoo.encodings.extension import sample_extents
from zoo.encodings.rotary import Layout, Rotation, ladder, layout_option, make_rotation, pairs_per_axis, rotate
from zoo.errors import ConfigError

__all__ = ["NormalisedRoPE"]

# The side that coordinates are divided by: sizes (..., p) of a sample along its axes -> (..., p) or (..., 1).
_SIDES = {
    "separate": lambda sizes: sizes,
    "max": lambda sizes: sizes.amax(dim=-1, keepdim=True),
    "min": lambda sizes: sizes.amin(dim=-1, keepdim=True),
}


class NormalisedRoPE(AttentionEncoding):
    """Axial RoPE with angle 2 pi c / P_k, where c = 2 (i + 1/2) / n - 1 and P_k = base^(2pk / R), k < R / 2p.

    i is the index of a token along an axis, counted from the first token of its sample, and n the number of cells that
    the sample spans there: largest - smallest coordinate + 1, since the unit is the patch pitch. Both are measured for
    every sample of a batch or pack by itself, from the tokens that have a position. Each axis has floor(D / 2p) pairs,
    axis 0 first (the column in pictures of this package; DINOv3's networks have rows first); R = 2p floor(D / 2p)
    channels are rotary and the rest passes through. Class and register tokens, which have no position, are not rotated;
    that is the same as a token at the centre (the origin of c).

    A picture spans [-1, 1] at any resolution, so that tokens of finer grids lie between the trained positions: the
    encoding interpolates and does not extrapolate, and there is nothing to extend. Moving a whole sample changes
    nothing, not even towards tokens without a position. But a crop is a picture of its own, and dropping tokens at the
    rim moves all others. c is float32 or wider whatever the weights are: bfloat16 numbers near 1 are as far apart as an
    eighth of a cell of a grid of 64.

    In training mode every frame (one per forward of an encoder) draws, for all samples alike and in this order, a shift
    c + U(-shift, shift) per axis, a jitter c u with log u uniform in [-log jitter, log jitter] per axis, and the same
    with rescale for all axes together. In eval mode nothing is drawn.

    Args:
        dim: Unused, part of the common signature.
        num_heads: Unused.
        head_dim: Head width D, at least 2p.
        coord_dim: Coordinate axes p.
        base: Base of the periods P_k, in units of half the picture.
        normalise: What n is: `"separate"` the size of each axis, `"max"` the largest size of the sample, `"min"` the
            smallest. The first cell is at 1 / n - 1 on every axis in all three, as in DINOv3, so that with `"max"` the
            shorter axes are not centred.
        layout: `"half"` (DINOv3) or `"interleaved"`, see `zoo.encodings.rope.convert_layout`.
        shift: Largest shift in training, `None` for no shift.
        jitter: Largest factor of an axis in training, at least 1; `None` for none.
        rescale: Largest factor of all axes in training, at least 1; 2 in the released DINOv3 networks, `None` for none.

    Raises:
        ConfigError: If the head is too narrow or an option is bad.
    """

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        head_dim: int,
        coord_dim: int,
        base: float = 100.0,
        normalise: str = "separate",
        layout: Layout = "half",
        shift: float | None = None,
        jitter: float | None = None,
        rescale: float | None = None,
    ) -> None:
        super().__init__()
        self.pairs_per_axis = pairs_per_axis("rope-normalised", head_dim, coord_dim)
        self.base = number_option("base", base, low=1.0001, high=1e9)
        if not isinstance(normalise, str) or normalise not in _SIDES:
            raise ConfigError(f"encoding option 'normalise' must be 'separate', 'max' or 'min', got {normalise!r:.80}")
        self.normalise = normalise
        self.layout = layout_option(layout)
        self.shift = None if shift is None else number_option("shift", shift, low=0.0, high=1e3)
        self.jitter = None if jitter is None else number_option("jitter", jitter, low=1.0, high=1e3)
        self.rescale = None if rescale is None else number_option("rescale", rescale, low=1.0, high=1e3)

    @property
    def by_sample(self) -> bool:
        """See `Extendable.by_sample`: coordinates are divided by the extent of the sample."""
        return True

    def frame(self, coords: Coordinates, dtype: torch.dtype) -> Rotation:
        """Cosines and sines of all angles, in float32 or wider; draws the augmentation in training mode."""
        values = self.normalised(coords, algebra_dtype(coords.values.dtype, dtype))
        if self.training:
            values = self._augment(values)
        if coords.positioned is not None:
            values = values.masked_fill(~coords.positioned.unsqueeze(-1), 0.0)
        if coords.packed:
            values = values.unsqueeze(0)
        theta = 2 * math.pi * ladder(self.base, self.pairs_per_axis, values)
        return make_rotation((values.unsqueeze(-1) * theta).flatten(-2).unsqueeze(1))

    def normalised(self, coords: Coordinates, dtype: torch.dtype) -> Tensor:
        """Coordinates c of every token, shaped like `coords.values`; without the augmentation."""
        middle = coords.centred(dtype)  # From -(n - 1) / 2 to (n - 1) / 2, zero for tokens without a position.
        sizes = sample_extents(coords, dtype)
        if coords.packed:
            sizes = sizes.squeeze(0)
        return (2 * middle + sizes) / _SIDES[self.normalise](sizes) - 1

    def _augment(self, values: Tensor) -> Tensor:
        axes = values.shape[-1]
        if self.shift is not None:
            values = values + self.shift * _uniform(axes, values)
        if self.jitter is not None:
            values = values * (math.log(self.jitter) * _uniform(axes, values)).exp()
        if self.rescale is not None:
            values = values * (math.log(self.rescale) * _uniform(1, values)).exp()
        return values

    def fold(self, x: Tensor, q: Tensor, k: Tensor, frame: Frame) -> tuple[Tensor, Tensor]:
        """Rotates q and k; the arithmetic is float32, the result has the dtype of the input."""
        assert isinstance(frame, Rotation)
        return rotate(q, frame, self.layout), rotate(k, frame, self.layout)


def _uniform(count: int, like: Tensor) -> Tensor:
    """Numbers drawn from U(-1, 1)."""
    return 2 * torch.rand(count, device=like.device, dtype=like.dtype) - 1
