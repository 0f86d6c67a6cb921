"""What the networks on images share: patches into an encoder, features after chosen blocks, parameter groups."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from modalities.image.embed import PatchEmbed
from zoo.coordinates import Coordinates
from zoo.data_config import DataConfig
from zoo.errors import ConfigError
from zoo.transformer import Encoder

if TYPE_CHECKING:
    from zoo.loading import LoadReport

__all__ = ["ImageEncoder"]


class ImageEncoder(nn.Module, ABC):
    """Base of networks that have a `PatchEmbed` as `embed` and an `Encoder` as `encoder`.

    Attributes:
        config: The complete configuration (schema of config.json), set by `build`.
        data_config: Preprocessing that belongs to the weights.
        load_report: What `zoo.load` did.
    """

    PREFIX: ClassVar[int] = 0
    """Tokens before those of the patches."""

    embed: PatchEmbed
    encoder: Encoder
    config: dict[str, Any]
    data_config: DataConfig
    load_report: LoadReport | None = None

    @property
    def in_chans(self) -> int:
        """Channels of the input pictures."""
        return self.embed.in_chans

    @abstractmethod
    def _tokens(self, images: Tensor) -> tuple[Tensor, Coordinates]:
        """Tokens of pictures, and where they are."""

    @abstractmethod
    def _features(self, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
        """What `forward_features` gives, of the tokens after the last LayerNorm."""

    def forward_features(self, images: Tensor) -> Tensor:
        """Features after the last LayerNorm."""
        tokens, coords = self._tokens(images)
        return self._features(self.encoder(tokens, coords), self.embed.grid_size(*images.shape[-2:]))

    def forward_intermediates(
        self,
        images: Tensor,
        indices: int | Sequence[int] | None = None,
        output: str = "tokens",
        norm: bool = False,
        stop_early: bool = False,
    ) -> tuple[Tensor | None, list[Tensor]]:
        """Features after chosen blocks.

        Args:
            images: (B, in_chans, H, W).
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
        wanted = _block_indices(indices, depth)
        tokens, coords = self._tokens(images)
        grid = self.embed.grid_size(*images.shape[-2:])
        kept: dict[int, Tensor] = {}
        final: Tensor | None = None
        for index, x in enumerate(self.encoder.layers(tokens, coords)):
            if index in wanted:
                features = self.encoder.norm(x) if norm else x
                kept[index] = self.as_grid(features, grid) if output == "grid" else features
            if index == depth - 1:
                final = self._features(self.encoder.norm(x), grid)
            elif stop_early and index >= max(wanted):
                break
        return final, [kept[index] for index in wanted]

    def as_grid(self, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
        """Patches of (B, N, C) tokens as (B, C, rows, columns)."""
        return tokens[:, self.PREFIX :].transpose(1, 2).unflatten(2, grid)

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


def _block_indices(indices: int | Sequence[int] | None, depth: int) -> list[int]:
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
