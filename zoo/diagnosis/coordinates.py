"""Checks of coordinates that somebody made: tokens that collide, origins too far for float32, a class token's place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zoo.diagnosis.catalogue import Finding
from zoo.errors import DataError

if TYPE_CHECKING:
    from zoo.coordinates import Coordinates

__all__ = ["check_coordinates"]

_CORNER = 0.1  # A token this near to a corner, in extents, while the others fill the input.


def check_coordinates(coords: Coordinates, prefix: int = 0) -> list[dict[str, Any]]:
    """Findings about coordinates, as `zoo doctor` has them about configurations.

    Args:
        coords: Of one batch. Tokens of different samples may share coordinates; tokens without a position are not
            looked at.
        prefix: Class and register tokens in front of every sample.

    Returns:
        Plain data, see `zoo.diagnosis.catalogue.Finding.to_dict`: `collision`, `far-origin` and `class-token-corner`.

    Raises:
        DataError: If a sample has fewer tokens than the prefix.
    """
    import torch

    found: list[Finding] = []
    for values, known in _samples(coords):
        if len(values) < prefix:
            raise DataError(f"a sample has {len(values)} tokens, fewer than the {prefix} of the prefix")
        rows = values[prefix:][known[prefix:]].double()
        if not len(rows):
            continue
        _, counts = torch.unique(rows, dim=0, return_counts=True)
        if shared := int((counts - 1).sum()):
            found.append(
                Finding(
                    "collision",
                    "error",
                    f"{shared} of {len(rows)} tokens are where another token of their sample is, up to "
                    f"{int(counts.max())} at one place",
                    "give every picture a place of its own: an axis of its number, an offset, or the ids of "
                    "zoo.position_ids",
                )
            )
        low, high = rows.amin(0), rows.amax(0)
        gaps = [torch.unique(column).diff() for column in rows.unbind(1)]
        gap = min((float(one.min()) for one in gaps if len(one)), default=1.0)
        if coords.values.dtype == torch.float32 and float(rows.abs().max()) * 2.0**-24 > gap / 64:
            what = f"coordinates reach {float(rows.abs().max()):.3g}, with steps of {gap:.3g} between neighbours"
            mend = "subtract the origin in float64 or int64 before the conversion"
            found.append(Finding("far-origin", "warning", what, mend))
        first = values[:prefix][known[:prefix]].double()
        extent = (high - low).clamp(min=1e-12)
        inside = ((first - low) / extent).clamp(0, 1)
        if coords.axes > 1 and len(first) and bool((torch.minimum(inside, 1 - inside).amax(1) < _CORNER).any()):
            what = "a token of the prefix has its coordinates at a corner of the others"
            mend = "give it no position: Coordinates.with_prefix(count)"
            found.append(Finding("class-token-corner", "warning", what, mend))
    unique = {(one.code, one.what): one for one in found}
    return [one.to_dict() for one in unique.values()]


def _samples(coords: Coordinates) -> list[tuple[Any, Any]]:
    """Values (N, p) and which tokens have a position (N,), of each sample."""
    import torch

    values, known = coords.values, coords.positioned
    if known is None:
        known = torch.ones(values.shape[:-1], dtype=torch.bool, device=values.device)
    if coords.cu_seqlens is None:
        batch = max(len(values), len(known))
        return list(zip(values.expand(batch, -1, -1), known.expand(batch, -1), strict=True))
    ends = coords.cu_seqlens.tolist()
    return [(values[a:b], known[a:b]) for a, b in zip(ends, ends[1:], strict=False)]
