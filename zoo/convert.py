"""Official PaPE checkpoints (config.json + model.pt) become folders of ours, by a key map alone.

`model.pt` is opened with `weights_only=True`: a pickle that asks for anything but tensors is refused. Lightning
checkpoints saved under that name and the key prefixes of wrappers are understood, with a warning that names them.
Where the released networks differ from ours by convention, the options of the encoding say so in the configuration.
"""

from __future__ import annotations

import os
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo import network_sizes, registry
from zoo._callable_module import make_callable
from zoo.config_file import check_config, read_json, regular_file_size
from zoo.detection.parameter_count import BINS
from zoo.errors import ConfigError, WeightsError, ZooError
from zoo.hub import release_folder

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["convert", "convert_config", "convert_state", "unwrap"]

# Official data set -> architecture and data set in our names.
DATASETS = {
    "imagenet": ("vit", "in1k"),
    "coco": ("vit-det", "coco"),
    "dvsgesture": ("event-vit", "dvsgesture"),
    "gen1": ("event-det", "gen1"),
    "ucf101": ("video-vit", "ucf101"),
}
SIZES = {"nano": "n", "tiny": "t", "small": "s", "base": "b"}
SIZE_OVERRIDES = {
    "_hidden_size": "dim",
    "_num_layers": "depth",
    "_num_heads": "num_heads",
    "_head_size": "head_dim",
    "_intermediate_size": "mlp_dim",
}
# Official name of the encoding -> ours, and the settings that become its options (official section, key, our key).
ENCODINGS: dict[str, tuple[str, tuple[tuple[str, str, str], ...]]] = {
    "pape": ("pape", (("pape", "parabolas", "parabolas"),)),
    "pape_ri": ("pape-ri", ()),
    "rope": ("rope", (("rope", "base", "base"),)),
    "rope_mixed": ("rope-mixed", (("rope_mixed", "base", "base"),)),
    "alibi": ("alibi", ()),
    "lookhere": ("lookhere", ()),
    "absolute": ("sincos", (("absolute", "base", "base"),)),
    "nope": ("none", ()),
}
# The released LookHere has the slope of the first layer in all, and rounds its bias.
LOOKHERE_OPTIONS = {"view": 90, "global_slope": 2.0, "layer_slopes": [1.5, 1.5], "round_bias": "bfloat16"}
LOOKHERE_HEADS = 12
# What training wrappers put in front of every key: data-parallel, torch.compile, and attributes of a Lightning module.
PREFIXES = ("module.", "_orig_mod.", "model.", "classifier.")

_BLOCK = r"encoder\.layers\.(\d+)\."
KEY_MAP = [
    (r"cls", r"cls_token"),
    (r"embedding\.(?:projection\.)?(weight|bias)", r"embed.proj.\1"),
    (r"encoder\.norm_pre\.(weight|bias)", r"encoder.norm_pre.\1"),
    (r"encoder\.norm_post\.(weight|bias)", r"encoder.norm.\1"),
    (_BLOCK + r"norm([12])\.(weight|bias)", r"encoder.blocks.\1.norm\2.\3"),
    (_BLOCK + r"attention\.qkv_proj\.(weight|bias)", r"encoder.blocks.\1.attn.qkv.\2"),
    (_BLOCK + r"attention\.out_proj\.(weight|bias)", r"encoder.blocks.\1.attn.proj.\2"),
    (_BLOCK + r"attention\.position_encoder\.position\.weight", r"encoder.blocks.\1.attn.encoding.position"),
    (_BLOCK + r"attention\.position_encoder\.ab\.weight", r"encoder.blocks.\1.attn.encoding.ab"),
    (_BLOCK + r"attention\.position_encoder\.position_scales", r"encoder.blocks.\1.attn.encoding.log_scale"),
    (_BLOCK + r"attention\.position_encoder\.frequencies", r"encoder.blocks.\1.attn.encoding.frequencies"),
    (_BLOCK + r"attention\.position_encoder\.a\.weight", r"encoder.blocks.\1.attn.encoding.a.weight"),
    (_BLOCK + r"ffn\.fc([12])\.(weight|bias)", r"encoder.blocks.\1.mlp.fc\2.\3"),
    (r"classifier\.(weight|bias)", r"head.\1"),
    (r"fpn([123])\.(\d(?:\.ln)?)\.(weight|bias)", r"pyramid.fpn\1.\2.\3"),
    (r"head\.((?:one2one_)?cv[23]\.[\w.]+)", r"head.\1"),
]
# Tensors that follow from the architecture: bins of the box distribution, and counters that fixed momentum ignores.
BINS_KEY, COUNTER = "head.dfl.conv.weight", ".bn.num_batches_tracked"


def convert(source_folder: str | os.PathLike[str], out_folder: str | os.PathLike[str], install: bool = False) -> Path:
    """Converts an official checkpoint into a folder that `zoo.load("local-dir:...")` takes.

    Args:
        source_folder: Holds the official `config.json` and `model.pt`.
        out_folder: Where to write; as for `zoo.save`.
        install: Also put it into the cache under its registry name, so that `zoo.load(name)` finds it. Only when its
            model is exactly that of the name.

    Returns:
        `out_folder`.

    Raises:
        ConfigError: If the configuration is not of a supported kind, or `install` does not apply; nothing is written.
        WeightsError: If `model.pt` is absent, neither is nor wraps a plain state dict, or has missing or unexpected
            tensors.
    """
    import torch

    from zoo import checkpoints
    from zoo.cards import model_card

    source = Path(source_folder).expanduser()
    if not source.is_dir():
        raise WeightsError(f"there is no folder {source}")
    config = check_config(convert_config(read_json(source / "config.json"), str(source / "config.json")), str(source))
    if install:
        _refuse_other_model(config)
    with torch.device("meta"):
        model = registry.architecture(config).build(config)
    expected = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    state = convert_state(unwrap(_read_pickle(source / "model.pt"), source / "model.pt"), config, source / "model.pt")
    checkpoints.compare_shapes(
        {key: tuple(value.shape) for key, value in state.items()}, expected, str(source / "model.pt")
    )
    tensors = {}
    for key in expected:  # Shapes are known to be right before anything is copied.
        tensors[key] = state[key].detach().to(torch.float32).clone(memory_format=torch.contiguous_format)
        if not torch.isfinite(tensors[key]).all():
            raise WeightsError(f"{source / 'model.pt'}: {key} holds NaN or infinite values")
    folders = [Path(out_folder), *([release_folder(config["name"])] if install else [])]
    for folder in folders:
        checkpoints.write_folder(folder, config, tensors, model_card(config))
    return folders[0]


def convert_config(official: Mapping[str, Any], where: str = "config.json") -> dict[str, Any]:
    """Our configuration of an official one.

    Args:
        official: Parsed official `config.json`.
        where: What it is, for messages.

    Raises:
        ConfigError: If the data set, the encoding or a setting is not supported.
    """
    if "schema_version" in official:
        raise ConfigError(f"{where} is already a configuration of pape-zoo: load its folder with local-dir:")
    dataset, positional = (_get(official, where, key, kind=str) for key in ("dataset", "positional"))
    if dataset not in DATASETS:
        known = ", ".join(DATASETS)
        raise ConfigError(f"{where}: dataset {dataset!r:.40} is not supported in this version ({known} are)")
    if positional not in ENCODINGS:
        known = ", ".join(ENCODINGS)
        raise ConfigError(f"{where}: positional {positional!r:.40} is not supported in this version ({known} are)")
    if official.get("normalize") not in (None, False):
        raise ConfigError(f"{where}: normalized coordinates (normalize: true) are not supported in this version")
    encoding, options = ENCODINGS[positional]
    size = _get(official, where, "model", "size", kind=str)
    if size not in SIZES:
        raise ConfigError(f"{where}: model.size {size!r:.40} is unknown; known: {', '.join(SIZES)}")
    stem, data = DATASETS[dataset]
    name = f"{encoding}-{stem}-{SIZES[size]}-{data}"
    config = _architecture(official, where, dataset, name, {"encoding": encoding, "size": SIZES[size]})
    model = config["model"]
    for key, ours in SIZE_OVERRIDES.items():
        if key in official["model"] and (value := _get(official, where, "model", key, kind=int)) != -1:
            model[ours] = value
    model["encoding_options"] = {
        ours: _get(official, where, section, key, kind=(int, float)) for section, key, ours in options
    }
    if encoding == "lookhere":
        if model["num_heads"] != LOOKHERE_HEADS:
            raise ConfigError(
                f"{where}: lookhere with {model['num_heads']} heads is not supported: the released layout is for "
                f"{LOOKHERE_HEADS}"
            )
        model |= {"encoding_options": dict(LOOKHERE_OPTIONS), "class_token_position": None}
    if any(model[key] != value for key, value in network_sizes.SIZES[SIZES[size]].items()):
        config["name"] = f"{encoding}-{stem}-custom-{data}"
    return config


def _architecture(
    official: Mapping[str, Any], where: str, dataset: str, name: str, common: dict[str, Any]
) -> dict[str, Any]:
    """The configuration of a registered kind of model, with the settings of the data set and of the head."""
    from modalities.events import presets as events
    from modalities.image import detector_presets, presets
    from modalities.video import presets as video

    patch = _get(official, where, "patch_size", kind=int)
    head = {}
    if dataset in ("coco", "gen1"):
        if _get(official, where, "detection", "reg_max", kind=int) != BINS:
            raise ConfigError(f"{where}: detection.reg_max must be {BINS}: the head has {BINS} bins a side")
        head = {
            "max_detections": _get(official, where, "detection", "max_det", kind=int),
            "min_score": _get(official, where, "detection", "min_conf", kind=(int, float)),
        }
        common = common | {"pyramid_dim": _get(official, where, "detection", "fpn_size", kind=int)}
    if dataset == "imagenet":
        images: dict[str, Any] = {"num_classes": 1000, "data": presets.RELEASED_DATA, "patch_size": patch}
        return presets.config(name, released=True, **images, **common)
    if dataset == "ucf101":
        tubelet, steps = (_get(official, where, "video", key, kind=int) for key in ("frame_length", "max_samples"))
        step = _get(official, where, "video", "frame_step", kind=int)
        frames = {"tubelet": tubelet, "frames": tubelet * steps, "frame_step": step}
        clips: dict[str, Any] = {"num_classes": 101, "data": video.UCF101_DATA | frames, "patch_size": patch}
        return video.config(name, released=True, **clips, **common)
    if dataset == "coco":
        labels, data = detector_presets.COCO_LABELS, detector_presets.COCO_DATA
        coco: dict[str, Any] = {"num_classes": len(labels), "labels": labels, "data": data, "patch_size": patch}
        config = detector_presets.config(name, released=True, **coco, **common)
    else:
        changed = {
            "patch_size": patch,
            "threshold": _get(official, where, "events", "threshold", kind=int),
            "refractory_us": 1000 * _get(official, where, "events", "ref_ms", kind=int),
            "buckets": _get(official, where, "events", "buckets", kind=int),
            "time_scale_us": float(_get(official, where, "events", "time_scale", kind=(int, float))),
        }
        if dataset == "dvsgesture":
            gestures: dict[str, Any] = {"num_classes": 11, "labels": events.DVSGESTURE_LABELS}
            return events.config(name, released=True, data=events.DVSGESTURE_DATA | changed, **gestures, **common)
        changed["max_events"] = _get(official, where, "events", "max_detection_events", kind=int)
        road: dict[str, Any] = {"num_classes": 2, "labels": events.GEN1_LABELS}
        config = events.detector_config(name, data=events.GEN1_DATA | changed, **road, **common)
    config["model"] |= head
    return config


def convert_state(
    official: Mapping[str, Any], config: Mapping[str, Any], where: str | Path = "model.pt"
) -> dict[str, Tensor]:
    """Our state dict of an official one, without copying what need not change.

    Args:
        official: Official state dict, see `unwrap`.
        config: Our configuration of the model.
        where: What it is, for messages.

    Raises:
        WeightsError: If a key is unknown or a position tensor has an impossible shape.
    """
    import torch

    heads = config["model"]["num_heads"]
    state: dict[str, Tensor] = {}
    for key, value in official.items():
        if config["task"] == "detection" and isinstance(key, str) and key.endswith(COUNTER):
            continue
        if not isinstance(key, str) or not isinstance(value, torch.Tensor) or not value.is_floating_point():
            raise WeightsError(f"{where}: {key!r:.80} is not a tensor of floating-point weights")
        if value.layout is not torch.strided or value.is_meta:
            raise WeightsError(f"{where}: {key!r:.80} is a sparse tensor, or one without data")
        if config["task"] == "detection" and key == BINS_KEY:
            bins = torch.arange(float(BINS)).view(1, BINS, 1, 1)
            if tuple(value.shape) != tuple(bins.shape) or not torch.equal(value.float().cpu(), bins):
                raise WeightsError(f"{where}: {key} must hold 0 to {BINS - 1}, the bins of the box distribution")
            continue
        ours = next((re.sub(pattern, new, key) for pattern, new in KEY_MAP if re.fullmatch(pattern, key)), None)
        if ours is None:
            raise WeightsError(f"{where} has an unexpected tensor {key!r:.100}")
        if ours.endswith("encoding.ab"):  # Rows are (a or b, head, parabola), a first.
            _require(value.dim() == 2 and value.shape[0] % 2 == 0, where, key, value)
            half = value.shape[0] // 2
            state[ours.removesuffix("ab") + "a.weight"] = value[:half]
            state[ours.removesuffix("ab") + "b.weight"] = value[half:]
        elif ours.endswith("encoding.position"):  # Rows are (head, parabola).
            _require(value.dim() == 2 and value.shape[0] % heads == 0, where, key, value)
            state[ours] = value.unflatten(0, (heads, -1))
        elif ours.endswith("encoding.log_scale"):  # (1, H, 1, 1) scales w, of which only w^2 counts.
            _require(tuple(value.shape) == (1, heads, 1, 1), where, key, value)
            # The bound keeps w = 0 finite: its square is 0 to every float32 sum all the same.
            state[ours] = value.reshape(heads).double().abs().clamp_min(1e-18).log()
        elif ours.endswith("encoding.frequencies"):  # (H, p, D / 2) holds periods.
            state[ours] = value.double().reciprocal()
        else:
            state[ours] = value
    return state


def unwrap(saved: Mapping[str, Any], where: str | Path = "model.pt") -> Mapping[str, Any]:
    """The state dict in what a training framework saved, without the prefixes that all its keys share.

    Args:
        saved: A state dict, or a Lightning checkpoint with one under "state_dict".
        where: What it is, for messages.

    Returns:
        The state dict with the keys of the official network. A UserWarning says what was taken off.

    Raises:
        WeightsError: If "state_dict" is not a state dict.
    """
    found = []
    if "state_dict" in saved:
        saved = saved["state_dict"]
        found.append("the 'state_dict' of a Lightning checkpoint")
        if not isinstance(saved, Mapping) or not saved:
            raise WeightsError(f"{where}: 'state_dict' holds a {type(saved).__name__}; expected a state dict")
    for _ in PREFIXES:  # Wrappers nest.
        if prefix := _common_prefix(saved):
            saved = {key.removeprefix(prefix): value for key, value in saved.items()}
            found.append(f"keys without their prefix {prefix!r}")
    if found:
        warnings.warn(f"{where}: took {', '.join(found)}", stacklevel=3)
    return saved


def _common_prefix(state: Mapping[str, Any]) -> str | None:
    return next((p for p in PREFIXES if all(isinstance(key, str) and key.startswith(p) for key in state)), None)


def _require(holds: bool, where: str | Path, key: str, value: Tensor) -> None:
    if not holds:
        raise WeightsError(f"{where}: {key} has an impossible shape {tuple(value.shape)}")


def _get(config: Any, where: str, *path: str, kind: type | tuple[type, ...]) -> Any:
    """A setting of the official configuration, of the right type."""
    value = config
    for key in path:
        if not isinstance(value, Mapping) or key not in value:
            raise ConfigError(f"{where} lacks {'.'.join(path)}: not an official PaPE configuration")
        value = value[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ConfigError(f"{where}: {'.'.join(path)} has an unusable value {value!r:.60}")
    return value


def _read_pickle(path: Path) -> Mapping[str, Any]:
    """The object in `model.pt`, if tensors and plain containers are all it asks for."""
    import torch

    size = regular_file_size(path)
    mapped = zipfile.is_zipfile(path)
    try:
        if mapped:
            with zipfile.ZipFile(path) as archive:  # torch.save stores; a compressed entry could grow without bound.
                if any(item.compress_type != zipfile.ZIP_STORED for item in archive.infolist()):
                    raise WeightsError(f"{path} has compressed entries, which torch.save does not write: refused")
        with warnings.catch_warnings(action="ignore"):  # About the pickle protocol of files that fail anyway.
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except ZooError:
        raise
    except Exception as error:  # Unpickling a stranger's file can fail in any way.
        if "weights_only" in str(error) or "Unsupported" in str(error):
            raise WeightsError(
                f"{path} asks for more than tensors when opened, so it may run code: refused; a checkpoint must be "
                "a plain state dict"
            ) from None
        raise WeightsError(f"{path} is not a readable torch checkpoint, or is cut short ({size} bytes)") from None
    if not isinstance(state, Mapping) or not state:
        raise WeightsError(f"{path} holds a {type(state).__name__}; expected a state dict")
    return state


def _refuse_other_model(config: Mapping[str, Any]) -> None:
    """Raises unless the converted model is exactly that of a registered name with released weights."""
    released = [registry.entry(name) for name in registry.list_models(weights="release")]
    released = [item for item in released if item.config["architecture"] == config["architecture"]]
    encoding = config["model"]["encoding"]
    entry = next((item for item in released if item.encoding == encoding), released[0])
    expected, model = entry.config["model"], config["model"]
    differs = [f"{key} is {model[key]}, expected {expected[key]}" for key in expected if model[key] != expected[key]]
    if differs:
        raise ConfigError(
            f"not installed, since this checkpoint is not {entry.name}: {'; '.join(differs)}. Convert it without "
            "install and load it with local-dir:"
        )


make_callable(__name__, "convert")
