"""Small random models in folders, for tests of loading."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import zoo
from zoo import registry

__all__ = ["load", "logits", "make_model", "randomise"]


def randomise(model: nn.Module, seed: int = 0) -> None:
    """Fresh heads are zero, which would make any two models agree."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter + 0.05 * torch.randn(parameter.shape, generator=generator))


def make_model(config: Mapping[str, Any], seed: int = 0) -> Any:
    """A model of this configuration with random weights, in eval mode."""
    model = registry.architecture(config).build(dict(config)).eval()
    randomise(model, seed)
    return model


def load(folder: Path | str, **options: Any) -> Any:
    """Loads a folder."""
    return zoo.load(f"local-dir:{folder}", **options)


def logits(model: nn.Module, channels: int = 3, size: int = 32) -> Tensor:
    """Logits of two fixed random pictures, in the dtype of the model."""
    images = torch.rand(2, channels, size, size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model(images.to(next(model.parameters()).dtype))
