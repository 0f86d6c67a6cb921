"""Scores of point models: accuracy of classifiers, mean IoU of segmenters; plain, voted, and of turned clouds."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from modalities.points.augment import axis_rotations
from modalities.points.datasets import open_dataset
from modalities.points.metrics import ConfusionMatrix
from modalities.points.store import PointStore
from zoo.errors import ConfigError, DataError
from zoo.evaluate import Autocast, data_facts, evaluating, report
from zoo.matching import match_classes
from zoo.progress import Update, no_update, progress_bar
from zoo.sharing import ALONE, Share
from zoo.training.seeds import derive_seed

__all__ = ["evaluate_points", "point_scores", "scale_votes", "score_classes", "score_points", "turn_votes"]

_MOST_POINTS = 1 << 18  # of a cloud that is seen whole, where the model states no number
_VOTE_SCALES = (0.9, 0.95, 1.0, 1.05, 1.1)  # as the published tester of ModelNet40 has them


def scale_votes(mirror: bool = False) -> Tensor:
    """Five scales from 0.9 to 1.1, (V, 3, 3); with `mirror` each also mirrored in x."""
    votes = torch.stack([scale * torch.eye(3) for scale in _VOTE_SCALES])
    return torch.cat([votes, votes * torch.tensor([-1.0, 1.0, 1.0])]) if mirror else votes


def turn_votes() -> Tensor:
    """Four quarter turns about z, each at the scales 0.95 and 1.05: (8, 3, 3)."""
    turns = axis_rotations(torch.arange(4) * torch.pi / 2, "z")
    return torch.cat([turns * 0.95, turns * 1.05])


@torch.inference_mode()
def score_classes(
    model: nn.Module,
    store: PointStore,
    labels: np.ndarray,
    *,
    votes: Tensor | None = None,
    batch_size: int = 64,
    dtype: str = "float32",
    update: Update = no_update,
    share: Share = ALONE,
) -> dict[str, float]:
    """Overall accuracy (`top1`) and mean class accuracy (`macc`) of a classifier, in percent.

    Args:
        model: A classifier of clouds, on the device of the store.
        store: The clouds.
        labels: int64 (clouds,), in the order of the model's classes.
        votes: (V, 3, 3) matrices: each cloud is also classified after every one of them, and the softmax probabilities
            are averaged. `None`: once, as it is.
        batch_size: Clouds at a time.
        dtype: `"float32"`, or `"bfloat16"` or `"float16"` for autocast.
        update: Called with (clouds done, text).
        share: Of this process, where several evaluate together; all of them get the results of all clouds.

    Raises:
        DataError: If there are no clouds, or labels do not fit.
    """
    if not len(store) or len(labels) != len(store) or int(labels.max()) >= int(model.num_classes):  # type: ignore[arg-type]
        raise DataError(f"{len(store)} clouds and {len(labels)} labels for a model with {model.num_classes} classes")
    counts = ConfusionMatrix(int(model.num_classes))  # type: ignore[arg-type]
    matrices = torch.eye(3).unsqueeze(0) if votes is None else votes
    with evaluating(model, dtype) as autocast:
        for rows in (range(*block) for block in share.blocks(len(store), batch_size)):
            total: Any = 0
            for matrix in matrices:
                batch = store.whole(rows, matrix.expand(len(rows), 3, 3))
                with autocast():
                    logits = model(batch)
                total = total + logits.float().softmax(1)
            truth = torch.from_numpy(np.asarray(labels[rows.start : rows.stop], np.int64)).to(total.device)
            counts.update(total.argmax(1), truth)
            update(rows.stop, "")
    return counts.of_all(share).classification()


@torch.inference_mode()
def score_points(
    model: nn.Module,
    store: PointStore,
    *,
    points: int | None = None,
    votes: Tensor | None = None,
    batch_size: int = 8,
    dtype: str = "float32",
    update: Update = no_update,
    share: Share = ALONE,
) -> dict[str, float]:
    """Mean IoU, mean class accuracy and accuracy of a segmenter in percent, over every point of the clouds.

    A cloud of more points than a crop has is covered with overlapping crops, and the softmax probabilities that a point
    gets in several of them are averaged.

    Args:
        model: A segmenter, on the device of the store.
        store: The clouds, with the labels of their points in the order of the model's classes.
        points: Of a crop; `None` = the model's number of points, or 262,144: most
            clouds are seen whole then.
        votes: (V, 3, 3) matrices: each crop is seen after every one of them. `None`: once, as it is.
        batch_size: Crops at a time.
        dtype: `"float32"`, or `"bfloat16"` or `"float16"` for autocast.
        update: Called with (clouds done, text).
        share: Of this process, where several evaluate together; all of them get the results of all clouds.

    Raises:
        DataError: If there are no clouds, or no labels.
    """
    if not len(store) or store.labels is None:
        raise DataError("there are no clouds with labels of their points to score")
    config = store.config
    counts = ConfusionMatrix(int(model.num_classes), config.ignore_label)  # type: ignore[arg-type]
    about: dict[str, Any] = {"points": points, "votes": votes, "batch_size": batch_size}
    with evaluating(model, dtype) as autocast:
        for row, _ in share.blocks(len(store), 1):
            first, last = store.offsets[row : row + 2].tolist()
            total = point_scores(model, store, row, **about, autocast=autocast)
            counts.update(total.argmax(1), store.labels[first:last].to(store.device))
            update(row + 1, "")
    labels: list[str] | None = model.config["labels"]  # type: ignore[index, assignment]
    return counts.of_all(share).segmentation(labels or [str(number) for number in range(counts.num_classes)])


def point_scores(
    model: nn.Module,
    store: PointStore,
    row: int,
    *,
    points: int | None = None,
    votes: Tensor | None = None,
    batch_size: int = 8,
    autocast: Autocast = nullcontext,
) -> Tensor:
    """Sums of the softmax probabilities of every point of a cloud, over crops and votes, scaled to add up to one.

    Args:
        model: A segmenter in eval mode, on the device of the store.
        store: The clouds.
        row: Which of them.
        points: As for `score_points`.
        votes: As for `score_points`.
        batch_size: Crops at a time.
        autocast: Makes the context that the model runs in, see `zoo.evaluate.evaluating`.

    Returns:
        float32 (points of the cloud, classes) on the device.
    """
    config = store.config
    matrices = torch.eye(3).unsqueeze(0) if votes is None else votes
    first, last = store.offsets[row : row + 2].tolist()
    crops = _covering(store, row, points or config.num_points or _MOST_POINTS)
    dtype = next(model.parameters()).dtype
    classes = int(model.num_classes)  # type: ignore[arg-type]
    total = torch.zeros(last - first, classes, device=store.device)
    for start in range(0, len(crops), batch_size):
        numbers = torch.stack(crops[start : start + batch_size])
        clouds = store.at(numbers).centred(config)
        for matrix in matrices:
            batch = clouds.transformed(matrix.unsqueeze(0).to(store.device)).to_batch(config).to(dtype=dtype)
            with autocast():
                logits = model(batch)
            total.index_add_(0, (numbers - first).flatten().to(store.device), logits.float().softmax(1))
    return total / total.sum(1, keepdim=True).clamp_min(1e-12)


def _covering(store: PointStore, row: int, size: int) -> list[Tensor]:
    """Crops that together hold every point of a cloud: each around a point that the ones before have not."""
    first, last = store.offsets[row : row + 2].tolist()
    order = np.random.default_rng(derive_seed("crops", row)).permutation(last - first)
    covered, crops = np.zeros(last - first, np.bool_), []
    for point in order:
        if not covered[point]:
            crops.append(store.crop(row, store.xyz[first + int(point)], size))
            covered[(crops[-1] - first).cpu().numpy()] = True
            covered[point] = True  # Of more equal points than a crop holds it may be left out itself.
    return crops


def evaluate_points(
    model: nn.Module,
    data: str | os.PathLike[str],
    *,
    split: str = "test",
    dataset: str = "auto",
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
    """Scores a model on a data set from disk: plain, by voting, and a classifier of any cloud also on turned ones.

    Args:
        model: On the device to use.
        data: Folder or file of the data set.
        split: `"train"`, `"val"` (or `"validation"`) or `"test"`.
        dataset: Name of the data set, or `"auto"`.
        sizes: Of a segmenter, how many points it sees at once, one result for each: larger clouds are covered with
            overlapping crops of so many, as in training. `None`: as `score_points` has it, which is whole clouds where
            the model states no number. Classifiers see whole clouds: leave it out.
        name: Of the model, for the report; `None` = from its configuration.
        batch_size: Clouds or crops at a time; `None` = 64 clouds or 8 crops.
        limit: Only the first clouds; `None` = all.
        dtype: Of autocast, or `"float32"`.
        extend: `None`: there is no other size to extend to.
        factor: `None`, likewise.
        skip_bad: `False`: a damaged cloud stops the evaluation.
        quiet: Show no progress bar.
        command: For the report.
        share: See `score_classes`.

    Returns:
        `{"name", "task", "dataset", "split", "images", "data_sha256", "command", "device", "dtype", "results"}`: the
        number of clouds is `images`, and each result has `size` (points of a cloud, the mean; with `sizes` those of the
        crops, and the `condition` `"overlapping crops"`), `images_per_s`, and of a classifier `top1` and `macc`
        (overall and mean class accuracy) with `top1_voted` and `top1_so3` (turned by random rotations), of a segmenter
        `miou`, `macc`, `accuracy`, `iou/CLASS`, and `miou_voted`; all in percent.

    Raises:
        ConfigError: If a setting is not known or not one for clouds.
        DataError: If the data cannot be used or have other classes than the model.
    """
    if extend is not None or factor is not None or skip_bad:
        raise ConfigError("point models are scored on clouds as they are: leave out extend, factor and skip_bad")
    segments = model.config["task"] == "segmentation"  # type: ignore[index]
    crops = _crops(sizes, segments)
    config: Any = model.data_config
    opened: Any = open_dataset(data, {"validation": "val"}.get(split, split), dataset, draw=config.num_points)
    chosen = np.arange(min(limit or len(opened), len(opened)))
    classes = match_classes(len(opened.class_names), opened.class_names, model)
    device = next(model.parameters()).device
    store = PointStore(opened, chosen, config, device, classes=classes if segments else None, quiet=quiet)
    with progress_bar("evaluating", (2 * len(crops) if segments else 3) * len(chosen), quiet) as update:
        measure = _Measure(model, store, batch_size or (8 if segments else 64), dtype, update, share)
        if segments:
            results = [{**_where(store, points), **measure.segmenter(points)} for points in crops]
        else:
            results = [{**_where(store), **measure.classifier(classes[np.asarray(opened.labels)[chosen]])}]
    facts = data_facts(opened, split, len(chosen))
    return report(model, results, **facts, name=name, command=command, dtype=dtype)


def _crops(sizes: Sequence[int | tuple[int, int]] | None, segments: bool) -> list[int | None]:
    """How many points are seen at once, `None` for what is usual."""
    if sizes is None:
        return [None]
    if not segments:
        raise ConfigError("classifiers of clouds are scored on whole clouds: leave out sizes")
    if not sizes or any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in sizes):
        raise ConfigError(f"sizes are numbers of points that are seen at once, 1 or more, not {sizes!r:.60}")
    return list(sizes)  # type: ignore[arg-type]


def _where(store: PointStore, points: int | None = None) -> dict[str, Any]:
    if points is None:
        return {"size": round(float(store.lengths.mean()))}
    return {"size": points, "condition": "overlapping crops"}


class _Measure:
    """Everything that one call of `evaluate_points` measures of a model."""

    def __init__(
        self, model: nn.Module, store: PointStore, batch_size: int, dtype: str, update: Update, share: Share
    ) -> None:
        self.model, self.store, self.update, self.done = model, store, update, 0
        self.options: dict[str, Any] = {"batch_size": batch_size, "dtype": dtype, "share": share}
        self.options["update"] = self._progress

    def _progress(self, done: float, text: str) -> None:
        self.update(self.done + done, text)

    def _next(self) -> None:
        self.done += len(self.store)

    def classifier(self, labels: np.ndarray) -> dict[str, float]:
        began = time.perf_counter()
        plain = score_classes(self.model, self.store, labels, **self.options)
        speed = len(self.store) / (time.perf_counter() - began)
        self._next()
        voted = score_classes(self.model, self.store, labels, votes=scale_votes(mirror=True), **self.options)
        self._next()
        turned = score_classes(self.model, self.store.turned(0), labels, **self.options)
        return {**plain, "top1_voted": voted["top1"], "top1_so3": turned["top1"], "images_per_s": speed}

    def segmenter(self, points: int | None) -> dict[str, float]:
        began = time.perf_counter()
        plain = score_points(self.model, self.store, points=points, **self.options)
        speed = len(self.store) / (time.perf_counter() - began)
        self._next()
        voted = score_points(self.model, self.store, points=points, votes=turn_votes(), **self.options)
        self._next()
        return {**plain, "miou_voted": voted["miou"], "images_per_s": speed}
