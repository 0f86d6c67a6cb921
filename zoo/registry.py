"""Registered names: what each builds, and where its weights are. Imports neither torch nor a modality on its own."""

from __future__ import annotations

import copy
import fnmatch
import functools
import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from zoo.errors import ConfigError, UnknownModelError

__all__ = ["ARCHITECTURES", "Architecture", "Entry", "HubLocation", "architecture", "entry", "list_models"]

WEIGHTS = ("embedded", "hub", "release", "none")
# Sizes of networks of patches around an `Encoder`.
PATCH_SIZES = ("dim", "depth", "num_heads", "head_dim", "mlp_dim", "patch_size", "in_chans", "num_classes")


@dataclass(frozen=True)
class Architecture:
    """What builds a kind of model: its task, and `"module:attribute"` strings that are looked up when used.

    Attributes:
        task: Kind of output.
        builder: `build(config) -> nn.Module`.
        counter: `count(config["model"]) -> int`, the number of parameters by arithmetic, without torch.
        extent: `extent(config) -> tuple[float, ...]`, the extent of an input of the size of `config["data"]` along each
            coordinate axis, in tokens: what context extension counts from.
        data: Class of `config["data"]`, with `from_dict`, `input_size`, `with_channels` and `with_size`.
        sizes: Keys of `config["model"]` that are whole numbers, without which it describes no model.
        words: `words(config) -> dict[str, str]` of what a card says otherwise than for pictures and events: `"summary"`
            of the model, `"input"` and `"output"`; empty where there is nothing.
    """

    task: str
    builder: str
    counter: str
    extent: str
    data: str = "zoo.data_config:DataConfig"
    sizes: tuple[str, ...] = PATCH_SIZES
    words: str = ""

    def build(self, config: dict[str, Any]) -> Any:
        """Builds the model (on the current default device)."""
        return _look_up(self.builder)(config)

    def count_parameters(self, model: Mapping[str, Any]) -> int:
        """Number of parameters of the model part of a configuration."""
        return int(_look_up(self.counter)(model))

    def data_config(self, data: Mapping[str, Any]) -> Any:
        """The checked data part of a configuration."""
        kind: Any = _look_up(self.data)
        return kind.from_dict(data)

    def card_words(self, config: Mapping[str, Any]) -> dict[str, str]:
        """What a card of this architecture says in words of its own."""
        return dict(cast(Mapping[str, str], _look_up(self.words)(config))) if self.words else {}

    def trained_extent(self, config: Mapping[str, Any]) -> tuple[float, ...]:
        """Extent of a training input along each coordinate axis, in tokens."""
        return tuple(_look_up(self.extent)(config))


# (modality, architecture) -> builder, and the modules with presets.
ARCHITECTURES = {
    ("image", "vit"): Architecture(
        "classification",
        "modalities.image.model:build",
        "modalities.image.presets:count_parameters",
        "modalities.image.model:trained_extent",
    ),
    ("image", "vit-det"): Architecture(
        "detection",
        "modalities.image.detector:build",
        "modalities.image.detector_presets:count_parameters",
        "modalities.image.detector:trained_extent",
    ),
    ("events", "event-vit"): Architecture(
        "classification",
        "modalities.events.model:build",
        "modalities.events.presets:count_classifier",
        "modalities.events.model:trained_extent",
        "modalities.events.data_config:EventDataConfig",
    ),
    ("events", "event-det"): Architecture(
        "detection",
        "modalities.events.detector:build",
        "modalities.events.presets:count_detector_parameters",
        "modalities.events.model:trained_extent",
        "modalities.events.data_config:EventDataConfig",
    ),
    ("points", "point-vit"): Architecture(
        "classification",
        "modalities.points.vit:build",
        "modalities.points.vit_presets:count_parameters",
        "modalities.points.vit:trained_extent",
        "modalities.points.data_config:PointDataConfig",
        words="modalities.points.vit_presets:card_words",
    ),
    **{
        ("points", name): Architecture(
            task,
            f"modalities.points.ptv3:build_{kind}",
            "modalities.points.presets:count_parameters",
            "modalities.points.ptv3:trained_extent",
            "modalities.points.data_config:PointDataConfig",
            ("head_dim", "patch_size", "in_chans", "num_classes"),
            "modalities.points.presets:card_words",
        )
        for name, task, kind in (
            ("ptv3", "classification", "classifier"),
            ("ptv3-seg", "segmentation", "segmenter"),
        )
    },
    ("video", "video-vit"): Architecture(
        "classification",
        "modalities.video.model:build",
        "modalities.video.presets:count_parameters",
        "modalities.video.model:trained_extent",
        "modalities.video.data_config:VideoDataConfig",
        words="modalities.video.presets:card_words",
    ),
    ("driving", "fusion"): Architecture(
        "detection",
        "modalities.driving.model:build",
        "modalities.driving.presets:count_parameters",
        "modalities.driving.model:trained_extent",
        "modalities.driving.data_config:DrivingDataConfig",
        ("dim", "num_heads", "head_dim", "mlp_dim", "patch_size", "in_chans", "num_classes"),
        "modalities.driving.presets:card_words",
    ),
    ("sequence", "decoder"): Architecture(
        "generation",
        "modalities.sequence.model:build",
        "modalities.sequence.presets:count_parameters",
        "modalities.sequence.model:trained_extent",
        "modalities.sequence.data_config:SequenceDataConfig",
        ("dim", "depth", "num_heads", "head_dim", "mlp_dim", "in_chans", "num_classes"),
        "modalities.sequence.presets:card_words",
    ),
}
PRESETS = (
    "modalities.image.presets",
    "modalities.image.detector_presets",
    "modalities.events.presets",
    "modalities.points.vit_presets",
    "modalities.points.presets",
    "modalities.video.presets",
    "modalities.driving.presets",
    "modalities.sequence.presets",
)


@dataclass(frozen=True)
class HubLocation:
    """A pinned revision of a Hub repository, with the sha256 of its model.safetensors."""

    repo_id: str
    revision: str
    sha256: str


@dataclass(frozen=True)
class Entry:
    """A registered model.

    Attributes:
        name: Registry name.
        config: Its whole configuration (`config.json`); use `new_config()` for a copy to change.
        weights: `"embedded"` (in this package), `"hub"`, `"release"` (the official archive, converted by the user) or
            `"none"` (architecture and recipe only).
        command: The command that trains it, when there is one.
        hub: Where the weights are when `weights` is `"hub"`.
    """

    name: str
    config: Mapping[str, Any] = field(repr=False)
    weights: str = "none"
    command: str | None = None
    hub: HubLocation | None = None

    @property
    def modality(self) -> str:
        """Kind of input, for example `"image"`."""
        return str(self.config["modality"])

    @property
    def task(self) -> str:
        """Kind of output, for example `"classification"`."""
        return str(self.config["task"])

    @property
    def encoding(self) -> str:
        """Position encoding, for example `"pape"`."""
        return str(self.config["model"]["encoding"])

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return architecture(self.config).count_parameters(self.config["model"])

    def new_config(self) -> dict[str, Any]:
        """A deep copy of the configuration."""
        return copy.deepcopy(dict(self.config))


def _look_up(target: str) -> Callable[..., Any]:
    module, attribute = target.split(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return found


@functools.cache
def _entries() -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for module in PRESETS:
        for preset in importlib.import_module(module).presets():
            found[preset["name"]] = Entry(**preset)
    return found


def architecture(config: Mapping[str, Any]) -> Architecture:
    """The architecture that a configuration names.

    Raises:
        ConfigError: If no such architecture is registered. Names are looked up in a fixed table, never imported.
    """
    key = (config.get("modality"), config.get("architecture"))
    try:
        return ARCHITECTURES[key]  # type: ignore[index]
    except (KeyError, TypeError):
        known = ", ".join(f"{modality}/{name}" for modality, name in ARCHITECTURES)
        raise ConfigError(
            f"configuration names modality {key[0]!r:.60} and architecture {key[1]!r:.60}; known: {known}"
        ) from None


def list_models(
    pattern: str = "*",
    *,
    modality: str | None = None,
    task: str | None = None,
    encoding: str | None = None,
    weights: str | None = None,
) -> list[str]:
    """Registered names in alphabetical order.

    Args:
        pattern: Shell pattern, for example `"pape-*"`.
        modality: Only this kind of input, for example `"image"`.
        task: Only this task, for example `"classification"`.
        encoding: Only this position encoding, for example `"rope"`.
        weights: Only models whose weights are `"embedded"`, `"hub"`, `"release"` or `"none"`; `"any"` leaves out
            `"none"`. By default all.

    Raises:
        ConfigError: If `weights` is none of these.
    """
    if weights is not None and weights not in (*WEIGHTS, "any"):
        raise ConfigError(f"weights={weights!r}: expected one of {', '.join(WEIGHTS)} or any")
    wanted = {"modality": modality, "task": task, "encoding": encoding}
    return sorted(
        item.name
        for item in _entries().values()
        if fnmatch.fnmatchcase(item.name, pattern)
        and all(value is None or getattr(item, key) == value for key, value in wanted.items())
        and (weights is None or item.weights == weights or (weights == "any" and item.weights != "none"))
    )


def entry(name: str) -> Entry:
    """The registered model of this name.

    Raises:
        UnknownModelError: If there is none; names the nearest names, or the prefix for a folder or Hub repository.
    """
    entries = _entries()
    if isinstance(name, str) and name in entries:
        return entries[name]
    raise UnknownModelError(_explain_unknown(name, list(entries)))


def _explain_unknown(name: object, known: list[str]) -> str:
    if isinstance(name, Path):
        return f"{str(name)!r} is a path: write 'local-dir:{name}' to load a folder"
    if not isinstance(name, str):
        return f"a model name is a string, got {type(name).__name__}"
    shown = repr(name if len(name) <= 100 else name[:100] + "...")
    looks_like_path = "\\" in name or name.startswith((".", "/", "~")) or name.endswith("/")
    if not looks_like_path and re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", name):
        return f"{shown} is not a registered name: write 'hf-hub:{name}' for the Hub, 'local-dir:{name}' for a folder"
    if looks_like_path or "/" in name or _exists(name):
        return f"{shown} is not a registered name: write 'local-dir:{name[:100]}' to load a folder"
    near = get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else "`zoo list` shows the registered names"
    return f"no model is called {shown}; {hint}"


def _exists(name: str) -> bool:
    try:
        return bool(name) and Path(name).exists()
    except (OSError, ValueError):  # Too long, or holds a null byte.
        return False
