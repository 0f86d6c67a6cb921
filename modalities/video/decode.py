"""Decoding of one video stream with PyAV: frames upright, with times, and what is wrong with those that are damaged."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from zoo.errors import DataError, require

__all__ = ["MAX_PIXELS", "Decoder"]

MAX_PIXELS = 178_956_970
"""Largest frame decoded, in pixels."""

# Demuxers of files. FFmpeg has others that open further files or addresses (playlists, concat, dash, sdp): a file from
# a stranger must not make us read those. The audio ones are here so that a song is told from a file of another kind.
_FORMATS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,gif,apng,webp,asf,flv,f4v,mpeg,mpegts,mpegvideo,m4v,h261,h263,h264,"
    "hevc,av1,obu,vvc,ivf,ogg,nut,dv,mxf,rm,mjpeg,yuv4mpegpipe,wtv,amv,swf,mp3,wav,w64,flac,aac,ac3,aiff,caf"
)


class Decoder:
    """An opened video stream; a context manager.

    Args:
        value: The file, or its bytes.
        name: What errors call it.

    Attributes:
        size: (height, width) of frames as stored, before they are turned upright.
        rate: Average frames a second as the file states it, or `None`.
        start_s: Start of the stream in seconds of the file's clock, or `None` where it is that of the first frame.
        expected: Frames that the header promises, 0 where it does not say.
        damage: What is wrong with the part decoded so far, or `None`.

    Raises:
        DataError: If it is no video, or holds no video stream.
        MissingDependencyError: If PyAV is not installed.
    """

    def __init__(self, value: Path | bytes, name: str) -> None:
        self._av = require("av", "video")
        self.name = name
        self.damage: str | None = None
        self._close = contextlib.ExitStack()
        try:
            # A file object: FFmpeg would read a name as an address, and cannot read every name.
            file = self._close.enter_context(value.open("rb") if isinstance(value, Path) else io.BytesIO(value))
            head = file.read(64)
            if not head:
                raise DataError(f"{name}: the file is empty")
            file.seek(0)
            try:
                container = self._av.open(file, options={"format_whitelist": _FORMATS}, metadata_errors="replace")
                self._container = self._close.enter_context(container)
            except Exception as error:  # Damaged headers raise nearly anything.
                raise DataError(f"{name}: not a video that can be read ({self._reason(error, head)})") from error
            self._stream = self._video_stream()
        except BaseException as error:
            self._close.close()
            if isinstance(error, OSError) and not isinstance(error, DataError):
                raise DataError(f"{name}: cannot be opened ({error.strerror or error})") from error
            raise
        stream = self._stream
        self.size = (stream.codec_context.height, stream.codec_context.width)
        rate = stream.average_rate or stream.guessed_rate
        self.rate = float(rate) if rate else None
        self.time_base = stream.time_base
        self.start_s = None if stream.start_time is None else float(stream.start_time * stream.time_base)
        self.expected = int(stream.frames or 0)

    def __enter__(self) -> Decoder:
        return self

    def __exit__(self, *exception: object) -> None:
        self._close.close()

    @property
    def end_s(self) -> float | None:
        """End of the stream in seconds of the file's clock, as the header promises it."""
        if self._stream.duration is not None:
            return float(((self._stream.start_time or 0) + self._stream.duration) * self._stream.time_base)
        # Matroska keeps it in a tag, as hours:minutes:seconds.
        found = re.match(r"(\d+):(\d+):(\d+\.?\d*)", self._stream.metadata.get("DURATION", ""))
        if found is None:
            return None
        hours, minutes, seconds = map(float, found.groups())
        return 3600 * hours + 60 * minutes + seconds

    def packets(self) -> Iterator[Any]:
        """The packets of the stream, as stored; damage ends them."""
        packets = self._container.demux(self._stream)
        while True:
            try:
                packet = next(packets)
            except StopIteration:
                return
            except (self._av.FFmpegError, OSError) as error:
                self._note(self._reason(error))
                return
            if packet.is_corrupt:
                self._note("a part of it is missing or damaged")
            yield packet

    def frames(self) -> Iterator[Any]:
        """The frames as PyAV gives them, in the order they are shown; goes on after packets that cannot be decoded."""
        for packet in self.packets():
            try:
                found = packet.decode()
            except (self._av.FFmpegError, ValueError) as error:
                self._note(self._reason(error))
                continue
            for frame in found:
                if frame.is_corrupt:
                    self._note("a part of it is missing or damaged")
                if frame.width * frame.height > MAX_PIXELS:
                    raise DataError(
                        f"{self.name}: {frame.width} x {frame.height} pixels, the limit of a frame is {MAX_PIXELS}"
                    )
                yield frame

    def seek(self, pts: int) -> None:
        """Goes to the last key frame at or before a time in units of the stream.

        Raises:
            DataError: If the file cannot be searched.
        """
        try:
            self._container.seek(pts, stream=self._stream, backward=True)
        except (self._av.FFmpegError, OSError) as error:
            raise DataError(f"{self.name}: cannot be searched ({self._reason(error)})") from error

    def rgb(self, frame: Any, size: tuple[int, int]) -> np.ndarray:
        """A frame as uint8 (H, W, 3), upright.

        Args:
            frame: Of `frames`.
            size: (height, width) as stored, of the first frame: a stream may change its size midway.
        """
        height, width = size
        try:
            picture = frame.to_ndarray(format="rgb24", width=width, height=height)
        except (self._av.FFmpegError, ValueError) as error:
            raise DataError(f"{self.name}: a frame cannot be converted ({self._reason(error)})") from error
        return np.ascontiguousarray(_upright(picture, _display_matrix(frame)))

    def _video_stream(self) -> Any:
        pictures = self._av.stream.Disposition.attached_pic  # The cover of an album is no video.
        streams = [stream for stream in self._container.streams.video if not stream.disposition & pictures]
        if not streams:
            kinds = sorted({stream.type for stream in self._container.streams})
            raise DataError(f"{self.name}: holds no video stream ({', '.join(kinds) or 'nothing'} alone)")
        stream = streams[0]
        if stream.codec_context is None:
            raise DataError(f"{self.name}: its video codec is not known to this build of FFmpeg")
        if not stream.time_base:
            raise DataError(f"{self.name}: its video stream has no clock")
        return stream

    def _note(self, what: str) -> None:
        self.damage = self.damage or what

    def _reason(self, error: Exception, head: bytes = b"") -> str:
        if head.startswith(b"version https://git-lfs"):
            return "it is a Git LFS pointer; fetch the file itself with 'git lfs pull'"
        text = getattr(error, "strerror", None) or str(error)
        return "damaged in its header" if isinstance(error, IndexError) else " ".join(text.split())


def _display_matrix(frame: Any) -> tuple[int, int, int, int]:
    """(a, b, c, d) of the frame's display matrix: x' = a x + c y, y' = b x + d y."""
    for item in frame.side_data:
        if item.type.name == "DISPLAYMATRIX":
            values = np.frombuffer(bytes(item), "<i4", count=9)
            return int(values[0]), int(values[1]), int(values[3]), int(values[4])
    return 1, 0, 0, 1


def _upright(picture: np.ndarray, matrix: tuple[int, int, int, int]) -> np.ndarray:
    """Turns and mirrors by the nearest quarter turn of the matrix."""
    a, b, c, d = matrix
    if abs(b) + abs(c) > abs(a) + abs(d):
        picture = picture.transpose(1, 0, 2)
        a, d = c, b
    return picture[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1]
