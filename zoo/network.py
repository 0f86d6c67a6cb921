"""What networks of every modality share: encoder, features after chosen blocks, parameter groups, class token and head.

Legend: B batch, N tokens, C width of the features.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from zoo.coordinates import Coordinates
from zoo.errors import ConfigError
from zoo.network_config import EncodedConfig, NetworkConfig, check_class_count
from zoo.transformer import Encoder

if TYPE_CHECKING:
    from zoo.loading import LoadReport

__all__ = ["ClassTokenNetwork", "ClassifierNetwork", "EncoderNetwork", "Sequences", "block_indices", "build_encoder"]
__all__ += ["set_classes", "set_config"]


class Sequences(NamedTuple):
    """Tokens of a batch on their way into the encoder.

    Attributes:
        tokens: (B, N, C).
        coords: Where they are.
        mask: (B, N) bool, True for real tokens; `None` where all are.
        layout: What the modality needs to put tokens back into a grid.
    """

    tokens: Tensor
    coords: Coordinates
    mask: Tensor | None
    layout: Any


class EncoderNetwork(nn.Module, ABC):
    """Base of networks that turn inputs into tokens with `embed` and run an `Encoder` as `encoder`.

    Attributes:
        config: The complete configuration (schema of config.json), set by `build`.
        data_config: Preprocessing that belongs to the weights.
        load_report: What `zoo.load` did.
    """

    PREFIX: ClassVar[int] = 0
    """Tokens before those of the patches."""

    encoder: Encoder
    config: dict[str, Any]
    data_config: Any
    load_report: LoadReport | None = None

    @abstractmethod
    def _embedded(self, inputs: Any) -> Sequences:
        """Tokens of the patches of the inputs."""

    def _sequences(self, inputs: Any) -> Sequences:
        """Tokens that go into the encoder."""
        return self._embedded(inputs)

    @abstractmethod
    def _grid(self, tokens: Tensor, layout: Any) -> Tensor:
        """Tokens (B, N, C) of patches as (B, C, rows, columns)."""

    def _features(self, tokens: Tensor, layout: Any) -> Tensor:
        """What `forward_features` gives, of the tokens after the last LayerNorm."""
        return tokens

    def forward_features(self, inputs: Any) -> Tensor:
        """Features after the last LayerNorm."""
        sequences = self._sequences(inputs)
        tokens = self.encoder(sequences.tokens, sequences.coords, sequences.mask)
        return self._features(tokens, sequences.layout)

    def forward_intermediates(
        self,
        inputs: Any,
        indices: int | Sequence[int] | None = None,
        output: str = "tokens",
        norm: bool = False,
        stop_early: bool = False,
    ) -> tuple[Tensor | None, list[Tensor]]:
        """Features after chosen blocks.

        Args:
            inputs: As for `forward`.
            indices: Block numbers (negative from the end), or how many of the last blocks; `None` means all.
            output: `"tokens"` (B, N, C), a class token included where there is one, or `"grid"` (B, C, rows, columns).
            norm: Apply the last LayerNorm to each.
            stop_early: Do not run the blocks after the last one asked for.

        Returns:
            The final features as from `forward_features` (`None` if stopped early before the end), and the list.

        Raises:
            ConfigError: On an unknown output or an index out of range.
        """
        if output not in ("tokens", "grid"):
            raise ConfigError(f"output must be 'tokens' or 'grid', got {output!r}")
        depth = len(self.encoder.blocks)
        wanted = block_indices(indices, depth)
        tokens, coords, mask, layout = self._sequences(inputs)
        kept: dict[int, Tensor] = {}
        final: Tensor | None = None
        for index, x in enumerate(self.encoder.layers(tokens, coords, mask)):
            if index in wanted:
                features = self.encoder.norm_after(index)(x) if norm else x
                kept[index] = self._grid(features[:, self.PREFIX :], layout) if output == "grid" else features
            if index == depth - 1:
                final = self._features(self.encoder.norm(x), layout)
            elif stop_early and index >= max(wanted):
                break
        return final, [kept[index] for index in wanted]

    def no_weight_decay(self) -> set[str]:
        """Names of parameters to leave out of weight decay, besides biases and norms."""
        return {f"encoder.{name}" for name in self.encoder.no_weight_decay()}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Parameter groups for layer-wise learning-rate decay, in timm's form; what follows the encoder is the last."""
        blocks = r"^encoder\.blocks\.(\d+)"
        return {
            "stem": r"^cls_token|^embed|^encoder\.norm_pre|^encoder\.token_encoding",
            "blocks": blocks if coarse else [(blocks, None), (r"^encoder\.norm\.", (99999,))],
        }

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recomputes activations in backward to save memory."""
        self.encoder.grad_checkpointing = enable


class ClassifierNetwork(EncoderNetwork):
    """Base of classifiers: a linear head on pooled features.

    The constructor makes `embed`, calls `_set_sizes`, makes `encoder`, and calls `reset_classifier`.
    """

    head: nn.Module

    def _set_sizes(self, config: NetworkConfig) -> None:
        self.dim, self.num_classes, self.patch_size = config.dim, config.num_classes, config.patch_size

    @abstractmethod
    def _pooled(self, features: Tensor) -> Tensor:
        """Pooled features (B, C) of the output of `forward_features`."""

    def forward(self, inputs: Any) -> Tensor:
        """Classifies.

        Returns:
            Logits (B, num_classes); features (B, C) when there is no head.

        Raises:
            DataError: If the inputs cannot be used.
        """
        return self.forward_head(self.forward_features(inputs))

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits (B, num_classes) of the output of `forward_features`, or the pooled features (B, C)."""
        pooled = self._pooled(features)
        return pooled if pre_logits else self.head(pooled)

    def reset_classifier(self, num_classes: int) -> None:
        """Gives the model a new head: zero weight and class-prior bias -ln(K) as released; 0 removes the head.

        Raises:
            ConfigError: If the number cannot be used.
        """
        check_class_count(num_classes, "a classifier", 0)
        self.num_classes = num_classes
        if num_classes == 0:
            self.head = nn.Identity()
        else:
            like = self.encoder.norm.weight
            head = nn.Linear(self.dim, num_classes, device=like.device, dtype=like.dtype)
            nn.init.zeros_(head.weight)
            nn.init.constant_(head.bias, -math.log(num_classes))
            self.head = head
        set_classes(self, num_classes)


class ClassTokenNetwork(ClassifierNetwork):
    """Base of classifiers with a class token in front of the tokens, on which the head is, without pooling.

    Stands before the base of a modality in the list of bases; the constructor calls `_add_class_token` instead of
    `_set_sizes`.
    """

    PREFIX = 1

    def _add_class_token(self, config: NetworkConfig, axes: int) -> None:
        self._set_sizes(config)
        self.class_token_position = (0.0,) * axes if config.class_token_position == "origin" else None
        self.cls_token = nn.Parameter(torch.empty(1, 1, config.dim))
        nn.init.trunc_normal_(self.cls_token, std=0.02)

    def _pooled(self, features: Tensor) -> Tensor:
        return features[:, 0]

    def no_weight_decay(self) -> set[str]:
        """Names of parameters to leave out of weight decay, besides biases and norms."""
        return {"cls_token"} | super().no_weight_decay()

    def _sequences(self, inputs: Any) -> Sequences:
        tokens, coords, mask, layout = self._embedded(inputs)
        cls_token = self.cls_token.to(tokens.dtype).expand(tokens.shape[0], -1, -1)
        if mask is not None:
            mask = torch.cat([mask.new_ones(mask.shape[0], 1), mask], dim=1)
        coords = coords.with_prefix(1, at=self.class_token_position)
        return Sequences(torch.cat([cls_token, tokens], dim=1), coords, mask, layout)


def build_encoder(config: NetworkConfig, axes: int) -> Encoder:
    """The encoder that a configuration describes, for coordinates with so many axes."""
    return Encoder(
        config.dim,
        config.depth,
        config.num_heads,
        axes,
        mlp_dim=config.mlp_dim,
        encoding=config.encoding,
        head_dim=config.head_dim,
        drop_path=config.drop_path,
        encoding_options=dict(config.encoding_options),
    )


def set_config(
    model: Any, config: Mapping[str, Any], parsed: EncodedConfig, data_config: Any, labels: list[str] | None
) -> None:
    """Gives a model its complete configuration, with what was checked and filled in, and its preprocessing."""
    model.data_config = data_config
    model.config = {
        **config,
        "model": dataclasses.asdict(parsed),
        "data": data_config.to_dict(),
        "labels": labels,
    }


def set_classes(model: Any, num_classes: int) -> None:
    """Notes another number of classes in the configuration, once there is one; labels of another number go."""
    if "config" in model.__dict__:
        labels = model.config.get("labels")
        keep = labels is not None and len(labels) == num_classes
        sizes = {**model.config["model"], "num_classes": num_classes}
        model.config = {**model.config, "model": sizes, "labels": labels if keep else None}


def block_indices(indices: int | Sequence[int] | None, depth: int) -> list[int]:
    """Numbers of the blocks that `forward_intermediates(indices)` asks for, of `depth` blocks.

    Raises:
        ConfigError: If one is out of range, or there are none.
    """
    if indices is None:
        return list(range(depth))
    if isinstance(indices, int) and not isinstance(indices, bool):
        if not 1 <= indices <= depth:
            raise ConfigError(
                f"the number of last blocks must be 1 to {depth} (block indices go in a list), got {indices}"
            )
        return list(range(depth - indices, depth))
    chosen = list(indices) if isinstance(indices, (list, tuple, range)) else []
    if not chosen or any(type(index) is not int or not -depth <= index < depth for index in chosen):
        raise ConfigError(f"block indices must lie in -{depth}..{depth - 1} and not be empty, got {indices!r}")
    return [index % depth for index in chosen]
