"""Vision transformer for image classification, with the structure of the released PaPE networks (arXiv 2602.01418)."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeVar

import torch
from torch import Tensor, nn

from modalities.image.embed import PatchEmbed
from modalities.image.encoder import ImageEncoder
from zoo.coordinates import Coordinates
from zoo.data_config import DataConfig
from zoo.encodings import split_name
from zoo.errors import ConfigError, DataError
from zoo.transformer import Encoder

if TYPE_CHECKING:
    pass

__all__ = ["ViTConfig", "VisionTransformer", "build", "parse_config", "trained_extent"]

C = TypeVar("C", bound="ViTConfig")

# Bounds of what a configuration from a stranger may ask for.
_LIMITS = {
    "dim": 16384,
    "depth": 256,
    "num_heads": 256,
    "head_dim": 1024,
    "mlp_dim": 65536,
    "patch_size": 256,
    "in_chans": 4096,
    "num_classes": 1_000_000,
}


@dataclass(frozen=True)
class ViTConfig:
    """Everything that builds a `VisionTransformer`; the `"model"` part of config.json.

    Attributes:
        dim: Feature width C.
        depth: Number of blocks.
        num_heads: Attention heads.
        head_dim: Width of a head.
        mlp_dim: Hidden width of the MLP.
        patch_size: Patch size in pixels.
        num_classes: Number of classes; 0 leaves the head out, so that the model returns features.
        in_chans: Input channels.
        encoding: Position encoding, see `zoo.encodings()`.
        encoding_options: Its options.
        coordinate_origin: Coordinate of the first patch along both axes (1 in the released networks).
        class_token_position: `None` (the class token has no position), or `"origin"` as in the released networks.
        size_policy: `"refuse"` or `"pad"`, see `PatchEmbed`.
        drop_path: Stochastic depth in training.
    """

    dim: int
    depth: int
    num_heads: int
    head_dim: int
    mlp_dim: int
    patch_size: int
    num_classes: int
    in_chans: int = 3
    encoding: str = "pape"
    encoding_options: dict[str, Any] = field(default_factory=dict)
    coordinate_origin: int = 0
    class_token_position: str | None = None
    size_policy: str = "refuse"
    drop_path: float = 0.0

    def __post_init__(self) -> None:
        for name, limit in _LIMITS.items():
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
        if isinstance(self.coordinate_origin, bool) or self.coordinate_origin not in (0, 1):
            raise ConfigError(f"model config: coordinate_origin must be 0 or 1, got {self.coordinate_origin!r:.80}")
        if self.class_token_position not in (None, "origin"):
            raise ConfigError(
                f"model config: class_token_position must be null or 'origin', got {self.class_token_position!r:.80}"
            )
        if self.size_policy not in ("refuse", "pad"):
            raise ConfigError(f"model config: size_policy must be 'refuse' or 'pad', got {self.size_policy!r:.80}")
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


class VisionTransformer(ImageEncoder):
    """ViT: patches and a class token -> LayerNorm -> blocks -> LayerNorm -> linear head on the class token.

    Any height and width go in: coordinates follow the actual grid, and no tensor of the checkpoint depends on it.

    Args:
        config: Sizes, encoding and conventions.
    """

    PREFIX = 1

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.num_classes, self.patch_size = config.num_classes, config.patch_size
        self.class_token_position = (0.0, 0.0) if config.class_token_position == "origin" else None
        self.embed = PatchEmbed(
            config.patch_size,
            config.in_chans,
            config.dim,
            origin=config.coordinate_origin,
            size_policy=config.size_policy,
        )
        self.cls_token = nn.Parameter(torch.empty(1, 1, config.dim))
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        self.encoder = Encoder(
            config.dim,
            config.depth,
            config.num_heads,
            2,
            mlp_dim=config.mlp_dim,
            encoding=config.encoding,
            head_dim=config.head_dim,
            drop_path=config.drop_path,
            encoding_options=dict(config.encoding_options),
        )
        self.dim = config.dim
        self.head: nn.Module
        self.reset_classifier(config.num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Classifies pictures.

        Args:
            images: (B, in_chans, H, W) floating point, preprocessed as `data_config` says.

        Returns:
            Logits (B, num_classes); features (B, C) when there is no head.

        Raises:
            DataError: If the shape or size cannot be used.
        """
        return self.forward_head(self.forward_features(images))

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits (B, num_classes) of the output of `forward_features`, or the pooled features (B, C)."""
        pooled = features[:, 0]
        return pooled if pre_logits else self.head(pooled)

    def reset_classifier(self, num_classes: int) -> None:
        """Gives the model a new head: zero weight and class-prior bias -ln(K) as released; 0 removes the head."""
        if isinstance(num_classes, bool) or not isinstance(num_classes, int) or not 0 <= num_classes <= 1_000_000:
            raise ConfigError(f"num_classes must be a whole number from 0 to 1,000,000, got {num_classes!r:.80}")
        self.num_classes = num_classes
        if num_classes == 0:
            self.head = nn.Identity()
        else:
            like = self.cls_token
            head = nn.Linear(self.dim, num_classes, device=like.device, dtype=like.dtype)
            nn.init.zeros_(head.weight)
            nn.init.constant_(head.bias, -math.log(num_classes))
            self.head = head
        if "config" in self.__dict__:
            model = {**self.config["model"], "num_classes": num_classes}
            labels = self.config.get("labels")
            keep = labels is not None and len(labels) == num_classes
            self.config = {**self.config, "model": model, "labels": labels if keep else None}

    def no_weight_decay(self) -> set[str]:
        """Names of parameters to leave out of weight decay, besides biases and norms."""
        return {"cls_token"} | super().no_weight_decay()

    def _tokens(self, images: Tensor) -> tuple[Tensor, Coordinates]:
        features, coords = self.embed(images)
        if features.shape[0] == 0:
            raise DataError("a batch needs at least one picture")
        cls_token = self.cls_token.to(features.dtype).expand(features.shape[0], -1, -1)
        return torch.cat([cls_token, features], dim=1), coords.with_prefix(1, at=self.class_token_position)

    def _features(self, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
        """All of them: (B, 1 + rows * columns, C), the class token first."""
        return tokens


def trained_extent(config: Mapping[str, Any]) -> tuple[float, float]:
    """Columns and rows that the coordinates of an input of the configured size span, for context extension.

    A class token at the origin in front of patches that start at 1 is one more of each.
    """
    parsed, (_, height, width) = ViTConfig.from_dict(config["model"]), DataConfig.from_dict(config["data"]).input_size
    more = parsed.coordinate_origin if parsed.class_token_position == "origin" else 0
    return float(-(-width // parsed.patch_size) + more), float(-(-height // parsed.patch_size) + more)


def parse_config(config: Mapping[str, Any], kind: type[C]) -> tuple[C, DataConfig, list[str] | None]:
    """The checked parts of a configuration (schema of config.json): model, data and labels.

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
    return parsed, DataConfig.from_dict(config.get("data", {})), None if labels is None else list(labels)


def build(config: Mapping[str, Any]) -> VisionTransformer:
    """Builds an image classifier from a configuration (schema of config.json) with freshly drawn weights.

    Raises:
        ConfigError: If the configuration cannot be used.
    """
    parsed, data_config, labels = parse_config(config, ViTConfig)
    model = VisionTransformer(parsed)
    model.config = {
        **config,
        "model": dataclasses.asdict(parsed),
        "data": data_config.to_dict(),
        "labels": labels,
    }
    model.data_config = data_config
    return model
