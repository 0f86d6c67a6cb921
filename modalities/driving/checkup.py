"""Where the tokens of driving scenes lie, for `zoo doctor`. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from modalities.driving.config import FusionConfig
from modalities.driving.data_config import DrivingDataConfig
from zoo.diagnosis.catalogue import Finding
from zoo.diagnosis.setup import Axis, Layout, Setup

__all__ = ["check", "layout"]


def layout(config: Mapping[str, Any]) -> Layout:
    """Sets of tokens within a window, each in one plane: patches of an image, or pillars of the ground."""
    model, data = FusionConfig.from_dict(config["model"]), DrivingDataConfig.from_dict(config["data"])
    unit = f"a patch of {model.patch_size} px, or a pillar of {data.pillar_size:g} m"
    return Layout(
        axes=tuple(Axis(name, float(model.window), None, unit) for name in ("first axis", "second axis")),
        shapes=((model.dim, model.num_heads, model.head_dim),),
        origin="the corner of the window",
        on_grid=False,
    )


def check(setup: Setup) -> Iterator[Finding]:
    """Images that do not divide into patches."""
    model, data = setup.target["model"], DrivingDataConfig.from_dict(setup.target["data"])
    patch = model.get("patch_size", 8)
    height, width = data.image_size
    if "camera" in model.get("sensors", "camera") and (height % patch or width % patch):
        near = "x".join(str(max(patch, round(side / patch) * patch)) for side in (height, width))
        what = f"images of {height} x {width} px are no whole patches of {patch} px"
        yield Finding("size-refused", "error", what, f"--size {near}")
