"""Classifier and segmenter on Point Transformer V3.

Legend: B clouds, N points, V voxels, C features, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from modalities.points.data_config import PointDataConfig
from modalities.points.ptv3_blocks import PointBatchNorm, cloud_pool
from modalities.points.ptv3_config import PTv3Config
from modalities.points.ptv3_network import PointFeatures, PTv3
from zoo.errors import ConfigError
from zoo.network import set_config
from zoo.network_config import check_class_count, parse_config

__all__ = ["PointClassifier", "PointSegmenter", "build_classifier", "build_segmenter", "trained_extent"]


class PointClassifier(PTv3):
    """Encoder, pooling over the voxels of each cloud, and an MLP with BatchNorm.

    A cloud without points has pooled features of zero. Features are pooled in float32.
    """

    def __init__(self, config: PTv3Config, data_config: PointDataConfig) -> None:
        if config.decoder_channels:
            raise ConfigError("config: a point classifier has no decoder: leave decoder_channels and _depths empty")
        super().__init__(config, data_config)
        self.reset_classifier(config.num_classes)

    def forward_head(self, features: PointFeatures, pre_logits: bool = False) -> Tensor:
        """Logits (B, K), or the pooled features (B, C)."""
        kinds = self.sizes.pool.split("+")
        pooled = torch.cat([cloud_pool(features.features, features.level.offsets, kind) for kind in kinds], dim=1)
        return pooled if pre_logits else self.head(pooled)

    def reset_classifier(self, num_classes: int) -> None:
        """Gives the model a new head: hidden layers anew, zero weight and class-prior bias last; 0 removes the head.

        Raises:
            ConfigError: If the number cannot be used.
        """
        check_class_count(num_classes, "a classifier", 0)
        self._set_classes(num_classes)
        if not num_classes:
            self.head = nn.Identity()
            return
        like, width, layers = self.stem.norm.weight, self.sizes.pooled, []
        for hidden in self.sizes.head_dims:
            layers += [nn.Linear(width, hidden), PointBatchNorm(hidden, eps=1e-5, momentum=0.1), nn.ReLU()]
            layers += [nn.Dropout(self.sizes.head_dropout)]
            width = hidden
        head = nn.Sequential(*layers).to(device=like.device, dtype=like.dtype)
        self.head = head.append(self._last_layer(width)).train(self.training)


class PointSegmenter(PTv3):
    """Encoder, decoder, and a linear layer on every voxel, whose logits all its points get."""

    def __init__(self, config: PTv3Config, data_config: PointDataConfig) -> None:
        if len(config.channels) > 1 and not config.decoder_channels:
            raise ConfigError("config: a point segmenter needs a decoder: give decoder_channels and decoder_depths")
        super().__init__(config, data_config)
        self.reset_classifier(config.num_classes)

    def forward_head(self, features: PointFeatures, pre_logits: bool = False) -> Tensor:
        """Logits (N, K) of every point, or the features (N, C) of its voxel."""
        x = features.features
        return features.points.spread(x if pre_logits else self.head(x))

    def reset_classifier(self, num_classes: int) -> None:
        """Gives the model a new head with zero weight and class-prior bias.

        Raises:
            ConfigError: If the number cannot be used.
        """
        check_class_count(num_classes, "a segmenter", 1)
        self._set_classes(num_classes)
        self.head = self._last_layer((self.sizes.decoder_channels or self.sizes.channels)[0])


def trained_extent(config: Mapping[str, Any]) -> tuple[float, float, float]:
    """Voxels that a patch of attention spans at the most along any axis, for context extension.

    Raises:
        ConfigError: Always: the patches of a cloud have no extent that the configuration states.
    """
    raise ConfigError(
        "patches of a point cloud have no fixed extent: state it in voxels, as "
        "encoding_options={..., 'extent': [x, y, z]}"
    )


def build_classifier(config: Mapping[str, Any]) -> PointClassifier:
    """Builds a point classifier from a configuration (schema of config.json) with freshly drawn weights.

    Raises:
        ConfigError: If the configuration cannot be used.
    """
    return cast(PointClassifier, _build(PointClassifier, config))


def build_segmenter(config: Mapping[str, Any]) -> PointSegmenter:
    """The same for a point segmenter."""
    return cast(PointSegmenter, _build(PointSegmenter, config))


def _build(kind: type[PTv3], config: Mapping[str, Any]) -> PTv3:
    parsed, labels = parse_config(config, PTv3Config)
    data_config = PointDataConfig.from_dict(config.get("data", {}))
    model = kind(parsed, data_config)
    set_config(model, config, parsed, data_config, labels)
    return model
