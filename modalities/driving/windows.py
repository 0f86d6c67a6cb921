"""Sets of tokens for attention: tokens are sorted into windows of a plane, and every window is cut evenly into sets.

A set lies in one plane (the image plane of one camera, or the bird's-eye view of one scene), so that its tokens share a
coordinate frame. Dynamic set attention follows DSVT (arXiv 2301.06051, section 3.2) and UniTR (arXiv 2308.07732), with
padding in place of repeated tokens, so that a token takes part in one set of a partition and no result depends on the
order of writing.

Legend: N tokens, S slots of a set, G sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.coordinates import Coordinates

__all__ = ["Places", "Sets", "make_sets"]


@dataclass(frozen=True)
class Places:
    """Where tokens are: a plane each, and a position on it.

    Attributes:
        plane: (N,) int64 number of the plane; tokens of different planes never meet.
        position: (N, 2) float, in cells of the plane's grid (patches of an image, pillars of the bird's-eye view).
        cell: (N, 2) int64, the cell that holds the position.
    """

    plane: Tensor
    position: Tensor
    cell: Tensor

    def where(self, chosen: Tensor, other: Places) -> Places:
        """These places for the tokens that a (N,) mask chooses, others for the rest."""
        columns = chosen.unsqueeze(1)
        return Places(
            torch.where(chosen, self.plane, other.plane),
            torch.where(columns, self.position, other.position),
            torch.where(columns, self.cell, other.cell),
        )

    @staticmethod
    def cat(parts: Sequence[Places]) -> Places:
        """Places of several groups of tokens, one after the other."""
        return Places(
            torch.cat([part.plane for part in parts]),
            torch.cat([part.position for part in parts]),
            torch.cat([part.cell for part in parts]),
        )


@dataclass(frozen=True)
class Sets:
    """A partition of N tokens into G sets of at most S.

    Attributes:
        slots: (G * S,) int64 token in every slot; N where a slot is empty.
        place: (N,) int64 slot of every token.
        mask: (G, S) bool, True where a slot holds a token; every set has one at least.
        coords: (G, S, 2) positions, in cells from the corner of the window.
    """

    slots: Tensor
    place: Tensor
    mask: Tensor
    coords: Coordinates

    def arrange(self, x: Tensor) -> Tensor:
        """Tokens in sets: (N, C) -> (G, S, C), zero in empty slots."""
        padded = torch.cat([x, x.new_zeros(1, x.shape[1])])
        return padded.index_select(0, self.slots).unflatten(0, self.mask.shape)

    def restore(self, sets: Tensor) -> Tensor:
        """The inverse: (G, S, C) -> (N, C)."""
        return sets.flatten(0, 1).index_select(0, self.place)


@dataclass(frozen=True)
class _Pending:
    """A partition before the host knows how many sets there are."""

    order: Tensor
    place: Tensor
    local: Tensor
    sets: Tensor


def make_sets(
    layouts: Sequence[tuple[Places, int, bool]], planes: int, cells: int, window: int, set_size: int
) -> list[Sets]:
    """Partitions of the same tokens; the host waits for the device once, whatever their number.

    A window of n tokens is cut into ceil(n / set_size) sets along one axis (then the other), whose sizes differ by one
    at the most.

    Args:
        layouts: For each partition the places, the cells by which windows are moved, and whether sets are cut along the
            second axis instead of the first.
        planes: Number of planes; `Places.plane` is below it.
        cells: Most cells of a plane along any axis; `Places.cell` is from 0 to below it.
        window: Cells of a window along each axis.
        set_size: Most tokens of a set, S.

    Returns:
        One `Sets` for each layout. Without tokens they have no sets.
    """
    pending = [_arrange(*layout, planes, cells, window, set_size) for layout in layouts]
    if not pending:
        return []
    counts = torch.stack([one.sets for one in pending]).tolist()  # The only look at the device.
    return [_finish(one, count, set_size, window) for one, count in zip(pending, counts, strict=True)]


def _arrange(places: Places, shift: int, second: bool, planes: int, cells: int, window: int, set_size: int) -> _Pending:
    moved = places.cell + shift
    across = (cells - 1 + window) // window + 1
    corner = moved // window
    inside = moved - corner * window
    local = places.position + shift - (corner * window).to(places.position.dtype)
    first, then = (inside[:, 1], inside[:, 0]) if second else (inside[:, 0], inside[:, 1])
    number = (places.plane * across + corner[:, 1]) * across + corner[:, 0]
    order = torch.argsort((number * window + first) * window + then, stable=True)

    tokens = len(order)
    number = number.index_select(0, order)
    steps = torch.arange(tokens, device=order.device)
    starts = torch.ones_like(number, dtype=torch.bool)
    starts[1:] = number[1:] != number[:-1]
    rank = steps - torch.where(starts, steps, 0).cummax(0).values if tokens else steps
    which = starts.cumsum(0) - 1
    sizes = torch.zeros_like(number).scatter_add_(0, which, torch.ones_like(number))
    pieces = -(-sizes // set_size)
    before = pieces.cumsum(0) - pieces
    size, piece = sizes.index_select(0, which), pieces.index_select(0, which)
    # Token r of n in k sets goes to set floor(r k / n), which starts at token ceil(set n / k).
    chosen = rank * piece // size.clamp_min(1)
    slot = rank + (-chosen * size) // piece.clamp_min(1)
    place = (before.index_select(0, which) + chosen) * set_size + slot
    return _Pending(order, place, local, pieces.sum())


def _finish(pending: _Pending, count: int, set_size: int, window: int) -> Sets:
    order, tokens = pending.order, len(pending.order)
    slots = order.new_full((count * set_size,), tokens).scatter_(0, pending.place, order)
    place = torch.empty_like(order).scatter_(0, order, pending.place)
    local = torch.cat([pending.local, pending.local.new_zeros(1, 2)])
    values = local.index_select(0, slots).view(count, set_size, 2)
    mask = (slots < tokens).view(count, set_size)
    # Known without looking: no position leaves its window.
    span = ((0.0, float(window)),) * 2
    coords = Coordinates(values, positioned=mask, bounds=span, unit="cell")
    return Sets(slots, place, mask, coords)
