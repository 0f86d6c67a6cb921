"""Low-rank adaptation (LoRA, Hu et al. 2021, arXiv 2106.09685) through peft, merged into the weights at the end."""

from __future__ import annotations

import re
from types import ModuleType

from torch import nn

from zoo.errors import ConfigError, require
from zoo.training.head_first import head_names

__all__ = ["add_lora", "lora_targets", "merge_lora", "require_lora"]

# The linear layers of attention and MLP; others are read by encodings as weights, which an adapter would be blind to.
_TARGETS = re.compile(r"(^|\.)(qkv|proj|fc1|fc2)$")


def lora_targets(model: nn.Module) -> list[str]:
    """Names of the linear layers that get adapters: those of the transformer blocks."""
    head = head_names(model)
    return [
        name
        for name, module in model.named_modules()
        if type(module) is nn.Linear and _TARGETS.search(name) and f"{name}.weight" not in head
    ]


def require_lora() -> ModuleType:
    """The package peft.

    Raises:
        MissingDependencyError: If it is not installed.
    """
    return require("peft", extra="lora")


def add_lora(model: nn.Module, rank: int) -> None:
    """Freezes a model but for its head, and gives the linear layers of its blocks adapters of a rank, in place.

    Args:
        model: A model of this library.
        rank: Of the two factors; their product is scaled by 2.

    Raises:
        MissingDependencyError: If peft is not installed.
        ConfigError: If the model has no such layers.
    """
    peft = require_lora()
    targets, head = lora_targets(model), head_names(model)
    if not targets:
        raise ConfigError("lora: the model has no linear layers of attention or MLP to adapt")
    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets, bias="none")
    peft.inject_adapter_in_model(config, model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name or name in head)


def merge_lora(model: nn.Module) -> None:
    """Adds the adapters to the weights and takes them out: the model is a plain one again, and computes the same."""
    tuners = require("peft.tuners.tuners_utils", extra="lora")
    adapted = [(name, module) for name, module in model.named_modules() if isinstance(module, tuners.BaseTunerLayer)]
    for name, module in adapted:
        layer = module
        layer.merge()
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, layer.get_base_layer())
    if hasattr(model, "peft_config"):
        del model.peft_config
    for parameter in model.parameters():
        parameter.requires_grad_(True)
