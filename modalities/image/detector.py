"""Object detector on images: vision transformer, feature pyramid and YOLOv10 head, as in the released PaPE networks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from modalities.image.embed import PatchEmbed
from modalities.image.encoder import ImageEncoder
from modalities.image.model import ViTConfig, parse_config
from zoo.coordinates import Coordinates
from zoo.data_config import DataConfig
from zoo.detection.decode import decode, select
from zoo.detection.detections import Detections
from zoo.detection.head import RawMaps, YOLOv10Head
from zoo.detection.pyramid import build_pyramid
from zoo.errors import ConfigError, DataError
from zoo.transformer import Encoder

if TYPE_CHECKING:
    pass

__all__ = ["DetectorConfig", "ImageDetector", "build"]

_LIMITS = {"pyramid_dim": 16384, "class_width": 16384, "max_detections": 100_000}


@dataclass(frozen=True, kw_only=True)
class DetectorConfig(ViTConfig):
    """Everything that builds an `ImageDetector`; the `"model"` part of config.json.

    A detector has no class token: `class_token_position` is `None`.

    Attributes:
        pyramid: `"simple"` (strides P/2, P, 2P, as released) or `"vitdet"` (strides P/4 to 2P).
        pyramid_dim: Width of the pyramid's levels.
        class_width: Hidden width of the class towers.
        max_detections: Rows of the output for each picture.
        min_score: Detections with a smaller score are left out.
    """

    pyramid: str = "simple"
    pyramid_dim: int
    class_width: int
    max_detections: int = 100
    min_score: float = 0.001

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, limit in _LIMITS.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
                raise ConfigError(f"model config: {name} must be a whole number from 1 to {limit}, got {value!r:.80}")
        _check_classes(self.num_classes)
        if self.class_token_position is not None:
            raise ConfigError("model config: a detector has no class token: class_token_position must be null")
        score = self.min_score
        if isinstance(score, bool) or not isinstance(score, (int, float)) or not 0 <= score < 1:
            raise ConfigError(f"model config: min_score must be in [0, 1), got {score!r:.80}")


class ImageDetector(ImageEncoder):
    """Patches -> encoder -> feature pyramid -> YOLOv10 head, without class token and non-maximum suppression.

    Args:
        config: Sizes, encoding and conventions.
        data_config: Preprocessing; what `Detections.for_image` undoes.

    Attributes:
        strides: Pixels of a cell on every level of the pyramid.
    """

    def __init__(self, config: DetectorConfig, data_config: DataConfig) -> None:
        super().__init__()
        self.patch_size, self.dim = config.patch_size, config.dim
        self.max_detections, self.min_score = config.max_detections, config.min_score
        self.data_config = data_config
        self.embed = PatchEmbed(
            config.patch_size,
            config.in_chans,
            config.dim,
            origin=config.coordinate_origin,
            size_policy=config.size_policy,
        )
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
        self.pyramid = build_pyramid(config.pyramid, config.dim, config.pyramid_dim, config.patch_size)
        self.strides = self.pyramid.strides
        self.head = YOLOv10Head(config.pyramid_dim, config.num_classes, self.strides, config.class_width)

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return self.head.num_classes

    def forward(self, images: Tensor) -> Detections | RawMaps:
        """Detects objects.

        Args:
            images: (B, in_chans, H, W) floating point, preprocessed as `data_config` says; 2 patches a side or more.

        Returns:
            `Detections` in eval mode; in training mode what `forward_raw` gives, for `DetectionLoss`.

        Raises:
            DataError: If the shape or size cannot be used.
        """
        if self.training:
            return self.forward_raw(images)
        size = (images.shape[-2], images.shape[-1]) if isinstance(images, Tensor) and images.dim() == 4 else (0, 0)
        return Detections(self.detect(images), size, self.data_config)

    def detect(self, images: Tensor) -> Tensor:
        """The tensor of `forward`'s `Detections`, (B, max_detections, 6), also in training mode; for export."""
        maps = self.head.one2one(self.pyramid(self.forward_features(images)))
        return select(*decode(maps, self.strides), self.max_detections, self.min_score)

    def forward_raw(self, images: Tensor) -> RawMaps:
        """Raw maps of both branches, finest level first.

        Returns:
            `{"one2one": [...], "one2many": [...]}`, each map (B, 4 x 16 + num_classes, rows, columns).
        """
        return self.forward_head(self.forward_features(images))

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Any:
        """Raw maps of the output of `forward_features`, or with `pre_logits` the levels of the pyramid alone."""
        levels = self.pyramid(features)
        return levels if pre_logits else self.head(levels)

    def reset_classifier(self, num_classes: int) -> None:
        """Gives both branches new class layers: zero weight and class-prior bias; the towers below them stay.

        Raises:
            ConfigError: If the number cannot be used.
        """
        _check_classes(num_classes)
        self.head.reset_classifier(num_classes)
        if "config" in self.__dict__:
            labels = self.config.get("labels")
            keep = labels is not None and len(labels) == num_classes
            model = {**self.config["model"], "num_classes": num_classes}
            self.config = {**self.config, "model": model, "labels": labels if keep else None}

    def load_backbone(self, source: nn.Module) -> None:
        """Takes patch embedding and encoder from another image model, such as a classifier; the rest stays as it is.

        The coordinates of patches count from `coordinate_origin` of each model; a class token is left behind.

        Args:
            source: A model with the same sizes, patch, channels and encoding.

        Raises:
            WeightsError: Naming what does not fit; nothing is copied then.
        """
        from zoo.checkpoints import compare_shapes

        parts = ("embed.", "encoder.")
        state = {key: value for key, value in source.state_dict().items() if key.startswith(parts)}
        own = {key: tuple(value.shape) for key, value in self.state_dict().items() if key.startswith(parts)}
        found = {key: tuple(value.shape) for key, value in state.items()}
        compare_shapes(found, own, "the backbone")
        self.load_state_dict(state, strict=False)

    def _tokens(self, images: Tensor) -> tuple[Tensor, Coordinates]:
        features, coords = self.embed(images)
        if features.shape[0] == 0:
            raise DataError("a batch needs at least one picture")
        return features, coords

    def _features(self, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
        """The grid: (B, C, rows, columns)."""
        return self.as_grid(tokens, grid)


def _check_classes(num_classes: object) -> None:
    if isinstance(num_classes, bool) or not isinstance(num_classes, int) or not 1 <= num_classes <= 1_000_000:
        raise ConfigError(f"a detector needs num_classes from 1 to 1,000,000, got {num_classes!r:.80}")


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
    parsed, data_config, labels = parse_config(config, DetectorConfig)
    model = ImageDetector(parsed, data_config)
    model.config = {
        **config,
        "model": dataclasses.asdict(parsed),
        "data": data_config.to_dict(),
        "labels": labels,
    }
    return model
