"""COCO metrics of an image detector at several sizes, with the preprocessing of prediction."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from zoo.detection.detections import Detections
from zoo.detection.metrics import CocoMetrics, measured, require_metrics
from zoo.encodings.extendable import extended
from zoo.errors import ConfigError, DataError
from zoo.evaluate import Autocast, data_facts, evaluating, extension_at, report
from zoo.progress import progress_bar
from zoo.sharing import ALONE, Share

__all__ = ["BoxedPictures", "DetectionEvalResult", "align_classes", "evaluate_detector", "evaluate_detector_data"]

# Pixels of one batch by default.
_BATCH_PIXELS = {"cuda": 16 * 640**2, "cpu": 640**2}


class BoxedPictures(Protocol):
    """Pictures with objects, such as `modalities.image.detection_data.PackedDetections`."""

    @property
    def num_classes(self) -> int:
        """Number of classes."""

    @property
    def class_names(self) -> list[str] | None:
        """Their names, if known."""

    @property
    def shapes(self) -> np.ndarray:
        """int32 (N, 2), height and width of the pictures."""

    @property
    def sizes(self) -> np.ndarray:
        """int32 (N, 2), height and width before they were resized for packing."""

    @property
    def boxes(self) -> np.ndarray:
        """float32 (M, 4), x1, y1, x2, y2 in pixels before resizing."""

    @property
    def labels(self) -> np.ndarray:
        """int64 (M,)."""

    @property
    def crowd(self) -> np.ndarray:
        """Of dtype bool (M,), True for boxes around a group."""

    @property
    def area(self) -> np.ndarray:
        """float32 (M,) in square pixels before resizing."""

    def __len__(self) -> int:
        """Number of pictures."""

    def __getitem__(self, index: int) -> np.ndarray:
        """A picture, uint8 (3, H, W)."""

    def objects(self, index: int) -> slice:
        """Where the objects of a picture are in the arrays of objects."""


@dataclasses.dataclass(frozen=True)
class DetectionEvalResult:
    """Result at one size.

    Attributes:
        size: Side of the square input in pixels, or (height, width).
        metrics: Of `CocoMetrics`, in percent; NaN where there is nothing to find.
        images: Number of pictures.
        images_per_s: Throughput of preprocessing and model, without decoding.
        extend: Method of context extension, if one was asked for.
        factor: Its factor along each coordinate axis, (columns, rows).
    """

    size: int | tuple[int, int]
    metrics: dict[str, float]
    images: int
    images_per_s: float
    extend: str | None = None
    factor: tuple[float, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON; metrics that are NaN are left out."""
        values: dict[str, Any] = {"size": self.size, **measured(self.metrics), "images_per_s": self.images_per_s}
        if self.extend is not None and self.factor is not None:
            values |= {"extend": self.extend, "factor": list(self.factor)}
        return values


def align_classes(num_classes: int, names: Sequence[str] | None, model: nn.Module) -> np.ndarray:
    """The class of the data for every class of a detector.

    Args:
        num_classes: Number of classes of the data.
        names: Their names, if known.
        model: With `num_classes` and `config["labels"]`.

    Returns:
        int64 (K,), -1 for classes that the data do not have: their detections do not count. Classes are matched by
        name when the model has all names of the data (so a network with COCO's 91 category ids fits data with 80
        classes), else they are taken in order; without names the data may end before the last class.

    Raises:
        DataError: If they are taken in order and the numbers of classes differ, or a name occurs twice.
    """
    expected = int(model.num_classes)  # type: ignore[arg-type]
    config: Any = getattr(model, "config", None) or {}
    known = config.get("labels")
    if names and known and set(names) <= set(known):
        if len(set(names)) != len(names):
            raise DataError("two classes of the data have the same name")
        return np.array([names.index(name) if name in names else -1 for name in known], dtype=np.int64)
    if not names and num_classes < expected:  # Counted by the labels that occur.
        return np.where(np.arange(expected) < num_classes, np.arange(expected), -1)
    if num_classes != expected:
        missing = sorted(set(names or ()) - set(known or ()))[:3] if known else []
        unknown = f"; the model does not know {', '.join(missing)}" if missing else ""
        raise DataError(f"the data have {num_classes} classes, the model has {expected}{unknown}")
    return np.arange(expected, dtype=np.int64)


@torch.inference_mode()
def evaluate_detector(
    model: nn.Module,
    data: BoxedPictures,
    *,
    rows: np.ndarray | None = None,
    size: int | tuple[int, int] | None = None,
    batch_size: int | None = None,
    dtype: str = "float32",
    extend: str | None = None,
    factor: float | None = None,
    progress: Callable[[float, str], None] | None = None,
    share: Share = ALONE,
) -> DetectionEvalResult:
    """Measures COCO metrics at one size; boxes are compared in pixels of the pictures before preprocessing.

    Args:
        model: An image detector of this library, on the device to use; left in the mode it was in.
        data: Pictures with objects.
        rows: Which of them; `None` = all.
        size: Side in pixels, or (height, width); `None` = the model's own.
        batch_size: Pictures at a time; `None` = by size.
        dtype: `"float32"`, or `"bfloat16"` or `"float16"` for autocast.
        extend: Method of context extension (`zoo.encodings.extension.METHODS`) while this runs.
        factor: Its factor; see `zoo.evaluate.evaluate`.
        progress: Called with (pictures done, text).
        share: Of this process, where several evaluate together; all of them get the results of all pictures.

    Raises:
        ConfigError: For an unknown dtype, an unusable size or extension, or a model that is no detector.
        DataError: If there are no pictures, or the classes do not fit.
        MissingDependencyError: If `faster-coco-eval` is not installed.
    """
    config: Any = getattr(model, "config", None) or {}
    if config.get("task") != "detection":
        raise ConfigError(f"COCO metrics are for detectors; this is a model for {config.get('task')}")
    if factor is not None and extend is None:
        raise ConfigError("a factor is that of a method of extension: give extend too")
    require_metrics()
    chosen = np.arange(len(data)) if rows is None else np.asarray(rows)
    if len(chosen) == 0:
        raise DataError("no pictures to evaluate on")
    classes = align_classes(data.num_classes, data.class_names, model)
    data_config: Any = model.data_config
    side = (data_config if size is None else data_config.with_size(size)).input_size[1:]
    device = next(model.parameters()).device
    batch = batch_size or max(1, _BATCH_PIXELS["cuda" if device.type == "cuda" else "cpu"] // (side[0] * side[1]))
    names = data.class_names if data.class_names and len(set(data.class_names)) == data.num_classes else None
    metrics = CocoMetrics(data.num_classes, class_names=names)
    extension = None if extend is None else extension_at(model, side, extend, factor)
    seconds, warm = 0.0, False
    longer = contextlib.nullcontext() if extension is None else extended(model, extension)
    with evaluating(model, dtype) as autocast, longer:
        own_boxes: dict[int, np.ndarray] = {}  # Of a place in `chosen`.
        for start, end in share.blocks(len(chosen), batch):
            own = chosen[start:end]
            if not warm:  # The first forward at a size also chooses kernels: not timed.
                _detect(model, data, own, side, device, autocast)
                warm = True
            began = time.perf_counter()
            found = _detect(model, data, own, side, device, autocast)
            seconds += time.perf_counter() - began
            for place, row in enumerate(own.tolist()):
                height, width = (int(side) for side in data.shapes[row])
                own_boxes[start + place] = found.for_image(place, (height, width)).double().numpy()
            if progress:
                progress(min(len(chosen), share.world * end), f"{side[1]} px")
    boxes: dict[int, np.ndarray] = {}
    for other, time_s in share.gather((own_boxes, seconds)):
        boxes |= other
        seconds = max(seconds, time_s)
    for place, row in enumerate(chosen.tolist()):  # In one order, however many processes there are.
        _add(metrics, data, row, boxes[place], classes)
    shown = side[0] if side[0] == side[1] else side
    return DetectionEvalResult(
        shown,
        metrics.compute(),
        len(chosen),
        len(chosen) / seconds,
        extend,
        None if extension is None else extension.factors(2),
    )


def _detect(
    model: nn.Module,
    data: BoxedPictures,
    rows: np.ndarray,
    side: tuple[int, int],
    device: torch.device,
    autocast: Autocast,
) -> Detections:
    """Detections of some pictures, on the host."""
    from modalities.image.transforms import preprocess_batch

    data_config: Any = model.data_config
    pictures = [data[row] for row in rows.tolist()]
    stacks = [pictures] if len({p.shape for p in pictures}) == 1 else [[p] for p in pictures]
    inputs: list[Tensor] = [
        preprocess_batch(torch.from_numpy(np.stack(stack)).to(device), data_config, side) for stack in stacks
    ]
    with autocast():
        found = model(torch.cat(inputs))
    return dataclasses.replace(found, tensor=found.tensor.float().cpu())  # Waits for the device.


def _add(metrics: CocoMetrics, data: BoxedPictures, row: int, rows: np.ndarray, classes: np.ndarray) -> None:
    labels = classes[rows[:, 5].astype(np.int64)]
    rows, labels = rows[labels >= 0], labels[labels >= 0]
    down, across = data.sizes[row] / data.shapes[row]  # The picture may have been shrunk when it was packed.
    boxes = rows[:, :4] * np.array([across, down, across, down])
    own = data.objects(row)
    metrics.add(
        boxes,
        rows[:, 4],
        labels,
        data.boxes[own],
        data.labels[own],
        crowd=data.crowd[own],
        area=data.area[own],
    )


def _progress(update: Callable[[float, str], None], before: int, done: float, text: str) -> None:
    update(before + done, text)


def evaluate_detector_data(
    model: nn.Module,
    data: str | os.PathLike[str],
    *,
    split: str = "validation",
    sizes: Sequence[int | tuple[int, int]] | None = None,
    name: str | None = None,
    batch_size: int | None = None,
    limit: int | None = None,
    dtype: str = "float32",
    extend: str | None = None,
    factor: float | None = None,
    skip_bad: bool = False,
    quiet: bool = True,
    command: str | None = None,
    share: Share = ALONE,
) -> dict[str, Any]:
    """Evaluates on pictures with boxes from disk; see `evaluate_detector`.

    Args:
        model: On the device to use.
        data: Folder with `<split>.parquet`, or COCO's annotations and pictures; decoded once and cached.
        split: Which split.
        sizes: `None` = the model's own size.
        name: Of the model, for the report; `None` = from its configuration.
        batch_size: See `evaluate_detector`.
        limit: Only the first pictures; `None` = all.
        dtype: See `evaluate_detector`.
        extend: See `evaluate_detector`.
        factor: See `evaluate_detector`.
        skip_bad: Leave out damaged and missing pictures instead of raising.
        quiet: Show no progress bar.
        command: For the report.
        share: See `evaluate_detector`.

    Returns:
        `{"name", "task", "dataset", "split", "images", "skipped", "data_sha256", "command", "device", "dtype",
        "results"}`; each result has `size`, the metrics of `CocoMetrics` in percent (those that are NaN left out), and
        `images_per_s`.

    Raises:
        DataError: If the data cannot be used or have other classes than the model.
    """
    from modalities.image.detection_data import boxed_pictures

    require_metrics()  # Before the pictures are decoded.
    with share.main_first():
        packed = boxed_pictures(data, split, skip_bad=skip_bad, quiet=quiet)
    rows = np.arange(min(limit or len(packed), len(packed)))
    wanted = list(sizes) if sizes else [None]
    results = []
    with progress_bar("evaluating", len(rows) * len(wanted), quiet) as update:
        for index, size in enumerate(wanted):
            before = index * len(rows)
            results.append(
                evaluate_detector(
                    model,
                    packed,
                    rows=rows,
                    size=size,
                    batch_size=batch_size,
                    dtype=dtype,
                    extend=extend,
                    factor=factor,
                    progress=functools.partial(_progress, update, before),
                    share=share,
                )
            )
    return report(
        model,
        [result.to_dict() for result in results],
        **data_facts(packed, split, len(rows)),
        name=name,
        command=command,
        dtype=dtype,
        skipped=packed.skipped,
    )
