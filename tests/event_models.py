"""Small event models and random batches of event tokens, for tests."""

from __future__ import annotations

import copy
from typing import Any

import torch
from saved_models import make_model

from modalities.events import EventTokens

__all__ = ["CLASSIFIER", "DETECTOR", "MADE", "classifier", "detector", "output", "random_tokens", "rows"]

MODEL: dict[str, Any] = {
    "dim": 32,
    "depth": 2,
    "num_heads": 2,
    "head_dim": 16,
    "mlp_dim": 64,
    "patch_size": 4,
    "in_chans": 6,
    "num_classes": 3,
    "encoding": "pape",
    "encoding_options": {"parabolas": 4},
    "class_token_position": None,
    "drop_path": 0.0,
}
CLASSIFIER: dict[str, Any] = {
    "schema_version": 1,
    "name": "tiny-events",
    "modality": "events",
    "task": "classification",
    "architecture": "event-vit",
    "model": MODEL,
    "data": {
        "width": 22,
        "height": 16,
        "patch_size": 4,
        "threshold": 5,
        "refractory_us": 100,
        "buckets": 3,
        "time_scale_us": 10_000.0,
        "time_reference": "start",
        "window_us": 100_000,
        "max_events": None,
    },
    "labels": ["circle", "square", "triangle"],
}
DETECTOR: dict[str, Any] = {
    **CLASSIFIER,
    "name": "tiny-event-detector",
    "task": "detection",
    "architecture": "event-det",
    "model": MODEL
    | {"pyramid": "simple", "pyramid_dim": 16, "class_width": 12, "max_detections": 20, "min_score": 0.0},
}


def classifier(seed: int = 0, **model: Any) -> Any:
    """An event classifier with random weights, in eval mode; the arguments replace settings."""
    return _made(CLASSIFIER, seed, model)


def detector(seed: int = 0, **model: Any) -> Any:
    """An event detector with random weights, in eval mode; the arguments replace settings."""
    return _made(DETECTOR, seed, model)


def _made(config: dict[str, Any], seed: int, changes: dict[str, Any]) -> Any:
    config = copy.deepcopy(config)
    data = {key: changes.pop(key) for key in list(changes) if key in config["data"]}
    config["model"] |= changes
    config["data"] |= data
    torch.manual_seed(seed)
    return make_model(config, seed)


def random_tokens(lengths: tuple[int, ...] = (7, 3, 0), seed: int = 0, data: Any = None) -> EventTokens:
    """Random tokens of samples of these lengths, padded with zeros, for the small models or a data configuration."""
    grid, buckets, side = ((4, 6), 3, 4) if data is None else (data.grid, data.buckets, data.patch_size)
    generator = torch.Generator().manual_seed(seed)
    shape = (len(lengths), max(lengths))

    def draw(high: int, size: tuple[int, ...] = shape) -> torch.Tensor:
        return torch.randint(0, high, size, generator=generator)

    mask = torch.arange(shape[1]).expand(shape) < torch.tensor(lengths).unsqueeze(1)
    patches = draw(6, (*shape, 2, buckets, side, side)).short() * mask[:, :, None, None, None, None]
    x, y, t_us = (draw(high) * mask for high in (grid[1], grid[0], 100_000))
    return EventTokens(x, y, t_us, patches, mask)


def rows(tokens: EventTokens, index: Any) -> EventTokens:
    """Some samples of a batch."""
    return EventTokens(*(getattr(tokens, name)[index] for name in ("x", "y", "t_us", "patches", "mask")))


def output(model, tokens):
    """Logits, or all raw maps in a row: what must not depend on padding or on the rest of the batch."""
    with torch.no_grad():
        if model.config["task"] == "classification":
            return model(tokens)
        maps = model.forward_raw(tokens)
        return torch.cat([level.flatten(1) for branch in sorted(maps) for level in maps[branch]], dim=1)


MADE = {"classifier": classifier, "detector": detector}
