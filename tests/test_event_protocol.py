from __future__ import annotations

import numpy as np
import pytest

from modalities.events.datasets.base import TimedBoxes
from modalities.events.protocol import ALL_BOXES, GEN1_PROTOCOL, MPX1_PROTOCOL, matched, score
from zoo.errors import DataError

BOX = [100.0, 100.0, 140.0, 140.0]


def one(time: int, box: list[float], label: int = 0, value: float | None = None) -> TimedBoxes:
    return TimedBoxes.of([time], [box], [label], None if value is None else [value])


@pytest.mark.parametrize(
    ("protocol", "time", "box", "counts"),
    [
        (GEN1_PROTOCOL, 500_000, BOX, False),
        (GEN1_PROTOCOL, 500_001, BOX, True),
        (GEN1_PROTOCOL, 600_000, [0, 0, 18, 24], True),  # diagonal exactly 30
        (GEN1_PROTOCOL, 600_000, [0, 0, 17.9, 24], False),
        (GEN1_PROTOCOL, 600_000, [0, 0, 10, 100], True),
        (GEN1_PROTOCOL, 600_000, [0, 0, 9.9, 100], False),
        (GEN1_PROTOCOL, 600_000, [0, 0, 100, 9.9], False),
        (MPX1_PROTOCOL, 600_000, [0, 0, 36, 48], True),  # diagonal exactly 60
        (MPX1_PROTOCOL, 600_000, [0, 0, 35.9, 48], False),
        (MPX1_PROTOCOL, 600_000, [0, 0, 19.9, 100], False),
        (MPX1_PROTOCOL.scaled(0.5), 600_000, [0, 0, 18, 24], True),
        (MPX1_PROTOCOL.scaled(0.5), 600_000, [0, 0, 9.9, 100], False),
        (ALL_BOXES, 0, [0, 0, 1, 1], True),
    ],
)
def test_which_boxes_count(protocol: object, time: int, box: list[float], counts: bool) -> None:
    assert len(protocol.filtered(one(time, box))) == counts  # type: ignore[attr-defined]


def test_clipping_and_huge_boxes() -> None:
    boxes = TimedBoxes.of([1, 2, 3], [[-5, -5, 20, 300], [304, 10, 320, 20], [0, 0, 275, 10]], [0, 0, 0])
    clipped = GEN1_PROTOCOL.clipped(boxes, 304, 240)
    assert clipped.boxes.tolist() == [[0, 0, 20, 240], [0, 0, 275, 10]]
    assert GEN1_PROTOCOL.without_huge(clipped, 304).t_us.tolist() == [1]  # 275 is more than 273.6.


def test_times_are_matched_within_the_tolerance() -> None:
    truth = TimedBoxes.of([1_000_000, 1_000_000, 1_200_000], [BOX] * 3, [0, 1, 0])
    times = [949_999, 950_000, 1_050_000, 1_050_001, 1_190_000]
    found = TimedBoxes.of(times, [BOX] * 5, [0] * 5, [0.5] * 5)
    pairs = list(matched(truth, found, 50_000))
    assert [real.labels.tolist() for real, _ in pairs] == [[0, 1], [0]]
    assert [near.t_us.tolist() for _, near in pairs] == [[950_000, 1_050_000], [1_190_000]]


def test_perfect_and_missing_detections() -> None:
    pytest.importorskip("faster_coco_eval")
    truth = [one(1_000_000, BOX), one(2_000_000, BOX, 1)]
    perfect = [one(1_040_000, BOX, 0, 0.9), one(1_960_000, BOX, 1, 0.9)]
    assert score(truth, perfect, 2)["map"] == pytest.approx(100)
    late = [one(1_050_001, BOX, 0, 0.9), perfect[1]]
    assert score(truth, late, 2)["map"] == pytest.approx(50)
    assert score(truth, [TimedBoxes.of([], [], [], [])] * 2, 2)["map"] == pytest.approx(0)


def test_small_detections_and_other_times_do_not_count_as_wrong() -> None:
    pytest.importorskip("faster_coco_eval")
    truth = TimedBoxes.concatenate([one(1_000_000, BOX), one(1_000_000, [0, 0, 5, 5]), one(100_000, BOX)])
    right = one(1_000_000, BOX, 0, 0.5)
    wrong = [one(1_000_000, [0, 0, 9, 9], 0, 0.9), one(100_000, [50, 50, 99, 99], 0, 0.9)]
    wrong.append(one(5_000_000, [50, 50, 99, 99], 0, 0.9))
    assert score([truth], [TimedBoxes.concatenate([right, *wrong])], 1)["map"] == pytest.approx(100)
    worse = one(1_000_000, [10, 10, 60, 60], 0, 0.9)  # A large wrong box at a true time does count.
    assert score([truth], [TimedBoxes.concatenate([right, worse])], 1)["map"] == pytest.approx(50, abs=1)


def test_what_cannot_be_scored() -> None:
    with pytest.raises(DataError, match="2 recordings"):
        score([one(1_000_000, BOX)] * 2, [one(1_000_000, BOX)], 1)
    pytest.importorskip("faster_coco_eval")
    with pytest.raises(DataError, match="nothing to score"):
        score([one(100_000, BOX)], [one(1_000_000, BOX)], 1)
    with pytest.raises(DataError, match="timed boxes"):
        TimedBoxes(np.zeros(2, np.int64), np.zeros((1, 4)), np.zeros(2, np.int64), np.zeros(2))
