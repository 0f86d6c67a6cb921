"""Sizes of a Point Transformer V3, and its number of parameters by arithmetic. Imports no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from zoo.encodings.parameter_count import count_attention, count_token
from zoo.errors import ConfigError
from zoo.network_config import EncodedConfig

__all__ = ["POOLS", "PTv3Config", "count_ptv3"]

AXES = 3  # x, y, z
POOLS = ("mean", "mean+max")
_MOST_STAGES, _MOST_CHANNELS, _MOST_DEPTH = 8, 8192, 64


@dataclass(frozen=True, kw_only=True)
class PTv3Config(EncodedConfig):
    """Everything but the data that builds a Point Transformer V3; the `"model"` part of config.json.

    Attributes:
        channels: Feature width of every stage of the encoder, finest first; multiples of `head_dim`.
        depths: Blocks of every stage of the encoder.
        decoder_channels: The same for the decoder, finest first, one stage fewer; empty for classifiers.
        decoder_depths: Blocks of every stage of the decoder.
        head_dim: Width of an attention head; a stage has channels / head_dim heads.
        mlp_ratio: Hidden width of the MLPs over the width of the stage.
        patch_size: Most voxels of a patch of attention; a cloud of n is cut into ceil(n / patch_size) along the curve,
            as equal as can be.
        stem_kernel: Edge of the kernel of the first convolution.
        pool: What a classifier pools the last voxels with: `"mean"`, or `"mean+max"`, one after the other.
        head_dims: Hidden widths of a classifier's head.
        head_dropout: Dropout after each of them.
        drop_path: Stochastic depth of the last block; earlier ones have proportionally less.
    """

    LIMITS: ClassVar[dict[str, int]] = {
        "head_dim": 256,
        "mlp_ratio": 16,
        "patch_size": 1 << 16,
        "stem_kernel": 15,
        **EncodedConfig.LIMITS,
    }

    channels: list[int]
    depths: list[int]
    decoder_channels: list[int] = field(default_factory=list)
    decoder_depths: list[int] = field(default_factory=list)
    head_dim: int = 16
    mlp_ratio: int = 4
    patch_size: int = 1024
    stem_kernel: int = 5
    pool: str = "mean"
    head_dims: list[int] = field(default_factory=list)
    head_dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        limits = {
            "channels": _MOST_CHANNELS,
            "depths": _MOST_DEPTH,
            "decoder_channels": _MOST_CHANNELS,
            "decoder_depths": _MOST_DEPTH,
            "head_dims": _MOST_CHANNELS,
        }
        for name, most in limits.items():
            object.__setattr__(self, name, _sizes(name, getattr(self, name), most))
        stages, decoder = len(self.channels), len(self.decoder_channels)
        if not stages or len(self.depths) != stages:
            raise ConfigError(
                f"model config: channels and depths must say the same number of stages, got {stages} and "
                f"{len(self.depths)}"
            )
        if decoder not in (0, stages - 1) or len(self.decoder_depths) != decoder:
            raise ConfigError(
                f"model config: a decoder of an encoder with {stages} stages has {stages - 1} (or none), got channels "
                f"for {decoder} and depths for {len(self.decoder_depths)}"
            )
        if any(width % self.head_dim for width in [*self.channels, *self.decoder_channels]):
            raise ConfigError(
                f"model config: channels must be multiples of head_dim {self.head_dim}, got {self.channels} and "
                f"{self.decoder_channels}"
            )
        if self.stem_kernel % 2 == 0:
            raise ConfigError(f"model config: stem_kernel must be odd, got {self.stem_kernel}")
        if self.pool not in POOLS:
            raise ConfigError(f"model config: pool must be one of {', '.join(POOLS)}, got {self.pool!r:.80}")
        rate = self.head_dropout
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 <= rate < 1:
            raise ConfigError(f"model config: head_dropout must be in [0, 1), got {rate!r:.80}")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` restores an equal object."""
        return asdict(self)

    @property
    def pooled(self) -> int:
        """Width of the pooled features of a classifier."""
        return self.channels[-1] * len(self.pool.split("+"))


def _sizes(name: str, values: object, most: int) -> list[int]:
    usable = isinstance(values, (list, tuple)) and len(values) <= _MOST_STAGES
    if not usable or any(type(value) is not int or not 1 <= value <= most for value in values):  # type: ignore[attr-defined]
        raise ConfigError(
            f"model config: {name} must be a list of at most {_MOST_STAGES} whole numbers from 1 to {most}, got "
            f"{values!r:.80}"
        )
    return list(values)  # type: ignore[call-overload]


def count_ptv3(config: PTv3Config) -> int:
    """Number of parameters of the network that a configuration describes.

    Raises:
        ConfigError: If an option of the encoding that sets a size is unusable.
    """
    widths, decoder = config.channels, config.decoder_channels
    stem = config.stem_kernel**3 * config.in_chans * widths[0] + 2 * widths[0]
    total = stem + count_token(config.encoding, config.encoding_options, dim=widths[0], axes=AXES)
    for width, depth in zip([*widths, *decoder], [*config.depths, *config.decoder_depths], strict=True):
        total += depth * _count_block(config, width)
    for before, after in zip(widths, widths[1:], strict=False):
        total += after * (before + 1) + 2 * after
    coarser = [*decoder[1:], widths[-1]]
    for width, below, skip in zip(decoder, coarser, widths, strict=False):
        total += width * (below + 1) + width * (skip + 1) + 4 * width
    if decoder:
        return total + config.num_classes * (decoder[0] + 1)
    if config.num_classes:
        before = config.pooled
        for width in config.head_dims:
            total += width * (before + 1) + 2 * width
            before = width
        total += config.num_classes * (before + 1)
    return total


def _count_block(config: PTv3Config, width: int) -> int:
    hidden, heads = config.mlp_ratio * width, width // config.head_dim
    position = 27 * width * width + width + width * (width + 1) + 2 * width
    sizes = {"dim": width, "num_heads": heads, "head_dim": config.head_dim, "axes": AXES}
    encoding = count_attention(config.encoding, config.encoding_options, **sizes)
    attention = 3 * width * (width + 1) + width * (width + 1) + encoding
    return position + 4 * width + attention + hidden * (width + 1) + width * (hidden + 1)
