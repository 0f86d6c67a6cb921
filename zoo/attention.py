"""The coordinate-aware attention block's first half: qkv, encoding on them, kernel, output projection."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from zoo.coordinates import Coordinates
from zoo.encodings import create
from zoo.encodings.base import Frame
from zoo.errors import ConfigError, DataError
from zoo.kernels import attend, attention_weights

__all__ = ["CoordinateAttention"]


class CoordinateAttention(nn.Module):
    """Multi-head self-attention over tokens with coordinates, parameterised by its position encoding.

    Legend: B batch, N tokens, C = dim features, H heads, D head width, p = coord_dim axes.

    Args:
        dim: Feature width C.
        num_heads: Heads H.
        coord_dim: Coordinate axes p.
        encoding: A name of `zoo.encodings()`, or `"token+other"`. A token encoding is added to the input here; inside
            an `Encoder` the encoder adds it once.
        head_dim: Head width D; `None` means C / H.
        qkv_bias: Whether the projection to q, k and v has a bias.
        causal: Whether token i sees tokens 0..i only.
        **encoding_options: Options of the encoding.

    Raises:
        ConfigError: On sizes that do not fit, an unknown encoding or a bad option.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        coord_dim: int,
        encoding: str = "pape",
        head_dim: int | None = None,
        qkv_bias: bool = True,
        causal: bool = False,
        **encoding_options: Any,
    ) -> None:
        super().__init__()
        sizes = {
            "dim": dim,
            "num_heads": num_heads,
            "coord_dim": coord_dim,
            "head_dim": 1 if head_dim is None else head_dim,
        }
        for name, size in sizes.items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ConfigError(f"{name} must be a positive whole number, got {size!r:.80}")
        if head_dim is None:
            if dim % num_heads:
                raise ConfigError(f"dim {dim} is not a multiple of num_heads {num_heads}: give head_dim")
            head_dim = dim // num_heads
        self.dim, self.num_heads, self.head_dim, self.coord_dim = dim, num_heads, head_dim, coord_dim
        self.causal = causal
        self.scale = head_dim**-0.5
        self.qkv = nn.Linear(dim, 3 * num_heads * head_dim, bias=qkv_bias)
        self.token_encoding, self.encoding = create(
            encoding,
            dim=dim,
            num_heads=num_heads,
            head_dim=head_dim,
            coord_dim=coord_dim,
            options=encoding_options,
        )
        self.proj = nn.Linear(num_heads * head_dim, dim)

    def forward(
        self,
        x: Tensor,
        coords: Coordinates,
        mask: Tensor | None = None,
        *,
        frame: Frame | None = None,
        return_attention: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attends.

        Args:
            x: (B, N, C), or packed (N_total, C) with `coords.cu_seqlens`.
            coords: Coordinates of the tokens; a batch of one is shared.
            mask: Bool (B, N), True for real tokens; hidden ones neither give nor get anything.
            frame: What `frame` returned for these coordinates; made here when absent.
            return_attention: Also return the attention matrix (B, H, N, N); not for packed input.

        Returns:
            Tensor like `x`, and the attention matrix if asked for.

        Raises:
            DataError: If shapes do not fit.
        """
        self._check(x, coords, mask)
        packed = x.dim() == 2
        if packed:
            x = x.unsqueeze(0)
        coords = coords.to(device=x.device)
        if mask is not None:
            coords = coords.hide(~mask)
            x = x.masked_fill(~mask.unsqueeze(-1), 0.0)
        if self.token_encoding is not None:
            x = x + self.token_encoding.encode(coords).to(x.dtype)
        if frame is None:
            frame = self.frame(x, coords)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4)
        q, k, v, score = self.encoding.encode_attention(x, q, k, v, frame, self.scale)
        options = {"scale": self.scale, "mask": mask, "score": score, "causal": self.causal}
        out = attend(q, k, v, cu_seqlens=coords.cu_seqlens, **options)
        if frame.kind == "group":
            out = self.encoding.transform_output(out, frame)
        out = self.proj(out.transpose(1, 2).flatten(2))
        if mask is not None:
            out = out.masked_fill(~mask.unsqueeze(-1), 0.0)
        if return_attention:
            if packed:
                raise DataError("return_attention is not for packed input: give one sample at a time")
            return out, attention_weights(q, k, **options)
        return out.squeeze(0) if packed else out

    def frame(self, x: Tensor, coords: Coordinates) -> Frame:
        """The part of the encoding that follows from coordinates alone, to be shared by layers of the same encoding."""
        dtype = self.qkv.weight.dtype
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
        return self.encoding.frame(coords.to(device=x.device), dtype)

    def position_bias(self, x: Tensor, coords: Coordinates, rows: slice | None = None) -> Tensor | None:
        """The additive position term of the logits, as the softmax sees it (scale included).

        Args:
            x: (B, N, C) the input of the block (after its LayerNorm).
            coords: Coordinates of the tokens.
            rows: Queries to evaluate; `None` means all N.

        Returns:
            (B, H, rows, N) float32 or wider, or `None` for encodings without such a term (none, rotary, group and token
            ones).
        """
        score = self.encoding.score(x, self.frame(x, coords), self.scale)
        if score is None:
            return None
        return score.bias(rows or slice(0, x.shape[1])).expand(x.shape[0], self.num_heads, -1, -1)

    def _check(self, x: Tensor, coords: Coordinates, mask: Tensor | None) -> None:
        if not isinstance(x, Tensor) or not isinstance(coords, Coordinates) or not isinstance(mask, Tensor | None):
            kinds = ", ".join(type(value).__name__ for value in (x, coords, mask))
            raise DataError(f"attention takes a tensor, Coordinates and a mask tensor or None, got {kinds}")
        dims = 2 if coords.packed else 3
        if x.dim() != dims or x.shape[-1] != self.dim:
            shape = f"(N_total, {self.dim})" if coords.packed else f"(B, N, {self.dim})"
            raise DataError(f"features must have shape {shape}, got {tuple(x.shape)}")
        if coords.axes != self.coord_dim or coords.values.shape[-2] != x.shape[-2]:
            raise DataError(
                f"coordinates must give {self.coord_dim} numbers for each of {x.shape[-2]} tokens, "
                f"got {tuple(coords.values.shape)}"
            )
        if not coords.packed and coords.values.shape[0] not in (1, x.shape[0]):
            raise DataError(f"coordinates are for a batch of {coords.values.shape[0]}, features of {x.shape[0]}")
        if coords.poses is not None and not coords.packed and coords.poses.shape[0] not in (1, x.shape[0]):
            raise DataError(f"poses are for a batch of {coords.poses.shape[0]}, features of {x.shape[0]}")
        if mask is not None and (coords.packed or mask.dtype != torch.bool or mask.shape != x.shape[:2]):
            raise DataError(f"mask must be bool {tuple(x.shape[:2])} with True for real tokens (none when packed)")
