"""One file or prompt through one model: sizes, options and limits for a panel that should answer soon."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from zoo.errors import ConfigError, DataError
from zoo.reading import Source
from zoo.site import samples
from zoo.site.answers import answer
from zoo.site.uploads import source_name, unpacked

__all__ = [
    "INPUTS",
    "TRIED_SIZES",
    "has_patch_bias",
    "input_kind",
    "input_shape",
    "patch_bias",
    "run_file",
    "run_prompt",
    "seen",
    "warm",
]

INPUTS = {
    "image": "picture",
    "video": "video",
    "events": "events",
    "points": "points",
    "driving": "drive",
    "sequence": "text",
}
"""Modality -> what the panel asks for; see `input_kind`."""
TRIED_SIZES = (32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 288, 320, 384, 448, 512, 640, 768, 1024)

MOST_PATCHES = 4096
"""Of an input: more take many seconds on a CPU."""
MOST_PIXELS = 50_000_000
"""Of a picture, before it is decoded."""
MOST_POINTS = 1_000_000
MOST_WINDOWS = 40
"""Of a recording; what comes later is not looked at."""
MOST_SECONDS = 60.0
"""For one video or text."""

_FEWEST_PATCHES = 4  # along the longer side
_NAMES = {"events": "recording", "points": "cloud"}
_MUSIC = ("chorales", "performance", "roll")  # Tokenizers of pieces that begin out of nothing.
_PROMPT_KEYS = ("prompt", "seed", "temperature", "tokens")


def input_kind(config: Mapping[str, Any]) -> str:
    """What the panel asks for: decoders that begin a piece of music without a prompt are asked for `"music"`."""
    tokenizer = config["data"].get("tokenizer") if config["modality"] == "sequence" else None
    return "music" if tokenizer and tokenizer.get("kind") in _MUSIC else INPUTS[config["modality"]]


def input_shape(config: Mapping[str, Any], size: int | None) -> tuple[int, int] | None:
    """Height and width of the input, in pixels.

    Args:
        config: Of the model.
        size: The longer side; `None`: as trained. The proportions are those of training, to the nearest patch.

    Returns:
        `None` for models that see neither pictures nor videos.

    Raises:
        ConfigError: If the model takes no size, or not this one.
    """
    if config["modality"] not in ("image", "video"):
        if size is not None:
            raise ConfigError(f"size is for models of pictures and videos, not of {INPUTS[config['modality']]}")
        return None
    height, width = config["data"]["input_size"][1:]
    if size is None:
        return height, width
    patch = int(config["model"]["patch_size"])
    if size % patch or size < _FEWEST_PATCHES * patch:
        raise ConfigError(f"size {size} cannot be used: take a multiple of {patch} from {_FEWEST_PATCHES * patch}")
    rows, columns = (max(1, round(side * size / max(height, width) / patch)) for side in (height, width))
    tubelets = config["data"].get("frames", 1) // config["data"].get("tubelet", 1)
    if rows * columns * tubelets > MOST_PATCHES:
        raise ConfigError(f"size {size} makes more than the {MOST_PATCHES} patches that are tried here")
    return rows * patch, columns * patch


def has_patch_bias(config: Mapping[str, Any]) -> bool:
    """Says whether a model adds a position term to the logits between patches of a picture."""
    from zoo.encodings import ATTENTION, split_name
    from zoo.encodings.base import AttentionEncoding

    if config["modality"] != "image":
        return False
    module, name = ATTENTION[split_name(config["model"]["encoding"])[1]].split(":")
    encoding: type[AttentionEncoding] = getattr(importlib.import_module(module), name)
    return encoding.score is not AttentionEncoding.score


def run_file(
    model: Any, config: Mapping[str, Any], body: bytes, filename: str, shape: tuple[int, int] | None
) -> tuple[Any, dict[str, Any]]:
    """Predicts a file.

    Args:
        model: A loaded model.
        config: Of it.
        body: Content of the file.
        filename: What the user calls it.
        shape: From `input_shape`.

    Returns:
        The preprocessing in use, and the values of `zoo.site.answers.answer`.

    Raises:
        DataError: If the file cannot be read, or takes too long.
    """
    from zoo.predict import predictor as make

    predictor = make(model, size=shape)
    modality = config["modality"]
    name = source_name(_NAMES.get(modality, INPUTS[modality]), filename)
    note = None
    if modality == "driving":
        with unpacked(body, name) as folder:
            try:
                (result,) = predictor(str(folder), limit=1)
                return predictor.data_config, answer(result, predictor.task, predictor.kind, body)
            except DataError as error:  # The user has never heard of this folder.
                raise DataError(str(error).replace(str(folder), name)) from error
    if modality == "events":
        result, note = _best_window(predictor, Source(body, name))
    else:
        options: dict[str, dict[str, Any]] = {
            "image": {"max_pixels": MOST_PIXELS},
            "points": {"max_points": MOST_POINTS, "fill": True},
            "video": {"progress": _until(name)},
        }
        result = predictor(Source(body, name), **options[modality])
    made = answer(result, predictor.task, predictor.kind, body)
    return predictor.data_config, made | {"note": made["note"] or note}


def run_prompt(model: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    """Continues a prompt; see `zoo.site.predictor.Predictor.continued`.

    Raises:
        DataError: If the prompt cannot be used, or takes too long.
        ConfigError: If an option cannot be used.
    """
    from zoo.predict import predictor as make

    if unknown := sorted(str(key) for key in request if key not in _PROMPT_KEYS):
        raise ConfigError(f"unknown key {unknown[0]!r:.60}; there are {', '.join(_PROMPT_KEYS)}")
    prompt = request.get("prompt")
    if prompt is not None and not isinstance(prompt, str):
        raise DataError(f"prompt must be a text, not {type(prompt).__name__}")
    options = {key: request[key] for key in _PROMPT_KEYS[1:] if request.get(key) is not None}
    predictor = make(model)
    # A Source: a plain text that looks like the name of a file would be read from the disk.
    result = predictor(Source(prompt or None, "the prompt"), progress=_until("the prompt"), **options)
    return answer(result, predictor.task, predictor.kind, None)


def patch_bias(
    model: Any, body: bytes, filename: str, shape: tuple[int, int] | None, row: int, col: int, layer: int
) -> dict[str, Any]:
    """The position term of one patch of a picture; see `zoo.site.predictor.Predictor.bias`.

    Raises:
        ConfigError: If there is no such patch or layer.
        DataError: If the picture cannot be read.
    """
    from modalities.image.transforms import preprocess
    from zoo import viz
    from zoo.reading import read

    picture = read(Source(body, source_name("picture", filename)), kind="image", max_pixels=MOST_PIXELS)
    pixels = preprocess(picture.rgb, model.data_config, shape).unsqueeze(0)
    found = viz.position_bias(model, pixels, query=(row, col))
    layers, _, rows, columns = found.shape
    if not -layers <= layer < layers:
        raise ConfigError(f"layer {layer} is none of the {layers} layers, which count from 0")
    place = {"layers": layers, "layer": layer % layers, "row": row, "col": col}
    return {"grid": [rows, columns], **place, "heads": found[layer].tolist()}


def seen(config: Mapping[str, Any], data_config: Any, size: tuple[int, int]) -> dict[str, Any]:
    """What a model sees of a picture.

    Args:
        config: Of the model.
        data_config: The preprocessing in use.
        size: (height, width) of the picture.

    Returns:
        `grid`, the rows and columns of patches, and `view`, x1, y1, x2 and y2 of the part that they cover, in pixels of
        the picture: less of it where it is cropped, more where a border is added.
    """
    import torch

    from zoo.placement import place

    height, width = data_config.input_size[1:]
    patch = int(config["model"]["patch_size"])
    corners = place(size, data_config).to_original(torch.tensor([0.0, 0.0, width, height], dtype=torch.float64))
    view = dict(zip(("x1", "y1", "x2", "y2"), (round(corner, 3) for corner in corners.tolist()), strict=True))
    return {"grid": [height // patch, width // patch], "view": view}


def warm(model: Any, config: Mapping[str, Any]) -> None:
    """Runs a model once on a sample, so that nothing is left to be compiled or imported.

    Raises:
        ZooError: If there is no sample that can be run.
    """
    if config["modality"] == "sequence":
        run_prompt(model, {"prompt": None, "tokens": 1})
        return
    known = samples.names(config)
    if known:
        run_file(model, config, samples.sample(known[0]), known[0], input_shape(config, None))
    elif config["modality"] == "image":
        from zoo.bench.predict import sample_picture

        run_file(model, config, sample_picture(), "picture.jpg", input_shape(config, None))


def _best_window(predictor: Any, source: Source) -> tuple[Any, str | None]:
    """The result of a recording, or of many windows that in which most was found."""
    found = list(islice(predictor(source, batch_size=4, stream=True), MOST_WINDOWS))
    if not found:
        raise DataError(f"{source.name}: holds no events")
    if predictor.task != "detection" or len(found) == 1:
        return found[0], None
    best = max(found, key=lambda result: sum(result.scores))
    start, end = (time_us / 1e6 for time_us in best.time_us)
    return best, f"{start:.3f} to {end:.3f} s, where most was found in the first {len(found)} windows"


def _until(name: str) -> Callable[[float], None]:
    """Raises once it has taken too long."""
    end = time.monotonic() + MOST_SECONDS

    def progress(share: float) -> None:
        if time.monotonic() > end and share < 1:
            raise DataError(f"{name}: takes longer than {MOST_SECONDS:g} s here: `zoo predict` has no such limit")

    return progress
