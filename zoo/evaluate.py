"""Accuracy of an image classifier at several sizes, with the preprocessing of prediction."""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from zoo import registry
from zoo.encodings.extendable import extended
from zoo.encodings.extension import DynamicNTK, Extension, parse_extension
from zoo.errors import ConfigError, DataError
from zoo.matching import align_labels
from zoo.progress import progress_bar
from zoo.sharing import ALONE, Share

__all__ = [
    "Autocast",
    "EvalResult",
    "data_facts",
    "evaluate",
    "evaluate_data",
    "evaluating",
    "extension_at",
    "report",
]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Pixels of one batch by default: 512 pictures of 112 px; larger pictures get smaller batches.
_BATCH_PIXELS = {"cuda": 512 * 112**2, "cpu": 32 * 112**2}

Autocast = Callable[[], AbstractContextManager[Any]]
"""Makes the context in which a model runs."""


@contextmanager
def evaluating(model: nn.Module, dtype: str = "float32") -> Iterator[Autocast]:
    """Puts a model in eval mode, and back into the mode it was in.

    Example:
        with evaluating(model, "bfloat16") as autocast:
            inputs = prepare(pictures)  # In full precision.
            with autocast():
                outputs = model(inputs)

    Args:
        model: On the device to use.
        dtype: `"float32"`, or `"bfloat16"` or `"float16"` for autocast.

    Yields:
        What makes the context for the model alone.

    Raises:
        ConfigError: For an unknown dtype.
    """
    if str(dtype) not in DTYPES:
        raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r:.60}")
    device, was_training = next(model.parameters()).device, model.training
    model.eval()
    try:
        yield functools.partial(torch.autocast, device.type, DTYPES[dtype], enabled=dtype != "float32")
    finally:
        model.train(was_training)


@dataclasses.dataclass(frozen=True)
class EvalResult:
    """Result at one size.

    Attributes:
        size: Side of the square input in pixels, or (height, width).
        top1: Percent of pictures whose label has the largest logit.
        top5: Percent whose label is among the five largest.
        images: Number of pictures.
        images_per_s: Throughput of preprocessing and model, without decoding.
        extend: Method of context extension, if one was asked for.
        factor: Its factor along each coordinate axis, (columns, rows); 1 at the training size and below.
    """

    size: int | tuple[int, int]
    top1: float
    top5: float
    images: int
    images_per_s: float
    extend: str | None = None
    factor: tuple[float, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        values: dict[str, Any] = {
            "size": self.size,
            "top1": self.top1,
            "top5": self.top5,
            "images_per_s": self.images_per_s,
        }
        if self.extend is not None and self.factor is not None:
            values |= {"extend": self.extend, "factor": list(self.factor)}
        return values


def extension_at(model: nn.Module, size: int | tuple[int, int], method: str, factor: float | None = None) -> Extension:
    """The context extension of an image model for inputs of a size.

    Args:
        model: An image model of this library.
        size: Side in pixels, or (height, width).
        method: A name of `zoo.encodings.extension.METHODS`.
        factor: On axes that are larger than the model's own size; `None` is new size over own, axis by axis, and 1 for
            dynamic NTK, which measures that ratio itself.

    Raises:
        ConfigError: If the method is unknown, or the size or the factor unusable.
    """
    config: Any = model.config
    height, width = model.data_config.input_size[1:]  # type: ignore[union-attr, index]
    side = _side(size)
    extent = registry.architecture(config).trained_extent(config)
    given = 1.0 if factor is None else factor
    found = parse_extension({"extend": str(method), "factor": given, "extent": extent})
    assert found is not None
    ratios = (side[1] / width, side[0] / height)  # In the order of the coordinates.
    if factor is None and isinstance(found, DynamicNTK):  # It measures the ratio itself.
        return found
    return dataclasses.replace(
        found, factor=[1.0 if ratio <= 1 else (ratio if factor is None else factor) for ratio in ratios]
    )


def _side(size: int | tuple[int, int]) -> tuple[int, int]:
    """Height and width of a size in pixels."""
    side = (size, size) if isinstance(size, int) else size
    if (
        not isinstance(side, (list, tuple))
        or len(side) != 2
        or any(isinstance(one, bool) or not isinstance(one, int) or one < 1 for one in side)
    ):
        raise ConfigError(f"a size is a side in pixels or (height, width), 1 or more, got {size!r:.80}")
    return side[0], side[1]


@torch.inference_mode()
def evaluate(
    model: nn.Module,
    pictures: Tensor | np.ndarray | Sequence[np.ndarray],
    labels: Tensor | np.ndarray | Sequence[int],
    sizes: Sequence[int | tuple[int, int]],
    *,
    batch_size: int | None = None,
    device: str | torch.device | None = None,
    dtype: str = "float32",
    extend: str | None = None,
    factor: float | None = None,
    progress: Callable[[float, str], None] | None = None,
    share: Share = ALONE,
) -> list[EvalResult]:
    """Measures top-1 and top-5 accuracy at each size.

    Args:
        model: A classifier of this library; used in eval mode and left in the mode it was in.
        pictures: uint8 (N, 3, H, W), or N arrays uint8 (3, H, W) that may differ in size.
        labels: N class numbers in the order of the model's classes.
        sizes: Sides in pixels, or (height, width).
        batch_size: Pictures at a time; `None` = by size, and halved when the device's memory does not suffice.
        device: Where to run; `None` = where the model is. The model is moved there.
        dtype: `"float32"`, or `"bfloat16"` or `"float16"` for autocast.
        extend: Method of context extension (`zoo.encodings.extension.METHODS`) while this runs, in place of what the
            model has; `None` leaves the model as it is.
        factor: Its factor at sizes above the model's own (those of `data_config`), on the axes that are larger; `None`
            is the new size over the model's own, axis by axis.
        progress: Called with (pictures done over all sizes, text).
        share: Of this process, where several evaluate together; all of them get the results of all pictures.

    Raises:
        ConfigError: For an unknown dtype, no sizes or unusable ones, an extension that does not apply to the model, or
            a model that is no classifier.
        DataError: If there are no pictures, or labels do not fit.
    """
    task = getattr(model, "config", {}).get("task", "classification")
    if task != "classification":
        raise ConfigError(f"accuracy is for classifiers; this is a model for {task}")
    if factor is not None and extend is None:
        raise ConfigError("a factor is that of a method of extension: give extend too")
    if not isinstance(sizes, (list, tuple)) or not sizes or (batch_size is not None and batch_size < 1):
        raise ConfigError("give a list of at least one size, and a batch size of at least 1")
    targets = torch.as_tensor(np.asarray(labels), dtype=torch.int64)
    if len(pictures) == 0 or len(pictures) != len(targets):
        raise DataError(f"{len(pictures)} pictures and {len(targets)} labels: expected as many, and at least one")
    if int(targets.min()) < 0 or int(targets.max()) >= int(model.num_classes):  # type: ignore[arg-type]
        raise DataError(f"labels go to {int(targets.max())}, the model has {model.num_classes} classes")
    target_device = torch.device(device) if device is not None else next(model.parameters()).device
    with evaluating(model.to(target_device), dtype) as autocast:
        run = _Evaluation(model, pictures, targets, target_device, autocast, batch_size, progress, share)
        if extend is None:
            return [run.at_size(size) for size in sizes]
        results = []
        for size, extension in [(size, extension_at(model, size, extend, factor)) for size in sizes]:
            with extended(model, extension):
                result = run.at_size(size)
            results.append(dataclasses.replace(result, extend=extend, factor=extension.factors(2)))
        return results


def evaluate_data(
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
    """Evaluates on pictures from disk; see `evaluate`.

    Args:
        model: On the device to use.
        data: Folder with `<split>.parquet` or `<split>/<class>/<pictures>`, decoded once and cached; or shards, see
            `modalities.image.shard_files.find_shards`.
        split: Which split.
        sizes: `None` = the model's own size.
        name: Of the model, for the report; `None` = from its configuration.
        batch_size: See `evaluate`.
        limit: Only the first pictures; `None` = all.
        dtype: See `evaluate`.
        extend: See `evaluate`.
        factor: See `evaluate`.
        skip_bad: Leave out damaged pictures instead of raising.
        quiet: Show no progress bar.
        command: For the report.
        share: See `evaluate`.

    Returns:
        `{"name", "task", "dataset", "split", "images", "skipped", "data_sha256", "command", "device", "dtype",
        "results"}`; each result has `size`, `top1` and `top5` in percent, and `images_per_s`; with an extension also
        `extend` and `factor`, one number per coordinate axis.

    Raises:
        DataError: If the data cannot be used or have another number of classes than the model.
    """
    from modalities.image.scored import scored_pictures

    sizes = sizes or [tuple(model.data_config.input_size[1:])]  # type: ignore[union-attr, index]
    if extend is not None:
        for size in sizes:  # What does not fit is better said before the pictures are decoded.
            with extended(model, extension_at(model, size, extend, factor)):
                pass
    with share.main_first():
        packed, every = scored_pictures(data, split, skip_bad=skip_bad, quiet=quiet)
    labels = align_labels(packed.labels, packed.num_classes, packed.class_names, model)
    count = min(limit or len(packed), len(packed))
    with progress_bar("evaluating", count * len(sizes), quiet) as update:
        results = evaluate(
            model,
            every[:count],
            labels[:count],
            sizes,
            batch_size=batch_size,
            dtype=dtype,
            extend=extend,
            factor=factor,
            progress=update,
            share=share,
        )
    return report(
        model,
        [result.to_dict() for result in results],
        **data_facts(packed, split, count),
        name=name,
        command=command,
        dtype=dtype,
        skipped=packed.skipped,
    )


class Scored(Protocol):
    """Data that a model is scored on."""

    @property
    def name(self) -> str:
        """Of the data set."""

    @property
    def sha256(self) -> str:
        """Identifies the files."""


def data_facts(data: Scored, split: str, images: int) -> dict[str, Any]:
    """What `report` says of the data: `dataset`, `split`, `images` (how many were scored), `data_sha256`."""
    return {"dataset": data.name, "split": split, "images": images, "data_sha256": data.sha256}


def report(
    model: nn.Module, results: list[dict[str, Any]], *, name: str | None, dtype: str, **facts: Any
) -> dict[str, Any]:
    """What an evaluation is written as: a JSON-ready dict, for `zoo eval --out` and `zoo card --eval`.

    Args:
        model: What was measured, where it was measured.
        results: One dict for each size.
        name: Of the model; `None` = from its configuration.
        dtype: See `evaluate`.
        facts: About the data, see `data_facts`, and the `command`, ...
    """
    config: Any = getattr(model, "config", None) or {}
    device = next(model.parameters()).device
    return {
        "name": name or config.get("name"),
        "task": config.get("task", "classification"),
        **facts,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "dtype": dtype,
        "results": results,
    }


class _Evaluation:
    """Pictures, labels and model of one call of `evaluate`."""

    def __init__(
        self,
        model: Any,
        pictures: Any,
        targets: Tensor,
        device: torch.device,
        autocast: Autocast,
        batch_size: int | None,
        progress: Callable[[float, str], None] | None,
        share: Share,
    ) -> None:
        self.share = share
        self.model, self.pictures, self.targets = model, pictures, targets
        self.device, self.autocast, self.batch_size = device, autocast, batch_size
        self.progress, self.seen = progress, 0

    def at_size(self, size: int | tuple[int, int]) -> EvalResult:
        side = _side(size)
        pixels = _BATCH_PIXELS["cuda" if self.device.type == "cuda" else "cpu"]
        batch = self.batch_size or max(1, min(512, pixels // (side[0] * side[1])))
        count, hits1, hits5, seconds = len(self.targets), 0, 0, 0.0
        best, warm = min(5, int(self.model.num_classes)), False
        for done, last in self.share.blocks(count, batch):
            while done < last:
                end = min(done + batch, last)
                try:
                    if not warm:  # the first forward at a size also chooses kernels: not timed
                        self.logits(done, end, side).cpu()
                        warm = True
                    start = time.perf_counter()
                    top = self.logits(done, end, side).topk(best).indices
                except torch.cuda.OutOfMemoryError:
                    if self.batch_size is not None or batch == 1:
                        raise
                    torch.cuda.empty_cache()
                    batch //= 2
                    continue
                hit = (top.cpu() == self.targets[done:end, None]).sum(dim=0)  # the copy waits for the device
                seconds += time.perf_counter() - start
                hits1, hits5 = hits1 + int(hit[0]), hits5 + int(hit.sum())
                self.seen, done = self.seen + self.share.world * (end - done), end
                if self.progress:
                    self.progress(self.seen, f"{side[1]} px")
        every1, every5, times = zip(*self.share.gather((hits1, hits5, seconds)), strict=True)
        top1, top5 = 100 * sum(every1) / count, 100 * sum(every5) / count
        shown = size if isinstance(size, int) else (side[0] if side[0] == side[1] else side)
        return EvalResult(shown, top1, top5, count, count / max(times))

    def logits(self, start: int, end: int, side: tuple[int, int]) -> Tensor:
        if isinstance(self.pictures, (Tensor, np.ndarray)):
            inputs = self.prepare(self.pictures[start:end], side)
        else:
            inputs = torch.cat([self.prepare(self.pictures[i][None], side) for i in range(start, end)])
        with self.autocast():
            return self.model(inputs).float()

    def prepare(self, pictures: Any, side: tuple[int, int]) -> Tensor:
        from modalities.image.transforms import preprocess_batch

        batch = pictures if isinstance(pictures, Tensor) else torch.from_numpy(np.array(pictures))
        return preprocess_batch(batch.to(self.device), self.model.data_config, side)
