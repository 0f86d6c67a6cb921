"""Training on videos from files: cross-entropy on the class of a clip, on batches of constant shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modalities.video.batches import ClipBatches, ClipInputs
from modalities.video.datasets.base import VideoSet
from modalities.video.datasets.find import open_videos
from modalities.video.datasets.folders import VideoFolders
from modalities.video.datasets.kinetics import Kinetics, table_of
from modalities.video.datasets.ucf101 import UCF101
from modalities.video.evaluate import accuracy
from modalities.video.options import VideoOptions
from modalities.video.transforms import normalise
from zoo.class_folders import has_split
from zoo.errors import ConfigError, DataError
from zoo.sharing import Share
from zoo.training.holdout import held_out
from zoo.training.recipe import Recipe
from zoo.training.seeds import derive_seed
from zoo.training.task import EpochOrder

__all__ = ["VideoClassification"]


class VideoClassification:
    """Task `video-classification`; see `zoo.training.task.Task`.

    Args:
        recipe: With `options` of type `VideoOptions`.
        quiet: Of no effect: nothing is read before the first batch.

    Raises:
        ConfigError: If there are no data, or `dev_count` is set for UCF101, whose training leaves out the validation
            split.
        DataError: If the data cannot be used, or a validation split that is listed is not there.
    """

    Options = VideoOptions
    modality, task = "video", "classification"

    def __init__(self, recipe: Recipe, quiet: bool = True) -> None:
        if recipe.data is None:
            raise ConfigError("no training data: give --data DIR (the folder of the data set)")
        self.recipe, self.options = recipe, recipe.options
        self.data = self._split("train")
        self.dev: VideoSet = self.data
        self.rows, self.dev_rows = np.arange(len(self.data)), np.zeros(0, np.int64)
        drawn = self.options.dev_count or self.options.dev_by_class
        if isinstance(self.data, UCF101) and drawn:
            raise ConfigError("recipe: UCF101 has a validation split (first groups): leave dev_count at 0")
        if drawn:
            self.rows, self.dev_rows = held_out(self.options, self.data.labels)
        elif self._has_validation():
            self.dev = self._validation()
            self.dev_rows = np.arange(len(self.dev))
        self.labels, self.num_classes = self.data.class_names, len(self.data.class_names)
        self.order = EpochOrder(len(self.rows), recipe.batch_size, recipe.seed)
        self.steps_per_epoch = self.order.steps_per_epoch

    def _has_validation(self) -> bool:
        if isinstance(self.data, VideoFolders):
            return has_split(self.data.path, "val")
        kinetics = isinstance(self.data, Kinetics) and table_of(self.data.path, "val") is not None
        return kinetics or isinstance(self.data, UCF101)

    def _validation(self) -> VideoSet:
        try:
            return self._split("val")
        except DataError as error:
            if isinstance(self.data, UCF101):
                raise
            raise DataError(
                f"the validation split, which training is evaluated on: {error}; without it, hold out training videos: "
                "set dev_count, for example to 1000"
            ) from error

    def _split(self, split: str) -> VideoSet:
        options = self.options
        errors = "keep" if options.keep_damaged else "raise"
        assert self.recipe.data is not None
        return open_videos(self.recipe.data, split, options.dataset, fold=options.fold, errors=errors)

    @property
    def facts(self) -> dict[str, Any]:
        """What the training record says about the data; `sha256` identifies them for resuming."""
        return {
            "name": self.data.name,
            "sha256": self.data.sha256,
            "videos": len(self.rows),
            "dev_videos": len(self.dev_rows),
            "missing": self.data.missing,
        }

    def model_arguments(self) -> dict[str, Any]:
        """Keyword arguments for `zoo.load` that follow from the data."""
        return {"num_classes": self.num_classes}

    def start(self, model: nn.Module, device: torch.device, rank: int, world: int) -> None:
        """Prepares batches for `model`.

        Raises:
            ConfigError: If the model takes no RGB frames, or the batch cannot be divided.
        """
        data_config: Any = model.data_config
        if data_config.input_size[0] != 3:
            raise ConfigError(f"videos are RGB; the model takes {data_config.input_size[0]} channels")
        self.order.start(torch.device("cpu"), rank, world)  # Where files are looked up.
        self.device, self.rank = device, rank
        self.share = Share(rank, world)
        self.timed = getattr(model, "time_unit_s", None) is not None
        self.data_config = data_config
        self.batches = ClipBatches(self.data, self.rows, data_config, self.options)

    def batch(self, epoch: int, index: int) -> tuple[ClipInputs, Tensor]:
        """Batch `index` of `epoch` for this process; a function of its arguments and the recipe's seed alone.

        Returns:
            Clips float32 (B, 3, T, H, W) with their lengths and times, and labels int64 (B,), on the device.
        """
        rows = self.order.rows(epoch, index)
        seed = derive_seed(self.recipe.seed, epoch, index, self.rank)
        pixels, lengths, times = (tensor.to(self.device) for tensor in self.batches(rows.tolist(), seed))
        labels = torch.from_numpy(self.data.labels[self.rows[rows.numpy()]]).to(self.device)
        clips = normalise(pixels.float(), self.data_config)
        # Lengths always, though few files are short: batches must not differ in form.
        return ClipInputs(clips, lengths, times if self.timed else None), labels

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in float32."""
        return F.cross_entropy(logits.float(), targets, label_smoothing=self.options.label_smoothing)

    def evaluate(self, model: nn.Module, precision: str) -> dict[str, float]:
        """Top-1 and top-5 in percent on the validation split, one clip of each video."""
        if not len(self.dev_rows):
            return {}
        dtype = "bfloat16" if precision == "bf16" else "float32"
        workers = self.options.workers
        scores = accuracy(model, self.dev, self.dev_rows, dtype=dtype, workers=workers, share=self.share)
        return {f"dev_{key}": value for key, value in scores.items()}
