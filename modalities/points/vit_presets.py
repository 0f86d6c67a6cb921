"""The registered plain point transformers, as data. Imports no torch.

Names are `{encoding}-point-vit-{size}-{data}[-invariant]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from modalities.points.presets import MODELNET10_LABELS
from zoo.network_sizes import ENCODING_OPTIONS, SIZES, count_class_token, count_encoder

__all__ = ["AXES", "card_words", "config", "count_parameters", "presets"]

AXES = 3
SIZES_HERE = ("n", "t")
# Encoding -> what is read of a group. PaPE-RI sees distances alone, so with invariant features all of the network does.
MODELS = {"pape": "relative+centre", "pape-ri": "invariant", "rope": "relative+centre", "none": "relative+centre"}
_CHANNELS = {"relative": 3, "relative+centre": 6, "invariant": 7}

# Fields of `PointDataConfig`; no voxels.
MODELNET10_DATA: dict[str, Any] = {
    "grid_size": 0.0,
    "normalise": "unit-box",
    "feature_names": ["xyz"],
    "num_points": 1024,
    "class_names": list(MODELNET10_LABELS),
    "ignore_label": 255,
}


def config(
    name: str,
    *,
    encoding: str,
    size: str,
    data: dict[str, Any],
    labels: tuple[str, ...],
    group_features: str,
) -> dict[str, Any]:
    """A complete configuration of a point ViT.

    Args:
        name: What the model is called.
        encoding: Name of the position encoding.
        size: A key of `SIZES`.
        data: Fields of `PointDataConfig`.
        labels: Class names in the order of the logits.
        group_features: A name of `modalities.points.grouping.FEATURES`.
    """
    return {
        "schema_version": 1,
        "name": name,
        "modality": "points",
        "task": "classification",
        "architecture": "point-vit",
        "model": {
            **SIZES[size],
            "patch_size": 32,
            "in_chans": 3,
            "num_classes": len(labels),
            "encoding": encoding,
            "encoding_options": dict(ENCODING_OPTIONS.get(encoding, {})),
            "class_token_position": None,
            "drop_path": 0.0,
            "groups": 64,
            "spacing": 0.25,
            "group_features": group_features,
            "sampling": "farthest",
            "pooling": "token",
        },
        "data": dict(data),
        "labels": list(labels),
    }


def presets() -> Iterator[dict[str, Any]]:
    """Yields the registered models as fields of `zoo.registry.Entry`."""
    for size in SIZES_HERE:
        named = [(f"{encoding}-point-vit-{size}-modelnet10", encoding, read) for encoding, read in MODELS.items()]
        # Beside PaPE-RI: the same features with an encoding that sees directions.
        named.append((f"pape-point-vit-{size}-modelnet10-invariant", "pape", "invariant"))
        for name, encoding, read in named:
            made = config(
                name, encoding=encoding, size=size, data=MODELNET10_DATA, labels=MODELNET10_LABELS, group_features=read
            )
            command = f"zoo train modelnet10-vit --model {name} --data DIR"
            yield {"name": name, "weights": "none", "command": command, "config": made}


def count_parameters(model: dict[str, Any]) -> int:
    """Number of parameters of the point ViT that `model` (the `"model"` part of a configuration) describes.

    Raises:
        ConfigError: If a setting that sets a size is unusable.
    """
    from zoo.errors import ConfigError

    read = model.get("group_features", "relative+centre")
    if read not in _CHANNELS:
        raise ConfigError(f"model config: group_features must be one of {', '.join(_CHANNELS)}, got {read!r:.80}")
    dim = model["dim"]
    stem = 2 * dim  # What the encoder's count has for a patch of one channel and one pixel.
    embed = dim * (_CHANNELS[read] + 1) + 2 * dim + dim * (dim + 1)
    embed += 2 * dim * (2 * dim + 1) + 4 * dim + dim * (2 * dim + 1)
    encoder = count_encoder({**model, "in_chans": 1, "patch_size": 1}, AXES)
    return encoder - stem + embed + count_class_token(model)


def card_words(config: Mapping[str, Any]) -> dict[str, str]:
    """What a card says of a point ViT."""
    model, data = config["model"], config["data"]
    read = {
        "relative": "relative to its centre",
        "relative+centre": "relative to its centre, and the centre itself",
        "invariant": "as lengths and angles that turning the cloud does not change",
    }[model["group_features"]]
    points = "any number of points" if data["num_points"] is None else f"{data['num_points']:,} points (others work)"
    return {
        "summary": f"A plain vision transformer for point cloud {config['task']} with {{encoding}}: {model['groups']} "
        f"groups of {model['patch_size']} points around farthest points, read {read}; width {model['dim']}, "
        f"{model['depth']} blocks, {model['num_classes']} classes.",
        "input": f"{points}, coordinates alone; unit of the position encoding: {model['spacing']:g} of the unit box",
    }
