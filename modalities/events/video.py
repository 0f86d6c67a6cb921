"""Videos of event recordings with what a model found in them."""

from __future__ import annotations

import contextlib
import math
import os
import warnings
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from modalities.events.events import Events
from modalities.events.frames import BRIGHTER, DARKER, RecordedWindow, draw_events
from modalities.events.read import EventReader
from zoo.errors import ConfigError, DataError, require
from zoo.files import partial_of

if TYPE_CHECKING:
    import PIL.Image

    from zoo.results import PictureResults

__all__ = ["EventVideo"]

_WHOLE_FPS = 30  # where one result holds for the whole recording
_FPS = (0.1, 240.0)
_DEFAULT_FPS = (Fraction(1), Fraction(60))  # real time within this
_PIECE = 2**17  # events read at a time
_MOST = 2**21  # events drawn in a frame: a picture is full of colour long before
_NARROWEST = 240  # pixels, so that the line below a narrow picture can be read
_BT709 = 1  # of the H.273 code points


class EventVideo:
    """An MP4 file (H.264) of a recording with the results of a model, added as they come; a context manager.

    A frame is made for each result, of the events before its end; where one result holds for the whole recording,
    frames follow one another over all of it. Below the events stands the time in the recording's clock. The recording
    is read once more alongside: memory holds a frame and its events, however long the recording.

    The file appears, and replaces an earlier one, once the body of `with` has ended; after an error or an interrupt
    (Ctrl-C) nothing is left of it.

    Example:
        with predictor.video("out.mp4") as video:
            for result in predictor("recording.raw", stream=True):
                video.add(result)

    Args:
        path: The file, `.mp4`; its folder is made.
        fps: Frames per second of the video, 0.1 to 240. By default it plays in real time: one frame per stride of the
            results (within 1 to 60), or 30 where one result holds for the whole recording.
        window_us: Microseconds of events in a frame, up to its end; by default the time between frames. Of more than
            2,097,152 events the last are drawn.

    Attributes:
        path: The file.
        frames: Frames so far.
        done: Share of the recording drawn so far, 0 to 1.

    Raises:
        ConfigError: If an argument cannot be used.
        DataError: If the file cannot be written.
        MissingDependencyError: If PyAV is not installed.
    """

    def __init__(self, path: str | os.PathLike[str], *, fps: float | None = None, window_us: int | None = None) -> None:
        self.path = Path(path).expanduser()
        if self.path.suffix.lower() != ".mp4":
            raise ConfigError(f"{self.path}: a video is written as .mp4, not {self.path.suffix or 'without a suffix'}")
        number = isinstance(fps, (int, float)) and not isinstance(fps, bool)
        if fps is not None and not (number and _FPS[0] <= fps <= _FPS[1]):
            raise ConfigError(f"fps must be a number from {_FPS[0]:g} to {_FPS[1]:g}, not {fps!r:.60}")
        whole = isinstance(window_us, int) and not isinstance(window_us, bool)
        if window_us is not None and not (whole and 1 <= window_us <= 2**53):
            raise ConfigError(f"window_us must be a positive whole number of microseconds, not {window_us!r:.60}")
        self._av = require("av", "video")
        self._fps, self._window_us = fps, window_us
        self._partial = partial_of(self.path)
        self._file: Any = None
        self._container: Any = None
        self._stream: Any = None
        self._reader: EventReader | None = None
        self._events: _RecentEvents | None = None
        self._last_us: int | None = None
        self.frames = 0

    @property
    def done(self) -> float:
        """Share of the recording drawn so far, 0 to 1."""
        return 0.0 if self._events is None or self._last_us is None else self._events.share(self._last_us)

    def __enter__(self) -> EventVideo:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.is_dir():
                raise DataError(f"{self.path}: is a folder")
            with contextlib.suppress(FileNotFoundError):
                self.path.lstat()  # A name that is too long should be told before the work.
            self._file = self._partial.open("xb")
        except (OSError, ValueError) as error:
            raise self._unwritable(error) from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def add(self, result: PictureResults) -> None:
        """Draws the frames of a result; results come in the order of time.

        Args:
            result: Of a recording; all of one video are of the same.

        Raises:
            DataError: If it is no result of this recording or comes out of order, the recording cannot be read again,
                or the file cannot be written.
        """
        window = result._picture
        if not isinstance(window, RecordedWindow):
            raise DataError(f"{result.name}: not the result of an event recording: there is nothing to make a video of")
        if self._file is None:
            raise DataError(f"{self.path}: results are added inside `with`, before the video is closed")
        if self._reader is None:
            self._begin(window)
        elif window.reader is not self._reader:
            raise DataError(f"{result.name}: a result of another recording, or of another run over it: one per video")
        assert self._events is not None
        for end_us in window.frame_ends(self._fps or _WHOLE_FPS):
            if self._last_us is not None and end_us <= self._last_us:
                raise DataError(f"{result.name}: the result that ends at {end_us} us comes after a later one")
            between = window.stride_us or round(1e6 / (self._fps or _WHOLE_FPS))
            events = self._events.between(end_us - (self._window_us or between), end_us)
            sheet = result.draw_on(draw_events(events, *window.size).to_pil())
            self._write(_with_time(sheet, end_us), window)
            self._last_us = end_us

    def close(self) -> None:
        """Completes the file.

        Raises:
            DataError: If nothing was added, or the file cannot be written; nothing is left of it then.
        """
        if self._file is None:
            return
        try:
            if not self.frames:
                raise DataError(f"{self.path}: no events, so no video was made")
            self._container.mux(self._stream.encode())
            self._container.close()
            self._file.close()
            os.replace(self._partial, self.path)
        except self._failures() as error:
            raise self._unwritable(error) from error
        finally:
            self.discard()

    def discard(self) -> None:
        """Removes what was written so far; an earlier file of this name stays."""
        if self._events is not None:
            self._events.close()
        with contextlib.suppress(*self._failures()):
            if self._container is not None:
                self._container.close()
        if self._file is not None:
            with contextlib.suppress(OSError):  # What is in its buffer may not fit on the disk.
                self._file.close()
            self._partial.unlink(missing_ok=True)
        self._file = self._container = self._stream = None

    def _begin(self, window: RecordedWindow) -> None:
        path = window.reader.path
        if path is not None and self.path.exists() and path.exists() and self.path.samefile(path):
            raise DataError(f"{self.path}: is the recording itself; name another file for the video")
        self._reader = window.reader
        self._events = _RecentEvents(window.reader)

    def _write(self, sheet: PIL.Image.Image, window: RecordedWindow) -> None:
        try:
            if self._container is None:
                self._open(sheet.size, window)
            frame = self._av.VideoFrame.from_ndarray(np.asarray(_sized(sheet, self._size)), format="rgb24")
            frame = frame.reformat(format="yuv420p", dst_colorspace="ITU709", dst_color_range="MPEG")
            frame.pts = self.frames
            self._container.mux(self._stream.encode(frame))
        except self._failures() as error:
            raise self._unwritable(error) from error
        self.frames += 1

    def _open(self, size: tuple[int, int], window: RecordedWindow) -> None:
        if self._fps is not None:
            rate = Fraction(self._fps).limit_denominator(1001)
        elif window.stride_us is not None:
            low, high = _DEFAULT_FPS
            rate = min(max(Fraction(1_000_000, window.stride_us), low), high)
        else:
            rate = Fraction(_WHOLE_FPS)
        self._size = (size[0] + size[0] % 2, size[1] + size[1] % 2)  # Colours are stored for squares of 2 x 2.
        # A file object: FFmpeg would read a name as an address, and cannot write every name.
        self._container = self._av.open(self._file, "w", format="mp4")
        self._stream = self._container.add_stream("h264", rate=rate, options={"crf": "20", "preset": "veryfast"})
        self._stream.width, self._stream.height = self._size
        self._stream.pix_fmt = "yuv420p"
        context = self._stream.codec_context
        context.time_base = 1 / rate
        context.colorspace = context.color_primaries = context.color_trc = _BT709
        context.color_range = 1

    def _failures(self) -> tuple[type[Exception], ...]:
        return OSError, ValueError, self._av.FFmpegError

    def _unwritable(self, error: Exception) -> Exception:
        if isinstance(error, DataError):
            return error
        return DataError(f"{self.path}: cannot be written ({getattr(error, 'strerror', None) or error})")


class _RecentEvents:
    """The latest events of a recording, read piece by piece as time goes on."""

    def __init__(self, reader: EventReader) -> None:
        self._read = 0.0
        self._chunks: Any = reader.chunks(_PIECE, on_read=self._on_read)
        self._held: Events | None = None
        self._ended = False
        # Time up to which events are held and share of the file that they take, before and with the latest piece.
        self._before: tuple[int, float] | None = None
        self._now: tuple[int, float] | None = None

    def _on_read(self, share: float) -> None:
        self._read = max(self._read, share)

    def between(self, start_us: int, end_us: int) -> Events:
        """The events from `start_us` to before `end_us`, the last 2,097,152 at most; neither may step back."""
        while not self._ended and (self._now is None or self._now[0] < end_us):
            # Reading the same file for its results has said what there is to warn of.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                piece = next(self._chunks, None)
            if piece is None:
                self._ended = True
                break
            if self._held is not None:
                piece = Events.concatenate([self._held[self._held.t_us >= start_us], piece])
            self._held = piece.sorted()[-_MOST:]
            last = int(self._held.t_us[-1])
            self._before = self._now or (int(self._held.t_us[0]), 0.0)
            self._now = (last, self._read)
        if self._held is None:
            raise DataError("no events to draw")
        low, high = np.searchsorted(self._held.t_us, (start_us, end_us), "left")
        return self._held[low:high]

    def share(self, time_us: int) -> float:
        """Share of the file up to a time, 0 to 1."""
        if self._before is None or self._now is None:
            return 0.0
        (start, least), (end, most) = self._before, self._now
        return least + (most - least) * min(max((time_us - start) / max(end - start, 1), 0.0), 1.0)

    def close(self) -> None:
        """Closes the file."""
        self._chunks.close()


def _with_time(sheet: PIL.Image.Image, end_us: int) -> PIL.Image.Image:
    """The picture over a line with the time and what the colours mean."""
    from PIL import Image, ImageDraw, ImageFont

    width = max(sheet.width, _NARROWEST)
    text_size = max(12, width // 48)
    font = ImageFont.load_default(text_size)
    line = math.ceil(1.8 * text_size)
    whole = Image.new("RGB", (width, sheet.height + line), (24, 24, 24))
    whole.paste(sheet, ((width - sheet.width) // 2, 0))
    draw = ImageDraw.Draw(whole)
    middle, right = sheet.height + line / 2, width - text_size
    draw.text((text_size, middle), f"{end_us / 1e6:.3f} s", fill="white", font=font, anchor="lm")
    for text, colour in (("darker", DARKER), ("brighter", BRIGHTER)):
        draw.text((right, middle), text, fill=colour, font=font, anchor="rm")
        right -= round(draw.textlength(text, font)) + text_size
    return whole


def _sized(sheet: PIL.Image.Image, size: tuple[int, int]) -> PIL.Image.Image:
    """The picture with black added to the right and below, or cut, to the size of the video."""
    return sheet if sheet.size == size else sheet.crop((0, 0, *size))
