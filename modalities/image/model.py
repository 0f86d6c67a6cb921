"""Vision transformer for image classification, with the structure of the released PaPE networks (arXiv 2602.01418)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from modalities.image.encoder import ImageConfig, ImageEncoder, build_embed
from zoo.data_config import DataConfig
from zoo.network import ClassTokenNetwork, build_encoder, set_config
from zoo.network_config import parse_config

__all__ = ["ViTConfig", "VisionTransformer", "build", "trained_extent"]


@dataclass(frozen=True, kw_only=True)
class ViTConfig(ImageConfig):
    """Everything that builds a `VisionTransformer`; the `"model"` part of config.json."""


class VisionTransformer(ClassTokenNetwork, ImageEncoder):
    """ViT: patches and a class token -> LayerNorm -> blocks -> LayerNorm -> linear head on the class token.

    It takes pictures (B, in_chans, H, W), floating point, preprocessed as `data_config` says. Any height and width go
    in: coordinates follow the actual grid, and no tensor of the checkpoint depends on it. `forward_features` gives all
    tokens (B, 1 + rows * columns, C), the class token first.

    Args:
        config: Sizes, encoding and conventions.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.embed = build_embed(config)
        self._add_class_token(config, axes=2)
        self.encoder = build_encoder(config, axes=2)
        self.reset_classifier(config.num_classes)


def trained_extent(config: Mapping[str, Any]) -> tuple[float, float]:
    """Columns and rows that the coordinates of an input of the configured size span, for context extension.

    A class token at the origin in front of patches that start at 1 is one more of each.
    """
    parsed, (_, height, width) = ViTConfig.from_dict(config["model"]), DataConfig.from_dict(config["data"]).input_size
    more = parsed.coordinate_origin if parsed.class_token_position == "origin" else 0
    return float(-(-width // parsed.patch_size) + more), float(-(-height // parsed.patch_size) + more)


def build(config: Mapping[str, Any]) -> VisionTransformer:
    """Builds an image classifier from a configuration (schema of config.json) with freshly drawn weights.

    Raises:
        ConfigError: If the configuration cannot be used.
    """
    parsed, labels = parse_config(config, ViTConfig)
    model = VisionTransformer(parsed)
    set_config(model, config, parsed, DataConfig.from_dict(config.get("data", {})), labels)
    return model
