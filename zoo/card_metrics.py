"""The metrics that cards show, by task: names in results files, headings, and what the Hub calls them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = [
    "CLASS_PREFIX",
    "MAIN_METRICS",
    "digits",
    "heading",
    "hub_type",
    "item_key",
    "measured_metrics",
    "note",
    "size_text",
    "smaller_is_better",
    "unit",
]

# Task -> metric of a results file -> heading. All are in percent but those of `_NATS`.
MAIN_METRICS: dict[str, dict[str, str]] = {
    "classification": {
        "top1": "top-1",
        "macc": "class mean",
        "top1_voted": "top-1, voted",
        "top1_so3": "top-1, turned",
    },
    "segmentation": {
        "miou": "mIoU",
        "miou_voted": "mIoU, voted",
        "macc": "class mean",
        "accuracy": "accuracy",
    },
    "detection": {
        "map": "mAP",
        "nds": "NDS",
        "ap50": "AP50",
        "ap75": "AP75",
        "ap_small": "AP small",
        "ap_medium": "AP medium",
        "ap_large": "AP large",
        "ar": "AR",
    },
    "generation": {
        "nll": "NLL of a token",
        "nll_frame": "NLL of a frame",
        "accuracy": "accuracy",
        "exact": "without a fault",
    },
}
_NATS = ("nll", "nll_frame")
CLASS_PREFIX = "map/"
"""Before the name of a class, the metric that is its average precision."""
IOU_PREFIX = "iou/"
"""The same for its intersection over union."""
_PREFIXES = {CLASS_PREFIX: "mAP", IOU_PREFIX: "IoU"}

_NOTES = {
    "classification": "Top-1: the share of samples whose best class is right, in percent.",
    "segmentation": (
        "mIoU: intersection over union, mean over the classes that are true or predicted, in percent of all points of "
        "the split that have a class. Class mean: the share of right points, mean over the classes. Voted: mean "
        "probabilities over turned and scaled copies."
    ),
    "detection": (
        "The metrics of COCO, in percent. mAP: average precision, mean over the IoU thresholds 0.50 to 0.95 and the "
        "classes; AP50 and AP75 at one threshold; small, medium and large objects are below 32 x 32 px, below 96 x 96 "
        "px, and above. AR: recall of the best 100 detections, mean over the same thresholds and classes."
    ),
    "generation": (
        "NLL: negative log-likelihood in nats, mean over the tokens that are scored (of a frame of music: all its "
        "tokens together). Accuracy: the share of tokens that the model finds likeliest. Without a fault: the share of "
        "sequences in which it is right about all of them."
    ),
    "driving detection": (
        "The metrics of nuScenes, in percent, over the classes of the model. mAP: average precision, mean over the "
        "classes and over the distances of 0.5, 1, 2 and 4 m, seen from above, within which the centre of a box is "
        "right. NDS: mean of mAP (weight 5) and of one score each for place, size, heading, velocity and attribute of "
        "the boxes found."
    ),
}


def note(modality: str, task: str) -> str:
    """What the metrics of a table are, in words."""
    return _NOTES.get(f"{modality} {task}") or _NOTES[task]


def heading(metric: str) -> str:
    """Heading of a metric, for example `"AP50"`; of a class the name is as the data have it, not escaped."""
    for prefix, short in _PREFIXES.items():
        if metric.startswith(prefix):
            return f"{short} of {metric.removeprefix(prefix)}"
    return next((names[metric] for names in MAIN_METRICS.values() if metric in names), metric)


def unit(metric: str) -> str:
    """What a metric is counted in."""
    return "nats" if metric in _NATS else "%"


def smaller_is_better(metric: str) -> bool:
    """Whether a metric is a loss: of the others more is better."""
    return metric in _NATS


def digits(metric: str) -> int:
    """Digits after the point that are kept of a metric; tables show one less of percentages."""
    return 4 if metric in _NATS else 2


def hub_type(metric: str) -> str:
    """Type of a metric in a `model-index`; the list of the Hub has none for COCO's, which go by their usual names."""
    if metric.startswith("top1"):
        return "accuracy"
    return "mAP" if metric.startswith(CLASS_PREFIX) else heading(metric)


def measured_metrics(task: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics of a row of a results file that cards show, main ones first, values as they are."""
    main = MAIN_METRICS[task]
    found = {key: row[key] for key in main if key in row}
    found |= {str(key): value for key, value in row.items() if str(key).startswith(tuple(_PREFIXES))}
    return found


def item_key(item: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a measured number of a record is of: another number with the same key is of the same thing."""
    size = item["size"]
    size = tuple(size) if isinstance(size, list) else size
    return (item["dataset"], item["split"], size, item["metric"], item.get("extend"), item.get("condition"))


def size_text(size: Any, modality: str = "image") -> str:
    """A size of a record, for example `"112 px"`, `"240 x 320 px"` (height x width) or `"1024 points"`.

    Of sequences it is tokens, or what the condition of the record says.
    """
    if modality == "sequence":
        return f"size {size}"
    unit = "points" if modality == "points" else "px"
    return f"{' x '.join(map(str, size)) if isinstance(size, (list, tuple)) else size} {unit}"
