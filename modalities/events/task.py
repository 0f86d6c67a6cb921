"""Training on events: classification of clips and detection in scenes, on batches of tokens of constant shape."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modalities.events.batches import SampleStore, TokenBatches, check_sensor
from modalities.events.datasets.base import ClipSet, EventSample
from modalities.events.datasets.dvsgesture import DvsGesture
from modalities.events.datasets.find import open_clips, open_scenes
from modalities.events.datasets.folders import EventFolders
from modalities.events.datasets.prophesee import BoxedRecordings
from modalities.events.evaluate import accuracy, average_precision
from modalities.events.options import ClassificationOptions, DetectionOptions
from modalities.events.tokens import EventTokens
from zoo.class_folders import has_split
from zoo.detection.compiled_loss import detection_loss
from zoo.detection.loss import DetectionLoss
from zoo.detection.metrics import measured, require_metrics
from zoo.detection.targets import Targets
from zoo.errors import ConfigError
from zoo.sharing import Share
from zoo.training.holdout import held_out, split_dev
from zoo.training.recipe import Recipe
from zoo.training.seeds import derive_seed
from zoo.training.task import EpochOrder

__all__ = ["EventClassification", "EventDetection"]


class _EventTask(ABC):
    """What both tasks share; see `zoo.training.task.Task`.

    Args:
        recipe: With the task's options.
        quiet: Show no progress bar.
    """

    modality = "events"
    task: str
    num_classes: int
    labels: list[str] | None
    rows: np.ndarray

    def __init__(self, recipe: Recipe, quiet: bool = True) -> None:
        if recipe.data is None:
            raise ConfigError("no training data: give --data DIR (the folder of the data set)")
        self.recipe, self.options, self.quiet = recipe, recipe.options, quiet
        self.folder = recipe.data
        self.errors = "keep" if recipe.options.keep_damaged else "raise"
        self.data: Any = self._open()
        self.labels, self.num_classes = list(self.data.class_names), len(self.data.class_names)
        self.order = EpochOrder(len(self.rows), recipe.batch_size, recipe.seed)
        self.steps_per_epoch = self.order.steps_per_epoch
        self.batches: TokenBatches | None = None

    @abstractmethod
    def _open(self) -> Any:
        """The training split; sets `rows`, the samples to train on."""

    @property
    def facts(self) -> dict[str, Any]:
        """What the training record says about the data; `sha256` identifies them for resuming."""
        known = {"name": self.data.name, "sha256": self.data.sha256, "samples": len(self.rows)}
        return known | (self.batches.facts if self.batches else {})

    def model_arguments(self) -> dict[str, Any]:
        """Keyword arguments for `zoo.load` that follow from the data."""
        return {"num_classes": self.num_classes}

    def start(self, model: nn.Module, device: torch.device, rank: int, world: int) -> None:
        """Reads the samples and prepares their tokens for `model`.

        Raises:
            ConfigError: If the model is for another sensor, or the batch cannot be divided.
            DataError: If a recording is damaged.
        """
        data_config: Any = model.data_config
        check_sensor(self.data, data_config)
        self.order.start(torch.device("cpu"), rank, world)  # Where samples are looked up.
        self.device, self.rank = device, rank
        self.share = Share(rank, world)
        if isinstance(self.data, BoxedRecordings):
            self.data.window = data_config.window_us, data_config.max_events
        store = SampleStore(self.data, self.rows, self.options.memory_gib, self.quiet)
        name = "dvsgesture" if isinstance(self.data, DvsGesture) else ""
        steps = self.options.augmentations(name)
        self.batches = TokenBatches(store, data_config, steps, self.options.max_tokens, self.options.workers)

    def batch(self, epoch: int, index: int) -> tuple[EventTokens, Any]:
        """Batch `index` of `epoch` for this process; a function of its arguments and the recipe's seed alone.

        Returns:
            Tokens (B, S) of the same S for every batch, and targets, on the device.
        """
        assert self.batches is not None, "start() comes first"
        rows = self.order.rows(epoch, index).tolist()
        tokens, samples = self.batches(rows, derive_seed(self.recipe.seed, epoch, index, self.rank))
        return tokens.to(self.device), self._targets(samples)

    @abstractmethod
    def _targets(self, samples: list[EventSample]) -> Any:
        """Targets of a batch, on the device."""

    def _dtype(self, precision: str) -> str:
        return "bfloat16" if precision == "bf16" else "float32"


class EventClassification(_EventTask):
    """Task `event-classification`: cross-entropy on the class of a clip."""

    Options = ClassificationOptions
    task = "classification"

    def _open(self) -> ClipSet:
        options = self.options
        data = open_clips(self.folder, "train", options.dataset, errors=self.errors)
        self.dev, self.dev_rows = data, np.zeros(0, np.int64)
        self.rows = np.arange(len(data))
        drawn = options.dev_count or options.dev_by_class
        if isinstance(data, DvsGesture) and drawn:
            raise ConfigError("recipe: DvsGesture has a validation split (users 21 to 23): leave dev_count at 0")
        if drawn:
            self.rows, self.dev_rows = held_out(options, data.labels)
        elif isinstance(data, DvsGesture) or (isinstance(data, EventFolders) and has_split(data.path, "val")):
            self.dev = open_clips(self.folder, "val", options.dataset, errors=self.errors)
            self.dev_rows = np.arange(len(self.dev))
        return data

    def _targets(self, samples: list[EventSample]) -> Tensor:
        return torch.tensor([sample.label for sample in samples]).to(self.device)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in float32."""
        return F.cross_entropy(logits.float(), targets, label_smoothing=self.options.label_smoothing)

    def evaluate(self, model: nn.Module, precision: str) -> dict[str, float]:
        """Top-1 and top-5 in percent on the samples held out."""
        if not len(self.dev_rows):
            return {}
        scores = accuracy(model, self.dev, self.dev_rows, dtype=self._dtype(precision), share=self.share)
        return {f"dev_{key}": value for key, value in scores.items()}


class EventDetection(_EventTask):
    """Task `event-detection`: the loss of the YOLOv10 head on the boxes of a scene."""

    Options = DetectionOptions
    task = "detection"

    def _open(self) -> BoxedRecordings:
        data = self._split("train")
        self.rows = np.arange(len(data))
        counts = [np.unique(boxes.t_us, return_counts=True)[1].max() for boxes in data.truth if len(boxes)]
        self.most_boxes = int(max(counts))
        self.dev, self.dev_rows = None, None
        if share := self.options.dev_fraction:
            kept, held = split_dev(len(data.truth), 0, share)
            self.rows, self.dev_rows = (np.flatnonzero(np.isin(data.recordings, part)) for part in (kept, held))
            self.dev = data if len(held) else None
        elif (data.path / "val").is_dir():
            self.dev = self._split("val")
        return data

    def _split(self, split: str) -> BoxedRecordings:
        options = self.options
        return open_scenes(self.folder, split, options.dataset, errors=self.errors, half=options.half)

    def start(self, model: nn.Module, device: torch.device, rank: int, world: int) -> None:
        """As that of both tasks, and prepares the loss."""
        super().start(model, device, rank, world)
        loss = DetectionLoss(model.strides)  # type: ignore[arg-type]
        self._loss = detection_loss(loss, compiled=self.recipe.compile, device=device)
        if self.dev is not None:
            self.dev.window = self.data.window
            if self.recipe.eval_every:  # What the evaluation needs is better missed now.
                require_metrics()

    def _targets(self, samples: list[EventSample]) -> Targets:
        """Boxes padded to the most that a scene has, so that shapes stay."""
        shape = (len(samples), self.most_boxes)
        boxes, labels, mask = np.zeros((*shape, 4), np.float32), np.zeros(shape, np.int64), np.zeros(shape, np.bool_)
        for row, sample in enumerate(samples):
            count = len(sample.labels)
            boxes[row, :count], labels[row, :count], mask[row, :count] = sample.boxes, sample.labels, True
        return Targets(*(torch.from_numpy(array) for array in (boxes, labels, mask))).to(self.device)

    def loss(self, maps: Any, targets: Targets) -> dict[str, Tensor]:
        """Loss of both branches and its parts."""
        parts: dict[str, Tensor] = self._loss(maps, targets)
        return parts

    def evaluate(self, model: nn.Module, precision: str) -> dict[str, float]:
        """COCO metrics in percent on the split `val`, by the protocol of the data set."""
        if self.dev is None:
            return {}
        about: Any = {"dtype": self._dtype(precision), "share": self.share}
        scores = average_precision(model, self.dev, self.dev.protocol, self.dev_rows, **about)
        return {f"dev_{key}": value for key, value in measured(scores).items()}
