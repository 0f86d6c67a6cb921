"""How fast the channels of rotary encodings turn, read off the encodings themselves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from zoo.diagnosis.catalogue import Finding
from zoo.diagnosis.measured import drop
from zoo.diagnosis.setup import Setup
from zoo.encodings import EXTENSION_OPTIONS, split_options

__all__ = ["LEARNED", "ROTARY", "check_rotary", "frequencies"]

# Encodings with learned frequencies, of which the configuration says nothing.
LEARNED = ("comrope-ld", "liere", "rope-mixed", "string")
ROTARY = ("gta", "golden-rope", "mrope", "pope", "prope", "rope", "rope-1d", "rope-normalised", "spiral-rope")
_DELTA = 1e-4  # Units of the step with which angles are measured.
_STILL = 2 / 3  # Share of the pairs of an axis that may turn by less than a radian.
_UNSEEN = 0.3  # Share of the pairs of an axis that may meet new angles.
_RATIO = 1.4  # Above which learned frequencies count as at new angles.
_IDLE = 0.25  # Share of the channels of a head that may carry no position.


def frequencies(
    name: str, options: Mapping[str, Any], shape: tuple[int, int, int], extents: tuple[float, ...]
) -> list[list[float]] | None:
    """Radians per unit of every pair that has to do with an axis, for each axis.

    Measured on the frame of the encoding at two places next to each other, in an input of these extents, so that an
    extension, normalisation and all options are in them.

    Args:
        name: An attention encoding by name.
        options: Its options.
        shape: (width, heads, width of a head).
        extents: Of the input in tokens, one for each axis.

    Returns:
        `None` for encodings without frequencies, or with learned ones.

    Raises:
        ConfigError: If the encoding cannot be made.
    """
    if name not in ROTARY:
        return None
    import torch

    from zoo.coordinates import Coordinates
    from zoo.encodings import create

    dim, heads, width = shape
    axes = len(extents)
    sizes = {"dim": dim, "num_heads": heads, "head_dim": width, "coord_dim": axes}
    made: Any = create(name, **sizes, options=dict(options))[1].double().eval()
    if name == "rope-1d":  # It counts tokens: neighbours are a unit apart.
        line = Coordinates(torch.zeros(1, 2, axes, dtype=torch.float64))
        angles = _angles(made.frame(line, torch.float64))
        return [(angles[1] - angles[0]).abs().tolist()]
    rows = [[0.0] * axes, [extent - 1 for extent in extents]]
    rows += [[_DELTA * (axis == other) for other in range(axes)] for axis in range(axes)]
    angles = _angles(made.frame(Coordinates(torch.tensor([rows], dtype=torch.float64)), torch.float64))
    turned = (angles[2:] - angles[0] + math.pi).remainder(2 * math.pi) - math.pi
    speeds = (turned.abs() / _DELTA).tolist()
    return [[speed for speed in row if speed > 1e-9] for row in speeds]


def _angles(frame: Any) -> Any:
    """Angles (N, pairs) in a frame; of heads that differ, those of the first."""
    rotation = getattr(frame, "rotation", frame)
    if hasattr(rotation, "cos"):
        return rotation.sin.atan2(rotation.cos)[0, 0]
    return rotation.values[0, 0]


def check_rotary(setup: Setup) -> Iterator[Finding]:
    """Angles that training has not seen, channels that do not turn, and those that turn too fast."""
    name = setup.attention
    if name in LEARNED and setup.ratio > _RATIO and setup.factor < setup.ratio / _RATIO:
        found, severity = drop(setup, setup.options.get("extend"))
        yield Finding(
            "unseen-angles",
            severity,
            f"the input reaches {setup.ratio:.3g} times as far as in training, and the learned frequencies of {name} "
            f"were fitted to that{found}",
            f"use position interpolation: {_extended(setup, 'pi')}",
        )
    if name not in ROTARY:
        return
    groups = setup.now.groups or (tuple(range(len(setup.now.axes))),)
    yield from _idle(setup, max(map(len, groups)))
    before, now = setup.before.extents, setup.now.extents
    if before is None or now is None:
        return
    old_options = split_options(setup.trained["model"]["encoding"], setup.trained["model"].get("encoding_options"))[1]
    old_options = {key: value for key, value in old_options.items() if key not in EXTENSION_OPTIONS}  # Added later.
    for group in groups:
        shape = setup.now.shapes[0]
        old_extents, new_extents = (tuple(extents[axis] for axis in group) for extents in (before, now))
        old = frequencies(name, _for(group, len(now), old_options), shape, old_extents)
        new = frequencies(name, _for(group, len(now), setup.options), shape, new_extents)
        assert old is not None and new is not None
        reach = [(setup.now.axes[a].name, before[a], now[a], setup.now.axes[a].step) for a in group]
        if name == "rope-1d":
            reach = [("the order of tokens", math.prod(old_extents), math.prod(new_extents), 1.0)]
        yield from _still(reach, new)
        yield from _fast(reach, new)
        if name != "rope-normalised":  # An input always has the same extent to it.
            yield from _unseen(setup, reach, old, new)


def _for(group: tuple[int, ...], axes: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options in which lists with a value for each axis have those of a group alone."""
    return {
        key: [value[axis] for axis in group] if isinstance(value, (list, tuple)) and len(value) == axes else value
        for key, value in options.items()
        if key != "sections" or len(group) == axes
    }


def _extended(setup: Setup, method: str) -> str:
    factor = math.ceil(10 * setup.ratio) / 10
    return f"zoo eval --extend {method}, or encoding_options={{'extend': '{method}', 'factor': {factor:g}}} in zoo.load"


def _idle(setup: Setup, axes: int) -> Iterator[Finding]:
    for _, _, width in setup.now.shapes:
        used = width // (2 * axes) * 2 * axes
        if setup.attention in ("rope", "rope-normalised", "gta", "prope") and 1 - used / width > _IDLE:
            yield Finding(
                "idle-channels",
                "warning",
                f"with {axes} axes {setup.attention} turns {used} of the {width} channels of a head",
                f"make head_dim a multiple of {2 * axes} (or use rope-mixed, which mixes the axes)",
            )
            return


Reach = list[tuple[str, float, float, float | None]]
"""Name, extent in training and in use, and step of what the frequencies are along."""


def _still(reach: Reach, speeds: list[list[float]]) -> Iterator[Finding]:
    """The axis with the most pairs that hardly turn, if these are too many."""
    still = [sum(speed * now < 1 for speed in row) for (_, _, now, _), row in zip(reach, speeds, strict=True)]
    axis = max(range(len(reach)), key=lambda a: still[a] / max(len(speeds[a]), 1))
    if still[axis] > _STILL * len(speeds[axis]):
        name, _, extent, _ = reach[axis]
        yield Finding(
            "still-channels",
            "warning",
            f"along {name} {still[axis]} of {len(speeds[axis])} pairs turn by less than a radian over the extent of "
            f"{extent:g}",
            "lower the base: encoding_options={'base': 100} suits grids of 14 to 64 patches (weights have to be "
            "trained with it)",
        )


def _fast(reach: Reach, speeds: list[list[float]]) -> Iterator[Finding]:
    for (axis, _, _, step), row in zip(reach, speeds, strict=True):
        if step is not None and row and max(row) * step > math.pi:
            yield Finding(
                "aliased-frequencies",
                "warning",
                f"along {axis} neighbouring tokens are {step:g} units apart, over which the fastest pair makes "
                f"{max(row) * step / (2 * math.pi):.3g} turns",
                "count coordinates in steps of the tokens: choose the unit (time_unit_s, time_scale_us, spacing, "
                "grid_size) as large as a step",
            )


def _unseen(setup: Setup, reach: Reach, old: list[list[float]], new: list[list[float]]) -> Iterator[Finding]:
    worst: tuple[float, str, int, int] = (0.0, "", 0, 0)
    for (axis, before, now, _), was, becomes in zip(reach, old, new, strict=True):
        if not was or len(was) != len(becomes):
            continue
        unseen = sum(
            slow * before < 2 * math.pi and fast * now > slow * before + 1
            for slow, fast in zip(was, becomes, strict=True)
        )
        worst = max(worst, (unseen / len(was), axis, unseen, len(was)))
    share, axis, unseen, pairs = worst
    if share <= _UNSEEN:
        return
    found, severity = drop(setup, setup.options.get("extend"))
    corner = ""
    if setup.now.class_token == "nowhere":
        corner = "; the class token, without a position, is at the corner to it, which moves away too"
    yield Finding(
        "unseen-angles",
        severity,
        f"along {axis} {unseen} of {pairs} pairs reach angles that the trained extent does not{corner}{found}",
        f"extend it: {_extended(setup, 'yarn')}; or train at this size",
    )
