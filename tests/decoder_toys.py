"""Tiny random decoders with tokenizers, for tests of prediction."""

from __future__ import annotations

import copy
import functools
import json
from typing import Any

import torch
from saved_models import make_model

from modalities.sequence.datasets import open_sequences
from modalities.sequence.model import Decoder
from modalities.sequence.presets import DATA
from modalities.sequence.presets import config as preset

SIZES = {"dim": 16, "depth": 1, "num_heads": 1, "head_dim": 16, "mlp_dim": 16}
EXTRA: dict[str, tuple[int, dict[str, Any]]] = {
    "bytes": (256, {"length": 32, "tokenizer": {"kind": "bytes"}}),
    "roll": (90, {"length": 32, "tokenizer": {"kind": "roll"}}),
    "none": (7, {"length": 32}),
}


@functools.cache
def _made(settings: str) -> Decoder:
    known = json.loads(settings)
    model: Decoder = make_model(
        preset("toy", encoding=known.pop("encoding"), sizes=SIZES, **known),
    )
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and "position" not in name:  # Large enough for content and positions to matter.
                parameter.copy_(0.6 * torch.randn(parameter.shape, generator=generator))
    return model


def toy(known: str, encoding: str = "pope", /, **changes: Any) -> Decoder:
    """A decoder for the data of a registered one (`jsb`, `index`, `shakespeare`, `hg38`), or of `EXTRA`."""
    vocabulary, fields = (DATA | EXTRA)[known]
    settings = {"encoding": encoding, "vocabulary": vocabulary, "data": fields, **changes}
    return copy.deepcopy(_made(json.dumps(settings)))


def toy_for(dataset: str, encoding: str = "pope", **options: Any) -> tuple[Decoder, Any]:
    """A decoder for a made-up task, and its sequences of training."""
    made = open_sequences(dataset, None, "train", length=32, options=options)
    data = {
        "length": made.length,
        "tokenizer": made.tokenizer.to_dict(),
        "dataset": {"name": dataset, **options},
    }
    return toy("index", encoding, vocabulary=made.tokenizer.vocab_size, data=data, coord_dim=made.axes), made


def favour(model: Any, token: int) -> None:
    """Makes a token far the likeliest, always."""
    head = model.forward_head

    def changed(features: torch.Tensor) -> torch.Tensor:
        logits = head(features).clone()
        logits[..., token] += 1e4
        return logits

    model.forward_head = changed
