"""Where the tokens of point clouds lie, and what may be wrong with it, for `zoo doctor`. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from modalities.points.data_config import PointDataConfig
from zoo.diagnosis.catalogue import Finding
from zoo.diagnosis.setup import Axis, Layout, Setup

__all__ = ["check", "layout"]

_NORMALISED = {"unit-box": "of the unit box", "centre": "m", "none": "m"}


def layout(config: Mapping[str, Any]) -> Layout:
    """Voxels or centres of groups; coordinates are (x, y, z)."""
    model, data = config["model"], PointDataConfig.from_dict(config["data"])
    if config["architecture"] == "point-vit":
        edge, extent = float(model.get("spacing", 0.25)), None
        if data.normalise == "unit-box":
            extent = 2 / edge
        shapes: tuple[tuple[int, int, int], ...] = ((model["dim"], model["num_heads"], model["head_dim"]),)
        token = "nowhere"
    else:  # Patches along a curve reach as far as they do, and every stage has its own voxels.
        edge, extent, token = data.grid_size, None, None
        width = model.get("head_dim", 16)
        stages = [*model["channels"], *model.get("decoder_channels", [])]
        shapes = tuple((channels, channels // width, width) for channels in dict.fromkeys(stages))
    unit = f"{edge:g} {_NORMALISED[data.normalise]}"
    return Layout(
        axes=tuple(Axis(name, extent, None, unit) for name in "xyz"),
        shapes=shapes,
        class_token=token,
        origin="the middle of the cloud",
        on_grid=False,
    )


def check(setup: Setup) -> Iterator[Finding]:
    """Clouds that are normalised otherwise than in training."""
    before, now = (PointDataConfig.from_dict(config["data"]) for config in (setup.trained, setup.target))
    words = [_NORMALISED[data.normalise] for data in (before, now)]
    if before.normalise != now.normalise and words[0] == words[1]:  # Else the unit says it.
        what = f"clouds are normalised by {now.normalise!r}, in training by {before.normalise!r}"
        yield Finding("origin-differs", "warning", what, "set normalise as in training")
