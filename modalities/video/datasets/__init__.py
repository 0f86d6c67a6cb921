"""Video data sets in their official layouts, and in folders of their classes."""

from modalities.video.datasets.base import VideoSet
from modalities.video.datasets.find import DATASETS, open_videos
from modalities.video.datasets.folders import VideoFolders
from modalities.video.datasets.hmdb51 import HMDB51
from modalities.video.datasets.kinetics import Kinetics
from modalities.video.datasets.ucf101 import UCF101

__all__ = ["DATASETS", "HMDB51", "UCF101", "Kinetics", "VideoFolders", "VideoSet", "open_videos"]
