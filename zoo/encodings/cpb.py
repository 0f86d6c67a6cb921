"""Log-spaced continuous position bias, in p dimensions (Swin Transformer V2, arXiv 2111.09883)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from zoo.coordinates import Coordinates
from zoo.encodings.base import AttentionEncoding, Frame, number_option
from zoo.encodings.distance import DifferenceScore, PairFrame, axis_option, pair_frame
from zoo.encodings.relative_table import flat_index, look_up

__all__ = ["ContinuousBias"]

# Largest hidden activation made at once, in elements (64 MiB of float32).
_BLOCK_ELEMENTS = 2**24


@dataclass(frozen=True)
class _CPBFrame(PairFrame):
    steps: tuple[int, ...] | None  # Half widths of the table of all offsets, where it is smaller than all pairs.


@dataclass(frozen=True)
class _Network:
    """The two layers, evaluated on offsets (..., p)."""

    extents: tuple[float, ...]
    weight1: Tensor
    bias1: Tensor
    weight2: Tensor

    def bias_of(self, offsets: Tensor) -> Tensor:
        """(..., p) -> (..., H)."""
        with torch.autocast(offsets.device.type, enabled=False):
            relative = torch.stack([offsets[..., a] / extent for a, extent in enumerate(self.extents)], dim=-1)
            features = relative.sign() * torch.log2(1 + 8 * relative.abs()) / 3
            hidden = F.relu(F.linear(features, self.weight1, self.bias1))
            return 16 * torch.sigmoid(F.linear(hidden, self.weight2)) - 8


@dataclass(frozen=True)
class _TabulatedScore(DifferenceScore):
    """The bias of coordinates on a grid: the network runs once on all offsets that occur."""

    frame: PairFrame
    table: Tensor  # (H, T)
    steps: tuple[int, ...]

    def bias(self, rows: slice) -> Tensor:
        index = flat_index(self.frame.differences(rows).round(), self.steps)
        return self.frame.settle(look_up(self.table, index), rows)


@dataclass(frozen=True)
class _PairwiseScore(DifferenceScore):
    """The bias of coordinates anywhere: the network runs on every pair, few rows at a time."""

    frame: PairFrame
    network: _Network

    def bias(self, rows: slice) -> Tensor:
        batch, tokens = self.frame.values.shape[:2]
        wanted = range(tokens)[rows]
        step = max(1, _BLOCK_ELEMENTS // max(1, batch * tokens * len(self.network.bias1)))
        parts = [slice(a, min(a + step, wanted.stop)) for a in wanted[::step]]
        if len(parts) > 1 and torch.is_grad_enabled():  # Keep no hidden activations.
            biases = [checkpoint(self._part, part, use_reentrant=False) for part in parts]
        else:
            biases = [self._part(part) for part in parts or [rows]]
        return self.frame.settle(torch.cat(biases, dim=2), rows)

    def _part(self, rows: slice) -> Tensor:
        return self.network.bias_of(self.frame.differences(rows)).permute(0, 3, 1, 2)


class ContinuousBias(AttentionEncoding):
    """Bias 16 sigmoid(MLP(sign(D) log2(1 + 8 |D| / e) / 3)) - 8 with D = r_i - r_j, after the softmax scale.

    The log-spaced continuous position bias of SwinV2 (arXiv 2111.09883, section 3.3; factors as in its released code):
    a small network from the p offsets to one bias a head, with a ReLU between and no bias after. The constant 8 cancels
    in the softmax where all tokens have a position, and makes the bias start near 0 where some have none, which give
    and get bias 0. On grids the network runs once on the offsets that occur, elsewhere on all pairs.

    Args:
        dim: Unused, part of the common signature.
        num_heads: Heads H.
        head_dim: Unused.
        coord_dim: Coordinate axes p.
        extent: Offset e, in units, that the logarithm takes to about 1; for all axes or one for each. A training
            window of w patches has w - 1; the default is that of 14 patches.
        hidden: Width between the layers.
    """

    extension_methods = ("pi",)

    def __init__(
        self, *, dim: int, num_heads: int, head_dim: int, coord_dim: int, extent: Any = 13.0, hidden: int = 512
    ) -> None:
        super().__init__()
        self.extents = axis_option("extent", extent, coord_dim, low=1e-6, high=1e9)
        width = int(number_option("hidden", hidden, low=1, high=65536, integer=True))
        self.fc1 = nn.Linear(coord_dim, width)
        self.fc2 = nn.Linear(width, num_heads, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the weights of SwinV2, normal of 0.02, so that the bias starts within a few hundredths of 0."""
        for weight in (self.fc1.weight, self.fc2.weight):
            nn.init.trunc_normal_(weight, std=0.02)
        nn.init.zeros_(self.fc1.bias)

    def frame(self, coords: Coordinates, dtype: torch.dtype) -> _CPBFrame:
        """Centred coordinates, and for whole differences the size of the table of offsets."""
        pairs = pair_frame(coords, dtype)
        steps = None
        if coords.integral:
            spans = tuple(math.floor(2 * extent + 0.5) for extent in coords.extents())
            if math.prod([2 * span + 1 for span in spans]) <= pairs.values.shape[1] ** 2:
                steps = spans
        return _CPBFrame("score", pairs.values, pairs.positioned, steps)

    def score(self, x: Tensor, frame: Frame, scale: float) -> _TabulatedScore | _PairwiseScore:
        """See `AttentionEncoding.score`."""
        assert isinstance(frame, _CPBFrame)
        dtype, device = frame.values.dtype, frame.values.device
        weights = (weight.to(dtype) for weight in (self.fc1.weight, self.fc1.bias, self.fc2.weight))
        extents = self.extents
        if self.extension is not None:  # D / f through the extent, since whole differences make a table of offsets.
            factors = self.extension.factors(len(extents))
            extents = tuple(extent * factor for extent, factor in zip(extents, factors, strict=True))
        network = _Network(extents, *weights)
        if frame.steps is None:
            return _PairwiseScore(frame, network)
        ticks = [torch.arange(-step, step + 1, device=device, dtype=dtype) for step in frame.steps]
        offsets = torch.stack(torch.meshgrid(*ticks, indexing="ij"), dim=-1).flatten(0, -2)
        return _TabulatedScore(frame, network.bias_of(offsets).T, frame.steps)

    def no_weight_decay(self) -> set[str]:
        """The whole network, as for SwinV2: decay would flatten the bias."""
        return {"fc1.weight", "fc1.bias", "fc2.weight"}
