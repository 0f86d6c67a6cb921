"""COCO metrics of detected boxes, for every modality.

Average precision as the COCO evaluation has it (Lin et al., 2014, arXiv 1405.0312): detections are matched greedily by
score within a picture and a class, precision is interpolated at 101 recalls and averaged over classes and the IoU
thresholds 0.50, 0.55, ... 0.95.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from zoo.errors import ConfigError, DataError, require

__all__ = ["CocoMetrics", "measured", "require_metrics"]

# Areas in pixels; an area on a bound is on both of its sides.
_RANGES = {"small": [0, 32**2], "medium": [32**2, 96**2], "large": [96**2, 1e5**2]}
_LOG = logging.getLogger(__name__)


class CocoMetrics:
    """Gathers the detections and the true boxes of pictures, then measures.

    Args:
        num_classes: Classes are 0 to num_classes - 1.
        max_detections: Only so many detections of a class in a picture count, the best ones.
        class_names: For the keys of the results; `None` = the numbers.

    Raises:
        ConfigError: If a number is not positive, or there are not as many names as classes.
    """

    def __init__(
        self, num_classes: int, max_detections: int = 100, *, class_names: Sequence[str] | None = None
    ) -> None:
        for name, value in {"num_classes": num_classes, "max_detections": max_detections}.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} must be a whole number of 1 or more, got {value!r:.80}")
        if class_names is not None and len(class_names) != num_classes:
            raise ConfigError(f"{len(class_names)} class names for {num_classes} classes")
        self.num_classes, self.max_detections = num_classes, max_detections
        self.class_names = [str(index) for index in range(num_classes)] if class_names is None else list(class_names)
        self._found: list[dict[str, Any]] = []
        self._truth: list[dict[str, Any]] = []
        self._pictures = 0

    def __len__(self) -> int:
        return self._pictures

    def add(
        self,
        boxes: Any,
        scores: Any,
        labels: Any,
        target_boxes: Any,
        target_labels: Any,
        *,
        crowd: Any = None,
        area: Any = None,
    ) -> None:
        """Adds one picture.

        Args:
            boxes: (n, 4) array, tensor or list: detected x1, y1, x2, y2 in pixels; n may be 0.
            scores: (n,).
            labels: (n,) class indices.
            target_boxes: (m, 4) true boxes, in the same pixels; m may be 0.
            target_labels: (m,).
            crowd: (m,) True for boxes around a group: they count neither as found nor as missed, and detections inside
                of them are not wrong. `None` = none.
            area: (m,) in square pixels, which decides what is small and large; `None` = of the boxes (COCO has that of
                the outlines).

        Raises:
            DataError: If shapes do not fit, a class does not exist, a value is not finite, or a true box ends before it
                begins.
        """
        where = f"picture {self._pictures}"
        found = _boxes(boxes, f"{where}: boxes")
        truth = _boxes(target_boxes, f"{where}: target_boxes")
        found_scores = _column(scores, len(found), f"{where}: scores")
        found_labels = self._labels(labels, len(found), f"{where}: labels")
        labels_ = self._labels(target_labels, len(truth), f"{where}: target_labels")
        sides = truth[:, 2:] - truth[:, :2]
        if (sides < 0).any():
            raise DataError(f"{where}: a target box has x2 < x1 or y2 < y1: {truth[(sides < 0).any(axis=1)][0]}")
        crowds = np.zeros(len(truth)) if crowd is None else _column(crowd, len(truth), f"{where}: crowd")
        areas = sides.prod(axis=1) if area is None else _column(area, len(truth), f"{where}: area")
        found[:, 2:] = (found[:, 2:] - found[:, :2]).clip(min=0)
        truth[:, 2:] = sides
        picture = self._pictures
        self._pictures += 1
        for box, score, label in zip(found.tolist(), found_scores.tolist(), found_labels.tolist(), strict=True):
            self._found.append({"image_id": picture, "category_id": label, "bbox": box, "score": score})
        for box, label, group, size in zip(
            truth.tolist(), labels_.tolist(), crowds.tolist(), areas.tolist(), strict=True
        ):
            about = {"image_id": picture, "category_id": label, "bbox": box, "iscrowd": int(bool(group)), "area": size}
            self._truth.append({"id": len(self._truth) + 1, **about})

    def compute(self) -> dict[str, float]:
        """The metrics of all pictures so far, in percent.

        Returns:
            `map` (over IoU 0.50 to 0.95), `ap50`, `ap75`; `ap_small`, `ap_medium`, `ap_large`: that of objects below
            32^2 pixels, up to 96^2, and above; `ar`: the share of objects found over the same IoUs; and `map/NAME` for
            every class. What there are no true boxes for (a class, a size, or anything at all) is NaN, and does not
            enter the means; objects without detections give 0.

        Raises:
            MissingDependencyError: If `faster-coco-eval` is not installed.
        """
        precision, recall = self._evaluate()
        values = {
            "map": _mean(precision[:, :, :, 0]),
            "ap50": _mean(precision[0, :, :, 0]),
            "ap75": _mean(precision[5, :, :, 0]),
            **{f"ap_{name}": _mean(precision[:, :, :, 1 + i]) for i, name in enumerate(_RANGES)},
            "ar": _mean(recall[:, :, 0]),
        }
        return values | {f"map/{name}": _mean(precision[:, :, i, 0]) for i, name in enumerate(self.class_names)}

    def _labels(self, values: Any, count: int, where: str) -> np.ndarray:
        labels = _column(values, count, where)
        if len(labels) and ((labels != labels.round()) | (labels < 0) | (labels >= self.num_classes)).any():
            raise DataError(f"{where} must lie in 0..{self.num_classes - 1}, got {labels.min():g} to {labels.max():g}")
        return labels.astype(np.int64)

    def _evaluate(self) -> tuple[np.ndarray, np.ndarray]:
        """Precision (IoU, recall, class, size) and recall (IoU, class, size); -1 where there is nothing to find."""
        library = require_metrics()
        truth = library.COCO(
            {
                "images": [{"id": index} for index in range(self._pictures)],
                "categories": [{"id": index} for index in range(self.num_classes)],
                "annotations": [dict(one) for one in self._truth],
            },
            print_function=_LOG.debug,
        )
        if not self._truth:
            return -np.ones((10, 101, self.num_classes, 4)), -np.ones((10, self.num_classes, 4))
        found = truth.loadRes([dict(one) for one in self._found])
        run = library.COCOeval_faster(truth, found, iouType="bbox", ranges=_RANGES, print_function=_LOG.debug)
        run.params.maxDets = [self.max_detections]
        run.evaluate()
        run.accumulate()
        return np.asarray(run.eval["precision"])[..., 0], np.asarray(run.eval["recall"])[..., 0]


def require_metrics() -> ModuleType:
    """The library that computes the metrics; asked for before long work whose end needs it.

    Raises:
        MissingDependencyError: If `faster-coco-eval` is not installed.
    """
    return require("faster_coco_eval", extra="detection")


def measured(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics that are numbers, for JSON, which has no NaN."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def _mean(values: np.ndarray) -> float:
    there = values[values > -1]
    return 100 * float(there.mean()) if there.size else math.nan


def _array(values: Any, where: str) -> np.ndarray:
    if hasattr(values, "detach"):  # A tensor, on any device and of any dtype.
        values = values.detach().cpu().double().numpy()
    try:
        array = np.array(values, dtype=np.float64)  # A copy: what is added stays as it was.
    except (TypeError, ValueError) as error:
        raise DataError(f"{where} must be numbers, got {type(values).__name__}") from error
    if not np.isfinite(array).all():
        raise DataError(f"{where} must be finite")
    return array


def _boxes(values: Any, where: str) -> np.ndarray:
    array = _array(values, where)
    array = array.reshape(0, 4) if array.size == 0 else array
    if array.ndim != 2 or array.shape[1] != 4:
        raise DataError(f"{where} must be (n, 4), got {array.shape}")
    return array


def _column(values: Any, count: int, where: str) -> np.ndarray:
    array = _array(values, where)
    if array.shape != (count,):
        raise DataError(f"{where} must be ({count},), one for each box, got {array.shape}")
    return array
