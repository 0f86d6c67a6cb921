"""Event classifier in the structure of the released PaPE network: a class token over the tokens of a recording."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from modalities.events.data_config import EventDataConfig
from modalities.events.encoder import EventConfig, EventEmbed, EventEncoder
from zoo.errors import ConfigError
from zoo.network import ClassTokenNetwork, build_encoder, set_config
from zoo.network_config import parse_config

__all__ = ["EventClassifier", "EventClassifierConfig", "build", "trained_extent"]

AXES = 3  # column, row, time


@dataclass(frozen=True, kw_only=True)
class EventClassifierConfig(EventConfig):
    """Everything but the tokenizer that builds an `EventClassifier`; the `"model"` part of config.json."""


class EventClassifier(ClassTokenNetwork, EventEncoder):
    """Event tokens and a class token -> LayerNorm -> blocks -> LayerNorm -> linear head on the class token.

    It takes `EventTokens` made as `data_config` says (`modalities.events.prepare`). Padding is hidden from attention;
    of a sample without tokens the class token alone remains. `forward_features` gives (B, 1 + S, C), the class token
    first; what stands at padding means nothing.

    Args:
        config: Sizes, encoding and conventions.
        data_config: Tokenizer and clock.
    """

    def __init__(self, config: EventClassifierConfig, data_config: EventDataConfig) -> None:
        super().__init__()
        config.check_data(data_config)
        self.data_config = data_config
        self.embed = EventEmbed(config.patch_size, config.in_chans, config.dim)
        self._add_class_token(config, axes=AXES)
        self.encoder = build_encoder(config, axes=AXES)
        self.reset_classifier(config.num_classes)


def trained_extent(config: Mapping[str, Any]) -> tuple[float, float, float]:
    """Columns, rows and units of time that the coordinates of a sample span, for context extension.

    Raises:
        ConfigError: If samples have no fixed length in time.
    """
    data = EventDataConfig.from_dict(config["data"])
    if data.window_us is None:
        raise ConfigError(
            "samples of this model have no fixed length in time (window_us): state the extent of columns, rows and "
            "time, as encoding_options={..., 'extent': [columns, rows, time]}"
        )
    rows, columns = data.grid
    return float(columns), float(rows), data.window_us / data.time_scale_us


def build(config: Mapping[str, Any]) -> EventClassifier:
    """Builds an event classifier from a configuration (schema of config.json) with freshly drawn weights.

    Raises:
        ConfigError: If the configuration cannot be used.
    """
    parsed, labels = parse_config(config, EventClassifierConfig)
    data_config = EventDataConfig.from_dict(config.get("data", {}))
    model = EventClassifier(parsed, data_config)
    set_config(model, config, parsed, data_config, labels)
    return model
