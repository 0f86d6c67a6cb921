"""What a decoder expects of its sequences; it travels with the weights as the `"data"` part of `config.json`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zoo.errors import ConfigError

__all__ = ["SequenceDataConfig"]

_MOST_TOKENS = 1 << 24


@dataclass(frozen=True, kw_only=True)
class SequenceDataConfig:
    """Length of sequences and how they become tokens.

    Attributes:
        length: Tokens of a training sequence; any number may be asked for.
        tokenizer: `Tokenizer.to_dict` of the tokenizer, `None` where sequences are token ids already.
        dataset: What it was trained on: the `"name"` of a set of `modalities.sequence.datasets.DATASETS` and the
            settings of a made-up one, among them how tokens are numbered; `None` where that is not known.

    Raises:
        ConfigError: If a value cannot be used.
    """

    length: int = 1024
    tokenizer: dict[str, Any] | None = None
    dataset: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.length, bool) or not isinstance(self.length, int) or not 1 <= self.length <= _MOST_TOKENS:
            raise ConfigError(f"data: length must be a whole number from 1 to {_MOST_TOKENS}, not {self.length!r:.80}")
        stated = self.tokenizer
        if stated is not None and not (isinstance(stated, Mapping) and isinstance(stated.get("kind"), str)):
            raise ConfigError(f"data: tokenizer must be null or say its 'kind', not {stated!r:.80}")
        known = self.dataset
        if known is not None and not (isinstance(known, Mapping) and isinstance(known.get("name"), str)):
            raise ConfigError(f"data: dataset must be null or say its 'name', not {known!r:.80}")

    @property
    def input_size(self) -> tuple[int, int]:
        """(1, length)."""
        return (1, self.length)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SequenceDataConfig:
        """Builds it from the `data` section of a `config.json`; absent keys take the defaults.

        Raises:
            ConfigError: If a key is unknown or a value cannot be used.
        """
        if not isinstance(values, Mapping):
            raise ConfigError(f"data: expected a mapping of settings, not {type(values).__name__}")
        known = [field.name for field in dataclasses.fields(cls)]
        if unknown := sorted(str(key)[:40] for key in values if key not in known):
            raise ConfigError(
                f"data: unknown settings {', '.join(unknown[:10])}; those of decoders are {', '.join(known)}"
            )
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain JSON values; `from_dict` restores an equal object."""
        return dataclasses.asdict(self)

    def replace(self, **changes: Any) -> SequenceDataConfig:
        """Returns a copy with some fields changed, validated again."""
        return dataclasses.replace(self, **changes)

    def with_channels(self, channels: int) -> SequenceDataConfig:
        """Returns the same.

        Raises:
            ConfigError: For more than one channel.
        """
        if channels != 1:
            raise ConfigError(f"a token is one number, not {channels!r:.40}: in_chans of a decoder is 1")
        return self

    def with_size(self, size: int) -> SequenceDataConfig:
        """Returns a copy for sequences of so many tokens.

        Raises:
            ConfigError: If it is no number of tokens.
        """
        return self.replace(length=size)
