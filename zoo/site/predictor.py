"""What answers the try-it panel: models loaded as they are asked for, one prediction at a time, on the CPU."""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from zoo import registry
from zoo.errors import ConfigError, DataError, UnknownModelError, ZooError
from zoo.results import one_line
from zoo.site import samples
from zoo.site.running import (
    TRIED_SIZES,
    has_patch_bias,
    input_kind,
    input_shape,
    patch_bias,
    run_file,
    run_prompt,
    seen,
    warm,
)

__all__ = ["Busy", "Predictor"]

WAIT_SECONDS = 30.0
"""For the predictions before it."""

Wanted = Callable[[], bool]


class Busy(ZooError):
    """It is not this prediction's turn in time, or nobody waits for it any more."""


class Predictor:
    """Answers requests with some models; threads may share one.

    Args:
        models: Name -> what `zoo.load` takes; by default all models whose weights are in this package.
        held: Models kept in memory; the one that was not used for longest goes first.
    """

    def __init__(self, models: Mapping[str, str] | None = None, *, held: int = 4) -> None:
        embedded = registry.list_models(weights="embedded")
        self._targets = dict(models) if models is not None else {name: name for name in embedded}
        self._held = max(1, held)
        self._loaded: OrderedDict[str, Any] = OrderedDict()
        self._configs: dict[str, Mapping[str, Any]] = {}
        self._lock = threading.Lock()

    def models(self) -> list[dict[str, Any]]:
        """What the panel needs to know of each model, JSON-ready.

        Of each `name`, `modality`, `task`, `input` (`"picture"`, `"video"`, `"events"`, `"points"`, `"drive"`,
        `"text"` or `"music"`), `default_size` and `sizes` (longer side of the input in pixels; `None` where it cannot
        be chosen), `patch_bias` (whether `bias` answers) and `samples` (names for `zoo.site.samples.sample`).
        """
        return [self._about(name) for name in sorted(self._targets)]

    def load(self, name: str) -> dict[str, Any]:
        """Loads a model and runs it once, so that the next prediction is as fast as all later ones.

        Returns:
            `ok` and `milliseconds`.

        Raises:
            UnknownModelError: If it is none of these models.
            Busy: If a prediction before it takes long.
            ZooError: If it cannot be loaded.
        """
        config = self._config(name)
        start = time.perf_counter()
        with self._alone():
            model = self._model(name)
            # What is missing for a sample may not be missing for a file: a prediction tells.
            with contextlib.suppress(ZooError), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                warm(model, config)
        return {"ok": True, "milliseconds": _milliseconds(start)}

    def predict(
        self, name: str, body: bytes, *, filename: str = "", size: int | None = None, wanted: Wanted | None = None
    ) -> dict[str, Any]:
        """Predicts one file.

        Args:
            name: The model.
            body: Content of the file; driving models take a ZIP archive of a data set in the format of nuScenes and
                show its first key frame.
            filename: What the user calls it; only the suffix is used.
            size: Longer side of the input in pixels, for models of pictures and videos; by default as trained. The
                proportions of the input are those of training.
            wanted: Asked once it is the turn of this prediction: whether somebody still waits for it.

        Returns:
            The values of `zoo.site.answers.answer`, and `model`, `size`, `milliseconds`; of image models also `grid`,
            the rows and columns of patches, and `view`, the part of the picture that they cover.

        Raises:
            DataError: If the file cannot be read, or takes too long.
            ConfigError: If the size cannot be used.
            UnknownModelError: If it is none of these models.
            Busy: If a prediction before it takes long.
        """
        config = self._config(name)
        if config["modality"] == "sequence":
            raise DataError(f'{name} continues text: send {{"prompt": "..."}} as application/json')
        shape = input_shape(config, size)
        _require_bytes(body)
        start = time.perf_counter()
        with self._alone(wanted), _told() as notes:
            data_config, made = run_file(self._model(name), config, body, filename, shape)
        made |= {"model": name, "size": max(shape) if shape else None, "milliseconds": _milliseconds(start)}
        if config["modality"] == "image":
            made |= seen(config, data_config, (made["height"], made["width"]))
        return _with_notes(made, notes)

    def continued(self, name: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Continues a prompt.

        Args:
            name: The model, a decoder.
            request: `prompt`, a text (models of music begin a piece without one), and if wanted `tokens`,
                `temperature` and `seed`.

        Returns:
            As `predict`; and `page`, a page that plays a piece of music, of models that have one.

        Raises:
            DataError: If the model is no decoder, or the prompt cannot be used or takes too long.
            ConfigError: If an option cannot be used.
            UnknownModelError: If it is none of these models.
            Busy: If a prediction before it takes long.
        """
        config = self._config(name)
        if config["modality"] != "sequence":
            raise DataError(f"{name} takes a file, not a prompt")
        start = time.perf_counter()
        with self._alone(), _told() as notes:
            made = run_prompt(self._model(name), request)
        return _with_notes(made | {"model": name, "size": None, "milliseconds": _milliseconds(start)}, notes)

    def bias(
        self,
        name: str,
        body: bytes,
        *,
        filename: str = "",
        size: int | None = None,
        row: int,
        col: int,
        layer: int,
        wanted: Wanted | None = None,
    ) -> dict[str, Any]:
        """The position term that one patch of a picture, as a query, adds to the logits of all patches.

        Args:
            name: The model, of pictures.
            body: Content of the picture.
            filename: What the user calls it; only the suffix is used.
            size: As of `predict`.
            row: Of the patch, from 0.
            col: Likewise.
            layer: From 0; negative numbers count from the last.
            wanted: As of `predict`.

        Returns:
            `grid` (rows, columns), `layers` (how many there are), `layer`, `row`, `col`, and `heads`: of each head the
            term of each key as rows of numbers, the softmax scale included.

        Raises:
            ConfigError: If the model adds no such term, or size, patch or layer cannot be used.
            DataError: If the picture cannot be read.
            UnknownModelError: If it is none of these models.
            Busy: If a prediction before it takes long.
        """
        config = self._config(name)
        if not has_patch_bias(config):
            encoding = config["model"]["encoding"]
            raise ConfigError(
                f"{name} ({config['modality']}, encoding {encoding!r}) adds no position bias between patches of a "
                "picture, as image models with pape, alibi and others do"
            )
        shape = input_shape(config, size)
        _require_bytes(body)
        with self._alone(wanted), _told():
            return patch_bias(self._model(name), body, filename, shape, row, col, layer)

    def _about(self, name: str) -> dict[str, Any]:
        config = self._config(name)
        default = input_shape(config, None)
        return {
            "name": name,
            "modality": config["modality"],
            "task": config["task"],
            "input": input_kind(config),
            "default_size": max(default) if default else None,
            "sizes": _sizes(config, max(default)) if default else None,
            "patch_bias": has_patch_bias(config),
            "samples": samples.names(config),
        }

    def _config(self, name: str) -> Mapping[str, Any]:
        if name not in self._targets:
            known = ", ".join(sorted(self._targets))
            why = "has no weights here" if name in registry.list_models() else "is no model"
            raise UnknownModelError(f"{name!r:.80} {why}; there are {known}")
        if name not in self._configs:
            target = self._targets[name]
            if ":" in target:
                from zoo.sources import locate

                self._configs[name] = locate(target, pretrained=False).config
            else:
                self._configs[name] = registry.entry(target).config
        return self._configs[name]

    def _model(self, name: str) -> Any:
        """The loaded model; only where nobody else is at work."""
        if name not in self._loaded:
            from zoo.loading import load

            while len(self._loaded) >= self._held:
                self._loaded.popitem(last=False)
            self._loaded[name] = load(self._targets[name], device="cpu", local_files_only=True)
        self._loaded.move_to_end(name)
        return self._loaded[name]

    @contextlib.contextmanager
    def _alone(self, wanted: Wanted | None = None) -> Iterator[None]:
        if not self._lock.acquire(timeout=WAIT_SECONDS):
            raise Busy("another prediction takes long: try again")
        try:
            # A slider that moves asks for many sizes, and waits for the last.
            if wanted is not None and not wanted():
                raise Busy("nobody waits for this prediction any more")
            yield
        finally:
            self._lock.release()


def _sizes(config: Mapping[str, Any], default: int) -> list[int]:
    """Sizes that the panel offers."""
    found = {default}
    for size in TRIED_SIZES:
        with contextlib.suppress(ConfigError):
            input_shape(config, size)
            found.add(size)
    return sorted(found)


def _require_bytes(body: bytes) -> None:
    if not body:
        raise DataError("the file is empty")


@contextlib.contextmanager
def _told() -> Iterator[list[warnings.WarningMessage]]:
    """Collects warnings, which are for the user; there is one prediction at a time."""
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        yield notes


def _with_notes(made: dict[str, Any], notes: list[warnings.WarningMessage]) -> dict[str, Any]:
    told = [made["note"], *(one_line(str(note.message)) for note in notes)]
    return made | {"note": "; ".join(dict.fromkeys(note for note in told if note)) or None}


def _milliseconds(start: float) -> float:
    return round(1000 * (time.perf_counter() - start), 1)
