"""The registered image models, as data: names, configurations and where their weights are. Imports no torch.

Names are `{encoding}-{architecture}-{size}-{data}`. Sizes follow the released PaPE networks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from zoo.network_sizes import ENCODING_OPTIONS, SIZES, count_class_token, count_encoder

__all__ = ["IMAGENETTE_LABELS", "config", "count_parameters", "presets"]

AXES = 2  # column, row

IMAGENETTE_LABELS = (
    "tench",
    "English springer",
    "cassette player",
    "chain saw",
    "church",
    "French horn",
    "garbage truck",
    "gas pump",
    "golf ball",
    "parachute",
)

# Those that place tokens of a picture (prope needs cameras, mrope is for mixed sequences).
IMAGENETTE_ENCODINGS = (
    "alibi",
    "comrope-ld",
    "cpb",
    "golden-rope",
    "gta",
    "kerple",
    "learned",
    "liere",
    "lookhere",
    "none",
    "pape",
    "pape-ri",
    "pope",
    "rope",
    "rope-1d",
    "rope-mixed",
    "rope-normalised",
    "sincos",
    "spiral-rope",
    "string",
    "table",
)

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

IN1K_DATA: dict[str, Any] = {
    "input_size": [3, 224, 224],
    "resize": "shortest",
    "crop_fraction": 0.875,
    "interpolation": "bicubic",
    "antialias": True,
    "mean": list(IMAGENET_MEAN),
    "std": list(IMAGENET_STD),
}
# The released network sees pixels / 255 as they are, short side 256 cropped to 224.
RELEASED_DATA: dict[str, Any] = {
    **IN1K_DATA,
    "interpolation": "bilinear",
    "mean": [0.0, 0.0, 0.0],
    "std": [1.0, 1.0, 1.0],
}
IMAGENETTE_DATA: dict[str, Any] = {**IN1K_DATA, "input_size": [3, 112, 112], "crop_fraction": 1.0}


def config(
    name: str,
    *,
    encoding: str,
    size: str,
    patch_size: int,
    num_classes: int,
    data: dict[str, Any],
    labels: tuple[str, ...] | None = None,
    released: bool = False,
) -> dict[str, Any]:
    """A complete configuration of an image classifier.

    Args:
        name: What the model is called.
        encoding: Name of the position encoding.
        size: A key of `SIZES`.
        patch_size: Side of a patch in pixels.
        num_classes: Number of classes.
        data: Fields of `DataConfig`.
        labels: Class names in the order of the logits.
        released: Follow the released networks: patches counted from 1 and the class token at the origin, instead of
            patches counted from 0 and a class token without position.
    """
    return {
        "schema_version": 1,
        "name": name,
        "modality": "image",
        "task": "classification",
        "architecture": "vit",
        "model": {
            **SIZES[size],
            "patch_size": patch_size,
            "in_chans": 3,
            "num_classes": num_classes,
            "encoding": encoding,
            "encoding_options": dict(ENCODING_OPTIONS.get(encoding, {})),
            "coordinate_origin": 1 if released else 0,
            "class_token_position": "origin" if released else None,
            "size_policy": "refuse",
            "drop_path": 0.0,
        },
        "data": {key: list(value) if isinstance(value, list) else value for key, value in data.items()},
        "labels": list(labels) if labels else None,
    }


def presets() -> Iterator[dict[str, Any]]:
    """Yields the registered models as fields of `zoo.registry.Entry`."""
    for size in SIZES:
        for encoding in ENCODING_OPTIONS:
            name = f"{encoding}-vit-{size}-in1k"
            released = name == "pape-vit-b-in1k"
            data = RELEASED_DATA if released else IN1K_DATA
            yield {
                "name": name,
                "weights": "release" if released else "none",
                "config": config(
                    name,
                    encoding=encoding,
                    size=size,
                    patch_size=16,
                    num_classes=1000,
                    data=data,
                    released=released,
                ),
            }
    for encoding, size in [*((encoding, "t") for encoding in IMAGENETTE_ENCODINGS), ("pape", "n")]:
        name = f"{encoding}-vit-{size}-imagenette"
        recipe = "imagenette" if name == "pape-vit-t-imagenette" else "imagenette-100"
        yield {
            "name": name,
            "weights": "embedded" if encoding == "pape" else "none",
            "command": f"zoo train {recipe} --model {name} --data DIR",
            "config": config(
                name,
                encoding=encoding,
                size=size,
                patch_size=8,
                num_classes=10,
                data=IMAGENETTE_DATA,
                labels=IMAGENETTE_LABELS,
            ),
        }


def count_parameters(model: dict[str, Any]) -> int:
    """Number of parameters of the ViT that `model` (the `"model"` part of a configuration) describes.

    By arithmetic alone, so that a configuration from a stranger can be refused before anything is allocated.

    Raises:
        ConfigError: If an option of the encoding that sets a size is not a positive integer.
    """
    return count_encoder(model, AXES) + count_class_token(model)
