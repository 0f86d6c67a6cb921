"""Encoders that attend over space and time apart: divided attention, and space first, then time.

Legend: B batch, T tubelets in time, S tubelets of one time, P prefix tokens (0 or 1), C width of the features.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from modalities.video.axes import AXES, SPACE, TIME, for_axes
from modalities.video.embed import ClipCoordinates
from zoo.attention import CoordinateAttention
from zoo.coordinates import Coordinates
from zoo.encodings.base import Frame
from zoo.errors import DataError
from zoo.network import build_encoder
from zoo.network_config import NetworkConfig
from zoo.transformer import NORM_EPS, Block, Encoder

__all__ = ["DividedBlock", "DividedEncoder", "FactorisedEncoder", "build_video_encoder", "masked_mean"]


def masked_mean(x: Tensor, mask: Tensor | None) -> Tensor:
    """Mean of (B, N, C) over the tokens with a True in `mask` (B, N), zeros where there are none.

    Args:
        x: Features; those without a True must be finite.
        mask: `None` means all tokens.
    """
    if mask is None:
        return x.mean(dim=1)
    weights = mask.float()
    weights = weights / weights.sum(dim=1, keepdim=True).clamp_min(1)
    return torch.einsum("bnc,bn->bc", x, weights.to(x.dtype))


@dataclass(frozen=True)
class _Apart:
    """What blocks on space and time apart share in a forward.

    Attributes:
        first: (B, P, C) tokens in front, as they came in.
        grid: T, rows, columns.
        space: Coordinates (1, P + S, 2).
        time: Coordinates (1 or batch, tokens, 1) as attention over time takes them.
        times: (B, T) bool, True for real times; `None` where all are.
        time_mask: `times` as attention over time takes it.
    """

    first: Tensor
    grid: tuple[int, int, int]
    space: Coordinates
    time: Coordinates
    times: Tensor | None
    time_mask: Tensor | None


@dataclass(frozen=True)
class _Frames:
    """Frames of the encodings over space and over time."""

    space: Frame
    time: Frame


class DividedBlock(nn.Module):
    """Attention over time at each place, then over space at each time, then an MLP.

    Divided space-time attention of TimeSformer (arXiv 2102.05095, section 3). A class token takes no part in attention
    over time; over space it is in every frame, and what it gets is averaged over the real ones. The projection after
    attention over time is that of the attention layer itself.

    Args:
        config: Sizes and encoding, whose coordinates are (t,) over time and (row, column) over space.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        name, options = for_axes(config.encoding, config.encoding_options, TIME)
        self.norm_time = nn.LayerNorm(config.dim, eps=NORM_EPS)
        self.attn_time = CoordinateAttention(
            config.dim, config.num_heads, len(TIME), name, head_dim=config.head_dim, **options
        )
        self.space = _block(config, SPACE)

    def frames(self, x: Tensor, apart: _Apart) -> _Frames:
        """What the encodings derive from coordinates alone."""
        return _Frames(self.space.attn.frame(x, apart.space), self.attn_time.frame(x, apart.time))

    def forward(self, x: Tensor, coords: _Apart, mask: Tensor | None = None, *, frame: _Frames) -> Tensor:
        """(B, P + T * S, C) -> the same; `mask` is that of `coords`."""
        (times, rows, columns), prefix, space = coords.grid, coords.first.shape[1], self.space
        batch, places = x.shape[0], rows * columns
        first, patches = x[:, :prefix], x[:, prefix:].unflatten(1, (times, places))

        series = self.norm_time(patches).transpose(1, 2).flatten(0, 1)
        series = self.attn_time(series, coords.time, coords.time_mask, frame=frame.time)
        patches = patches + space.drop_path1(series.unflatten(0, (batch, places)).transpose(1, 2))

        every = first.unsqueeze(1).expand(-1, times, -1, -1)
        pictures = space.norm1(torch.cat([every, patches], dim=2)).flatten(0, 1)
        update = space.attn(pictures, coords.space, frame=frame.space).unflatten(0, (batch, times))
        own = (
            masked_mean(update[:, :, :prefix].flatten(2), coords.times).unflatten(1, (prefix, -1)) if prefix else first
        )
        update = torch.cat([own, update[:, :, prefix:].flatten(1, 2)], dim=1)
        x = torch.cat([first, patches.flatten(1, 2)], dim=1) + space.drop_path1(update)
        return x + space.drop_path2(space.mlp(space.norm2(x)))


class DividedEncoder(Encoder):
    """A stack of `DividedBlock`s between two LayerNorms.

    Args:
        config: Sizes and encoding.
    """

    def __init__(self, config: NetworkConfig) -> None:
        _without_blocks(self, config)
        self.blocks = nn.ModuleList(DividedBlock(config) for _ in range(config.depth))
        self._initialise()

    def _start(self, x: Tensor, coords: Coordinates, mask: Tensor | None) -> tuple[Tensor, Any, Any]:
        clip = _clip(coords, x)
        x, _ = self._prepare(x, coords, mask)
        places = clip.grid[1] * clip.grid[2]
        time, real = clip.time(prefix=False), None
        if mask is not None:
            real = mask[:, clip.prefix :: places]
            time = time.hide(~real)
        if time.values.shape[0] > 1:  # One series for each place of a sample.
            known = (
                None if time.positioned is None else time.positioned.unsqueeze(1).expand(-1, places, -1).flatten(0, 1)
            )
            values = time.values.unsqueeze(1).expand(-1, places, -1, -1).flatten(0, 1)
            time = Coordinates(values, positioned=known, integral=time.integral, bounds=time.bounds, unit=time.unit)
        time_mask = None if real is None else real.repeat_interleave(places, dim=0)
        apart = _Apart(x[:, : clip.prefix], clip.grid, clip.space(), time, real, time_mask)
        block = self.blocks[0]
        assert isinstance(block, DividedBlock)
        return x, apart, block.frames(x, apart)


class FactorisedEncoder(Encoder):
    """Blocks within each time, their features pooled, then blocks over time (ViViT, arXiv 2103.15691, model 2).

    With a class token, another one stands in each picture and stands for it over time; without one, the mean does.

    Args:
        config: Sizes and encoding; `config.depth` blocks are over space.
        temporal_depth: Blocks over time.
        class_token: Whether a class token comes in front of the tokens.
    """

    def __init__(self, config: NetworkConfig, temporal_depth: int, class_token: bool) -> None:
        _without_blocks(self, config)
        self.depth = config.depth
        self.space_token = None
        if class_token:
            self.space_token = nn.Parameter(torch.empty(1, 1, config.dim))
            nn.init.trunc_normal_(self.space_token, std=0.02)
        space = [_block(config, SPACE) for _ in range(config.depth)]
        time = [_block(config, TIME) for _ in range(temporal_depth)]
        self.norm_space = nn.LayerNorm(config.dim, eps=NORM_EPS)
        self.norm_time = nn.LayerNorm(config.dim, eps=NORM_EPS)
        self.blocks = nn.ModuleList([*space, *time])
        self._initialise()

    def forward(self, x: Tensor, coords: Coordinates, mask: Tensor | None = None) -> Tensor:
        """Encodes tokens; arguments as in `Encoder.forward`.

        Returns:
            (B, P + T, C), after the last LayerNorm.
        """
        pictures, apart, frames = self._start(x, coords, mask)
        for block in self.blocks[: self.depth]:
            pictures = self._run(block, pictures, apart.space, None, frames.space)
        series = self._pool(pictures, apart)
        for block in self.blocks[self.depth :]:
            series = self._run(block, series, apart.time, apart.time_mask, frames.time)
        return self.norm(series)

    def layers(self, x: Tensor, coords: Coordinates, mask: Tensor | None = None) -> Iterator[Tensor]:
        """Yields the features after every block; arguments as in `forward`.

        Those of blocks over space are (B, P + T * S, C), the prefix as it came in; those over time (B, P + T, C).
        """
        pictures, apart, frames = self._start(x, coords, mask)
        for block in self.blocks[: self.depth]:
            pictures = self._run(block, pictures, apart.space, None, frames.space)
            patches = pictures[:, apart.first.shape[1] :].unflatten(0, (x.shape[0], -1)).flatten(1, 2)
            yield torch.cat([apart.first, patches], dim=1)
        series = self._pool(pictures, apart)
        for block in self.blocks[self.depth :]:
            series = self._run(block, series, apart.time, apart.time_mask, frames.time)
            yield series

    def norm_after(self, index: int) -> nn.Module:
        """The LayerNorm of features over space, or the last one."""
        return self.norm_space if index < self.depth else self.norm

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that weight decay would harm (those of encodings, and the class token of pictures)."""
        return super().no_weight_decay() | ({"space_token"} if self.space_token is not None else set())

    def _start(self, x: Tensor, coords: Coordinates, mask: Tensor | None) -> tuple[Tensor, Any, Any]:
        """Pictures (B * T, P + S, C), what blocks share, and frames of the encodings."""
        clip = _clip(coords, x)
        times, places = clip.grid[0], clip.grid[1] * clip.grid[2]
        if mask is not None:
            x = x.masked_fill(~mask.unsqueeze(-1), 0.0)
        if self.token_encoding is not None:
            x = x + self.token_encoding.encode(coords if mask is None else coords.hide(~mask)).to(x.dtype)
        pictures = x[:, clip.prefix :].unflatten(1, (times, places)).flatten(0, 1)
        time, real, time_mask = clip.time(prefix=True), None, None
        if mask is not None:
            real = mask[:, clip.prefix :: places]
            time_mask = torch.cat([mask[:, : clip.prefix], real], dim=1)
            time = time.hide(~time_mask)
        apart = _Apart(x[:, : clip.prefix], clip.grid, clip.space(), time, real, time_mask)
        if self.space_token is not None:
            pictures = torch.cat([self.space_token.to(x.dtype).expand(pictures.shape[0], -1, -1), pictures], dim=1)
        first, last = self.blocks[0], self.blocks[-1]
        assert isinstance(first, Block) and isinstance(last, Block)
        frames = _Frames(first.attn.frame(pictures, apart.space), last.attn.frame(pictures, time))
        return self.norm_pre(pictures), apart, frames

    def _pool(self, pictures: Tensor, apart: _Apart) -> Tensor:
        """What goes over time: the prefix as it came in, and a feature of each picture."""
        pictures = self.norm_space(pictures)
        pooled = pictures[:, 0] if self.space_token is not None else pictures.mean(dim=1)
        series = torch.cat([apart.first, pooled.unflatten(0, (apart.first.shape[0], -1))], dim=1)
        return self.norm_time(series)


def build_video_encoder(config: NetworkConfig, attention: str, temporal_depth: int, class_token: bool) -> Encoder:
    """The encoder that a configuration describes.

    Args:
        config: Sizes and encoding.
        attention: `"joint"`, `"divided"` or `"factorised"`.
        temporal_depth: Blocks over time of the factorised encoder.
        class_token: Whether a class token comes in front of the tokens.
    """
    if attention == "divided":
        return DividedEncoder(config)
    if attention == "factorised":
        return FactorisedEncoder(config, temporal_depth, class_token)
    return build_encoder(config, axes=AXES)


def _without_blocks(encoder: Encoder, config: NetworkConfig) -> None:
    """The constructor of `Encoder`, for token encoding and LayerNorms alone."""
    Encoder.__init__(
        encoder,
        config.dim,
        0,
        config.num_heads,
        AXES,
        encoding=config.encoding,
        head_dim=config.head_dim,
        encoding_options=dict(config.encoding_options),
    )


def _block(config: NetworkConfig, axes: tuple[int, ...]) -> Block:
    """A block with coordinates along some of the axes."""
    name, options = for_axes(config.encoding, config.encoding_options, axes)
    return Block(
        config.dim,
        config.num_heads,
        len(axes),
        mlp_dim=config.mlp_dim,
        encoding=name,
        head_dim=config.head_dim,
        drop_path=config.drop_path,
        encoding_options=options,
    )


def _clip(coords: Coordinates, x: Tensor) -> ClipCoordinates:
    if not isinstance(coords, ClipCoordinates) or coords.values.shape[1] != x.shape[1]:
        raise DataError("attention over space and time apart needs coordinates of a clip (clip_coordinates)")
    return coords
