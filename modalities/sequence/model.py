"""A causal decoder: embedding -> blocks -> RMSNorm -> logits of the next token.

Legend: B batch, N tokens, C width of the features, V size of the vocabulary, p axes of positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modalities.sequence.cache import DecoderCache
from modalities.sequence.config import DecoderConfig
from modalities.sequence.data_config import SequenceDataConfig
from modalities.sequence.decoder import DecoderStack
from modalities.sequence.positions import Positions, make_coordinates
from zoo.coordinates import Coordinates
from zoo.errors import DataError
from zoo.network import EncoderNetwork, Sequences, set_classes, set_config
from zoo.network_config import check_class_count, parse_config

if TYPE_CHECKING:
    from modalities.sequence.generate import AllPositions

__all__ = ["Decoder", "build", "trained_extent"]


class _Placed(NamedTuple):
    """What `forward` takes, as one."""

    ids: Tensor
    positions: Positions | None


class Decoder(EncoderNetwork):
    """Predicts every token of a sequence from those before it.

    It takes token ids (B, N) of any length and, where tokens are not simply counted, their positions. With a
    `DecoderCache` it goes on from the tokens of earlier calls.

    Args:
        config: Sizes and encoding.
        data_config: Length and tokenizer of sequences.

    Example:
        >>> import zoo
        >>> model = zoo.load("pope-decoder-n-index", pretrained=False)
        >>> model(torch.tensor([[1, 2, 3]])).shape
        torch.Size([1, 3, 66])
    """

    data_config: SequenceDataConfig

    def __init__(self, config: DecoderConfig, data_config: SequenceDataConfig) -> None:
        super().__init__()
        self.data_config = data_config
        self.dim, self.coord_dim, self.tied = config.dim, config.coord_dim, config.tie_embeddings
        self.encoder = DecoderStack(config)
        self.reset_classifier(config.num_classes)

    @property
    def stack(self) -> DecoderStack:
        """The blocks."""
        return cast(DecoderStack, self.encoder)

    def forward(self, ids: Tensor, positions: Positions | None = None, cache: DecoderCache | None = None) -> Tensor:
        """Logits of the token after each token.

        Args:
            ids: (B, N) int64 or int32, N at least 1; with a cache the tokens that follow those in it.
            positions: Of these tokens: (B or 1, N), the same on every axis, (B or 1, N, p), or `Coordinates`, in which
                tokens may have none. `None` counts tokens from 0, or on from those in the cache, on every axis.
                Numbers with a far origin lose precision in float32: subtract it before.
            cache: Tokens before; these are added to it. For use without gradients.

        Returns:
            (B, N, V).

        Raises:
            DataError: If the inputs cannot be used.
        """
        return self.forward_head(self.forward_features(ids, positions, cache))

    def forward_features(
        self, inputs: Tensor, positions: Positions | None = None, cache: DecoderCache | None = None
    ) -> Tensor:
        """Features (B, N, C) after the last norm; arguments as for `forward`."""
        if cache is None:
            return super().forward_features(_Placed(inputs, positions))
        new = self._coordinates(inputs, positions, start=cache.length)
        if self.stack.keeps():
            return self.stack.step(self.embed(inputs), new, cache)
        if cache.ids is not None and cache.ids.shape[0] != inputs.shape[0]:
            raise DataError(f"the cache is for a batch of {cache.ids.shape[0]}, the new tokens of {inputs.shape[0]}")
        placed = cache.place(new)
        features = self.encoder(self.embed(cache.remember(inputs)), placed)
        return features[:, -inputs.shape[1] :]

    def forward_intermediates(
        self,
        inputs: Tensor,
        indices: int | Sequence[int] | None = None,
        output: str = "tokens",
        norm: bool = False,
        stop_early: bool = False,
        positions: Positions | None = None,
    ) -> tuple[Tensor | None, list[Tensor]]:
        """Features after chosen blocks, as `EncoderNetwork.forward_intermediates`; grids are (B, C, 1, N)."""
        return super().forward_intermediates(_Placed(inputs, positions), indices, output, norm, stop_early)

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits (..., V) of features (..., C), or the features."""
        if pre_logits:
            return features
        return F.linear(features, self.embed.weight) if self.head is None else self.head(features)

    @torch.no_grad()
    def generate(
        self,
        ids: Tensor,
        max_new_tokens: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        stop_token: int | None = None,
        positions: AllPositions = None,
        generator: torch.Generator | None = None,
        use_cache: bool = True,
        adjust: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Continues sequences; see `modalities.sequence.generate.generate`."""
        from modalities.sequence.generate import generate

        return generate(
            self,
            ids,
            max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            stop_token=stop_token,
            positions=positions,
            generator=generator,
            use_cache=use_cache,
            adjust=adjust,
        )

    def reset_classifier(self, num_classes: int) -> None:
        """Gives the model another vocabulary: a new embedding and a new head, drawn from N(0, 0.02).

        Raises:
            ConfigError: If the number cannot be used.
        """
        check_class_count(num_classes, "a decoder", 1)
        like = self.encoder.norm.weight
        if hasattr(self, "num_classes"):  # What makes other tokens is not known.
            self.data_config = self.data_config.replace(tokenizer=None, dataset=None)
        self.num_classes = num_classes
        self.embed = nn.Embedding(num_classes, self.dim, device=like.device, dtype=like.dtype)
        nn.init.trunc_normal_(self.embed.weight, std=0.02)
        self.head: nn.Linear | None = None
        if not self.tied:
            self.head = nn.Linear(self.dim, num_classes, bias=False, device=like.device, dtype=like.dtype)
            nn.init.trunc_normal_(self.head.weight, std=0.02)
        set_classes(self, num_classes)

    def no_weight_decay(self) -> set[str]:
        """Names of parameters to leave out of weight decay, besides biases and norms."""
        return {"embed.weight"} | super().no_weight_decay()

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Parameter groups for layer-wise learning-rate decay, in timm's form; what follows the blocks is the last."""
        groups = super().group_matcher(coarse)
        return groups | {"stem": r"^embed|^encoder\.token_encoding"}

    def _embedded(self, inputs: _Placed) -> Sequences:
        coords = self._coordinates(inputs.ids, inputs.positions, start=0)
        return Sequences(self.embed(inputs.ids), coords, None, None)

    def _coordinates(self, ids: Tensor, positions: Positions | None, start: int) -> Coordinates:
        """Checks tokens, and says where they are."""
        if not isinstance(ids, Tensor) or ids.dim() != 2 or ids.dtype not in (torch.int64, torch.int32):
            what = f"{ids.dtype} {tuple(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
            raise DataError(f"token ids must be an int64 tensor (B, N), got {what}")
        if not ids.shape[1]:
            raise DataError("a sequence without tokens has no next one: start it with a token")
        if ids.device.type == "cpu" and ids.numel() and not torch.compiler.is_compiling():
            low, high = int(ids.min()), int(ids.max())
            if low < 0 or high >= self.num_classes:
                raise DataError(f"token ids must be 0..{self.num_classes - 1}, got {low}..{high}")
        weight = self.embed.weight
        shape = (ids.shape[0], ids.shape[1])
        return make_coordinates(positions, shape, self.coord_dim, start=start, device=ids.device, dtype=weight.dtype)

    def _grid(self, tokens: Tensor, layout: Any) -> Tensor:
        return tokens.transpose(1, 2).unsqueeze(2)


def trained_extent(config: Mapping[str, Any]) -> tuple[float, ...]:
    """Tokens of a training sequence along each axis of positions, for context extension.

    Of positions on several axes it is an upper bound, as for text whose ids are the same on all of them.
    """
    parsed, data = DecoderConfig.from_dict(config["model"]), SequenceDataConfig.from_dict(config["data"])
    return (float(data.length),) * parsed.coord_dim


def build(config: Mapping[str, Any]) -> Decoder:
    """Builds a decoder from a configuration (schema of config.json) with freshly drawn weights.

    Raises:
        ConfigError: If the configuration cannot be used.
    """
    parsed, labels = parse_config(config, DecoderConfig)
    data_config = SequenceDataConfig.from_dict(config.get("data", {}))
    model = Decoder(parsed, data_config)
    set_config(model, config, parsed, data_config, labels)
    return model
