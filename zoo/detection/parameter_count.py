"""Number of parameters of pyramids and heads, by arithmetic alone and without torch."""

from __future__ import annotations

from typing import Any

from zoo.errors import ConfigError

__all__ = ["BINS", "PYRAMID_DIM", "PYRAMID_LEVELS", "box_width", "class_width", "count_detector", "count_head"]
__all__ += ["count_pyramid"]

BINS = 16  # of the distribution over the distance to each side of a box
PYRAMID_LEVELS = {"simple": 3, "vitdet": 4}
PYRAMID_DIM = 256  # of the released networks


def box_width(width: int) -> int:
    """Hidden width of the box tower over maps of `width` channels."""
    return max(BINS, width // 4, 4 * BINS)


def class_width(width: int, num_classes: int) -> int:
    """Hidden width of the class tower of the released networks, trained for `num_classes` classes."""
    return max(width, min(num_classes, 100))


def count_pyramid(name: str, dim: int, width: int) -> int:
    """Parameters of the pyramid `name` (see `zoo.detection.pyramid`)."""
    if name == "simple":
        return (4 * dim * width + width) + 2 * (dim * width + width) + 3 * 2 * width
    half, quarter = dim // 2, dim // 4
    upsample = 4 * dim * half + half
    resampling = 2 * upsample + 2 * half + (4 * half * quarter + quarter)
    outputs = sum(channels * width + 9 * width * width + 4 * width for channels in (quarter, half, dim, dim))
    return resampling + outputs


def count_head(width: int, hidden_classes: int, num_classes: int, levels: int) -> int:
    """Parameters of the YOLOv10 head (see `zoo.detection.head`), both branches."""
    box, hidden = box_width(width), hidden_classes
    boxes = (9 * width * box + 2 * box) + (9 * box * box + 2 * box) + (4 * BINS * (box + 1))
    classes = (9 * width + 2 * width) + (width * hidden + 2 * hidden)
    classes += (9 * hidden + 2 * hidden) + (hidden * hidden + 2 * hidden) + num_classes * (hidden + 1)
    return 2 * levels * (boxes + classes)


def count_detector(model: dict[str, Any]) -> int:
    """Parameters of the pyramid and the head that `model` (the `"model"` part of a configuration) describes.

    Raises:
        ConfigError: If a setting that sets a size is unusable.
    """
    pyramid = model.get("pyramid", "simple")
    if not isinstance(pyramid, str) or pyramid not in PYRAMID_LEVELS:
        raise ConfigError(f"model config: pyramid must be one of {', '.join(PYRAMID_LEVELS)}, got {pyramid!r:.80}")
    sizes = {key: model.get(key) for key in ("pyramid_dim", "class_width")}
    for key, value in sizes.items():
        if type(value) is not int or not 1 <= value <= 1 << 20:
            raise ConfigError(f"model config: {key} must be a whole number from 1 to {1 << 20}, got {value!r:.60}")
    width, hidden = model["pyramid_dim"], model["class_width"]
    head = count_head(width, hidden, model["num_classes"], PYRAMID_LEVELS[pyramid])
    return count_pyramid(pyramid, model["dim"], width) + head
