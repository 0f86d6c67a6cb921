"""What predictions on clouds look like: the best classes of a cloud, or a class of every point."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from modalities.points.colours import class_colours
from modalities.points.points import Points
from modalities.points.viewer import save_page
from modalities.points.viz import draw_points, to_picture
from modalities.points.write import save_ply
from modalities.points.write_las import LAS_SUFFIXES, las_suffix, save_las
from zoo.errors import DataError
from zoo.files import write_whole
from zoo.results import ClassificationResults, Picture, PictureResults, one_line

if TYPE_CHECKING:
    import PIL.Image

__all__ = ["CloudClasses", "CloudSegments", "DrawnCloud"]

PICTURE = (900, 1200)
"""Height and width of a drawn cloud in pixels."""


@dataclass(frozen=True, eq=False)
class DrawnCloud:
    """A cloud as a picture."""

    points: Points

    def to_pil(self) -> PIL.Image.Image:
        """Draws it."""
        return to_picture(draw_points(self.points, title=""))


class _CloudResults(PictureResults):
    """Heading and facts of results on clouds, which have points instead of a width and a height."""

    count: int

    def _heading(self) -> str:
        return f"{one_line(self.name)} ({self.count:,} points{', truncated' if self.truncated else ''})"

    def _about(self) -> dict[str, Any]:
        path = None if self.path is None else str(self.path)
        return {"source": self.name, "path": path, "points": self.count, "truncated": self.truncated}


@dataclass(frozen=True, eq=False)
class CloudClasses(_CloudResults, ClassificationResults):
    """The best classes of one cloud, best first; otherwise as `ClassificationResults`.

    Attributes:
        count: Points of the cloud, or of the mesh they were drawn from.
        size: (height, width) of the drawn cloud in pixels.
    """

    count: int = 0


@dataclass(frozen=True, eq=False)
class CloudSegments(_CloudResults):
    """The class of every point of one cloud.

    Attributes:
        name: The source, as it was given.
        path: The file, if it came from one.
        points: The cloud as it was read, with its fields.
        indices: int64 (N,): class of each point.
        scores: float32 (N,): softmax probability of that class.
        class_names: Of the model; the index as text where it has none.
        size: (height, width) of the drawn cloud in pixels.
        truncated: True when only a part of the file could be decoded.
        time_us: `None`: clouds have no time.
    """

    name: str
    path: Path | None
    points: Points
    indices: np.ndarray
    scores: np.ndarray
    class_names: tuple[str, ...]
    size: tuple[int, int] = PICTURE
    truncated: bool = False
    _picture: Callable[[], Picture] | None = field(default=None, repr=False)
    time_us: tuple[int, int] | None = None

    COLUMNS: ClassVar[tuple[str, ...]] = ("source", "index", "label", "points", "share", "score")
    SUFFIXES: ClassVar[tuple[str, ...]] = (".ply", ".las", ".laz", ".npz", ".html", *PictureResults.SUFFIXES)

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def count(self) -> int:  # type: ignore[override]
        """Points of the cloud."""
        return len(self.indices)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes that occur, those of most points first."""
        return tuple(self.class_names[index] for index in self._order())

    @property
    def cloud(self) -> Points:
        """The cloud with the fields `label` int64, `score` float32, and the colour of its class as `rgb`."""
        palette = np.array(class_colours(self.class_names), np.uint8).reshape(-1, 3)
        return self.points.with_fields(label=self.indices, score=self.scores, rgb=palette[self.indices])

    @property
    def suffix(self) -> str:
        """The suffix to save it by: `.las` or `.laz` as the file that was read, where that can be, else `.ply`."""
        return las_suffix(self.points, self.class_names) or ".ply"

    def counts(self) -> dict[str, int]:
        """Number of points of each class of the model, in its order."""
        found = np.bincount(self.indices, minlength=len(self.class_names))
        return {name: int(number) for name, number in zip(self.class_names, found, strict=True)}

    def _order(self) -> list[int]:
        found = np.bincount(self.indices, minlength=len(self.class_names))
        return [index for index in np.argsort(-found, kind="stable").tolist() if found[index]]

    def _mean_scores(self) -> np.ndarray:
        found = np.bincount(self.indices, minlength=len(self.class_names))
        total = np.bincount(self.indices, self.scores.astype(np.float64), minlength=len(self.class_names))
        return total / np.maximum(found, 1)

    def __str__(self) -> str:
        lines = [self._heading() if len(self) else f"{self._heading()}: no points"]
        names = [one_line(label) for label in self.labels]
        column = max(map(len, names), default=0)
        for label, (_, _, _, count, share, _) in zip(names, self.rows(), strict=True):
            lines.append(f"  {100 * share:5.1f} %  {label:<{column}}  {count:,} points".rstrip())
        return "\n".join(lines)

    def rows(self) -> list[tuple[Any, ...]]:
        """Returns (source, index, label, points, share, score) of each class that occurs, largest first.

        The score is the mean of those of the points of the class.
        """
        counts, means = list(self.counts().values()), self._mean_scores()
        return [
            (self.name, index, self.class_names[index], counts[index], counts[index] / len(self), float(means[index]))
            for index in self._order()
        ]

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values: source, path, points, truncated, and the classes that occur with their points.

        The classes of single points are in `indices`; `save("out.ply")` and `save("out.npz")` write them.
        """
        keys = self.COLUMNS[1:]
        return self._about() | {"classes": [dict(zip(keys, row[1:], strict=True)) for row in self.rows()]}

    def draw_on(self, picture: PIL.Image.Image) -> PIL.Image.Image:
        """Returns the picture with the share of each class below it."""
        rows = self.rows()[:8]
        shares = tuple(row[4] for row in rows)
        summary = ClassificationResults(
            self.name, self.path, tuple(row[1] for row in rows), tuple(row[2] for row in rows), shares, self.size
        )
        return summary.draw_on(picture)

    def plot(self) -> PIL.Image.Image:
        """Returns a picture of the cloud coloured by class.

        Raises:
            DataError: If the cloud has no points.
            MissingDependencyError: If matplotlib is not installed.
        """
        return to_picture(draw_points(self.cloud, "label", names=self.class_names))

    def save(self, path: str | Path) -> Path:
        """Writes the result by the suffix of the file and returns its path; folders are made.

        `.ply`: the cloud with `label`, `score`, the colour of the class and its other fields; `.npz`: arrays `xyz`,
        `label`, `score`, `class_names`; `.las`, `.laz`: a copy of the LAS or LAZ file that was read with the classes as
        its classification, see `modalities.points.write_las`; `.html`: an interactive page; `.png`, `.jpg`, `.webp`:
        `plot()`.

        Raises:
            DataError: If it cannot be written, or as `.las` was not read from such a file.
        """
        path = Path(path).expanduser()
        suffix = path.suffix.lower()
        if suffix == ".ply":
            return save_ply(self.cloud, path)
        if suffix not in (".npz", ".html", *LAS_SUFFIXES):
            return super().save(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if suffix == ".html":
                return save_page(self.cloud, path, "label", names=self.class_names)
            if suffix in LAS_SUFFIXES:
                return save_las(self.points, self.indices, self.scores, self.class_names, path)
            buffer = io.BytesIO()
            names = np.array([name.encode() for name in self.class_names])
            np.savez_compressed(buffer, xyz=self.points.xyz, label=self.indices, score=self.scores, class_names=names)
            write_whole(path, buffer.getvalue())
        except (OSError, ValueError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{path}: cannot be written ({getattr(error, 'strerror', None) or error})") from error
        return path
