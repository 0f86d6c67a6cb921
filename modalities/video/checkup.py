"""Where the tokens of clips lie, and what may be wrong with it, for `zoo doctor`. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from modalities.video.data_config import VideoDataConfig
from zoo.diagnosis.catalogue import Finding
from zoo.diagnosis.setup import Axis, Layout, Setup

__all__ = ["check", "layout"]


def _data(config: Mapping[str, Any]) -> VideoDataConfig:
    return VideoDataConfig.from_dict({**config["data"], "tubelet": config["model"]["tubelet"]})


def layout(config: Mapping[str, Any]) -> Layout:
    """Tubelets on a grid; coordinates are (time, row, column)."""
    model, data = config["model"], _data(config)
    unit, patch = model.get("time_unit_s"), model["patch_size"]
    extent: float | None = float(data.tubelets)
    step: float | None = 1.0
    words = "a tubelet"
    if unit is not None:
        words = f"{unit:g} s"
        extent = None if data.duration_s is None else data.duration_s / unit
        step = None if data.frame_rate is None else model["tubelet"] / data.frame_rate / unit
    _, height, width = data.input_size
    space = f"a patch of {patch} px"
    token = {"origin": "origin"}.get(model.get("class_token_position") or "", "nowhere")
    return Layout(
        axes=(
            Axis("time", extent, step, words),
            Axis("row", float(-(-height // patch)), 1.0, space),
            Axis("column", float(-(-width // patch)), 1.0, space),
        ),
        shapes=((model["dim"], model["num_heads"], model["head_dim"]),),
        class_token=token if model.get("pool", "token") == "token" else None,
        origin=str(model.get("coordinate_origin", 0)),
        on_grid=step is not None and float(step).is_integer(),
        groups=() if model.get("attention", "joint") == "joint" else ((0,), (1, 2)),
    )


def check(setup: Setup) -> Iterator[Finding]:
    """Time in frames where the rate changes, sizes that are refused, and frames that are squeezed."""
    model, before, now = setup.target["model"], _data(setup.trained), _data(setup.target)
    (_, height, width), patch = now.input_size, model["patch_size"]
    if height % patch or width % patch:
        near = "x".join(str(max(patch, round(side / patch) * patch)) for side in (height, width))
        what = f"{height} x {width} px are no whole patches of {patch} px"
        yield Finding("size-refused", "error", what, f"--size {near}")
    if setup.encoding != "none":
        yield from _time(model, before, now, setup)
    (_, old_height, old_width) = before.input_size
    if now.resize == "squash" and (before.resize != "squash" or height * old_width != width * old_height):
        what = f"whole frames are squeezed to {height} x {width} px, in training to {old_height} x {old_width} px"
        yield Finding("anisotropic", "warning", what, "use a size of the trained aspect ratio")


def _time(model: Mapping[str, Any], before: VideoDataConfig, now: VideoDataConfig, setup: Setup) -> Iterator[Finding]:
    seconds = "load it with time_unit_s=SECONDS of a trained tubelet (model_options of a recipe), so that time counts"
    if model.get("time_unit_s") is None:
        rates = [data.frame_rate for data in (before, now)]
        if rates[0] != rates[1] or before.frame_step != now.frame_step:
            what = f"clips have {_rate(now)}, in training {_rate(before)}, and time is the number of the tubelet"
            yield Finding("time-in-frames", "warning", what, f"{seconds}, or sample clips as in training")
        elif now.sampling == "dense" and now.frame_rate is None:
            what = f"clips have the frame rate of their file ({_rate(now)}), and time is the number of the tubelet"
            yield Finding("time-in-frames", "warning", what, f"set frame_rate in the data, or {seconds}")
        elif now.sampling == "uniform":
            what = "frames are spread over the whole file, and time is the number of the tubelet"
            mend = f"nothing, if the pace of a film means nothing; else {seconds}"
            yield Finding("time-in-frames", "note", what, mend)
    elif now.frame_rate is None:
        what = "time is in seconds, and the data state no frame rate: every call needs times_s of its frames"
        yield Finding("time-in-frames", "note", what, "set frame_rate in the data, or give times_s")


def _rate(data: VideoDataConfig) -> str:
    if data.frame_rate is not None:
        return f"{data.frame_rate:g} frames a second"
    return "the frames of the file" if data.frame_step == 1 else f"every {data.frame_step}th frame of the file"
