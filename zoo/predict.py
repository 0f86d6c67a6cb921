"""From sources to results: reads, preprocesses, batches, runs the model and names the classes."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from zoo.data_config import DataConfig
from zoo.errors import ConfigError, DataError, WeightsError
from zoo.reading import Source, expand, fetch, holds_many, is_url, read
from zoo.results import ClassificationResults, Failure

__all__ = ["Predictor", "predictor"]

# Modality -> "module:function(decoded, data_config) -> float32 (C, H, W)".
_PREPROCESS = {"image": "modalities.image.transforms:preprocess"}


class Predictor:
    """A model that takes pictures as people have them; made by `predictor`.

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
        top_k: int = 5,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
    ) -> None:
        config, data_config = getattr(model, "config", None), getattr(model, "data_config", None)
        if not isinstance(config, dict) or not isinstance(data_config, DataConfig):
            raise ConfigError(f"{type(model).__name__} is not a model of pape-zoo: it has no config and data_config")
        if config.get("modality") not in _PREPROCESS or config.get("task") != "classification":
            raise ConfigError(
                f"{config.get('name')}: no predictor for {config.get('modality')} {config.get('task')};"
                " this version classifies images"
            )
        if not _is_positive(top_k):
            raise ConfigError(f"top_k must be a positive whole number, not {top_k!r}")
        self.classes = int(getattr(model, "num_classes", 0))
        if self.classes < 1:
            raise ConfigError(f"{config.get('name')}: the model has no classes; call reset_classifier(n) and train it")
        if data_config.input_size[0] not in (1, 3):
            raise ConfigError(
                f"{config.get('name')}: the model takes {data_config.input_size[0]} channels;"
                " a picture gives 3 (colour) or 1 (grayscale)"
            )
        self.data_config = data_config if size is None else data_config.with_size(size)
        _check_size(model, self.data_config)
        self.model = _place(model, device, dtype).eval()
        self.top_k = min(top_k, self.classes)
        labels = config.get("labels")
        self.labels = tuple(map(str, labels)) if labels and len(labels) == self.classes else None
        self.failures: list[Failure] = []
        module, function = _PREPROCESS[config["modality"]].split(":")
        self._preprocess = getattr(importlib.import_module(module), function)

    def __call__(
        self,
        source: Any,
        batch_size: int = 32,
        stream: bool = False,
        errors: str = "raise",
        *,
        on_error: str = "raise",
        **options: Any,
    ) -> Any:
        """Predicts one picture or many.

        Args:
            source: Anything `zoo.read` takes; or many: a folder, a pattern, or a list or iterator of sources (which may
                themselves be folders and patterns).
            batch_size: Pictures per forward pass; sources are read a batch at a time.
            stream: Return a generator, which never holds more than a batch.
            errors: For truncated pictures, as in `zoo.read`: `"raise"`, or `"keep"` what can be decoded.
            on_error: When one of many cannot be read: `"raise"` its `DataError`, or `"skip"` it, go on, and list it in
                `failures`. A single source always raises.
            **options: For the reader: `frame`, `max_pixels`.

        Returns:
            A `ClassificationResults` for one source, a list of them for many (in the order of the sources), or a
            generator of them with `stream=True`.

        Raises:
            DataError: If a source cannot be read; the message names it.
            ConfigError: If an option cannot be used.
        """
        if not _is_positive(batch_size):
            raise ConfigError(f"batch_size must be a positive whole number, not {batch_size!r}")
        if errors not in ("raise", "keep"):
            raise ConfigError(f'errors must be "raise" or "keep", not {errors!r}')
        if on_error not in ("raise", "skip"):
            raise ConfigError(f'on_error must be "raise" or "skip", not {on_error!r}')
        many = holds_many(source)
        failures: list[Failure] = []
        self.failures = failures
        skipped = failures if on_error == "skip" and (many or stream) else None
        results = self._stream(source, batch_size, skipped, {"errors": errors, **options})
        if stream:
            return results
        return list(results) if many else next(results)

    def _stream(
        self, source: Any, batch_size: int, skipped: list[Failure] | None, options: dict[str, Any]
    ) -> Iterator[ClassificationResults]:
        inputs: list[torch.Tensor] = []
        drafts: list[dict[str, Any]] = []
        for item in _each(source, skipped):
            try:
                # Downloaded once; the encoded bytes stay for plot(), the pixels do not.
                item = Source(fetch(item.value), item.name) if is_url(item.value) else item
                image = read(item, **options)
            except DataError as error:
                if skipped is None:
                    raise
                skipped.append(Failure(item.name, error))
                continue
            inputs.append(self._preprocess(image.rgb, self.data_config))
            drafts.append(
                {
                    "name": image.name,
                    "path": image.path,
                    "size": image.size,
                    "truncated": image.truncated,
                    "_picture": functools.partial(read, item, **options),
                }
            )
            del image
            if len(inputs) == batch_size:
                yield from self._classify(inputs, drafts)
                inputs, drafts = [], []
        if inputs:
            yield from self._classify(inputs, drafts)

    @torch.inference_mode()
    def _classify(self, inputs: list[torch.Tensor], drafts: list[dict[str, Any]]) -> list[ClassificationResults]:
        parameter = next(self.model.parameters())
        self.model.eval()  # A training loop around us may have switched it.
        logits = self.model(torch.stack(inputs).to(parameter.device, parameter.dtype))
        logits = logits.to("cpu", torch.float64 if logits.dtype == torch.float64 else torch.float32)
        # Stable: classes with equal scores come in the order of their index, on every device.
        scores, indices = logits.softmax(dim=1).sort(dim=1, descending=True, stable=True)
        results = []
        for row, draft in enumerate(drafts):
            if not torch.isfinite(logits[row]).all():
                raise WeightsError(
                    f"{draft['name']}: the model's scores are not finite: its weights are damaged, or {parameter.dtype}"
                    " is too narrow for it"
                )
            best = tuple(indices[row, : self.top_k].tolist())
            labels = tuple(self.labels[index] if self.labels else str(index) for index in best)
            results.append(
                ClassificationResults(
                    indices=best, labels=labels, scores=tuple(scores[row, : self.top_k].tolist()), **draft
                )
            )
        return results


def predictor(
    name_or_model: str | nn.Module,
    *,
    size: int | tuple[int, int] | None = None,
    top_k: int = 5,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    **load_options: Any,
) -> Predictor:
    """Makes a predictor.

    Args:
        name_or_model: A name, as for `zoo.load`, or a model of this library; a model is put into eval mode and, when
            `device` or `dtype` say so, moved.
        size: Side in pixels, or (height, width), to run the model at; by default the one it was trained at.
        top_k: Classes per picture; fewer where the model has fewer.
        device: Where to run; by default the CPU, or where a given model is.
        dtype: Of parameters and inputs; by default float32, or as a given model is.
        **load_options: For `zoo.load`.

    Raises:
        ConfigError: If the model takes no pictures, or no pictures of this size.
        ZooError: If the model cannot be loaded.
    """
    if isinstance(name_or_model, nn.Module):
        if load_options:
            raise ConfigError(f"a model needs no options for loading: {', '.join(load_options)}")
        return Predictor(name_or_model, size=size, top_k=top_k, device=device, dtype=dtype)
    from zoo.loading import load

    model = load(name_or_model, device=device, dtype=dtype, **load_options)
    return Predictor(model, size=size, top_k=top_k)


def _each(source: Any, skipped: list[Failure] | None) -> Iterator[Source]:
    """Yields single sources; folders and patterns are expanded where they stand in the list."""
    items = enumerate(source) if isinstance(source, (list, tuple, Iterator)) else [(None, source)]
    for index, item in items:
        try:
            found = expand(item, index)
        except DataError as error:
            if skipped is None:
                raise
            skipped.append(Failure(str(item), error))
            continue
        yield from found


def _check_size(model: nn.Module, data_config: DataConfig) -> None:
    patch = getattr(model, "patch_size", 1)
    if model.config["model"].get("size_policy", "refuse") == "pad":  # type: ignore[index,union-attr]
        return
    for side in data_config.input_size[1:]:
        if side % patch:
            below, above = side // patch * patch, (side // patch + 1) * patch
            nearest = f"{below} or {above}" if below else f"{above}"
            raise ConfigError(f"size {side} is not a multiple of the model's patch, {patch} pixels: use {nearest}")


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
