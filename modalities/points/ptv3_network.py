"""Point Transformer V3 (arXiv 2312.10035) on the coordinate-aware attention block: what its networks share.

One forward: voxels, orders and neighbours from the coordinates -> stem -> stages of the encoder, pooled to larger
voxels between them -> for segmentation, stages of the decoder, spread to smaller voxels between them -> head. Frames of
the position encoding are made once for every stage and curve.

Legend: B clouds, N points, V voxels of a level, C features, K classes.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from modalities.points.batch import PointBatch
from modalities.points.data_config import PointDataConfig
from modalities.points.ptv3_blocks import PointBatchNorm, PointBlock, Pooling, Stem, Unpooling
from modalities.points.ptv3_config import PTv3Config
from modalities.points.ptv3_geometry import Geometry, curve_schedule
from modalities.points.voxels import Groups, Level
from zoo.coordinates import Coordinates
from zoo.encodings import create, split_name, split_options
from zoo.encodings.base import Frame
from zoo.encodings.extendable import extend
from zoo.encodings.extension import Extension
from zoo.errors import ConfigError, DataError
from zoo.network import block_indices, set_classes

__all__ = ["PTv3", "PointFeatures"]


@dataclass(frozen=True)
class PointFeatures:
    """Features of the voxels of one level.

    Attributes:
        features: (V, C).
        level: The voxels: their `xyz`, `cloud` and `offsets`.
        points: Which points are in each voxel of the finest level.
    """

    features: Tensor
    level: Level
    points: Groups


class PTv3(nn.Module, ABC):
    """Base of the networks: stem, encoder and, where the configuration has one, decoder.

    Blocks of a level take the four curves in turn; in training every stage draws an order of them anew, from the
    generator that `forward` is given or torch's own on the CPU.

    Args:
        config: Sizes and encoding.
        data_config: Grid and features.

    Attributes:
        config: The complete configuration (schema of config.json), set by the builders.
        load_report: What `zoo.load` did.

    Raises:
        ConfigError: If the configuration cannot be used, or does not fit the data.
    """

    config: dict[str, Any]
    load_report: Any = None
    head: nn.Module

    def __init__(self, config: PTv3Config, data_config: PointDataConfig) -> None:
        super().__init__()
        if not data_config.grid_size:
            raise ConfigError("data: ptv3 works on voxels: grid_size must be above 0")
        if config.in_chans != data_config.in_chans:
            raise ConfigError(
                f"config: the model takes {config.in_chans} channels, the features "
                f"{', '.join(data_config.feature_names)} are {data_config.in_chans}: model and data must agree"
            )
        self.sizes, self.data_config, self.num_classes = config, data_config, config.num_classes
        token, attention = split_name(config.encoding)
        token_options, options = split_options(config.encoding, config.encoding_options)
        widths = config.channels
        shape = {"num_heads": widths[0] // config.head_dim, "head_dim": config.head_dim, "coord_dim": 3}
        self.token_encoding = None
        if token is not None:
            self.token_encoding = create(token, dim=widths[0], options=token_options, **shape)[0]
        self.stem = Stem(config.in_chans, widths[0], config.stem_kernel)
        self.grad_checkpointing = False

        def stage(width: int, rates: list[float]) -> nn.ModuleList:
            return nn.ModuleList(
                PointBlock(
                    width,
                    width // config.head_dim,
                    mlp_dim=config.mlp_ratio * width,
                    encoding=attention,
                    encoding_options=options,
                    head_dim=config.head_dim,
                    drop_path=rate,
                )
                for rate in rates
            )

        rates = _rising(config.drop_path, config.depths)
        self.encoder = nn.ModuleList(map(stage, widths, rates))
        self.pools = nn.ModuleList(map(Pooling, widths, widths[1:]))
        narrow = config.decoder_channels
        rates = _rising(config.drop_path, config.decoder_depths[::-1])[::-1]
        self.decoder = nn.ModuleList(map(stage, narrow, rates))
        self.unpools = nn.ModuleList(map(Unpooling, [*narrow[1:], widths[-1]], widths, narrow))
        for module in self.modules():  # The head, made later, keeps its own.
            if isinstance(module, PointBatchNorm):
                module.momentum = config.norm_momentum
        blocks = list(self._blocks())
        for place, (_, block) in enumerate(blocks):
            block.block.attn.encoding.place(place, len(blocks))
            block.block.attn.encoding.reset_parameters()

    def _blocks(self) -> Iterator[tuple[str, PointBlock]]:
        """Names and blocks in the order in which they run."""
        for stage, blocks in enumerate(self.encoder):
            for i, block in enumerate(cast(nn.ModuleList, blocks)):
                yield f"encoder.{stage}.{i}", cast(PointBlock, block)
        for stage in reversed(range(len(self.decoder))):
            for i, block in enumerate(cast(nn.ModuleList, self.decoder[stage])):
                yield f"decoder.{stage}.{i}", cast(PointBlock, block)

    def geometry(self, inputs: PointBatch, generator: torch.Generator | None = None) -> Geometry:
        """Levels, orders, patches and neighbours of a batch.

        Raises:
            DataError: If the clouds cannot be voxelised.
        """
        depths = list(self.sizes.depths)
        for stage, depth in enumerate(self.sizes.decoder_depths):
            depths[stage] = max(depths[stage], depth)
        schedule = curve_schedule(depths, generator, self.training)
        return Geometry(
            inputs, self.data_config.grid_size, self.sizes.patch_size, depths, schedule, self.sizes.stem_kernel
        )

    def _stages(self, inputs: PointBatch, generator: torch.Generator | None) -> Iterator[PointFeatures]:
        """Yields the features after every stage, those of the encoder first."""
        self._check(inputs)
        geometry = self.geometry(inputs, generator)
        levels, points = geometry.levels, geometry.levels[0].groups
        features = inputs.features.to(self.stem.conv.weight.dtype)
        x = points.reduce(features, "mean") if len(features) else features
        x = self.stem(x, geometry.stem_neighbours)
        if self.token_encoding is not None:
            where = Coordinates((levels[0].xyz / levels[0].size).unsqueeze(0), unit="voxel")
            x = x + self.token_encoding.encode(where).squeeze(0).to(x.dtype)
        skips: list[Tensor] = []
        for stage, blocks in enumerate(self.encoder):
            if stage:
                x = self.pools[stage - 1](x, levels[stage].groups)
            x = self._run(cast(nn.ModuleList, blocks), x, geometry, stage)
            skips.append(x)
            yield PointFeatures(x, levels[stage], points)
        for stage in reversed(range(len(self.decoder))):
            x = self.unpools[stage](x, skips[stage], levels[stage + 1].groups)
            x = self._run(cast(nn.ModuleList, self.decoder[stage]), x, geometry, stage)
            yield PointFeatures(x, levels[stage], points)

    def _run(self, blocks: nn.ModuleList, x: Tensor, geometry: Geometry, stage: int) -> Tensor:
        frames: dict[int, Frame] = {}
        neighbours = geometry.neighbours[stage]
        for i, block in enumerate(blocks):
            curve, serial = geometry.curve(stage, i), geometry.serial(stage, i)
            if curve not in frames:
                frames[curve] = cast(PointBlock, block).block.attn.frame(x, serial.coords)
            if self.grad_checkpointing and self.training:
                x = checkpoint(block, x, neighbours, serial, frames[curve], use_reentrant=False)
            else:
                x = block(x, neighbours, serial, frames[curve])
        return x

    def _check(self, inputs: PointBatch) -> None:
        if not isinstance(inputs, PointBatch):
            raise DataError(f"point models take a PointBatch (PointBatch.from_clouds), got {type(inputs).__name__}")
        if len(inputs) == 0:
            raise DataError("a batch needs at least one cloud; a cloud without points is legal")
        if inputs.features.shape[1] != self.sizes.in_chans:
            names = ", ".join(self.data_config.feature_names)
            raise DataError(
                f"points need {self.sizes.in_chans} features ({names}) as model.data_config says, got "
                f"{inputs.features.shape[1]}"
            )
        if inputs.device != self.stem.conv.weight.device:
            raise DataError(
                f"points are on {inputs.device}, the model on {self.stem.conv.weight.device}: bring them together with "
                ".to()"
            )

    def forward(self, inputs: PointBatch, generator: torch.Generator | None = None) -> Tensor:
        """Logits.

        Args:
            inputs: The clouds.
            generator: Draws the orders of the curves in training (on the CPU); `None` is torch's own.

        Returns:
            (B, K) of a classifier, (N, K) of a segmenter; features where there is no head.

        Raises:
            DataError: If the clouds cannot be used.
        """
        return self.forward_head(self.forward_features(inputs, generator))

    def forward_features(self, inputs: PointBatch, generator: torch.Generator | None = None) -> PointFeatures:
        """Features of the voxels after the last stage; arguments as in `forward`."""
        *_, last = self._stages(inputs, generator)
        return last

    @abstractmethod
    def forward_head(self, features: PointFeatures, pre_logits: bool = False) -> Tensor:
        """Logits of the output of `forward_features`, or what the head is given."""

    def forward_intermediates(
        self,
        inputs: PointBatch,
        indices: int | Sequence[int] | None = None,
        output: str = "tokens",
        norm: bool = False,
        stop_early: bool = False,
    ) -> tuple[PointFeatures | None, list[PointFeatures]]:
        """Features after chosen stages, those of the encoder from fine to coarse, then those of the decoder back.

        Args:
            inputs: As for `forward`.
            indices: Stage numbers (negative from the end), or how many of the last stages; `None` means all.
            output: `"tokens"`, one row for each voxel: there is no grid.
            norm: There is no last norm: must be `False`.
            stop_early: Do not run the stages after the last one asked for.

        Returns:
            The final features as from `forward_features` (`None` if stopped early before the end), and the list.

        Raises:
            ConfigError: On an unknown output or an index out of range.
        """
        if output != "tokens" or norm:
            raise ConfigError(
                f"a point network gives rows of voxels (output='tokens') and has no last norm (norm=False), got "
                f"output={output!r:.40}, norm={norm!r:.40}"
            )
        stages = len(self.encoder) + len(self.decoder)
        wanted = block_indices(indices, stages)
        kept: dict[int, PointFeatures] = {}
        final: PointFeatures | None = None
        for index, features in enumerate(self._stages(inputs, None)):
            if index in wanted:
                kept[index] = features
            if index == stages - 1:
                final = features
            elif stop_early and index >= max(wanted):
                break
        return final, [kept[index] for index in wanted]

    def extend(self, extension: Extension | None) -> None:
        """Runs all encodings with an extension to larger inputs from now on; see `zoo.transformer.Encoder.extend`."""
        extend(self, extension)

    def no_weight_decay(self) -> set[str]:
        """Names of parameters to leave out of weight decay, besides biases and norms."""
        names = set() if self.token_encoding is None else self.token_encoding.no_weight_decay()
        return {f"token_encoding.{name}" for name in names} | {
            f"{prefix}.block.attn.encoding.{name}"
            for prefix, block in self._blocks()
            for name in block.block.attn.encoding.no_weight_decay()
        }

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Parameter groups for layer-wise learning-rate decay, in timm's form: stages, or blocks of the encoder."""
        encoder = r"^encoder\.(\d+)" if coarse else r"^encoder\.(\d+)\.(\d+)"
        return {
            "stem": r"^stem|^token_encoding",
            "encoder": [(encoder, None), (r"^pools\.(\d+)", (99999,))],
            "decoder": r"^decoder|^unpools",
        }

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recomputes activations of blocks in backward to save memory."""
        self.grad_checkpointing = enable

    def _last_layer(self, width: int) -> nn.Module:
        """A new last layer as everywhere in the zoo: zero weight and class-prior bias -ln(K)."""
        like = self.stem.norm.weight
        layer = nn.Linear(width, self.num_classes, device=like.device, dtype=like.dtype)
        nn.init.zeros_(layer.weight)
        nn.init.constant_(layer.bias, -math.log(self.num_classes))
        return layer

    def _set_classes(self, num_classes: int) -> None:
        """Notes the number of classes here and, once there is one, in the configuration; other labels go."""
        self.num_classes = num_classes
        self.sizes = dataclasses.replace(self.sizes, num_classes=num_classes)
        set_classes(self, num_classes)


def _rising(rate: float, depths: Sequence[int]) -> list[list[float]]:
    """Stochastic depth of each block of each stage, rising evenly from 0 to the rate."""
    steps, made, place = max(sum(depths) - 1, 1), [], 0
    for depth in depths:
        made.append([rate * (place + i) / steps for i in range(depth)])
        place += depth
    return made
