"""What configurations of networks share, checked field by field."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, TypeVar

from zoo.encodings import split_name
from zoo.errors import ConfigError

__all__ = ["EncodedConfig", "NetworkConfig", "check_class_count", "parse_config"]

C = TypeVar("C", bound="EncodedConfig")


@dataclass(frozen=True, kw_only=True)
class EncodedConfig:
    """What the `"model"` part of every config.json has.

    Attributes:
        num_classes: Number of classes; 0 leaves the head out, so that a classifier returns features.
        in_chans: Input channels.
        encoding: Position encoding, see `zoo.encodings()`.
        encoding_options: Its options.
        drop_path: Stochastic depth in training.
    """

    # Bounds of what a configuration from a stranger may ask for.
    LIMITS: ClassVar[dict[str, int]] = {"in_chans": 4096, "num_classes": 1_000_000}

    num_classes: int
    in_chans: int = 3
    encoding: str = "pape"
    encoding_options: dict[str, Any] = field(default_factory=dict)
    drop_path: float = 0.0

    def __post_init__(self) -> None:
        for name, limit in self.LIMITS.items():
            value = getattr(self, name)
            low = 0 if name == "num_classes" else 1
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= limit:
                raise ConfigError(
                    f"model config: {name} must be a whole number from {low} to {limit}, got {value!r:.80}"
                )
        if not isinstance(self.encoding, str):
            raise ConfigError(f"model config: encoding must be a name, got {self.encoding!r:.80}")
        split_name(self.encoding)
        if not isinstance(self.encoding_options, Mapping):
            raise ConfigError(f"model config: encoding_options must be a mapping, got {self.encoding_options!r:.80}")
        rate = self.drop_path
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 <= rate < 1:
            raise ConfigError(f"model config: drop_path must be in [0, 1), got {rate!r:.80}")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Reads the `"model"` part of a configuration; unknown keys are ignored with a warning that names them.

        Raises:
            ConfigError: If a key is missing or a value cannot be used.
        """
        if not isinstance(values, Mapping):
            raise ConfigError(f"model config must be a mapping, got {type(values).__name__}")
        fields = dataclasses.fields(cls)
        names = {f.name for f in fields}
        unknown = sorted(str(key)[:60] for key in values if key not in names)
        if unknown:
            warnings.warn(f"model config: unknown keys ignored: {', '.join(unknown[:10])}", stacklevel=2)
        required = {
            f.name for f in fields if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        }
        missing = sorted(required - set(values))
        if missing:
            raise ConfigError(f"model config: missing {', '.join(missing)}")
        return cls(**{key: value for key, value in values.items() if key in names})


@dataclass(frozen=True, kw_only=True)
class NetworkConfig(EncodedConfig):
    """Sizes and encoding of a network of patches around an `Encoder`.

    Attributes:
        dim: Feature width C.
        depth: Number of blocks.
        num_heads: Attention heads.
        head_dim: Width of a head.
        mlp_dim: Hidden width of the MLP.
        patch_size: Patch size in pixels.
        class_token_position: `None` (the class token has no position), or `"origin"` as in the released networks.
    """

    LIMITS: ClassVar[dict[str, int]] = {
        "dim": 16384,
        "depth": 256,
        "num_heads": 256,
        "head_dim": 1024,
        "mlp_dim": 65536,
        "patch_size": 256,
        **EncodedConfig.LIMITS,
    }

    dim: int
    depth: int
    num_heads: int
    head_dim: int
    mlp_dim: int
    patch_size: int
    class_token_position: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.class_token_position not in (None, "origin"):
            raise ConfigError(
                f"model config: class_token_position must be null or 'origin', got {self.class_token_position!r:.80}"
            )


def parse_config(config: Mapping[str, Any], kind: type[C]) -> tuple[C, list[str] | None]:
    """The checked model part and labels of a configuration (schema of config.json).

    Args:
        config: The configuration.
        kind: Class of the model part.

    Raises:
        ConfigError: If the configuration cannot be used.
    """
    if not isinstance(config, Mapping) or "model" not in config:
        raise ConfigError("config: the 'model' part is missing")
    parsed = kind.from_dict(config["model"])
    labels = config.get("labels")
    if labels is not None and (
        not isinstance(labels, Sequence) or isinstance(labels, str) or len(labels) != parsed.num_classes
    ):
        raise ConfigError(f"config: labels must be null or a list of {parsed.num_classes} names")
    return parsed, None if labels is None else list(labels)


def check_class_count(num_classes: object, what: str, least: int) -> None:
    """Raises `ConfigError` unless it is a number of classes that `what` can have.

    Args:
        num_classes: From `least` to 1,000,000.
        what: For the message, such as "a detector".
        least: 0 or 1.
    """
    if isinstance(num_classes, bool) or not isinstance(num_classes, int) or not least <= num_classes <= 1_000_000:
        raise ConfigError(f"{what} needs num_classes from {least} to 1,000,000, got {num_classes!r:.80}")
