"""`zoo predict` with decoders: prompts, options, files of results."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from decoder_toys import toy
from test_missing_extras import said_without

import zoo
from modalities.image.model import build
from zoo.cli.main import main


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    from conftest import TINY_CONFIG

    root = tmp_path_factory.mktemp("models")
    for data in ("jsb", "index", "shakespeare", "hg38", "bytes"):
        zoo.save(toy(data), root / data)
    zoo.save(build(TINY_CONFIG), root / "image")
    return {path.name: f"local-dir:{path}" for path in root.iterdir()}


@pytest.fixture
def run(capsys):
    def call(*arguments, code=0):
        with pytest.raises(SystemExit) as stop:
            main(["predict", *map(str, arguments)])
        out, err = capsys.readouterr()
        assert stop.value.code == code, err
        assert "Traceback" not in err
        return out, err

    return call


def test_a_chorale_without_a_source(run, names, tmp_path):
    mido = pytest.importorskip("mido")
    out, err = run(names["jsb"], "--save", tmp_path / "chorale.mid")
    assert out.startswith("chorale (512 new tokens, temperature 1, seed 0)\n  soprano")
    assert err == f"saved: {tmp_path / 'chorale.mid'}\n"
    assert len(mido.MidiFile(tmp_path / "chorale.mid").tracks) == 4
    first = (tmp_path / "chorale.mid").read_bytes()
    run(names["jsb"], "--seed", 0, "--temperature", 1, "--save", tmp_path / "again.mid")
    assert (tmp_path / "again.mid").read_bytes() == first
    run(names["jsb"], "--seed", 1, "--tokens", 64, "--save", tmp_path / "other.mid")
    assert (tmp_path / "other.mid").read_bytes() != first
    run(names["jsb"], tmp_path / "other.mid", "--tokens", 32, "--save", tmp_path / "page.html", "--quiet")
    page = (tmp_path / "page.html").read_text()
    assert '"prompt_steps": 16' in page and '"steps": 24' in page and names["jsb"] not in page


def test_a_chorale_of_the_model_in_the_package(run, tmp_path):
    """What it learned: chords of four voices that last, each voice in its range."""
    mido = pytest.importorskip("mido")
    from zoo.cards import card_folder

    name = "pope-decoder-t-jsb"
    if not (card_folder(name) / "model.safetensors").is_file():
        pytest.skip("the embedded weights are not in this checkout")
    run(name, "--tokens", 128, "--save", tmp_path / "chorale.mid")
    file = mido.MidiFile(tmp_path / "chorale.mid")
    assert [track.name for track in file.tracks] == ["soprano", "alto", "tenor", "bass"]
    assert file.length == pytest.approx(32 / 4 * 60 / 90)
    ranges = ((60, 81), (52, 76), (45, 69), (36, 64))  # MIDI numbers.
    for track, (lowest, highest) in zip(file.tracks, ranges, strict=True):
        notes = [message.note for message in track if message.type == "note_on"]
        assert 2 <= len(notes) <= 20 and lowest <= min(notes) <= max(notes) <= highest
    run(name, tmp_path / "chorale.mid", "--tokens", 16, "--save", tmp_path / "page.html", "--quiet")
    page = (tmp_path / "page.html").read_text()
    assert '"prompt_steps": 32' in page and '"steps": 36' in page and name in page


def test_the_answer_to_a_question(run, names):
    out, err = run(names["index"], "qvLrAbTz, r, +3, ")
    heading, answer = out.splitlines()
    assert heading == "qvLrAbTz, r, +3, (1 new token, temperature 1, seed 0)" and len(answer) == 1 and err == ""
    assert answer == zoo.predictor(names["index"])("qvLrAbTz,r,+3,").text


def test_text(run, names, tmp_path, monkeypatch):
    out, _ = run(names["shakespeare"], "ROMEO:", "--tokens", 20, "--temperature", 0.5, "--seed", 3, "--json")
    (told,) = json.loads(out)
    found = zoo.predictor(names["shakespeare"])("ROMEO:", tokens=20, temperature=0.5, seed=3)
    assert told == found.to_dict() and len(told["text"]) == 20
    few, _ = run(names["shakespeare"], "ROMEO:", "--tokens", 20, "--top-k", 1, "--json")
    assert json.loads(few)[0]["tokens"] == found_tokens(names, temperature=0)
    rows = list(csv.reader(io.StringIO(run(names["shakespeare"], "ROMEO:", "O", "--tokens", 3, "--csv")[0])))
    assert rows[0] == ["source", "seed", "prompt", "text"] and [row[0] for row in rows[1:]] == ["ROMEO:", "O"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ROMEO:\n")))
    (told,) = json.loads(run(names["shakespeare"], "-", "--tokens", 3, "--json")[0])
    assert told["source"] == "stdin" and told["prompt"] == "ROMEO:"


def found_tokens(names, **options):
    return zoo.predictor(names["shakespeare"])("ROMEO:", tokens=20, **options).tokens.tolist()


def test_files_in_a_folder(run, names, tmp_path):
    (tmp_path / "one.txt").write_text("acgt\n")
    out, err = run(names["hg38"], tmp_path / "one.txt", "ACG", "ACG", "--tokens", 5, "--save", tmp_path / "new" / "out")
    assert err == f"3 continuations in {tmp_path / 'new' / 'out'}\n"
    assert sorted(path.name for path in (tmp_path / "new" / "out").iterdir()) == ["ACG-2.fa", "ACG.fa", "one.fa"]
    run(names["hg38"], "ACG", "--tokens", 5, "--save", tmp_path / "x.json", "--quiet")
    assert len(json.loads((tmp_path / "x.json").read_text())["tokens"]) == 5
    run(names["bytes"], "../../etc/passwd\n", "--tokens", 2, "--save", tmp_path / "safe", "--quiet")
    assert [path.parent.name for path in tmp_path.rglob("passwd*")] == ["safe"]


@pytest.mark.parametrize(
    ("model", "arguments", "word"),
    [
        ("shakespeare", ["a", "--save", "x.mid"], "x.mid: results of this model are written as .txt, .json, or to"),
        ("hg38", ["A", "--save", "x.png"], "written as .fa, .fasta, .txt, .json, or to a folder"),
        ("jsb", ["--save", "x.mp3"], "written as .mid, .midi, .html, .npz, .json, or to a folder"),
        ("shakespeare", ["a", "b", "--save", "x.txt"], "one file for 2 prompts"),
        ("shakespeare", [], "the model needs a prompt"),
        ("shakespeare", [""], "the prompt: empty"),
        ("shakespeare", ["a~b"], "a~b: the character '~' is not in the alphabet of 65"),
        ("shakespeare", ["gone.txt"], "gone.txt: no such file"),
        ("jsb", ["ROMEO:"], "not from text"),
        ("shakespeare", ["a", "--tokens", "0"], "tokens must be a whole number from 1 to 65536"),
        ("shakespeare", ["a", "--tokens", "99999999999"], "tokens must be a whole number from 1 to 65536"),
        ("shakespeare", ["a", "--temperature", "nan"], "temperature must be a number"),
        ("shakespeare", ["a", "--seed", "-1"], "seed must be a whole number"),
        ("shakespeare", ["a", "--top-k", "0"], "top_k must be a positive whole number"),
        ("shakespeare", ["a", "--size", "32"], "size is not for decoders"),
        ("shakespeare", ["a", "--frame", "1"], "--frame is for pictures"),
        ("shakespeare", ["a", "--stride-ms", "1"], "--stride-ms is for video and event models"),
        ("shakespeare", ["a", "--fill"], "--fill and --unit are for point models"),
        ("shakespeare", ["a", "--truth"], "are for driving models"),
        ("shakespeare", ["a", "--errors", "keep"], "is not for prompts"),
        ("shakespeare", ["a", "--fps", "5"], "--fps and --window-ms are of videos"),
        ("image", ["x.png", "--tokens", "5"], "--tokens, --temperature and --seed are for decoders"),
        ("image", ["x.png", "--temperature", "0.5"], "are for decoders"),
        ("image", ["x.png", "--seed", "0"], "are for decoders"),
        ("image", [], "nothing to predict: give SOURCE"),
    ],
)
def test_what_is_refused(run, names, tmp_path, monkeypatch, model, arguments, word):
    monkeypatch.chdir(tmp_path)
    out, err = run(names[model], *arguments, code=2)
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1 and word in err
    assert not list(tmp_path.iterdir())


def test_registered_names_without_weights_say_so(run):
    out, err = run("rope-decoder-t-jsb", "--save", "chorale.mid", code=2)
    assert out == "" and err.startswith(
        "error: rope-decoder-t-jsb has no published weights: train them with `zoo train"
    )
    out, err = run("pope-decoder-t-hg38", "ACGT", code=2)
    assert out == "" and err.startswith("error: pope-decoder-t-hg38 has no published weights: train it yourself")


def test_the_others_run_when_some_are_bad(run, names, tmp_path):
    (tmp_path / "bad.mid").write_bytes(b"MThd\0\0\0\6")
    np.savez(tmp_path / "good.npz", pitches=np.full((2, 4), 60))
    pytest.importorskip("mido")
    out, err = run(names["jsb"], tmp_path / "bad.mid", tmp_path / "good.npz", "--tokens", 4, "--json", code=2)
    assert [Path(row["source"]).name for row in json.loads(out)] == ["good.npz"]
    assert err.count("\n") == 1 and "bad.mid: not a readable MIDI file" in err


@pytest.mark.parametrize("target", ["x.mid", "x.html", "folder"])
def test_without_mido(names, tmp_path, monkeypatch, capsys, target):
    monkeypatch.setattr("modalities.sequence.predict.generate", None)  # Not a token is made.
    said_without("mido", "music", ["predict", names["jsb"], "--save", tmp_path / target], monkeypatch, capsys)
    assert not (tmp_path / target).exists()


def test_reading_without_mido(names, tmp_path, monkeypatch, capsys):
    (tmp_path / "x.mid").write_bytes(b"MThd")
    said_without("mido", "music", ["predict", names["jsb"], tmp_path / "x.mid"], monkeypatch, capsys)


def test_what_needs_no_mido(run, names, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mido", None)
    run(names["jsb"], "--tokens", 8, "--save", tmp_path / "x.npz")
    with np.load(tmp_path / "x.npz") as archive:
        assert archive["pitches"].shape == (2, 4)


def test_the_commands_of_a_card_run(run, tmp_path, monkeypatch, names):
    """Those that `zoo card` shows of decoders, with tiny ones in their place."""
    pytest.importorskip("mido")
    import dataclasses
    import shlex

    from zoo import registry
    from zoo.card_usage import usage

    monkeypatch.chdir(tmp_path)
    for name, model in (
        ("pope-decoder-t-jsb", "jsb"),
        ("pope-decoder-n-index", "index"),
        ("rope-decoder-t-shakespeare", "shakespeare"),
        ("alibi-decoder-n-hg38", "hg38"),
    ):
        text = usage(dataclasses.replace(registry.entry(name), weights="embedded"), {"data": {}})
        shell, python = (part.split("```")[0] for part in text.split("```")[1::2])
        arguments = shlex.split(shell.removeprefix("bash\n"), comments=True)
        assert arguments[:3] == ["zoo", "predict", name]
        run(names[model], *arguments[3:])
        code = python.removeprefix("python\n").replace(name, names[model])
        exec(compile(code.rpartition("model = zoo.load")[0], name, "exec"), {})
    assert {path.name for path in tmp_path.iterdir()} == {"chorale.html", "chorale.mid", "out.txt", "out.fa"}
