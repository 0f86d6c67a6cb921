"""The figure of `zoo bench attention`: time of every encoding and kernel over that of attention without positions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.errors import ConfigError, require
from zoo.viz import _MARKERS, _MUTED, COLOURS, new_figure, shown, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["attention_figure", "check_figure_path"]

_TITLES = {"inference": "Forward", "train": "Forward and backward"}
# Readable steps of a logarithmic axis.
_TICKS = (0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 4, 6, 10, 15, 20, 30, 50, 100, 200, 500, 1000)
_STEP = 0.08  # Between encodings along the axis of workloads, which are 1 apart.
_SUFFIXES = (".png", ".svg", ".pdf")


def check_figure_path(path: str | os.PathLike[str]) -> None:
    """Checks that a figure can be drawn and written there, before a long measurement.

    Raises:
        ConfigError: If the suffix is no picture format, or the folder does not exist.
        MissingDependencyError: If matplotlib is not installed.
    """
    target = Path(path)
    if target.suffix.lower() not in _SUFFIXES:
        raise ConfigError(f"{target}: write figures as .png, .svg or .pdf")
    if not target.parent.is_dir():
        raise ConfigError(f"{target}: the folder {target.parent} does not exist")
    require("matplotlib.figure", extra="viz")


def attention_figure(result: Mapping[str, Any]) -> Figure:
    """Draws ratios of time: a panel for each step, a line for each encoding, smaller markers for forced kernels.

    Args:
        result: What `zoo.bench.attention.measure` returned.
    """
    rows = result["rows"]
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    encodings = list(dict.fromkeys(row["encoding"] for row in rows))
    steps = [step for step in _TITLES if any(row[step] for row in rows)]
    shown = [row for row in rows if any(row[step] for step in steps)]
    kernels = [name for name in dict.fromkeys(row["kernel"] for row in shown) if name != "auto"]
    colours = {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(encodings)}
    # Its first marker is that of the default kernel.
    markers = {name: _MARKERS[1 + index % (len(_MARKERS) - 1)] for index, name in enumerate(kernels)}
    with style():
        figure = new_figure((1.6 + 4.2 * len(steps), 4.4))
        panels = figure.subplots(1, len(steps), sharey=True, squeeze=False)[0]
        for axes, step in zip(panels, steps, strict=True):
            _panel(axes, shown, step, workloads, colours, markers)
        panels[0].set_ylabel("time / attention without positions")
        handles, labels = _legend(encodings, kernels, colours, markers)
        figure.legend(handles, labels, loc="outside right center", frameon=False)
        ways = {"compiled": result["compiled"], "CUDA graphs": result["graphs"]}
        how = [result["dtype"], *(way for way, used in ways.items() if used)]
        heads = f"{result['heads']} heads of {result['head_dim']}"
        title = f"Attention core, {heads}, {', '.join(how)}\n{result['environment']['device']}"
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure


def _panel(
    axes: Axes,
    rows: list[dict[str, Any]],
    step: str,
    workloads: list[str],
    colours: dict[str, str],
    markers: dict[str, str],
) -> None:
    for index, (encoding, colour) in enumerate(colours.items()):
        shift = _STEP * (index - (len(colours) - 1) / 2)  # Side by side, so that markers do not hide each other.
        for kernel in ("auto", *markers):
            own = [row for row in rows if (row["encoding"], row["kernel"]) == (encoding, kernel) and row[step]]
            for grids in (True, False):  # Packed samples are no larger grid: no line leads there.
                part = [row for row in own if (row["grid"] is not None) == grids]
                places = [workloads.index(row["workload"]) + shift for row in part]
                ratios = [row[step]["ratio"] for row in part]
                if kernel == "auto":
                    axes.plot(places, ratios, color=colour, marker=_MARKERS[0], linewidth=2, markersize=6, zorder=3)
                else:
                    style: dict[str, Any] = {"linestyle": "", "markersize": 5, "markerfacecolor": "none"}
                    axes.plot(places, ratios, color=colour, marker=markers[kernel], zorder=4, **style)
    axes.axhline(1, color=_MUTED, linewidth=1, linestyle=":", zorder=1)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.minorticks_off()
    axes.set_yticks([tick for tick in _TICKS if low <= tick <= high])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylim(low, high)
    axes.set_xticks(range(len(workloads)), workloads)
    axes.set_xlim(-0.5, len(workloads) - 0.5)
    axes.set_xlabel("tokens")
    axes.set_title(_TITLES[step], loc="left")


def _legend(
    encodings: list[str], kernels: list[str], colours: dict[str, str], markers: dict[str, str]
) -> tuple[list[Any], list[str]]:
    line = require("matplotlib.lines", extra="viz").Line2D
    handles = [line([], [], color=colours[name], marker=_MARKERS[0], linewidth=2) for name in encodings]
    hollow = {"color": _MUTED, "linestyle": "", "markerfacecolor": "none"}
    handles += [line([], [], marker=markers[name], **hollow) for name in kernels]
    return handles, [*map(shown, encodings), *(f"forced: {name}" for name in kernels)]
