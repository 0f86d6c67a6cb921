"""Reading videos: whole, piece by piece, or chosen frames only, with the times of variable frame rates."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from modalities.video.clip import Clip, Frame, clip_from_array
from modalities.video.decode import Decoder
from zoo.errors import ConfigError, DataError

__all__ = ["MAX_BYTES", "ClipReader", "open_clip", "read_clip"]

MAX_BYTES = 2**32
"""Most bytes of decoded frames that are read at once (4 GiB): 52 s of 1280 x 720 at 30 frames a second."""

_LATE = 1.5  # frames that may be missing at the end before it counts as damage: headers round


@dataclass(frozen=True, eq=False)
class _Index:
    """Where the frames of a stream are, in the order they are shown.

    Attributes:
        times_s: float64 (N,), seconds since the start of the stream.
        pts: int64 (N,), in units of the stream; `None` where the file has no time stamps.
        keys: int64, ascending: time stamps of the key frames.
        start_s: Start of the stream in the file's clock.
    """

    times_s: np.ndarray
    pts: np.ndarray | None
    keys: np.ndarray
    start_s: float


class ClipReader:
    """A video, read as it is wanted; made by `open_clip`. Each read opens the file anew, so threads may share one.

    Attributes:
        name: The path or address as it was given.
        path: The file, if it came from one.
    """

    def __init__(self, value: Path | bytes, name: str, path: Path | None = None, errors: str | None = None) -> None:
        if errors not in (None, "raise", "keep"):
            raise ConfigError(f'errors must be "raise" or "keep", not {errors!r}')
        self._value, self.name, self.path, self._errors = value, name, path, errors
        self._told = False
        self.truncated = False

    @functools.cached_property
    def _index(self) -> _Index:
        """Made from the packets alone: nothing is decoded."""
        with Decoder(self._value, self.name) as decoder:
            found = [(packet.pts, packet.is_keyframe) for packet in decoder.packets() if packet.size]
            base, rate, start = float(decoder.time_base), decoder.rate, decoder.start_s
        if not found:
            raise DataError(f"{self.name}: the video holds no frames")
        if any(pts is None for pts, _ in found):
            if rate is None:
                raise DataError(f"{self.name}: the video has neither time stamps nor a frame rate")
            return _Index(np.arange(len(found)) / rate, None, np.zeros(0, np.int64), 0.0)
        pts = np.sort(np.array([pts for pts, _ in found], np.int64))
        start = float(pts[0]) * base if start is None else start
        keys = np.sort(np.array([pts for pts, key in found if key], np.int64))
        # Frames before the start are those that an edit list leaves out.
        shown = pts[pts * base - start > -0.5 * base]
        return _Index(shown * base - start, shown, keys, start)

    @functools.cached_property
    def size(self) -> tuple[int, int]:
        """(height, width) of the upright frames in pixels."""
        first = next(self.frames())
        return first.rgb.shape[0], first.rgb.shape[1]

    @property
    def times_s(self) -> np.ndarray:
        """float64 (N,): times of all frames in seconds since the start of the stream, found without decoding.

        Of a damaged file some of them may prove not to be decodable.
        """
        return self._index.times_s

    @property
    def duration_s(self) -> float:
        """Seconds from the first frame to the end of the last."""
        times = self.times_s
        last = float(np.median(np.diff(times))) if len(times) > 1 else 0.0
        return float(times[-1] - times[0]) + last

    def __len__(self) -> int:
        return len(self._index.times_s)

    def frames(self, start_s: float = 0.0, end_s: float | None = None) -> Iterator[Frame]:
        """Decodes frame after frame; memory holds one, however long the file.

        Args:
            start_s: The first frame is the first at or after this time; what comes before the key frame in front of
                it is not decoded.
            end_s: The last frame is the last before this time; `None` is the end.

        Raises:
            DataError: If the file is no video, holds no frames, or (with `errors="raise"`, else a warning) is damaged.
        """
        first_pts = None
        if start_s > 0:
            index = self._index
            later = np.searchsorted(index.times_s, start_s, "left")
            if later == len(index.times_s):
                return
            first_pts = None if index.pts is None else int(index.pts[later])
        with Decoder(self._value, self.name) as decoder:
            if first_pts is not None:
                decoder.seek(first_pts)
            count, last, ended = 0, None, False
            for frame, time_s in self._timed(decoder):
                if time_s < start_s:
                    continue
                if end_s is not None and time_s >= end_s:
                    ended = True
                    break
                count, last = count + 1, time_s
                yield Frame(decoder.rgb(frame, decoder.size), time_s)
            if not ended:
                self._check_end(decoder, last)
            if not count and start_s <= 0 and end_s is None:
                raise DataError(f"{self.name}: no frame of the video can be decoded")

    def at(self, indices: np.ndarray) -> Clip:
        """Decodes chosen frames only, skipping what is far from them.

        Args:
            indices: int64 (n,), positions among `times_s`, in any order; may repeat.

        Returns:
            The n frames in the order of `indices`. Where a damaged file lacks one, the last that could be decoded
            before it (or the first after it) stands in.

        Raises:
            DataError: If the file cannot be read, or an index is out of range.
        """
        index, wanted = self._index, np.unique(np.asarray(indices, np.int64))
        if not len(wanted) or wanted[0] < 0 or wanted[-1] >= len(self):
            raise DataError(f"{self.name}: frames {np.asarray(indices).tolist()!r:.80} of {len(self)} asked for")
        found: dict[int, np.ndarray] = {}
        with Decoder(self._value, self.name) as decoder:
            for run in self._runs(wanted):
                if index.pts is not None and run[0]:
                    decoder.seek(int(index.pts[run[0]]))
                self._collect(decoder, run, found)
            missing = [number for number in wanted.tolist() if number not in found]
            if missing and decoder.damage is None and index.pts is not None:
                # Some files lead a search astray: then from the start.
                decoder.seek(int(index.pts[0]))
                self._collect(decoder, missing, found)
                missing = [number for number in missing if number not in found]
            if missing or decoder.damage:
                self._damaged(decoder.damage or f"frame {missing[0]} of {len(self)} is missing")
        return self._assembled(found, indices)

    def _collect(self, decoder: Decoder, wanted: list[int], found: dict[int, np.ndarray]) -> None:
        """Decodes on until the last of the ascending positions `wanted`, and adds those frames to `found`."""
        for position, (frame, time_s) in enumerate(self._timed(decoder)):
            number = self._number(position, time_s)
            if number in wanted and number not in found:
                found[number] = decoder.rgb(frame, decoder.size)
            if number >= wanted[-1]:
                return

    def windows(self, positions: Sequence[np.ndarray]) -> Iterator[Clip]:
        """Decodes once from the start and yields a clip for each array of positions; memory holds one of them.

        Args:
            positions: int64 (n,) each, ascending; the first ones of the arrays ascend too.

        Raises:
            DataError: If the file cannot be read; what a damaged one lacks is replaced as by `at`.
        """
        needed = {int(number) for wanted in positions for number in wanted}
        held: dict[int, np.ndarray] = {}
        with Decoder(self._value, self.name) as decoder:
            timed = enumerate(self._timed(decoder))
            reached = -1
            for wanted in positions:
                while reached < wanted[-1] and (found := next(timed, None)) is not None:
                    position, (frame, time_s) = found
                    reached = self._number(position, time_s)
                    if reached in needed:
                        held[reached] = decoder.rgb(frame, decoder.size)
                if reached < wanted[-1] or decoder.damage:
                    self._damaged(decoder.damage or f"frame {wanted[-1]} of {len(self)} is missing")
                yield self._assembled(held, wanted)
                # The last one before stays, to stand in for what is missing.
                last = max((number for number in held if number <= wanted[0]), default=-1)
                held = {number: rgb for number, rgb in held.items() if number >= last}

    def _assembled(self, found: dict[int, np.ndarray], indices: np.ndarray) -> Clip:
        """The frames at positions; for those that are missing, the last one before, or the first."""
        if not found:
            raise DataError(f"{self.name}: none of the frames asked for can be decoded")
        have = np.array(sorted(found))
        chosen = have[np.maximum(np.searchsorted(have, np.asarray(indices), "right") - 1, 0)]
        frames = np.stack([found[number] for number in chosen.tolist()])
        return Clip(frames, self._index.times_s[chosen], self.name, self.path, self.truncated)

    def _number(self, position: int, time_s: float) -> int:
        """Position of a decoded frame: the nearest in time, as stamps of packets and frames may differ by rounding."""
        times = self._index.times_s
        if self._index.pts is None:
            return position
        after = min(int(np.searchsorted(times, time_s)), len(times) - 1)
        return after - 1 if after and time_s - times[after - 1] < times[after] - time_s else after

    def read_all(self, start_s: float = 0.0, end_s: float | None = None, max_bytes: int = MAX_BYTES) -> Clip:
        """Decodes everything between two times.

        Raises:
            DataError: If it takes more than `max_bytes` of memory, or as `frames`.
        """
        times = self.times_s
        count = int(((times >= start_s) & (times < (np.inf if end_s is None else end_s))).sum())
        frames: np.ndarray | None = None
        kept: list[float] = []
        for frame in self.frames(start_s, end_s):
            if frames is None or len(kept) == len(frames):
                count = max(count, 2 * len(kept), 1)
                if count * frame.rgb.nbytes > max_bytes:
                    raise DataError(
                        f"{self.name}: {count} frames of {frame.rgb.shape[1]} x {frame.rgb.shape[0]} pixels take "
                        f"{count * frame.rgb.nbytes / 2**30:.1f} GiB, the limit is {max_bytes / 2**30:.1f}: choose a "
                        "part with start_s= and end_s=, read it with modalities.video.open_clip, or raise max_bytes="
                    )
                grown = np.empty((count, *frame.rgb.shape), np.uint8)
                if frames is not None:
                    grown[: len(frames)] = frames
                frames = grown
            frames[len(kept)] = frame.rgb
            kept.append(frame.time_s)
        if frames is None:
            span = f"from {start_s:g} s" + ("" if end_s is None else f" to {end_s:g} s")
            raise DataError(f"{self.name}: no frames {span}; the video lasts {self.duration_s:.3f} s")
        return Clip(frames[: len(kept)], np.array(kept), self.name, self.path, self.truncated)

    def _timed(self, decoder: Decoder) -> Iterator[tuple[Any, float]]:
        """Frames with their times; a frame without a time stamp comes one frame after the one before."""
        step = 1 / (decoder.rate or 30.0)
        start, last = decoder.start_s, None
        for frame in decoder.frames():
            if frame.pts is None or frame.time is None:
                time_s = 0.0 if last is None else last + step
            else:
                start = float(frame.time) if start is None else start
                time_s = float(frame.time) - start
            last = time_s
            if time_s > -0.5 * float(decoder.time_base):
                yield frame, time_s

    def _runs(self, wanted: np.ndarray) -> list[list[int]]:
        """Divides ascending positions where a key frame lies between them, so that it pays to skip."""
        index = self._index
        if index.pts is None:
            return [wanted.tolist()]
        before = np.searchsorted(index.keys, index.pts[wanted], "right")  # Key frames at or before each.
        cuts = np.flatnonzero(np.diff(before) > 1) + 1
        return [part.tolist() for part in np.split(wanted, cuts)]

    def _check_end(self, decoder: Decoder, last: float | None) -> None:
        """Says whether the stream ended before the time that its header promises."""
        if decoder.damage is None and decoder.end_s is not None and last is not None:
            promised = decoder.end_s - (decoder.start_s or 0.0)
            step = 1 / decoder.rate if decoder.rate else 0.0
            # Where the rate varies the last frame may be shown for long.
            steps = np.diff(self.times_s[-50:])
            step = max(step, float(steps.max()) if len(steps) else 0.0)
            counted = not decoder.expected or len(self) < decoder.expected
            if counted and last + (1 + _LATE) * step < promised:
                decoder.damage = f"it ends at {last:.2f} s of {promised:.2f} s"
        if decoder.damage:
            self._damaged(decoder.damage, last)

    def _damaged(self, what: str, last: float | None = None) -> None:
        self.truncated = True
        if self._errors == "raise":
            raise DataError(f'{self.name}: the video is damaged ({what}); errors="keep" reads what is there')
        if not self._told:
            self._told = True
            part = "" if last is None else f" up to {last:.2f} s"
            warnings.warn(
                f"{self.name}: the video is damaged ({what}): what can be decoded{part} is used", stacklevel=3
            )


def open_clip(
    source: Path | str | bytes, *, name: str | None = None, path: Path | None = None, errors: str | None = None
) -> ClipReader:
    """Opens a video for reading frame by frame, or of chosen frames.

    Args:
        source: A path, or the bytes of a file.
        name: What errors call it; by default the path.
        path: The file it came from; by default `source`.
        errors: Of damaged files: `"raise"`, or `"keep"` what can be decoded, with a warning (the default).

    Raises:
        ConfigError: If `errors` is something else. What is wrong with the file is said when it is read.
    """
    if isinstance(source, (str, Path)):
        source = Path(source)
        path = source if path is None else path
    return ClipReader(source, str(source) if name is None and path else name or "bytes", path, errors)


def read_clip(
    value: Any,
    *,
    name: str,
    path: Path | None = None,
    errors: str | None = None,
    start_s: float = 0.0,
    end_s: float | None = None,
    fps: float | None = None,
    max_bytes: int = MAX_BYTES,
) -> Clip:
    """Reads a whole video, or a part of it, into memory; `zoo.read` is the public door.

    Args:
        value: `Path`, bytes of a file, an array or tensor uint8 (T, H, W, 3), or a `Clip`.
        name: What errors call it.
        path: The file it came from.
        errors: See `open_clip`.
        start_s: Seconds from the start of the stream at which to begin.
        end_s: Where to end; `None` is the end.
        fps: Of arrays: frames a second.
        max_bytes: Refuses to decode more than this.

    Raises:
        DataError: If it cannot be read; the message names the source.
    """
    if not isinstance(value, (Path, bytes)):
        return clip_from_array(value, name, fps)
    if fps is not None:
        raise ConfigError("fps is for frames in memory; a file has times of its own")
    for key, given in (("start_s", start_s), ("end_s", end_s)):
        if given is not None and (isinstance(given, bool) or not isinstance(given, (int, float)) or not given >= 0):
            raise ConfigError(f"{key} must be a number of seconds of 0 or more, not {given!r:.40}")
    return ClipReader(value, name, path, errors).read_all(start_s, end_s, max_bytes)
