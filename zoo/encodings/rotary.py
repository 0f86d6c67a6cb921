"""What the rotary encodings share: frames of positions and angles, the frequency ladder, and rotation in two layouts.

Angles and rotations are float32 (float64 in float64 models) also under autocast; results have the dtype of q and k.
Tokens without a position have angle 0 and stay as they are, which to a rotary encoding is the same as a token at the
origin: scores between them and others depend on where the others are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

import torch
from torch import Tensor

from zoo.coordinates import Coordinates
from zoo.encodings.base import Frame, algebra_dtype, number_option
from zoo.errors import ConfigError

__all__ = [
    "Layout",
    "Positions",
    "Rotation",
    "base_option",
    "ladder",
    "layout_option",
    "make_positions",
    "make_rotation",
    "rotate",
]

Layout = Literal["half", "interleaved"]


@dataclass(frozen=True)
class Positions(Frame):
    """Coordinates as the algebra needs them, for encodings whose angles follow from parameters of the layer.

    Attributes:
        values: (B or 1, N, p) float32 or float64, zero for tokens without a position.
    """

    values: Tensor


@dataclass(frozen=True)
class Rotation(Frame):
    """Cosines and sines, for encodings whose angles follow from coordinates alone.

    Attributes:
        cos: (B or 1, H or 1, N, pairs) float32 or float64.
        sin: Like `cos`.
        gain: What both are multiplied with, and the channels that pass through with them (the temperature of YaRN).
    """

    cos: Tensor
    sin: Tensor
    gain: float = 1.0


def make_positions(coords: Coordinates, dtype: torch.dtype) -> Positions:
    """Frame of positions; packed samples become a batch of one.

    Args:
        coords: Coordinates of the tokens.
        dtype: The dtype in which the attention kernel will run.
    """
    values = coords.values.to(algebra_dtype(coords.values.dtype, dtype))
    if coords.positioned is not None:
        values = values.masked_fill(~coords.positioned.unsqueeze(-1), 0.0)
    return Positions("fold", values.unsqueeze(0) if coords.packed else values)


def make_rotation(angles: Tensor, gain: float = 1.0) -> Rotation:
    """Frame of rotation by `angles` (B or 1, H or 1, N, pairs), and of multiplication with `gain`."""
    if gain == 1.0:
        return Rotation("fold", angles.cos(), angles.sin())
    return Rotation("fold", angles.cos() * gain, angles.sin() * gain, gain)


def ladder(base: float, pairs: int, like: Tensor) -> Tensor:
    """Frequencies base^(-k / pairs) for k = 0 .. pairs - 1, in radians per coordinate unit.

    With R channels for p axes, an axis has pairs = R / 2p, so that this is base^(-2pk / R).
    """
    k = torch.arange(pairs, device=like.device, dtype=like.dtype)
    return torch.pow(base, -k / pairs)


def rotate(x: Tensor, rotation: Rotation, layout: Layout = "half") -> Tensor:
    """Turns pairs of channels; the arithmetic has the dtype of the rotation, the result that of `x`.

    Args:
        x: (B, H, N, D) queries or keys.
        rotation: Cosines and sines of R / 2 <= D / 2 pairs; channels from R on pass through (times its gain).
        layout: `"half"` pairs channels (j, j + R/2), `"interleaved"` (2j, 2j + 1).
    """
    pairs = rotation.cos.shape[-1]
    rotary, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    if rotation.gain != 1.0:
        rest = (rest.to(rotation.cos.dtype) * rotation.gain).to(x.dtype)
    if layout == "half":
        first, second = rotary[..., :pairs], rotary[..., pairs:]
    else:
        first, second = rotary[..., ::2], rotary[..., 1::2]
    turned = (first * rotation.cos - second * rotation.sin, first * rotation.sin + second * rotation.cos)
    if layout == "half":
        return torch.cat([turned[0].to(x.dtype), turned[1].to(x.dtype), rest], dim=-1)
    return torch.cat([torch.stack(turned, dim=-1).flatten(-2).to(x.dtype), rest], dim=-1)


def base_option(base: float | Sequence[float], axes: int) -> tuple[float, ...]:
    """Checks a base of the frequency ladder, one number for all axes or a list with one for each.

    Raises:
        ConfigError: If a base is not a number above 1, or the list has another length.
    """
    if isinstance(base, (list, tuple)):
        if len(base) != axes:
            raise ConfigError(f"encoding option 'base' must be one number or {axes}, one per axis, got {base!r:.80}")
        return tuple(number_option("base", one, low=1.0001, high=1e9) for one in base)
    return (number_option("base", cast(float, base), low=1.0001, high=1e9),) * axes


def layout_option(layout: str) -> Layout:
    """Checks the name of a channel layout.

    Raises:
        ConfigError: If it is neither `"half"` nor `"interleaved"`.
    """
    if layout not in get_args(Layout):
        raise ConfigError(f"encoding option 'layout' must be 'half' or 'interleaved', got {layout!r:.80}")
    return cast(Layout, layout)


def pairs_per_axis(name: str, head_dim: int, axes: int) -> int:
    """Pairs floor(D / 2p) of every axis.

    Raises:
        ConfigError: If a head is too narrow for one pair per axis.
    """
    if head_dim < 2 * axes:
        raise ConfigError(f"{name} with {axes} axes needs a head width of {2 * axes} or more, got {head_dim}")
    return head_dim // (2 * axes)


def direction(angle: float) -> tuple[float, float]:
    """Unit vector (cos, sin) of an angle in radians."""
    return math.cos(angle), math.sin(angle)
