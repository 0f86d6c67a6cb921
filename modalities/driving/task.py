"""Training of detectors on driving scenes in the format of nuScenes, from cameras, lidar or both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn

from modalities.driving.augment import Augmentation, TrainingScene, run
from modalities.driving.augment_paste import PasteObjects
from modalities.driving.balance import BalancedOrder, balanced_weights
from modalities.driving.batch import DrivingBatch
from modalities.driving.boxes import BoxTargets, pad_boxes
from modalities.driving.config import SENSORS, FusionConfig
from modalities.driving.data_config import DrivingDataConfig
from modalities.driving.evaluate import as_metrics, detect_frames, score_boxes
from modalities.driving.frames import FrameReader, Frames, collate, open_data, open_frames, to_model
from modalities.driving.losses import FusionLoss
from modalities.driving.model import FusionDetector
from modalities.driving.nuscenes.truth import detection_truth
from modalities.driving.objects import open_objects
from modalities.driving.options import DrivingOptions
from modalities.driving.query_head import FusionOutputs
from modalities.driving.workers import BatchWorkers
from zoo.errors import ConfigError, DataError, require
from zoo.read_ahead import in_order
from zoo.sharing import Share
from zoo.sources import locate
from zoo.training.recipe import Recipe
from zoo.training.seeds import derive_seed
from zoo.training.task import EpochOrder

__all__ = ["DrivingDetection"]


class DrivingDetection:
    """Task `driving-detection`; see `zoo.training.task.Task`.

    Args:
        recipe: With `options` of type `DrivingOptions`.
        quiet: Show no progress bar.

    Raises:
        ConfigError: If there are no data, no such split, or no such class.
        DataError: If the tables cannot be used, or no key frame has a box of the classes.
    """

    Options = DrivingOptions
    modality, task = "driving", "detection"

    def __init__(self, recipe: Recipe, quiet: bool = True) -> None:
        if recipe.data is None:
            raise ConfigError("no training data: give --data DATAROOT (a folder in the format of nuScenes)")
        require("scipy.optimize", "driving")  # Of the loss: better missed now.
        self.recipe, self.quiet = recipe, quiet
        self.options: DrivingOptions = recipe.options
        source = locate(recipe.model, pretrained=recipe.pretrained).config
        names = self.options.classes or source.get("labels")
        if not names:
            raise ConfigError(f"recipe: {recipe.model} does not name its classes: set classes")
        self.labels, self.num_classes = list(names), len(names)
        self.data = open_data(
            recipe.data,
            self.options.version,
            str((source["model"] | recipe.model_options).get("sensors", SENSORS[0])),
            classes=self.labels,
            missing_images=self.options.missing_images,
        )
        self.tokens = self.data.sample_tokens(self.options.split)
        self.dev_tokens = self._dev_tokens()
        self.order = self._order()
        self.steps_per_epoch = self.order.steps_per_epoch
        self._paste = self._pasting(source)

    def _dev_tokens(self) -> list[str]:
        if self.options.dev_split is None:
            return []
        try:
            return self.data.sample_tokens(self.options.dev_split)
        except ConfigError as error:
            raise ConfigError(f"{error}; recipe: dev_split: null measures nothing while training") from error

    def _order(self) -> EpochOrder:
        batch_size, seed = self.recipe.batch_size, self.recipe.seed
        labels = [torch.from_numpy(self.data.labels(token)) for token in self.tokens]
        if not any(bool((found >= 0).any()) for found in labels):
            raise DataError(
                f"{self.data.tables.folder}: no box of the classes {', '.join(self.labels)} in the split "
                f"{self.options.split!r}: nothing to train on"
            )
        if self.options.balance:
            return BalancedOrder(balanced_weights(labels, self.num_classes), batch_size, seed)
        return EpochOrder(len(self.tokens), batch_size, seed)

    def _pasting(self, source: dict[str, Any]) -> list[Augmentation]:
        """The step that pastes objects, if the recipe has one; the objects are collected the first time."""
        numbers, options = self.options.paste, self.options
        if unknown := [name for name in numbers if name not in self.labels]:
            raise ConfigError(f"recipe: paste names {unknown[0]!r:.60}, which is none of {', '.join(self.labels)}")
        if not any(numbers.values()):
            return []
        changes = dict(self.recipe.model_options)
        config = DrivingDataConfig.from_dict(source["data"])
        if (size := changes.pop("input_size", None)) is not None:
            config = config.with_size(size)
        sizes = FusionConfig.from_dict(source["model"] | changes)
        patches = sizes.has_cameras and options.paste_opacity > 0
        seen = (sizes.sensors, config.cameras, config.image_size, config.sweeps, options.missing_images)
        key = (self.data.sha256, options.split, tuple(self.labels), *seen)
        reader = FrameReader(self.data, self.tokens, config, sizes)
        database = open_objects(
            lambda: in_order(reader.__getitem__, range(len(reader)), options.workers),
            key,
            min_points=options.paste_min_points,
            patches=patches,
        )
        return [PasteObjects(database, tuple(numbers.get(name, 0) for name in self.labels), options.paste_opacity)]

    @property
    def facts(self) -> dict[str, Any]:
        """What the training record says about the data; `sha256` identifies them for resuming."""
        return {
            "name": self.data.name,
            "sha256": self.data.sha256,
            "samples": len(self.tokens),
            "dev_samples": len(self.dev_tokens),
        }

    def model_arguments(self) -> dict[str, Any]:
        """Keyword arguments for `zoo.load` that follow from the data."""
        return {"num_classes": self.num_classes}

    def start(self, model: nn.Module, device: torch.device, rank: int, world: int) -> None:
        """Reads the key frames, if they fit in memory.

        Raises:
            ConfigError: If the batch cannot be divided.
            DataError: If a key frame cannot be used.
        """
        assert isinstance(model, FusionDetector)  # Of this modality and task there are no others.
        self.order.start(torch.device("cpu"), rank, world)  # Where frames are looked up.
        self.device, self.rank, self.sizes, self.config = device, rank, model.sizes, model.data_config
        self.share = Share(rank, world)
        options = self.options
        self.frames = self._opened(self.tokens)
        self.steps = options.augmentations(self.config)
        total = self.recipe.epochs * self.steps_per_epoch
        self._batches = BatchWorkers(self._batch, total, options.workers, options.ahead)
        weights = ("heat_weight", "class_weight", "box_weight", "velocity_weight")
        own = {name: getattr(options, name) for name in weights}
        self.criterion = FusionLoss(config=model.sizes, data=self.config, labels=tuple(self.labels), **own)

    def close(self) -> None:
        """Ends the processes that make batches."""
        if hasattr(self, "_batches"):
            self._batches.close()

    def _opened(self, tokens: list[str], *, boxes: bool = True) -> Frames:
        options = self.options
        reader = FrameReader(self.data, tokens, self.config, self.sizes, boxes=boxes)
        return open_frames(reader, options.memory_gib, workers=options.workers, quiet=self.quiet)

    def batch(self, epoch: int, index: int) -> tuple[DrivingBatch, BoxTargets]:
        """Batch `index` of `epoch` for this process; a function of its arguments and the recipe's seed alone.

        Returns:
            Scenes and their boxes, on the device.
        """
        batch, targets = self._batches(epoch * self.steps_per_epoch + index)
        return to_model(batch, self.config, self.device), targets.to(self.device)

    def _batch(self, step: int) -> tuple[DrivingBatch, BoxTargets]:
        """What a worker makes of a batch."""
        epoch, index = divmod(step, self.steps_per_epoch)
        seed = derive_seed(self.recipe.seed, epoch, index, self.rank)
        steps = [*(self._paste if epoch < self.recipe.epochs - self.options.paste_off else ()), *self.steps]
        rows: list[int] = self.order.rows(epoch, index).tolist()
        scenes = [self._scene(row, derive_seed(seed, place), steps) for place, row in enumerate(rows)]
        return collate(scenes), pad_boxes([scene.boxes for scene in scenes])

    def _scene(self, row: int, seed: int, steps: Sequence[Augmentation]) -> TrainingScene:
        return run(steps, self.frames[row], Generator().manual_seed(seed))

    def loss(self, outputs: FusionOutputs, targets: BoxTargets) -> dict[str, Tensor]:
        """The loss and its parts; see `FusionLoss`."""
        return self.criterion(outputs, targets)

    def evaluate(self, model: nn.Module, precision: str) -> dict[str, float]:
        """Metrics of nuScenes on the dev split, see `modalities.driving.evaluate.as_metrics`."""
        if not self.dev_tokens:
            return {}
        if not hasattr(self, "_dev"):
            self._dev = detection_truth(self.data, self.dev_tokens), self._opened(self.dev_tokens, boxes=False)
        truth, frames = self._dev
        found = detect_frames(
            model,
            frames,
            batch_size=self.options.eval_batch_size,
            dtype="bfloat16" if precision == "bf16" else "float32",
            workers=self.options.workers,
            share=self.share,
        )
        scores = score_boxes(dict(zip(self.dev_tokens, found, strict=True)), truth, self.data)
        return {f"dev_{key}": value for key, value in as_metrics(scores).items()}
