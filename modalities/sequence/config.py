"""What builds a decoder: the `"model"` part of config.json, checked field by field. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zoo.errors import ConfigError
from zoo.network_config import EncodedConfig, check_class_count

__all__ = ["DecoderConfig"]


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(EncodedConfig):
    """Sizes and encoding of a decoder.

    Attributes:
        num_classes: Size V of the vocabulary.
        in_chans: 1: a token is one number.
        dim: Feature width C.
        depth: Number of blocks.
        num_heads: Attention heads.
        head_dim: Width of a head.
        mlp_dim: Hidden width of the MLP.
        coord_dim: Axes p of positions: 1 for the order of tokens, 2 for (row, column) of text, 3 for mixed content.
        tie_embeddings: Whether the head has the weights of the embedding, as in GPT-2.
    """

    LIMITS: ClassVar[dict[str, int]] = {
        "dim": 16384,
        "depth": 256,
        "num_heads": 256,
        "head_dim": 1024,
        "mlp_dim": 65536,
        "coord_dim": 3,
        **EncodedConfig.LIMITS,
        "in_chans": 1,
    }

    in_chans: int = 1
    dim: int
    depth: int
    num_heads: int
    head_dim: int
    mlp_dim: int
    coord_dim: int = 1
    tie_embeddings: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_class_count(self.num_classes, "a decoder", 1)
        if not isinstance(self.tie_embeddings, bool):
            raise ConfigError(f"model config: tie_embeddings must be true or false, got {self.tie_embeddings!r:.80}")
