"""What detectors of every modality share: feature pyramid and YOLOv10 head on the grid that the encoder gives."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from zoo.detection.decode import decode, select
from zoo.detection.detections import Detections
from zoo.detection.head import RawMaps, YOLOv10Head
from zoo.detection.pyramid import build_pyramid
from zoo.errors import ConfigError
from zoo.network import EncoderNetwork, set_classes
from zoo.network_config import NetworkConfig, check_class_count

__all__ = ["DetectorNetwork", "PyramidConfig"]

_LIMITS = {"pyramid_dim": 16384, "class_width": 16384, "max_detections": 100_000}


@dataclass(frozen=True, kw_only=True)
class PyramidConfig(NetworkConfig):
    """What configurations of detectors add: pyramid, head and output.

    A detector has no class token: `class_token_position` is `None`.

    Attributes:
        pyramid: `"simple"` (strides P/2, P, 2P, as released) or `"vitdet"` (strides P/4 to 2P).
        pyramid_dim: Width of the pyramid's levels.
        class_width: Hidden width of the class towers.
        max_detections: Rows of the output for each sample.
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
        check_class_count(self.num_classes, "a detector", 1)
        if self.class_token_position is not None:
            raise ConfigError("model config: a detector has no class token: class_token_position must be null")
        score = self.min_score
        if isinstance(score, bool) or not isinstance(score, (int, float)) or not 0 <= score < 1:
            raise ConfigError(f"model config: min_score must be in [0, 1), got {score!r:.80}")


class DetectorNetwork(EncoderNetwork):
    """Base of detectors: encoder -> feature pyramid -> YOLOv10 head, without non-maximum suppression.

    Stands before the base of a modality in the list of bases; the constructor makes `embed` and `encoder`, and calls
    `_add_head`. `forward_features` gives the grid (B, C, rows, columns).

    Attributes:
        strides: Pixels of a cell on every level of the pyramid.
    """

    def _add_head(self, config: PyramidConfig) -> None:
        self.patch_size, self.dim = config.patch_size, config.dim
        self.max_detections, self.min_score = config.max_detections, config.min_score
        self.pyramid = build_pyramid(config.pyramid, config.dim, config.pyramid_dim, config.patch_size)
        self.strides = self.pyramid.strides
        self.head = YOLOv10Head(config.pyramid_dim, config.num_classes, self.strides, config.class_width)

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return self.head.num_classes

    def forward(self, inputs: Any) -> Detections | RawMaps:
        """Detects objects.

        Returns:
            `Detections` in eval mode; in training mode what `forward_raw` gives, for `DetectionLoss`.

        Raises:
            DataError: If the inputs cannot be used.
        """
        if self.training:
            return self.forward_raw(inputs)
        return self._detections(self.detect(inputs), inputs)

    @abstractmethod
    def _detections(self, rows: Tensor, inputs: Any) -> Detections:
        """Rows of `detect`, and what is known of the inputs."""

    def detect(self, inputs: Any) -> Tensor:
        """The tensor of `forward`'s `Detections`, (B, max_detections, 6), also in training mode; for export."""
        maps = self.head.one2one(self.pyramid(self.forward_features(inputs)))
        return select(*decode(maps, self.strides), self.max_detections, self.min_score)

    def forward_raw(self, inputs: Any) -> RawMaps:
        """Raw maps of both branches, finest level first.

        Returns:
            `{"one2one": [...], "one2many": [...]}`, each map (B, 4 x 16 + num_classes, rows, columns).
        """
        return self.forward_head(self.forward_features(inputs))

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Any:
        """Raw maps of the output of `forward_features`, or with `pre_logits` the levels of the pyramid alone."""
        levels = self.pyramid(features)
        return levels if pre_logits else self.head(levels)

    def reset_classifier(self, num_classes: int) -> None:
        """Gives both branches new class layers: zero weight and class-prior bias; the towers below them stay.

        Raises:
            ConfigError: If the number cannot be used.
        """
        check_class_count(num_classes, "a detector", 1)
        self.head.reset_classifier(num_classes)
        set_classes(self, num_classes)

    def load_backbone(self, source: nn.Module) -> None:
        """Takes embedding and encoder from another model, such as a classifier; the rest stays as it is.

        A class token is left behind. The coordinates of patches count as each model's configuration says.

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

    def _features(self, tokens: Tensor, layout: Any) -> Tensor:
        """The grid: (B, C, rows, columns)."""
        return self._grid(tokens, layout)
