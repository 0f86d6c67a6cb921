"""Average precision of KITTI: in the picture, from above and in 3-D, at three difficulties, over 40 recalls.

Source: "Are we ready for autonomous driving? The KITTI vision benchmark suite" (CVPR 2012) with the rules of its
object benchmark; 40 recalls instead of 11 since "Disentangling monocular 3D object detection" (ICCV 2019).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from modalities.driving.iou import iou_3d, iou_bev
from modalities.driving.kitti import CLASSES, DONT_CARE, KittiObject
from zoo.errors import ConfigError, DataError

__all__ = ["DIFFICULTIES", "OVERLAPS", "score_kitti"]

OVERLAPS = ("2d", "bev", "3d")
"""What must overlap: boxes in the picture, outlines from above, volumes."""

_MIN_IOU = {"Car": 0.7, "Pedestrian": 0.5, "Cyclist": 0.5}
# Labels of these neither count as missed nor their detections as wrong.
_NEIGHBOURS = {"Car": ("Van",), "Pedestrian": ("Person_sitting",)}
_RECALLS = 41
_OTHER, _COUNTS, _IGNORED = -1, 0, 1


class _Difficulty(NamedTuple):
    min_height: float  # of the box in the picture, pixels
    max_occluded: int
    max_truncated: float


DIFFICULTIES = {
    "easy": _Difficulty(40, 0, 0.15),
    "moderate": _Difficulty(25, 1, 0.30),
    "hard": _Difficulty(25, 2, 0.50),
}
"""Which labels count: least height in the picture, most occlusion and truncation."""


class _Frame(NamedTuple):
    """A frame for one class and difficulty.

    Attributes:
        truth: (G,) whether each label counts or is ignored; those of other classes are left out.
        found: (P,) whether each detection counts, is ignored, or is of another class.
        score: (P,).
        pairs: By label, the detections (not of other classes) that overlap it enough, and how much.
        loose: Scores of detections that count, and are wrong unless a label takes them; sorted.
        excused: Detections in regions that are not labelled.
    """

    truth: list[int]
    found: list[int]
    score: list[float]
    pairs: list[list[tuple[int, float]]]
    loose: np.ndarray
    excused: frozenset[int]


def score_kitti(
    truth: Mapping[str, Sequence[KittiObject]],
    found: Mapping[str, Sequence[KittiObject]],
    *,
    classes: Sequence[str] = CLASSES,
) -> dict[str, dict[str, dict[str, float]]]:
    """AP40 by class, by overlap ("2d", "bev", "3d") and by difficulty, in 0..1.

    As in the official evaluation the score is the mean precision at recalls 1/40 to 1. Recalls are placed at scores of
    true positives, so that with fewer than about 80 labels even perfect detections stay below 1.

    Args:
        truth: Labels by frame.
        found: Results by frame, with scores; every frame has an entry, if only an empty one.
        classes: Which of the evaluated classes.

    Raises:
        DataError: If frames differ, or a result has no score.
        ConfigError: If a class is not evaluated.
    """
    if unknown := [name for name in classes if name not in _MIN_IOU]:
        raise ConfigError(f"KITTI evaluates {', '.join(_MIN_IOU)}, not {', '.join(unknown)}")
    if set(truth) != set(found):
        differ = sorted(set(truth) ^ set(found))
        raise DataError(f"KITTI metrics: {len(differ)} frames are only in one of truth and results: {differ[:3]}")
    for token, objects in found.items():
        if any(thing.score is None for thing in objects):
            raise DataError(f"KITTI metrics: the results of frame {token} have no scores")
    scores: dict[str, dict[str, dict[str, float]]] = {name: {} for name in classes}
    for kind in OVERLAPS:
        pairs = {token: _overlaps(truth[token], found[token], kind) for token in truth}
        for name in classes:
            scores[name][kind] = {}
            for difficulty, limits in DIFFICULTIES.items():
                frames = []
                for token in truth:
                    frame = _frame(truth[token], found[token], pairs[token], name, limits, kind)
                    if len(frame.truth) or len(frame.found):
                        frames.append(frame)
                scores[name][kind][difficulty] = _average_precision(frames)
    return scores


def _average_precision(frames: Sequence[_Frame]) -> float:
    hits = sorted((score for frame in frames for score in _recall_scores(frame)), reverse=True)
    count = sum(frame.truth.count(_COUNTS) for frame in frames)
    precision = np.zeros(_RECALLS)
    for number, threshold in enumerate(_thresholds(hits, count)):
        counts = [_count(frame, threshold) for frame in frames]
        right, wrong = (sum(values) for values in zip(*counts, strict=True))
        precision[number] = right / (right + wrong) if right + wrong else 0.0
    precision = np.maximum.accumulate(precision[::-1])[::-1]
    return float(precision[1:].mean())


def _thresholds(scores: Sequence[float], count: int) -> list[float]:
    """Scores (from the highest) at which the recall comes nearest to 0, 1/40, ... 1."""
    found: list[float] = []
    recall = 0.0
    for number, score in enumerate(scores):
        last = number == len(scores) - 1
        here, after = (number + 1) / count, (number + 2) / count
        if not last and after - recall < recall - here:
            continue
        found.append(score)
        recall += 1 / (_RECALLS - 1)
    return found[:_RECALLS]


def _recall_scores(frame: _Frame) -> list[float]:
    """Scores of the detections that labels get when each takes the best-scored one on it."""
    taken: set[int] = set()
    found = []
    for kind, pairs in zip(frame.truth, frame.pairs, strict=True):
        free = [index for index, _ in pairs if index not in taken]
        if not free:
            continue
        best = max(free, key=frame.score.__getitem__)
        taken.add(best)
        if kind == _COUNTS and frame.found[best] == _COUNTS:
            found.append(frame.score[best])
    return found


def _count(frame: _Frame, threshold: float) -> tuple[int, int]:
    """Right and wrong detections of at least a score, when each label takes the one that overlaps it most."""
    taken: set[int] = set()
    right = 0
    for kind, pairs in zip(frame.truth, frame.pairs, strict=True):
        free = [pair for pair in pairs if pair[0] not in taken and frame.score[pair[0]] >= threshold]
        if not free:
            continue
        # One that is too small to count is taken only where there is no other.
        good = [pair for pair in free if frame.found[pair[0]] == _COUNTS]
        best = max(good, key=lambda pair: pair[1])[0] if good else free[0][0]
        taken.add(best)
        right += kind == _COUNTS and bool(good)
    wrong = len(frame.loose) - int(np.searchsorted(frame.loose, threshold))
    settled = sum(frame.found[index] == _COUNTS and index not in frame.excused for index in taken)
    return right, wrong - settled


def _frame(
    truth: Sequence[KittiObject],
    found: Sequence[KittiObject],
    overlap: np.ndarray,
    name: str,
    limits: _Difficulty,
    kind: str,
) -> _Frame:
    kinds: list[int] = []
    pairs: list[list[tuple[int, float]]] = []
    states = [_state(thing, name, limits) for thing in found]
    scores = [0.0 if thing.score is None else thing.score for thing in found]
    for thing, row in zip(truth, overlap, strict=True):
        if thing.type != name and thing.type not in _NEIGHBOURS.get(name, ()):
            continue
        hard = thing.occluded > limits.max_occluded or thing.truncated > limits.max_truncated
        counts = thing.type == name and not hard and _height(thing) > limits.min_height
        kinds.append(_COUNTS if counts else _IGNORED)
        near = np.flatnonzero(row > _MIN_IOU[name]).tolist()
        pairs.append([(index, float(row[index])) for index in near if states[index] != _OTHER])
    excused: frozenset[int] = frozenset()
    if kind == "2d":  # regions without labels are known in the picture alone
        common, _, area = _common([thing for thing in truth if thing.type == DONT_CARE], found)
        excused = frozenset(np.flatnonzero((common > _MIN_IOU[name] * area).any(0)).tolist())
    loose = [scores[i] for i, state in enumerate(states) if state == _COUNTS and i not in excused]
    return _Frame(kinds, states, scores, pairs, np.sort(np.array(loose, dtype=np.float64)), excused)


def _state(thing: KittiObject, name: str, limits: _Difficulty) -> int:
    if _height(thing) < limits.min_height:  # whatever its class, as in the official evaluation
        return _IGNORED
    return _COUNTS if thing.type == name else _OTHER


def _height(thing: KittiObject) -> float:
    return abs(thing.box[3] - thing.box[1])


def _common(first: Sequence[KittiObject], second: Sequence[KittiObject]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Common area (G, P) of boxes in the picture, and their own areas (G, 1) and (1, P)."""
    one, two = (np.array([thing.box for thing in things]).reshape(-1, 4) for things in (first, second))
    low = np.maximum(one[:, None, :2], two[None, :, :2])
    high = np.minimum(one[:, None, 2:], two[None, :, 2:])
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(1) for boxes in (one, two)]
    return np.clip(high - low, 0, None).prod(-1), areas[0][:, None], areas[1][None]


def _overlaps(truth: Sequence[KittiObject], found: Sequence[KittiObject], kind: str) -> np.ndarray:
    """(G, P) intersection over union."""
    if kind == "2d":
        common, one, two = _common(truth, found)
        return common / np.maximum(one + two - common, 1e-12)
    overlap = iou_bev if kind == "bev" else iou_3d
    return overlap(_upright(truth), _upright(found)).numpy()


def _upright(objects: Sequence[KittiObject]) -> torch.Tensor:
    """(M, 7) boxes in the rectified camera frame turned upright: x right, y towards the viewer, z up."""
    rows = []
    for thing in objects:
        height, width, length = (max(value, 0.0) for value in thing.size)
        x, y, z = thing.bottom
        # Seen from above with axes x and -z, rotation_y turns counter-clockwise.
        rows.append([x, -z, -y + height / 2, length, width, height, thing.rotation_y])
    return torch.tensor(rows, dtype=torch.float64).reshape(-1, 7)
