"""Object detection on images as a training task: data on the device, augmented batches, loss and dev metric."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from modalities.image.detection_augment import DetectionAugmentation, DetectionOptions
from modalities.image.detection_data import PackedDetections, boxed_pictures
from modalities.image.detector import ImageDetector
from zoo.detection.compiled_loss import detection_loss
from zoo.detection.head import RawMaps
from zoo.detection.loss import DetectionLoss
from zoo.detection.metrics import measured, require_metrics
from zoo.detection.targets import Targets
from zoo.errors import ConfigError, DataError, WeightsError
from zoo.evaluate_detection import align_classes, evaluate_detector
from zoo.sharing import Share
from zoo.training.holdout import fits_on, held_out
from zoo.training.recipe import Recipe
from zoo.training.seeds import derive_seed
from zoo.training.task import EpochOrder

__all__ = ["ImageDetection"]


class ImageDetection:
    """Task for `zoo.training.loop`; see `zoo.training.task.Task`.

    Args:
        recipe: With `options` of type `DetectionOptions`.
        quiet: Show no progress bar while packing.
    """

    Options = DetectionOptions
    modality, task = "image", "detection"

    def __init__(self, recipe: Recipe, quiet: bool = True) -> None:
        if recipe.data is None:
            raise ConfigError(
                "no training data: give --data DIR (a folder with train.parquet, or COCO's annotations and pictures)"
            )
        self.recipe, self.options, self.quiet = recipe, recipe.options, quiet
        if recipe.pretrained and self.options.backbone is not None:
            raise ConfigError(
                "recipe: pretrained starts from the detector's weights and backbone from a classifier's: set backbone: "
                "null or pretrained: false"
            )
        self.packed = self._open("train")
        self.num_classes, self.labels = self.packed.num_classes, self.packed.class_names
        self.train_rows, held = held_out(self.options, self.packed.rarest_classes())
        self.dev, self.dev_rows = self.packed, held
        if self.options.dev_split:
            self.dev = self._open(self.options.dev_split)
            self.dev_rows = np.arange(len(self.dev))
        self.order = EpochOrder(len(self.train_rows), recipe.batch_size, recipe.seed)
        self.steps_per_epoch = self.order.steps_per_epoch
        boxes, labels, mask = self.packed.targets(self.train_rows)
        if not mask.any():
            raise DataError(f"{recipe.data}: no boxes to train on")
        self.targets = Targets(*map(torch.from_numpy, (boxes, labels, mask)))

    def _open(self, split: str) -> PackedDetections:
        options = self.options
        return boxed_pictures(
            str(self.recipe.data),
            split,
            size=options.store_size,
            category_ids=options.category_ids,
            skip_bad=options.skip_bad,
            quiet=self.quiet,
        )

    @property
    def facts(self) -> dict[str, Any]:
        """What the training record says about the data; `sha256` identifies them for resuming."""
        meta = self.packed.meta
        return {
            "name": meta["name"],
            "sha256": meta["source_sha256"],
            "pictures": len(self.train_rows),
            "boxes": int(self.targets.mask.sum()),
            "dropped_boxes": meta["dropped_boxes"],
            "dev_pictures": len(self.dev_rows),
            "skipped": len(meta["skipped"]),
        }

    def model_arguments(self) -> dict[str, Any]:
        """Keyword arguments for `zoo.load` that follow from the data."""
        size = {} if self.options.image_size is None else {"input_size": self.options.image_size}
        return {"num_classes": self.num_classes, **size}

    def start(self, model: nn.Module, device: torch.device, rank: int, world: int) -> None:
        """Loads the backbone, puts the data on the device and prepares augmentation for `model`.

        Raises:
            ConfigError: If the model takes no RGB pictures or crops them, or the batch cannot be divided.
            DataError: If the pictures to evaluate on have other classes.
            WeightsError: If the backbone does not fit.
        """
        assert isinstance(model, ImageDetector)  # Of this modality and task there are no others.
        data_config = model.data_config
        if data_config.input_size[0] != 3:
            raise ConfigError(f"training pictures are RGB; the model takes {data_config.input_size[0]} channels")
        if data_config.resize == "shortest":
            raise ConfigError("a detector sees the whole picture: its data_config must say squash or letterbox")
        if self.options.backbone is not None:
            import zoo

            try:
                model.load_backbone(zoo.load(self.options.backbone))
            except WeightsError as error:
                raise WeightsError(
                    f"backbone {self.options.backbone} for {self.recipe.model}: set backbone to a model of its size "
                    f"and encoding, or to null ({error})"
                ) from error
        self.rank = rank
        if len(self.dev_rows) and self.recipe.eval_every:  # What the evaluation needs is better missed now.
            require_metrics()
            align_classes(self.dev.num_classes, self.dev.class_names, model)
        self.augment = DetectionAugmentation(self.options, data_config, device)
        loss = DetectionLoss(
            model.strides,
            box_gain=self.options.box_gain,
            dfl_gain=self.options.dfl_gain,
            class_gain=self.options.class_gain,
        )
        self.criterion = detection_loss(loss, compiled=self.recipe.compile, device=device)
        self.pictures = _Canvases(self.packed, self.train_rows, device)
        # Indices lie where the pictures are, so that taking them needs no wait for the device.
        self.order.start(device if self.pictures.resident is not None else torch.device("cpu"), rank, world)
        self.share = Share(rank, world)
        self.targets = self.targets.to(device)

    def batch(self, epoch: int, index: int) -> tuple[Tensor, Targets]:
        """Batch `index` of `epoch` for this process; a function of its arguments and the recipe's seed alone.

        Returns:
            Images float32 (B, 3, H, W) and their boxes (B, M), with the same M in all batches, on the device.
        """
        rows = self.order.rows(epoch, index)
        pictures, sizes = self.pictures(rows)
        targets = Targets(self.targets.boxes[rows], self.targets.labels[rows], self.targets.mask[rows])
        return self.augment(pictures, sizes, targets, derive_seed(self.recipe.seed, epoch, index, self.rank))

    def loss(self, maps: RawMaps, targets: Targets) -> dict[str, Tensor]:
        """Loss of both branches and its parts; see `DetectionLoss`."""
        losses: dict[str, Tensor] = self.criterion(maps, targets)
        return losses

    def evaluate(self, model: nn.Module, precision: str) -> dict[str, float]:
        """COCO metrics in percent on the dev pictures, at the training size; what cannot be measured is left out."""
        if not len(self.dev_rows):
            return {}
        dtype = "bfloat16" if precision == "bf16" else "float32"
        metrics = evaluate_detector(model, self.dev, rows=self.dev_rows, dtype=dtype, share=self.share).metrics
        return {f"dev_{name}": value for name, value in measured(metrics).items()}


class _Canvases:
    """Stored pictures as batches of one size: each in the top left corner of a canvas as large as the largest.

    They lie on the device when they fit there, and else stay in the packed file.
    """

    def __init__(self, packed: PackedDetections, rows: np.ndarray, device: torch.device) -> None:
        self.packed, self.rows, self.device = packed, rows, device
        shapes = packed.shapes[rows]
        self.height, self.width = (int(side) for side in shapes.max(axis=0))
        self.sizes = torch.from_numpy(shapes.astype(np.float32)).to(device)
        self.resident: Tensor | None = None
        if fits_on(device, len(rows) * 3 * self.height * self.width):
            self.resident = self._gather(np.arange(len(rows))).to(device)

    def __call__(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """uint8 (B, 3, height, width) and the sizes of the pictures in there, float32 (B, 2), on the device."""
        if self.resident is not None:
            return self.resident[rows], self.sizes[rows]
        gathered = self._gather(rows.numpy())
        if self.device.type == "cuda":
            gathered = gathered.pin_memory()
        return gathered.to(self.device, non_blocking=True), self.sizes[rows]

    def _gather(self, rows: np.ndarray) -> Tensor:
        canvases = np.zeros((len(rows), 3, self.height, self.width), dtype=np.uint8)
        for canvas, row in zip(canvases, self.rows[rows].tolist(), strict=True):
            picture = self.packed[row]
            canvas[:, : picture.shape[1], : picture.shape[2]] = picture
        return torch.from_numpy(canvases)
