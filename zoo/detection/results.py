"""What detections look like to users: one object per picture, with ways to print, plot, save and tabulate it."""

from __future__ import annotations

import colorsys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from zoo.errors import DataError
from zoo.results import Picture, PictureResults, one_line

if TYPE_CHECKING:
    import PIL.Image

__all__ = ["Box", "DetectionResults", "class_colour", "to_coco"]

Box = tuple[float, float, float, float]


@dataclass(frozen=True, eq=False)
class DetectionResults(PictureResults):
    """The objects found in one picture, best first; there may be none.

    Attributes:
        name: The source, as it was given.
        path: The file, if it came from one.
        boxes: (x1, y1, x2, y2) of each, in pixels of the picture.
        indices: Class indices.
        labels: Class names; the index as text where the model has no names.
        scores: In 0..1.
        size: (height, width) of the picture in pixels.
        truncated: True when only a part of the file could be decoded.
        time_us: Of a recording: when the events seen start and end, in microseconds of its clock.
    """

    name: str
    path: Path | None
    boxes: tuple[Box, ...]
    indices: tuple[int, ...]
    labels: tuple[str, ...]
    scores: tuple[float, ...]
    size: tuple[int, int]
    truncated: bool = False
    _picture: Callable[[], Picture] | None = field(default=None, repr=False)
    time_us: tuple[int, int] | None = None

    COLUMNS: ClassVar[tuple[str, ...]] = ("source", "rank", "x1", "y1", "x2", "y2", "score", "index", "label")

    def __len__(self) -> int:
        return len(self.boxes)

    def __str__(self) -> str:
        labels = [one_line(label) for label in self.labels]
        column = max(map(len, labels), default=0)
        lines = [self._heading() if labels else f"{self._heading()}: nothing found"]
        for label, score, box in zip(labels, self.scores, self.boxes, strict=True):
            corners = ", ".join(f"{value:.0f}" for value in box)
            lines.append(f"  {100 * score:5.1f} %  {label:<{column}}  ({corners})")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values: source, path, width, height, truncated and the list of detections."""
        return self._about() | {
            "detections": [
                {"box": list(box), "score": score, "index": index, "label": label}
                for box, score, index, label in zip(self.boxes, self.scores, self.indices, self.labels, strict=True)
            ]
        }

    def rows(self) -> list[tuple[Any, ...]]:
        """Returns a tuple of `columns` for each box, the rows of `to_pandas` and of `--csv`."""
        found = zip(self.boxes, self.scores, self.indices, self.labels, strict=True)
        return [
            (self.name, rank, *box, score, index, label, *(self.time_us or ()))
            for rank, (box, score, index, label) in enumerate(found, 1)
        ]

    def draw_on(self, picture: PIL.Image.Image) -> PIL.Image.Image:
        """Returns a copy of the picture, which may be an enlarged one, with boxes, labels and scores."""
        return _draw(picture, self)


def to_coco(
    results: Iterable[DetectionResults],
    image_ids: Sequence[int] | None = None,
    categories: Sequence[int] | None = None,
) -> list[dict[str, Any]]:
    """Results in the form of COCO's results files, ready for `json.dump`.

    Args:
        results: Of several pictures, or windows of a recording: each is an image.
        image_ids: The `id` of each picture in the annotations; by default 0, 1, ...
        categories: The category id of each class index; by default the index itself, as in models whose classes are the
            raw category ids.

    Returns:
        One dict a box: image_id, category_id, bbox (x, y, width, height) and score; of recordings also start_us and
        end_us, which readers of the format pass over.

    Raises:
        DataError: If there are not as many `image_ids` as results, or a class has no category.
    """
    results = list(results)
    ids = range(len(results)) if image_ids is None else image_ids
    if len(ids) != len(results):
        raise DataError(f"{len(ids)} image_ids for {len(results)} results")
    found = []
    for image_id, result in zip(ids, results, strict=True):
        for (x1, y1, x2, y2), score, index in zip(result.boxes, result.scores, result.indices, strict=True):
            if categories is not None and index >= len(categories):
                raise DataError(f"{result.name}: class {index} has no category: {len(categories)} are given")
            category = index if categories is None else categories[index]
            box = {"image_id": image_id, "category_id": category, "bbox": [x1, y1, x2 - x1, y2 - y1], "score": score}
            found.append(box | result.times())
    return found


def class_colour(index: int) -> tuple[int, int, int]:
    """A colour for a class: steps of the golden ratio around the hues, so that neighbours differ."""
    red, green, blue = colorsys.hsv_to_rgb(index * 0.618034 % 1, 0.85, 0.85)
    return round(255 * red), round(255 * green), round(255 * blue)


def _draw(picture: PIL.Image.Image, results: DetectionResults) -> PIL.Image.Image:
    from PIL import ImageDraw, ImageFont

    drawn = picture.convert("RGB")  # A copy, whatever the picture's mode.
    across, down = drawn.width / results.size[1], drawn.height / results.size[0]
    draw = ImageDraw.Draw(drawn)
    line, text_size = max(2, max(drawn.size) // 320), max(12, max(drawn.size) // 64)
    font = ImageFont.load_default(text_size)
    found = list(zip(results.boxes, results.indices, results.labels, results.scores, strict=True))
    for (x1, y1, x2, y2), index, label, score in reversed(found):  # The best on top.
        colour = class_colour(index)
        left, top, right, bottom = (round(v) for v in (x1 * across, y1 * down, x2 * across, y2 * down))
        right, bottom = max(right - 1, left), max(bottom - 1, top)
        draw.rectangle((left, top, right, bottom), outline=colour, width=line)
        text = f"{one_line(label)[:40]} {100 * score:.0f} %"
        width, height = round(draw.textlength(text, font)) + 6, text_size + 4
        start = max(0, min(left, drawn.width - width))
        above = top - height if top >= height else min(top, drawn.height - height)
        draw.rectangle((start, above, start + width, above + height), fill=colour)
        dark = sum(colour) > 400
        draw.text((start + 3, above + height / 2), text, fill="black" if dark else "white", font=font, anchor="lm")
    return drawn
