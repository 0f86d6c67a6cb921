"""The coordinate-aware attention block's first half: qkv, encoding on them, kernel, output projection."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.coordinates import Coordinates
from zoo.encodings import create
from zoo.encodings.base import Frame, LastRows, Score
from zoo.encodings.terms import FoldableScore, Product
from zoo.errors import ConfigError, DataError
from zoo.kernels import attend, attention_weights

__all__ = ["CoordinateAttention", "KeyValues"]


class KeyValues:
    """Keys and values of the tokens that a layer has seen, as they were before their positions were encoded.

    Attributes:
        keys: (B, H, T, D); `None` before the first token.
        values: Like `keys`.
    """

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    @property
    def length(self) -> int:
        """Tokens T."""
        return 0 if self.keys is None else self.keys.shape[2]

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Adds those of new tokens (B, H, n, D); returns those of all.

        Raises:
            DataError: If they are of another number of samples.
        """
        if self.keys is not None and self.values is not None:
            if self.keys.shape[0] != keys.shape[0]:
                raise DataError(f"the cache is for a batch of {self.keys.shape[0]}, the new tokens of {keys.shape[0]}")
            keys, values = torch.cat([self.keys, keys], dim=2), torch.cat([self.values, values], dim=2)
        self.keys, self.values = keys, values
        return keys, values


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
        proj_bias: Whether the output projection has a bias.
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
        proj_bias: bool = True,
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
        self.proj = nn.Linear(num_heads * head_dim, dim, bias=proj_bias)

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
        q, k, v = self._project(x)
        q, k, v, score = self.encoding.encode_attention(x, q, k, v, frame, self.scale)
        if self.causal and not packed:
            score = _unfolded(score, q)
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

    def step(self, x: Tensor, coords: Coordinates, past: KeyValues, *, frame: Frame | None = None) -> Tensor:
        """Attends from new tokens to themselves and those before, as `forward` of all tokens does; causal layers only.

        What is kept of a token is content, its key and value. Positions are encoded anew in the frame of all tokens,
        since what they add to keys depends on where the newest one is. Inside an `Encoder` alone: a token encoding was
        added before.

        Args:
            x: (B, n, C) the new tokens.
            coords: Coordinates of the T tokens before and of the new ones, in this order.
            past: Of the T tokens before; keys and values of the new ones are added to it.
            frame: What `frame` returned for these coordinates; made here when absent.

        Returns:
            (B, n, C).

        Raises:
            ConfigError: If the layer is not causal.
            DataError: If shapes do not fit.
        """
        if not self.causal:
            raise ConfigError("a layer that is not causal cannot go on step by step: what it computed would change")
        if coords.packed or coords.axes != self.coord_dim or coords.values.shape[1] != past.length + x.shape[1]:
            raise DataError(
                f"coordinates must give {self.coord_dim} numbers for each of {past.length} tokens before and "
                f"{x.shape[1]} new ones, got {tuple(coords.values.shape)}"
            )
        if frame is None:
            frame = self.frame(x, coords)
        q, k, v = self._project(x)
        before, new = past.length, x.shape[1]
        k, v = past.append(k, v)
        options: dict[str, Any] = {"scale": self.scale}
        if not before:
            q, k, v, score = self.encoding.encode_attention(x, q, k, v, frame, self.scale)
            options |= {"score": _unfolded(score, q), "causal": True}
        else:
            q, k, v, options["score"] = self.encoding.encode_last(x, q, k, v, frame, self.scale)
            if new > 1:
                seen = torch.ones(new, before + new, dtype=torch.bool, device=x.device).tril(before)
                options["mask"] = seen[None, None]
        out = attend(q, k, v, **options)
        if frame.kind == "group":
            out = self.encoding.transform_output(F.pad(out, (0, 0, before, 0)), frame)[:, :, before:]
        return self.proj(out.transpose(1, 2).flatten(2))

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v (B, H, N, D) before anything is encoded."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4)
        return q, k, v

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


def _unfolded(score: Score | Product | None, q: Tensor) -> Score | Product | None:
    """A score of causal attention in float32 that is evaluated from exact differences, as steps evaluate it.

    Columns of a line of 250 tokens, folded in float32, would put logits off by more than 1e-4, and by other amounts
    about another centre.
    """
    if isinstance(score, FoldableScore) and not isinstance(score, Product) and q.dtype == torch.float32:
        return LastRows(cast(Score, score), 0, q.shape[2])
    return score
