"""Windows of a DAT file, found by time without reading what is before them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from modalities.events.datasets.base import as_recorded
from modalities.events.events import Events
from modalities.events.formats.base import Options
from modalities.events.formats.prophesee import DAT_RECORD, dat_block, open_dat
from zoo.errors import DataError

__all__ = ["DatWindows"]


class DatWindows:
    """A DAT file of less than 71.6 minutes (its counter must not wrap); memory is that of one window.

    Args:
        path: The file.
        width: Columns of the sensor; the header must not state another.
        height: Rows of the sensor.
        errors: `"raise"`, or `"keep"` what can be decoded: a last event that is cut off is left out, events outside
            the sensor are dropped, and a window in which time steps back is sorted.

    Raises:
        DataError: If it is no such file; without `"keep"` also if it has no event or ends within one.
    """

    def __init__(self, path: Path, width: int, height: int, errors: str = "raise") -> None:
        self.path, self.width, self.height, self._errors = path, width, height, errors
        try:
            with path.open("rb") as file:
                open_dat(file, str(path), Options())
                start = file.tell()
            count, rest = divmod(path.stat().st_size - start, DAT_RECORD.itemsize)
            if (rest or not count) and errors != "keep":
                problem = f"truncated: it ends with {rest} bytes of event {count}" if rest else "holds no events"
                raise DataError(f'{path}: {problem}; errors="keep" takes what is there')
            self._records = np.memmap(path, DAT_RECORD, "r", start, (count,)) if count else np.zeros(0, DAT_RECORD)
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
        if count and self._records["t"][-1] < self._records["t"][0]:
            raise DataError(f"{path}: its last event is before its first: a recording over 71.6 minutes, or damaged")

    def before(self, t_us: int, window_us: int | None = None, window_events: int | None = None) -> Events:
        """The events before a time; there may be none.

        Args:
            t_us: Events at this time or later are not taken.
            window_us: Only those of so many microseconds before it; `None` for no such bound.
            window_events: Only the last so many; `None` for no such bound.

        Raises:
            DataError: If the window is damaged; see `errors`.
        """
        times = self._records["t"]
        end = int(np.searchsorted(times, np.uint32(min(max(t_us, 0), 2**32 - 1))))
        start = 0 if window_events is None else max(0, end - window_events)
        if window_us is not None:
            start = max(start, int(np.searchsorted(times, np.uint32(min(max(t_us - window_us, 0), 2**32 - 1)))))
        raw = np.array(self._records[start:end])
        block = dat_block(raw, raw["t"])
        if self._errors != "keep" and (np.diff(block.t_us) < 0).any():
            raise DataError(f'{self.path}: time steps back before {t_us} us; errors="keep" sorts')
        events = Events(*block, name=str(self.path), path=self.path, format="dat")
        return as_recorded(events, self.width, self.height, self._errors)
