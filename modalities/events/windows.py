"""A recording as a sequence of samples in time, read piece by piece: what a model sees while a camera runs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from modalities.events.data_config import EventDataConfig
from modalities.events.events import Events
from modalities.events.prepare import prepare, select_events
from modalities.events.tokenizer import Tokens
from zoo.errors import ConfigError

__all__ = ["QUIET", "STRIDE_US", "Window", "default_stride", "for_windows"]

STRIDE_US = 100_000
"""Microseconds between windows where nothing else is said."""

QUIET = 1_000
"""Windows in a row without a new event that are given; a clock that jumps by years would otherwise give billions."""


@dataclass(frozen=True, eq=False)
class Window:
    """One sample of a recording.

    Attributes:
        events: The events the model sees.
        start_us: Where the window starts, in the clock of the recording.
        end_us: Where it ends; an event at this time is not in it.
        data_config: What `tokens` prepares for.
    """

    events: Events
    start_us: int
    end_us: int
    data_config: EventDataConfig

    def tokens(self) -> Tokens:
        """Tokens of the window, as `prepare` makes them.

        Raises:
            DataError: If an event is outside the sensor.
        """
        return prepare(self.events, self.data_config, start_us=self.start_us, end_us=self.end_us)


def default_stride(data_config: EventDataConfig) -> int:
    """Microseconds between windows where nothing else is said: the window, so that each event is seen once."""
    return data_config.window_us or STRIDE_US


def for_windows(
    chunks: Iterable[Events], data_config: EventDataConfig, *, stride_us: int | None = None
) -> Iterator[Window]:
    """Cuts a recording into the samples a model sees, one every `stride_us`; memory holds one window and one chunk.

    With `time_reference="end"` windows end at the first event + 1, 2, ... strides and hold what `window_us` and
    `max_events` leave of the events before (without either: all of them). With `"start"` windows start at the first
    event + 0, 1, ... strides and are `window_us` long (without: one stride). The last window holds the last event.
    A recording without events has no window. Of a pause, the first `QUIET` windows that bring no new event are given;
    the rest are left out, with a warning, up to the next event.

    Args:
        chunks: Pieces of the recording in their order, such as `EventReader.chunks()`. Events that step back in time
            within what is held are put in order.
        data_config: Sensor, window and clock of the model.
        stride_us: Microseconds between windows; by default `window_us`, or 100 ms where there is none.

    Raises:
        ConfigError: If the stride is not a positive whole number.
        DataError: What reading the chunks raises.
    """
    stride = default_stride(data_config) if stride_us is None else stride_us
    if isinstance(stride, bool) or not isinstance(stride, int) or stride < 1:
        raise ConfigError(f"stride_us must be a positive whole number of microseconds, not {stride!r:.60}")
    return _windows(chunks, data_config, stride)


def _windows(chunks: Iterable[Events], data: EventDataConfig, stride: int) -> Iterator[Window]:
    length = stride if data.window_us is None or data.time_reference == "end" else data.window_us
    quiet = 0
    held: Events | None = None
    start: int | None = None
    for chunk in chunks:
        if not len(chunk):
            continue
        held = chunk.sorted() if held is None or not len(held) else Events.concatenate([held, chunk]).sorted()
        if start is None:
            start = int(held.t_us[0])
        last = int(held.t_us[-1])
        while last >= (end := start + length):  # All events of the window are there.
            yield _cut(held, data, start, end)
            low, high = held.t_us.searchsorted((end - stride, end), "left")
            quiet = quiet + 1 if low == high else 0
            start += stride
            if quiet >= QUIET and last >= start + length:
                start += stride * _left_out(held, start + length, stride)
            held = _needed(held, data, start, stride)
    if held is None or start is None:
        return
    last = int(held.t_us[-1]) if len(held) else start - 1
    while start <= last:
        yield _cut(held, data, start, start + length)
        start += stride


def _left_out(held: Events, end: int, stride: int) -> int:
    """How many of the windows that end at `end`, `end` + 1 stride, ... come before the next event; warns of them."""
    following = int(held.t_us.searchsorted(end - stride, "left"))
    arrives = int(held.t_us[following])  # There is one, since the last event held is not before `end`.
    count = max(0, (arrives - end) // stride + 1)
    if count:
        warnings.warn(
            f"{held.name}: no event before {arrives} us for {QUIET} windows and {count} more, which are left out",
            stacklevel=2,
        )
    return count


def _cut(held: Events, data: EventDataConfig, start: int, end: int) -> Window:
    """The window of the stride from `start`, or that ends at `end`."""
    if data.time_reference == "start":
        return Window(select_events(held, data, start_us=start, end_us=end), start, end, data)
    events = select_events(held, data, end_us=end)
    first = int(held.t_us[0]) if len(held) else end
    return Window(events, first if data.window_us is None else end - data.window_us, end, data)


def _needed(held: Events, data: EventDataConfig, start: int, stride: int) -> Events:
    """The events that windows from this stride on may hold."""
    if data.time_reference == "start":
        return held[int(held.t_us.searchsorted(start, "left")) :]
    end = start + stride
    low = 0 if data.window_us is None else int(held.t_us.searchsorted(end - data.window_us, "left"))
    if data.max_events is not None:
        low = max(low, int(held.t_us.searchsorted(end, "left")) - data.max_events)
    return held[low:]
