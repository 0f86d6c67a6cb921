"""Figures of what a position encoding does: accuracy against input size, and the bias a query puts on the grid.

Functions return matplotlib figures (`save` writes them). matplotlib is an optional dependency (`pape-zoo[viz]`).
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.curves import Curve
from zoo.errors import ConfigError, DataError, require
from zoo.files import write_whole

if TYPE_CHECKING:
    import numpy as np
    import torch
    from matplotlib.figure import Figure

__all__ = [
    "COLOURS",
    "INK",
    "add_legend",
    "bias",
    "draw_curve",
    "extrapolation",
    "mark_trained",
    "model_input",
    "new_figure",
    "parse_query",
    "position_bias",
    "save",
    "shown",
    "style",
]

# Okabe and Ito's colours, told apart with any colour vision; markers tell the curves apart in grey print as well.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK, _MUTED = "#222222", "#767676"
_DISPLAY = {
    "pape": "PaPE",
    "pape-ri": "PaPE-RI",
    "rope": "RoPE",
    "rope-mixed": "RoPE-Mixed",
    "pope": "PoPE",
    "alibi": "ALiBi",
    "lookhere": "LookHere",
    "none": "no position",
}
_STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _MUTED,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.grid": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "text.parse_math": False,  # A $ in the name of a model or folder is a $.
}


def extrapolation(models: Sequence[Curve], *, trained_size: int | None = None, title: str | None = None) -> Figure:
    """Draws top-1 accuracy against input size, one line per model.

    Args:
        models: What `zoo.curves.read_curves` returned.
        trained_size: Size in pixels to mark as the one trained at.
        title: Heading; by default the name of the model where there is only one.

    Raises:
        DataError: If there is no curve.
    """
    if not models:
        raise DataError("nothing to draw: no curve was given")
    labels, shared = _short_labels([curve.name for curve in models])
    with style():
        figure = new_figure((6.4, 4.0))
        axes = figure.subplots()
        for index, (curve, label) in enumerate(zip(models, labels, strict=True)):
            draw_curve(axes, curve.points, label, index, len(models))
        ticks = sorted({size for curve in models for size in curve.points})
        axes.set_xticks(ticks)
        axes.set_xlabel("side of the square input (pixels)")
        axes.set_ylabel("top-1 accuracy (%)")
        low = min(top1 for curve in models for top1 in curve.points.values())
        axes.set_ylim(max(0.0, 10 * math.floor(low / 10 - 0.5)), 100)
        if trained_size is not None:
            mark_trained(axes, trained_size, f"trained at {trained_size} px")
        if len(models) > 1:
            add_legend(figure, labels, shared)
        axes.set_title(title or (labels[0] if len(models) == 1 else ""), loc="left", color=INK)
    return figure


def draw_curve(axes: Any, points: Mapping[int, float], label: str, index: int, count: int) -> None:
    """Draws the line of one model.

    Args:
        axes: Of matplotlib.
        points: Size -> value.
        label: For the legend.
        index: Which line this is, from 0.
        count: How many there will be.
    """
    axes.plot(
        list(points),
        list(points.values()),
        label=label,
        color=COLOURS[index % len(COLOURS)],
        marker=_MARKERS[index % len(_MARKERS)],
        linestyle="-" if index < len(COLOURS) else "--",
        linewidth=2,
        markersize=6,
        markeredgecolor="white",
        markeredgewidth=0.8,
        clip_on=False,
        zorder=3 + count - index,  # The first model is the one to see.
    )


def mark_trained(axes: Any, size: int, text: str) -> None:
    """Draws an upright line at the size of training."""
    axes.axvline(size, color=_MUTED, linewidth=1, linestyle=":", zorder=1)
    axes.annotate(
        text,
        (size, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(4, -4),
        textcoords="offset points",
        va="top",
        color=_MUTED,
        fontsize=9,
    )


def add_legend(figure: Figure, labels: Sequence[str], title: str | None = None) -> None:
    """Adds a legend beside the plot; long names go below, where they cannot squeeze it."""
    if max(map(len, labels)) > 20:
        figure.legend(loc="outside lower left", ncols=2, frameon=False, title=title, alignment="left")
    else:
        figure.legend(loc="outside right upper", frameon=False, title=title, alignment="left")


def _short_labels(names: list[str]) -> tuple[list[str], str | None]:
    """Splits off the end that all names share: pape-vit-t-imagenette, rope-vit-t-imagenette -> PaPE, RoPE.

    A note in brackets behind a name stays with it.
    """
    bare, notes = zip(*(name.partition(" (")[::2] for name in names), strict=True)
    parts = [name.split("-") for name in bare]
    common = 0
    while len(set(bare)) > 1 and all(len(p) > common + 1 and p[-1 - common] == parts[0][-1 - common] for p in parts):
        common += 1
    if not common:
        return [shown(name) for name in names], None
    short = ["-".join(p[:-common]) for p in parts]
    labels = [shown(name) + (f" ({note}" if note else "") for name, note in zip(short, notes, strict=True)]
    return labels, "-".join(parts[0][-common:])


def shown(name: str) -> str:
    """A name as figures have it: `rope with yarn` -> `RoPE with yarn`."""
    encoding, link, rest = name.partition(" with ")
    return _DISPLAY.get(encoding, encoding) + link + rest


def style() -> Any:
    """A context manager in which figures look alike."""
    return require("matplotlib", extra="viz").rc_context(_STYLE)


def new_figure(inches: tuple[float, float]) -> Figure:
    """An empty figure of so many inches across and down."""
    # A figure of its own, not pyplot's: no window, no global state.
    figure: Figure = require("matplotlib.figure", extra="viz").Figure(figsize=inches, layout="constrained", dpi=150)
    return figure


def save(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Writes a figure; the suffix chooses the format (PNG, SVG, PDF). Nothing half-written is left behind.

    Raises:
        ConfigError: If the suffix is no picture format or the folder does not exist.
    """
    target = Path(path)
    kind = target.suffix.lower().lstrip(".")
    if kind not in figure.canvas.get_supported_filetypes():
        raise ConfigError(f"{target}: write figures as .png, .svg or .pdf")
    if not target.parent.is_dir():
        raise ConfigError(f"{target}: the folder {target.parent} does not exist")
    drawn = io.BytesIO()
    figure.savefig(drawn, format=kind, facecolor="white")
    try:
        write_whole(target, drawn.getvalue())
    except OSError as error:
        raise ConfigError(f"{target}: cannot be written ({error.strerror or error})") from error
    return target


def parse_query(text: str) -> tuple[int, int]:
    """Reads `"ROW,COLUMN"`, both counted from 0.

    Raises:
        ConfigError: If it is not two whole numbers.
    """
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        raise ConfigError(f"a query is ROW,COLUMN counted from 0, such as 6,7; got {text!r}")
    return int(parts[0]), int(parts[1])


def model_input(model: Any, image: str | os.PathLike[str] | None = None, *, size: int | None = None) -> torch.Tensor:
    """Makes the input of an image model from a picture, or from a mid-grey one.

    Args:
        model: An image model with a `data_config`.
        image: What `zoo.read` takes; `None` means a blank picture.
        size: Side of the square input in pixels; by default that of the model.

    Returns:
        float32 (1, C, H, W).

    Raises:
        ConfigError: If it is no image model.
    """
    import numpy as np

    import zoo
    from modalities.image.transforms import preprocess

    config = getattr(model, "config", None) or {}
    if config.get("modality", "image") != "image":
        raise ConfigError(f"{config.get('name')}: this draws image models, not models of {config['modality']}")
    rgb = np.full((32, 32, 3), 128, dtype=np.uint8) if image is None else zoo.read(image, kind="image").rgb
    return preprocess(rgb, model.data_config, size).unsqueeze(0)


def position_bias(model: Any, images: torch.Tensor, *, query: tuple[int, int] | None = None) -> np.ndarray:
    """The position term that one patch, as a query, adds to the logits of all patches.

    Args:
        model: An image model of coordinate-aware attention.
        images: float (1, C, H, W); the bias of content-aware encodings depends on it.
        query: Patch as (row, column) from 0; by default the middle of the grid.

    Returns:
        float (layers, heads, rows, columns), as the softmax sees it (scale included).

    Raises:
        ConfigError: If the encoding adds no such term (rotary ones turn q and k instead), or the query lies outside.
    """
    import torch

    from zoo.attention import CoordinateAttention

    rows, columns = model.embed.grid_size(*images.shape[-2:])
    row, column = query or (rows // 2, columns // 2)
    if not (0 <= row < rows and 0 <= column < columns):
        raise ConfigError(f"query {row},{column} lies outside the grid of {rows} rows and {columns} columns")
    maps: list[torch.Tensor] = []

    def collect(attention: CoordinateAttention, arguments: tuple[Any, ...]) -> None:
        features, coords = arguments[:2]
        prefix = features.shape[1] - rows * columns  # Class and register tokens come first.
        index = prefix + row * columns + column
        logits = attention.position_bias(features, coords, slice(index, index + 1))
        if logits is None:
            name = model.config["model"]["encoding"]
            raise ConfigError(f"encoding {name!r} adds no position bias to the logits, as alibi, pape and others do")
        maps.append(logits[0, :, 0, prefix:].unflatten(-1, (rows, columns)).double().cpu())

    layers = [module for module in model.modules() if isinstance(module, CoordinateAttention)]
    hooks = [layer.register_forward_pre_hook(collect) for layer in layers]
    try:
        with torch.inference_mode():
            model(images)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack(maps).numpy()


def bias(
    values: np.ndarray, *, query: tuple[int, int] | None = None, title: str | None = None, floor: float = -8.0
) -> Figure:
    """Draws the position bias of one query over the grid: layers down, heads across.

    The softmax does not change when a row of logits is shifted, so each map is drawn relative to its maximum.

    Args:
        values: (layers, heads, rows, columns) from `position_bias`.
        query: The patch that was the query, to mark; by default the middle.
        title: Heading.
        floor: Values below are drawn alike; e^-8 is a weight of 0.0003.
    """
    layers, heads, rows, columns = values.shape
    row, column = query or (rows // 2, columns // 2)
    relative = values - values.max(axis=(2, 3), keepdims=True)
    with style():
        figure = new_figure((1.2 + 1.1 * heads, 1.0 + 1.1 * layers * rows / columns))
        panels = figure.subplots(layers, heads, squeeze=False, sharex=True, sharey=True)
        for layer in range(layers):
            for head in range(heads):
                axes = panels[layer][head]
                drawn = axes.imshow(relative[layer, head], cmap="cividis", vmin=floor, vmax=0.0)
                axes.plot(column, row, marker="s", markersize=4, markerfacecolor="none", markeredgecolor="#D55E00")
                axes.grid(False)
                axes.set_xticks([0, columns - 1])
                axes.set_yticks([0, rows - 1])
                axes.tick_params(labelsize=7, length=2)
            panels[layer][0].set_ylabel(f"layer {layer + 1}", fontsize=9)
        for head in range(heads):
            panels[0][head].set_title(f"head {head + 1}", fontsize=9)
        figure.supxlabel("key column (patches)", fontsize=9)
        figure.supylabel("key row (patches)", fontsize=9)
        bar = figure.colorbar(drawn, ax=panels, extend="min", shrink=min(1.0, 3 / layers), aspect=25)
        bar.set_label("position bias, relative to the maximum (logits)", fontsize=9)
        if title:
            figure.suptitle(title, fontsize=11, color=INK)
    return figure
