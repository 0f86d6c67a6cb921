"""Rotary position encoding on axes (Su et al. 2104.09864; axial form as in RoPE-ViT, 2403.13298) and on token order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from zoo.coordinates import Coordinates
from zoo.encodings.base import AttentionEncoding, Frame, algebra_dtype, number_option
from zoo.encodings.extendable import Extendable
from zoo.encodings.extension import Extension
from zoo.encodings.rotary import (
    Layout,
    Rotation,
    base_option,
    ladder,
    layout_option,
    make_positions,
    make_rotation,
    pairs_per_axis,
    rotate,
)
from zoo.errors import ConfigError

__all__ = ["RoPE", "RoPE1D", "convert_layout"]


class RoPE(AttentionEncoding):
    """Axial RoPE: pair k of axis a turns by the angle r_a theta_ak with theta_ak = base_a^(-2pk / R).

    Each axis has floor(D / 2p) pairs, axis 0 first; R = 2p floor(D / 2p) channels are rotary and the D - R channels
    that are left pass through unrotated. Scores of positioned tokens depend on r_i - r_j alone. Tokens without a
    position are not rotated, which to RoPE is the same as a token at the origin: translation changes their scores with
    the others. Not invariant to rotations of the plane, and no decay with distance.

    Coordinates are in the training patch pitch, unscaled at other resolutions: that is what extrapolates. In [-1, 1]
    the same encoding would interpolate, and the bases below would leave nearly all pairs still.

    Args:
        dim: Unused, part of the common signature.
        num_heads: Unused.
        head_dim: Head width D, at least 2p.
        coord_dim: Coordinate axes p.
        base: Base of the frequency ladder, one number or one per axis. 100 suits grids of 14 to 64 patches; 10000
            leaves most pairs still there.
        layout: `"half"` turns channel j with j + R/2 (the released PaPE networks), `"interleaved"` 2j with 2j + 1
            (rope-vit, timm). `convert_layout` carries weights from one to the other.

    Raises:
        ConfigError: If the head is too narrow or an option is bad.
    """

    extension_methods = ("pi", "ntk", "dynamic-ntk", "yarn")

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        head_dim: int,
        coord_dim: int,
        base: float | Sequence[float] = 100.0,
        layout: str = "half",
    ) -> None:
        super().__init__()
        self.pairs_per_axis = pairs_per_axis("rope", head_dim, coord_dim)
        self.bases = base_option(base, coord_dim)
        self.base = base
        self.layout = layout_option(layout)

    def frame(self, coords: Coordinates, dtype: torch.dtype) -> Rotation:
        """Cosines and sines of all angles, in float32 or wider."""
        values = make_positions(self.extended(coords, dtype), dtype).values
        theta = torch.stack([ladder(base, self.pairs_per_axis, values) for base in self.bases])
        theta = self.multiplied(theta, self.bases, coords)
        return make_rotation((values.unsqueeze(-1) * theta).flatten(-2).unsqueeze(1), self.gain(coords.axes))

    def fold(self, x: Tensor, q: Tensor, k: Tensor, frame: Frame) -> tuple[Tensor, Tensor]:
        """Rotates q and k; the arithmetic is float32, the result has the dtype of the input."""
        assert isinstance(frame, Rotation)
        return rotate(q, frame, self.layout), rotate(k, frame, self.layout)


class RoPE1D(AttentionEncoding):
    """RoPE on the flattened token index, a control: it knows the order of the tokens and nothing of their coordinates.

    Pair k turns by n base^(-2k / R), half layout, R = 2 floor(D / 2), where n = 0, 1, ... counts the positioned tokens
    of a sample in the order given (row by row for a grid). Packed samples each count from 0. Tokens without a position
    are neither counted nor rotated. Translation does not change it; transposing the tokens of a grid does, and so does
    another grid width. An extension takes the product of the factors and of the extents of all axes, by which the
    number of tokens grows. Su et al. 2104.09864.

    Args:
        dim: Unused, part of the common signature.
        num_heads: Unused.
        head_dim: Head width D, at least 2.
        coord_dim: Coordinate axes p; extensions alone make use of it.
        base: Base of the frequency ladder; 10000 as for text, since a picture has hundreds of tokens or more.

    Raises:
        ConfigError: If the head is too narrow or the base is bad.
    """

    extension_methods = ("pi", "ntk", "dynamic-ntk", "yarn")

    def __init__(self, *, dim: int, num_heads: int, head_dim: int, coord_dim: int, base: float = 10000.0) -> None:
        super().__init__()
        self.pairs = pairs_per_axis("rope-1d", head_dim, 1)
        self.base = number_option("base", base, low=1.0001, high=1e9)
        self.coord_dim, self.count = coord_dim, Extendable()

    def extend(self, extension: Extension | None) -> None:
        """See `Extendable.extend`."""
        super().extend(extension)
        self.count.extension = None if extension is None else extension.flattened(self.coord_dim)

    def frame(self, coords: Coordinates, dtype: torch.dtype) -> Rotation:
        """Cosines and sines of all angles, in float32 or wider."""
        values = coords.values
        known = coords.positioned
        if known is None:
            known = torch.ones(values.shape[:-1], dtype=torch.bool, device=values.device)
        count = known.long().cumsum(-1)
        index = count - 1
        if coords.cu_seqlens is not None:
            before = torch.cat([count.new_zeros(1), count])  # Positioned tokens in front of each token.
            index = index - before[coords.cu_seqlens.long()][coords.segments()]
        index = index.masked_fill(~known, 0).to(algebra_dtype(values.dtype, dtype))
        line = Coordinates(index.unsqueeze(-1), coords.positioned, coords.cu_seqlens)
        values = make_positions(self.count.extended(line, dtype), dtype).values
        theta = self.count.multiplied(ladder(self.base, self.pairs, values).unsqueeze(0), [self.base], line)
        return make_rotation((values.unsqueeze(-1) * theta).flatten(-2).unsqueeze(1), self.count.gain(1))

    def fold(self, x: Tensor, q: Tensor, k: Tensor, frame: Frame) -> tuple[Tensor, Tensor]:
        """Rotates q and k; the arithmetic is float32, the result has the dtype of the input."""
        assert isinstance(frame, Rotation)
        return rotate(q, frame), rotate(k, frame)


def convert_layout(qkv: Tensor, *, num_heads: int, coord_dim: int, to: Layout) -> Tensor:
    """Reorders a fused projection so that RoPE of the other layout gives the same scores.

    The rows of q and k of every head are permuted in the same way; the rows of v, and the channels of a head that
    pass through unrotated, stay. Converting back restores the input exactly.

    Args:
        qkv: (3 H D, C) weight or (3 H D,) bias of the projection, rows [q | k | v], each head-major.
        num_heads: Heads H.
        coord_dim: Coordinate axes p of the encoding.
        to: Layout wanted; the rows are taken to be in the other one.

    Returns:
        A new tensor like `qkv`.

    Raises:
        ConfigError: If the number of rows does not fit the heads, or the layout is unknown.
    """
    layout_option(to)
    head_dim, left = divmod(qkv.shape[0], 3 * num_heads)
    if left or not head_dim:
        raise ConfigError(f"a fused projection of {num_heads} heads has 3 x {num_heads} x D rows, got {qkv.shape[0]}")
    rotary = 2 * coord_dim * pairs_per_axis("rope", head_dim, coord_dim)
    halves = torch.arange(rotary, device=qkv.device).view(2, -1)
    source = halves.T.reshape(-1) if to == "interleaved" else halves.reshape(-1, 2).T.reshape(-1)
    order = torch.cat([source, torch.arange(rotary, head_dim, device=qkv.device)])
    heads = qkv.unflatten(0, (3, num_heads, head_dim))
    return torch.cat([heads[:2, :, order], heads[2:]]).flatten(0, 2)
