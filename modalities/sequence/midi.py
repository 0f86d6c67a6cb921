"""Chorales as MIDI files, and MIDI files as chorales.

Legend: T steps of a 16th note each, 4 voices: soprano, alto, tenor, bass.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from modalities.sequence.tokenizers import SILENT, VOICES
from zoo.errors import ConfigError, DataError, require

__all__ = ["MAX_BYTES", "STEPS_PER_QUARTER", "TEMPO", "from_midi", "held_notes", "to_midi"]

STEPS_PER_QUARTER = 4
TEMPO = 90
"""Quarter notes a minute unless asked: data of chorales do not tell."""
MAX_BYTES = 2**20
"""Largest MIDI file that is read: its messages take some hundred times as much memory."""
_TICKS = 120  # Of a step.
_PROGRAM = 52  # Choir.
_VELOCITY = 80
_DRUMS = 9  # The channel whose notes are no pitches.


def held_notes(pitches: np.ndarray) -> list[list[tuple[int, int, int]]]:
    """The notes of each voice: (first step, steps, pitch).

    Equal pitches in consecutive steps are one held note: data of chorales do not tell held from repeated notes.

    Args:
        pitches: Integers (T, 4), MIDI numbers or `SILENT`.
    """
    voices = []
    for line in np.asarray(pitches).T.tolist():
        found: list[tuple[int, int, int]] = []
        for step, pitch in enumerate(line):
            if pitch == SILENT:
                continue
            if step and line[step - 1] == pitch:
                first, steps, _ = found[-1]
                found[-1] = (first, steps + 1, pitch)
            else:
                found.append((step, 1, pitch))
        voices.append(found)
    return voices


def to_midi(pitches: np.ndarray, *, tempo: float = TEMPO, about: str = "") -> bytes:
    """A standard MIDI file (type 1) of four tracks named after the voices, the first with tempo and time signature.

    Equal pitches in consecutive steps are held, see `held_notes`. The time signature is 4/4 whatever the piece: its
    metre is not known. `from_midi` gives the same pitches.

    Args:
        pitches: Integers (T, 4), T at least 1, MIDI numbers 0 .. 127 or `SILENT`; a step is a 16th note.
        tempo: Quarter notes a minute, 4 to 1000.
        about: A text in the first track; what is not ASCII becomes a question mark.

    Raises:
        ConfigError: If the tempo cannot be used.
        DataError: If these are no pitches.
        MissingDependencyError: If mido is not installed.
    """
    mido = require("mido", "music")
    if isinstance(tempo, bool) or not isinstance(tempo, (int, float)) or not 4 <= tempo <= 1000:
        raise ConfigError(f"a tempo is 4 to 1000 quarter notes a minute, not {tempo!r:.40}")
    pitches = np.asarray(pitches)
    if pitches.ndim != 2 or pitches.shape[1] != len(VOICES) or pitches.dtype.kind not in "iu" or not len(pitches):
        raise DataError(f"a chorale is whole numbers (steps, 4), a step at least, got {pitches.dtype} {pitches.shape}")
    if not ((pitches == SILENT) | ((pitches >= 0) & (pitches <= 127))).all():
        raise DataError(f"pitches are MIDI numbers 0..127, or {SILENT} for silence")
    file = mido.MidiFile(type=1, ticks_per_beat=STEPS_PER_QUARTER * _TICKS)
    for channel, (name, notes) in enumerate(zip(VOICES, held_notes(pitches), strict=True)):
        track = file.add_track(name)
        if not channel:
            if about:
                track.append(mido.MetaMessage("text", text=about.encode("ascii", "replace").decode()))
            track.append(mido.MetaMessage("set_tempo", tempo=round(60e6 / tempo)))
            track.append(mido.MetaMessage("time_signature", numerator=4, denominator=4))
        track.append(mido.Message("program_change", channel=channel, program=_PROGRAM))
        now = 0
        for first, steps, pitch in notes:
            for kind, at in (("note_on", first), ("note_off", first + steps)):
                track.append(
                    mido.Message(kind, channel=channel, note=pitch, velocity=_VELOCITY, time=_TICKS * (at - now))
                )
                now = at
        track.append(mido.MetaMessage("end_of_track", time=_TICKS * (len(pitches) - now)))
    buffer = io.BytesIO()
    file.save(file=buffer)
    return buffer.getvalue()


def from_midi(data: bytes, name: str, *, max_steps: int) -> np.ndarray:
    """Pitches int64 (T, 4) of a MIDI file: its first four tracks with notes, soprano first, in steps of a 16th note.

    Notes begin and end at the nearest 16th of the file's quarter notes; those that have no 16th left are dropped.
    Tempo, loudness, instruments and drums (channel 10) are not read.

    Args:
        data: The file.
        name: What errors call it.
        max_steps: Refuses longer ones.

    Raises:
        DataError: If it is damaged, larger than `MAX_BYTES` or longer than `max_steps`; of type 2 (tracks that are not
            played together) or timed in frames of film instead of quarter notes; has fewer than four tracks with
            notes, as have files of type 0; or a voice has two notes at once.
        MissingDependencyError: If mido is not installed.
    """
    mido = require("mido", "music")
    if len(data) > MAX_BYTES:
        raise DataError(f"{name}: {len(data)} bytes; MIDI files of at most {MAX_BYTES} are read")
    try:
        file = mido.MidiFile(file=io.BytesIO(data))
    except Exception as error:  # A parser of bytes that anyone may have made: it raises what it runs into.
        why = " ".join(str(error).split()) or "it ends early"
        raise DataError(f"{name}: not a readable MIDI file ({why:.100})") from error
    if file.type not in (0, 1):
        raise DataError(f"{name}: a MIDI file of type {file.type}, whose tracks are not played together")
    if file.ticks_per_beat <= 0:
        raise DataError(f"{name}: timed in frames of film, not in quarter notes")
    tracks = [(notes, end) for notes, end in map(_notes, file.tracks) if notes][: len(VOICES)]
    if len(tracks) < len(VOICES):
        raise DataError(f"{name}: {len(tracks)} tracks with notes; a chorale has a track for each of its four voices")
    ticks = file.ticks_per_beat

    def nearest(tick: int) -> int:
        return (2 * STEPS_PER_QUARTER * tick + ticks) // (2 * ticks)

    length = max(nearest(end) for _, end in tracks)
    if length > max_steps:
        raise DataError(f"{name}: {length} 16th notes; at most {max_steps} are read")
    pitches = np.full((length, len(VOICES)), SILENT, dtype=np.int64)
    for voice, (notes, _) in enumerate(tracks):
        for begin, end, pitch in notes:
            span = pitches[nearest(begin) : nearest(end), voice]
            if (span != SILENT).any():
                where = begin / ticks
                raise DataError(
                    f"{name}: two notes at once in the track of the {VOICES[voice]}, {where:g} quarter notes from the "
                    "start"
                )
            span[:] = pitch
    return pitches


def _notes(track: Sequence[Any]) -> tuple[list[tuple[int, int, int]], int]:
    """Notes of a track as (first tick, tick after, pitch), and its last tick."""
    found: list[tuple[int, int, int]] = []
    sounding: dict[tuple[int, int], int] = {}
    now = 0
    for message in track:
        now += int(message.time)
        if message.type not in ("note_on", "note_off") or message.channel == _DRUMS:
            continue
        key = (message.channel, message.note)
        if key in sounding:  # Struck again, it ends as well.
            found.append((sounding.pop(key), now, message.note))
        if message.type == "note_on" and message.velocity:
            sounding[key] = now
    found.extend((begin, now, note) for (_, note), begin in sounding.items())
    return found, now
