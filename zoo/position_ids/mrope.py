"""Ids on three axes (t, row, column): M-RoPE of the Qwen models, its spatial reset, and VideoRoPE.

Use them with the encoding `mrope`, whose options say which frequencies an axis gets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from zoo.errors import ConfigError, DataError
from zoo.position_ids.scheme import Scheme
from zoo.position_ids.segments import Video, Vision, positive

__all__ = [
    "Clock",
    "FrameIndex",
    "FramewiseMRoPE",
    "MRoPE",
    "ResetMRoPE",
    "Seconds",
    "TransformersMRoPE",
    "VideoRoPE",
]


class Clock(ABC):
    """How far along the time axis the frames of a video are."""

    @abstractmethod
    def offsets(self, segment: Vision) -> list[float]:
        """Steps of the time axis from the first frame to each frame."""


class FrameIndex(Clock):
    """Frame number times a stride, whatever the frame rate.

    Args:
        stride: Steps per frame.

    Example:
        >>> FrameIndex(stride=2).offsets(Video(3, 1, 1))
        [0.0, 2.0, 4.0]
    """

    def __init__(self, stride: float = 1.0) -> None:
        self.stride = positive("stride", stride, ConfigError)

    def offsets(self, segment: Vision) -> list[float]:
        """See `Clock.offsets`."""
        return [self.stride * frame for frame in range(segment.shape[0])]


class Seconds(Clock):
    """Seconds since the first frame times a rate, so that equal times are equal steps at any frame rate.

    Args:
        per_second: Steps per second; 2 in the released Qwen2.5-VL networks (`tokens_per_second`).

    Example:
        >>> Seconds(per_second=2).offsets(Video(3, 1, 1, seconds_per_frame=0.25))
        [0.0, 0.5, 1.0]
        >>> Seconds(per_second=2).offsets(Video(3, 1, 1, times=[1.7e9, 1.7e9 + 1, 1.7e9 + 4]))
        [0.0, 2.0, 8.0]
    """

    def __init__(self, per_second: float = 2.0) -> None:
        self.per_second = positive("per_second", per_second, ConfigError)

    def offsets(self, segment: Vision) -> list[float]:
        """See `Clock.offsets`.

        Raises:
            DataError: If a video does not say its times.
        """
        return [self.per_second * seconds for seconds in segment.seconds()]


class MRoPE(Scheme):
    """M-RoPE of Qwen2-VL (arXiv 2409.12191, section 2.1); with a clock in seconds, of Qwen2.5-VL (2502.13923).

    Text is at (p, p, p). A vision token is at (s + time, s + row, s + column), where s is the id that text would have
    there; images have time 0. Text goes on at the largest id of the picture + 1. So no text token shares its triple
    with a vision token, and every id of what follows is larger than all before.

    Several images in a sequence continue: each starts where the one before ended. `ResetMRoPE` resets rows and columns.

    Args:
        time: The clock. `FrameIndex()` counts frames (Qwen2-VL), `Seconds(2)` two steps a second (Qwen2.5-VL: the
            interval is tokens_per_second x seconds_per_frame, not rounded).

    Example:
        >>> MRoPE()([Text(2), Image(2, 3), Text(1)]).values[0].int().tolist()
        [[0, 0, 0], [1, 1, 1], [2, 2, 2], [2, 2, 3], [2, 2, 4], [2, 3, 2], [2, 3, 3], [2, 3, 4], [5, 5, 5]]
        >>> video = Video(3, 1, 2, seconds_per_frame=1.5)
        >>> MRoPE(Seconds(2))([video, Text(2)]).values[0].int().tolist()
        [[0, 0, 0], [0, 0, 1], [3, 0, 0], [3, 0, 1], [6, 0, 0], [6, 0, 1], [7, 7, 7], [8, 8, 8]]
        >>> placed = MRoPE().place([Text(2), Image(2, 3)])  # Eight tokens, and decoding goes on at 5.
        >>> placed.next_position, placed.delta
        (5.0, -3.0)
    """

    axes: ClassVar[int] = 3

    def __init__(self, time: Clock | None = None) -> None:
        self.time = _clock(FrameIndex() if time is None else time)

    def vision(self, segment: Vision, cells: Tensor, start: float) -> tuple[Tensor, float]:
        """See `Scheme.vision`."""
        offsets = self.time.offsets(segment)
        _, rows, columns = segment.shape
        first = torch.tensor(self._first(start), dtype=cells.dtype)
        return _triple(offsets, cells) + first, start + max(offsets[-1], rows - 1, columns - 1) + 1

    def _first(self, start: float) -> tuple[float, float, float]:
        """Ids of the first token of a picture where text would be at `start`."""
        return start, start, start


class ResetMRoPE(MRoPE):
    """M-RoPE with spatial reset (arXiv 2510.23095): rows and columns of every picture count from 0.

    A vision token is at (s + time, row, column). Text goes on where it does without the reset. The time axis alone
    tells pictures apart; rows and columns of a picture are the same wherever it stands.

    Args:
        time: See `MRoPE`.

    Example:
        >>> ResetMRoPE()([Text(4), Image(1, 2), Image(1, 2), Text(1)]).values[0].int().tolist()[4:]
        [[4, 0, 0], [4, 0, 1], [6, 0, 0], [6, 0, 1], [8, 8, 8]]
    """

    def _first(self, start: float) -> tuple[float, float, float]:
        return start, 0.0, 0.0


class FramewiseMRoPE(MRoPE):
    """M-RoPE as in Qwen3-VL (arXiv 2511.21631): a frame is a picture of its own and the text between tells the time.

    The ids are those of `MRoPE`; a video must come as `timestamped` makes it, since a grid of several frames would get
    time ids that the network has not seen. The encoding then is `mrope` with `arrangement="interleaved"`.

    Example:
        >>> segments = timestamped(Video(2, 1, 2), before=2, after=1)
        >>> FramewiseMRoPE()(segments).values[0].int().tolist()[:6]
        [[0, 0, 0], [1, 1, 1], [2, 2, 2], [2, 2, 3], [4, 4, 4], [5, 5, 5]]
    """

    def __init__(self) -> None:
        super().__init__()

    def vision(self, segment: Vision, cells: Tensor, start: float) -> tuple[Tensor, float]:
        """See `Scheme.vision`.

        Raises:
            DataError: For a video of several frames.
        """
        if segment.shape[0] > 1:
            raise DataError("frames are placed one by one: use position_ids.timestamped(video, ...)")
        return super().vision(segment, cells, start)


class TransformersMRoPE(MRoPE):
    """M-RoPE of Qwen2.5-VL as transformers 5 computes it (5.0 to 5.17 at least), for networks run or tuned there.

    It differs from the rule of the paper (`MRoPE(Seconds(...))`) in two ways. Seconds per frame are cut to a whole
    number, so that frames less than a second apart get the same triples. And text goes on at s + max(rows, columns),
    however long the video: its ids then overlap with the time ids of the video, though triples still differ. The first
    generated token gets the largest id + 1 all the same, a jump after such a video. (transformers 4 cut the product of
    frame and interval instead and resumed after the largest id.)

    Args:
        per_second: `tokens_per_second` of the network.

    Example:
        >>> scheme = TransformersMRoPE(per_second=2)
        >>> placed = scheme.place([Video(3, 1, 2, seconds_per_frame=1.5), Text(2)])
        >>> placed.values.int().tolist()
        [[0, 0, 0], [0, 0, 1], [2, 0, 0], [2, 0, 1], [4, 0, 0], [4, 0, 1], [2, 2, 2], [3, 3, 3]]
        >>> placed.next_position
        5.0
        >>> scheme([Video(2, 1, 1, seconds_per_frame=0.5)]).values[0].int().tolist()
        [[0, 0, 0], [0, 0, 0]]
    """

    def __init__(self, per_second: float = 2.0) -> None:
        super().__init__(_WholeSeconds(per_second))

    def vision(self, segment: Vision, cells: Tensor, start: float) -> tuple[Tensor, float]:
        """See `Scheme.vision`."""
        ids, _ = super().vision(segment, cells, start)
        return ids, start + max(segment.shape[1:])

    def after(self, values: Tensor, position: float) -> float:
        """See `Scheme.after`."""
        return float(values.max()) + 1 if len(values) else position


class _WholeSeconds(Seconds):
    def offsets(self, segment: Vision) -> list[float]:
        step = segment.seconds_per_frame if isinstance(segment, Video) else 0
        if step is None:
            if segment.shape[0] > 1:
                raise DataError("transformers wants seconds_per_frame of a video, not times")
            step = 0
        return [self.per_second * int(step) * frame for frame in range(segment.shape[0])]


class VideoRoPE(Scheme):
    """Diagonal ids of VideoRoPE (arXiv 2502.05173, section 4): rows and columns are centred on the time of the frame.

    A vision token is at (t, t + row - floor((rows - 1) / 2), t + column - floor((columns - 1) / 2)) with t = s + stride
    x frame, text at (p, p, p), and text goes on at the last t + 1, as in the released code. Text triples differ from
    those of vision tokens, since t does; but rows and columns of the last frames reach beyond the first ids of the text
    that follows: that is the symmetry the scheme is after. The encoding is `mrope` with `arrangement="videorope"`.

    Args:
        time: The clock; `FrameIndex(2)` in the paper, `Seconds` for the frame rate to count.

    Example:
        >>> VideoRoPE()([Text(2), Video(2, 1, 3), Text(1)]).values[0].int().tolist()
        [[0, 0, 0], [1, 1, 1], [2, 2, 1], [2, 2, 2], [2, 2, 3], [4, 4, 3], [4, 4, 4], [4, 4, 5], [5, 5, 5]]
    """

    axes: ClassVar[int] = 3

    def __init__(self, time: Clock | None = None) -> None:
        self.time = _clock(FrameIndex(2.0) if time is None else time)

    def vision(self, segment: Vision, cells: Tensor, start: float) -> tuple[Tensor, float]:
        """See `Scheme.vision`."""
        offsets = self.time.offsets(segment)
        _, rows, columns = segment.shape
        time, row, column = _triple(offsets, cells).unbind(-1)
        ids = torch.stack([time, time + row - (rows - 1) // 2, time + column - (columns - 1) // 2], dim=-1)
        return ids + start, start + offsets[-1] + 1


def _triple(offsets: list[float], cells: Tensor) -> Tensor:
    """A new tensor (n, 3) of time, row and column."""
    frame, row, column = cells.unbind(-1)
    return torch.stack([torch.tensor(offsets, dtype=cells.dtype)[frame.long()], row, column], dim=-1)


def _clock(time: Clock) -> Clock:
    if not isinstance(time, Clock):
        raise ConfigError(f"time must be a clock such as FrameIndex() or Seconds(2), got {time!r:.80}")
    return time
