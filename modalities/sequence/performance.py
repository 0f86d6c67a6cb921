"""Piano performances as tokens, after Performance RNN and Music Transformer (arXiv 1809.04281, section 3.2).

Legend: N tokens.
"""

from __future__ import annotations

import io
from typing import Any, NamedTuple

import numpy as np

from modalities.sequence.tokenizers import Tokenizer
from zoo.errors import DataError, require

__all__ = ["Note", "PerformanceTokenizer", "notes_from_midi", "notes_to_midi"]

MAX_BYTES = 1 << 24
"""Largest MIDI file that is read."""
_PITCHES, _SHIFTS, _VELOCITIES = 128, 100, 32
_OFF, _SHIFT, _VELOCITY = _PITCHES, 2 * _PITCHES, 2 * _PITCHES + _SHIFTS
_STEP = 0.01  # Seconds.
_PEDAL, _PRESSED = 64, 64
_TICKS = 500  # Of a quarter note; at 120 a minute one is a millisecond.
_MOST_SECONDS = 86_400.0


class Note(NamedTuple):
    """A note: seconds from the start to its onset and its end, MIDI pitch 0 .. 127, velocity 1 .. 127."""

    onset: float
    end: float
    pitch: int
    velocity: int


class PerformanceTokenizer(Tokenizer):
    """What a pianist does: 0 .. 127 a key goes down, 128 .. 255 it is let go, then time and loudness.

    256 .. 355: time goes on by 10 to 1,000 ms; 356 .. 387: the loudness of the notes that follow, in 32 steps; 388:
    the start of a piece. Between events at the same time ends come first, and loudness is said where it changes.
    """

    kind = "performance"
    start = _VELOCITY + _VELOCITIES
    vocab_size = start + 1

    def encode(self, value: Any) -> np.ndarray:
        """Ids of the bytes of a MIDI file, or of notes; see `Tokenizer.encode`.

        A key that goes down again ends its note; of those that go down in the same 10 ms the last counts.
        """
        notes = notes_from_midi(bytes(value), "MIDI") if isinstance(value, bytes | bytearray) else list(value)
        keys: dict[int, list[tuple[int, int, int]]] = {}  # Of a key: step where it goes down, is let go, and loudness.
        for onset, end, pitch, velocity in sorted(notes):
            if not (0 <= onset <= end <= _MOST_SECONDS and 0 <= pitch < _PITCHES and 1 <= velocity <= 127):
                raise DataError(f"no note that a piano plays: {(onset, end, pitch, velocity)!r:.100}")
            first, played = round(onset / _STEP), keys.setdefault(pitch, [])
            if played and played[-1][0] == first:
                played.pop()
            elif played:
                down, up, loud = played[-1]
                played[-1] = (down, min(up, first), loud)
            played.append((first, max(first + 1, round(end / _STEP)), velocity * _VELOCITIES // 128))
        events: list[tuple[int, int, int, int]] = []  # Step, whether it begins, pitch, loudness.
        for pitch, played in keys.items():
            for down, up, loud in played:
                events += [(down, 1, pitch, loud), (up, 0, pitch, 0)]
        ids: list[int] = []
        now, loudness = 0, -1
        for step, begins, pitch, wanted in sorted(events):
            while now < step:
                jump = min(step - now, _SHIFTS)
                ids.append(_SHIFT + jump - 1)
                now += jump
            if begins and wanted != loudness:
                ids.append(_VELOCITY + wanted)
                loudness = wanted
            ids.append(pitch if begins else _OFF + pitch)
        return np.array(ids, dtype=np.int64)

    def decode(self, ids: Any) -> list[Note]:
        """Notes in the order of their onsets; see `Tokenizer.decode`.

        A key that goes down again ends its note; notes that are not let go end with the last token.
        """
        down: dict[int, tuple[int, int]] = {}
        notes: list[Note] = []
        now, velocity = 0, 64

        def end(pitch: int) -> None:
            if pitch in down:
                first, loud = down.pop(pitch)
                if now > first:
                    notes.append(Note(first * _STEP, now * _STEP, pitch, loud))

        for token in self._checked(ids).tolist():
            if token >= _VELOCITY:
                velocity = min(127, (token - _VELOCITY) * (128 // _VELOCITIES) + 2)
            elif token >= _SHIFT:
                now += token - _SHIFT + 1
            elif token >= _OFF:
                end(token - _OFF)
            else:
                end(token)
                down[token] = (now, velocity)
        for pitch in list(down):
            end(pitch)
        return sorted(notes)


def notes_from_midi(data: bytes, name: str) -> list[Note]:
    """Notes of a MIDI file of type 0 or 1, all tracks together; the sustain pedal holds notes until it is let go.

    Args:
        data: The file.
        name: What errors call it.

    Raises:
        DataError: If it is damaged, too large, or longer than a day.
        MissingDependencyError: If mido is not installed.
    """
    mido = require("mido", "music")
    if len(data) > MAX_BYTES:
        raise DataError(f"{name}: {len(data)} bytes; MIDI files of at most {MAX_BYTES} are read")
    notes: list[Note] = []
    down: dict[int, tuple[float, int]] = {}
    held: set[int] = set()  # Let go while the pedal is pressed.
    now, pedal = 0.0, False

    def end(pitch: int) -> None:
        held.discard(pitch)
        if pitch in down:
            onset, velocity = down.pop(pitch)
            notes.append(Note(onset, now, pitch, velocity))

    try:
        for message in mido.MidiFile(file=io.BytesIO(data)):
            now += float(message.time)
            if now > _MOST_SECONDS:
                raise DataError(f"{name}: longer than a day")
            if message.type == "control_change" and message.control == _PEDAL:
                pedal = message.value >= _PRESSED
                for pitch in [] if pedal else sorted(held):
                    end(pitch)
            elif message.type == "note_on" and message.velocity:
                end(message.note)
                down[message.note] = (now, message.velocity)
            elif message.type in ("note_on", "note_off") and message.note in down:
                if pedal:
                    held.add(message.note)
                else:
                    end(message.note)
    except DataError:
        raise
    except Exception as error:  # A parser of bytes that anyone may have made: it raises what it runs into.
        why = " ".join(str(error).split()) or "it ends early"
        raise DataError(f"{name}: not a readable MIDI file ({why:.100})") from error
    for pitch in list(down):
        end(pitch)
    return sorted(notes)


def notes_to_midi(notes: list[Note], about: str = "") -> bytes:
    """A MIDI file (type 0) of notes; times to the millisecond.

    Args:
        notes: Of one instrument.
        about: A text in it; what is not ASCII becomes a question mark.

    Raises:
        MissingDependencyError: If mido is not installed.
    """
    mido = require("mido", "music")
    events = [(round(1000 * note.end), 0, note.pitch, 0) for note in notes]
    events += [(round(1000 * note.onset), 1, note.pitch, note.velocity) for note in notes]
    file = mido.MidiFile(type=0, ticks_per_beat=_TICKS)
    track = file.add_track()
    if about:
        track.append(mido.MetaMessage("text", text=about.encode("ascii", "replace").decode()))
    track.append(mido.MetaMessage("set_tempo", tempo=500_000))
    now = 0
    for time, begins, pitch, velocity in sorted(events):
        kind = "note_on" if begins else "note_off"
        track.append(mido.Message(kind, note=pitch, velocity=velocity, time=time - now))
        now = time
    buffer = io.BytesIO()
    file.save(file=buffer)
    return buffer.getvalue()
