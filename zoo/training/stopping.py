"""When to stop early: a time budget, or a request by signal."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

__all__ = ["StopRequest"]


class StopRequest:
    """Context manager; `reason()` says why the run should save and stop, or is `None`.

    SIGTERM and the first SIGINT become a request; a second SIGINT interrupts as usual.

    Args:
        max_minutes: Time from now, or `None`.
    """

    def __init__(self, max_minutes: float | None) -> None:
        self.max_minutes = max_minutes
        self._deadline = None if max_minutes is None else time.monotonic() + 60 * max_minutes
        self._signal: str | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # Python allows handlers only there
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._signal = signal.Signals(number).name
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, self._previous[signal.SIGINT])

    def reason(self) -> str | None:
        """Why to stop now, or `None`."""
        if self._signal:
            return self._signal
        if self._deadline is not None and time.monotonic() >= self._deadline:
            return f"max_minutes {self.max_minutes:g} is over"
        return None
