"""Object detector on images: vision transformer, feature pyramid and YOLOv10 head, as in the released PaPE networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from modalities.image.encoder import ImageConfig, ImageEncoder, build_embed
from zoo.data_config import DataConfig
from zoo.detection.detections import Detections
from zoo.detection.network import DetectorNetwork, PyramidConfig
from zoo.network import build_encoder, set_config
from zoo.network_config import parse_config

__all__ = ["DetectorConfig", "ImageDetector", "build"]


@dataclass(frozen=True, kw_only=True)
class DetectorConfig(PyramidConfig, ImageConfig):
    """Everything that builds an `ImageDetector`; the `"model"` part of config.json."""


class ImageDetector(DetectorNetwork, ImageEncoder):
    """Patches -> encoder -> feature pyramid -> YOLOv10 head, without class token and non-maximum suppression.

    It takes pictures (B, in_chans, H, W), floating point, preprocessed as `data_config` says; 2 patches a side or more.

    Args:
        config: Sizes, encoding and conventions.
        data_config: Preprocessing; what `Detections.for_image` undoes.
    """

    def __init__(self, config: DetectorConfig, data_config: DataConfig) -> None:
        super().__init__()
        self.data_config = data_config
        self.embed = build_embed(config)
        self.encoder = build_encoder(config, axes=2)
        self._add_head(config)

    def _detections(self, rows: Tensor, inputs: Tensor) -> Detections:
        return Detections(rows, (inputs.shape[-2], inputs.shape[-1]), self.data_config)


def trained_extent(config: Mapping[str, Any]) -> tuple[float, float]:
    """Columns and rows that the coordinates of an input of the configured size span, for context extension."""
    patch = DetectorConfig.from_dict(config["model"]).patch_size
    _, height, width = DataConfig.from_dict(config["data"]).input_size
    return float(-(-width // patch)), float(-(-height // patch))


def build(config: Mapping[str, Any]) -> ImageDetector:
    """Builds an image detector from a configuration (schema of config.json) with freshly drawn weights.

    Raises:
        ConfigError: If the configuration cannot be used.
    """
    parsed, labels = parse_config(config, DetectorConfig)
    data_config = DataConfig.from_dict(config.get("data", {}))
    model = ImageDetector(parsed, data_config)
    set_config(model, config, parsed, data_config, labels)
    return model
