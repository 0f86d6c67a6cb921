"""Detection metrics of nuScenes: mAP over distances, five errors of true positives, and their score NDS.

Source: "nuScenes: A multimodal dataset for autonomous driving" (CVPR 2020, section 3.1) and the rules of its detection
task; numbers agree with the devkit (see `tests/test_driving_metrics.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from modalities.driving.boxes import Boxes3D
from modalities.driving.geometry import points_in_boxes
from modalities.driving.nuscenes.classes import BIKE_RACK, CLASS_RANGES, DETECTION_CLASSES, NO_FRONT
from modalities.driving.scene import Annotations
from zoo.errors import ConfigError, DataError

__all__ = [
    "ERRORS",
    "MAX_BOXES",
    "DetectionScores",
    "Detections",
    "DetectionTruth",
    "score_detections",
]

ERRORS = ("ATE", "ASE", "AOE", "AVE", "AAE")
"""Errors of translation (m), scale (1 - IoU), orientation (rad), velocity (m/s) and attribute (1 - accuracy)."""

MAX_BOXES = 500
"""Most boxes predicted for a key frame."""

_MIN_RECALL, _MIN_PRECISION = 0.1, 0.1
_RECALLS = np.linspace(0, 1, 101)
_FIRST = round(100 * _MIN_RECALL) + 1  # of the recalls, the one at the least recall itself left out
_AP_WEIGHT = 5  # of mAP in NDS, each error weighs 1
# Errors that a class has not: cones look the same from all sides, and neither they nor barriers move.
_UNDEFINED = {"traffic_cone": ("AOE", "AVE", "AAE"), "barrier": ("AVE", "AAE")}


class Detections(NamedTuple):
    """Boxes predicted for one key frame.

    Attributes:
        boxes: M scored boxes, in the frame of the truth.
        attributes: M names of attributes, "" for none; an empty tuple for none at all.
    """

    boxes: Boxes3D
    attributes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class DetectionTruth:
    """What there was in one key frame, in any frame with z up (that of the car, or the global one).

    Attributes:
        boxes: M boxes; those with label -1 are left out.
        attributes: M names, "" for none; an empty tuple for none at all.
        num_points: (M,) int64 lidar and radar points in each box: those with 0 do not count, -1 is unknown.
        origin: Place of the car, from which the distance of boxes counts, (x, y) in metres.
        bike_racks: Bicycles and motorcycles in these are left out, labelled and predicted ones.
    """

    boxes: Boxes3D
    attributes: tuple[str, ...] = ()
    num_points: np.ndarray | None = None
    origin: tuple[float, float] = (0.0, 0.0)
    bike_racks: Boxes3D | None = None

    @staticmethod
    def of(annotations: Annotations, origin: tuple[float, float] = (0.0, 0.0)) -> DetectionTruth:
        """The truth from all annotations of a key frame, bicycle racks among them."""
        lidar, radar = annotations.num_lidar_points, annotations.num_radar_points
        known = np.where((lidar < 0) & (radar < 0), -1, np.maximum(lidar, 0) + np.maximum(radar, 0))
        racks = torch.tensor([name == BIKE_RACK for name in annotations.categories], dtype=torch.bool)
        return DetectionTruth(annotations.boxes, annotations.attributes, known, origin, annotations.boxes[racks])


@dataclass(frozen=True)
class DetectionScores:
    """Results of a set of key frames.

    Attributes:
        mean_ap: mAP, the mean over classes and distances.
        nds: The nuScenes detection score: mAP with weight 5 and, with weight 1 each, 1 - error (at least 0).
        errors: Mean of each of `ERRORS` over the classes that have it; 1 where none has.
        class_ap: By class, by distance in metres.
        class_errors: By class; NaN for errors that the class has not.
    """

    mean_ap: float
    nds: float
    errors: Mapping[str, float]
    class_ap: Mapping[str, Mapping[float, float]]
    class_errors: Mapping[str, Mapping[str, float]]

    def to_dict(self) -> dict[str, float]:
        """Numbers by name: mAP, NDS, mATE, mASE, mAOE, mAVE, mAAE, and AP_car and so on."""
        classes = {f"AP_{name}": float(np.mean(list(ap.values()))) for name, ap in self.class_ap.items()}
        means = {f"m{name}": value for name, value in self.errors.items()}
        return {"mAP": self.mean_ap, "NDS": self.nds, **means, **classes}


def score_detections(
    truth: Mapping[str, DetectionTruth],
    predictions: Mapping[str, Detections],
    *,
    classes: Sequence[str] = DETECTION_CLASSES,
    ranges: Mapping[str, float] = CLASS_RANGES,
    distances: Sequence[float] = (0.5, 1.0, 2.0, 4.0),
    error_distance: float = 2.0,
) -> DetectionScores:
    """Scores the predictions of a set of key frames.

    Args:
        truth: By token of the key frame.
        predictions: By token; every frame has an entry, if only of no boxes. Equal scores are ranked by the order of
            frames and boxes, later ones first, as the devkit does.
        classes: Names of labels 0, 1, ...; the means are over these. A class without any truth has an AP of 0.
        ranges: By class, distance from the car in metres below which boxes count.
        distances: Between centres, seen from above, below which a prediction can be right, in metres.
        error_distance: The one of them at which the errors of true positives are measured.

    Raises:
        DataError: If frames differ between truth and predictions, a prediction has no score, a label beyond the
            classes, or there are more than `MAX_BOXES` in a frame.
        ConfigError: If a range or the error distance is missing.
    """
    if missing := [name for name in classes if name not in ranges]:
        raise ConfigError(f"no evaluation range for {', '.join(missing)}")
    if not classes or error_distance not in distances:
        raise ConfigError(f"metrics need classes, and an error distance ({error_distance}) that is one of {distances}")
    _check(truth, predictions, len(classes))
    kept = {token: _keep(boxes, truth[token], classes, ranges) for token, boxes in predictions.items()}
    wanted = {
        token: _keep(Detections(scene.boxes, scene.attributes), scene, classes, ranges, scene.num_points)
        for token, scene in truth.items()
    }
    class_ap: dict[str, dict[float, float]] = {}
    class_errors: dict[str, dict[str, float]] = {}
    for label, name in enumerate(classes):
        ranked = _rank(label, name, wanted, kept, np.array(distances))
        class_ap[name] = {distance: ranked.average_precision(row) for row, distance in enumerate(distances)}
        errors = ranked.mean_errors(list(distances).index(error_distance))
        undefined = _UNDEFINED.get(name, ())
        class_errors[name] = {key: math.nan if key in undefined else value for key, value in errors.items()}
    mean_ap = float(np.mean([np.mean(list(ap.values())) for ap in class_ap.values()]))
    means: dict[str, float] = {}
    for key in ERRORS:
        known = [errors[key] for errors in class_errors.values() if not math.isnan(errors[key])]
        means[key] = float(np.mean(known)) if known else 1.0
    total = _AP_WEIGHT * mean_ap + sum(max(0.0, 1 - value) for value in means.values())
    return DetectionScores(mean_ap, total / (_AP_WEIGHT + len(ERRORS)), means, class_ap, class_errors)


class _Kept(NamedTuple):
    """Boxes that count, as float64 arrays: box (M, 9), label (M,), score (M,), attributes (M,)."""

    box: np.ndarray
    label: np.ndarray
    score: np.ndarray
    attribute: np.ndarray


def _check(truth: Mapping[str, DetectionTruth], predictions: Mapping[str, Detections], classes: int) -> None:
    if set(truth) != set(predictions):
        lacking, extra = sorted(set(truth) - set(predictions)), sorted(set(predictions) - set(truth))
        raise DataError(
            f"metrics: key frames differ: {len(lacking)} have no predictions ({', '.join(lacking[:3])}), "
            f"{len(extra)} predicted ones no truth ({', '.join(extra[:3])})"
        )
    for token, (boxes, attributes) in predictions.items():
        if boxes.score is None:
            raise DataError(f"metrics: the predictions of {token} have no scores")
        if len(boxes) > MAX_BOXES:
            raise DataError(f"metrics: {len(boxes)} boxes predicted for {token}; at most {MAX_BOXES} count")
        if attributes and len(attributes) != len(boxes):
            raise DataError(f"metrics: {len(boxes)} boxes of {token}, but {len(attributes)} attributes")
        if len(boxes) and not (int(boxes.label.min()) >= 0 and int(boxes.label.max()) < classes):
            raise DataError(f"metrics: predictions of {token} have labels that are none of the {classes} classes")


def _keep(
    found: Detections,
    scene: DetectionTruth,
    classes: Sequence[str],
    ranges: Mapping[str, float],
    points: np.ndarray | None = None,
) -> _Kept:
    """Leaves out what does not count: too far, without points, in a bicycle rack."""
    boxes = found.boxes.to("cpu")
    label = boxes.label.numpy()
    box = boxes.as_tensor().double().numpy()
    limit = np.array([ranges[name] for name in classes] + [-1.0])  # the last for label -1, and beyond the classes
    known = (label >= 0) & (label < len(classes))
    keep = np.hypot(box[:, 0] - scene.origin[0], box[:, 1] - scene.origin[1]) < limit[np.where(known, label, -1)]
    if points is not None:
        keep &= points != 0
    if scene.bike_racks is not None and len(scene.bike_racks):
        cycles = [number for number, name in enumerate(classes) if name in ("bicycle", "motorcycle")]
        inside = points_in_boxes(boxes.centre.double(), scene.bike_racks.to("cpu", torch.float64)).any(0).numpy()
        keep &= ~(np.isin(label, cycles) & inside)
    score = np.zeros(len(label)) if boxes.score is None else boxes.score.double().numpy()
    attribute = np.array(found.attributes or ("",) * len(label), dtype=object)
    return _Kept(box[keep], label[keep], score[keep], attribute[keep])


@dataclass(frozen=True)
class _Ranked:
    """Predictions of a class of all frames, best first.

    Attributes:
        positives: How many boxes there were to find.
        score: (P,).
        right: (distances, P) bool.
        errors: (distances, P, errors), meaningful where right.
    """

    positives: int
    score: np.ndarray
    right: np.ndarray
    errors: np.ndarray

    def average_precision(self, row: int) -> float:
        """Area under the precision above the least one, over recalls above the least one, of at most 1."""
        if not self.positives or not self.right[row].any():
            return 0.0
        hits = np.cumsum(self.right[row])
        precision = hits / np.arange(1, len(hits) + 1)
        precision = np.interp(_RECALLS, hits / self.positives, precision, right=0)[_FIRST:]
        return float(np.maximum(precision - _MIN_PRECISION, 0).mean()) / (1 - _MIN_PRECISION)

    def mean_errors(self, row: int) -> dict[str, float]:
        """Running means of the errors, averaged over the recalls reached; 1 where the least recall is not."""
        right = self.right[row]
        if not self.positives or not right.any():
            return dict.fromkeys(ERRORS, 1.0)
        recall = np.cumsum(right) / self.positives
        confidence = np.interp(_RECALLS, recall, self.score, right=0)
        reached = np.flatnonzero(confidence)
        last = int(reached[-1]) if len(reached) else 0
        if last < _FIRST:
            return dict.fromkeys(ERRORS, 1.0)
        found, scores = {}, self.score[right][::-1]
        for column, name in enumerate(ERRORS):
            running = _running_mean(self.errors[row, right, column])
            resampled = np.interp(confidence[::-1], scores, running[::-1])[::-1]
            found[name] = float(resampled[_FIRST : last + 1].mean())
        return found


def _running_mean(values: np.ndarray) -> np.ndarray:
    """Mean of the values so far that are known; 0 before the first of them, 1 throughout where there is none."""
    known = ~np.isnan(values)
    if not known.any():
        return np.ones(len(values))
    count = np.cumsum(known)
    return np.where(count > 0, np.nancumsum(values) / np.maximum(count, 1), 0.0)


def _rank(
    label: int, name: str, truth: Mapping[str, _Kept], predictions: Mapping[str, _Kept], distances: np.ndarray
) -> _Ranked:
    """Matches the predictions of a class frame by frame, then ranks them over all frames."""
    scores, rights, errors = [np.zeros(0)], [np.zeros((len(distances), 0), bool)], []
    errors.append(np.zeros((len(distances), 0, len(ERRORS))))
    positives = 0
    for kept in truth.values():
        positives += int((kept.label == label).sum())
    for token, kept in predictions.items():
        rows, columns = np.flatnonzero(kept.label == label), np.flatnonzero(truth[token].label == label)
        if not len(rows):
            continue
        right, error = _match(_take(kept, rows), _take(truth[token], columns), distances, name)
        scores.append(kept.score[rows])
        rights.append(right)
        errors.append(error)
    score = np.concatenate(scores)
    order = _best_first(score)
    return _Ranked(positives, score[order], np.concatenate(rights, 1)[:, order], np.concatenate(errors, 1)[:, order])


def _take(kept: _Kept, rows: np.ndarray) -> _Kept:
    return _Kept(*(values[rows] for values in kept))


def _best_first(score: np.ndarray) -> np.ndarray:
    """Order from the highest score; equal ones from the last."""
    return np.lexsort((-np.arange(len(score)), -score))


def _match(found: _Kept, truth: _Kept, distances: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Gives each prediction of a frame, best first, the nearest box of the truth that is still free.

    Returns:
        (distances, P) bool, and (distances, P, errors) float64.
    """
    right = np.zeros((len(distances), len(found.score)), bool)
    errors = np.full((*right.shape, len(ERRORS)), math.nan)
    if not len(truth.label):
        return right, errors
    apart = np.linalg.norm(found.box[:, None, :2] - truth.box[None, :, :2], axis=-1)
    every = _errors(found, truth, apart, name)
    near = apart.min(1) < distances.max()
    levels = np.arange(len(distances))
    taken = np.zeros((len(distances), len(truth.label)), bool)
    for row in _best_first(found.score):
        if not near[row]:
            continue
        free = np.where(taken, np.inf, apart[row])
        nearest = free.argmin(1)
        hit = free[levels, nearest] < distances
        taken[levels[hit], nearest[hit]] = True
        right[hit, row] = True
        errors[hit, row] = every[row, nearest[hit]]
    return right, errors


def _errors(found: _Kept, truth: _Kept, apart: np.ndarray, name: str) -> np.ndarray:
    """(P, G, errors) of all pairs; NaN where the truth does not know."""
    one, two = found.box[:, None], truth.box[None]
    common = np.minimum(one[..., 3:6], two[..., 3:6]).prod(-1)
    union = one[..., 3:6].prod(-1) + two[..., 3:6].prod(-1) - common
    scale = 1 - common / np.where(union > 0, union, 1.0)
    period = math.pi if name in NO_FRONT else 2 * math.pi
    turn = np.abs((two[..., 6] - one[..., 6] + period / 2) % period - period / 2)
    speed = np.linalg.norm(one[..., 7:9] - two[..., 7:9], axis=-1)
    wrong = (found.attribute[:, None] != truth.attribute[None]).astype(np.float64)
    wrong[:, truth.attribute == ""] = math.nan
    return np.stack([apart, scale, turn, speed, wrong], -1)
