"""Chorales as MIDI files and as pages that play: what is written, what is read back, and what is refused."""

from __future__ import annotations

import base64
import html.parser
import io
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from decoder_toys import toy

import zoo
from modalities.sequence.midi import MAX_BYTES, from_midi, held_notes, to_midi
from modalities.sequence.player import page
from modalities.sequence.results import Chorale
from modalities.sequence.tokenizers import ChoraleTokenizer
from zoo.errors import ConfigError, DataError

mido = pytest.importorskip("mido")

# Soprano held, then moving; alto that begins late; a tenor that is silent in between; no bass.
PIECE = np.array([[72, -1, 60, -1], [72, 64, 60, -1], [74, 64, -1, -1], [72, 64, 60, -1], [-1, -1, 60, -1]])


def drawn(steps: int, seed: int) -> np.ndarray:
    """Pitches with held notes and silence."""
    generator = np.random.default_rng(seed)
    few = generator.integers(59, 63, (steps, 4))
    return np.where(few == 59, -1, few)


def file_of(
    *tracks: list[tuple[str, int, int]], ticks: int = 96, kind: int = 1, channels: tuple[int, ...] = (0, 1, 2, 3)
) -> bytes:
    """A file of tracks of (message, note, ticks since the one before)."""
    made = mido.MidiFile(type=kind, ticks_per_beat=ticks)
    for channel, events in zip(channels, tracks, strict=False):
        track = made.add_track()
        for message, note, time in events:
            track.append(mido.Message(message, note=note, time=time, channel=channel))
    buffer = io.BytesIO()
    made.save(file=buffer)
    return buffer.getvalue()


def voice(note: int, length: int = 96, wait: int = 0) -> list[tuple[str, int, int]]:
    return [("note_on", note, wait), ("note_off", note, length)]


def read(data: bytes, steps: int = 1000) -> np.ndarray:
    return from_midi(data, "x.mid", max_steps=steps)


def test_notes_are_held():
    assert held_notes(PIECE) == [
        [(0, 2, 72), (2, 1, 74), (3, 1, 72)],
        [(1, 3, 64)],
        [(0, 2, 60), (3, 2, 60)],
        [],
    ]


def test_the_file():
    file = mido.MidiFile(file=io.BytesIO(to_midi(PIECE, tempo=80, about="by ∂")))
    assert file.type == 1 and [track.name for track in file.tracks] == ["soprano", "alto", "tenor", "bass"]
    first = {message.type: message for message in file.tracks[0]}
    assert mido.tempo2bpm(first["set_tempo"].tempo) == 80 and first["text"].text == "by ?"
    assert (first["time_signature"].numerator, first["time_signature"].denominator) == (4, 4)
    sounds = [(one.type, one.note, one.time) for one in file.tracks[2] if one.type.startswith("note")]
    assert sounds == [("note_on", 60, 0), ("note_off", 60, 240), ("note_on", 60, 120), ("note_off", 60, 240)]
    assert {one.channel for one in file.tracks[2] if not one.is_meta} == {2}
    # Five 16ths at 80 quarter notes a minute.
    assert file.length == pytest.approx(5 / 4 * 60 / 80)


@pytest.mark.parametrize("steps", [1, 2, 7, 64])
def test_what_is_read_is_what_was_written(steps):
    for seed in range(5):
        pitches = drawn(steps, seed)
        pitches[0] = 62  # A voice without a note is no voice.
        assert (read(to_midi(pitches)) == pitches).all()
    ends = np.full((steps + 3, 4), -1)
    ends[1] = 108, 21, 60, 60
    assert (read(to_midi(ends)) == ends).all()  # Silence at both ends stays.


def test_pitches_that_are_none():
    for bad in (PIECE[:, :3], PIECE[0], PIECE / 2, PIECE[:0]):
        with pytest.raises(DataError, match="a chorale is whole numbers"):
            to_midi(bad)
    for bad in (128, -2):
        with pytest.raises(DataError, match="pitches are MIDI numbers"):
            to_midi(np.full((2, 4), bad))
    for tempo in (0, 1e9, float("nan"), True, "fast"):
        with pytest.raises(ConfigError, match="a tempo is 4 to 1000"):
            to_midi(PIECE, tempo=tempo)


def test_files_of_others_are_quantised():
    # 24 ticks are a 16th; a little early and late, a grace note, a note struck again without an end, velocity 0.
    soprano = [*voice(72, 50, 2), ("note_on", 71, 0), ("note_off", 71, 6), *voice(74, 38)]
    alto = [("note_on", 60, 0), ("note_on", 60, 48), ("note_off", 60, 48)]
    drums = voice(36, 960)
    data = file_of(drums, [], soprano, alto, voice(55), voice(48), voice(40), channels=(9, 0, 0, 1, 2, 3, 4))
    assert read(data).tolist() == [[72, 60, 55, 48]] * 2 + [[74, 60, 55, 48]] * 2
    # A note without an end lasts to that of its track.
    made = mido.MidiFile(ticks_per_beat=96)
    for events in (voice(72), voice(60), voice(55)):
        made.tracks.append(mido.MidiTrack(mido.Message(m, note=n, time=t) for m, n, t in events))
    last = mido.Message("control_change", time=48)
    made.tracks.append(mido.MidiTrack([mido.Message("note_on", note=50), last]))
    buffer = io.BytesIO()
    made.save(file=buffer)
    assert read(buffer.getvalue())[:, 3].tolist() == [50, 50, -1, -1]


def test_files_that_are_refused():
    four = [voice(note) for note in (72, 60, 55, 48)]
    good = file_of(*four)
    assert read(good).shape == (4, 4)
    chord = [("note_on", 60, 96), ("note_on", 64, 0), ("note_off", 60, 96), ("note_off", 64, 0)]
    smpte = bytearray(good)
    smpte[12:14] = b"\xe7\x28"  # 25 frames a second, 40 parts of each.
    for data, message in (
        (file_of(*four[:3]), "3 tracks with notes; a chorale has a track for each of its four voices"),
        (file_of(sum(four, []), kind=0), "1 tracks with notes"),
        (file_of(*four, kind=2), "type 2, whose tracks are not played together"),
        (file_of(four[0], chord, *four[2:]), "two notes at once in the track of the alto, 1 quarter notes from"),
        (bytes(smpte), "timed in frames of film"),
        (file_of(*four[:3], voice(48, wait=96 * 250)), "1004 16th notes; at most 1000"),
        (file_of(*four[:3], voice(48, wait=2**28 - 1)), "16th notes; at most 1000"),
        (b"MThd", "not a readable MIDI file"),
        (b"words", "not a readable MIDI file"),
        (good + bytes(MAX_BYTES), "of at most 1048576 are read"),
    ):
        with pytest.raises(DataError, match=f"x.mid: .*{message}"):
            read(data)


def test_damaged_files_never_surprise():
    good = to_midi(drawn(16, 1))
    refused = 0
    for cut in range(0, len(good), 7):
        try:
            read(good[:cut])
        except DataError:
            refused += 1
    assert refused > len(good) // 14
    generator = np.random.default_rng(0)
    for _ in range(150):
        data = bytearray(good)
        for place in generator.integers(0, len(data), 4):
            data[place] = generator.integers(256)
        try:
            found = read(bytes(data))
        except DataError:
            continue
        assert found.shape[1] == 4 and len(found) <= 1000


@pytest.fixture
def music():
    return zoo.predictor(toy("jsb"))


def test_a_chorale_is_written_and_goes_on(music, tmp_path):
    result = music(None, tokens=64, seed=3)
    path = result.save(tmp_path / "new" / "x.mid")
    assert (from_midi(path.read_bytes(), "x", max_steps=100) == result.pitches).all()
    text = next(one.text for one in mido.MidiFile(path).tracks[0] if one.type == "text")
    assert text == "Generated by the model toy, temperature 1, seed 3"
    longer = music(str(path), tokens=8)
    assert longer.prompt_steps == 16 and (longer.pitches[:16] == result.pitches).all() and longer.path == path
    (tmp_path / "bad.mid").write_bytes(path.read_bytes()[:60])
    for name, message in (("bad.mid", r"bad\.mid: not a readable MIDI file"), ("gone.mid", "no such file")):
        with pytest.raises(DataError, match=message):
            music(str(tmp_path / name))
    with pytest.raises(DataError, match="a step at least"):
        music(None, tokens=3).save(tmp_path / "none.mid")
    assert not (tmp_path / "none.mid").exists()


# ---- pages


def data_of(text: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def chorale(pitches: np.ndarray = PIECE, **changes: object) -> Chorale:
    tokenizer = ChoraleTokenizer()
    ids = tokenizer.encode(pitches)
    fields = {"name": "chorale", "path": None, "prompt": np.array([89, *ids[:4]]), "tokens": ids[4:]}
    return Chorale(**{**fields, "tokenizer": tokenizer, "model": "toy", "seed": 7, **changes})


def tags(text: str) -> list[str]:
    found: list[str] = []
    parser = html.parser.HTMLParser()
    parser.handle_starttag = lambda tag, attrs: found.append(tag)
    parser.feed(text)
    return found


def test_the_page_holds_the_chorale():
    text = page(chorale())
    data = data_of(text)
    assert data["title"] == "A chorale by toy" and (data["steps"], data["prompt_steps"]) == (5, 1)
    assert "Generated by the model toy, temperature 1, seed 7, from the prompt chorale" in data["about"]
    assert [one["name"] for one in data["voices"]] == ["soprano", "alto", "tenor", "bass"]
    assert [[tuple(note) for note in one["notes"]] for one in data["voices"]] == held_notes(PIECE)
    sounding = np.full((5, 4), -1)
    for column, one in enumerate(data["voices"]):
        for first, steps, pitch in one["notes"]:
            sounding[first : first + steps, column] = pitch
    assert (sounding == PIECE).all()
    assert base64.b64decode(data["midi"]) == chorale().midi()
    begun = chorale(prompt=np.array([89]), tokens=ChoraleTokenizer().encode(PIECE))
    assert data_of(page(begun))["prompt_steps"] == 0 and "prompt" not in data_of(page(begun))["about"]


def test_the_page_loads_nothing():
    text = page(chorale())
    assert "default-src 'none'" in text and not re.search(r"https?:|//[a-z]|\bimport\b|fetch\(|src=", text)
    assert not re.search(r"innerHTML|document\.write|eval\(", text)
    assert "<title>A chorale by toy</title>" in text and 'lang="en"' in text
    for control in ("roll", "place", "voices"):
        assert re.search(rf'id="{control}"[^>]*aria-label="', text)


def test_names_cannot_break_out_of_the_page():
    evil = '</script><script>alert(1)</script><!-- {{data}} "&'
    text = page(chorale(model=evil, name=evil))
    assert tags(text) == tags(page(chorale())) and data_of(text)["title"] == f"A chorale by {evil}"


@pytest.mark.skipif(shutil.which("node") is None, reason="no node to run the script of the page")
def test_the_script_of_the_page_plays(tmp_path):
    text = page(chorale())
    script = re.search(r"<script>\n(.*?)</script>", text, re.DOTALL)[1]
    harness = Path(__file__).with_name("fixtures").joinpath("player_harness.js").read_text()
    harness = harness.replace("/*DATA*/", json.dumps(data_of(text))).replace("/*SCRIPT*/", script)
    (tmp_path / "page.js").write_text(harness)
    done = subprocess.run(["node", tmp_path / "page.js"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["about"].startswith("Generated by the model toy") and told["voices"] == [
        "soprano",
        "alto",
        "tenor",
        "bass",
    ]
    assert told["href"] == "data:audio/midi;base64," + base64.b64encode(chorale().midi()).decode()
    assert told["before"] == 0  # Silent until it is asked.
    # Played from the start: every note once, at its time, as long as it is held.
    step = 60 / 90 / 4
    expected = sorted(
        [440 * 2 ** ((pitch - 69) / 12), first * step, steps * step]
        for notes in held_notes(PIECE)
        for first, steps, pitch in notes
    )
    assert np.allclose(sorted(told["notes"]), expected)
    assert told["playing"] == "Pause" and told["muted"] == [1, 0, 1, 1]
    # After a click at the middle the notes that still sound there are cut, those before are left out.
    assert told["sought"] == pytest.approx(2.5, abs=0.1)
    lengths = sorted((round(one[0]), round(one[2] / step, 6)) for one in told["after"])
    assert lengths == [(262, 2), (330, 1.5), (523, 1), (587, 0.5)] and told["stopped"] == 6
    # Twice as fast, notes are half as long.
    assert told["faster"][0] == pytest.approx(told["after"][0][2] / 2)
    assert told["ended"] == ["Play", 5] and told["space"] == "Pause"
    assert told["drawn"] > 10
