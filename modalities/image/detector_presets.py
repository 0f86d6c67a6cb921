"""The registered image detectors, as data. Imports no torch. Names are `{encoding}-vit-det-{size}-{data}`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from modalities.image.presets import AXES, IMAGENETTE_DATA, RELEASED_DATA
from modalities.image.presets import config as classifier_config
from zoo.detection.parameter_count import PYRAMID_DIM, class_width, count_detector
from zoo.network_sizes import ENCODING_OPTIONS, SIZES, count_encoder

__all__ = ["COCO_DATA", "COCO_LABELS", "config", "count_parameters", "presets"]

# Names of the raw category ids of COCO, of which 80 are in use.
_COCO_NAMES = (
    "/person/bicycle/car/motorcycle/airplane/bus/train/truck/boat/traffic light/fire hydrant//stop sign/"
    "parking meter/bench/bird/cat/dog/horse/sheep/cow/elephant/bear/zebra/giraffe//backpack/umbrella///handbag/tie/"
    "suitcase/frisbee/skis/snowboard/sports ball/kite/baseball bat/baseball glove/skateboard/surfboard/"
    "tennis racket/bottle//wine glass/cup/fork/knife/spoon/bowl/banana/apple/sandwich/orange/broccoli/carrot/"
    "hot dog/pizza/donut/cake/chair/couch/potted plant/bed//dining table///toilet//tv/laptop/mouse/remote/keyboard/"
    "cell phone/microwave/oven/toaster/sink/refrigerator//book/clock/vase/scissors/teddy bear/hair drier/"
    "toothbrush"
)
COCO_LABELS = tuple(name or f"unused {index}" for index, name in enumerate(_COCO_NAMES.split("/")))
COCO_CLASSES = len(COCO_LABELS)
# The released network sees the whole picture resized to a square, pixels / 255.
COCO_DATA: dict[str, Any] = {**RELEASED_DATA, "input_size": [3, 640, 640], "resize": "squash", "crop_fraction": 1.0}


# The nano detector comes in a file below 3 MiB, of which the head of the others would take most.
BCCD_PYRAMIDS = {"n": 64, "t": PYRAMID_DIM}
BCCD_LABELS = ("RBC", "WBC", "Platelets")
# Half the size of its microscope pictures; the mean, std and patch of the classifier that the backbone comes from.
BCCD_DATA: dict[str, Any] = {
    **IMAGENETTE_DATA,
    "input_size": [3, 240, 320],
    "resize": "letterbox",
    "interpolation": "bilinear",
}


def config(
    name: str,
    *,
    encoding: str,
    size: str,
    patch_size: int,
    num_classes: int,
    data: dict[str, Any],
    labels: tuple[str, ...] | None = None,
    pyramid: str = "simple",
    pyramid_dim: int = PYRAMID_DIM,
    released: bool = False,
) -> dict[str, Any]:
    """A complete configuration of an image detector.

    Args:
        name: What the model is called.
        encoding: Name of the position encoding.
        size: A key of `SIZES`.
        patch_size: Side of a patch in pixels.
        num_classes: Number of classes.
        data: Fields of `DataConfig`.
        labels: Class names in the order of the logits.
        pyramid: `"simple"` or `"vitdet"`.
        pyramid_dim: Width of its levels.
        released: Follow the released networks: patches counted from 1 instead of 0.
    """
    made = classifier_config(
        name,
        encoding=encoding,
        size=size,
        patch_size=patch_size,
        num_classes=num_classes,
        data=data,
        labels=labels,
        released=released,
    )
    model = made["model"] | {
        "class_token_position": None,
        "pyramid": pyramid,
        "pyramid_dim": pyramid_dim,
        "class_width": class_width(pyramid_dim, num_classes),
        "max_detections": 100,
        "min_score": 0.001,
    }
    return made | {"task": "detection", "architecture": "vit-det", "model": model}


def presets() -> Iterator[dict[str, Any]]:
    """Yields the registered detectors as fields of `zoo.registry.Entry`."""
    for size in SIZES:
        for encoding in ENCODING_OPTIONS:
            name = f"{encoding}-vit-det-{size}-coco"
            released = name == "pape-vit-det-b-coco"
            yield {
                "name": name,
                "weights": "release" if released else "none",
                "config": config(
                    name,
                    encoding=encoding,
                    size=size,
                    patch_size=16,
                    num_classes=COCO_CLASSES,
                    data=COCO_DATA,
                    labels=COCO_LABELS,
                    released=released,
                ),
            }

    for size, pyramid_dim in BCCD_PYRAMIDS.items():
        for encoding in ENCODING_OPTIONS:
            name = f"{encoding}-vit-det-{size}-bccd"
            # The recipe starts from a classifier that comes with the package; there is none of other encodings.
            backbone = f"pape-vit-{size}-imagenette" if encoding == "pape" else "null"
            other = "" if (encoding, size) == ("pape", "t") else f" --model {name} --set backbone={backbone}"
            yield {
                "name": name,
                "weights": "embedded" if (encoding, size) == ("pape", "n") else "none",
                "command": f"zoo train bccd{other} --data DIR",
                "config": config(
                    name,
                    encoding=encoding,
                    size=size,
                    patch_size=8,
                    num_classes=len(BCCD_LABELS),
                    data=BCCD_DATA,
                    labels=BCCD_LABELS,
                    pyramid_dim=pyramid_dim,
                ),
            }


def count_parameters(model: dict[str, Any]) -> int:
    """Number of parameters of the detector that `model` (the `"model"` part of a configuration) describes.

    Raises:
        ConfigError: If a setting that sets a size is unusable.
    """
    return count_encoder(model, AXES) + count_detector(model)
