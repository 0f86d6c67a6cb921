"""Fixed sine and cosine position encoding in p dimensions, added to the features (Vaswani et al. 2017, section 3.5)."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.coordinates import Coordinates
from zoo.encodings.base import TokenEncoding, number_option
from zoo.errors import ConfigError

__all__ = ["SinCos"]


class SinCos(TokenEncoding):
    """n-D sincos: the C features are split into p even parts, the last taking the remainder.

    A part of width C' holds [sin(r w_k) | cos(r w_k)] of its axis, with w_k = base^(-2k / C').

    Args:
        dim: Feature width C, even and at least 2p.
        num_heads: Unused, part of the common signature.
        head_dim: Unused.
        coord_dim: Coordinate axes p.
        base: Longest wavelength over 2 pi, in coordinate units.
    """

    extension_methods = ("pi",)

    def __init__(self, *, dim: int, num_heads: int, head_dim: int, coord_dim: int, base: float = 10000.0) -> None:
        super().__init__()
        if dim % 2 or dim < 2 * coord_dim:
            raise ConfigError(f"sincos needs an even width of at least {2 * coord_dim}, got {dim}")
        self.base = number_option("base", base, low=1.0001, high=1e9)
        part = dim // coord_dim // 2 * 2
        self.parts = [part] * (coord_dim - 1) + [dim - part * (coord_dim - 1)]

    def encode(self, coords: Coordinates) -> Tensor:
        """See `TokenEncoding.encode`."""
        values = self.extended(coords, coords.values.dtype).values
        columns = []
        for axis, part in enumerate(self.parts):
            k = torch.arange(part // 2, device=values.device, dtype=values.dtype)
            angles = values[..., axis : axis + 1] * torch.pow(self.base, -2 * k / part)
            columns += [angles.sin(), angles.cos()]
        encoding = torch.cat(columns, dim=-1)
        if coords.positioned is not None:
            encoding = encoding.masked_fill(~coords.positioned.unsqueeze(-1), 0.0)
        return encoding
