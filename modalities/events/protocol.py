"""How detectors of event cameras are scored on GEN1 and 1Mpx.

The published numbers follow one protocol. Boxes, true and detected alike, do not count in the first half second of a
recording or where they are small (diagonal and sides). At every time with true boxes, detections up to 50 ms away are
matched with them, and COCO's average precision is taken over these times. Detections at other times do not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from modalities.events.datasets.base import TimedBoxes
from zoo.errors import DataError

__all__ = ["ALL_BOXES", "GEN1_PROTOCOL", "MPX1_PROTOCOL", "BoxProtocol", "matched", "score"]


@dataclass(frozen=True)
class BoxProtocol:
    """Which boxes count, and which detections belong to which true boxes.

    Attributes:
        skip_us: Boxes up to and at this time of the recording are dropped.
        min_diagonal: Boxes with a shorter diagonal are dropped, in pixels.
        min_side: Boxes with a shorter side are dropped, in pixels.
        tolerance_us: Largest difference between the times of a detection and of true boxes.
        max_width: Boxes wider than this share of the frame are dropped in training (faulty labels).
    """

    skip_us: int = 500_000
    min_diagonal: float = 30.0
    min_side: float = 10.0
    tolerance_us: int = 50_000
    max_width: float = 0.9

    def scaled(self, factor: float) -> BoxProtocol:
        """The same at another resolution."""
        return replace(self, min_diagonal=self.min_diagonal * factor, min_side=self.min_side * factor)

    def filtered(self, boxes: TimedBoxes) -> TimedBoxes:
        """The boxes that count."""
        sides = (boxes.boxes[:, 2:] - boxes.boxes[:, :2]).astype(np.float64)
        counts = (sides >= self.min_side).all(1) & (boxes.t_us > self.skip_us)
        return boxes[counts & (np.hypot(sides[:, 0], sides[:, 1]) >= self.min_diagonal)]

    @staticmethod
    def clipped(boxes: TimedBoxes, width: int, height: int) -> TimedBoxes:
        """Cuts boxes at the edges of the frame and drops those of which nothing is left."""
        cut = boxes.boxes.clip(0, np.array([width, height, width, height], np.float32))
        return replace(boxes, boxes=cut)[(cut[:, 2:] > cut[:, :2]).all(1)]

    def without_huge(self, boxes: TimedBoxes, width: int) -> TimedBoxes:
        """Drops boxes that are too wide to be right; for training only."""
        return boxes[boxes.boxes[:, 2] - boxes.boxes[:, 0] <= self.max_width * width]


GEN1_PROTOCOL = BoxProtocol()
MPX1_PROTOCOL = BoxProtocol(min_diagonal=60.0, min_side=20.0)
ALL_BOXES = BoxProtocol(skip_us=-1, min_diagonal=0.0, min_side=0.0)
"""Every box counts: for sets whose boxes are known exactly."""


def matched(truth: TimedBoxes, found: TimedBoxes, tolerance_us: int) -> Iterator[tuple[TimedBoxes, TimedBoxes]]:
    """The true boxes of each time that has some, with the detections at most `tolerance_us` before or after it."""
    for time in np.unique(truth.t_us).tolist():
        exact = slice(*np.searchsorted(truth.t_us, (time, time + 1)))
        near = slice(*np.searchsorted(found.t_us, (time - tolerance_us, time + tolerance_us + 1)))
        yield truth[exact], found[near]


def score(
    truth: Sequence[TimedBoxes],
    found: Sequence[TimedBoxes],
    num_classes: int,
    protocol: BoxProtocol = GEN1_PROTOCOL,
    *,
    class_names: Sequence[str] | None = None,
) -> dict[str, float]:
    """COCO metrics in percent by the protocol.

    Args:
        truth: True boxes of each recording, clipped to the frame.
        found: Detections of each recording, in the same order.
        num_classes: Classes of the detector.
        protocol: What counts; both sides are filtered here.
        class_names: For the keys of the results.

    Raises:
        DataError: If there are not as many recordings on both sides, or no true box counts.
    """
    from zoo.detection.metrics import CocoMetrics

    if len(truth) != len(found):
        raise DataError(f"{len(truth)} recordings with true boxes and {len(found)} with detections")
    metrics, frames = CocoMetrics(num_classes, class_names=class_names), 0
    for true, detected in zip(truth, found, strict=True):
        kept = protocol.filtered(true), protocol.filtered(detected)
        for real, near in matched(*kept, protocol.tolerance_us):
            metrics.add(near.boxes, near.scores, near.labels, real.boxes, real.labels)
            frames += 1
    if not frames:
        raise DataError("no true box counts by the protocol: there is nothing to score")
    return metrics.compute()
