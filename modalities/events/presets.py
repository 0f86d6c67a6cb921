"""The registered event models, as data. Imports no torch.

Names are `{encoding}-event-vit-{size}-{data}` and `{encoding}-event-det-{size}-{data}`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from zoo.detection.parameter_count import PYRAMID_DIM, class_width, count_detector
from zoo.network_sizes import ENCODING_OPTIONS, SIZES, count_class_token, count_encoder

__all__ = ["config", "count_classifier", "count_detector_parameters", "detector_config", "presets"]

AXES = 3  # column, row, time

DVSGESTURE_LABELS = (
    "hand clapping",
    "right hand wave",
    "left hand wave",
    "right arm clockwise",
    "right arm counter clockwise",
    "left arm clockwise",
    "left arm counter clockwise",
    "arm roll",
    "air drums",
    "air guitar",
    "other gestures",
)
GEN1_LABELS = ("car", "pedestrian")
DIGITS = tuple("0123456789")

# Fields of `EventDataConfig`. Time is counted in steps of 50 ms from the start of a gesture.
DVSGESTURE_DATA: dict[str, Any] = {
    "width": 128,
    "height": 128,
    "patch_size": 16,
    "threshold": 256,
    "refractory_us": 100_000,
    "buckets": 10,
    "time_scale_us": 50_000.0,
    "time_reference": "start",
    "window_us": None,
    "max_events": None,
}
# The last 500,000 events before a label; time is the age at the label.
GEN1_DATA: dict[str, Any] = {
    **DVSGESTURE_DATA,
    "width": 304,
    "height": 240,
    "time_reference": "end",
    "max_events": 500_000,
}
# Three saccades of about 100 ms over 34 x 34 pixels, about 4,000 events: small patches that fire often.
NMNIST_DATA: dict[str, Any] = {
    **DVSGESTURE_DATA,
    "width": 34,
    "height": 34,
    "patch_size": 4,
    "threshold": 16,
    "refractory_us": 1_000,
    "buckets": 8,
    "window_us": 400_000,
}
# Few buckets and a narrow pyramid (below), so that the weights in float16 are small enough to come with the package.
CANVAS_DATA: dict[str, Any] = {
    **GEN1_DATA,
    "threshold": 64,
    "refractory_us": 1_000,
    "buckets": 4,
    "window_us": 300_000,
    "max_events": None,
}


def config(
    name: str,
    *,
    encoding: str,
    size: str,
    num_classes: int,
    data: dict[str, Any],
    labels: tuple[str, ...] | None = None,
    released: bool = False,
) -> dict[str, Any]:
    """A complete configuration of an event classifier.

    Args:
        name: What the model is called.
        encoding: Name of the position encoding.
        size: A key of `SIZES`.
        num_classes: Number of classes.
        data: Fields of `EventDataConfig`; patch size and buckets of the model follow from them.
        labels: Class names in the order of the logits.
        released: The class token is at the origin as in the released networks, instead of without a position.
    """
    return {
        "schema_version": 1,
        "name": name,
        "modality": "events",
        "task": "classification",
        "architecture": "event-vit",
        "model": {
            **SIZES[size],
            "patch_size": data["patch_size"],
            "in_chans": 2 * data["buckets"],
            "num_classes": num_classes,
            "encoding": encoding,
            "encoding_options": dict(ENCODING_OPTIONS.get(encoding, {})),
            "class_token_position": "origin" if released else None,
            "drop_path": 0.0,
        },
        "data": dict(data),
        "labels": list(labels) if labels else None,
    }


def detector_config(
    name: str,
    *,
    encoding: str,
    size: str,
    num_classes: int,
    data: dict[str, Any],
    labels: tuple[str, ...] | None = None,
    pyramid_dim: int = PYRAMID_DIM,
) -> dict[str, Any]:
    """A complete configuration of an event detector; arguments as for `config`.

    Args:
        name: What the model is called.
        encoding: Name of the position encoding.
        size: A key of `SIZES`.
        num_classes: Number of classes.
        data: Fields of `EventDataConfig`.
        labels: Class names in the order of the logits.
        pyramid_dim: Width of the levels of the pyramid.
    """
    made = config(name, encoding=encoding, size=size, num_classes=num_classes, data=data, labels=labels)
    model = made["model"] | {
        "pyramid": "simple",
        "pyramid_dim": pyramid_dim,
        "class_width": class_width(pyramid_dim, num_classes),
        "max_detections": 100,
        "min_score": 0.001,
    }
    return made | {"task": "detection", "architecture": "event-det", "model": model}


# Encodings of the sets that are trained here.
TRAINED = ("pape", "rope", "none")


def presets() -> Iterator[dict[str, Any]]:
    """Yields the registered models as fields of `zoo.registry.Entry`."""
    gesture: dict[str, Any] = {"num_classes": 11, "data": DVSGESTURE_DATA, "labels": DVSGESTURE_LABELS}
    gen1: dict[str, Any] = {"num_classes": 2, "data": GEN1_DATA, "labels": GEN1_LABELS}
    digits: dict[str, Any] = {"num_classes": 10, "size": "n", "labels": DIGITS}
    for size in SIZES:
        for encoding in ENCODING_OPTIONS:
            released = encoding == "pape" and size == "b"
            weights = "release" if released else "none"
            name = f"{encoding}-event-vit-{size}-dvsgesture"
            made = config(name, encoding=encoding, size=size, released=released, **gesture)
            yield {"name": name, "weights": weights, "config": made}
            name = f"{encoding}-event-det-{size}-gen1"
            yield {
                "name": name,
                "weights": weights,
                "config": detector_config(name, encoding=encoding, size=size, **gen1),
            }
    for encoding in TRAINED:
        weights = "embedded" if encoding == "pape" else "none"
        name = f"{encoding}-event-vit-n-nmnist1100"
        made = config(name, encoding=encoding, data=NMNIST_DATA, **digits)
        command = f"zoo train nmnist1100 --model {name} --data DIR"
        yield {"name": name, "weights": weights, "command": command, "config": made}
        name = f"{encoding}-event-det-n-nmnist-canvas"
        made = detector_config(name, encoding=encoding, data=CANVAS_DATA, pyramid_dim=48, **digits)
        command = f"zoo train nmnist-canvas --model {name} --data DIR"
        yield {"name": name, "weights": weights, "command": command, "config": made}


def count_classifier(model: dict[str, Any]) -> int:
    """Number of parameters of the classifier that `model` (the `"model"` part of a configuration) describes.

    Raises:
        ConfigError: If an option of the encoding that sets a size is unusable.
    """
    return count_encoder(model, AXES) + count_class_token(model)


def count_detector_parameters(model: dict[str, Any]) -> int:
    """Number of parameters of the detector that `model` (the `"model"` part of a configuration) describes.

    Raises:
        ConfigError: If a setting that sets a size is unusable.
    """
    return count_encoder(model, AXES) + count_detector(model)
