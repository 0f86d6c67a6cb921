"""`adapt`: puts a position encoding of ours into a vision transformer of timm.

At first without changing what it computes, where the encoding can start so.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from zoo._callable_module import make_callable
from zoo.attention import CoordinateAttention
from zoo.encodings import create, split_name
from zoo.encodings.base import AttentionEncoding
from zoo.encodings.gated import gated
from zoo.errors import ConfigError

__all__ = ["AdaptReport", "adapt"]

_SUPPORTED = "VisionTransformer, VisionTransformerDistilled and Eva of timm (vit_*, deit*, *dinov2*, *dinov3*, eva*)"
# Their tables have one entry for each offset between patches: the extent of the model's own grid, unless it is given.
_TABLES = ("table", "cpb")


@dataclass(frozen=True)
class AdaptReport:
    """What `adapt` did.

    Attributes:
        model: Class of the timm model.
        encoding: Name of the encoding.
        layers: Attention layers that have it.
        parameters: Parameters added.
        exact: Whether outputs are the same at the start.
        kept: Position encodings of the model that still act.
        replaced: Position encodings of the model that were taken out.
        difference: Largest absolute difference of the outputs (logits) before and after, on one picture of noise of the
            model's own size; `None` for models without data (on the meta device).
        changes: One line about outputs.
    """

    model: str
    encoding: str
    layers: int
    parameters: int
    exact: bool
    kept: tuple[str, ...]
    replaced: tuple[str, ...]
    difference: float | None
    changes: str

    def __str__(self) -> str:
        parts = [
            f"{self.encoding} in {self.layers} attention layers of {self.model}, {self.parameters:,} parameters added"
        ]
        parts += [f"kept {', '.join(self.kept)}"] if self.kept else []
        parts += [f"took out {', '.join(self.replaced)}"] if self.replaced else []
        return "; ".join([*parts, self.changes])


def adapt(
    model: nn.Module, encoding: str = "pape", exact: bool = True, *, keep_positions: bool = True, **options: Any
) -> Any:
    """Puts a position encoding into every attention layer of a timm vision transformer.

    The result is a copy of the model, of a subclass of its class, that takes pictures of any height and width that are
    multiples of the patch (and of the model's own size in any case). Learned tables are resized to the grid at hand
    (bicubic with antialiasing, prefix tokens apart), timm's rotary encodings follow the grid as timm has them do.
    Patches have coordinates (column, row) in patches; class, distillation and register tokens have no position. Old
    parameters keep their names and values, so that the state dict is the old one with more keys, all below
    `blocks.N.attn.encoding.` (with parallel attention `blocks.N.attns.M.attn.encoding.`). To load it, adapt a fresh
    model in the same way.

        model = zoo.adapt(timm.create_model("vit_small_patch14_reg4_dinov2", pretrained=True), "pape")
        print(model.adapt_report)

    With `exact` the outputs are unchanged at the start: additive encodings (`pape`, `pape-ri`, `alibi`, `kerple`,
    `cpb`) get a learned gate per head that starts at 0, rotary ones (`rope`, `rope-mixed`, `string`, ...) a gate per
    layer on their angles, `table` is zero by itself, and `none` only frees the size (see `zoo.encodings.gated`). The
    gates have a gradient at the first step, everything behind them from the second. Other encodings need `exact=False`:
    they act in full from the start, and the model has to be trained again. (Where the head reads the class token alone,
    additive encodings have nothing to act on in the last block, since that token has no position.)

    Args:
        model: `VisionTransformer`, `VisionTransformerDistilled` or `Eva` of timm, on any device, in any dtype.
        encoding: A name of `zoo.encodings()` that acts in attention.
        exact: Leave outputs unchanged at the start (logits to 1e-4 in float32).
        keep_positions: Keep the learned table and rotary encoding of the model beside ours. `False` takes them out
            (what the table gave to prefix tokens moves into these) and needs `exact=False`, unless there are none.
        **options: Options of the encoding. The tables of `table` and `cpb` have the extent of the model's own grid by
            default.

    Returns:
        The new model, in the mode (training or evaluation) of the old one, with `adapt_report` (`AdaptReport`) and
        `encodings`. The old model is not changed and shares no memory with it.

    Raises:
        ConfigError: If the model is not one of these or has a part that cannot be kept, `exact` is impossible, or the
            encoding or an option is unusable.
    """
    _check_model(model)
    for name, value in (("exact", exact), ("keep_positions", keep_positions)):
        if not isinstance(value, bool):
            raise ConfigError(f"{name} must be True or False, got {value!r:.80}")
    token, attention = split_name(encoding)
    if token is not None:
        raise ConfigError(
            f"adapt puts an encoding into attention; {token!r} is added to features, where the model's own table is: "
            "keep that, and give the name of the other encoding"
        )
    from zoo import adapting

    blocks: Any = model.blocks
    grid = _grid(model)
    old = _positions(model)
    if exact and old and not keep_positions:
        raise ConfigError(f"without its {' and '.join(old)} the model computes something else: pass exact=False")
    adapted: Any = copy.deepcopy(model)
    before = _output(adapted)
    with torch.device("cpu"):  # Whatever the default device is; from there they go to that of the model.
        encodings = [
            [_encoding(attention, layer, grid, exact, options) for layer in adapting.attention_layers(block)]
            for block in blocks
        ]
        adapting.attach(adapted, encodings)
    if not keep_positions:
        adapting.take_positions(adapted)
    after = _output(adapted)
    difference = None if before is None or after is None else float((after - before).abs().max())
    added = [parameter for row in encodings for one in row for parameter in one.parameters()]
    adapted.adapt_report = AdaptReport(
        model=type(model).__name__,
        encoding=attention,
        layers=sum(len(row) for row in encodings),
        parameters=sum(parameter.numel() for parameter in added),
        exact=exact,
        kept=old if keep_positions else (),
        replaced=() if keep_positions else old,
        difference=difference,
        changes=_changes(exact, difference, before),
    )
    return adapted


def _check_model(model: Any) -> None:
    """Refuses what cannot be adapted, naming the class in the way."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"adapt takes a model ({_SUPPORTED}), got {type(model).__name__}")
    if any(isinstance(module, CoordinateAttention) for module in model.modules()):
        raise ConfigError(
            "this model is of this library: zoo.load(name, encoding=..., pretrained=False) changes encodings"
        )
    report = getattr(model, "adapt_report", None)
    if report is not None:
        raise ConfigError(f"this model has been adapted to {report.encoding!r}: adapt the timm model it was made from")
    from zoo import adapting

    if type(model) not in adapting.MODELS:
        inside = next((name for name, module in model.named_modules() if type(module) in adapting.MODELS), None)
        hint = "" if inside is None else f": adapt the model inside, its {inside!r}"
        raise ConfigError(f"adapt takes {_SUPPORTED}, got {type(model).__name__}{hint}")
    blocks: Any = model.blocks
    embed: Any = model.patch_embed
    if embed.grid_size is None:
        raise ConfigError("this model has no size of its own: create it with img_size")
    if len(blocks) == 0:
        raise ConfigError("a model without blocks has no attention that could get an encoding")
    seen: set[nn.Module] = set()
    for block in blocks:
        if type(block) not in adapting.BLOCKS:
            raise ConfigError(f"blocks of class {type(block).__name__} have no attention layer that adapt knows")
        for layer in adapting.attention_layers(block):
            if type(layer) not in adapting.ATTENTIONS:
                raise ConfigError(
                    f"attention of class {type(layer).__name__} computes something else: cannot be adapted"
                )
            if layer in seen:
                raise ConfigError("blocks share an attention layer, but each has to have an encoding of its own")
            seen.add(layer)
            for part in adapting.projections(layer):
                if not isinstance(getattr(part, "weight", None), Tensor) or not hasattr(part, "in_features"):
                    kind = f"{type(part).__module__}.{type(part).__qualname__}"
                    raise ConfigError(f"attention has {kind} for a linear layer: adapt first, then replace or quantise")
            if layer.attn_drop.p > 0:
                raise ConfigError(
                    f"dropout of attention weights (p = {layer.attn_drop.p:g}) is not possible with an encoding: "
                    "create the model with attn_drop_rate=0"
                )
    if not isinstance(getattr(model, "patch_drop", None), nn.Identity | None):
        raise ConfigError("patch dropout takes tokens off their grid: create the model with patch_drop_rate=0")


def _grid(model: Any) -> tuple[int, int]:
    """Rows and columns of patches of the model's own size."""
    rows, columns = model.patch_embed.grid_size
    return rows, columns


def _encoding(
    name: str, layer: nn.Module, grid: tuple[int, int], exact: bool, options: dict[str, Any]
) -> AttentionEncoding:
    """The encoding of one attention layer."""
    from zoo.adapting import projections

    first, *_, out = projections(layer)
    heads = cast(int, layer.num_heads)
    shape = {"dim": first.in_features, "num_heads": heads, "head_dim": out.in_features // heads, "coord_dim": 2}
    if name in _TABLES and "extent" not in options:
        rows, columns = grid
        options = {**options, "extent": [max(columns - 1, 1), max(rows - 1, 1)]}
    made = create(name, options=options, **shape)[1]
    if not exact:
        return made
    try:
        return gated(made, heads)
    except ConfigError as error:
        raise ConfigError(f"{error}; or pass exact=False, which changes what the model computes") from error


def _positions(model: Any) -> tuple[str, ...]:
    """The model's own position encodings, in words."""
    found = []
    if model.pos_embed is not None:
        rows, columns = _grid(model)
        found.append(f"table pos_embed of {rows} x {columns} patches")
    if getattr(model, "rope", None) is not None:
        found.append(f"rotary encoding {type(model.rope).__name__}")
    return tuple(found)


def _output(model: Any) -> Tensor | None:
    """What the model makes, in evaluation mode, of one picture of noise, always the same one."""
    weight = next(model.parameters())
    if weight.is_meta:
        return None
    embed = model.patch_embed
    stem = next(module for module in embed.modules() if isinstance(module, nn.Conv2d))
    generator = torch.Generator("cpu").manual_seed(0)
    noise = torch.randn(1, stem.in_channels, *embed.img_size, generator=generator, device="cpu")
    if not embed.strict_img_size:  # Then only whole patches are taken.
        height, width = (cells * step for cells, step in zip(_grid(model), embed.feat_ratio(False), strict=True))
        noise = noise[..., :height, :width]
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    with torch.no_grad():
        output = model(noise.to(weight))
    for module, training in modes:
        module.training = training
    return output.to(torch.float64 if weight.dtype == torch.float64 else torch.float32)


def _changes(exact: bool, difference: float | None, before: Tensor | None) -> str:
    if difference is None or before is None:
        return "outputs unchanged at the start" if exact else "outputs changed (how far was not measured: meta device)"
    size = f"by {difference:.2g} at most on a picture of noise, where they reach {float(before.abs().max()):.2g}"
    return f"outputs unchanged at the start (off {size})" if exact else f"outputs moved {size}"


make_callable(__name__, "adapt")
