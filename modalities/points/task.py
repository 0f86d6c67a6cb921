"""Training on point clouds: classification of clouds and segmentation of their points, with the data on the device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from modalities.points.augment import Mix3D, run
from modalities.points.batch import PointBatch
from modalities.points.data_config import PointDataConfig
from modalities.points.datasets import open_dataset
from modalities.points.datasets.folders import PointFolders
from modalities.points.evaluate import score_classes, score_points
from modalities.points.losses import SegmentationLoss
from modalities.points.options import ClassificationOptions, SegmentationOptions
from modalities.points.store import PointStore
from zoo.class_folders import has_split
from zoo.errors import ConfigError, DataError
from zoo.sharing import Share
from zoo.sources import locate
from zoo.training.holdout import held_out
from zoo.training.recipe import Recipe
from zoo.training.seeds import derive_seed
from zoo.training.task import EpochOrder

__all__ = ["PointClassification", "PointSegmentation"]

_DEFAULT_POINTS = 1024


class _PointTask(ABC):
    """What both tasks share; see `zoo.training.task.Task`.

    Args:
        recipe: With the task's options.
        quiet: Show no progress bar.
    """

    modality = "points"
    draws_on_host = True  # Point Transformer V3 draws the orders of its curves, which launches depend on.
    task: str
    num_classes: int
    labels: list[str] | None

    def __init__(self, recipe: Recipe, quiet: bool = True) -> None:
        if recipe.data is None:
            raise ConfigError("no training data: give --data DIR (the folder or file of the data set)")
        self.recipe, self.options, self.quiet = recipe, recipe.options, quiet
        stated = locate(recipe.model, pretrained=recipe.pretrained).config["data"].get("num_points")
        self._draw = self.options.num_points or recipe.model_options.get("input_size") or stated
        self.data: Any = self._opened("train")
        self.labels, self.num_classes = list(self.data.class_names), len(self.data.class_names)
        self._split()
        self.steps = self.options.augmentations()
        self.order = EpochOrder(self._samples(), recipe.batch_size, recipe.seed)
        self.steps_per_epoch = self.order.steps_per_epoch

    def _opened(self, split: str) -> Any:
        return open_dataset(self.recipe.data, split, self.options.dataset, draw=self._draw)  # type: ignore[arg-type]

    def _split(self) -> None:
        """Which clouds are trained on, and which are held out: of which data, and their numbers."""
        labels = getattr(self.data, "labels", np.zeros(len(self.data), np.int64))
        self.rows, self.dev_rows = held_out(self.options, np.asarray(labels))
        self.dev_data = self.data
        if not len(self.dev_rows) and (validation := self._validation()) is not None:
            self.dev_data, self.dev_rows = validation, np.arange(len(validation))

    def _validation(self) -> Any:
        """The validation split, or `None` of data sets that have none.

        Raises:
            DataError: If this one should have it, and it is absent or damaged.
        """
        absent = isinstance(self.data, PointFolders) and not has_split(self.data.path, "val")
        if "val" not in self.data.splits or absent:
            return None
        try:
            return self._opened("val")
        except DataError as error:
            raise DataError(
                f"the validation split, which training is evaluated on: {error}; without it, hold out training clouds: "
                "set dev_fraction, for example to 0.1"
            ) from error

    @abstractmethod
    def _samples(self) -> int:
        """Samples of an epoch."""

    @property
    def facts(self) -> dict[str, Any]:
        """What the training record says about the data; `sha256` identifies them for resuming."""
        return {
            "name": self.data.name,
            "sha256": self.data.sha256,
            "samples": self._samples(),
            "clouds": len(self.rows),
            "dev_clouds": len(self.dev_rows),
        }

    def model_arguments(self) -> dict[str, Any]:
        """Keyword arguments for `zoo.load` that follow from the data."""
        return {"num_classes": self.num_classes}

    def start(self, model: nn.Module, device: torch.device, rank: int, world: int) -> None:
        """Reads the clouds and puts them on the device.

        Raises:
            ConfigError: If the batch cannot be divided.
            DataError: If a cloud cannot be used.
        """
        self.order.start(torch.device("cpu"), rank, world)  # Where clouds are looked up.
        config: Any = model.data_config
        self.device, self.rank = device, rank
        self.share = Share(rank, world)
        self.config: PointDataConfig = config
        self.points: int = self.options.num_points or self.config.num_points or _DEFAULT_POINTS
        self.store = self._store(self.data, self.rows)

    def _store(self, data: Any, rows: np.ndarray) -> PointStore:
        classes = np.arange(self.num_classes) if self.task == "segmentation" else None
        return PointStore(data, rows, self.config, self.device, classes=classes, quiet=self.quiet)

    @property
    def dev_store(self) -> PointStore:
        """The clouds held out, read when they are first evaluated."""
        if not hasattr(self, "_dev_store"):
            self._dev_store = self._store(self.dev_data, self.dev_rows)
        return self._dev_store

    def batch(self, epoch: int, index: int) -> tuple[PointBatch, Tensor]:
        """Batch `index` of `epoch` for this process; a function of its arguments and the recipe's seed alone.

        Returns:
            Clouds of the same number of points for every batch, and targets, on the device.
        """
        seed = derive_seed(self.recipe.seed, epoch, index, self.rank)
        return self._made(self.order.rows(epoch, index), seed)

    @abstractmethod
    def _made(self, rows: Tensor, seed: int) -> tuple[PointBatch, Tensor]:
        """Inputs and targets of the samples `rows`."""

    def _dtype(self, precision: str) -> str:
        return "bfloat16" if precision == "bf16" else "float32"


def _generator(device: torch.device, *parts: int | str) -> Generator:
    return Generator(device).manual_seed(derive_seed(*parts))


class PointClassification(_PointTask):
    """Task `point-classification`: cross-entropy on the class of a cloud."""

    Options = ClassificationOptions
    task = "classification"

    def _samples(self) -> int:
        return len(self.rows)

    def model_arguments(self) -> dict[str, Any]:
        """As that of both tasks, and the points of a cloud where the recipe states them."""
        size = {} if self.options.num_points is None else {"input_size": self.options.num_points}
        return {**super().model_arguments(), **size}

    def start(self, model: nn.Module, device: torch.device, rank: int, world: int) -> None:
        """As that of both tasks, and puts the classes on the device."""
        super().start(model, device, rank, world)
        self.targets = torch.from_numpy(np.asarray(self.data.labels)[self.rows].astype(np.int64)).to(device)

    def _made(self, rows: Tensor, seed: int) -> tuple[PointBatch, Tensor]:
        clouds = self.store.sample(rows.tolist(), self.points, _generator(self.device, seed, "points"))
        clouds = run(self.steps, clouds, _generator(self.device, seed, "augmentation"))
        return clouds.to_batch(self.config), self.targets[rows.to(self.device)]

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in float32."""
        return F.cross_entropy(logits.float(), targets, label_smoothing=self.options.label_smoothing)

    def evaluate(self, model: nn.Module, precision: str) -> dict[str, float]:
        """Overall (`dev_top1`) and mean class accuracy in percent on the clouds held out."""
        if not len(self.dev_rows):
            return {}
        labels = np.asarray(self.dev_data.labels)[self.dev_rows]
        scores = score_classes(model, self.dev_store, labels, dtype=self._dtype(precision), share=self.share)
        return {f"dev_{key}": value for key, value in scores.items()}


class PointSegmentation(_PointTask):
    """Task `point-segmentation`: cross-entropy and Lovasz-softmax on the class of each point of crops."""

    Options = SegmentationOptions
    task = "segmentation"

    def _samples(self) -> int:
        return int(self.options.crops) or len(self.rows)

    def start(self, model: nn.Module, device: torch.device, rank: int, world: int) -> None:
        """As that of both tasks, and sorts the points by class.

        Raises:
            DataError: If no point has a class.
        """
        super().start(model, device, rank, world)
        assert self.store.labels is not None
        labels = self.store.labels.cpu().numpy()
        order = np.argsort(labels, kind="stable")
        ends = np.searchsorted(labels[order], np.arange(self.num_classes + 1))
        self._by_class = [
            order[ends[number] : ends[number + 1]]
            for number in range(self.num_classes)
            if ends[number + 1] > ends[number] and number != self.config.ignore_label
        ]
        if not self._by_class:
            raise DataError(f"{self.data.name}: no point of the training split has a class")
        self._criterion = SegmentationLoss(self.config.ignore_label, self.options.label_smoothing, self.options.lovasz)

    def _made(self, rows: Tensor, seed: int) -> tuple[PointBatch, Tensor]:
        rng = np.random.default_rng(seed)
        numbers = [self._crop(self._centre(row, rng)) for row in rows.tolist()]
        clouds = self.store.at(torch.stack(numbers)).centred(self.config)
        clouds = run(self.steps, clouds, _generator(self.device, seed, "augmentation"))
        batch = clouds.to_batch(self.config)
        if self.options.mix3d:
            batch = Mix3D(self.options.mix3d)(batch, _generator(torch.device("cpu"), seed, "mix"))
        assert clouds.labels is not None
        return batch, clouds.labels.flatten()

    def _centre(self, row: int, rng: np.random.Generator) -> int:
        """The point that a crop is around: any of cloud `row`, or one of a class that is drawn first."""
        if not self.options.crops:
            return int(rng.integers(*self.store.offsets[row : row + 2]))
        members = self._by_class[rng.integers(len(self._by_class))]
        return int(members[rng.integers(len(members))])

    def _crop(self, point: int) -> Tensor:
        """Numbers (points,) of the points around a point; of clouds that are smaller, some come again."""
        row = int(np.searchsorted(self.store.offsets, point, side="right")) - 1
        found = self.store.crop(row, self.store.xyz[point], self.points)
        return (
            found if len(found) == self.points else found[torch.arange(self.points, device=found.device) % len(found)]
        )

    def loss(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """The loss and its parts."""
        parts: dict[str, Tensor] = self._criterion(logits, targets)
        return parts

    def evaluate(self, model: nn.Module, precision: str) -> dict[str, float]:
        """Mean IoU and accuracy in percent on the clouds held out, every point of them."""
        if not len(self.dev_rows):
            return {}
        scores = score_points(model, self.dev_store, dtype=self._dtype(precision), share=self.share)
        return {f"dev_{key}": value for key, value in scores.items()}
