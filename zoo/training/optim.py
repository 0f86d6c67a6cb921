"""Optimiser, learning-rate schedule and moving average, assembled from timm's parts."""

from __future__ import annotations

import re
from typing import Any

import torch
from timm.optim import param_groups_layer_decay, param_groups_weight_decay
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3
from torch import nn

from zoo.training.head_first import head_names
from zoo.training.recipe import Recipe

__all__ = ["make_ema", "make_optimizer", "make_schedule", "parameter_groups"]


# Parameters of transformer blocks: of a flat encoder, or of the stages of an encoder and a decoder.
_BLOCKS = re.compile(r"(encoder|decoder)\.(blocks\.)?\d+\.")


def parameter_groups(
    model: nn.Module,
    weight_decay: float,
    layer_decay: float | None = None,
    block_lr: float = 1.0,
    head_lr: float = 1.0,
) -> list[dict[str, Any]]:
    """Groups for the optimiser: no decay on biases, norms and what `model.no_weight_decay()` names.

    With `layer_decay` the learning rate falls by that factor from layer to layer, by `model.group_matcher`. `block_lr`
    is a factor on that of all transformer blocks, `head_lr` one on that of the head.
    """
    names: Any = getattr(model, "no_weight_decay", set)
    exempt = sorted(names())
    if layer_decay is None:
        groups = param_groups_weight_decay(model, weight_decay, no_weight_decay_list=exempt)
    else:
        groups = param_groups_layer_decay(model, weight_decay, no_weight_decay_list=exempt, layer_decay=layer_decay)
    if block_lr != 1:
        groups = _scaled(model, groups, {name for name, _ in model.named_parameters() if _BLOCKS.match(name)}, block_lr)
    return groups if head_lr == 1 else _scaled(model, groups, head_names(model), head_lr)


def _scaled(model: nn.Module, groups: list[dict[str, Any]], names: set[str], factor: float) -> list[dict[str, Any]]:
    """Splits groups in two, the second with the parameters of these names and their factor for the schedule."""
    chosen = {id(parameter) for name, parameter in model.named_parameters() if name in names}
    split = []
    for group in groups:
        for inside, scale in ((False, 1.0), (True, factor)):
            members = [parameter for parameter in group["params"] if (id(parameter) in chosen) == inside]
            if members:
                split.append({**group, "params": members, "lr_scale": scale * group.get("lr_scale", 1.0)})
    return split


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """AdamW over `parameter_groups`."""
    groups = parameter_groups(model, recipe.weight_decay, recipe.layer_decay, recipe.block_lr, recipe.head_lr)
    fused = next(model.parameters()).device.type == "cuda"
    return torch.optim.AdamW(groups, lr=recipe.lr, betas=recipe.betas, fused=fused)


def make_schedule(optimizer: torch.optim.Optimizer, recipe: Recipe, total_steps: int) -> CosineLRScheduler:
    """Linear warm-up, then a cosine to `final_lr`; stateless: `step_update(i)` sets the rate of step i (from 0)."""
    warmup = min(round(recipe.warmup * total_steps), total_steps - 1)
    return CosineLRScheduler(
        optimizer,
        t_initial=total_steps - warmup,
        lr_min=recipe.final_lr,
        warmup_t=warmup,
        warmup_lr_init=recipe.lr / max(warmup, 1) / 10,  # not 0, or the first step would be lost
        warmup_prefix=True,
        t_in_epochs=False,
    )


def make_ema(model: nn.Module, recipe: Recipe) -> ModelEmaV3 | None:
    """The moving average of the weights, or `None` when the recipe has none."""
    return ModelEmaV3(model, decay=recipe.ema, use_warmup=True) if recipe.ema else None
