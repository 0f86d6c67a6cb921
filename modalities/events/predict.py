"""What prediction needs to know of event recordings: how a file becomes inputs of an event model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from modalities.events.data_config import EventDataConfig
from modalities.events.frames import RecordedWindow
from modalities.events.prepare import select_events
from modalities.events.read import EventReader, open_events
from modalities.events.tokenizer import Tokens
from modalities.events.tokens import EventTokens
from modalities.events.video import EventVideo
from modalities.events.windows import Window, default_stride, for_windows
from zoo.errors import ConfigError, DataError
from zoo.reading import Source

__all__ = ["Recordings"]


class Recordings:
    """Makes inputs of event recordings: of a classifier one for the whole, of a detector one for each window.

    Args:
        model: An event model.
        data_config: Its sensor, tokenizer and clock.

    Raises:
        ConfigError: If another size than that of the model's sensor is asked for.
    """

    kind = "events"
    timed = True

    def __init__(self, model: nn.Module, data_config: EventDataConfig) -> None:
        self.data_config = data_config
        self.windows = model.config["task"] == "detection"  # type: ignore[index]
        if data_config != model.data_config:
            raise ConfigError(
                "the size of an event model is that of its sensor; zoo.load(name, input_size=(height, width)) sets it"
            )

    def samples(self, source: Source, options: dict[str, Any]) -> Iterator[tuple[Tokens, dict[str, Any]]]:
        """Tokens and the fields of their results, for each window of a recording.

        Args:
            source: A path, or the bytes of a file.
            options: For `open_events`, and `stride_us`: microseconds between windows, as in `for_windows`. Without it
                a classifier sees the recording as one sample.
        """
        options = dict(options)
        stride_us = options.pop("stride_us", None)
        reader = open_events(source.value, name=source.name, **options)
        data = self.data_config
        if (reader.width or 0) > data.width or (reader.height or 0) > data.height:
            raise DataError(
                f"{source.name}: a sensor of {reader.width} x {reader.height} pixels; the model is for {data.width} x "
                f"{data.height}: load it with input_size=({reader.height}, {reader.width})"
            )
        if self.windows or stride_us is not None:
            stride_us = default_stride(data) if stride_us is None else stride_us
            windows = for_windows(reader.chunks(), data, stride_us=stride_us)
        else:
            windows = _whole(reader, data)
        for window in windows:
            yield window.tokens(), self._fields(reader, window, stride_us)

    def collate(self, inputs: list[Tokens], device: torch.device, dtype: torch.dtype) -> EventTokens:
        """A batch for the model; counts stay whole numbers."""
        return EventTokens.collate(inputs).to(device)

    def video(
        self, path: str | os.PathLike[str], *, fps: float | None = None, window_us: int | None = None
    ) -> EventVideo:
        """A video to add results to; see `EventVideo`."""
        return EventVideo(path, fps=fps, window_us=window_us)

    def _fields(self, reader: EventReader, window: Window, stride_us: int | None) -> dict[str, Any]:
        size = (reader.height or self.data_config.height, reader.width or self.data_config.width)
        return {
            "name": reader.name,
            "path": reader.path,
            "size": size,
            "truncated": window.events.truncated,
            "time_us": (window.start_us, window.end_us),
            "_picture": RecordedWindow(reader, window.start_us, window.end_us, size, stride_us),
        }


def _whole(reader: EventReader, data: EventDataConfig) -> Iterator[Window]:
    """The recording as one sample.

    It starts where its format says that it does, as the samples of a data set do, else with the first event.
    """
    events = reader.read()
    if not len(events):
        yield Window(events, 0, 0, data)
        return
    start = int(events.t_us[0])
    if reader.start_us is not None and (data.window_us is None or start < reader.start_us + data.window_us):
        start = reader.start_us  # Of a part that was cut out later than that, the window would be empty.
    back = data.time_reference == "end"
    chosen = select_events(events, data, start_us=None if back else start)
    start = int(chosen.t_us[0]) if back and len(chosen) else start
    yield Window(chosen, start, int(chosen.t_us[-1]) + 1 if len(chosen) else start, data)
