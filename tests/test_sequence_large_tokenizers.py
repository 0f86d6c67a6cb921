"""Byte-pair encoding by a file that is named by its hash, and piano performances as events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zoo
from modalities.sequence.bpe import ENVIRONMENT, BpeTokenizer, read_bpe
from modalities.sequence.performance import Note, PerformanceTokenizer, notes_from_midi, notes_to_midi
from modalities.sequence.presets import config
from modalities.sequence.results import Performance
from modalities.sequence.tokenizers import tokenizer_from_dict
from tests.sequence_files import TEXT, write_tokenizer
from tests.sequence_training import SIZES
from zoo.errors import ConfigError, DataError, MissingDependencyError
from zoo.registry import architecture


def test_texts_survive_bpe(tmp_path: Path) -> None:
    tokenizer, content = read_bpe(write_tokenizer(tmp_path))
    assert content == (tmp_path / "tokenizer.json").read_text()
    for text in (TEXT, "", "naïve 日本 \x00 \U0001f600", "<|endoftext|>"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(TEXT)) < len(TEXT.encode()) and tokenizer.vocab_size == 300
    many = tokenizer.encode_many([TEXT, "b"])
    assert [ids.tolist() for ids in many] == [tokenizer.encode(text).tolist() for text in (TEXT, "b")]
    (document,) = tokenizer.encode_many(["no <|endoftext|> here"])
    assert tokenizer.end not in document and tokenizer.decode(document) == "no <|endoftext|> here"
    assert tokenizer.encode("<|endoftext|>").tolist() == [tokenizer.end]
    with pytest.raises(DataError, match="no tokens"):
        tokenizer.encode("\ud800")
    with pytest.raises(DataError, match="expected text"):
        tokenizer.encode(b"bytes")  # type: ignore[arg-type]


def test_the_file_is_found_by_its_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tokenizer(tmp_path)
    tokenizer, _ = read_bpe(path)
    stated = json.loads(json.dumps(tokenizer.to_dict()))
    again = tokenizer_from_dict(stated)
    assert again == tokenizer and isinstance(again, BpeTokenizer)
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    with pytest.raises(
        ConfigError, match=f"set {ENVIRONMENT} to its tokenizer.json, .* sha256 is {tokenizer.sha256[:12]}"
    ):
        again.encode(TEXT)
    monkeypatch.setenv(ENVIRONMENT, str(path))
    assert again.encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()
    path.write_text(path.read_text().replace('"add_prefix_space":false', '"add_prefix_space":true', 1))
    with pytest.raises(ConfigError, match="not the tokenizer of this model"):
        tokenizer_from_dict(stated).encode(TEXT)


def test_a_vocabulary_that_would_lose_text_is_refused(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path)
    content = json.loads(path.read_text())
    content["model"]["vocab"]["unused"] = content["model"]["vocab"].pop("Q")
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="not a token for each of the 256 bytes"):
        read_bpe(path)


def test_the_folder_of_the_file_may_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, _ = read_bpe(write_tokenizer(tmp_path))
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path))
    again = tokenizer_from_dict(tokenizer.to_dict())
    assert again.encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()


def write_tables(folder: Path, content: str) -> Path:
    """The tables of a tokenizer.json, as GPT-2 was published."""
    folder.mkdir()
    model = json.loads(content)["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    pairs = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(pairs) + "\n")
    return folder


def test_tables_of_gpt2_are_the_same_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, content = read_bpe(write_tokenizer(tmp_path))
    tables = write_tables(tmp_path / "tables", content)
    other, made = read_bpe(tables)
    assert other.encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()
    assert other == tokenizer and other.to_dict() == tokenizer.to_dict()
    (tmp_path / "made.json").write_text(made)
    assert read_bpe(tmp_path / "made.json")[0] == tokenizer
    monkeypatch.setenv(ENVIRONMENT, str(tables))
    assert tokenizer_from_dict(tokenizer.to_dict()).encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()


def _merges_as_text(stated: dict[str, Any]) -> None:
    pairs = stated["model"]["merges"]
    stated["model"]["merges"] = [pair if isinstance(pair, str) else " ".join(pair) for pair in pairs]


def _as_hugging_face_has_it(stated: dict[str, Any]) -> None:
    _merges_as_text(stated)
    stated["model"] |= {"continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False}
    stated["model"].pop("ignore_merges", None)
    stated["model"]["vocab"] = dict(reversed(stated["model"]["vocab"].items()))
    stated["added_tokens"][0]["normalized"] = True
    stated["post_processor"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("edit", [lambda stated: None, _merges_as_text, _as_hugging_face_has_it])
def test_the_hash_is_of_what_a_file_says_not_of_its_form(edit: Any, indent: int | None, tmp_path: Path) -> None:
    tokenizer, content = read_bpe(write_tokenizer(tmp_path))
    stated = json.loads(content)
    edit(stated)
    path = tmp_path / "other.json"
    path.write_text(json.dumps(stated, indent=indent))
    other, _ = read_bpe(path)
    assert other.sha256 == tokenizer.sha256
    assert other.encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()


@pytest.mark.parametrize(
    "edit",
    [
        lambda stated: stated["model"]["merges"].reverse(),
        lambda stated: stated["model"]["merges"].pop(),
        lambda stated: stated["pre_tokenizer"].update(add_prefix_space=True),
        lambda stated: stated["pre_tokenizer"].update(use_regex=False),
        lambda stated: stated.update(normalizer={"type": "Lowercase"}),
        lambda stated: stated.update(decoder=None),
        lambda stated: stated["model"].update(dropout=0.5),
        lambda stated: stated["model"]["vocab"].update({"!": 2, '"': 1}),
        lambda stated: stated["added_tokens"][0].update(special=False),
        lambda stated: stated["added_tokens"].append({**stated["added_tokens"][0], "id": 300, "content": "<|x|>"}),
    ],
)
def test_the_hash_is_another_where_tokens_are(edit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, content = read_bpe(write_tokenizer(tmp_path))
    stated = json.loads(content)
    assert stated["model"]["vocab"]["!"] == 1
    edit(stated)
    path = tmp_path / "other.json"
    path.write_text(json.dumps(stated))
    assert read_bpe(path)[0].sha256 != tokenizer.sha256
    monkeypatch.setenv(ENVIRONMENT, str(path))
    again = tokenizer_from_dict(tokenizer.to_dict())
    for _ in range(2):
        with pytest.raises(ConfigError, match=f"not the tokenizer of this model.*needed {tokenizer.sha256[:12]}"):
            again.encode(TEXT)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "no tokenizer at"), ("{}", "not a tokenizer"), ("\x00", "not a tokenizer")],
)
def test_files_that_are_no_tokenizers(content: str | None, message: str, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        read_bpe(path)


@pytest.mark.parametrize(
    "values",
    [
        {"sha256": "abc", "vocab_size": 9, "end": 1},
        {"sha256": "0" * 64, "vocab_size": 9, "end": 9},
        {"sha256": "0" * 64, "vocab_size": "9", "end": 1},
        {"sha256": "0" * 64, "vocab_size": 9},
    ],
)
def test_hostile_descriptions_of_bpe(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="tokenizer"):
        tokenizer_from_dict({"kind": "bpe", **values})


def test_missing_libraries_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tokenizer(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'pape-zoo\[text\]'"):
        read_bpe(path)


def test_notes_survive_as_events_and_as_midi() -> None:
    pytest.importorskip("mido")
    notes = [Note(0.0, 0.5, 60, 66), Note(0.25, 3.0, 64, 90), Note(0.5, 0.75, 60, 66), Note(4.12, 4.13, 127, 2)]
    tokenizer = PerformanceTokenizer()
    ids = tokenizer.encode(notes)
    assert ids.max() < tokenizer.start and tokenizer.vocab_size == 389
    assert ids[:3].tolist() == [256 + 100 + 66 * 32 // 128, 60, 256 + 24]  # Loudness, key down, 250 ms.
    assert (ids == 256 + 99).sum() == 3  # A second at a time: from 0.75 to 3.0 s, and on to 4.12 s.
    for found in (tokenizer.decode(ids), notes_from_midi(notes_to_midi(notes), "x")):
        assert [note.pitch for note in found] == [note.pitch for note in notes]
        for one, other in zip(found, notes, strict=True):
            assert one.onset == pytest.approx(other.onset, abs=1e-6) and one.end == pytest.approx(other.end, abs=1e-6)
            assert abs(one.velocity - other.velocity) <= 2
    assert tokenizer.encode(notes_to_midi(notes)).tolist() == ids.tolist()
    assert tokenizer.decode(ids[:2]) == [] and tokenizer.decode([]) == []


def test_a_key_that_goes_down_again_ends_its_note() -> None:
    tokenizer = PerformanceTokenizer()
    overlapping = [Note(0.5, 2.0, 60, 66), Note(0.0, 1.0, 60, 66), Note(0.3, 3.0, 62, 66)]
    assert [
        (note.onset, round(note.end, 2), note.pitch) for note in tokenizer.decode(tokenizer.encode(overlapping))
    ] == [
        (0.0, 0.5, 60),
        (0.3, 3.0, 62),
        (0.5, 2.0, 60),
    ]
    at_once = [Note(0.5, 0.504, 60, 2), Note(0.5045, 2.0, 60, 66)]
    assert tokenizer.decode(tokenizer.encode(at_once)) == [Note(0.5, 2.0, 60, 66)]


def test_the_pedal_holds_notes() -> None:
    mido = pytest.importorskip("mido")
    file = mido.MidiFile(type=0, ticks_per_beat=500)
    track = file.add_track()
    track.append(mido.Message("control_change", control=64, value=127, time=0))
    track.append(mido.Message("note_on", note=60, velocity=64, time=100))
    track.append(mido.Message("note_off", note=60, velocity=0, time=100))
    track.append(mido.Message("note_on", note=60, velocity=64, time=300))  # Struck again: the first ends here.
    track.append(mido.Message("note_off", note=60, velocity=0, time=100))
    track.append(mido.Message("control_change", control=64, value=0, time=400))
    import io

    buffer = io.BytesIO()
    file.save(file=buffer)
    notes = notes_from_midi(buffer.getvalue(), "pedal")
    assert [(round(note.onset, 3), round(note.end, 3)) for note in notes] == [(0.1, 0.5), (0.5, 1.0)]


@pytest.mark.parametrize(
    "data", [b"", b"MThd", b"MThd\x00\x00\x00\x06\x00\x00\x00\x01\x01\xf4MTrk\x00\x00\xff\xff", b"RIFF"]
)
def test_damaged_performances(data: bytes) -> None:
    pytest.importorskip("mido")
    with pytest.raises(DataError, match="not a readable MIDI file"):
        PerformanceTokenizer().encode(data)


@pytest.mark.parametrize("note", [(0, 1, 128, 64), (0, 1, 60, 0), (1, 0, 60, 64), (float("nan"), 1, 60, 64)])
def test_notes_that_no_piano_plays(note: tuple[float, float, int, int]) -> None:
    with pytest.raises(DataError, match="no note that a piano plays"):
        PerformanceTokenizer().encode([note])


def model_of(tokenizer: Any) -> Any:
    data = {"length": 64, "tokenizer": tokenizer.to_dict()}
    made = config("toy", encoding="rope", sizes=SIZES, vocabulary=tokenizer.vocab_size, data=data)
    torch.manual_seed(0)
    return architecture(made).build(made).eval()


def test_prediction_of_texts_and_performances(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mido")
    path = write_tokenizer(tmp_path)
    monkeypatch.setenv(ENVIRONMENT, str(path))
    text = zoo.predictor(model_of(read_bpe(path)[0]))("The quick", tokens=20, seed=3)
    assert text.prompt_text == "The quick" and text.whole_text.startswith("The quick") and 1 <= len(text.tokens) <= 20
    monkeypatch.delenv(ENVIRONMENT)
    with pytest.raises(ConfigError, match=ENVIRONMENT):
        zoo.predictor(model_of(read_bpe(path)[0]))("The quick")

    play = zoo.predictor(model_of(PerformanceTokenizer()))
    made = play(None, tokens=200, seed=1)
    assert isinstance(made, Performance) and len(made.tokens) == 200 and (made.tokens != 388).all()
    saved = made.save(tmp_path / "made.mid")
    assert len(notes_from_midi(saved.read_bytes(), "x")) > 0
    longer = play(saved, tokens=5)
    assert len(longer.prompt) > 20 and json.loads(longer.to_json())["notes"] and "notes in" in str(longer)
    with pytest.raises(DataError, match="goes on from a file .mid or .midi"):
        play("text")
    assert np.array_equal(play(None, tokens=200, seed=1).tokens, made.tokens)
