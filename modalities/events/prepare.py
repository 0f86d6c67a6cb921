"""From events to the tokens a model takes, in training and prediction alike: selection, tokenizer, time reference."""

from __future__ import annotations

import dataclasses

import numpy as np

from modalities.events.data_config import EventDataConfig
from modalities.events.events import Events
from modalities.events.tokenizer import Tokens

__all__ = ["prepare", "select_events"]


def prepare(
    events: Events, data_config: EventDataConfig, *, start_us: int | None = None, end_us: int | None = None
) -> Tokens:
    """Tokens of one sample, with times as the model wants them.

    Args:
        events: Events in the order of time; those outside of the sample are left out, see `select_events`.
        data_config: Sensor, tokenizer and clock.
        start_us: Start of the sample in the events' clock; by default the time of the first event.
        end_us: End of the sample, such as the time of a label; by default right after the last event.

    Returns:
        Tokens in the order in which they were emitted, `t_us` counted from `start_us` (`time_reference="start"`) or
        back from `end_us` (`"end"`: the age, the latest token has the smallest). There may be none.

    Raises:
        DataError: If an event is outside the sensor or time steps back.
    """
    chosen = select_events(events, data_config, start_us=start_us, end_us=end_us)
    tokens = data_config.tokenizer(chosen)
    if not len(tokens):
        return tokens
    if data_config.time_reference == "end":
        t_us = _end(chosen, end_us) - tokens.t_us
    else:
        t_us = tokens.t_us - (int(chosen.t_us[0]) if start_us is None else start_us)
    return dataclasses.replace(tokens, t_us=t_us)


def select_events(
    events: Events, data_config: EventDataConfig, *, start_us: int | None = None, end_us: int | None = None
) -> Events:
    """The events of a sample: from `start_us` to before `end_us`, at most `window_us` next to the reference.

    The window begins at the start (`time_reference="start"`) or ends at the end (`"end"`). Of what is in it, the last
    `max_events` stay. Arguments as in `prepare`.
    """
    if len(events) and not (events.t_us[1:] >= events.t_us[:-1]).all():
        return events  # The tokenizer says where time steps back.
    window = data_config.window_us
    if window is not None and len(events):
        if data_config.time_reference == "end":
            first = _end(events, end_us) - window
            start_us = first if start_us is None else max(start_us, first)
        else:
            last = (int(events.t_us[0]) if start_us is None else start_us) + window
            end_us = last if end_us is None else min(end_us, last)
    low = 0 if start_us is None else int(np.searchsorted(events.t_us, start_us, "left"))
    high = len(events) if end_us is None else int(np.searchsorted(events.t_us, end_us, "left"))
    if data_config.max_events is not None:
        low = max(low, high - data_config.max_events)
    return events[low : max(low, high)]


def _end(events: Events, end_us: int | None) -> int:
    return int(events.t_us[-1]) + 1 if end_us is None else end_us
