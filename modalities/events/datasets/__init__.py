"""Event data sets in the layouts in which they are published, and the one door to them, `open_dataset`."""

from modalities.events.datasets.base import ClipSet, EventSample, SceneSet, TimedBoxes
from modalities.events.datasets.find import DATASETS, open_dataset

__all__ = ["DATASETS", "ClipSet", "EventSample", "SceneSet", "TimedBoxes", "open_dataset"]
