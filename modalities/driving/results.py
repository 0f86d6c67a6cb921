"""What predictions on driving scenes look like: the boxes of a key frame, in its ego frame and in the global one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from modalities.driving.boxes import Boxes3D
from modalities.driving.metrics import Detections
from modalities.driving.scene import Sample
from modalities.driving.sheet import Layer, SceneSheet
from modalities.driving.submission import Modalities, write_submission
from modalities.driving.viz import WHITE, truth_layer
from zoo.errors import DataError
from zoo.results import PictureResults, one_line

if TYPE_CHECKING:
    import PIL.Image

__all__ = ["SHEET", "DrawnScene", "SceneDetections", "save_submission"]

SHEET = (796, 2656)
"""Height and width in pixels of the picture of a key frame with six cameras of 1600 x 900."""


@dataclass(frozen=True, eq=False)
class DrawnScene:
    """A key frame as a picture; it is read again when it is wanted, since points and pictures of many fill memory.

    Attributes:
        read: Gives the key frame.
        class_names: Names of labels 0, 1, ... of its annotations.
        truth: Draw these, too.
        keep: Leave out pictures that cannot be decoded.
    """

    read: Callable[[], Sample]
    class_names: tuple[str, ...]
    truth: bool = False
    keep: bool = False

    def paint(self, layers: Iterable[Layer] = ()) -> PIL.Image.Image:
        """Draws it, with boxes.

        Raises:
            DataError: If it cannot be read, or has no annotations that are to be drawn.
        """
        sheet = self.sheet()
        below = [truth_layer(sheet.sample, self.class_names, WHITE)] if self.truth else []
        return sheet.paint([*below, *layers])

    def to_pil(self) -> PIL.Image.Image:
        """Draws it."""
        return self.paint()

    def sheet(self) -> SceneSheet:
        """The layout, for drawing on a picture of it."""
        return SceneSheet(self.read(), keep=self.keep)


@dataclass(frozen=True, eq=False)
class SceneDetections(PictureResults):
    """The objects found around the car in one key frame, best first; there may be none.

    Attributes:
        name: Token of the key frame.
        path: Folder of the data set, if it came from one.
        boxes: Those with at least the score asked for, in the ego frame at the time of the lidar: metres, radians
            counter-clockwise from x, m/s.
        class_names: Of the model; the index as text where it has none.
        global_from_ego: (4, 4) float64 pose of the car.
        found: The boxes of all queries of the model, also those with smaller scores: what is scored.
        scene: Name of the drive.
        timestamp_us: Time of the lidar, or of the key frame without one.
        cameras: Names of the cameras that the model looked at.
        points: Number of lidar points that it was given; None without a lidar.
        uses: What the model takes, for submissions.
        size: (height, width) of a usual picture of a key frame in pixels.
    """

    name: str
    path: Path | None
    boxes: Boxes3D
    class_names: tuple[str, ...]
    global_from_ego: np.ndarray
    found: Boxes3D
    scene: str = ""
    timestamp_us: int = 0
    cameras: tuple[str, ...] = ()
    points: int | None = None
    uses: Modalities = field(default_factory=Modalities)
    size: tuple[int, int] = SHEET
    truncated: bool = False
    _picture: Callable[[], DrawnScene] | None = field(default=None, repr=False)
    time_us: tuple[int, int] | None = None

    COLUMNS: ClassVar[tuple[str, ...]] = (
        *("source", "rank", "score", "index", "label", "x", "y", "z", "length", "width", "height", "yaw", "vx", "vy"),
        *("global_x", "global_y", "global_z", "global_yaw", "global_vx", "global_vy"),
    )
    SUFFIXES: ClassVar[tuple[str, ...]] = (*PictureResults.SUFFIXES, ".json")

    def __len__(self) -> int:
        return len(self.boxes)

    @property
    def indices(self) -> tuple[int, ...]:
        """Class indices."""
        return tuple(self.boxes.label.tolist())

    @property
    def labels(self) -> tuple[str, ...]:
        """Class names."""
        return tuple(self.class_names[index] for index in self.indices)

    @property
    def scores(self) -> tuple[float, ...]:
        """In 0..1."""
        assert self.boxes.score is not None
        return tuple(self.boxes.score.tolist())

    @property
    def global_boxes(self) -> Boxes3D:
        """`boxes` in the global frame, in float64, since coordinates there reach kilometres."""
        return self.boxes.to(dtype=torch.float64).transform(self.global_from_ego)

    def __str__(self) -> str:
        labels = [one_line(label) for label in self.labels]
        column = max(map(len, labels), default=0)
        lines = [self._heading() if labels else f"{self._heading()}: nothing found"]
        for label, score, box in zip(labels, self.scores, self.boxes.as_tensor().tolist(), strict=True):
            x, y, _, _, _, _, _, along, across = box
            speed = "" if math.isnan(along + across) else f", {math.hypot(along, across):.1f} m/s"
            place = f"{math.hypot(x, y):.1f} m away at x {x:.1f}, y {y:.1f}"
            lines.append(f"  {100 * score:5.1f} %  {label:<{column}}  {place}{speed}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values: source, path, scene, time, sensors, and the list of detections.

        Each has index, label, score, size (length, width, height in m), and in both frames centre (m), yaw (radians)
        and velocity (m/s along x and y, None where unknown).
        """
        ego, world = self.boxes.to_dict(), self.global_boxes.to_dict()
        keys = ("centre", "yaw", "velocity")
        detections = [
            {
                "index": index,
                "label": self.class_names[index],
                "score": score,
                "size": ego["size"][row],
                "ego": {key: ego[key][row] for key in keys},
                "global": {key: world[key][row] for key in keys},
            }
            for row, (index, score) in enumerate(zip(self.indices, self.scores, strict=True))
        ]
        return self._about() | {"detections": detections}

    def rows(self) -> list[tuple[Any, ...]]:
        """Returns a tuple of `columns` for each box, the rows of `to_pandas` and of `--csv`; unknown is NaN."""
        world = self.global_boxes.as_tensor().tolist()
        found = zip(self.scores, self.indices, self.labels, self.boxes.as_tensor().tolist(), world, strict=True)
        return [
            (self.name, rank, score, index, label, *box, *other[:3], *other[6:])
            for rank, (score, index, label, box, other) in enumerate(found, 1)
        ]

    def plot(self) -> PIL.Image.Image:
        """Returns one picture: the cameras with boxes, the bird's-eye view with lidar points and boxes, a legend.

        Raises:
            DataError: If the key frame is no longer there.
        """
        return self._drawn().paint([self._layer()])

    def draw_on(self, picture: PIL.Image.Image) -> PIL.Image.Image:
        """Returns a copy of a picture of this key frame (`SceneSheet.paint`) with the boxes on it.

        Raises:
            DataError: If it is smaller than that.
        """
        drawn = picture.convert("RGB")  # A copy, whatever the picture's mode.
        self._drawn().sheet().draw(drawn, [self._layer()])
        return drawn

    def save(self, path: str | Path) -> Path:
        """Writes `plot()` (.png, .jpg, .webp), or as `.json` a nuScenes submission of this key frame.

        Raises:
            DataError: If it cannot be written.
        """
        return save_submission([self], path) if Path(path).suffix.lower() == ".json" else super().save(path)

    def _layer(self) -> Layer:
        return Layer(self.boxes, self.class_names, "detected")

    def _drawn(self) -> DrawnScene:
        if self._picture is None:
            raise DataError(f"{self.name}: these results hold no key frame to draw on")
        return self._picture()

    def _heading(self) -> str:
        cameras = f"{len(self.cameras)} camera{'' if len(self.cameras) == 1 else 's'}"
        lidar = "no lidar" if self.points is None else f"{self.points:,} points"
        return f"{one_line(self.name)} ({cameras}, {lidar})"

    def _about(self) -> dict[str, Any]:
        return {
            "source": self.name,
            "path": None if self.path is None else str(self.path),
            "scene": self.scene,
            "timestamp_us": self.timestamp_us,
            "cameras": list(self.cameras),
            "points": self.points,
        }


def save_submission(results: Iterable[SceneDetections], path: str | Path) -> Path:
    """Writes a file of detections in the format of nuScenes, with all boxes of each key frame; folders are made.

    Boxes are in the global frame; attributes are the likeliest ones of class and speed.

    Args:
        results: Of different key frames, from one model.
        path: A `.json` file.

    Returns:
        The path.

    Raises:
        DataError: If there is no result, two are of one key frame, they are of several models, a class is none of
            nuScenes, or the file cannot be written.
    """
    path = Path(path).expanduser()
    results = list(results)
    if not results or len({(result.class_names, result.uses) for result in results}) > 1:
        raise DataError(f"{path}: a submission takes results of one model, at least one")
    frames: dict[str, Detections] = {}
    for result in results:
        if result.name in frames:
            raise DataError(f"{path}: two results of the key frame {result.name}")
        frames[result.name] = Detections(result.found.to(dtype=torch.float64).transform(result.global_from_ego))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_submission(path, frames, results[0].uses, classes=results[0].class_names)
    except (OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: cannot be written ({getattr(error, 'strerror', None) or error})") from error
    return path
