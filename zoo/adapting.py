"""timm's vision transformers with a position encoding of ours: the classes that `zoo.adapt` turns a model's parts into.

A model, its blocks and its attention layers keep their children and parameters, under the same names, and become
instances of subclasses of their timm classes. So what timm knows to do with them goes on working: heads, layer-wise
decay, `forward_intermediates`, `set_input_size`. An attention layer gets one more child, `encoding`.

How positions reach the attention layers: they follow from the grid of the input at hand, so a module cannot hold them
(two threads may run it at two sizes, gradient checkpointing runs it again later, a compiler would not see them change).
They travel as an argument. timm hands one argument of the model's choice through every block to its attention:
`attn_mask` in `VisionTransformer`, `rope` in `Eva`. There goes a `Placement`, made once per forward and shared by all
layers, with what was in that argument's place inside.

Legend: B batch, N tokens, C features, H heads, D head width.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from timm.layers import Attention, AttentionRope, Format, PatchEmbed, RotaryEmbeddingCat, apply_rot_embed_cat
from timm.models.deit import VisionTransformerDistilled
from timm.models.eva import Eva, EvaAttention, EvaBlock, EvaBlockPostNorm
from timm.models.vision_transformer import Block, ParallelThingsBlock, ResPostBlock, VisionTransformer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from zoo.coordinates import grid
from zoo.encodings.base import AttentionEncoding, Frame, algebra_dtype
from zoo.errors import DataError
from zoo.kernels import attend

if TYPE_CHECKING:
    from zoo.adapt import AdaptReport

__all__ = [
    "ATTENTIONS",
    "BLOCKS",
    "MODELS",
    "Placement",
    "attach",
    "attention_layers",
    "projections",
    "take_positions",
]

# Tokens before the patches, in order.
PREFIX = ("cls_token", "dist_token", "reg_token")


@dataclass(frozen=True)
class Placement:
    """What the attention layers of one forward need to know about positions.

    Attributes:
        frame: Of the encoding, shared by all layers.
        rope: Cosines and sines of timm's own rotary encoding, where the model keeps it.
        mask: The `attn_mask` that the model was called with, where timm has no other place for it.
        recompute: Whether blocks are run again in the backward pass instead of keeping their activations.
    """

    frame: Frame
    rope: Tensor | None = None
    mask: Tensor | None = None
    recompute: bool = False

    def __getitem__(self, layer: int) -> Placement:
        """That of one layer, where timm's rotary encoding differs by layer."""
        assert self.rope is not None
        return replace(self, rope=self.rope[layer])


class _EncodedAttention(nn.Module):
    """timm's attention with an encoding between projection and kernel, run by `zoo.kernels.attend`."""

    encoding: AttentionEncoding
    num_heads: int
    scale: float

    def _run(self, x: Tensor, placement: object, mask: object, causal: bool) -> Tensor:
        """(B, N, C) -> (B, N, C).

        Raises:
            DataError: If the layer is run outside its model, which alone knows where tokens are.
        """
        if not isinstance(placement, Placement):
            raise DataError("an adapted attention layer is told by its model where tokens are: call the model")
        q, k, v = self._project(x)
        q, k = self._module("q_norm")(q), self._module("k_norm")(k)
        if placement.rope is not None:
            q, k = self._rotated(q, placement.rope), self._rotated(k, placement.rope)
        # Norms run in float32 under autocast; kernels take one dtype.
        q, k = q.to(v.dtype), k.to(v.dtype)
        if k.shape[1] != self.num_heads:  # Grouped queries.
            k, v = (t.repeat_interleave(self.num_heads // t.shape[1], dim=1) for t in (k, v))
        frame = placement.frame
        q, k, v, score = self.encoding.encode_attention(x, q, k, v, frame, self.scale)
        visible = _visible(mask, *v.shape[:3])
        out = attend(q, k, v, scale=self.scale, mask=visible, score=score, causal=causal)
        if frame.kind == "group":
            out = self.encoding.transform_output(out, frame)
        out = self._module("norm")(out.transpose(1, 2).flatten(2))
        if getattr(self, "gate", None) is not None:  # Absent in older timm.
            out = out * self._module("gate")(x).sigmoid()
        return self._module("proj_drop")(self._module("proj")(out))

    def _module(self, name: str) -> nn.Module:
        return cast(nn.Module, getattr(self, name))

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v, (B, H, N, D); of k and v there may be fewer heads."""
        fused: Any = self.qkv
        if fused is None:
            parts = tuple(self._module(f"{name}_proj")(x) for name in "qkv")
        elif getattr(self, "q_bias", None) is None:
            parts = fused(x).chunk(3, dim=-1)
        else:  # EVA: a bias on q and v, stored apart.
            bias = torch.cat([cast(Tensor, getattr(self, f"{name}_bias")) for name in "qkv"])
            parts = F.linear(x, fused.weight, bias).chunk(3, dim=-1)
        head_dim = parts[0].shape[-1] // self.num_heads
        q, k, v = (part.unflatten(-1, (-1, head_dim)).transpose(1, 2) for part in parts)
        return q, k, v

    def _rotated(self, x: Tensor, rope: Tensor) -> Tensor:
        """Rotates by timm's angles all tokens but the prefix."""
        prefix: Any = self.num_prefix_tokens
        turned = apply_rot_embed_cat(x[:, :, prefix:], rope, half=getattr(self, "rotate_half", False))
        return torch.cat([x[:, :, :prefix], turned.to(x.dtype)], dim=2)


def _visible(mask: object, batch: int, heads: int, tokens: int) -> Tensor | None:
    """A mask in timm's convention as `attend` takes it: (B or 1, H or 1, N or 1, N)."""
    if mask is None:
        return None
    if isinstance(mask, Tensor) and mask.dtype == torch.bool and 2 <= mask.dim() <= 4:
        visible = mask[(None,) * (4 - mask.dim())]
        sizes = zip(visible.shape, (batch, heads, tokens), strict=False)
        if visible.shape[3] == tokens and all(size in (1, wanted) for size, wanted in sizes):
            return visible
    what = f"{mask.dtype} {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
    raise DataError(
        "attn_mask of an adapted model must be bool (True = visible), (N, N) or (B or 1, H or 1, N or 1, N) "
        f"with B, H, N = {batch}, {heads}, {tokens}; got {what}"
    )


class EncodedAttention(_EncodedAttention, Attention):
    """`timm.layers.Attention` with an encoding."""

    def forward(self, x: Tensor, attn_mask: Any = None, is_causal: bool = False) -> Tensor:
        """(B, N, C) -> (B, N, C); `attn_mask` is a `Placement`."""
        return self._run(x, attn_mask, getattr(attn_mask, "mask", None), is_causal)


class _EncodedRopeAttention(_EncodedAttention):
    def forward(self, x: Tensor, rope: Any = None, attn_mask: Any = None, is_causal: bool = False) -> Tensor:
        """(B, N, C) -> (B, N, C); `rope` is a `Placement`."""
        return self._run(x, rope, attn_mask, is_causal)


class EncodedAttentionRope(_EncodedRopeAttention, AttentionRope):
    """`timm.layers.AttentionRope` with an encoding."""


class EncodedEvaAttention(_EncodedRopeAttention, EvaAttention):
    """`timm.models.eva.EvaAttention` with an encoding."""


class _RecomputedBlock(nn.Module):
    """A block that can be run again in the backward pass: with an `attn_mask`, timm does not do that itself."""

    def forward(self, x: Tensor, attn_mask: Any = None, *rest: Any, **options: Any) -> Tensor:
        """(B, N, C) -> (B, N, C); `attn_mask` is a `Placement`."""
        run = super().forward
        if isinstance(attn_mask, Placement) and attn_mask.recompute:
            return checkpoint(run, x, attn_mask, *rest, use_reentrant=False, **options)
        return run(x, attn_mask, *rest, **options)


class EncodedBlock(_RecomputedBlock, Block):
    """`timm.models.vision_transformer.Block` with an encoding in its attention."""


class EncodedResPostBlock(_RecomputedBlock, ResPostBlock):
    """`timm.models.vision_transformer.ResPostBlock` with an encoding in its attention."""


class EncodedParallelThingsBlock(_RecomputedBlock, ParallelThingsBlock):
    """`timm.models.vision_transformer.ParallelThingsBlock` with an encoding in each attention."""


class _EncodedModel(nn.Module):
    """What adapted models share: any grid of patches, prefix tokens without a position, encodings by name.

    Attributes:
        adapt_report: What `zoo.adapt` did.
    """

    adapt_report: AdaptReport
    num_prefix_tokens: int
    no_embed_class: bool
    grad_checkpointing: bool
    pos_embed: nn.Parameter | None

    @property
    def encodings(self) -> dict[str, AttentionEncoding]:
        """The position encodings by the names of their modules."""
        return {name: module.encoding for name, module in self.named_modules() if isinstance(module, _EncodedAttention)}

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that weight decay would harm: timm's choice and that of the encodings."""
        own = {
            f"{name}.encoding.{parameter}"
            for name, encoding in self.encodings.items()
            for parameter in encoding.no_weight_decay()
        }
        return set(cast(Any, super()).no_weight_decay()) | own

    def _frame(self, rows: int, columns: int, device: torch.device) -> Frame:
        """Frame of patches on a grid in training patches, after prefix tokens without a position."""
        blocks: Any = self.blocks
        layer = attention_layers(blocks[0])[0]
        dtype = layer.proj.weight.dtype
        coords = grid(rows, columns, device=device, dtype=dtype).with_prefix(self.num_prefix_tokens)
        if torch.is_autocast_enabled(device.type):
            dtype = torch.get_autocast_dtype(device.type)
        return layer.encoding.frame(coords, dtype)

    def _embed(self, x: Tensor) -> Tensor:
        """Adds positions to patches (B, rows, columns, C) and puts the prefix tokens before them: (B, N, C)."""
        rows, columns = x.shape[1:3]
        patches = x.flatten(1, 2)
        tokens = [getattr(self, name, None) for name in PREFIX]
        prefix = [token.expand(x.shape[0], -1, -1) for token in tokens if token is not None]
        if self.pos_embed is not None:
            count = 0 if self.no_embed_class else self.num_prefix_tokens
            table = _resized(self.pos_embed[:, count:], cast(Any, self.patch_embed).grid_size, (rows, columns))
            patches = patches + table
            if count:
                prefix = [torch.cat(prefix, dim=1) + self.pos_embed[:, :count]]
        return cast(nn.Module, self.pos_drop)(torch.cat([*prefix, patches], dim=1))

    def _fitted(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) without what no patch covers, which is none or at the edges of the model's own size."""
        embed: Any = self.patch_embed
        if not isinstance(images, Tensor) or images.dim() != 4:
            what = tuple(images.shape) if isinstance(images, Tensor) else type(images).__name__
            raise DataError(f"a picture batch must be a tensor (batch, channels, height, width), got {what}")
        height, width = images.shape[-2:]
        pitch = embed.feat_ratio(as_scalar=False)
        if embed.dynamic_img_pad or (height and width and not height % pitch[0] and not width % pitch[1]):
            return images
        if isinstance(embed, PatchEmbed) and (height, width) == embed.img_size:  # Such as 384 in patches of 14.
            rows, columns = cast(tuple[int, int], embed.grid_size)
            return images[..., : rows * pitch[0], : columns * pitch[1]]
        raise DataError(
            f"height must be a multiple of {pitch[0]} and width of {pitch[1]} (the patch size), "
            f"got {height} x {width}: resize or pad"
        )


class _EncodedViT(_EncodedModel):
    def _pos_embed(self, x: Tensor) -> Tensor:
        return self._embed(x)

    def _place(self, images: Tensor, mask: Tensor | None) -> Placement:
        rows, columns = cast(Any, self.patch_embed).dynamic_feat_size(images.shape[-2:])
        frame = self._frame(rows, columns, images.device)
        return Placement(frame, mask=mask, recompute=self.grad_checkpointing)

    def forward_features(self, x: Tensor, attn_mask: Any = None, *rest: Any, **options: Any) -> Tensor:
        """Images (B, C, H, W) -> tokens (B, N, C) after the last norm; any H and W that are multiples of the patch."""
        x = self._fitted(x)
        return cast(Any, super()).forward_features(x, self._place(x, attn_mask), *rest, **options)

    def forward_intermediates(self, x: Tensor, *args: Any, attn_mask: Any = None, **options: Any) -> Any:
        """See timm's `forward_intermediates`."""
        x = self._fitted(x)
        return cast(Any, super()).forward_intermediates(x, *args, attn_mask=self._place(x, attn_mask), **options)


class EncodedVisionTransformer(_EncodedViT, VisionTransformer):
    """`timm.models.vision_transformer.VisionTransformer` with an encoding in every attention."""


class EncodedVisionTransformerDistilled(_EncodedViT, VisionTransformerDistilled):
    """`timm.models.deit.VisionTransformerDistilled` with an encoding in every attention."""


class EncodedEva(_EncodedModel, Eva):
    """`timm.models.eva.Eva` (EVA, EVA-02, DINOv3, RoPE-ViT) with an encoding in every attention."""

    def _pos_embed(self, x: Tensor) -> Any:
        rows, columns = x.shape[1:3]
        rope: Any = self.rope
        turn = None if rope is None else rope.get_embed(shape=(rows, columns))
        return self._embed(x), Placement(self._frame(rows, columns, x.device), rope=turn)

    def forward_features(self, x: Tensor, *args: Any, **options: Any) -> Tensor:
        """Images (B, C, H, W) -> tokens (B, N, C) after the last norm; any H and W that are multiples of the patch."""
        return super().forward_features(self._fitted(x), *args, **options)

    def forward_intermediates(self, x: Tensor, *args: Any, **options: Any) -> Any:
        """See timm's `forward_intermediates`."""
        return super().forward_intermediates(self._fitted(x), *args, **options)


# timm's classes and ours. Subclasses of timm's are not taken: their own forward would be lost or find a `Placement`.
MODELS: dict[type, type] = {
    VisionTransformer: EncodedVisionTransformer,
    VisionTransformerDistilled: EncodedVisionTransformerDistilled,
    Eva: EncodedEva,
}
BLOCKS: dict[type, type] = {
    Block: EncodedBlock,
    ResPostBlock: EncodedResPostBlock,
    ParallelThingsBlock: EncodedParallelThingsBlock,
    EvaBlock: EvaBlock,
    EvaBlockPostNorm: EvaBlockPostNorm,
}
ATTENTIONS: dict[type, type] = {
    Attention: EncodedAttention,
    AttentionRope: EncodedAttentionRope,
    EvaAttention: EncodedEvaAttention,
}


def attention_layers(block: Any) -> list[Any]:
    """The attention layers of a block."""
    return [branch.attn for branch in block.attns] if hasattr(block, "attns") else [block.attn]


def projections(attention: Any) -> list[Any]:
    """The linear layers of an attention layer: q, k and v (or all in one), and out."""
    names = ("q_proj", "k_proj", "v_proj", "proj") if attention.qkv is None else ("qkv", "proj")
    return [getattr(attention, name) for name in names]


def attach(model: Any, encodings: Sequence[Sequence[AttentionEncoding]]) -> None:
    """Turns a model of timm into ours, in place, with initial parameters for the encodings.

    Args:
        model: Of a class in `MODELS`.
        encodings: For each attention layer of each block.
    """
    for index, (block, row) in enumerate(zip(model.blocks, encodings, strict=True)):
        for layer, encoding in zip(attention_layers(block), row, strict=True):
            encoding.place(index, len(encodings))
            encoding.reset_parameters()
            weight = layer.proj.weight
            layer.encoding = encoding.to(device=weight.device, dtype=weight.dtype).train(layer.training)
            layer.__class__ = ATTENTIONS[type(layer)]
        block.__class__ = BLOCKS[type(block)]
    model.__class__ = MODELS[type(model)]
    model.dynamic_img_size = True
    # Patches come as a grid, of any size.
    embed = model.patch_embed
    embed.strict_img_size, embed.flatten, embed.output_fmt = False, False, Format.NHWC
    rope = getattr(model, "rope", None)
    if isinstance(rope, RotaryEmbeddingCat) and rope.feat_shape is not None:
        # Made for one grid, it keeps the angles of that grid and ignores others.
        names = [name for name in inspect.signature(type(rope).__init__).parameters if hasattr(rope, name)]
        settings = {name: getattr(rope, name) for name in names} | {"feat_shape": None}
        model.rope = type(rope)(**settings).to(next(model.parameters()).device).train(rope.training)


def take_positions(model: Any) -> None:
    """Takes table and rotary encoding out of an adapted model; prefix tokens keep what the table gave to them."""
    table = model.pos_embed
    if table is not None and not model.no_embed_class:
        start = 0
        with torch.no_grad():
            for name in PREFIX:
                token = getattr(model, name, None)
                if token is not None:
                    token.add_(table[:, start : start + token.shape[1]])
                    start += token.shape[1]
    model.pos_embed = None
    if getattr(model, "rope", None) is not None:
        model.rope, model.rope_mixed = None, False


def _resized(table: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """A table of positions (1, rows * columns, C) for another grid: bicubic with antialiasing, as timm does it."""
    if tuple(old) == tuple(new):
        return table
    cells = table.unflatten(1, tuple(old)).permute(0, 3, 1, 2)
    # In plain memory order: PyTorch resizes channels-last tensors of one column wrongly with antialiasing.
    cells = cells.to(algebra_dtype(table.dtype), memory_format=torch.contiguous_format)
    cells = F.interpolate(cells, size=new, mode="bicubic", antialias=True)
    return cells.flatten(2).transpose(1, 2).to(table.dtype)
