"""Training on pictures under camera motions, drawn on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modalities.video.motion import draw_states, render
from modalities.video.motion_evaluate import DEV_SEED, filmed, motion_accuracy
from modalities.video.options import MotionOptions
from modalities.video.presets import MOTIONS
from modalities.video.transforms import normalise
from zoo.errors import ConfigError
from zoo.labelled_pictures import labelled_pictures
from zoo.sharing import Share
from zoo.training.holdout import fits_on, split_dev
from zoo.training.recipe import Recipe
from zoo.training.seeds import derive_seed
from zoo.training.task import EpochOrder

__all__ = ["MotionClassification"]


class MotionClassification:
    """Task `video-motion`; see `zoo.training.task.Task`. An epoch shows every picture once, under a motion of its own.

    Flips and turns of a picture are part of how it is filmed; a flip of the clip would change the class.

    Args:
        recipe: With `options` of type `MotionOptions`.
        quiet: Show no progress bar while pictures are packed.

    Raises:
        ConfigError: If there are no data.
        DataError: If the pictures cannot be used.
    """

    Options = MotionOptions
    modality, task = "video", "classification"

    def __init__(self, recipe: Recipe, quiet: bool = True) -> None:
        if recipe.data is None:
            raise ConfigError("no pictures: give --data DIR (a folder with train.parquet or train/<class>/...)")
        self.recipe, self.options = recipe, recipe.options
        size, skip = self.options.store_size, self.options.skip_bad
        self.packed = labelled_pictures(recipe.data, "train", size=size, skip_bad=skip, quiet=quiet)
        self.stored: np.ndarray = self.packed.stacked()
        self.train_rows, self.dev_rows = split_dev(len(self.packed), self.options.dev_count, 0.0)
        self.labels, self.num_classes = list(MOTIONS), len(MOTIONS)
        self.order = EpochOrder(len(self.train_rows), recipe.batch_size, recipe.seed)
        self.steps_per_epoch = self.order.steps_per_epoch

    @property
    def facts(self) -> dict[str, Any]:
        """What the training record says about the data; `sha256` identifies them for resuming."""
        return {
            "name": f"{self.packed.meta['name']}-motion",
            "sha256": self.packed.meta["source_sha256"],
            "pictures": len(self.train_rows),
            "dev_pictures": len(self.dev_rows),
            "stored_size": list(self.stored.shape[2:]),
        }

    def model_arguments(self) -> dict[str, Any]:
        """Keyword arguments for `zoo.load` that follow from the data."""
        return {"num_classes": self.num_classes}

    def start(self, model: nn.Module, device: torch.device, rank: int, world: int) -> None:
        """Puts the pictures on the device.

        Raises:
            ConfigError: If the model does not take square RGB clips at a frame rate of its own, or the batch cannot be
                divided.
        """
        self.data_config = filmed(model.data_config)
        self.order.start(device, rank, world)
        self.device, self.rank = device, rank
        self.share = Share(rank, world)
        images = torch.from_numpy(np.array(self.stored[self.train_rows]))
        self.images = images.to(device) if fits_on(device, images.nbytes) else images

    def batch(self, epoch: int, index: int) -> tuple[Tensor, Tensor]:
        """Batch `index` of `epoch` for this process; a function of its arguments and the recipe's seed alone.

        Returns:
            Clips float32 (B, 3, T, H, W) and labels int64 (B,), on the device.
        """
        rows = self.order.rows(epoch, index)
        seed = derive_seed(self.recipe.seed, epoch, index, self.rank)
        motions = draw_states(len(rows), seed).to(self.device)
        pictures = self.images[rows.to(self.images.device)].to(self.device)
        data = self.data_config
        clips = render(pictures, motions, size=data.input_size[1], frames=data.frames, frame_rate=data.frame_rate)
        if self.options.brightness > 1:
            draws = torch.rand(
                len(rows), 1, 1, 1, 1, generator=torch.Generator().manual_seed(derive_seed(seed, "light"))
            )
            factor = self.options.brightness ** (2 * draws.to(self.device) - 1)
            clips = clips.mul_(factor).clamp_(0, 255)
        return normalise(clips, data), motions.labels

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in float32."""
        return F.cross_entropy(logits.float(), targets, label_smoothing=self.options.label_smoothing)

    def evaluate(self, model: nn.Module, precision: str) -> dict[str, float]:
        """Top-1 and top-5 in percent on clips of the pictures held out, filmed as those of training."""
        if not len(self.dev_rows):
            return {}
        data = self.data_config
        dtype = "bfloat16" if precision == "bf16" else "float32"
        scores = motion_accuracy(
            model,
            self.stored[self.dev_rows],
            size=data.input_size[1],
            frames=data.frames,
            frame_rate=data.frame_rate,
            seed=DEV_SEED,
            dtype=dtype,
            share=self.share,
        )
        return {f"dev_{key}": scores[key] for key in ("top1", "top5")}
