"""COCO metrics: against values by hand, against a plain reference on random boxes with crowds, and torchmetrics."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from zoo.detection.metrics import CocoMetrics, measured
from zoo.errors import ConfigError, DataError, MissingDependencyError

try:
    import faster_coco_eval  # noqa: F401
except ImportError:
    pytest.skip("faster-coco-eval is not installed (extra detection)", allow_module_level=True)

Picture = dict[str, Any]
NOTHING = np.zeros((0, 4))
SIZES = {"small": (0, 32**2), "medium": (32**2, 96**2), "large": (96**2, 1e10)}
IOUS = np.linspace(0.5, 0.95, 10)


def overlap(found: np.ndarray, truth: np.ndarray, crowd: bool) -> float:
    inner = np.minimum(found[2:], truth[2:]) - np.maximum(found[:2], truth[:2])
    shared = inner.clip(0).prod()
    area, other = (found[2:] - found[:2]).prod(), (truth[2:] - truth[:2]).prod()
    return shared / area if crowd else shared / (area + other - shared)


def reference(pictures: list[Picture], classes: int, most: int, bounds: tuple[float, float], threshold: float) -> Any:
    """AP of every class at one IoU, straight from the definition; `None` where there is nothing to find."""
    values = []
    for label in range(classes):
        hits: list[tuple[float, bool]] = []
        wanted = 0
        for picture in pictures:
            mine = picture["target_labels"] == label
            truth, crowd, area = (picture[key][mine] for key in ("target_boxes", "crowd", "area"))
            ignored = crowd | (area < bounds[0]) | (area > bounds[1])
            wanted += int((~ignored).sum())
            of_class = picture["labels"] == label
            order = np.argsort(-picture["scores"][of_class], kind="stable")[:most]
            free = np.ones(len(truth), dtype=bool)
            for box, score in zip(picture["boxes"][of_class][order], picture["scores"][of_class][order], strict=True):
                shares = np.array([overlap(box, t, c) for t, c in zip(truth, crowd, strict=True)])
                choice = None
                for candidates in (free & ~ignored, ignored & (free | crowd)):  # What counts comes first.
                    fits = [i for i in np.flatnonzero(candidates) if shares[i] >= threshold]
                    if fits:
                        choice = max(fits, key=lambda i: (shares[i], i))
                        break
                if choice is not None:
                    free[choice] = False
                    if not ignored[choice]:
                        hits.append((score, True))
                elif bounds[0] <= (box[2:] - box[:2]).prod() <= bounds[1]:
                    hits.append((score, False))
        if not wanted:
            values.append(None)
            continue
        hits.sort(key=lambda hit: -hit[0])
        right = np.cumsum([hit[1] for hit in hits], dtype=float)
        recall, precision = right / wanted, right / np.arange(1, len(hits) + 1)
        points = [
            max((p for r, p in zip(recall, precision, strict=True) if r >= at), default=0.0)
            for at in np.linspace(0, 1, 101)
        ]
        values.append(float(np.mean(points)))
    return values


def mean(values: list[Any]) -> float:
    there = [value for value in values if value is not None]
    return 100 * float(np.mean(there)) if there else math.nan


def random_pictures(seed: int, count: int = 12, classes: int = 3) -> list[Picture]:
    rng = np.random.default_rng(seed)
    pictures = []
    for _ in range(count):
        number = int(rng.integers(0, 6))
        corner, side = rng.uniform(0, 200, (number, 2)), np.exp(rng.uniform(np.log(8), np.log(200), (number, 2)))
        truth = np.concatenate([corner, corner + side], axis=1)
        copies = truth[rng.integers(0, number, 2 * number)] if number else NOTHING
        copies = copies + rng.normal(0, 4, copies.shape)
        noise = rng.uniform(0, 200, (3, 2))
        found = np.concatenate([copies, np.concatenate([noise, noise + rng.uniform(5, 100, (3, 2))], axis=1)])
        found[:, 2:] = np.maximum(found[:, 2:], found[:, :2] + 1)
        pictures.append({
            "boxes": found,
            "scores": rng.permutation(len(found)) / 100 + rng.uniform(0, 0.009, len(found)),
            "labels": rng.integers(0, classes, len(found)),
            "target_boxes": truth,
            "target_labels": rng.integers(0, classes, number),
            "crowd": rng.random(number) < 0.2,
            "area": side.prod(axis=1) * rng.uniform(0.5, 1, number),
        })  # fmt: skip
    return pictures


def metrics_of(pictures: list[Picture], classes: int = 3, **options: Any) -> dict[str, float]:
    metrics = CocoMetrics(classes, **options)
    for picture in pictures:
        metrics.add(**picture)
    return metrics.compute()


def one(boxes: Any, scores: Any, labels: Any, target_boxes: Any, target_labels: Any, **more: Any) -> dict[str, float]:
    metrics = CocoMetrics(2)
    metrics.add(boxes, scores, labels, target_boxes, target_labels, **more)
    return metrics.compute()


def test_values_by_hand() -> None:
    truth = [[0, 0, 20, 20], [50, 50, 90, 90]]
    perfect = one(truth, [0.9, 0.8], [0, 1], truth, [0, 1])
    assert {perfect[k] for k in ("map", "ap50", "ap75", "ap_small", "ap_medium", "ar", "map/0", "map/1")} == {100.0}
    assert math.isnan(perfect["ap_large"])
    # Overlap 18 / 20 = 0.9: right at the nine thresholds up to 0.9.
    shifted = one([[0, 0, 20, 18]], [0.9], [0], truth[:1], [0])
    assert shifted["map"] == pytest.approx(90) and shifted["ap50"] == shifted["ap75"] == pytest.approx(100)
    # A wrong one above the right one halves the precision; below, it costs nothing.
    above = one([[30, 30, 40, 40], [0, 0, 20, 20]], [0.9, 0.8], [0, 0], truth[:1], [0])
    below = one([[30, 30, 40, 40], [0, 0, 20, 20]], [0.7, 0.8], [0, 0], truth[:1], [0])
    assert above["map"] == pytest.approx(50) and below["map"] == pytest.approx(100)
    # One of two found: recall 0.5 at precision 1 covers 51 of the 101 points.
    half = one([[0, 0, 20, 20]], [0.9], [0], truth, [0, 0])
    assert half["map"] == pytest.approx(100 * 51 / 101) and half["ar"] == pytest.approx(50)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("most", [3, 100])
def test_agrees_with_a_plain_reference(seed: int, most: int) -> None:
    pictures = random_pictures(seed)
    found = metrics_of(pictures, max_detections=most)
    whole = [reference(pictures, 3, most, (0, 1e10), threshold) for threshold in IOUS]
    assert found["map"] == pytest.approx(mean(sum(whole, [])), abs=1e-6)
    assert found["ap50"] == pytest.approx(mean(whole[0]), abs=1e-6)
    assert found["ap75"] == pytest.approx(mean(whole[5]), abs=1e-6)
    for label in range(3):
        assert found[f"map/{label}"] == pytest.approx(mean([row[label] for row in whole]), abs=1e-6, nan_ok=True)
    for name, bounds in SIZES.items():
        rows = [reference(pictures, 3, most, bounds, threshold) for threshold in IOUS]
        assert found[f"ap_{name}"] == pytest.approx(mean(sum(rows, [])), abs=1e-6, nan_ok=True)


def test_crowds_neither_help_nor_hurt() -> None:
    truth, crowd = [0, 0, 20, 20], [100, 100, 200, 200]
    inside = [[110, 110, 130, 130], [140, 140, 160, 160]]  # Far below 0.5 of the union, but all within the crowd.
    found = one([truth, *inside], [0.5, 0.9, 0.8], [0, 0, 0], [truth, crowd], [0, 0], crowd=[False, True])
    assert found["map"] == found["ar"] == pytest.approx(100)
    assert one([truth, *inside], [0.5, 0.9, 0.8], [0, 0, 0], [truth], [0])["map"] == pytest.approx(100 / 3)
    other = one([truth, *inside], [0.5, 0.9, 0.8], [0, 0, 0], [truth, crowd], [0, 1], crowd=[False, True])
    assert other["map"] == pytest.approx(100 / 3)  # A crowd of another class forgives nothing.
    alone = one(inside, [0.9, 0.8], [0, 0], [crowd], [0], crowd=[True])
    assert math.isnan(alone["map"])


def test_nothing_to_find_is_nan_and_nothing_found_is_zero() -> None:
    assert all(math.isnan(value) for value in CocoMetrics(2).compute().values())
    assert all(math.isnan(value) for value in one(NOTHING, [], [], NOTHING, []).values())
    assert all(math.isnan(value) for value in one([[0, 0, 9, 9]], [0.5], [0], NOTHING, []).values())
    missed = one(NOTHING, [], [], [[0, 0, 9, 9]], [0])
    assert missed["map"] == missed["ar"] == missed["map/0"] == 0 and math.isnan(missed["map/1"])
    assert json.dumps(measured(missed), allow_nan=False)
    assert "map/1" not in measured(missed) and measured(missed)["ap50"] == 0


def test_empty_pictures_count_their_false_detections() -> None:
    metrics = CocoMetrics(1)
    metrics.add([[0, 0, 20, 20]], [0.5], [0], [[0, 0, 20, 20]], [0])
    assert metrics.compute()["map"] == pytest.approx(100)
    metrics.add([[0, 0, 20, 20]], [0.9], [0], NOTHING, [])
    assert metrics.compute()["map"] == pytest.approx(50)  # compute() may be called again after more pictures.
    assert len(metrics) == 2


def test_arrays_tensors_and_lists_are_the_same_and_stay_as_they_were() -> None:
    picture = random_pictures(1)[1]
    tensors = {key: torch.from_numpy(np.asarray(value)) for key, value in picture.items()}
    tensors["scores"] = tensors["scores"].to(torch.float32).requires_grad_()
    before = {key: np.array(value) for key, value in picture.items()}
    lists = {key: value.tolist() for key, value in picture.items()}
    values = [metrics_of([p]) for p in (picture, tensors, lists)]
    assert values[0] == pytest.approx(values[1], nan_ok=True) and values[0] == pytest.approx(values[2], nan_ok=True)
    for key, value in before.items():
        assert np.array_equal(picture[key], value)


def test_class_names_and_silence(capfd: pytest.CaptureFixture[str]) -> None:
    metrics = CocoMetrics(2, class_names=["RBC", "WBC"])
    metrics.add([[0, 0, 9, 9]], [0.5], [1], [[0, 0, 9, 9]], [1])
    assert metrics.compute()["map/WBC"] == pytest.approx(100)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"boxes": [[0, 0, 1]]}, r"boxes must be \(n, 4\)"),
        ({"boxes": [[0, 0, math.nan, 1]]}, "boxes must be finite"),
        ({"scores": [0.5, 0.5]}, r"scores must be \(1,\)"),
        ({"scores": [math.inf]}, "scores must be finite"),
        ({"labels": [2]}, r"labels must lie in 0\.\.1"),
        ({"labels": [0.5]}, r"labels must lie in 0\.\.1"),
        ({"target_labels": [-1]}, r"target_labels must lie in 0\.\.1"),
        ({"target_boxes": [[5, 0, 1, 9]]}, "x2 < x1"),
        ({"crowd": [False, True]}, "crowd must be"),
        ({"area": [math.nan]}, "area must be finite"),
        ({"boxes": "text"}, "must be numbers"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(change: dict[str, Any], message: str) -> None:
    box = [[0, 0, 9, 9]]
    good = {"boxes": box, "scores": [0.5], "labels": [0], "target_boxes": box, "target_labels": [0]}
    metrics = CocoMetrics(2)
    with pytest.raises(DataError, match=message):
        metrics.add(**{**good, **change})
    assert math.isnan(metrics.compute()["map"])  # Nothing of it was kept.


def test_bad_settings_and_a_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="num_classes"):
        CocoMetrics(0)
    with pytest.raises(ConfigError, match="max_detections"):
        CocoMetrics(2, 0)
    with pytest.raises(ConfigError, match="1 class names for 2"):
        CocoMetrics(2, class_names=["a"])
    monkeypatch.setitem(sys.modules, "faster_coco_eval", None)
    with pytest.raises(MissingDependencyError, match=r"pape-zoo\[detection\]"):
        CocoMetrics(2).compute()


def test_agrees_with_torchmetrics_on_coco(shared: Path) -> None:
    detection = pytest.importorskip("torchmetrics.detection")
    truth = json.loads((shared / "data/coco-sample/instances_validation.json").read_text())
    ids = sorted(category["id"] for category in truth["categories"])
    rng = np.random.default_rng(0)
    metrics = CocoMetrics(len(ids))
    other = detection.MeanAveragePrecision(
        rec_thresholds=np.linspace(0, 1, 101).tolist(),  # By default rounded to float32.
        class_metrics=True,
        backend="faster_coco_eval",
    )
    crowds = 0
    for picture in truth["images"]:
        mine = [one for one in truth["annotations"] if one["image_id"] == picture["id"]]
        boxes = np.array([one["bbox"] for one in mine]).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        labels = np.array([ids.index(one["category_id"]) for one in mine], dtype=np.int64)
        crowd, area = (np.array([one[key] for one in mine]) for key in ("iscrowd", "area"))
        crowds += crowd.sum()
        found = np.concatenate([boxes + rng.normal(0, 3, boxes.shape), boxes * 0.9])
        found[:, 2:] = np.maximum(found[:, 2:], found[:, :2] + 1)
        boxes, found = (array.astype(np.float32).astype(float) for array in (boxes, found))  # Theirs are float32.
        scores, found_labels = rng.random(len(found), dtype=np.float32), np.concatenate([labels, labels])
        metrics.add(found, scores, found_labels, boxes, labels, crowd=crowd, area=area)
        predicted = {"boxes": found, "scores": scores, "labels": found_labels}
        wanted = {"boxes": boxes, "labels": labels, "iscrowd": crowd, "area": area}
        other.update(
            [{k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in predicted.items()}],
            [{k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in wanted.items()}],
        )
    expected, ours = other.compute(), metrics.compute()
    assert crowds == 1 and 20 < ours["map"] < 95
    names = {"map": "map", "ap50": "map_50", "ap75": "map_75", "ap_small": "map_small", "ap_medium": "map_medium"}
    for name, theirs in {**names, "ap_large": "map_large", "ar": "mar_100"}.items():
        assert ours[name] == pytest.approx(100 * float(expected[theirs]), abs=0.01), name
    for label, value in zip(expected["classes"].tolist(), expected["map_per_class"].tolist(), strict=True):
        if value >= 0:
            assert ours[f"map/{label}"] == pytest.approx(100 * value, abs=0.01)
