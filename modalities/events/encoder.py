"""What the networks on event tokens share: embedding of counts, coordinates in space and time, and the grid.

Legend: B batch, S tokens of the longest sample, C width of the features, P side of a patch.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modalities.events.data_config import EventDataConfig
from modalities.events.tokens import EventTokens
from zoo import coordinates
from zoo.errors import ConfigError, DataError
from zoo.network import EncoderNetwork, Sequences
from zoo.network_config import NetworkConfig

__all__ = ["EventConfig", "EventEmbed", "EventEncoder"]


@dataclass(frozen=True, kw_only=True)
class EventConfig(NetworkConfig):
    """What configurations of networks on events have: `in_chans` is 2 polarities x buckets of age."""

    in_chans: int = 20

    def check_data(self, data_config: EventDataConfig) -> None:
        """Raises `ConfigError` unless the tokenizer makes tokens of the shape the network takes."""
        wanted, made = (self.in_chans, self.patch_size), (2 * data_config.buckets, data_config.patch_size)
        if wanted != made:
            raise ConfigError(
                f"config: the model takes {wanted[0]} channels in patches of {wanted[1]} pixels, its tokenizer makes "
                f"{made[0]} (2 x buckets) in patches of {made[1]}: model and data must agree"
            )


class EventEmbed(nn.Module):
    """Projects the counts of each token: log(1 + count), then a P x P convolution.

    Args:
        patch_size: P in pixels.
        in_chans: 2 x buckets; channel = polarity x buckets + bucket.
        dim: Feature width C.
    """

    def __init__(self, patch_size: int, in_chans: int, dim: int) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.proj = nn.Conv2d(in_chans, dim, kernel_size=patch_size, stride=patch_size)

    @property
    def in_chans(self) -> int:
        """Channels of the tokens: 2 x buckets."""
        return self.proj.in_channels

    def forward(self, patches: Tensor) -> Tensor:
        """(B, S, 2, buckets, P, P) counts of any dtype -> (B, S, C)."""
        weight, bias = self.proj.weight, self.proj.bias
        wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
        values = patches.to(wide).log1p().to(weight.dtype)
        return F.linear(values.flatten(2), weight.flatten(1), bias)  # A convolution with one place is a product.


class Cells(NamedTuple):
    """Which token stands in each cell of the grid.

    Attributes:
        token: (B, rows * columns) int64 index of the latest token of each cell; 0 where there is none.
        filled: (B, rows * columns) bool.
        grid: (rows, columns).
    """

    token: Tensor
    filled: Tensor
    grid: tuple[int, int]


def latest_tokens(tokens: EventTokens, grid: tuple[int, int], *, ages: bool = False) -> Cells:
    """The latest token of every cell; of several with the same time, the last one of the sample.

    The result does not depend on the order in which threads run. Padding and tokens outside the grid fill no cell.

    Args:
        tokens: Tokens.
        grid: (rows, columns).
        ages: `t_us` counts back from the end, so that the latest token has the smallest.
    """
    rows, columns = grid
    inside = (tokens.x >= 0) & (tokens.x < columns) & (tokens.y >= 0) & (tokens.y < rows) & tokens.mask
    nowhere = rows * columns
    cell = torch.where(inside, tokens.y * columns + tokens.x, nowhere)
    time = -tokens.t_us if ages else tokens.t_us
    # Times and indices are whole numbers: the largest one of a cell is the same in any order of writing.
    latest = time.new_full((time.shape[0], nowhere + 1), torch.iinfo(torch.int64).min)
    latest = latest.scatter_reduce(1, cell, time, "amax")
    index = torch.arange(time.shape[1], device=time.device).expand_as(time)
    index = torch.where(time == latest.gather(1, cell), index, -1)
    best = index.new_full((time.shape[0], nowhere + 1), -1).scatter_reduce(1, cell, index, "amax")[:, :nowhere]
    return Cells(best.clamp_min(0), best >= 0, grid)


class EventEncoder(EncoderNetwork):
    """Base of networks on `EventTokens`, with an `EventEmbed` as `embed` and a time scale in `data_config`."""

    embed: EventEmbed
    data_config: EventDataConfig

    @property
    def in_chans(self) -> int:
        """Channels of the tokens: 2 x buckets."""
        return self.embed.in_chans

    def _embedded(self, inputs: EventTokens) -> Sequences:
        if not isinstance(inputs, EventTokens):
            raise DataError(f"event models take EventTokens (EventTokens.collate), got {type(inputs).__name__}")
        if len(inputs) == 0:
            raise DataError("a batch needs at least one sample; a sample without events is legal")
        self._check(inputs)
        tokens = inputs.pad_to(1)  # Nothing below can work on a batch without a column of tokens.
        features = self.embed(tokens.patches)
        coords = coordinates.events(
            tokens.x,
            tokens.y,
            tokens.t_us,
            time_scale=self.data_config.time_scale_us,
            origin_us=0,
            dtype=features.dtype,
        )
        return Sequences(features, dataclasses.replace(coords, bounds=self._bounds()), tokens.mask, tokens)

    def _bounds(self) -> tuple[tuple[float, float], ...] | None:
        """Between which coordinates lie, if that is known without looking at them."""
        window = self.data_config.window_us
        if window is None and not torch.compiler.is_compiling():
            return None
        rows, columns = self.data_config.grid
        latest = math.inf if window is None else window / self.data_config.time_scale_us
        return (0.0, columns - 1.0), (0.0, rows - 1.0), (0.0, latest)

    def _grid(self, tokens: Tensor, layout: Any) -> Tensor:
        cells = latest_tokens(layout, self.data_config.grid, ages=self.data_config.time_reference == "end")
        index = cells.token.unsqueeze(2).expand(-1, -1, tokens.shape[2])
        placed = tokens.gather(1, index).masked_fill(~cells.filled.unsqueeze(2), 0.0)
        return placed.transpose(1, 2).unflatten(2, cells.grid)

    def _check(self, inputs: EventTokens) -> None:
        """Shapes always, and on the CPU, where looking costs nothing, that all tokens are in the grid."""
        patch, buckets = self.embed.patch_size, self.embed.in_chans // 2
        if tuple(inputs.patches.shape[3:]) != (buckets, patch, patch):
            raise DataError(
                f"event tokens: patches must be (B, S, 2, {buckets}, {patch}, {patch}) as model.data_config says, got "
                f"{tuple(inputs.patches.shape)}"
            )
        if inputs.x.device != self.embed.proj.weight.device:
            raise DataError(
                f"event tokens are on {inputs.x.device}, the model on {self.embed.proj.weight.device}: bring them "
                "together with .to()"
            )
        if inputs.x.device.type == "cpu" and not torch.compiler.is_compiling():
            inputs.check_grid(self.data_config.grid)
