"""Small vision transformers of timm, one of every family that `zoo.adapt` takes, and what their tests share."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import timm

SMALL = {"embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5}
# Name in timm -> what makes it small; own size is 4 x 4 patches.
FAMILIES: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {"img_size": 32, "patch_size": 8},
    "vit_base_patch16_clip_224": {"img_size": 32, "patch_size": 8},
    "vit_base_patch16_siglip_224": {"img_size": 32, "patch_size": 8},
    "vit_intern300m_patch14_448": {"img_size": 56},
    "vit_small_patch16_18x2_224": {"img_size": 32, "patch_size": 8},
    "vit_small_patch14_reg4_dinov2": {"img_size": 56},
    "deit3_small_patch16_224": {"img_size": 32, "patch_size": 8},
    "deit_tiny_distilled_patch16_224": {"img_size": 32, "patch_size": 8},
    "vit_small_patch16_dinov3": {"img_size": 64},
    "vit_small_plus_patch16_dinov3": {"img_size": 64},
    "eva_giant_patch14_224": {"img_size": 56},
    "eva02_tiny_patch14_224": {"img_size": 56},
    "eva02_base_patch14_224": {"img_size": 56},
    "vit_small_patch16_rope_224": {"img_size": 64},
    "vit_small_patch16_rope_mixed_ape_224": {"img_size": 64},
    "vit_base_patch16_rope_reg1_gap_256": {"img_size": 64},
    "vit_pe_core_tiny_patch16_384": {"img_size": 64},
}
VIT, EVA = "vit_small_patch14_reg4_dinov2", "eva02_base_patch14_224"


def small(name: str = VIT, **options: Any) -> Any:
    """A small model with weights that are no initial ones, so that every part of it matters; seeds what follows."""
    torch.manual_seed(0)
    model = timm.create_model(name, **(SMALL | FAMILIES.get(name, {}) | options)).eval()
    fill(model)
    return model


def fill(module: nn.Module, seed: int = 0) -> None:
    """Draws all parameters from a normal distribution of 0.2 (norms keep a weight near 1)."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = 0.2 * torch.randn(parameter.shape, generator=generator)
            is_norm = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(noise + 1 if is_norm else noise)


def pitch(model: Any) -> tuple[int, int]:
    """Pixels of a patch."""
    return model.patch_embed.feat_ratio(as_scalar=False)


def images(model: Any, rows: int = 4, columns: int = 4, batch: int = 2) -> torch.Tensor:
    """Noise of so many patches."""
    height, width = pitch(model)
    generator = torch.Generator().manual_seed(rows * 100 + columns)
    weight = next(model.parameters())
    return torch.randn(batch, 3, rows * height, columns * width, generator=generator).to(weight)


def open_gates(model: Any, value: float = 0.7) -> None:
    """Sets the gates of an adapted model, so that its encodings act."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("encoding.gate"):
                parameter.fill_(value)
