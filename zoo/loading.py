"""`load` and `save`: from a name to a model with weights, strictly and with a report, and back to a folder.

One rule for registry names, Hub repositories and folders: another number of classes re-initialises the head, another
number of input channels adapts the stem, and anything else that does not fit is an error.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zoo import checkpoints, int8_storage, kernels, registry
from zoo.config_file import SCHEMA_VERSION, check_config
from zoo.encodings import EXTENSION_OPTIONS, encoding_class, split_name, split_options
from zoo.encodings.extension import needs_extent
from zoo.errors import ConfigError, WeightsError
from zoo.sources import Source, is_exported, locate, verify

__all__ = ["LoadReport", "adapt_channels", "load", "save"]

STEM = "embed.proj.weight"
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}


@dataclass(frozen=True)
class LoadReport:
    """What `load` did.

    Attributes:
        name: The name that was asked for.
        source: File or repository that the weights came from; `"random"` without pretrained weights.
        sha256: Verified sha256 of the weights, `None` where none is pinned.
        adapted: One line for each thing that differs from the source.
        missing: Tensors that the source lacks; always empty, since loading is strict.
        unexpected: Tensors of the source that the model lacks; always empty, since loading is strict.
        dtype: Name of the parameters' dtype.
        device: The parameters' device.
        kernel: Attention backend that this device takes by default.
    """

    name: str
    source: str
    sha256: str | None
    adapted: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    dtype: str
    device: str
    kernel: str


def load(
    name: str,
    *,
    pretrained: bool = True,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    num_classes: int | None = None,
    in_chans: int | None = None,
    encoding_options: Mapping[str, Any] | None = None,
    revision: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    local_files_only: bool | None = None,
    **model_kwargs: Any,
) -> Any:
    """Loads a model in eval mode.

    Args:
        name: A registered name, `"hf-hub:org/repo[@revision]"` or `"local-dir:path"`; or a file that `zoo.export`
            wrote, `"path.onnx"` or `"trusted:path.pt2"`, which becomes a `zoo.export.run.ExportedModel`.
        pretrained: With weights. `False` builds the architecture with random weights.
        device: Where to; the CPU by default.
        dtype: Of the parameters: float32 by default, whatever the file holds.
        num_classes: Another number of classes re-initialises the head (weight 0, bias -ln K) and drops the labels.
        in_chans: Another number of input channels adapts the stem (see `adapt_channels`), mean and std.
        encoding_options: Options of the position encoding that replace those of the source. Among them may be an
            extension to larger inputs, as {"extend": "yarn", "factor": 2} (`zoo.encodings.extension`); where it needs
            the trained extent and has none, that of the source's input size is filled in.
        revision: Branch, tag or commit of a Hub repository.
        cache_dir: Replaces the Hub cache and, for `release` weights, the pape-zoo cache (`ZOO_CACHE`).
        local_files_only: Never use the network.
        **model_kwargs: Replace values of the `"model"` part of the configuration (such as `drop_path=0.1`);
            `input_size=` (an int or (height, width)) changes the size of the preprocessing.

    Returns:
        The model, with `config`, `data_config` and `load_report`.

    Raises:
        UnknownModelError: If the name is not registered.
        ConfigError: If an option or the configuration is unusable.
        WeightsError: If weights are absent, damaged, not finite, unsafe, or do not fit.
    """
    target_device, target_dtype = _device(device), _dtype(dtype)
    if is_exported(name):
        changes = {**model_kwargs, "num_classes": num_classes, "in_chans": in_chans, "revision": revision}
        changes["encoding_options"] = encoding_options
        return _exported(name, target_device, target_dtype, pretrained, changes)
    source = locate(
        name, pretrained=pretrained, revision=revision, cache_dir=cache_dir, local_files_only=local_files_only
    )
    if source.sha256 and source.weights:
        verify(source.weights, source.sha256)
    config, adapted = _apply_options(source.config, in_chans, encoding_options, model_kwargs)
    classes = config["model"]["num_classes"] if num_classes is None else num_classes
    check_config({**config, "model": {**config["model"], "num_classes": classes}, "labels": None}, "options")

    if source.weights is None:
        model = registry.architecture(config).build(config)
    else:
        model = _build_with_weights(config, source, target_dtype, target_device, bool(adapted))
    if classes != config["model"]["num_classes"]:
        adapted.append(f"head: {config['model']['num_classes']} -> {classes} classes, re-initialised")
        if config["labels"]:
            adapted.append("labels: dropped, since they name other classes")
        model.reset_classifier(classes)
    model.to(device=target_device, dtype=target_dtype)
    model.load_report = LoadReport(
        name=name,
        source=source.label if source.weights else "random",
        sha256=source.sha256,
        adapted=tuple(adapted),
        missing=(),
        unexpected=(),
        dtype=str(target_dtype).removeprefix("torch."),
        device=str(target_device),
        kernel=kernels.forced() or "auto",
    )
    return model.eval()


def _exported(
    name: str, device: torch.device, dtype: torch.dtype, pretrained: bool, changes: Mapping[str, Any]
) -> nn.Module:
    """The model of an exported file, which nothing can be changed about."""
    from zoo.export.run import load_exported

    given = [key for key, value in changes.items() if value is not None]
    if given or not pretrained or dtype != torch.float32:
        what = given[0] if given else "pretrained" if not pretrained else "dtype"
        raise ConfigError(f"{name}: {what} cannot be changed in an exported file: export it again, with zoo export")
    model = load_exported(name, device)
    model.load_report = LoadReport(
        name=name,
        source=name,
        sha256=None,
        adapted=(),
        missing=(),
        unexpected=(),
        dtype=model.graph["weights"],
        device=str(device),
        kernel=model.graph["format"],
    )
    return model.to(device).eval()


def save(model: nn.Module, folder: str | os.PathLike[str], *, dtype: str | torch.dtype | None = None) -> Path:
    """Writes `config.json`, `model.safetensors` and a `README.md` card, all or nothing.

    A README.md that was edited is kept. Without `dtype`, `load("local-dir:FOLDER")` gives the same logits, bit for bit,
    when the model is float32 (or is loaded with its own dtype).

    Args:
        model: A model of this library.
        folder: A new folder, or one that holds nothing of the same names but an earlier model of ours.
        dtype: Of the tensors in the file; by default that of the model. `"int8"` stores matrices in 8 bits with a scale
            per row and the rest as float16 (`zoo.int8_storage`): about half of float16, and loads as float32.

    Returns:
        The folder.

    Raises:
        ConfigError: If `model` is not of this library, or the folder cannot be used.
        WeightsError: If a parameter is NaN or infinite (in `dtype`).
    """
    from zoo.cards import model_card

    config = getattr(model, "config", None)
    data_config = getattr(model, "data_config", None)
    if not isinstance(config, dict) or data_config is None:
        raise ConfigError(f"{type(model).__name__} is not a model of pape-zoo: it has no config and data_config")
    config = {**copy.deepcopy(config), "schema_version": SCHEMA_VERSION, "data": data_config.to_dict()}
    check_config(copy.deepcopy(config), "the configuration of the model")
    target = Path(folder)
    if int8_storage.is_int8(dtype):
        state = int8_storage.pack(model.state_dict())
    else:
        state = _cast(model.state_dict(), None if dtype is None else _dtype(dtype, "int8"))
    stored = "int8" if any(value.dtype == torch.int8 for value in state.values()) else ""
    checkpoints.write_folder(target, config, state, model_card(config, stored=stored))
    return target


def _cast(state: Mapping[str, Tensor], dtype: torch.dtype | None) -> dict[str, Tensor]:
    """Tensors on the CPU, in their own dtype or another one."""
    found = {}
    for key, value in state.items():
        found[key] = value.detach().to("cpu", dtype or value.dtype)
        if not torch.isfinite(found[key]).all():
            where = f" in {found[key].dtype}, whose range it exceeds" if torch.isfinite(value).all() else ""
            raise WeightsError(f"not saved: {key} holds NaN or infinite values{where}")
    return found


def adapt_channels(weight: Tensor, in_chans: int) -> Tensor:
    """Adapts a convolution's weight to another number of input channels, keeping the response to constant images.

    More channels: the old ones are repeated cyclically, each copy divided by the number of its copies (so by new/old
    when that divides). Fewer: old channel i is added to new channel i mod `in_chans` (for one channel: their sum).
    An input with the same value in all channels keeps its pre-activation exactly, whatever the counts.

    Args:
        weight: (C_out, C_in, *kernel), of a 2-D or 3-D convolution.
        in_chans: New C_in.

    Returns:
        (C_out, in_chans, *kernel), same dtype.
    """
    old = weight.shape[1]
    if in_chans >= old:
        source = torch.arange(in_chans, device=weight.device) % old
        copies = torch.bincount(source, minlength=old)[source].to(weight.dtype)
        return weight[:, source] / copies.view(1, -1, *([1] * (weight.dim() - 2)))
    target = torch.arange(old, device=weight.device) % in_chans
    shape = (weight.shape[0], in_chans, *weight.shape[2:])
    return torch.zeros(shape, dtype=weight.dtype, device=weight.device).index_add(1, target, weight)


def _apply_options(
    source: dict[str, Any],
    in_chans: int | None,
    encoding_options: Mapping[str, Any] | None,
    model_kwargs: dict[str, Any],
) -> tuple[dict[str, Any], list[str]]:
    """The configuration with the caller's options in it, and a line for each change."""
    config, adapted = copy.deepcopy(source), []
    model = config["model"]
    data = registry.architecture(config).data_config(config["data"])
    options = dict(model_kwargs)
    size = options.pop("input_size", None)
    allowed = [key for key in model if key not in ("in_chans", "num_classes", "encoding_options")]
    unknown = [key for key in options if key not in allowed]
    if unknown:
        raise ConfigError(f"unknown option {unknown[0]!r}; known: input_size, {', '.join(allowed)}")
    encoding = options.setdefault("encoding", model["encoding"])
    own = model["encoding_options"] if encoding == model["encoding"] else {}  # Those of another do not apply.
    options["encoding_options"] = _encoding_options(encoding, own, encoding_options, source)
    for key, value in options.items():
        _check_plain(key, value)
        if value != model[key]:
            adapted.append(f"{key}: {model[key]} -> {value}")
            model[key] = value
    if in_chans is not None and in_chans != model["in_chans"]:
        adapted.append(f"input channels: {model['in_chans']} -> {in_chans}, stem, mean and std adapted")
        model["in_chans"] = in_chans
    config = check_config(config, "options")  # Before anything is computed from them.
    if model["in_chans"] != data.input_size[0]:
        data = data.with_channels(model["in_chans"])
    if size is not None and data.with_size(size) != data:
        resized = data.with_size(size)
        adapted.append(f"input size: {_times(data.input_size[1:])} -> {_times(resized.input_size[1:])}")
        data = resized
    config["data"] = data.to_dict()
    return config, adapted


def _encoding_options(
    encoding: str, own: Mapping[str, Any], given: Mapping[str, Any] | None, source: dict[str, Any]
) -> dict[str, Any]:
    """Options of the source with those given in their place, name by name; of `a+b`, those of each part.

    Where an extension needs the trained extent it is added: inputs of another size may follow.
    """
    before, after = split_options(encoding, own), split_options(encoding, given)
    if "+" in encoding:
        merged = {}
        for part, old, new in zip(split_name(encoding), before, after, strict=True):
            if part and (old or new):
                merged[part] = _encoding_options(part, old, new, source)
        return merged
    old, new = dict(own), dict(given or {})
    if "extend" in new:  # In place of that of the source, which the trained extent alone outlives.
        old = {key: value for key, value in old.items() if key not in EXTENSION_OPTIONS or key == "extent"}
    options = {**old, **new}
    if needs_extent(options) and options["extend"] in encoding_class(encoding).extension_methods:
        options["extent"] = list(registry.architecture(source).trained_extent(source))
    return options


def _check_plain(key: str, value: Any) -> None:
    """Arrays and tensors have no single answer to `!=`, and no place in a config.json."""
    if isinstance(value, (list, tuple, Mapping)):
        for one in value.values() if isinstance(value, Mapping) else value:
            _check_plain(key, one)
    elif not isinstance(value, (bool, int, float, str, type(None))):
        raise ConfigError(f"{key} must be a plain value, got a {type(value).__name__}")


def _build_with_weights(
    config: dict[str, Any], source: Source, dtype: torch.dtype, device: torch.device, changed: bool
) -> Any:
    """Builds the model without allocating it, compares shapes, and only then reads the tensors."""
    path, source_chans = source.weights, source.config["model"]["in_chans"]
    assert path is not None
    if device.type == "meta":
        raise ConfigError("device 'meta' holds no weights: use it with pretrained=False")
    found = checkpoints.read_shapes(path)
    with torch.device("meta"):
        model = registry.architecture(config).build(config)
    expected = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    in_chans = config["model"]["in_chans"]
    if in_chans != source_chans and STEM in expected:
        stem = expected[STEM]
        expected[STEM] = (stem[0], source_chans, *stem[2:])
    try:
        checkpoints.compare_shapes(found, expected, source.label)
    except WeightsError as error:
        if not changed:
            raise
        raise WeightsError(
            f"{error}. Options that change the shape of the network need pretrained=False, or must be left out"
        ) from None
    state = {
        key: adapt_channels(tensor, in_chans) if key == STEM and in_chans != source_chans else tensor
        for key, tensor in checkpoints.read_tensors(path, dtype, device)
    }
    model.load_state_dict(state, strict=True, assign=True)
    return model


def _device(device: str | torch.device | None) -> torch.device:
    try:
        found = torch.device("cpu" if device is None else device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ConfigError(f"device {str(device)!r:.60} cannot be used: {' '.join(str(error).split())[:150]}") from None
    return found


def _dtype(dtype: str | torch.dtype | None, *others: str) -> torch.dtype:
    """The dtype of this name; `others` may be given too, for an error to name."""
    found = DTYPES.get(str("float32" if dtype is None else dtype).removeprefix("torch."))
    if found is None:
        raise ConfigError(f"dtype {dtype!r:.60}: expected one of {', '.join((*DTYPES, *others))}")
    return found


def _times(size: tuple[int, ...]) -> str:
    return " x ".join(map(str, size))
