"""From raw maps to boxes and scores, without non-maximum suppression.

Shapes: B batch, A cells of all levels (finest level first, row by row), K classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.detection.parameter_count import BINS
from zoo.tracing import is_exporting

__all__ = ["cell_centres", "decode", "expected_distances", "flatten_maps", "select"]


def flatten_maps(maps: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Puts the cells of all levels in a row.

    Args:
        maps: Raw maps (B, 64 + K, rows, columns).

    Returns:
        Box logits (B, A, 4, 16) and class logits (B, A, K).
    """
    flat = torch.cat([level.flatten(2) for level in maps], dim=2).transpose(1, 2)
    boxes, classes = flat.split([4 * BINS, flat.shape[2] - 4 * BINS], dim=2)
    return boxes.unflatten(2, (4, BINS)), classes


def cell_centres(maps: Sequence[Tensor], strides: Sequence[float], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Centres of all cells in pixels (A, 2) as (x, y), and the size of their cells (A, 1)."""
    centres, sizes = [], []
    for level, stride in zip(maps, strides, strict=True):
        rows, columns = level.shape[-2:]
        y = (torch.arange(rows, device=level.device, dtype=dtype) + 0.5) * stride
        x = (torch.arange(columns, device=level.device, dtype=dtype) + 0.5) * stride
        centres.append(torch.stack([x.expand(rows, -1), y.unsqueeze(1).expand(-1, columns)], dim=-1).flatten(0, 1))
        sizes.append(torch.full((rows * columns, 1), float(stride), device=level.device, dtype=dtype))
    return torch.cat(centres), torch.cat(sizes)


def expected_distances(logits: Tensor) -> Tensor:
    """Means of distributions over 0..15: (..., 16) logits -> (...)."""
    bins = torch.arange(BINS, device=logits.device, dtype=logits.dtype)
    return (logits.softmax(dim=-1) * bins).sum(dim=-1)


def decode(maps: Sequence[Tensor], strides: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Boxes and scores of every cell, in float32 (float64 for float64 maps).

    Args:
        maps: Raw maps (B, 64 + K, rows, columns) of one branch.
        strides: Pixels of a cell on every level.

    Returns:
        Boxes (B, A, 4) as (x1, y1, x2, y2) in pixels of the model's input, not clipped to it, and scores (B, A, K).
    """
    dtype = torch.float64 if maps[0].dtype == torch.float64 else torch.float32
    boxes, classes = flatten_maps(maps)
    centres, sizes = cell_centres(maps, strides, dtype)
    near, far = (expected_distances(boxes.to(dtype)) * sizes).split(2, dim=2)
    return torch.cat([centres - near, centres + far], dim=2), classes.to(dtype).sigmoid()


def select(boxes: Tensor, scores: Tensor, max_detections: int, min_score: float) -> Tensor:
    """The best (cell, class) pairs of every picture.

    Args:
        boxes: (B, A, 4).
        scores: (B, A, K).
        max_detections: How many.
        min_score: Pairs with a smaller score count as none.

    Returns:
        (B, max_detections, 6): x1, y1, x2, y2, score, class; by falling score, then rows of zeros.
    """
    classes = scores.shape[2]
    if is_exporting():  # As many are chosen at every size: cells that hold nothing make up for those of small inputs.
        cells = -(-max_detections // classes)
        boxes, scores = F.pad(boxes, (0, 0, 0, cells)), F.pad(scores, (0, 0, 0, cells), value=-1.0)
        count = max_detections
    else:
        count = min(max_detections, scores.shape[1] * classes)
    best, index = scores.flatten(1).topk(count, dim=1, sorted=True)
    cell = torch.div(index, classes, rounding_mode="floor")
    chosen = boxes.gather(1, cell.unsqueeze(2).expand(-1, -1, 4))
    rows = torch.cat([chosen, best.unsqueeze(2), (index % classes).unsqueeze(2).to(boxes.dtype)], dim=2)
    rows = rows.masked_fill((best < min_score).unsqueeze(2), 0.0)
    return F.pad(rows, (0, 0, 0, max_detections - count))
