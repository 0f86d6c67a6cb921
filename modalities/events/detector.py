"""Event detector in the structure of the released PaPE network: tokens, a grid of the latest ones, pyramid and head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from modalities.events.data_config import EventDataConfig
from modalities.events.encoder import EventConfig, EventEmbed, EventEncoder
from modalities.events.model import AXES
from modalities.events.tokens import EventTokens
from zoo.detection.detections import Detections
from zoo.detection.network import DetectorNetwork, PyramidConfig
from zoo.network import build_encoder, set_config
from zoo.network_config import parse_config

__all__ = ["EventDetector", "EventDetectorConfig", "build"]


@dataclass(frozen=True, kw_only=True)
class EventDetectorConfig(PyramidConfig, EventConfig):
    """Everything but the tokenizer that builds an `EventDetector`; the `"model"` part of config.json."""


class EventDetector(DetectorNetwork, EventEncoder):
    """Event tokens -> encoder -> grid of the latest tokens -> feature pyramid -> YOLOv10 head, without class token.

    It takes `EventTokens` made as `data_config` says (`modalities.events.prepare`). The grid is that of the sensor: the
    latest token of each patch, zeros where none fell; a sample without tokens is an empty grid. Boxes are in pixels of
    the sensor.

    Args:
        config: Sizes, encoding and conventions.
        data_config: Tokenizer and clock.
    """

    def __init__(self, config: EventDetectorConfig, data_config: EventDataConfig) -> None:
        super().__init__()
        config.check_data(data_config)
        self.data_config = data_config
        self.embed = EventEmbed(config.patch_size, config.in_chans, config.dim)
        self.encoder = build_encoder(config, axes=AXES)
        self._add_head(config)

    def _detections(self, rows: Tensor, inputs: EventTokens) -> Detections:
        return Detections(rows, (self.data_config.height, self.data_config.width), None)


def build(config: Mapping[str, Any]) -> EventDetector:
    """Builds an event detector from a configuration (schema of config.json) with freshly drawn weights.

    Raises:
        ConfigError: If the configuration cannot be used.
    """
    parsed, labels = parse_config(config, EventDetectorConfig)
    data_config = EventDataConfig.from_dict(config.get("data", {}))
    model = EventDetector(parsed, data_config)
    set_config(model, config, parsed, data_config, labels)
    return model
