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
import torch.nn.functional as F
from torch import Tensor

from zoo.coordinates import Coordinates
from zoo.errors import DataError

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


def make_sets(
    layouts: Sequence[tuple[Places, int, bool]], planes: int, cells: int, window: int, set_size: int
) -> list[Sets]:
    """Partitions of the same tokens, made together; the host waits for the device once.

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

    Raises:
        DataError: If the planes have so many cells that their numbers do not fit 63 bits.
    """
    if not layouts:
        return []
    across = (cells - 1 + window) // window + 1
    if planes * (across * window) ** 2 >= 1 << 63:
        raise DataError(f"{planes} planes of {cells} x {cells} cells are too many to number")
    # L layouts of N tokens at once.
    moved = torch.stack([places.cell + shift for places, shift, _ in layouts])
    corner = moved // window
    inside = moved - corner * window
    local = torch.stack([places.position + shift for places, shift, _ in layouts])
    local = local - (corner * window).to(local.dtype)
    along = torch.stack([one.flip(1) if layout[2] else one for one, layout in zip(inside, layouts, strict=True)])
    plane = torch.stack([places.plane for places, _, _ in layouts])
    number = (plane * across + corner[..., 1]) * across + corner[..., 0]
    keys, order = torch.sort((number * window + along[..., 0]) * window + along[..., 1], dim=1, stable=True)

    number = keys // window**2
    first = torch.ones_like(number, dtype=torch.bool)
    first[:, 1:] = number[:, 1:] != number[:, :-1]
    which = first.cumsum(1) - 1
    sizes = torch.zeros_like(number).scatter_add_(1, which, torch.ones_like(number))
    pieces = (sizes + set_size - 1) // set_size
    begins, before = sizes.cumsum(1) - sizes, pieces.cumsum(1) - pieces
    rank = torch.arange(number.shape[1], device=number.device) - begins.gather(1, which)
    size, piece = sizes.gather(1, which), pieces.gather(1, which)
    # Token r of n in k sets goes to set floor(r k / n), which starts at token ceil(set n / k).
    chosen = rank * piece // size
    slot = rank + (-chosen * size) // piece
    place = (before.gather(1, which) + chosen) * set_size + slot
    counts = pieces.sum(1).tolist()  # The only look at the device.

    by_token = torch.empty_like(place).scatter_(1, order, place)
    return [
        _sets(order[one], place[one], by_token[one], local[one], count, set_size, window)
        for one, count in enumerate(counts)
    ]


def _sets(
    order: Tensor, place: Tensor, by_token: Tensor, local: Tensor, count: int, set_size: int, window: int
) -> Sets:
    """One partition, of the order of its tokens, the slots of these and of the tokens themselves, and positions."""
    tokens = len(order)
    slots = order.new_full((count * set_size,), tokens).scatter_(0, place, order)
    values = F.pad(local, (0, 0, 0, 1)).index_select(0, slots).view(count, set_size, 2)
    mask = (slots < tokens).view(count, set_size)
    # Known without looking: no position leaves its window.
    span = ((0.0, float(window)),) * 2
    return Sets(slots, by_token, mask, Coordinates(values, positioned=mask, bounds=span, unit="cell"))
