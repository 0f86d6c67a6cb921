"""Position ids of tokens, in the forms that callers have them, as coordinates of a decoder.

Legend: B batch, N tokens, p coordinate axes.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from zoo.coordinates import Coordinates
from zoo.coordinates import text as text_coordinates
from zoo.errors import DataError

__all__ = ["Positions", "cut", "following", "make_coordinates"]

Positions = Tensor | Coordinates
"""(B or 1, N), the same on every axis, or (B or 1, N, p), whole numbers or floating point; or as `zoo.position_ids`."""


def make_coordinates(
    positions: Positions | None,
    shape: tuple[int, int],
    axes: int,
    *,
    start: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Coordinates:
    """Coordinates of tokens.

    Args:
        positions: Of the tokens; `None` counts them from `start`, on every axis.
        shape: (B, N).
        axes: p.
        start: Tokens before these.
        device: Of the model.
        dtype: Of the model: float64 gives float64 coordinates, everything else float32.

    Raises:
        DataError: If positions do not fit.
    """
    batch, tokens = shape
    if positions is None:
        coords = text_coordinates(tokens, start=float(start), device=device, dtype=dtype)
        if axes == 1:
            return coords
        assert coords.bounds is not None
        values = coords.values.expand(-1, -1, axes)
        return Coordinates(values, integral=coords.integral, bounds=coords.bounds * axes, unit="token")
    if isinstance(positions, Coordinates):
        coords = positions.to(device=device)
    elif isinstance(positions, Tensor) and positions.dim() in (2, 3) and positions.dtype != torch.bool:
        values = positions.to(device=device, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
        if values.dim() == 2:
            values = values.unsqueeze(-1).expand(-1, -1, axes)
        coords = Coordinates(values, unit="token")
    else:
        kind = type(positions).__name__
        given = f"{positions.dtype} {tuple(positions.shape)}" if isinstance(positions, Tensor) else kind
        raise DataError(f"positions must be numbers (B, N) or (B, N, {axes}), or Coordinates; got {given}")
    found = coords.values.shape
    if coords.packed or found[0] not in (1, batch) or tuple(found[1:]) != (tokens, axes):
        raise DataError(
            f"positions must be for {batch} (or 1) sequences of {tokens} tokens with {axes} axes, got {tuple(found)}"
        )
    return coords


def following(coords: Coordinates, count: int) -> Coordinates:
    """Coordinates of `count` text tokens after those given: on every axis from the next whole number above them all.

    The rule by which text goes on after pictures in M-RoPE (arXiv 2409.12191) and V2PE (arXiv 2412.09616).
    """
    values = coords.values
    if coords.positioned is not None:
        values = values.masked_fill(~coords.positioned.unsqueeze(-1), float("-inf"))
    last = values.flatten(1).amax(dim=1).ceil()
    last = last.masked_fill(last == float("-inf"), -1.0)
    steps = torch.arange(1, count + 1, device=values.device, dtype=values.dtype)
    ids = (last.unsqueeze(1) + steps).unsqueeze(-1).expand(-1, -1, coords.axes)
    return Coordinates(ids, unit=coords.unit)


def cut(coords: Coordinates, first: int, stop: int) -> Coordinates:
    """Coordinates of tokens `first` to `stop` - 1."""
    if (first, stop) == (0, coords.values.shape[1]):
        return coords
    window = slice(first, stop)
    return replace(
        coords,
        values=coords.values[:, window],
        positioned=None if coords.positioned is None else coords.positioned[:, window],
        poses=None if coords.poses is None else coords.poses[:, window],
        bounds=None,
    )
