"""Where the tokens of event cameras lie, and what may be wrong with it, for `zoo doctor`. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from modalities.events.data_config import EventDataConfig
from zoo.diagnosis.catalogue import Finding
from zoo.diagnosis.setup import Axis, Layout, Setup

__all__ = ["check", "layout"]

_DIRECTIONS = {"start": "since the start", "end": "before the end"}


def layout(config: Mapping[str, Any]) -> Layout:
    """Patches of the sensor and times; coordinates are (column, row, time)."""
    model, data = config["model"], EventDataConfig.from_dict(config["data"])
    rows, columns = data.grid
    space = f"a patch of {data.patch_size} px"
    duration = None if data.window_us is None else data.window_us / data.time_scale_us
    classifies = config["architecture"] == "event-vit"
    token = {"origin": "origin"}.get(model.get("class_token_position") or "", "nowhere") if classifies else None
    return Layout(
        axes=(
            Axis("column", float(columns), 1.0, space),
            Axis("row", float(rows), 1.0, space),
            Axis("time", duration, None, f"{data.time_scale_us / 1e6:g} s {_DIRECTIONS[data.time_reference]}"),
        ),
        shapes=((model["dim"], model["num_heads"], model["head_dim"]),),
        class_token=token,
        origin=f"the {data.time_reference} of the events",
        on_grid=False,
    )


def check(setup: Setup) -> Iterator[Finding]:
    """Nothing beyond what holds for all tokens."""
    yield from ()
