"""What the networks on images share: patches of pictures as tokens, and tokens as a grid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from modalities.image.embed import PatchEmbed
from zoo.data_config import DataConfig
from zoo.errors import ConfigError, DataError
from zoo.network import EncoderNetwork, Sequences
from zoo.network_config import NetworkConfig

__all__ = ["ImageConfig", "ImageEncoder"]


@dataclass(frozen=True, kw_only=True)
class ImageConfig(NetworkConfig):
    """What configurations of networks on images add to `NetworkConfig`.

    Attributes:
        coordinate_origin: Coordinate of the first patch along both axes (1 in the released networks).
        size_policy: `"refuse"` or `"pad"`, see `PatchEmbed`.
    """

    coordinate_origin: int = 0
    size_policy: str = "refuse"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.coordinate_origin, bool) or self.coordinate_origin not in (0, 1):
            raise ConfigError(f"model config: coordinate_origin must be 0 or 1, got {self.coordinate_origin!r:.80}")
        if self.size_policy not in ("refuse", "pad"):
            raise ConfigError(f"model config: size_policy must be 'refuse' or 'pad', got {self.size_policy!r:.80}")


class ImageEncoder(EncoderNetwork):
    """Base of networks on pictures, with a `PatchEmbed` as `embed`."""

    embed: PatchEmbed
    data_config: DataConfig

    @property
    def in_chans(self) -> int:
        """Channels of the input pictures."""
        return self.embed.in_chans

    def _embedded(self, inputs: Tensor) -> Sequences:
        features, coords = self.embed(inputs)
        if features.shape[0] == 0:
            raise DataError("a batch needs at least one picture")
        return Sequences(features, coords, None, self.embed.grid_size(*inputs.shape[-2:]))

    def _grid(self, tokens: Tensor, layout: Any) -> Tensor:
        return tokens.transpose(1, 2).unflatten(2, layout)


def build_embed(config: ImageConfig) -> PatchEmbed:
    """The patch embedding that a configuration describes."""
    return PatchEmbed(
        config.patch_size,
        config.in_chans,
        config.dim,
        origin=config.coordinate_origin,
        size_policy=config.size_policy,
    )
