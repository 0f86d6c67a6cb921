"""Where the tokens of pictures lie, and what may be wrong with it, for `zoo doctor`. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zoo.data_config import DataConfig
from zoo.diagnosis.catalogue import Finding
from zoo.diagnosis.setup import Axis, Layout, Setup
from zoo.encodings.facts import FACTS

__all__ = ["check", "check_recipe", "layout"]


def layout(config: Mapping[str, Any]) -> Layout:
    """Patches on a grid; coordinates are (column, row)."""
    model, (_, height, width) = config["model"], DataConfig.from_dict(config["data"]).input_size
    patch = model["patch_size"]
    sides = (("column", -(-width // patch)), ("row", -(-height // patch)))
    classifies = config["architecture"] == "vit"
    token = {"origin": "origin"}.get(model.get("class_token_position") or "", "nowhere") if classifies else None
    return Layout(
        axes=tuple(Axis(name, float(tokens), 1.0, f"a patch of {patch} px") for name, tokens in sides),
        shapes=((model["dim"], model["num_heads"], model["head_dim"]),),
        class_token=token,
        origin=str(model.get("coordinate_origin", 0)),
    )


def check(setup: Setup) -> Iterator[Finding]:
    """Sizes that do not divide into patches, and pictures that are squeezed."""
    model = setup.target["model"]
    before, now = (DataConfig.from_dict(config["data"]) for config in (setup.trained, setup.target))
    (_, height, width), patch = now.input_size, model["patch_size"]
    if height % patch or width % patch:
        near = "x".join(str(max(patch, round(side / patch) * patch)) for side in (height, width))
        refused = model.get("size_policy", "refuse") == "refuse"
        yield Finding(
            "size-refused" if refused else "padded-size",
            "error" if refused else "note",
            f"{height} x {width} px are no whole patches of {patch} px",
            f"--size {near}" + (", or load the model with size_policy='pad'" if refused else ""),
        )
    isotropic = FACTS[setup.attention].rotation and setup.attention != "none"
    if now.resize == "squash":
        squeezed = before.resize != "squash" or _aspect(before) != _aspect(now)
        if squeezed or isotropic:
            yield Finding(
                "anisotropic",
                "warning" if squeezed else "note",
                f"whole pictures are squeezed to {height} x {width} px"
                + (f", in training {_words(before)}" if squeezed else f", and {setup.attention} knows distances alone"),
                "keep the aspect ratio: resize 'letterbox' or 'shortest' in the data",
            )
    elif before.resize == "squash":
        yield Finding(
            "anisotropic",
            "warning",
            f"pictures keep their aspect ratio ({now.resize}), in training {_words(before)}",
            "set resize to 'squash' as in training",
        )
    separate = setup.attention == "rope-normalised" and setup.options.get("normalise", "separate") == "separate"
    if separate and _aspect(before) != _aspect(now):
        yield Finding(
            "anisotropic",
            "warning",
            f"coordinates are normalised along each axis, and {height} x {width} px have another aspect ratio than "
            f"{before.input_size[1]} x {before.input_size[2]} px in training",
            "use a size of the trained aspect ratio, or train with encoding_options={'normalise': 'max'}",
        )


def _aspect(data: DataConfig) -> float:
    return round(data.input_size[1] / data.input_size[2], 3)


def _words(data: DataConfig) -> str:
    size = f"{data.input_size[1]} x {data.input_size[2]} px"
    return f"they were squeezed to {size}" if data.resize == "squash" else f"resize was {data.resize!r} to {size}"


def check_recipe(setup: Setup, recipe: Any) -> Iterator[Finding]:
    """Whether the backbone that a detector starts from has its coordinates."""
    name = getattr(recipe.options, "backbone", None)
    if name is None:
        return
    from zoo.sources import locate

    source = locate(name, pretrained=False).config
    own, other = setup.target["model"], source["model"]
    for code, key, default in (("origin-differs", "coordinate_origin", 0), ("unit-differs", "patch_size", None)):
        if own.get(key, default) != other.get(key, default):
            what = f"{key} is {own.get(key, default)} here and {other.get(key, default)} in the backbone {name}"
            yield Finding(code, "error", what, f'--set "model_options={{{key}: {other.get(key, default)}}}"')
    if own["encoding"] != other["encoding"]:
        what = f"the encoding is {own['encoding']} here and {other['encoding']} in the backbone {name}"
        yield Finding("recipe-refused", "error", what, "--set backbone=null, or a backbone with this encoding")
