"""The stack of causal blocks of a decoder.

Legend: B batch, N tokens, C width of the features.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from modalities.sequence.cache import DecoderCache
from modalities.sequence.config import DecoderConfig
from zoo.attention import KeyValues
from zoo.coordinates import Coordinates
from zoo.encodings import split_name, split_options
from zoo.encodings.extendable import any_by_sample
from zoo.errors import DataError
from zoo.transformer import NORM_EPS, Block, Encoder

__all__ = ["DecoderStack"]


class DecoderStack(Encoder):
    """Causal blocks with RMSNorm (arXiv 1910.07467) before attention, before the MLP and at the end; no biases.

    The layers that write to the residual stream start 1 / sqrt(2 depth) times as large as the others, so that its size
    does not grow with depth (GPT-2, section 2.3).

    Args:
        config: Sizes and encoding.
    """

    def __init__(self, config: DecoderConfig) -> None:
        options = dict(config.encoding_options)
        super().__init__(
            config.dim,
            0,
            config.num_heads,
            config.coord_dim,
            encoding=config.encoding,
            head_dim=config.head_dim,
            encoding_options=options,
        )
        self.norm_pre = nn.Identity()
        self.norm = nn.RMSNorm(config.dim, eps=NORM_EPS)
        self.blocks = nn.ModuleList(
            Block(
                config.dim,
                config.num_heads,
                config.coord_dim,
                mlp_dim=config.mlp_dim,
                encoding=split_name(config.encoding)[1],
                head_dim=config.head_dim,
                causal=True,
                drop_path=config.drop_path,
                encoding_options=split_options(config.encoding, options)[1],
                norm=nn.RMSNorm,
                bias=False,
            )
            for _ in range(config.depth)
        )
        self._initialise()
        with torch.no_grad():
            for block in self._own_blocks():
                for layer in (block.attn.proj, block.mlp.fc2):
                    layer.weight.mul_((2 * config.depth) ** -0.5)

    def _own_blocks(self) -> list[Block]:
        return [cast(Block, block) for block in self.blocks]

    def keeps(self) -> bool:
        """Whether what was computed for tokens stays right when others follow; see `DecoderCache`."""
        return not any_by_sample(self)

    def step(self, x: Tensor, coords: Coordinates, cache: DecoderCache) -> Tensor:
        """Features of new tokens that follow those of a cache, which they are added to.

        Args:
            x: (B, n, C) the new tokens.
            coords: Their coordinates alone.
            cache: Of the tokens before.

        Returns:
            (B, n, C), after the last norm: what `forward` of all tokens gives at the new ones.

        Raises:
            DataError: If they do not fit the cache; it is as it was then.
        """
        blocks = self._own_blocks()
        layers = cache.layers or [KeyValues() for _ in blocks]
        kept = layers[0].keys if layers else None
        if len(layers) != len(blocks) or (kept is not None and kept.shape[0] != x.shape[0]):
            raise DataError(
                f"a cache of {len(layers)} blocks and a batch of {0 if kept is None else kept.shape[0]} is not for "
                f"{len(blocks)} blocks and a batch of {x.shape[0]}: make a new DecoderCache() for every batch"
            )
        if self.token_encoding is not None:
            x = x + self.token_encoding.encode(coords).to(x.dtype)
        cache.layers, placed = layers, cache.place(coords)
        frame = blocks[0].attn.frame(x, placed) if blocks else None
        for block, past in zip(blocks, layers, strict=True):
            x = block.step(x, placed, past, frame=frame)
        return self.norm(x)
