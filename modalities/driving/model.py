"""Detection of objects around a vehicle from cameras, lidar or both, after UniTR (arXiv 2308.07732).

One forward: tokens of both sensors and blocks of attention in sets (`SetEncoder`) -> map of the bird's-eye view
(`BevNeck`) -> queries and boxes (`QueryHead`).

What happens without a sensor: a network for cameras and lidar runs with either. Images of cameras that the mask says
are absent are not looked at (NaN included), and the result is that of a batch without those cameras; without any image,
or without any point, the tokens of the other sensor stay in their own plane or on the ground, and the map has zeros for
the absent one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from modalities.driving.batch import DrivingBatch
from modalities.driving.bev_neck import BevNeck
from modalities.driving.boxes import Boxes3D
from modalities.driving.config import FusionConfig
from modalities.driving.data_config import DrivingDataConfig
from modalities.driving.encoder import PatchEmbed, Scene, SetEncoder
from modalities.driving.pillars import PillarEncoder
from modalities.driving.query_head import FusionOutputs, QueryHead, decode
from zoo.encodings.extendable import extend
from zoo.encodings.extension import Extension
from zoo.errors import ConfigError, DataError
from zoo.network import block_indices, set_classes, set_config
from zoo.network_config import check_class_count, parse_config

__all__ = ["FusionDetector", "build", "trained_extent"]


class FusionDetector(nn.Module):
    """Three-dimensional detector on cameras and lidar.

    Args:
        config: Sizes, encoding and sensors.
        data_config: Range, grid and images.

    Attributes:
        config: The complete configuration (schema of config.json), set by `build`.
        data_config: Preprocessing that belongs to the weights.
        load_report: What `zoo.load` did.
    """

    config: dict[str, Any]
    load_report: Any = None

    def __init__(self, config: FusionConfig, data_config: DrivingDataConfig) -> None:
        super().__init__()
        self.sizes, self.data_config = config, data_config
        self.embed = PatchEmbed(config.patch_size, config.dim) if config.has_cameras else None
        self.pillars = PillarEncoder(config, data_config) if config.has_lidar else None
        self.encoder = SetEncoder(config, data_config)
        self.neck = BevNeck(config, data_config)
        self.head = QueryHead(config, data_config)

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return self.head.num_classes

    def forward(self, batch: DrivingBatch) -> list[Boxes3D] | FusionOutputs:
        """Detects objects.

        Returns:
            In eval mode the `Boxes3D` of every scene in the ego frame, best first; in training mode what `forward_raw`
            gives, for `FusionLoss`.

        Raises:
            DataError: If the batch cannot be used.
        """
        outputs = self.forward_raw(batch)
        return outputs if self.training else decode(outputs, self.sizes.max_boxes, self.sizes.min_score)

    def forward_raw(self, batch: DrivingBatch) -> FusionOutputs:
        """Outputs of the head before boxes are made of them."""
        return self.forward_head(self.forward_features(batch))

    def forward_tokens(self, batch: DrivingBatch) -> Scene:
        """Tokens of both sensors after the last block."""
        self._check(batch)
        return self.encoder(batch, self.embed, self.pillars)

    def forward_features(self, batch: DrivingBatch) -> Tensor:
        """The map of the bird's-eye view (B, C, X, Y); the first axis of space is x (forward), the second y (left)."""
        return self.neck(self.forward_tokens(batch), len(batch))

    def forward_intermediates(
        self,
        batch: DrivingBatch,
        indices: int | Sequence[int] | None = None,
        output: str = "tokens",
        norm: bool = False,
        stop_early: bool = False,
    ) -> tuple[Tensor | None, list[Scene]]:
        """Tokens after chosen blocks, with what says where they are.

        Args:
            batch: As for `forward`.
            indices: Block numbers (negative from the end), or how many of the last blocks; `None` means all.
            output: `"tokens"`: those of both sensors have no common grid before the neck.
            norm: Apply the norm after the last block to each.
            stop_early: Do not run the blocks after the last one asked for.

        Returns:
            The map as from `forward_features` (`None` if stopped early before the end), and the list.

        Raises:
            ConfigError: On an unknown output or an index out of range.
        """
        if output != "tokens":
            raise ConfigError(f"a fusion network gives tokens (output='tokens'), got output={output!r:.40}")
        self._check(batch)
        depth = len(self.encoder.blocks)
        wanted = block_indices(indices, depth)
        kept: dict[int, Scene] = {}
        final: Tensor | None = None
        for index, scene in enumerate(self.encoder.layers(batch, self.embed, self.pillars)):
            if index in wanted:
                kept[index] = self.encoder.finish(scene) if norm else scene
            if index == depth - 1:
                final = self.neck(self.encoder.finish(scene), len(batch))
            elif stop_early and index >= max(wanted):
                break
        return final, [kept[index] for index in wanted]

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Any:
        """Raw outputs of the output of `forward_features`, or with `pre_logits` the map itself."""
        return features if pre_logits else self.head(features)

    def _check(self, batch: DrivingBatch) -> None:
        if not isinstance(batch, DrivingBatch):
            raise DataError(
                f"driving models take a DrivingBatch (DrivingBatch.from_samples), got {type(batch).__name__}"
            )
        if len(batch) == 0:
            raise DataError("a batch needs at least one scene")
        device = self.neck.up.weight.device
        if batch.device != device:
            raise DataError(f"the batch is on {batch.device}, the model on {device}: bring them together with .to()")
        points = batch.points
        if self.pillars is not None and points is not None and points.shape[1] != self.sizes.point_features:
            raise DataError(
                f"points need {self.sizes.point_features} numbers (x, y, z, intensity, age, ...), got {points.shape[1]}"
            )

    def reset_classifier(self, num_classes: int) -> None:
        """Gives heat map and queries new layers for another number of classes; all that does not know them stays.

        Raises:
            ConfigError: If the number cannot be used.
        """
        check_class_count(num_classes, "a detector", 1)
        self.head.reset_classifier(num_classes)
        self.sizes = dataclasses.replace(self.sizes, num_classes=num_classes)
        set_classes(self, num_classes)

    def extend(self, extension: Extension | None) -> None:
        """Runs all encodings with an extension to larger inputs from now on; see `zoo.transformer.Encoder.extend`."""
        extend(self, extension)

    def no_weight_decay(self) -> set[str]:
        """Names of parameters to leave out of weight decay, besides biases and norms."""
        from zoo.attention import CoordinateAttention

        names = {"head.class_embed.weight"}
        for prefix, module in self.named_modules():
            if isinstance(module, CoordinateAttention):
                parts = {"encoding": module.encoding, "token_encoding": module.token_encoding}
                for part, encoding in parts.items():
                    if encoding is not None:
                        names |= {f"{prefix}.{part}.{name}" for name in encoding.no_weight_decay()}
        return names

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Parameter groups for layer-wise learning-rate decay, in timm's form: blocks, or their layers."""
        blocks = r"^encoder\.blocks\.(\d+)" if coarse else r"^encoder\.blocks\.(\d+)\.layers\.(\d+)"
        return {
            "stem": r"^embed|^pillars",
            "blocks": [(blocks, None), (r"^encoder\.norm\.", (99999,))],
            "head": r"^neck|^head",
        }

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recomputes activations of blocks in backward to save memory."""
        self.encoder.grad_checkpointing = enable


def trained_extent(config: Mapping[str, Any]) -> tuple[float, float]:
    """Cells that a window spans along both axes, for context extension."""
    window = float(FusionConfig.from_dict(config["model"]).window)
    return window, window


def build(config: Mapping[str, Any]) -> FusionDetector:
    """Builds a fusion detector from a configuration (schema of config.json) with freshly drawn weights.

    Raises:
        ConfigError: If the configuration cannot be used.
    """
    parsed, labels = parse_config(config, FusionConfig)
    data_config = DrivingDataConfig.from_dict(config.get("data", {}))
    model = FusionDetector(parsed, data_config)
    set_config(model, config, parsed, data_config, labels)
    return model
