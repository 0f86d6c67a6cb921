"""Point data sets in the layouts in which they are published, and the one door to them, `open_dataset`."""

from modalities.points.datasets.base import IGNORED, ClassifiedSet, PointSet
from modalities.points.datasets.find import DATASETS, open_dataset

__all__ = ["DATASETS", "IGNORED", "ClassifiedSet", "PointSet", "open_dataset"]
