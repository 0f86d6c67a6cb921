"""Image classification as a training task: data on the device, augmented batches, loss and dev metric."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modalities.image.augment import BatchAugmentation, ImageOptions
from modalities.image.data import PackedPictures, pictures
from zoo.errors import ConfigError, DataError
from zoo.evaluate import align_labels, evaluate
from zoo.sharing import Share
from zoo.training.holdout import fits_on, held_out
from zoo.training.recipe import Recipe
from zoo.training.seeds import derive_seed
from zoo.training.task import EpochOrder

__all__ = ["ImageClassification"]


class ImageClassification:
    """Task for `zoo.training.loop`; see `zoo.training.task.Task`.

    Args:
        recipe: With `options` of type `ImageOptions`.
        quiet: Show no progress bar while packing.
    """

    Options = ImageOptions
    modality, task = "image", "classification"

    def __init__(self, recipe: Recipe, quiet: bool = True) -> None:
        if recipe.data is None:
            raise ConfigError("no training data: give --data DIR (a folder with train.parquet or train/<class>/...)")
        self.recipe, self.options = recipe, recipe.options
        self.quiet = quiet
        self.packed = self._open("train")
        self.num_classes = self.packed.num_classes
        self.labels = self.packed.class_names
        if self.num_classes < 2:
            raise DataError(f"{recipe.data}: a classifier needs two classes or more, found {self.num_classes}")
        self.train_rows, self.dev_rows = held_out(self.options, self.packed.labels)
        self.dev = self.packed
        if self.options.dev_split:
            self.dev = self._open(self.options.dev_split)
            self.dev_rows = np.arange(len(self.dev))
        self.stored = self.packed.stacked()
        self.order = EpochOrder(len(self.train_rows), recipe.batch_size, recipe.seed)
        self.steps_per_epoch = self.order.steps_per_epoch

    def _open(self, split: str) -> PackedPictures:
        options = self.options
        return pictures(
            str(self.recipe.data), split, size=options.store_size, skip_bad=options.skip_bad, quiet=self.quiet
        )

    @property
    def facts(self) -> dict[str, Any]:
        """What the training record says about the data; `sha256` identifies them for resuming."""
        return {
            "name": self.packed.meta["name"],
            "sha256": self.packed.meta["source_sha256"],
            "pictures": len(self.train_rows),
            "dev_pictures": len(self.dev_rows),
            "skipped": len(self.packed.meta["skipped"]),
            "stored_size": list(self.stored.shape[2:]),
        }

    def model_arguments(self) -> dict[str, Any]:
        """Keyword arguments for `zoo.load` that follow from the data."""
        size = {} if self.options.image_size is None else {"input_size": self.options.image_size}
        return {"num_classes": self.num_classes, **size}

    def start(self, model: nn.Module, device: torch.device, rank: int, world: int) -> None:
        """Puts the data on the device and prepares augmentation for `model`.

        Raises:
            ConfigError: If the model takes no RGB pictures, or the batch cannot be divided.
            DataError: If the pictures to evaluate on have other classes.
        """
        data_config = self._start(model, device, rank, world)
        if self.dev is not self.packed:  # Other classes are better found now.
            align_labels(self.dev.labels, self.dev.num_classes, self.dev.class_names, model)
        self.augment = BatchAugmentation(self.options, data_config, self.num_classes, device)
        rows = self.stored if len(self.train_rows) == len(self.stored) else self.stored[self.train_rows]
        images = torch.from_numpy(np.array(rows))
        self.images = images.to(device) if fits_on(device, images.nbytes) else images
        self.targets = torch.from_numpy(self.packed.labels[self.train_rows]).to(device)

    def _start(self, model: nn.Module, device: torch.device, rank: int, world: int) -> Any:
        """Checks what the model takes, and divides batches over processes; gives the model's data_config."""
        data_config: Any = model.data_config
        if data_config.input_size[0] != 3:
            raise ConfigError(f"training pictures are RGB; the model takes {data_config.input_size[0]} channels")
        self.order.start(device, rank, world)
        self.share = Share(rank, world)
        if (self.options.mixup or self.options.cutmix) and self.order.local % 2:
            raise ConfigError(
                f"MixUp and CutMix pair pictures: batch_size per process must be even, got {self.order.local}"
            )
        self.device, self.rank = device, rank
        return data_config

    def batch(self, epoch: int, index: int) -> tuple[Tensor, Tensor]:
        """Batch `index` of `epoch` for this process; a function of its arguments and the recipe's seed alone.

        Returns:
            Images float32 (B, 3, H, W) and targets (see `BatchAugmentation`), on the device.
        """
        rows = self.order.rows(epoch, index)
        stored = self.images[rows.to(self.images.device)].to(self.device)
        return self.augment(stored, self.targets[rows], derive_seed(self.recipe.seed, epoch, index, self.rank))

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in float32; mixed targets are smoothed already."""
        smoothing = 0.0 if targets.is_floating_point() else self.options.label_smoothing
        return F.cross_entropy(logits.float(), targets, label_smoothing=smoothing)

    def evaluate(self, model: nn.Module, precision: str) -> dict[str, float]:
        """Top-1 and top-5 in percent on the dev split, at the training size."""
        if not len(self.dev_rows):
            return {}
        packed = self.dev
        chosen: Any = [packed[row] for row in self.dev_rows.tolist()]
        if packed.uniform:
            chosen = torch.from_numpy(packed.stacked()[self.dev_rows])
        labels = align_labels(packed.labels, packed.num_classes, packed.class_names, model)
        return self._evaluate(model, precision, chosen, labels)

    def _evaluate(self, model: nn.Module, precision: str, pictures: Any, labels: np.ndarray) -> dict[str, float]:
        """Accuracy on the pictures of the dev split, a tensor or one by one; `labels` are those of all pictures."""
        if not len(self.dev_rows):
            return {}
        data_config: Any = model.data_config
        dtype = "bfloat16" if precision == "bf16" else "float32"
        sizes = [data_config.input_size[1:]]
        (result,) = evaluate(model, pictures, labels[self.dev_rows], sizes, dtype=dtype, share=self.share)
        return {"dev_top1": result.top1, "dev_top5": result.top5}
