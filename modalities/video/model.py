"""Video classifiers in the structure of the released PaPE network, and variants of the field.

Legend: B batch, T' frames, T tubelets in time, N tubelets, C width of the features, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from modalities.video.axes import AXES
from modalities.video.data_config import VideoDataConfig
from modalities.video.embed import TubeletEmbed, clip_coordinates, tubelet_mask
from modalities.video.encoder import build_video_encoder, masked_mean
from zoo.errors import ConfigError, DataError
from zoo.network import ClassifierNetwork, ClassTokenNetwork, Sequences, set_config
from zoo.network_config import NetworkConfig, parse_config

__all__ = ["MeanPoolVideoClassifier", "VideoClassifier", "VideoConfig", "VideoNetwork", "build", "trained_extent"]

ATTENTIONS = ("joint", "divided", "factorised")
POOLS = ("token", "mean")


@dataclass(frozen=True, kw_only=True)
class VideoConfig(NetworkConfig):
    """Everything but the sampling of frames that builds a video classifier; the `"model"` part of config.json.

    Attributes:
        tubelet: Frames of a tubelet.
        coordinate_origin: Coordinate of the first tubelet along every axis (1 in the released network).
        time_unit_s: Seconds per unit of the time coordinate, counted from the first tubelet of the clip, so that clips
            at another frame rate lie right. `None`: the time coordinate is the number of the tubelet, whatever the
            frame rate, as in the released network.
        pool: `"token"`: the head is on a class token; `"mean"`: on the mean of the real tokens, without class token.
        attention: `"joint"`: every token attends to all; `"divided"`: over time, then over space, in each block
            (TimeSformer); `"factorised"`: `depth` blocks within each tubelet's time, then `temporal_depth` blocks over
            time (ViViT, model 2).
        temporal_depth: See `attention`; of no effect on others.
    """

    LIMITS: ClassVar[dict[str, int]] = {**NetworkConfig.LIMITS, "tubelet": 64, "temporal_depth": 256}

    tubelet: int
    coordinate_origin: int = 0
    time_unit_s: float | None = None
    pool: str = "token"
    attention: str = "joint"
    temporal_depth: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.coordinate_origin, bool) or self.coordinate_origin not in (0, 1):
            raise ConfigError(f"model config: coordinate_origin must be 0 or 1, got {self.coordinate_origin!r:.80}")
        unit = self.time_unit_s
        if unit is not None and (
            isinstance(unit, bool) or not isinstance(unit, (int, float)) or not 1e-6 <= unit <= 1e6
        ):
            raise ConfigError(
                f"model config: time_unit_s must be null or a number of seconds from 1e-6 to 1e6, got {unit!r:.80}"
            )
        for name, choices in (("pool", POOLS), ("attention", ATTENTIONS)):
            if getattr(self, name) not in choices:
                raise ConfigError(
                    f"model config: {name} must be one of {', '.join(choices)}, got {getattr(self, name)!r:.80}"
                )
        if self.pool == "mean" and self.class_token_position is not None:
            raise ConfigError(
                "model config: with pool 'mean' there is no class token: class_token_position must be null"
            )


class _Clips(NamedTuple):
    """What `forward` takes, as one."""

    clips: Tensor
    lengths: Tensor | None
    times_s: Tensor | None


class _Layout(NamedTuple):
    """Tubelets in time, rows and columns, and which times are real (B, T); `None` where all are."""

    grid: tuple[int, int, int]
    real: Tensor | None


class VideoNetwork(ClassifierNetwork):
    """Base of networks on clips.

    They take clips (B, in_chans, T', H, W), floating point, prepared as `data_config` says: T' a multiple of the
    tubelet, H and W multiples of the patch, otherwise of any length and size. Of clip i the first `lengths[i]` tubelets
    are real; the rest may hold anything and is seen by nothing. A clip may have none.

    With `time_unit_s` the time coordinate of a tubelet is the mean of its frames' times since the first tubelet. Times
    are those of `times_s` (B, T') in seconds, from any origin, or without them frames are `data_config.frame_rate` a
    second.

    Args:
        config: Sizes, encoding and conventions.
        data_config: Frames of a clip and how they are prepared.
    """

    embed: TubeletEmbed
    data_config: VideoDataConfig

    def __init__(self, config: VideoConfig, data_config: VideoDataConfig) -> None:
        super().__init__()
        self.data_config = data_config
        self.coordinate_origin, self.time_unit_s = float(config.coordinate_origin), config.time_unit_s
        self.embed = TubeletEmbed(config.tubelet, config.patch_size, config.in_chans, config.dim)
        self._set_tokens(config)
        token = config.pool == "token"
        self.encoder = build_video_encoder(config, config.attention, config.temporal_depth, token)
        self.reset_classifier(config.num_classes)

    def _set_tokens(self, config: VideoConfig) -> None:
        self._set_sizes(config)

    @property
    def in_chans(self) -> int:
        """Channels of the frames."""
        return self.embed.in_chans

    def forward(self, clips: Tensor, lengths: Tensor | None = None, times_s: Tensor | None = None) -> Tensor:
        """Classifies.

        Args:
            clips: (B, in_chans, T', H, W) floating point.
            lengths: (B,) int64, tubelets of each clip that are real; `None` means all.
            times_s: (B, T') seconds (float64 where the origin is far), only for models with `time_unit_s`.

        Returns:
            Logits (B, K); features (B, C) when there is no head.

        Raises:
            DataError: If the inputs cannot be used.
        """
        return self.forward_head(self.forward_features(clips, lengths, times_s))

    def forward_features(self, inputs: Tensor, lengths: Tensor | None = None, times_s: Tensor | None = None) -> Tensor:
        """Features after the last LayerNorm; arguments as for `forward`.

        Returns:
            (B, P + N, C) with P = 1 for a class token in front, tubelets t slowest, then row by row; (B, P + T, C) of
            a factorised encoder. What stands at padding means nothing, but with `pool="mean"` it is the mean of the
            real tokens, so that the mean over all of them is theirs.
        """
        return super().forward_features(_Clips(inputs, lengths, times_s))

    def forward_intermediates(
        self,
        inputs: Tensor,
        indices: int | Sequence[int] | None = None,
        output: str = "tokens",
        norm: bool = False,
        stop_early: bool = False,
        lengths: Tensor | None = None,
        times_s: Tensor | None = None,
    ) -> tuple[Tensor | None, list[Tensor]]:
        """Features after chosen blocks, as `EncoderNetwork.forward_intermediates`.

        Grids are (B, C, T, rows, columns), zero at padding; after blocks over time alone (B, C, T, 1, 1).
        """
        packed = _Clips(inputs, lengths, times_s)
        return super().forward_intermediates(packed, indices, output, norm, stop_early)

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Parameter groups for layer-wise learning-rate decay, in timm's form; what follows the encoder is the last."""
        groups = super().group_matcher(coarse)
        return groups | {"stem": rf"{groups['stem']}|^encoder\.space_token"}

    def _embedded(self, inputs: _Clips) -> Sequences:
        clips, lengths, times_s = inputs
        grid = self.embed.check(clips)
        real = tubelet_mask(lengths, clips.shape[0], grid[0], clips.device)
        mask = None
        if real is not None:  # Hidden before anything is computed, so that not even NaN gets into gradients.
            frames = real.repeat_interleave(self.embed.tubelet, dim=1)
            clips = clips.masked_fill(~frames[:, None, :, None, None], 0.0)
            mask = real.repeat_interleave(grid[1] * grid[2], dim=1)
        features = self.embed(clips)
        coords = clip_coordinates(
            grid,
            origin=self.coordinate_origin,
            times=self._times(times_s, clips, real),
            device=clips.device,
            dtype=self.embed.proj.weight.dtype,
        )
        return Sequences(features, coords, mask, _Layout(grid, real))

    def _times(self, times_s: Tensor | None, clips: Tensor, real: Tensor | None) -> Tensor | float:
        """Units of time from tubelet to tubelet, or from the first one to each (B, T)."""
        unit, tubelet = self.time_unit_s, self.embed.tubelet
        if unit is None:
            if times_s is not None:
                raise DataError(
                    "times_s is for models with time_unit_s; the time coordinate of this one is the number of the "
                    "tubelet: leave times_s out, or load the model with time_unit_s=SECONDS"
                )
            return 1.0
        if times_s is None:
            rate = self.data_config.frame_rate
            if rate is None:
                raise DataError(
                    "the time coordinate of this model is in seconds, and data_config.frame_rate is not set: give "
                    "times_s (B, frames), the times of the frames in seconds"
                )
            return tubelet / rate / unit
        shape = (clips.shape[0], clips.shape[2])
        if not isinstance(times_s, Tensor) or not times_s.is_floating_point() or tuple(times_s.shape) != shape:
            given = f"{times_s.dtype} {tuple(times_s.shape)}" if isinstance(times_s, Tensor) else type(times_s).__name__
            raise DataError(f"times_s must be a floating-point tensor {shape}, seconds of each frame; got {given}")
        times = times_s.to(clips.device).double().unflatten(1, (-1, tubelet)).mean(dim=2)
        times = (times - times[:, :1]) / unit
        if real is not None:
            times = times.masked_fill(~real, 0.0)
        if times.device.type == "cpu" and not torch.compiler.is_compiling() and not torch.isfinite(times).all():
            raise DataError("times_s of real frames must be finite")
        return times

    def _grid(self, tokens: Tensor, layout: _Layout) -> Tensor:
        times, rows, columns = layout.grid
        if tokens.shape[1] == times:  # One token of each time.
            rows = columns = 1
        grid = tokens.transpose(1, 2).unflatten(2, (times, rows, columns))
        return grid if layout.real is None else grid.masked_fill(~layout.real[:, None, :, None, None], 0.0)


class VideoClassifier(VideoNetwork, ClassTokenNetwork):
    """Tubelets and a class token -> LayerNorm -> blocks -> LayerNorm -> linear head on the class token.

    See `VideoNetwork` for what it takes. Of a clip without tubelets the class token alone remains.
    """

    def _set_tokens(self, config: VideoConfig) -> None:
        self._add_class_token(config, axes=AXES)


class MeanPoolVideoClassifier(VideoNetwork):
    """Tubelets -> LayerNorm -> blocks -> LayerNorm -> linear head on the mean of the real tokens.

    See `VideoNetwork` for what it takes. The mean over no token is zero: of a clip without tubelets the head gives its
    bias.
    """

    def _features(self, tokens: Tensor, layout: _Layout) -> Tensor:
        if layout.real is None:
            return tokens
        real = layout.real.repeat_interleave(tokens.shape[1] // layout.real.shape[1], dim=1)
        return torch.where(real.unsqueeze(2), tokens, masked_mean(tokens, real).unsqueeze(1))

    def _pooled(self, features: Tensor) -> Tensor:
        return features.mean(dim=1)


def trained_extent(config: Mapping[str, Any]) -> tuple[float, float, float]:
    """Units of time, rows and columns that the coordinates of a clip of the configured size span.

    A class token at the origin in front of tubelets that start at 1 is one more of each. For context extension.

    Raises:
        ConfigError: If the time of a clip depends on the file.
    """
    parsed, data = VideoConfig.from_dict(config["model"]), VideoDataConfig.from_dict(config["data"])
    more = parsed.coordinate_origin if parsed.class_token_position == "origin" else 0
    time = float(data.frames // parsed.tubelet)
    if parsed.time_unit_s is not None:
        if data.duration_s is None:
            raise ConfigError(
                "clips of this model have no fixed duration (frame_rate): state the extent of time, rows and columns, "
                "as encoding_options={..., 'extent': [time, rows, columns]}"
            )
        time = data.duration_s / parsed.time_unit_s
    _, height, width = data.input_size
    rows, columns = (-(-side // parsed.patch_size) for side in (height, width))
    return time + more, float(rows + more), float(columns + more)


def build(config: Mapping[str, Any]) -> VideoClassifier | MeanPoolVideoClassifier:
    """Builds a video classifier from a configuration (schema of config.json) with freshly drawn weights.

    The tubelet of the model goes into its `data_config`.

    Raises:
        ConfigError: If the configuration cannot be used.
    """
    parsed, labels = parse_config(config, VideoConfig)
    data = config.get("data", {})
    data_config = VideoDataConfig.from_dict({**data, "tubelet": parsed.tubelet} if isinstance(data, Mapping) else data)
    kind = VideoClassifier if parsed.pool == "token" else MeanPoolVideoClassifier
    model = kind(parsed, data_config)
    set_config(model, config, parsed, data_config, labels)
    return model
