"""A Gradio Space: classes or boxes of a picture at any size, and the position bias of a patch that is clicked on."""

from __future__ import annotations

import math
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# A Space has the packages beside this file, a checkout two folders up.
sys.path.insert(0, str(HERE if (HERE / "zoo").is_dir() else HERE.parent.parent))
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

import numpy as np  # noqa: E402
import PIL.Image  # noqa: E402
import PIL.ImageDraw  # noqa: E402

from zoo import registry  # noqa: E402
from zoo.cards import card_folder  # noqa: E402
from zoo.detection.results import DetectionResults  # noqa: E402
from zoo.errors import ZooError, require  # noqa: E402
from zoo.reading import read  # noqa: E402
from zoo.results import fit  # noqa: E402
from zoo.site import samples  # noqa: E402
from zoo.site.predictor import Predictor  # noqa: E402

NAMES = [
    name
    for name in registry.list_models(modality="image", weights="embedded")
    if (card_folder(name) / "model.safetensors").is_file()
]
PREDICTOR = Predictor({name: name for name in NAMES})
ABOUT = {about["name"]: about for about in PREDICTOR.models()}
FIRST = "pape-vit-t-imagenette" if "pape-vit-t-imagenette" in NAMES else NAMES[0]

FLOOR = -8.0
"""Biases so far below the largest are drawn alike: e^-8 is a weight of 0.0003."""
TILE = 200  # pixels of a head's map
# Dark blue to grey to yellow: even in brightness, with any colour vision.
COLOURS = np.array([(0, 32, 76), (64, 77, 108), (124, 123, 120), (187, 175, 113), (255, 233, 69)], np.float64)


def predict(name: str, path: str, size: float) -> dict[str, Any]:
    """Predicts a picture.

    Args:
        name: The model.
        path: A file.
        size: Longer side of the input in pixels.

    Returns:
        As `zoo.site.predictor.Predictor.predict`.

    Raises:
        ZooError: If it cannot be done; says why.
    """
    return PREDICTOR.predict(name, Path(path).read_bytes(), filename=path, size=int(size))


def patch_at(answer: dict[str, Any], x: float, y: float) -> tuple[int, int] | None:
    """Row and column of the patch at a place of the picture, `None` where the model does not look.

    Args:
        answer: From `predict`.
        x: In pixels of the picture.
        y: Likewise.
    """
    view, (rows, columns) = answer["view"], answer["grid"]
    row = math.floor((y - view["y1"]) / (view["y2"] - view["y1"]) * rows)
    column = math.floor((x - view["x1"]) / (view["x2"] - view["x1"]) * columns)
    return (row, column) if 0 <= row < rows and 0 <= column < columns else None


def bias(name: str, path: str, size: float, layer: float, patch: tuple[int, int]) -> PIL.Image.Image:
    """Heat maps of the position bias that a patch puts on all others, one for each head.

    Args:
        name: The model.
        path: A file.
        size: As of `predict`.
        layer: From 1.
        patch: Row and column.

    Raises:
        ZooError: If it cannot be done; says why.
    """
    place = {"row": patch[0], "col": patch[1], "layer": int(layer) - 1}
    found = PREDICTOR.bias(name, Path(path).read_bytes(), filename=path, size=int(size), **place)
    rows, columns = found["grid"]
    scale = TILE / max(rows, columns)
    tile = max(1, round(columns * scale)), max(1, round(rows * scale))
    heads = np.array(found["heads"])
    across = min(4, len(heads))
    sheet = PIL.Image.new("RGB", (across * (TILE + 12), math.ceil(len(heads) / across) * (TILE + 32)), "white")
    draw = PIL.ImageDraw.Draw(sheet)
    for number, head in enumerate(heads):
        left, top = number % across * (TILE + 12) + 6, number // across * (TILE + 32) + 6
        draw.text((left, top), f"head {number + 1}: {head.min():.1f} to {head.max():.1f}", fill="black")
        shown = PIL.Image.fromarray(_coloured(head - head.max())).resize(tile, PIL.Image.Resampling.NEAREST)
        sheet.paste(shown, (left, top + 16))
        corner = left + patch[1] * scale, top + 16 + patch[0] * scale
        draw.rectangle((*corner, corner[0] + scale, corner[1] + scale), outline=(213, 94, 0), width=2)
    return sheet


def _coloured(values: np.ndarray) -> np.ndarray:
    """Numbers from `FLOOR` to 0 as uint8 (rows, columns, 3)."""
    share = np.clip(1 - values / FLOOR, 0, 1) * (len(COLOURS) - 1)
    steps = np.arange(len(COLOURS))
    return np.stack([np.interp(share, steps, COLOURS[:, channel]) for channel in range(3)], -1).astype(np.uint8)


def shown(answer: dict[str, Any], path: str) -> tuple[dict[str, float], PIL.Image.Image | None, str]:
    """Scores of classes, of a detector the picture with its boxes, and a line of text.

    Args:
        answer: From `predict`.
        path: Of the picture.
    """
    scores = {one["label"]: one["score"] for one in answer["classes"]}
    text = f"{answer['size']} px in {answer['milliseconds']:.0f} ms"
    drawn = None
    if answer["kind"] == "boxes":
        text += f": {len(answer['boxes'])} found"
        drawn = _with_boxes(answer, path)
    return scores, drawn, f"{text}; {answer['note']}" if answer["note"] else text


def _with_boxes(answer: dict[str, Any], path: str) -> PIL.Image.Image:
    found, names = answer["boxes"], registry.entry(answer["model"]).config["labels"]
    results = DetectionResults(
        name="picture",
        path=None,
        boxes=tuple((box["x1"], box["y1"], box["x2"], box["y2"]) for box in found),
        indices=tuple(names.index(box["label"]) for box in found),
        labels=tuple(box["label"] for box in found),
        scores=tuple(box["score"] for box in found),
        size=(answer["height"], answer["width"]),
    )
    return results.draw_on(fit(read(path, kind="image").to_pil()))


def layers_of(name: str) -> int:
    """How many layers a model has."""
    return int(registry.entry(name).config["model"]["depth"])


def build() -> Any:
    """The page.

    Raises:
        MissingDependencyError: If gradio is not installed.
    """
    gr = require("gradio", "space")

    def run(name: str, path: str | None, size: float) -> tuple[Any, ...]:
        if path is None:
            return gr.update(value=None), gr.update(value=None), "", None
        try:
            answer = predict(name, path, size)
            scores, boxed, text = shown(answer, path)
        except ZooError as error:
            raise gr.Error(str(error)) from error
        detects = answer["kind"] == "boxes"
        return gr.update(value=scores, visible=not detects), gr.update(value=boxed, visible=detects), text, answer

    def chosen(name: str) -> tuple[Any, Any]:
        sizes, layers = ABOUT[name]["sizes"], layers_of(name)
        patch = int(registry.entry(name).config["model"]["patch_size"])
        size = gr.update(minimum=sizes[0], maximum=sizes[-1], step=patch, value=ABOUT[name]["default_size"])
        return size, gr.update(maximum=layers, value=1)

    def drawn(
        name: str, path: str | None, size: float, layer: float, patch: tuple[int, int] | None
    ) -> PIL.Image.Image | None:
        if path is None or patch is None:
            return None
        try:
            return bias(name, path, size, layer, (int(patch[0]), int(patch[1])))
        except ZooError as error:
            raise gr.Error(str(error)) from error

    def clicked(answer: dict[str, Any] | None, event: Any) -> tuple[int, int] | None:
        patch = None if answer is None else patch_at(answer, *event.index)
        if patch is None:
            raise gr.Error("the model does not look there" if answer else "give a picture first")
        return patch

    clicked.__annotations__["event"] = gr.SelectData  # How gradio knows what to pass.
    about = ABOUT[FIRST]
    with gr.Blocks(title="pape-zoo") as page:
        gr.Markdown("# pape-zoo\nGive a picture, move the size, click on a patch of the picture.")
        answer, patch = gr.State(None), gr.State(None)
        with gr.Row():
            with gr.Column():
                name = gr.Dropdown(NAMES, value=FIRST, label="Model")
                picture = gr.Image(type="filepath", sources=["upload", "clipboard"], label="Picture")
                size = gr.Slider(
                    about["sizes"][0],
                    about["sizes"][-1],
                    about["default_size"],
                    step=int(registry.entry(FIRST).config["model"]["patch_size"]),
                    label="Longer side in pixels",
                )
                layer = gr.Slider(1, layers_of(FIRST), 1, step=1, label="Layer of the bias")
            with gr.Column():
                classes = gr.Label(label="Classes")
                boxes = gr.Image(label="Boxes", visible=False, interactive=False)
                text = gr.Markdown()
                gr.Markdown("Position bias that the clicked patch puts on all others, in logits")
                heat = gr.Image(show_label=False, interactive=False)
        gr.Examples([[example()]], [picture], label="A drawn blood smear, for the detector")
        asked = {"fn": run, "inputs": [name, picture, size], "outputs": [classes, boxes, text, answer]}
        maps = {"fn": drawn, "inputs": [name, picture, size, layer, patch], "outputs": [heat]}
        # A patch counts for one picture, size and model.
        name.change(chosen, [name], [size, layer]).then(lambda: None, None, patch).then(**asked).then(**maps)
        picture.change(lambda: None, None, patch).then(**asked).then(**maps)
        size.release(lambda: None, None, patch).then(**asked).then(**maps)
        layer.release(**maps)
        picture.select(clicked, [answer], [patch]).then(**maps)
    return page


def example() -> str:
    """A file with a drawn picture."""
    path = Path(tempfile.mkdtemp(prefix="pape-zoo-")) / "cells.png"
    path.write_bytes(samples.sample("cells.png"))
    return str(path)


if __name__ == "__main__":
    build().launch()
