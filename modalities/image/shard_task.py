"""Image classification from tar shards: pictures are read and decoded as they are needed."""

from __future__ import annotations

import dataclasses
import math
import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from modalities.image.augment import BatchAugmentation, ImageOptions
from modalities.image.shard_files import UnreachableShardError
from modalities.image.shards import ShardPictures, open_shards, read_picture
from modalities.image.task import ImageClassification
from zoo.errors import ConfigError, DataError
from zoo.training.holdout import held_out
from zoo.training.recipe import Recipe
from zoo.training.seeds import derive_seed, permutation
from zoo.training.settings import check
from zoo.training.task import EpochOrder

__all__ = ["ShardOptions", "ShardOrder", "ShardedClassification", "random_crop"]


@dataclasses.dataclass(frozen=True)
class ShardOptions(ImageOptions):
    """Recipe keys of image classification from shards, beside those of `ImageOptions`.

    Attributes:
        window: Shards whose pictures are mixed with each other; processes read from as many at a time.
        workers: Threads of each process that read and decode; 0 = as many as it has cores.
    """

    window: int = 64
    workers: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check("window", self.window, self.window >= 1, "at least 1")
        check("workers", self.workers, 0 <= self.workers <= 1024, "between 0 and 1024")
        if self.store_size is not None:
            raise ConfigError("recipe: store_size is for pictures that are packed; shards are read as they are")
        if self.dev_split is not None:
            raise ConfigError(
                "recipe: dev_split is for pictures that are packed; hold some out: dev_count, dev_by_class"
            )


class ShardOrder(EpochOrder):
    """As `EpochOrder`: shards in a new random order every epoch, and the samples of so many shards at a time mixed.

    Args:
        shard: int (N,), the shard of every sample.
        window: Shards at a time.
        batch_size: Of one step, over all processes.
        seed: The recipe's.
    """

    def __init__(self, shard: np.ndarray, window: int, batch_size: int, seed: int) -> None:
        super().__init__(len(shard), batch_size, seed)
        self.shard, self.window = shard, window

    def permutation(self, epoch: int) -> Tensor:
        """See `EpochOrder.permutation`."""
        shards = int(self.shard.max()) + 1
        turn = np.empty(shards, dtype=np.int64)
        turn[permutation(shards, derive_seed(self.seed, "shards", epoch)).numpy()] = np.arange(shards)
        return torch.from_numpy(np.lexsort((super().permutation(epoch).numpy(), turn[self.shard] // self.window)))


class ShardedClassification(ImageClassification):
    """Task for `zoo.training.loop`; see `zoo.training.task.Task`.

    Every picture is cropped at random by itself; what follows is that of `ImageClassification`. A picture that cannot
    be decoded is an error, or with `skip_bad` replaced by another of its batch, and counted.

    Args:
        recipe: With `options` of type `ShardOptions`.
        quiet: Not used.
    """

    Options = ShardOptions

    def __init__(self, recipe: Recipe, quiet: bool = True) -> None:
        if recipe.data is None:
            raise ConfigError("no training data: give --data, a folder with train-*.tar or a pattern of tar files")
        self.recipe, self.options = recipe, recipe.options
        self.shards = open_shards(recipe.data, "train", skip_bad=self.options.skip_bad)
        self.num_classes, self.labels = self.shards.num_classes, self.shards.class_names
        if self.num_classes < 2:
            raise DataError(f"{recipe.data}: a classifier needs two classes or more, found {self.num_classes}")
        self.train_rows, self.dev_rows = held_out(self.options, self.shards.labels)
        shard = self.shards.shard[self.train_rows]
        self.order = ShardOrder(shard, self.options.window, recipe.batch_size, recipe.seed)
        self.steps_per_epoch = self.order.steps_per_epoch
        self.damaged: set[int] = set()
        workers = self.options.workers or len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else [0] * 8)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="shards")

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown(cancel_futures=True)

    @property
    def facts(self) -> dict[str, Any]:
        """What the training record says about the data; `sha256` identifies them for resuming."""
        return {
            "name": self.shards.name,
            "sha256": self.shards.sha256,
            "shards": len(self.shards.names),
            "pictures": len(self.train_rows),
            "dev_pictures": len(self.dev_rows),
            "skipped": self.shards.skipped + len(self.damaged),
        }

    def start(self, model: nn.Module, device: torch.device, rank: int, world: int) -> None:
        """See `ImageClassification.start`."""
        data_config = self._start(model, torch.device("cpu"), rank, world)
        self.device = device
        self.size = data_config.input_size[1:]
        whole = dataclasses.replace(self.options, crop_scale=(1.0, 1.0), crop_ratio=(1.0, 1.0))
        self.augment = BatchAugmentation(whole, data_config, self.num_classes, device)

    def batch(self, epoch: int, index: int) -> tuple[Tensor, Tensor]:
        """See `ImageClassification.batch`."""
        rows = self.train_rows[self.order.rows(epoch, index).numpy()]
        pictures = list(self._pool.map(lambda row: self._picture(int(row), epoch), rows))
        good = [place for place, picture in enumerate(pictures) if picture is not None]
        if not good:
            raise DataError(f"{self.recipe.data}: no picture of a batch can be decoded")
        chosen = [place if picture is not None else good[place % len(good)] for place, picture in enumerate(pictures)]
        stored = torch.stack([pictures[place] for place in chosen]).to(self.device)  # type: ignore[misc]
        labels = torch.from_numpy(self.shards.labels[rows[chosen]]).to(self.device)
        return self.augment(stored, labels, derive_seed(self.recipe.seed, epoch, index, self.rank))

    def _picture(self, row: int, epoch: int) -> Tensor | None:
        """A random crop of a picture, uint8 (3, H, W); `None` if it is damaged and may be."""
        from torchvision.transforms import v2

        try:
            picture = torch.from_numpy(read_picture(self.shards, row))
        except DataError as error:
            if not self.options.skip_bad or isinstance(error, UnreachableShardError):
                raise
            if row not in self.damaged:
                warnings.warn(f"{self.shards.where(row)}: damaged picture left out", stacklevel=2)
            self.damaged.add(row)
            return None
        rng = np.random.default_rng(derive_seed(self.recipe.seed, "crop", epoch, row))
        box = random_crop(rng, (picture.shape[1], picture.shape[2]), self.options.crop_scale, self.options.crop_ratio)
        mode = v2.InterpolationMode(self.options.interpolation)
        return v2.functional.resized_crop(picture, *box, list(self.size), mode, antialias=True)

    def evaluate(self, model: nn.Module, precision: str) -> dict[str, float]:
        """Top-1 and top-5 in percent on the dev split, at the training size."""
        if not len(self.dev_rows):
            return {}
        return self._evaluate(model, precision, ShardPictures(self.shards, self.dev_rows), self.shards.labels)


def random_crop(
    rng: np.random.Generator, size: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[int, int, int, int]:
    """Draws a crop of a random share of the area and aspect ratio (Szegedy et al. 2015, as torchvision has it).

    Args:
        rng: What is drawn from.
        size: Height and width of the picture.
        scale: Bounds on the share of the area.
        ratio: Bounds on width / height; uniform in its logarithm.

    Returns:
        Top, left, height and width.
    """
    rows, columns = size
    for _ in range(10):
        area = rows * columns * rng.uniform(*scale)
        aspect = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        height, width = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if 0 < height <= rows and 0 < width <= columns:
            return int(rng.integers(rows - height + 1)), int(rng.integers(columns - width + 1)), height, width
    # No such crop fits: the largest one in the middle that is within the bounds on the ratio.
    width, height = min(columns, max(1, round(rows * ratio[1]))), min(rows, max(1, round(columns / ratio[0])))
    return (rows - height) // 2, (columns - width) // 2, height, width
