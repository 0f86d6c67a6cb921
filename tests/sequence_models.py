"""Small decoders with every encoding, for tests."""

from __future__ import annotations

import functools

import torch
from torch import nn

import zoo.encodings
from modalities.sequence.model import Decoder
from modalities.sequence.presets import config as preset
from modalities.sequence.presets import text_options
from zoo.registry import architecture

VOCABULARY = 13
PLANE = ("lookhere", "spiral-rope", "golden-rope")
# Of every kind of attention encoding, one with a token encoding beside it.
NAMES = [*zoo.encodings(), "learned+rope", "sincos+pape"]
AXES: dict[str, tuple[int, ...]] = {name: (1,) for name in NAMES}
AXES |= {name: (1, 2, 3) for name in ("pape", "pope", "rope", "mrope")} | {name: (2,) for name in PLANE}
SIZES = {"dim": 32, "depth": 2, "num_heads": 2, "head_dim": 16, "mlp_dim": 32}


@functools.cache
def _weights(name: str, axes: int) -> Decoder:
    config = preset("toy", encoding=name, sizes=SIZES, vocabulary=VOCABULARY, data={"length": 32}, coord_dim=axes)
    options = text_options(name, 32)
    if name == "learned+rope":
        options = {"learned": text_options("learned", 32)}
    elif "parabolas" in options:
        options = {"parabolas": 6}
    config["model"]["encoding_options"] = options
    model: Decoder = architecture(config).build(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "position" in key or "log_" in key or "norm" in key:
                continue
            scale = 0.6 if parameter.dim() > 1 else 0.3
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def decoder(name: str, axes: int = 1) -> Decoder:
    """A new decoder of two blocks whose weights are not small, so that positions and content matter."""
    import copy

    return copy.deepcopy(_weights(name, axes))


def ids_of(length: int, batch: int = 2) -> torch.Tensor:
    """Token ids (batch, length)."""
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(2))


def module_names(model: nn.Module) -> set[str]:
    """Types of the modules of a model."""
    return {type(module).__name__ for module in model.modules()}
