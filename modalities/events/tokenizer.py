"""The spiking-patches tokenizer: a patch of pixels becomes a token once enough events fell into it.

One counter for each patch of P x P pixels. An event adds 1, unless it comes less than the refractory period after the
patch's last token: then it is dropped. At the threshold the patch emits a token (patch column and row, time of the
last event, its events) and starts again at 0. Patches that do not reach the threshold emit nothing.

The events of a token are counted by polarity, age and pixel. Age is counted back from the token; bucket 0 holds ages
below 1 ms, bucket k those from 2^(k-1) to below 2^k ms, and the last one all that are older.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from modalities.events.events import Events
from modalities.events.formats.base import UNITS, to_us
from zoo.errors import ConfigError, DataError, require

__all__ = ["SpikingPatches", "StreamingSpikingPatches", "Tokens"]

_PLACE_BITS = 20  # Of a held event; the other 43 hold its time since the first of the stream: 102 days.
_PLACE_MASK = 2**_PLACE_BITS - 1
_LATEST = 2**63 - 1  # Latest time there is.
_ROOM = 2**31  # Bytes of patches that one call of the kernel may fill; more come in several calls, and are copied.


@dataclass(frozen=True, eq=False)
class Tokens:
    """Tokens of one sample, in the order in which they were emitted.

    Attributes:
        x: int64 (S,) patch column.
        y: int64 (S,) patch row.
        t_us: int64 (S,) time of the last event of each.
        patches: int16 (S, 2, buckets, P, P) counts: polarity, age, row, column.
    """

    x: np.ndarray
    y: np.ndarray
    t_us: np.ndarray
    patches: np.ndarray

    def __len__(self) -> int:
        return len(self.x)

    @staticmethod
    def concatenate(parts: Sequence[Tokens]) -> Tokens:
        """Joins the outputs of one stream.

        Raises:
            DataError: If there is none.
        """
        if not parts:
            raise DataError("no tokens to join: the list of parts is empty")
        return Tokens(*(np.concatenate([getattr(p, f) for p in parts]) for f in ("x", "y", "t_us", "patches")))


@dataclass(frozen=True)
class SpikingPatches:
    """Tokenizes whole recordings; `stream()` tokenizes them piece by piece with the same result.

    Attributes:
        width: Columns of the sensor.
        height: Rows of the sensor; patches at the right and lower edge may be partly outside.
        patch_size: Side P of a patch in pixels.
        threshold: Events of a token, at most 32,767.
        refractory_us: Microseconds after a token in which its patch drops events; an event after exactly that time
            counts.
        buckets: Buckets of age.
    """

    width: int
    height: int
    patch_size: int = 16
    threshold: int = 256
    refractory_us: int = 100_000
    buckets: int = 10

    def __post_init__(self) -> None:
        bounds = {"width": 1, "height": 1, "patch_size": 1, "threshold": 1, "refractory_us": 0, "buckets": 1}
        for name, least in bounds.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"{name} must be a whole number from {least}, not {value!r}")
        if self.threshold > 32_767:
            raise ConfigError(f"threshold must be at most 32767, not {self.threshold}")
        if self.patch_size > 724:  # Two polarities of so many pixels fit into the bits of a place.
            raise ConfigError(f"patch_size must be at most 724, not {self.patch_size}")
        if self.refractory_us > _LATEST:
            raise ConfigError(f"refractory_us must be at most {_LATEST}, not {self.refractory_us}")
        if self.buckets > 40:  # 2^39 ms are 17 years.
            raise ConfigError(f"buckets must be at most 40, not {self.buckets}")

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of patches."""
        return -(-self.height // self.patch_size), -(-self.width // self.patch_size)

    def __call__(self, events: Events) -> Tokens:
        """Tokenizes events whose times do not step back.

        Raises:
            DataError: If an event is outside the sensor or time steps back.
        """
        return self.stream().push(events)

    def from_arrays(self, t: np.ndarray, x: np.ndarray, y: np.ndarray, p: np.ndarray, *, unit: str) -> Tokens:
        """Tokenizes plain arrays (N,).

        Args:
            t: Times, whole or floating-point; rounded to microseconds.
            x: Columns.
            y: Rows.
            p: Polarity, 0 or False for darker.
            unit: Unit of `t`: `"ns"`, `"us"`, `"ms"` or `"s"`.

        Raises:
            ConfigError: If there is no such unit.
            DataError: As for events.
        """
        if unit not in UNITS:
            raise ConfigError(f"unit must be one of {', '.join(UNITS)}, not {unit!r}")
        arrays = [np.asarray(a) for a in (t, x, y, p)]
        for name, array in zip("txyp", arrays, strict=True):
            if array.ndim != 1 or array.dtype.kind not in ("iuf" if name == "t" else "iub"):
                raise DataError(f"events: {name} must be an array (N,) of numbers, not {array.dtype} {array.shape}")
        columns, rows = (np.clip(a, -1, 2**31 - 1).astype(np.int32) for a in arrays[1:3])  # Outside stays outside.
        return self(Events(to_us(arrays[0], unit, "events"), columns, rows, arrays[3] > 0))

    def stream(self) -> StreamingSpikingPatches:
        """A tokenizer with a state, for a recording that comes in pieces."""
        return StreamingSpikingPatches(self)


class StreamingSpikingPatches:
    """Tokenizes a recording piece by piece; the tokens of all pieces are those of the whole.

    Args:
        settings: Sensor, patches and thresholds.
    """

    def __init__(self, settings: SpikingPatches) -> None:
        self.settings = settings
        self._kernel, self._first_bad = _kernel(), _check_kernel()
        rows, columns = settings.grid
        self._tables, self._edges = _tables(settings)
        # Of each patch: the number of events held, when it takes events again, and the events: time since the first
        # of the stream and, in the low bits, the place (polarity, row, column). One number each, for the caches.
        self._counts = np.zeros(rows * columns, np.int32)
        self._ready = np.zeros(rows * columns, np.int64)
        self._held = np.zeros((rows * columns, settings.threshold), np.int64)
        self.reset()

    def reset(self) -> None:
        """Forgets everything, for the next recording."""
        self._counts[:] = 0
        self._ready[:] = np.iinfo(np.int64).min
        self._first: int | None = None
        self._last: int | None = None
        self._seen = 0

    def push(self, events: Events) -> Tokens:
        """Takes the next events and returns the tokens they complete.

        Raises:
            DataError: If an event is outside the sensor, or time steps back within the events or from those before;
                the state is as before then.
        """
        settings = self.settings
        if len(events):
            self._check(events)
        area = settings.patch_size**2
        volume = (2, settings.buckets, settings.patch_size, settings.patch_size)
        at_most = (len(events) + int(self._counts.sum())) // settings.threshold
        room = min(at_most, max(1, _ROOM // (4 * settings.buckets * area)))
        parts: list[Tokens] = []
        start = 0
        while not parts or start < len(events):
            patch, t_us = np.empty(room, np.int64), np.empty(room, np.int64)
            patches = np.empty((room, *volume), np.int16)  # The system gives memory only to those that are filled.
            start, made = self._kernel(
                *(events.t_us, events.x, events.y, events.p, start, *self._tables, area),
                *(settings.threshold, settings.refractory_us, self._edges),
                *(self._first or 0, self._counts, self._ready, self._held),
                *(patch, t_us, patches.reshape(room, 2 * settings.buckets * area)),
            )
            row, column = np.divmod(patch[:made], settings.grid[1])
            parts.append(Tokens(column, row, t_us[:made], patches[:made]))
        return parts[0] if len(parts) == 1 else Tokens.concatenate(parts)

    def _check(self, events: Events) -> None:
        settings = self.settings
        t = events.t_us
        before = int(t[0]) if self._last is None else self._last
        at, outside = self._first_bad(t, events.x, events.y, settings.width, settings.height, before)
        if at >= 0 and outside:
            raise DataError(
                f"{events.name}: event {self._seen + at}: ({events.x[at]}, {events.y[at]}) is outside the "
                f"{settings.width} x {settings.height} pixels of the tokenizer"
            )
        if at >= 0:
            before = before if at == 0 else int(t[at - 1])
            raise DataError(
                f"{events.name}: event {self._seen + at}: time steps back from {before} to {int(t[at])} us; "
                "Events.sorted() sorts"
            )
        first = int(t[0]) if self._first is None else self._first
        if int(t[-1]) - first >= 1 << (63 - _PLACE_BITS):
            raise DataError(
                f"{events.name}: {(int(t[-1]) - first) / 8.64e10:.0f} days after the first event; a stream may last "
                f"{(1 << (63 - _PLACE_BITS)) / 8.64e10:.0f} days: reset it before a recording with another clock"
            )
        self._first, self._last = first, int(t[-1])
        self._seen += len(events)


@functools.lru_cache(maxsize=16)
def _tables(settings: SpikingPatches) -> tuple[list[np.ndarray], np.ndarray]:
    """Of each pixel column and row, its part of the number of the patch, and of the place in it; edges of buckets."""
    side, columns = settings.patch_size, settings.grid[1]
    x, y = np.arange(settings.width), np.arange(settings.height)
    tables = [a.astype(np.int32) for a in (x // side, y // side * columns, x % side, y % side * side)]
    return tables, 1000 * 2 ** np.arange(settings.buckets - 1, dtype=np.int64)


@functools.cache
def _kernel() -> Callable[..., Any]:
    return compiled(_tokenize)


@functools.cache
def _check_kernel() -> Callable[..., Any]:
    return compiled(_first_bad)


def _first_bad(t: np.ndarray, x: np.ndarray, y: np.ndarray, width: int, height: int, before: int) -> tuple[int, bool]:
    """The first event outside the sensor, else the first whose time steps back, else -1; and whether it is outside."""
    back = -1
    for i in range(len(t)):
        if x[i] < 0 or x[i] >= width or y[i] < 0 or y[i] >= height:
            return i, True
        if back < 0 and t[i] < before:
            back = i
        before = t[i]
    return back, False


def compiled(loop: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a loop over events with Numba; threads run it side by side.

    The machine code is kept on disk for the next process where that can be written.
    """
    njit = require("numba", extra="events").njit
    try:
        kernel: Callable[..., Any] = njit(cache=True, nogil=True)(loop)
    except RuntimeError:  # No folder for the cache.
        kernel = njit(nogil=True)(loop)
    return kernel


def _tokenize(
    t: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    p: np.ndarray,
    start: int,
    patch_of_x: np.ndarray,
    patch_of_y: np.ndarray,
    place_of_x: np.ndarray,
    place_of_y: np.ndarray,
    area: int,
    threshold: int,
    refractory: int,
    edges: np.ndarray,
    first: int,
    counts: np.ndarray,
    ready: np.ndarray,
    all_held: np.ndarray,
    out_patch: np.ndarray,
    out_t: np.ndarray,
    out: np.ndarray,
) -> tuple[int, int]:
    """Takes events from `start` until they or the room for tokens end; returns the next event and the tokens made."""
    made = 0
    skip = len(edges) * area  # What is between the last row of a bucket and the same bucket of brighter events.
    for i in range(start, len(t)):
        patch = patch_of_x[x[i]] + patch_of_y[y[i]]
        now = t[i]
        if now < ready[patch]:
            continue
        held = counts[patch]
        if held + 1 == threshold and made == len(out_t):
            return i, made
        place = p[i] * area + place_of_y[y[i]] + place_of_x[x[i]]
        all_held[patch, held] = (now - first) << _PLACE_BITS | place
        if held + 1 < threshold:
            counts[patch] = held + 1
            continue
        counts[patch] = 0
        ready[patch] = now + refractory if now < 0 or refractory <= _LATEST - now else _LATEST
        out_patch[made], out_t[made] = patch, now
        out[made] = 0
        bucket = 0
        for k in range(threshold - 1, -1, -1):  # From the youngest, so that the bucket only rises.
            event = all_held[patch, k]
            age = now - first - (event >> _PLACE_BITS)
            while bucket < len(edges) and age >= edges[bucket]:
                bucket += 1
            place = event & _PLACE_MASK
            out[made, place + bucket * area + (skip if place >= area else 0)] += 1
        made += 1
    return len(t), made
