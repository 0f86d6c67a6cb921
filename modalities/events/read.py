"""Reads event files of every format through one interface, in pieces of bounded size or whole.

What is wrong with a file is stated, never guessed away:

- An empty file, a damaged header, another kind of file: `DataError`, whatever `errors` says.
- Truncated or damaged later on: `DataError`; with `errors="keep"` the part before it, and a warning.
- A header without events: `DataError`; with `errors="keep"` no events, and a warning.
- An event outside the sensor: `DataError`; with `errors="keep"` it is dropped, and a warning says how many.
- Time that steps back: `DataError`; with `errors="keep"` the order of the file stays, and a warning says how often
  (`Events.sorted` sorts).
- Counters that wrap (DAT and AEDAT 2.0 32 bits, N-MNIST 23, EVT2 34, EVT3 24): time goes on; a step back by more than
  half the range is a wrap, a smaller one is time that steps back.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from modalities.events.events import Events
from modalities.events.formats import HEAD, decoder, detect
from modalities.events.formats.base import Block, Options, Recording, to_block
from zoo.errors import ConfigError, DataError

__all__ = ["MAX_EVENTS", "EventReader", "open_events", "read_events"]

MAX_EVENTS = 2**28
"""Most events read at once (4.3 GiB of arrays); longer recordings are read with `EventReader.chunks`."""

_EMPTY = to_block([], [], [], [])


@dataclass
class _State:
    """What one pass over a file found: `damage` says why it stopped early, if it did."""

    damage: str | None = None
    on_read: Callable[[float], None] | None = None


class EventReader:
    """An event file: its format and sensor, and its events in pieces or at once. Made by `open_events`.

    Attributes:
        format: For example `"evt3"`; see `modalities.events.formats.FORMATS`.
        width: Columns of the sensor; `None` where neither the file nor the caller says.
        height: Rows of the sensor; `None` likewise.
        start_us: When the recording began, in its clock; `None` where the format does not say.
        name: What errors call the file.
        path: The file, if it is one.
    """

    def __init__(
        self, value: Path | bytes, *, name: str, path: Path | None, errors: str, kind: str | None, options: Options
    ) -> None:
        self.name, self.path = name, path
        self._value, self._keep, self._options = value, errors == "keep", options
        with self._open() as file:
            head = file.read(HEAD)
            suffix = Path(name.partition("?")[0]).suffix.lower()  # Bytes may come from an address.
            if not head:
                raise DataError(f"{name}: the file is empty")
            self.format = kind or detect(head, suffix, name)
            file.seek(0)
            recording = self._recording(file)
        self.width = options.width or recording.width
        self.height = options.height or recording.height
        self.start_us = recording.start_us

    def _open(self) -> BinaryIO:
        if isinstance(self._value, bytes):
            return io.BytesIO(self._value)
        try:
            return self._value.open("rb")
        except OSError as error:
            raise DataError(f"{self.name}: cannot be opened ({error.strerror or error})") from error

    def _recording(self, file: BinaryIO) -> Recording:
        recording: Recording = decoder(self.format)(file, self.name, self._options)
        return recording

    def chunks(
        self, max_events: int = 1_000_000, *, on_read: Callable[[float], None] | None = None
    ) -> Iterator[Events]:
        """Iterates over the recording in the order of the file; memory stays bounded. Can be called again.

        Args:
            max_events: Events in each piece; the last may have fewer. There is no empty piece.
            on_read: Called with the share of the file read so far, 0 to 1, for progress bars; formats that keep their
                parts in no order of time (HDF5) give an estimate.

        Raises:
            DataError: Where the file is damaged; the pieces before it are complete. See the module.
        """
        if isinstance(max_events, bool) or not isinstance(max_events, int) or max_events < 1:
            raise ConfigError(f"max_events must be a positive number, not {max_events!r}")
        state = _State(on_read=on_read)
        for block, truncated in self._pieces(max_events, state):
            yield self._events(block, truncated)

    def read(self, max_events: int = MAX_EVENTS) -> Events:
        """Reads the whole recording.

        Args:
            max_events: Refuses more than this.

        Raises:
            DataError: If the file is damaged, see the module, or has more events.
        """
        parts, count, state = [_EMPTY], 0, _State()
        for block, _ in self._pieces(2**20, state):
            parts.append(block)
            count += len(block.t_us)
            if count > max_events:
                raise DataError(f"{self.name}: more than {max_events} events; read it in chunks, or raise max_events")
        whole = Block(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
        return self._events(whole, state.damage is not None)

    def _events(self, block: Block, truncated: bool) -> Events:
        return Events(
            *block,
            width=self.width,
            height=self.height,
            name=self.name,
            path=self.path,
            format=self.format,
            truncated=truncated,
        )

    def _pieces(self, size: int, state: _State) -> Iterator[tuple[Block, bool]]:
        """Pieces of exactly `size` events but the last, and whether the decoding had to stop after it."""
        held: list[Block] = []
        count = 0
        for block in self._checked(state):
            held.append(block)
            count += len(block.t_us)
            if count >= size:
                joined = Block(*(np.concatenate(arrays) for arrays in zip(*held, strict=True)))
                whole = count - count % size
                for start in range(0, whole, size):
                    yield Block(*(array[start : start + size] for array in joined)), False
                held, count = [Block(*(array[whole:] for array in joined))], count - whole
        if count:
            yield Block(*(np.concatenate(arrays) for arrays in zip(*held, strict=True))), state.damage is not None

    def _checked(self, state: _State) -> Iterator[Block]:
        """The blocks of the file after the checks that hold for every format."""
        total = dropped = backward = 0
        last: int | None = None
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(self._open())
            size = max(file.seek(0, io.SEEK_END), 1)
            file.seek(0)
            recording = self._recording(file)
            blocks = stack.enter_context(contextlib.closing(recording.blocks()))
            while True:
                try:
                    block = next(blocks, None)
                except DataError as error:
                    if not self._keep:
                        raise DataError(f'{error}; errors="keep" reads what is there') from error
                    state.damage = str(error)
                    break
                except OSError as error:
                    raise DataError(f"{self.name}: cannot be read ({error.strerror or error})") from error
                if block is None:
                    break
                if state.on_read is not None:
                    state.on_read(min(file.tell() / size, 1.0))
                inside = self._inside(block)
                if not inside.all():
                    if not self._keep:
                        self._refuse(block, int(inside.argmin()), total)
                    dropped += int((~inside).sum())
                    block = Block(*(array[inside] for array in block))
                if not len(block.t_us):
                    continue
                steps = np.diff(block.t_us, prepend=block.t_us[0] if last is None else last)
                if (steps < 0).any():
                    at = int((steps < 0).argmax())
                    if not self._keep:
                        raise DataError(
                            f"{self.name}: event {total + at}: time steps back by {-int(steps[at])} us to "
                            f'{int(block.t_us[at])}; errors="keep" keeps the order of the file'
                        )
                    backward += int((steps < 0).sum())
                last = int(block.t_us[-1])
                total += len(block.t_us)
                yield block
            notes = list(recording.notes)
        if not total and not dropped and state.damage is None and not notes:
            if not self._keep:
                raise DataError(f'{self.name}: holds no events, only a header; errors="keep" gives none')
            notes.append("holds no events, only a header")
        elif not total and not self._keep:
            raise DataError(f'{self.name}: no event can be used ({"; ".join(notes)}); errors="keep" gives none')
        if dropped:
            notes.append(f"{dropped} events outside {self._sensor()} were dropped")
        if backward:
            notes.append(f"time steps back {backward} times")
        notes = [f"{self.name}: {note}" for note in notes]
        if state.damage is not None:
            notes.append(f"{state.damage}; the {total} events before it are kept")
        for note in notes:
            warnings.warn(note, stacklevel=2)

    def _inside(self, block: Block) -> np.ndarray:
        largest = np.iinfo(np.int32).max  # What a larger coordinate became.
        inside = (block.x >= 0) & (block.y >= 0) & (block.x < largest) & (block.y < largest)
        if self.width is not None and self.height is not None:
            inside &= (block.x < self.width) & (block.y < self.height)
        return inside

    def _sensor(self) -> str:
        return "the sensor" if self.width is None else f"the {self.width} x {self.height} pixels of the sensor"

    def _refuse(self, block: Block, at: int, before: int) -> None:
        x, y = int(block.x[at]), int(block.y[at])
        raise DataError(
            f"{self.name}: event {before + at}: ({x}, {y}) is outside {self._sensor()}; pass width= and "
            'height= if they are larger; errors="keep" drops such events'
        )


def open_events(
    source: Any,
    *,
    errors: str = "raise",
    format: str | None = None,
    name: str | None = None,
    **options: Any,
) -> EventReader:
    """Opens an event file without reading its events.

    Args:
        source: A path or the bytes of a file.
        errors: `"raise"`, or `"keep"` what can be decoded; see the module.
        format: One of `modalities.events.formats.FORMATS`; `None` decides by content, then by suffix.
        name: What errors call it; the path by default.
        **options: `width`, `height`, `unit`, `columns`, `camera`, `stream`, `endianness`: see
            `modalities.events.formats.base.Options`.

    Raises:
        DataError: If it is no event file, or its header is damaged; names it.
        ConfigError: If an option is not known or has no such value.
    """
    if errors not in ("raise", "keep"):
        raise ConfigError(f'errors must be "raise" or "keep", not {errors!r}')
    if format is not None:
        decoder(format)
    try:
        chosen = Options(**options)
    except TypeError:
        known = Options.__dataclass_fields__
        raise ConfigError(
            f"options of event files are {', '.join(known)}, not {', '.join(sorted(set(options) - set(known)))}"
        ) from None
    if isinstance(source, (bytes, bytearray, memoryview)):
        value: Path | bytes = bytes(source)
        path = None
    elif isinstance(source, (str, Path)):
        value = path = Path(source).expanduser()
    else:
        raise DataError(f"{name or 'source'}: a {type(source).__name__} is no event file; pass a path or bytes")
    label = name or (str(source) if path else "bytes")
    return EventReader(value, name=label, path=path, errors=errors, kind=format, options=chosen)


def read_events(
    value: Any,
    *,
    name: str,
    path: Path | None = None,
    errors: str = "raise",
    max_events: int = MAX_EVENTS,
    **options: Any,
) -> Events:
    """Reads a whole event file; `zoo.read` is the public door.

    Args:
        value: A `Path` or bytes.
        name: What errors call it.
        path: The file it came from.
        errors: As for `open_events`.
        max_events: Refuses more than this.
        **options: As for `open_events`.

    Raises:
        DataError: As the module says; names the source.
    """
    return open_events(value, errors=errors, name=name, **options).read(max_events)
