"""The layout of key frames on a picture: cameras with boxes, the bird's-eye view with lidar points, a legend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from modalities.driving.boxes import Boxes3D
from modalities.driving.geometry import EDGES, project_segments, transform_points
from modalities.driving.nuscenes.classes import DETECTION_CLASSES
from modalities.driving.scene import Camera, Sample
from zoo.detection.results import class_colour
from zoo.errors import ConfigError, DataError
from zoo.results import one_line

if TYPE_CHECKING:
    import PIL.Image
    import PIL.ImageDraw
    import PIL.ImageFont

__all__ = ["OTHER", "REACH", "Layer", "SceneSheet"]

REACH = 54.0
"""Metres from the car to the edge of the bird's-eye view."""

OTHER = (128, 128, 128)
"""Colour of boxes of no class."""

_PANEL, _LEAST_VIEW, _GAP = 640, 640, 4  # pixels: width of a camera, side of the bird's-eye view
# Left to right as one looks from the car, ahead and behind.
_ROWS = (
    ("CAM_FRONT_LEFT", "CAM_FRONT", "CAM_FRONT_RIGHT"),
    ("CAM_BACK_LEFT", "CAM_BACK", "CAM_BACK_RIGHT"),
)
_FRONT = [[4, 3], [7, 0]]  # Diagonals of the face in front, so that one sees where a box is heading.
_RING = 20  # metres between circles around the car
_ARROW_S, _SLOW = 1.0, 0.5  # an arrow is as long as what moves goes in this time; slower ones (m/s) have none
_LOW, _HIGH = np.array([196.0, 205, 214]), np.array([58.0, 78, 104])  # colours of points on the ground and above it
_TOP = 3.0  # metres at which points have the colour of high ones


@dataclass(frozen=True, eq=False)
class Layer:
    """Boxes to draw, in the ego frame.

    Attributes:
        boxes: M boxes; a label beyond the names is of no class.
        class_names: Names of labels 0, 1, ...
        title: What they are, for the legend.
        colour: Of all of them, with a black rim, which shows on any ground; by default each has that of its class.
        width: Of lines, in pixels.
    """

    boxes: Boxes3D
    class_names: Sequence[str]
    title: str
    colour: tuple[int, int, int] | None = None
    width: int = 2

    def strokes(self) -> list[tuple[list[tuple[int, int, int]], int]]:
        """Colours of the boxes and width of lines, of what is drawn one over the other."""
        own = [self.colour or self.colour_of(label) for label in self.boxes.label.tolist()], self.width
        return [own] if self.colour is None else [([(0, 0, 0)] * len(self.boxes), self.width + 2), own]

    def colour_of(self, label: int) -> tuple[int, int, int]:
        """Colour of a class: one that nuScenes knows has the same whatever its label is in a model."""
        if not 0 <= label < len(self.class_names):
            return OTHER
        name = self.class_names[label]
        known = name in DETECTION_CLASSES
        return class_colour(DETECTION_CLASSES.index(name) if known else len(DETECTION_CLASSES) + label)

    def counts(self) -> list[tuple[str, tuple[int, int, int], int]]:
        """Name, colour and number of boxes of each class that occurs, in the order of the classes."""
        labels = self.boxes.label.tolist()
        known = [label for label in range(len(self.class_names)) if label in labels]
        found = [(str(self.class_names[k]), self.colour or self.colour_of(k), labels.count(k)) for k in known]
        rest = len(labels) - sum(number for _, _, number in found)
        return found + ([("other", self.colour or OTHER, rest)] if rest else [])


class _Panel:
    """Where a camera is on the sheet."""

    def __init__(self, camera: Camera, size: tuple[int, int], picture: PIL.Image.Image | None) -> None:
        self.camera, self.size, self.picture = camera, size, picture
        self.scale = _PANEL / size[1]
        self.height = max(1, round(size[0] * self.scale))
        self.left = self.top = 0


class SceneSheet:
    """The layout of a key frame on one picture: cameras in rows, beside them the bird's-eye view, below a legend.

    The legend is below the cameras where it has room there, else below all.

    Args:
        sample: The key frame; its pictures are read.
        reach: Metres from the car to the edge of the bird's-eye view, in which x (forward) is up and y is left.
        keep: A picture that cannot be decoded leaves its panel empty, instead of an error.

    Raises:
        ConfigError: If the reach cannot be used.
        DataError: If a picture is damaged.
    """

    def __init__(self, sample: Sample, reach: float = REACH, *, keep: bool = False) -> None:
        if not 1 <= reach <= 1000:
            raise ConfigError(f"a bird's-eye view reaches 1 to 1000 metres, not {reach!r:.40}")
        self.sample, self.reach = sample, float(reach)
        panels = {camera.name: _panel(camera, keep) for camera in sample.cameras}
        rows = [[panels[name] for name in row if name in panels] for row in _ROWS]
        rest = [panel for name, panel in panels.items() if not any(name in row for row in _ROWS)]
        rows += [rest[start : start + 3] for start in range(0, len(rest), 3)]
        self.panels, top = list(panels.values()), 0
        for row in rows:
            for column, panel in enumerate(row):
                panel.left, panel.top = column * (_PANEL + _GAP), top
            top += max((panel.height + _GAP for panel in row), default=0)
        columns = max((len(row) for row in rows), default=0)
        self.view_left = columns * (_PANEL + _GAP)
        self.cameras = max(0, top - _GAP)
        self.view = max(_LEAST_VIEW, self.cameras)
        self.text = max(13, self.view // 48)
        self.line = round(1.6 * self.text)
        self.width = self.view_left + self.view

    def paint(self, layers: Sequence[Layer] = (), title: str | None = None) -> PIL.Image.Image:
        """Draws the key frame, boxes and a legend.

        Args:
            layers: Boxes; later ones are drawn over earlier ones.
            title: Heading of the legend; by default the token and the scene.
        """
        from PIL import Image, ImageDraw, ImageFont

        entries = self._entries(layers, title)
        font = ImageFont.load_default(self.text)
        legend = self.line * (len(entries) + 1)
        fits = self.cameras + legend <= self.view and self._widest(entries, font) <= self.view_left
        top = self.cameras if fits else self.view
        sheet = Image.new("RGB", (self.width, max(self.view, top + legend)), "white")
        draw = ImageDraw.Draw(sheet)
        for panel in self.panels:
            box = (panel.left, panel.top, panel.left + _PANEL - 1, panel.top + panel.height - 1)
            if panel.picture is None:
                draw.rectangle(box, fill=(60, 60, 60))
            else:
                sheet.paste(panel.picture, box[:2])
        sheet.paste(self._view(), (self.view_left, 0))
        self.draw(sheet, layers)
        for panel in self.panels:
            absent = "" if panel.picture is not None else ": no picture"
            _tag(draw, (panel.left, panel.top), f"{one_line(panel.camera.name)}{absent}", font)
        if self.sample.points is None:
            _tag(draw, (self.view_left, 0), "no lidar", font)
        for row, entry in enumerate(entries):
            self._write(draw, top + self.line // 2 + row * self.line, entry, font)
        return sheet

    def draw(self, sheet: PIL.Image.Image, layers: Sequence[Layer]) -> None:
        """Draws boxes on a sheet, in place.

        Raises:
            DataError: If it is smaller than a sheet of this key frame.
        """
        if sheet.width < self.width or sheet.height < self.view:
            raise DataError(
                f"a sheet of {self.sample.token} has at least {self.width} x {self.view} pixels, this one "
                f"{sheet.width} x {sheet.height}"
            )
        for layer in layers:
            boxes = layer.boxes.to("cpu", torch.float64)
            corners = boxes.corners()
            lines = torch.cat([corners[:, EDGES], corners[:, _FRONT]], 1)
            for colours, width in layer.strokes():
                for panel in self.panels:
                    if panel.picture is not None:
                        _draw_camera(sheet, panel, lines, boxes.centre, colours, width)
                self._draw_view(sheet, boxes, colours, width)

    def pixels(self, xy: np.ndarray) -> np.ndarray:
        """Pixels (..., 2), column and row in the bird's-eye view, of places (..., 2) in the ego frame."""
        scale = self.view / (2 * self.reach)
        return np.stack([(self.reach - xy[..., 1]) * scale, (self.reach - xy[..., 0]) * scale], -1) - 0.5

    def _view(self) -> PIL.Image.Image:
        """The bird's-eye view without boxes: lidar points, darker the higher, circles around the car, and the car."""
        from PIL import Image, ImageDraw, ImageFont

        pixels = np.full((self.view, self.view, 3), 255, np.uint8)
        if self.sample.points is not None and len(self.sample.points):
            points = self.sample.points[np.argsort(self.sample.points[:, 2], kind="stable")]  # High ones on top.
            places = np.round(self.pixels(points[:, :2].astype(np.float64)))
            inside = ((places >= 0) & (places < self.view)).all(1)
            column, row = places[inside].astype(np.int64).T
            share = np.clip(points[inside, 2:3] / _TOP, 0, 1)
            pixels[row, column] = np.round(_LOW + share * (_HIGH - _LOW)).astype(np.uint8)
        view = Image.fromarray(pixels)
        draw = ImageDraw.Draw(view)
        font = ImageFont.load_default(self.text)
        for radius in range(_RING, math.ceil(self.reach), _RING):
            left, top = self.pixels(np.array([radius, radius]))
            right, bottom = self.pixels(np.array([-radius, -radius]))
            draw.ellipse((left, top, right, bottom), outline=(214, 214, 214))
        for radius in range(_RING, math.ceil(self.reach), _RING):  # Aside of the road, where most boxes are.
            column, row = self.pixels(radius * np.array([-1, -1]) / math.sqrt(2)).tolist()
            draw.text(
                (column, row),
                f"{radius} m",
                fill=(90, 90, 90),
                font=font,
                anchor="mm",
                stroke_width=3,
                stroke_fill="white",
            )
        car = self.pixels(np.array([[3.8, 0.0], [-0.9, 0.9], [-0.9, -0.9]]))
        draw.polygon([tuple(corner) for corner in car.tolist()], fill=(30, 30, 30))
        return view

    def _draw_view(
        self, sheet: PIL.Image.Image, boxes: Boxes3D, colours: Sequence[tuple[int, int, int]], width: int
    ) -> None:
        from PIL import ImageDraw

        square = sheet.crop((self.view_left, 0, self.view_left + self.view, self.view))
        draw = ImageDraw.Draw(square)
        corners = boxes.corners()[:, :4, :2].numpy()
        middle = boxes.centre[:, :2].numpy()
        front = corners[:, [0, 3]].mean(1)
        velocity = boxes.velocity.numpy()
        for row, colour in enumerate(colours):
            ring = self.pixels(corners[row])
            if (ring.max(0) < 0).any() or (ring.min(0) > self.view).any():
                continue
            draw.polygon([tuple(corner) for corner in ring.tolist()], outline=colour, width=width)
            _line(draw, self.pixels(np.stack([middle[row], front[row]])), colour, width)
            if math.hypot(*velocity[row]) > _SLOW:  # Not where it is NaN: unknown.
                ends = np.stack([front[row], front[row] + _ARROW_S * velocity[row]])
                _line(draw, self.pixels(ends), colour, max(1, width // 2))
        sheet.paste(square, (self.view_left, 0))

    def _entries(
        self, layers: Sequence[Layer], title: str | None
    ) -> list[list[tuple[str, tuple[int, int, int] | None]]]:
        """Lines of the legend: pieces of text, each with a colour that it explains or none."""
        scene = f", {one_line(self.sample.scene)}" if self.sample.scene else ""
        entries: list[list[tuple[str, tuple[int, int, int] | None]]] = [
            [(one_line(title or f"sample {self.sample.token}{scene}"), None)]
        ]
        for layer in layers:
            counts: list[tuple[str, tuple[int, int, int] | None]] = [
                (f"{one_line(name)[:40]} {number}", colour) for name, colour, number in layer.counts()
            ]
            entries.append([(f"{one_line(layer.title)}:", None), *(counts or [("none", None)])])
        return entries

    def _widest(
        self,
        entries: Sequence[Sequence[tuple[str, tuple[int, int, int] | None]]],
        font: PIL.ImageFont.FreeTypeFont | PIL.ImageFont.ImageFont,
    ) -> int:
        """Pixels that the longest line of the legend takes."""
        marks = 2 * (self.text // 2) + self.text // 2
        lengths = [
            sum(math.ceil(font.getlength(text)) + self.text + (marks if colour else 0) for text, colour in entry)
            for entry in entries
        ]
        return self.text + max(lengths, default=0)

    def _write(
        self,
        draw: PIL.ImageDraw.ImageDraw,
        top: int,
        entry: Sequence[tuple[str, tuple[int, int, int] | None]],
        font: PIL.ImageFont.FreeTypeFont | PIL.ImageFont.ImageFont,
    ) -> None:
        left, middle = self.text, top + self.line // 2
        for text, colour in entry:
            if colour is not None:
                half = self.text // 2
                draw.rectangle((left, middle - half, left + 2 * half, middle + half), fill=colour, outline="black")
                left += 2 * half + self.text // 2
            draw.text((left, middle), text, fill="black", font=font, anchor="lm")
            left += math.ceil(draw.textlength(text, font)) + self.text


def _panel(camera: Camera, keep: bool) -> _Panel:
    from PIL import Image

    if camera.image is not None:
        try:
            rgb = camera.read()
        except DataError:
            if not keep:
                raise
        else:
            panel = _Panel(camera, (rgb.shape[0], rgb.shape[1]), None)
            panel.picture = Image.fromarray(rgb).resize((_PANEL, panel.height))
            return panel
    return _Panel(camera, camera.size or (9, 16), None)


def _draw_camera(
    sheet: PIL.Image.Image,
    panel: _Panel,
    lines: torch.Tensor,
    centres: torch.Tensor,
    colours: Sequence[tuple[int, int, int]],
    width: int,
) -> None:
    """Draws the edges of boxes, (M, E, 2, 3) lines in the ego frame, over the picture of a camera; near ones on top."""
    from PIL import ImageDraw

    pose = torch.from_numpy(panel.camera.camera_from_ego)
    pixels, front = project_segments(lines, pose, torch.from_numpy(panel.camera.intrinsics))
    ends = ((pixels + 0.5) * panel.scale - 0.5).numpy()
    size = (_PANEL, panel.height)
    shown, ends = _clip(ends, size)
    shown &= front.numpy()
    region = sheet.crop((panel.left, panel.top, panel.left + _PANEL, panel.top + panel.height))
    draw = ImageDraw.Draw(region)
    distance = transform_points(centres, pose).norm(dim=1).numpy()
    for row in np.argsort(-distance, kind="stable").tolist():
        for edge in np.flatnonzero(shown[row]).tolist():
            _line(draw, ends[row, edge], colours[row], width)
    sheet.paste(region, (panel.left, panel.top))


def _clip(ends: np.ndarray, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Cuts lines (..., 2, 2) at the edges of a picture (width, height), so that no coordinate is beyond drawing.

    Returns:
        (...) bool, True where something is left, and the ends.
    """
    start, step = ends[..., 0, :], ends[..., 1, :] - ends[..., 0, :]
    low, high = np.zeros(ends.shape[:-2]), np.ones(ends.shape[:-2])
    for axis, most in enumerate(size):
        with np.errstate(divide="ignore", invalid="ignore"):
            first, last = (-1 - start[..., axis]) / step[..., axis], (most - start[..., axis]) / step[..., axis]
        inside = (start[..., axis] >= -1) & (start[..., axis] <= most)
        flat = step[..., axis] == 0  # Along an edge: all or nothing.
        low = np.where(flat, np.where(inside, low, 2.0), np.maximum(low, np.fmin(first, last)))
        high = np.where(flat, high, np.minimum(high, np.fmax(first, last)))
    cut = np.stack([start + low[..., None] * step, start + high[..., None] * step], -2)
    return low <= high, cut


def _line(draw: PIL.ImageDraw.ImageDraw, ends: np.ndarray, colour: tuple[int, int, int], width: int) -> None:
    (x1, y1), (x2, y2) = ends.tolist()
    draw.line((x1, y1, x2, y2), fill=colour, width=width)


def _tag(
    draw: PIL.ImageDraw.ImageDraw,
    corner: tuple[int, int],
    text: str,
    font: PIL.ImageFont.FreeTypeFont | PIL.ImageFont.ImageFont,
) -> None:
    """Text on a dark ground, so that it can be read on any picture."""
    left, top, right, bottom = draw.textbbox((corner[0] + 4, corner[1] + 4), text, font)
    draw.rectangle((left - 4, top - 4, right + 4, bottom + 4), fill=(0, 0, 0))
    draw.text((corner[0] + 4, corner[1] + 4), text, fill="white", font=font)
