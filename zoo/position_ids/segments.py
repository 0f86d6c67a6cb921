"""What a sequence of mixed content is made of: text, images, videos and padding, as plain descriptions.

Sizes are in tokens of the sequence: rows and columns of an image are those of the merged grid (a 28 x 28 pixel image of
patches of 14 that are merged two by two is `Image(1, 1)`), frames are temporal patches.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.errors import DataError, ZooError

__all__ = ["Crop", "Image", "Margin", "Padding", "Segment", "Text", "Video", "Vision", "timestamped"]


def _whole(what: str, value: int, least: int = 0) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise DataError(f"{what} must be a whole number, {least} or more, got {value!r:.80}")


def positive(name: str, value: float, error: type[ZooError] = DataError) -> float:
    """Checks a positive number, which may be as large as 1e9 so that ids stay finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1e9:
        raise error(f"{name} must be a positive number up to 1e9, got {value!r:.80}")
    return float(value)


@dataclass(frozen=True)
class Text:
    """Tokens that follow each other at a step of one.

    Attributes:
        length: Number of tokens, 0 or more.
    """

    length: int

    def __post_init__(self) -> None:
        _whole("the length of a text", self.length)


@dataclass(frozen=True)
class Padding:
    """Tokens without a position, which take no room: what follows them has the ids it would have without them.

    Attributes:
        length: Number of tokens, 0 or more.
    """

    length: int

    def __post_init__(self) -> None:
        _whole("the length of padding", self.length)


@dataclass(frozen=True)
class Crop:
    """A region of a picture; its tokens keep the coordinates that they have in the whole picture.

    Attributes:
        top: First row.
        left: First column.
        rows: Number of rows.
        columns: Number of columns.
    """

    top: int
    left: int
    rows: int
    columns: int

    def __post_init__(self) -> None:
        for name in ("top", "left"):
            _whole(f"{name} of a crop", getattr(self, name))
        for name in ("rows", "columns"):
            _whole(f"{name} of a crop", getattr(self, name), least=1)


@dataclass(frozen=True)
class Margin:
    """Rows and columns of padding around a picture; they have no position and shift nothing.

    Attributes:
        top: Rows above.
        bottom: Rows below.
        left: Columns to the left.
        right: Columns to the right.
    """

    top: int = 0
    bottom: int = 0
    left: int = 0
    right: int = 0

    def __post_init__(self) -> None:
        for name in ("top", "bottom", "left", "right"):
            _whole(f"{name} of a margin", getattr(self, name))


class Vision(ABC):
    """An image or a video: tokens on a grid, frame by frame and row by row."""

    crops: Sequence[Crop]
    margin: Margin

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """Frames, rows and columns of the whole picture: margin not counted, crops not applied."""

    @abstractmethod
    def seconds(self) -> list[float]:
        """Seconds from the first frame to each frame.

        Raises:
            DataError: If the times are not known.
        """

    def cells(self) -> tuple[Tensor, Tensor]:
        """Where each token lies in the whole picture.

        Returns:
            Int64 (n, 3): frame, row, column. Bool (n,): whether the token is part of the picture (False in the margin).
        """
        frames, rows, columns = self.shape
        margin = self.margin
        regions = self.crops or [
            Crop(0, 0, rows + margin.top + margin.bottom, columns + margin.left + margin.right),
        ]
        spots = torch.cat(
            [
                torch.cartesian_prod(
                    torch.arange(region.top, region.top + region.rows),
                    torch.arange(region.left, region.left + region.columns),
                )
                for region in regions
            ]
        )
        spots = spots - torch.tensor([margin.top, margin.left])
        inside = ((spots >= 0) & (spots < torch.tensor([rows, columns]))).all(dim=-1)
        frame = torch.arange(frames).repeat_interleave(len(spots)).unsqueeze(-1)
        return torch.cat([frame, spots.repeat(frames, 1)], dim=-1), inside.repeat(frames)

    def _check(self) -> None:
        _, rows, columns = self.shape
        for name, size in zip(("frames", "rows", "columns"), self.shape, strict=True):
            _whole(f"{name} of a picture", size, least=1)
        listed = isinstance(self.crops, (list, tuple)) and all(isinstance(crop, Crop) for crop in self.crops)
        if not listed or not isinstance(self.margin, Margin):
            raise DataError("crops of a picture are a list of position_ids.Crop, its margin is a position_ids.Margin")
        object.__setattr__(self, "crops", tuple(self.crops))  # What was checked stays as it is, and can be hashed.
        if self.crops and self.margin != Margin():
            raise DataError("a picture has crops or a margin: describe padded crops as images of their own")
        for crop in self.crops:
            if crop.top + crop.rows > rows or crop.left + crop.columns > columns:
                raise DataError(f"{crop} does not lie inside a picture of {rows} rows and {columns} columns")


@dataclass(frozen=True)
class Image(Vision):
    """A still picture.

    Attributes:
        rows: Rows of the (merged) grid of the whole picture.
        columns: Columns of the grid.
        crops: Regions whose tokens are in the sequence, in their order; none means the whole picture. Text after the
            picture goes on as after the whole.
        margin: Padding around the picture.
    """

    rows: int
    columns: int
    crops: Sequence[Crop] = ()
    margin: Margin = Margin()

    def __post_init__(self) -> None:
        self._check()

    @property
    def shape(self) -> tuple[int, int, int]:
        """1, rows, columns."""
        return 1, self.rows, self.columns

    def seconds(self) -> list[float]:
        """A picture is of one moment."""
        return [0.0]


@dataclass(frozen=True)
class Video(Vision):
    """A moving picture.

    Attributes:
        frames: Temporal patches.
        rows: Rows of the (merged) grid of a frame.
        columns: Columns of the grid.
        seconds_per_frame: Seconds from a temporal patch to the next, for schemes that count time in seconds (temporal
            patch size / sampled frames per second).
        times: Instead, the time of every frame in seconds on any clock, also one with a far origin: the first one is
            subtracted in float64. For sampling that is not regular.
        crops: As for `Image`; for every frame.
        margin: As for `Image`.
    """

    frames: int
    rows: int
    columns: int
    seconds_per_frame: float | None = None
    times: Sequence[float] | None = None
    crops: Sequence[Crop] = ()
    margin: Margin = Margin()

    def __post_init__(self) -> None:
        self._check()
        if self.seconds_per_frame is not None:
            if self.times is not None:
                raise DataError("a video has seconds_per_frame or times, not both")
            positive("seconds_per_frame", self.seconds_per_frame)
        if self.times is not None:
            try:
                times = tuple(float(time) for time in self.times)
            except (TypeError, ValueError, OverflowError):
                raise DataError(f"times must be numbers of seconds, one per frame, got {self.times!r:.80}") from None
            if len(times) != self.frames or not all(math.isfinite(time) for time in times):
                raise DataError(f"times must be {self.frames} numbers of seconds, one per frame, got {len(times)}")
            object.__setattr__(self, "times", times)
            if any(later <= earlier for earlier, later in zip(times, times[1:], strict=False)):
                raise DataError("times of a video must rise from frame to frame")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Frames, rows, columns."""
        return self.frames, self.rows, self.columns

    def seconds(self) -> list[float]:
        """Seconds from the first frame to each frame.

        Raises:
            DataError: If neither `seconds_per_frame` nor `times` was given.
        """
        if self.times is not None:
            return [time - self.times[0] for time in self.times]
        if self.seconds_per_frame is None and self.frames > 1:
            raise DataError("this scheme counts time in seconds: give the video seconds_per_frame or times")
        return [frame * float(self.seconds_per_frame or 0.0) for frame in range(self.frames)]


Segment = Text | Padding | Vision


def timestamped(video: Video, before: int | Sequence[int], after: int = 0) -> list[Segment]:
    """A video as Qwen3-VL writes it: every frame a picture of its own behind its time as text.

    Args:
        video: The video; its own times are not used, since here the text tells the time.
        before: Tokens in front of every frame (the time, the start mark): one number, or one for each frame where times
            are of different length.
        after: Tokens behind every frame (the end mark).

    Returns:
        Segments for any scheme, such as `FramewiseMRoPE`.

    Raises:
        DataError: If it is no video, `before` has another length than it, or a count is no whole number.

    Example:
        >>> frame = Image(3, 4)
        >>> timestamped(Video(2, 3, 4), before=[5, 6], after=1) == [Text(5), frame, Text(1), Text(6), frame, Text(1)]
        True
    """
    if not isinstance(video, Video):
        raise DataError(f"expected a Video, got a {type(video).__name__}")
    counts = list(before) if isinstance(before, Sequence) else [before] * video.frames
    if len(counts) != video.frames:
        raise DataError(f"before must be one number of tokens or {video.frames}, one per frame, got {len(counts)}")
    frame = Image(video.rows, video.columns, crops=video.crops, margin=video.margin)
    segments: list[Segment] = []
    for count in counts:
        segments += [Text(count), frame, Text(after)]
    return segments
