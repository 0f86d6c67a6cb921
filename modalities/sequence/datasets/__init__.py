"""Sets of sequences: music, text and DNA from files, and tasks that are made up."""

from modalities.sequence.datasets.base import SequenceSet
from modalities.sequence.datasets.find import DATASETS, open_sequences, settings, splits

__all__ = ["DATASETS", "SequenceSet", "open_sequences", "settings", "splits"]
