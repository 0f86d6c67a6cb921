"""The transformer every backbone shares: pre-norm blocks of coordinate-aware attention and an MLP.

One forward: tokenizer -> (features, Coordinates) -> Encoder makes the frame -> each Block: qkv, encoding on q and k
with the frame, attend(), out -> head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from zoo.attention import CoordinateAttention, KeyValues
from zoo.coordinates import Coordinates
from zoo.encodings import check_option_names, create, split_name, split_options
from zoo.encodings.base import Frame
from zoo.encodings.extendable import extend
from zoo.encodings.extension import Extension

__all__ = ["Block", "Encoder", "Mlp"]

# LayerNorm epsilon of the released networks (timm's transformers use 1e-6).
NORM_EPS = 1e-5


class Mlp(nn.Module):
    """Two linear layers with an exact (erf) GELU between.

    Args:
        dim: Feature width.
        hidden: Width between the layers.
        bias: Whether the layers have a bias.
    """

    def __init__(self, dim: int, hidden: int, bias: bool = True) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden, bias=bias)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., dim) -> (..., dim)."""
        return self.fc2(self.act(self.fc1(x)))


def _drop_path(rate: float) -> nn.Module:
    if rate == 0:
        return nn.Identity()
    from timm.layers import DropPath  # Here, since timm takes seconds to import and inference has no drop path.

    return DropPath(rate)


class Block(nn.Module):
    """Pre-norm block: x + attention(norm(x)), then x + mlp(norm(x)).

    Args:
        dim: Feature width C.
        num_heads: Heads.
        coord_dim: Coordinate axes p.
        mlp_dim: Hidden width of the MLP; `None` means 4 C.
        encoding: See `CoordinateAttention`.
        head_dim: See `CoordinateAttention`.
        causal: See `CoordinateAttention`.
        drop_path: Probability of dropping a branch of a sample in training (stochastic depth).
        encoding_options: Options of the encoding.
        norm: Makes the two norms, called with the width and `eps`.
        bias: Whether the linear layers have a bias.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        coord_dim: int,
        *,
        mlp_dim: int | None = None,
        encoding: str = "pape",
        head_dim: int | None = None,
        causal: bool = False,
        drop_path: float = 0.0,
        encoding_options: dict[str, Any] | None = None,
        norm: Callable[..., nn.Module] = nn.LayerNorm,
        bias: bool = True,
    ) -> None:
        super().__init__()
        check_option_names(encoding, encoding_options)  # Others would be taken for arguments of the layer.
        self.norm1 = norm(dim, eps=NORM_EPS)
        self.attn = CoordinateAttention(
            dim,
            num_heads,
            coord_dim,
            encoding,
            head_dim=head_dim,
            qkv_bias=bias,
            causal=causal,
            proj_bias=bias,
            **(encoding_options or {}),
        )
        self.drop_path1 = _drop_path(drop_path)
        self.norm2 = norm(dim, eps=NORM_EPS)
        self.mlp = Mlp(dim, mlp_dim or 4 * dim, bias)
        self.drop_path2 = _drop_path(drop_path)

    def forward(
        self, x: Tensor, coords: Coordinates, mask: Tensor | None = None, *, frame: Frame | None = None
    ) -> Tensor:
        """Runs the block; arguments as in `CoordinateAttention.forward`."""
        x = x + self.drop_path1(self.attn(self.norm1(x), coords, mask, frame=frame))
        return x + self.drop_path2(self.mlp(self.norm2(x)))

    def step(self, x: Tensor, coords: Coordinates, past: KeyValues, *, frame: Frame | None = None) -> Tensor:
        """Runs the block on new tokens; arguments as in `CoordinateAttention.step`."""
        x = x + self.drop_path1(self.attn.step(self.norm1(x), coords, past, frame=frame))
        return x + self.drop_path2(self.mlp(self.norm2(x)))


class Encoder(nn.Module):
    """A stack of blocks between two LayerNorms, as in the released PaPE networks.

    Args:
        dim: Feature width C.
        depth: Number of blocks.
        num_heads: Heads.
        coord_dim: Coordinate axes p.
        mlp_dim: See `Block`.
        encoding: See `CoordinateAttention`; a token encoding is added once, before the first LayerNorm.
        head_dim: See `CoordinateAttention`.
        causal: See `CoordinateAttention`.
        drop_path: See `Block`; the same in every block.
        encoding_options: Options of the encoding.
    """

    def __init__(
        self,
        dim: int,
        depth: int,
        num_heads: int,
        coord_dim: int,
        *,
        mlp_dim: int | None = None,
        encoding: str = "pape",
        head_dim: int | None = None,
        causal: bool = False,
        drop_path: float = 0.0,
        encoding_options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        token, attention = split_name(encoding)
        token_options, options = split_options(encoding, encoding_options)
        shape = {"dim": dim, "num_heads": num_heads, "head_dim": head_dim or dim // num_heads, "coord_dim": coord_dim}
        self.token_encoding = None if token is None else create(token, options=token_options, **shape)[0]
        self.norm_pre: nn.Module = nn.LayerNorm(dim, eps=NORM_EPS)
        self.blocks = nn.ModuleList(
            Block(
                dim,
                num_heads,
                coord_dim,
                mlp_dim=mlp_dim,
                encoding=attention,
                head_dim=head_dim,
                causal=causal,
                drop_path=drop_path,
                encoding_options=options,
            )
            for _ in range(depth)
        )
        self.norm: nn.LayerNorm | nn.RMSNorm = nn.LayerNorm(dim, eps=NORM_EPS)
        self.grad_checkpointing = False
        self._initialise()

    def _initialise(self) -> None:
        """Draws the weights, and tells encodings in which block they are."""
        self.apply(_init_linear)
        for layer, block in enumerate(self.blocks):
            for _, attention in _attention_layers(block):
                attention.encoding.place(layer, len(self.blocks))
                attention.encoding.reset_parameters()

    def forward(self, x: Tensor, coords: Coordinates, mask: Tensor | None = None) -> Tensor:
        """Encodes tokens.

        Args:
            x: (B, N, C), or packed (N_total, C) with `coords.cu_seqlens`.
            coords: Coordinates of the tokens.
            mask: Bool (B, N), True for real tokens.

        Returns:
            Tensor like `x`, after the last LayerNorm.
        """
        x, coords, frame = self._start(x, coords, mask)
        for block in self.blocks:
            x = self._run(block, x, coords, mask, frame)
        return self.norm(x)

    def layers(self, x: Tensor, coords: Coordinates, mask: Tensor | None = None) -> Iterator[Tensor]:
        """Yields the features after every block, before the last LayerNorm; arguments as in `forward`."""
        x, coords, frame = self._start(x, coords, mask)
        for block in self.blocks:
            x = self._run(block, x, coords, mask, frame)
            yield x

    def _start(self, x: Tensor, coords: Coordinates, mask: Tensor | None) -> tuple[Tensor, Coordinates, Frame | None]:
        """What the first block takes: tokens, coordinates without those of padding, and the frame blocks share."""
        x, coords = self._prepare(x, coords, mask)
        frame = cast(Block, self.blocks[0]).attn.frame(x, coords) if len(self.blocks) else None
        return x, coords, frame

    def _prepare(self, x: Tensor, coords: Coordinates, mask: Tensor | None) -> tuple[Tensor, Coordinates]:
        """Hides padding, adds the token encoding, and normalises."""
        coords = coords.to(device=x.device)
        if mask is not None:  # Padding may hold anything, NaN included.
            coords = coords.hide(~mask)
            x = x.masked_fill(~mask.unsqueeze(-1), 0.0)
        if self.token_encoding is not None:
            x = x + self.token_encoding.encode(coords).to(x.dtype).reshape(-1, *x.shape[-2:])
        return self.norm_pre(x), coords

    def norm_after(self, index: int) -> nn.Module:
        """The LayerNorm that the features after a block pass before they leave the encoder."""
        return self.norm

    def _run(
        self, block: nn.Module, x: Tensor, coords: Coordinates, mask: Tensor | None, frame: Frame | None
    ) -> Tensor:
        if self.grad_checkpointing and self.training:
            return checkpoint(block, x, coords, mask, frame=frame, use_reentrant=False)
        return block(x, coords, mask, frame=frame)

    def extend(self, extension: Extension | None) -> None:
        """Runs the encodings of all blocks, and the token encoding, with an extension to larger inputs from now on.

        It holds no parameters and is not in the state dict. The option `"extend"` of an encoding does the same.

        Args:
            extension: One of `zoo.encodings.extension`, such as `YaRN(factor=2, extent=14)`; `None` takes it away.

        Raises:
            ConfigError: If it does not apply to these encodings; nothing is set then.
        """
        extend(self, extension)

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that weight decay would harm (those of encodings)."""
        token = set() if self.token_encoding is None else self.token_encoding.no_weight_decay()
        return {f"token_encoding.{name}" for name in token} | {
            f"blocks.{path}.encoding.{name}"
            for path, attention in _attention_layers(self.blocks)
            for name in attention.encoding.no_weight_decay()
        }


def _attention_layers(module: nn.Module) -> Iterator[tuple[str, CoordinateAttention]]:
    """Attention layers in a module and where they are, in the order of registration."""
    for path, part in module.named_modules():
        if isinstance(part, CoordinateAttention):
            yield path, part


def _init_linear(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
