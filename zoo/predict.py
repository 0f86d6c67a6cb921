"""From sources to results: reads, preprocesses, batches, runs the model and names the classes."""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from zoo.detection.detections import Detections
from zoo.detection.results import DetectionResults
from zoo.errors import ConfigError, DataError
from zoo.model_inputs import call_model
from zoo.predict_inputs import INPUTS, Inputs, Sources, choose, each, require_finite
from zoo.reading import Source, expand, fetch, is_url, policy
from zoo.results import TIME_COLUMNS, ClassificationResults, Failure, PictureResults

__all__ = ["Predictor", "predictor"]

RESULTS: dict[str, type[PictureResults]] = {"classification": ClassificationResults, "detection": DetectionResults}
_TASKS = (*RESULTS, "segmentation", "generation")
_TOP_K = {"classification": 5, "detection": 1_000_000, "generation": 1_000_000}
_MIN_SCORE = 0.25


class Predictor:
    """A model that takes pictures, videos, recordings, clouds, key frames or prompts as people have them.

    See `predictor`.

    Attributes:
        model: The model, in eval mode.
        data_config: Preprocessing in use, with the size asked for.
        labels: Class names, `None` where the model has none.
        failures: Sources that the latest call left out (`on_error="skip"`), a list of `Failure`.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        size: int | tuple[int, int] | None = None,
        top_k: int | None = None,
        min_score: float | None = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
    ) -> None:
        data_config: Any
        config, data_config = getattr(model, "config", None), getattr(model, "data_config", None)
        if not isinstance(config, dict) or not hasattr(data_config, "with_size"):
            raise ConfigError(f"{type(model).__name__} is not a model of pape-zoo: it has no config and data_config")
        if config.get("modality") not in INPUTS or config.get("task") not in _TASKS:
            raise _unsupported(config)
        self.task = str(config["task"])
        if top_k is not None and not _is_positive(top_k):
            raise ConfigError(f"top_k must be a positive whole number, not {top_k!r}")
        if top_k is not None and self.task == "segmentation":
            raise ConfigError(f"top_k is for classifiers and detectors; {config.get('name')} gives every point a class")
        if min_score is not None and self.task != "detection":
            raise ConfigError(f"min_score is for detectors; {config.get('name')} finds no boxes")
        self.min_score = _MIN_SCORE if min_score is None else min_score
        if isinstance(self.min_score, bool) or not isinstance(self.min_score, (int, float)):
            raise ConfigError(f"min_score must be a number from 0 to 1, not {min_score!r:.60}")
        if not 0 <= self.min_score <= 1:
            raise ConfigError(f"min_score must be a number from 0 to 1, not {min_score!r:.60}")
        self.classes = int(getattr(model, "num_classes", 0))
        if self.classes < 1:
            raise ConfigError(f"{config.get('name')}: the model has no classes; call reset_classifier(n) and train it")
        self.data_config = data_config if size is None else data_config.with_size(size)
        module, name = INPUTS[config["modality"]].split(":")
        self._inputs: Inputs = getattr(importlib.import_module(module), name)(model, self.data_config)
        types: dict[str, Any] = {**RESULTS, **getattr(self._inputs, "result_types", {})}
        if self.task not in types:
            raise _unsupported(config)
        self._results: Any = types[self.task]
        self._merge: Callable[..., Iterator[PictureResults]] | None = getattr(self._inputs, "merge", None)
        self._chosen: Sources | None = getattr(self._inputs, "sources", None)
        self.model = _place(model, device, dtype).eval()
        wanted = _TOP_K.get(self.task, 1) if top_k is None else top_k
        self.top_k = min(wanted, self.classes) if self.task == "classification" else wanted
        labels = config.get("labels")
        self.labels = tuple(map(str, labels)) if labels and len(labels) == self.classes else None
        self.failures: list[Failure] = []

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the tables of its results."""
        return (*self._results.COLUMNS, *(TIME_COLUMNS if self._inputs.timed else ()))

    @property
    def kind(self) -> str:
        """What its sources are: those of `zoo.read` (`"image"`, `"clip"`, ...), `"driving"` or `"sequence"`."""
        return self._inputs.kind

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Of files that its results can be saved as, the usual one first."""
        return tuple(self._results.SUFFIXES)

    def sources(self, source: Any, **options: Any) -> list[Source]:
        """The single sources that one stands for: files of a folder or pattern, key frames of a data set.

        Args:
            source: Anything the predictor takes but a list.
            **options: Of data sets: those that choose, see `modalities.driving.predict.KeyFrames.sources`.

        Raises:
            DataError: If there are none.
            ConfigError: If an option cannot be used.
        """
        if self._chosen is None and options:
            raise ConfigError(
                f"{', '.join(sorted(options))}: for models of driving scenes, which choose from a data set"
            )
        return expand(source, kind=self.kind) if self._chosen is None else self._chosen(source, options)[0]

    def __call__(
        self,
        source: Any,
        batch_size: int = 32,
        stream: bool = False,
        errors: str | None = None,
        *,
        on_error: str = "raise",
        **options: Any,
    ) -> Any:
        """Predicts one picture, video, recording, cloud or key frame, or many; of decoders, continues prompts.

        Args:
            source: Anything `zoo.read` takes; or many: a folder, a pattern, or a list or iterator of sources (which may
                themselves be folders and patterns). Of decoders a prompt, see `modalities.sequence.prompts.as_prompt`,
                `None` for none, or a list of them.
            batch_size: Pictures (windows of videos and recordings) per forward pass; sources are read as they come.
            stream: Return a generator, which never holds more than a batch.
            errors: For truncated files, as in `zoo.read`: `"raise"`, or `"keep"` what can be decoded; `None` raises,
                but of videos keeps, with a warning.
            on_error: When one of many cannot be read: `"raise"` its `DataError`, or `"skip"` it, go on, and list it in
                `failures`. A single source always raises.
            **options: For the reader: of pictures `frame`, `max_pixels`; of videos `stride_s`, the seconds between
                windows, and `progress`, see `modalities.video.predict.Videos`; of recordings those of
                `modalities.events.open_events`, and `stride_us`, the microseconds between windows; of clouds
                `max_points`, `columns`, `format`, `fill` and `unit`, see `modalities.points.predict.PointFiles`; of
                driving scenes `sample`, `split`, `version`, `limit` and `truth`, see
                `modalities.driving.predict.KeyFrames`; of decoders `tokens`, `temperature`, `seed` and `progress`, see
                `modalities.sequence.predict.Prompts`.

        Returns:
            A `ClassificationResults` (of detectors a `DetectionResults`, of videos a
            `modalities.video.results.ClipResults`, of models that give every point a class a
            `modalities.points.results.CloudSegments`, of driving scenes a
            `modalities.driving.results.SceneDetections`, of decoders a `modalities.sequence.results.Continuation`) for
            one source, a list of them for many (in the order of the sources), or a generator of them with
            `stream=True`. Event detectors, and event
            classifiers with `stride_us`, give one for each window of a recording, so always a list or generator; so do
            data sets of driving scenes without a `sample`.

        Raises:
            DataError: If a source cannot be read; the message names it.
            ConfigError: If an option cannot be used.
        """
        if not _is_positive(batch_size):
            raise ConfigError(f"batch_size must be a positive whole number, not {batch_size!r}")
        if errors not in (None, "raise", "keep"):
            raise ConfigError(f'errors must be "raise" or "keep", not {errors!r}')
        if on_error not in ("raise", "skip"):
            raise ConfigError(f'on_error must be "raise" or "skip", not {on_error!r}')
        failures: list[Failure] = []
        self.failures = failures
        options = {"errors": policy(errors, self.kind), **options}
        skip = failures if on_error == "skip" else None
        source, many = choose(self._chosen, source, options, skip)
        skipped = skip if many or stream else None
        results = self._stream(source, batch_size, skipped, options)
        if self._merge is not None:
            results = self._merge(results, self.top_k)
        if stream:
            return results
        windows = (
            self._inputs.timed
            and self._merge is None
            and (self.task == "detection" or options.get("stride_us") is not None)
        )
        return list(results) if many or windows else next(results)

    def video(self, path: str | os.PathLike[str], *, fps: float | None = None, window_us: int | None = None) -> Any:
        """A video of a recording with what the model finds in it, made as the results come; memory stays bounded.

        Example:
            with predictor.video("out.mp4") as video:
                for result in predictor("recording.raw", stream=True):
                    video.add(result)

        Args:
            path: An `.mp4` file; it appears when the body has ended, and not at all after an error.
            fps: Frames per second of the video; by default it plays in real time.
            window_us: Microseconds of events in each frame; by default those between two results.

        Returns:
            A `modalities.events.video.EventVideo`, which says more.

        Raises:
            ConfigError: If the model is for pictures or an argument cannot be used.
            MissingDependencyError: If PyAV is not installed.
        """
        return self._inputs.video(path, fps=fps, window_us=window_us)

    def _stream(
        self, source: Any, batch_size: int, skipped: list[Failure] | None, options: dict[str, Any]
    ) -> Iterator[PictureResults]:
        batch_size = min(batch_size, getattr(self._inputs, "most", None) or batch_size)
        inputs: list[Any] = []
        drafts: list[dict[str, Any]] = []
        for item in each(source, self._inputs.kind, skipped):
            for sample, draft in self._samples(item, skipped, options):
                inputs.append(sample)
                drafts.append(draft)
                del sample
                if len(inputs) == batch_size:
                    yield from self._run(inputs, drafts)
                    inputs, drafts = [], []
        if inputs:
            yield from self._run(inputs, drafts)

    def _samples(
        self, item: Source, skipped: list[Failure] | None, options: dict[str, Any]
    ) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Inputs of one source until it ends or cannot be read."""
        try:
            # Downloaded once; the encoded bytes stay for plot(), the pixels do not.
            item = Source(fetch(item.value), item.name) if is_url(item.value) else item
            yield from self._inputs.samples(item, options)
        except DataError as error:
            if skipped is None:
                raise
            skipped.append(Failure(item.name, error))

    @torch.inference_mode()
    def _run(self, inputs: list[Any], drafts: list[dict[str, Any]]) -> list[PictureResults]:
        parameter = next(self.model.parameters())
        self.model.eval()  # A training loop around us may have switched it.
        if self.task == "segmentation":
            return [self._segmented(one, draft) for one, draft in zip(inputs, drafts, strict=True)]
        if (results := getattr(self._inputs, "results", None)) is not None:
            names = self._names(tuple(range(self.classes)))
            made = results(self.model, inputs, drafts, class_names=names, min_score=self.min_score, top_k=self.top_k)
            return list(made)
        output = call_model(self.model, self._inputs.collate(inputs, parameter.device, parameter.dtype))
        return self._detected(output, drafts) if self.task == "detection" else self._classified(output, drafts)

    def _segmented(self, one: Any, draft: dict[str, Any]) -> PictureResults:
        scores: torch.Tensor = self._inputs.scores(self.model, one)  # type: ignore[attr-defined]
        self._require_finite(scores, draft)
        best, indices = scores.max(dim=1)
        made: PictureResults = self._results(
            indices=indices.numpy(), scores=best.numpy(), class_names=self._names(tuple(range(self.classes))), **draft
        )
        return made

    def _classified(self, logits: torch.Tensor, drafts: list[dict[str, Any]]) -> list[PictureResults]:
        logits = logits.to("cpu", torch.float64 if logits.dtype == torch.float64 else torch.float32)
        # Stable: classes with equal scores come in the order of their index, on every device.
        scores, indices = logits.softmax(dim=1).sort(dim=1, descending=True, stable=True)
        count = self.top_k if self._merge is None else self.classes
        results: list[PictureResults] = []
        for row, draft in enumerate(drafts):
            self._require_finite(logits[row], draft)
            best = tuple(indices[row, :count].tolist())
            results.append(
                self._results(
                    indices=best, labels=self._names(best), scores=tuple(scores[row, :count].tolist()), **draft
                )
            )
        return results

    def _detected(self, detections: Detections, drafts: list[dict[str, Any]]) -> list[PictureResults]:
        undo = None if detections.data_config is None else self.data_config  # That of the model, at another size.
        detections = dataclasses.replace(detections, tensor=detections.tensor.cpu(), data_config=undo)
        results: list[PictureResults] = []
        for row, draft in enumerate(drafts):
            self._require_finite(detections.tensor[row], draft)
            found = detections.for_image(row, draft["size"])
            found = found[found[:, 4] >= self.min_score][: self.top_k]
            classes = tuple(int(index) for index in found[:, 5].tolist())
            boxes: list[Any] = [tuple(box) for box in found[:, :4].tolist()]
            results.append(
                DetectionResults(
                    boxes=tuple(boxes),
                    indices=classes,
                    labels=self._names(classes),
                    scores=tuple(found[:, 4].tolist()),
                    **draft,
                )
            )
        return results

    def _names(self, indices: tuple[int, ...]) -> tuple[str, ...]:
        return tuple(self.labels[index] if self.labels else str(index) for index in indices)

    def _require_finite(self, output: torch.Tensor, draft: dict[str, Any]) -> None:
        require_finite(output, draft["name"], next(self.model.parameters()).dtype)


def predictor(
    name_or_model: str | nn.Module,
    *,
    size: int | tuple[int, int] | None = None,
    top_k: int | None = None,
    min_score: float | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    **load_options: Any,
) -> Predictor:
    """Makes a predictor.

    Args:
        name_or_model: A name, as for `zoo.load`, or a model of this library; a model is put into eval mode and, when
            `device` or `dtype` say so, moved.
        size: Side in pixels, or (height, width), to run an image model at; by default the one it was trained at.
        top_k: Classes per picture, by default 5, and fewer where the model has fewer; boxes of a detector, by default
            all; of a decoder, draw from so many likeliest tokens, by default from all.
        min_score: Of a detector: leave out boxes with a smaller score; by default 0.25.
        device: Where to run; by default the CPU, or where a given model is.
        dtype: Of parameters and inputs; by default float32, or as a given model is.
        **load_options: For `zoo.load`.

    Raises:
        ConfigError: If the model takes no inputs of this size.
        ZooError: If the model cannot be loaded.
    """
    if isinstance(name_or_model, nn.Module):
        if load_options:
            raise ConfigError(f"a model needs no options for loading: {', '.join(load_options)}")
        return Predictor(name_or_model, size=size, top_k=top_k, min_score=min_score, device=device, dtype=dtype)
    from zoo.loading import load

    model = load(name_or_model, device=device, dtype=dtype, **load_options)
    return Predictor(model, size=size, top_k=top_k, min_score=min_score)


def _unsupported(config: dict[str, Any]) -> ConfigError:
    return ConfigError(
        f"{config.get('name')}: no predictor for {config.get('modality')} {config.get('task')};"
        f" this version does {' and '.join(RESULTS)} of {' and '.join(kind for kind in INPUTS if kind != 'sequence')},"
        " segmentation of points, and generation of sequences"
    )


def _place(model: nn.Module, device: str | torch.device | None, dtype: str | torch.dtype | None) -> nn.Module:
    if isinstance(dtype, str):
        dtype = getattr(torch, dtype, dtype)
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ConfigError(f"dtype {dtype!r}: expected float32, float16, bfloat16 or float64")
    try:
        return model.to(device=device, dtype=dtype)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ConfigError(f"device {str(device)!r:.60} cannot be used: {' '.join(str(error).split())[:150]}") from error


def _is_positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
