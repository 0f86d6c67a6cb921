"""The registered Point Transformer V3 models, as data. Imports no torch.

Names are `{encoding}-ptv3-{size}-{data}`, with `sincos-pape` for `sincos+pape`; size b is the published one, n and t
are ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from modalities.points.data_config import PointDataConfig
from modalities.points.ptv3_config import PTv3Config, count_ptv3
from zoo.network_sizes import ENCODING_OPTIONS

__all__ = ["PTV3_ENCODINGS", "card_words", "config", "count_parameters", "presets"]

# `none` is the published network, whose only position is the convolution; sincos adds the absolute position once.
PTV3_ENCODINGS = ("pape", "rope", "none", "alibi", "sincos+pape")

# Size n is small enough that its weights in float16 (below 2.7 MiB) can come with the package.
CLASSIFIERS: dict[str, dict[str, Any]] = {
    "n": {
        "channels": [32, 48, 64, 96],
        "depths": [1, 2, 2, 2],
        "patch_size": 256,
        "head_dims": [96],
        "head_dropout": 0.5,
        "drop_path": 0.1,
    },
    "t": {
        "channels": [48, 96, 144, 192],
        "depths": [2, 2, 2, 2],
        "patch_size": 256,
        "head_dims": [128],
        "head_dropout": 0.5,
        "drop_path": 0.2,
    },
    "b": {
        "channels": [32, 64, 128, 256, 512],
        "depths": [2, 2, 2, 6, 2],
        "patch_size": 1024,
        "head_dims": [256, 128],
        "head_dropout": 0.5,
        "drop_path": 0.3,
    },
}
SEGMENTERS: dict[str, dict[str, Any]] = {
    "n": {
        "channels": [32, 48, 64, 96],
        "depths": [1, 1, 1, 1],
        "decoder_channels": [48, 48, 64],
        "decoder_depths": [1, 1, 1],
        "patch_size": 256,
        "drop_path": 0.1,
    },
    "t": {
        "channels": [48, 64, 96, 128, 192],
        "depths": [2, 2, 2, 2, 2],
        "decoder_channels": [64, 64, 96, 128],
        "decoder_depths": [1, 1, 1, 1],
        "patch_size": 512,
        "drop_path": 0.2,
    },
    "b": {
        "channels": [32, 64, 128, 256, 512],
        "depths": [2, 2, 2, 6, 2],
        "decoder_channels": [64, 64, 128, 256],
        "decoder_depths": [2, 2, 2, 2],
        "patch_size": 1024,
        "drop_path": 0.3,
    },
}
# A quadratic form in three axes has six numbers, so a dozen parabolas span it where parameters are few.
SMALL_PARABOLAS = 12

MODELNET10_LABELS = (
    "bathtub", "bed", "chair", "desk", "dresser", "monitor", "night_stand", "sofa", "table", "toilet",
)  # fmt: skip
MODELNET40_LABELS = (
    "airplane", "bathtub", "bed", "bench", "bookshelf", "bottle", "bowl", "car", "chair", "cone", "cup", "curtain",
    "desk", "door", "dresser", "flower_pot", "glass_box", "guitar", "keyboard", "lamp", "laptop", "mantel", "monitor",
    "night_stand", "person", "piano", "plant", "radio", "range_hood", "sink", "sofa", "stairs", "stool", "table",
    "tent", "toilet", "tv_stand", "vase", "wardrobe", "xbox",
)  # fmt: skip
SCANNET_LABELS = (
    "wall", "floor", "cabinet", "bed", "chair", "sofa", "table", "door", "window", "bookshelf", "picture", "counter",
    "desk", "curtain", "refrigerator", "shower curtain", "toilet", "sink", "bathtub", "other furniture",
)  # fmt: skip
ALS3_LABELS = ("ground", "vegetation", "building")

# Fields of `PointDataConfig`.
MODELNET10_DATA: dict[str, Any] = {
    "grid_size": 0.05,
    "normalise": "unit-box",
    "feature_names": ["xyz"],
    "num_points": 1024,
}
MODELNET40_DATA: dict[str, Any] = {
    "grid_size": 0.01,
    "normalise": "unit-box",
    "feature_names": ["xyz", "normal"],
    "num_points": None,
}
ALS3_DATA: dict[str, Any] = {
    "grid_size": 1.0,
    "normalise": "centre",
    "feature_names": ["height", "intensity", "return"],
    "num_points": None,
}
SCANNET_DATA: dict[str, Any] = {
    "grid_size": 0.02,
    "normalise": "centre",
    "feature_names": ["rgb", "normal"],
    "num_points": None,
}


def config(
    name: str, *, encoding: str, task: str, size: str, data: Mapping[str, Any], labels: tuple[str, ...]
) -> dict[str, Any]:
    """A complete configuration.

    Args:
        name: What the model is called.
        encoding: Name of the position encoding.
        task: `"classification"` or `"segmentation"`.
        size: A key of `CLASSIFIERS` or `SEGMENTERS`.
        data: Fields of `PointDataConfig`; the number of input channels follows from them.
        labels: Class names in the order of the logits.
    """
    classifies = task == "classification"
    stated = PointDataConfig(**data, class_names=labels)
    sizes = (CLASSIFIERS if classifies else SEGMENTERS)[size]
    model = PTv3Config(
        **sizes,
        num_classes=len(labels),
        in_chans=stated.in_chans,
        encoding=encoding,
        encoding_options=_encoding_options(encoding, size),
    )
    return {
        "schema_version": 1,
        "name": name,
        "modality": "points",
        "task": task,
        "architecture": "ptv3" if classifies else "ptv3-seg",
        "model": model.to_dict(),
        "data": stated.to_dict(),
        "labels": list(labels),
    }


def _encoding_options(encoding: str, size: str) -> dict[str, Any]:
    """Options of an encoding; of `a+b` those of each part under its name."""
    if "+" in encoding:
        return {part: _encoding_options(part, size) for part in encoding.split("+")}
    options = dict(ENCODING_OPTIONS[encoding])
    if encoding == "pape" and size != "b":
        options["parabolas"] = SMALL_PARABOLAS
    return options


def presets() -> Iterator[dict[str, Any]]:
    """Yields the registered models as fields of `zoo.registry.Entry`."""
    kinds: tuple[tuple[str, str, dict[str, Any], tuple[str, ...], str], ...] = (
        ("modelnet10", "classification", MODELNET10_DATA, MODELNET10_LABELS, "nt"),
        ("als3", "segmentation", ALS3_DATA, ALS3_LABELS, "nt"),
        ("modelnet40", "classification", MODELNET40_DATA, MODELNET40_LABELS, "b"),
        ("scannet", "segmentation", SCANNET_DATA, SCANNET_LABELS, "b"),
    )
    for where, task, data, labels, sizes in kinds:
        for size in sizes:
            for encoding in PTV3_ENCODINGS:
                name = f"{encoding.replace('+', '-')}-ptv3-{size}-{where}"  # A Hub repository's has no plus sign.
                made = config(name, encoding=encoding, task=task, size=size, data=data, labels=labels)
                command = f"zoo train {where} --model {name} --data DIR"
                yield {"name": name, "weights": "none", "command": command, "config": made}


def count_parameters(model: Mapping[str, Any]) -> int:
    """Number of parameters of the network that `model` (the `"model"` part of a configuration) describes.

    Raises:
        ConfigError: If a value cannot be used.
    """
    return count_ptv3(PTv3Config.from_dict(model))


def card_words(config: Mapping[str, Any]) -> dict[str, str]:
    """What a card says of a Point Transformer V3."""
    model, data = config["model"], PointDataConfig.from_dict(config["data"])
    decoder = f", decoder of {len(model['decoder_channels'])}" if model["decoder_channels"] else ""
    widths = model["channels"]
    words = {
        "summary": f"A Point Transformer V3 for point cloud {config['task']} with {{encoding}} in its attention: "
        f"encoder of {len(widths)} stages, {widths[0]} to {widths[-1]} channels{decoder}, "
        f"patches of up to {model['patch_size']} voxels, {model['num_classes']} classes."
    }
    points = "any number of points" if data.num_points is None else f"{data.num_points:,} points (others work)"
    features = ", ".join(data.feature_names)
    unit = " of the unit box" if data.normalise == "unit-box" else " m"
    words["input"] = f"{points}; voxels of {data.grid_size:g}{unit}; features: {features}"
    return words
