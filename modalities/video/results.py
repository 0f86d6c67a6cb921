"""What the predictions for a video look like: its classes, and how they change over time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from modalities.video.plot import draw_timeline, side_by_side
from zoo.results import ClassificationResults, one_line

if TYPE_CHECKING:
    import PIL.Image

    from modalities.video.clip import Clip

__all__ = ["ClipResults", "SampleFrames"]

_SHOWN = 6  # frames beside each other in a plot


@dataclass(frozen=True, eq=False)
class SampleFrames:
    """Where the frames of a result are in the video: they are read again when wanted, results hold none.

    Attributes:
        source: A `ClipReader` or a `Clip`, which have `times_s` and `at`.
    """

    source: Any

    def __call__(self) -> SampleFrames:
        """Itself: it is the picture that results are drawn on."""
        return self

    def to_pil(self) -> PIL.Image.Image:
        """Frames spread over the video, side by side.

        Raises:
            DataError: If the video cannot be read any more.
        """
        count = len(self.source.times_s)
        shown = ((np.arange(_SHOWN) + 0.5) * count / _SHOWN).astype(np.int64)
        clip: Clip = self.source.at(np.unique(np.minimum(shown, count - 1)))
        return side_by_side(clip.frames)


@dataclass(frozen=True, eq=False)
class ClipResults(ClassificationResults):
    """The best classes of a video, best first: by the mean of the softmax over its windows.

    The fields of `ClassificationResults` are of the whole video, `time_us` from its first to its last window.

    Attributes:
        windows_us: Start and end of each window in microseconds since the start of the stream.
        probabilities: float32 (windows, classes), the softmax of each window.
        class_names: Names of all classes; numbers as text where the model has no names.
    """

    windows_us: tuple[tuple[int, int], ...] = ()
    probabilities: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.float32), repr=False)
    class_names: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def of_windows(cls, windows: list[ClassificationResults], top_k: int) -> ClipResults:
        """The results of a video from those of its windows, which have the scores of all classes."""
        first, last = windows[0], windows[-1]
        classes = len(first.indices)
        probabilities = np.zeros((len(windows), classes), np.float32)
        for row, window in enumerate(windows):
            probabilities[row, list(window.indices)] = window.scores
        names = dict(zip(first.indices, first.labels, strict=True))
        class_names = tuple(names[index] for index in range(classes))
        mean = probabilities.mean(0, dtype=np.float64)
        best = np.argsort(-mean, kind="stable")[:top_k].tolist()
        spans = tuple(window.time_us for window in windows if window.time_us is not None)
        return cls(
            name=first.name,
            path=first.path,
            indices=tuple(best),
            labels=tuple(class_names[index] for index in best),
            scores=tuple(float(mean[index]) for index in best),
            size=first.size,
            truncated=last.truncated,
            _picture=first._picture,
            time_us=(spans[0][0], max(end for _, end in spans)),
            windows_us=spans,
            probabilities=probabilities,
            class_names=class_names,
        )

    def __str__(self) -> str:
        text = super().__str__()
        if len(self.windows_us) == 1:
            return text
        stretches = self.stretches()
        lines = [
            f"  {start / 1e6:8.2f} to {end / 1e6:8.2f} s  {100 * score:5.1f} %  {one_line(label)}"
            for start, end, label, score in stretches
        ]
        return "\n".join([text, "  over time:", *lines])

    def stretches(self) -> list[tuple[int, int, str, float]]:
        """Start and end in microseconds, best class and its mean score, of windows in a row with one best class."""
        found: list[tuple[int, int, str, float]] = []
        best = self.probabilities.argmax(1)
        edges = [0, *(np.flatnonzero(np.diff(best)) + 1).tolist(), len(best)]
        for first, end in zip(edges, edges[1:], strict=False):
            index = int(best[first])
            score = float(self.probabilities[first:end, index].mean())
            span = self.windows_us[first][0], self.windows_us[end - 1][1]
            found.append((*span, self.class_names[index], score))
        return found

    def _ranked(self, row: int) -> list[tuple[int, str, float]]:
        """Class, name and score of the best classes of a window."""
        scores = self.probabilities[row]
        best = np.argsort(-scores, kind="stable")[: len(self.indices)].tolist()
        return [(index, self.class_names[index], float(scores[index])) for index in best]

    def rows(self) -> list[tuple[Any, ...]]:
        """Returns (source, rank, index, label, score, start_us, end_us) for each class of each window."""
        return [
            (self.name, rank, *values, *span)
            for row, span in enumerate(self.windows_us)
            for rank, values in enumerate(self._ranked(row), start=1)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values: those of the whole video, and `windows`, a list with times and predictions of each."""
        keys = ("index", "label", "score")
        windows = [
            {
                "start_us": start,
                "end_us": end,
                "predictions": [dict(zip(keys, values, strict=True)) for values in self._ranked(row)],
            }
            for row, (start, end) in enumerate(self.windows_us)
        ]
        return super().to_dict() | {"windows": windows}

    def draw_on(self, picture: PIL.Image.Image) -> PIL.Image.Image:
        """Returns the frames with labels and scores below, and how the scores change over time below those."""
        sheet = super().draw_on(picture)
        if len(self.windows_us) == 1:
            return sheet
        curves = [(label, self.probabilities[:, index]) for index, label in zip(self.indices, self.labels, strict=True)]
        return draw_timeline(sheet, self.windows_us, curves)
