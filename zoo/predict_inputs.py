"""What a modality does for prediction: sources to inputs of its models, and which sources there are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import torch

from zoo.errors import DataError, WeightsError
from zoo.reading import Source, expand, holds_many
from zoo.results import Failure

__all__ = ["INPUTS", "Inputs", "Sources", "choose", "each", "require_finite"]

# Modality -> "module:class" of its `Inputs`.
INPUTS = {
    "image": "modalities.image.predict:Pictures",
    "video": "modalities.video.predict:Videos",
    "events": "modalities.events.predict:Recordings",
    "points": "modalities.points.predict:PointFiles",
    "driving": "modalities.driving.predict:KeyFrames",
    "sequence": "modalities.sequence.predict:Prompts",
}

Sources = Callable[[Any, dict[str, Any]], tuple[list[Source], bool]]
"""Of sources that are parts of a data set: see `Inputs`."""


class Inputs(Protocol):
    """How a modality turns sources into inputs of its models; made from a model and its preprocessing.

    Attributes:
        kind: What `zoo.reading.expand` looks for in folders.
        timed: Results are of spans of time, and a source may have several.

    One may also have `merge(results, top_k)`, which gives one result for each source: it takes an iterator over the
    results of windows, with the scores of all classes, and yields those of the sources; `result_types`, task -> class
    of its results, where those of `RESULTS` do not fit; `most`, the most inputs of a batch; of models that give every
    point a class, `scores(model, input)`, the probabilities (N, classes); where sources are parts of a data set, or no
    files, `sources(source, options)`, the single ones of it and whether there may be many; and where results are no
    classes or boxes in pictures, `results(model, inputs, drafts, class_names=, min_score=, top_k=)`, which runs the
    model.
    """

    kind: str
    timed: bool

    def samples(self, source: Source, options: dict[str, Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Each input that a source gives, with the fields of its results."""

    def collate(self, inputs: list[Any], device: torch.device, dtype: torch.dtype) -> Any:
        """A batch for the model."""

    def video(self, path: str | os.PathLike[str], *, fps: float | None, window_us: int | None) -> Any:
        """A context manager that makes a video of the results it is given, or `ConfigError`."""


def choose(
    chosen: Sources | None, source: Any, options: dict[str, Any], skipped: list[Failure] | None
) -> tuple[Any, bool]:
    """What a predictor goes through, and whether it may be many things.

    Args:
        chosen: `Inputs.sources` of modalities that have it.
        source: What the user passed.
        options: Of the call.
        skipped: Takes what cannot be read, if that is no error.
    """
    if chosen is None:
        return source, holds_many(source)
    if isinstance(source, (list, tuple, Iterator)):
        return _chosen(chosen, source, options, skipped), True
    return chosen(source, options)


def _chosen(
    chosen: Sources, sources: Iterable[Any], options: dict[str, Any], skipped: list[Failure] | None
) -> Iterator[Source]:
    """Yields the single sources of each of many."""
    for source in sources:
        try:
            found = chosen(source, options)[0]
        except DataError as error:
            if skipped is None:
                raise
            skipped.append(Failure(f"{source!s:.200}", error))
            continue
        yield from found


def each(source: Any, kind: str, skipped: list[Failure] | None) -> Iterator[Source]:
    """Yields single sources; folders and patterns are expanded where they stand in the list."""
    items = enumerate(source) if isinstance(source, (list, tuple, Iterator)) else [(None, source)]
    for index, item in items:
        try:
            found = expand(item, index, kind=kind)
        except DataError as error:
            if skipped is None:
                raise
            skipped.append(Failure(str(item), error))
            continue
        yield from found


def require_finite(output: torch.Tensor, name: str, dtype: torch.dtype) -> None:
    """Refuses outputs that mean nothing.

    Args:
        output: What a model gave for a source.
        name: Of the source.
        dtype: Of the parameters.

    Raises:
        WeightsError: If a number is NaN or infinite.
    """
    if not torch.isfinite(output).all():
        raise WeightsError(
            f"{name}: the model's scores are not finite: its weights are damaged, or {dtype} is too narrow for it"
        )
