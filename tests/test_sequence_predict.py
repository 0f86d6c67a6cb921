"""Decoders behind a predictor: prompts, draws, where tokens are, and what comes of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from decoder_toys import favour, toy, toy_for

import zoo
from modalities.sequence.prompts import MOST_TOKENS
from modalities.sequence.results import Chorale, Dna, Roll, Text
from modalities.sequence.tokenizers import DNATokenizer
from zoo.errors import ConfigError, DataError, WeightsError

START = 89
QUESTION = "qvLrAbTz,r,+3,"


@pytest.fixture
def text():
    return zoo.predictor(toy("shakespeare"))


@pytest.fixture
def music():
    return zoo.predictor(toy("jsb"))


def test_a_chorale_needs_no_prompt(music):
    result = music(None)
    assert isinstance(result, Chorale) and result.prompt.tolist() == [START] and result.prompt_steps == 0
    assert result.tokens.shape == (512,) and result.pitches.shape == (128, 4)  # 32 quarter notes.
    assert (result.pitches.reshape(-1) == np.where(result.tokens == 0, -1, result.tokens + 20)).all()
    assert music.kind == "sequence" and len(np.unique(result.tokens)) > 20


def test_the_likeliest_tokens_are_those_of_a_loop_of_forwards(music):
    ids = torch.tensor([[START]])
    with torch.no_grad():
        for _ in range(12):
            logits = music.model(ids)[:, -1]
            logits[:, START] = -torch.inf
            ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], dim=1)
    assert music(None, tokens=12, temperature=0).tokens.tolist() == ids[0, 1:].tolist()
    assert zoo.predictor(music.model, top_k=1)(None, tokens=12).tokens.tolist() == ids[0, 1:].tolist()


def test_the_start_token_is_never_drawn(music):
    favour(music.model, START)
    assert START not in music(None, tokens=40, temperature=0).tokens
    assert START not in music(None, tokens=900, temperature=1e6).tokens  # 10 times, were it as likely as others.


def test_seeds(text):
    first = text("ROMEO:", tokens=30)
    assert (first.seed, first.temperature, first.top_k, len(first.text)) == (0, 1.0, None, 30)
    assert text("ROMEO:", tokens=30, seed=0).text == first.text != text("ROMEO:", tokens=30, seed=1).text
    assert text("ROMEO:", tokens=10).text == first.text[:10]
    # Whatever else there is.
    many = text(["a", "ROMEO:", "ROMEO:"], tokens=30, batch_size=3)
    assert [one.text == first.text for one in many] == [False, True, True]
    assert text("ROMEO:").tokens.shape == (200,)


def test_fewer_tokens_to_draw_from(text):
    few = zoo.predictor(text.model, top_k=2)
    found = {few("RO", tokens=1, seed=seed).text for seed in range(20)}
    likeliest = text.model(torch.from_numpy(few("RO", tokens=1).prompt)[None])[0, -1].topk(2).indices
    assert found == {text.model.data_config.tokenizer["characters"][index] for index in likeliest.tolist()}
    assert few("RO", tokens=1).top_k == 2 and "top 2" in str(few("RO", tokens=1))


def test_a_question_has_an_answer_of_one_letter():
    predict = zoo.predictor(toy("index"))
    result = predict(QUESTION)
    assert len(result.text) == 1 and str(result).splitlines()[1:] == [result.text]
    # Spaces, which only fill up samples of training, are taken out.
    assert predict("qvLrAbTz, r, +3, ").prompt.tolist() == result.prompt.tolist()
    assert predict(QUESTION.encode() + b"\n").prompt.tolist() == result.prompt.tolist()
    trained, _ = toy_for("index")
    assert len(zoo.predictor(trained)(QUESTION, temperature=0)) == 1


def test_results_of_text(text, tmp_path):
    result = text("To be, or", tokens=20)
    assert isinstance(result, Text) and result.prompt_text == "To be, or"
    assert result.whole_text == result.prompt_text + result.text
    told = json.loads(result.to_json())
    assert told["source"] == told["prompt"] == "To be, or" and told["text"] == result.text
    assert told["tokens"] == result.tokens.tolist() and told["seed"] == 0 and told["model"] == "toy"
    assert text.columns == ("source", "seed", "prompt", "text")
    assert result.rows() == [("To be, or", 0, "To be, or", result.text)]
    assert str(result).startswith("To be, or (20 new tokens, temperature 1, seed 0)\n")
    assert result.save(tmp_path / "new" / "x.txt").read_text() == result.whole_text
    assert json.loads(result.save(tmp_path / "x.JSON").read_text()) == told
    with pytest.raises(DataError, match=r"x\.png: no form for the suffix '\.png'; save it as \.txt, \.json"):
        result.save(tmp_path / "x.png")
    with pytest.raises(DataError, match="cannot be written"):
        result.save(tmp_path / "x.JSON" / "y.txt")
    with pytest.raises(DataError, match="not a picture"):
        result.plot()
    with pytest.raises(ConfigError, match=r"no video; save \.txt, \.json"):
        text.video("x.mp4")


def test_results_of_dna(tmp_path):
    result = zoo.predictor(toy("hg38"))("acgtn", tokens=130)
    assert isinstance(result, Dna) and result.prompt_text == "ACGTN" and len(result.text) == 130
    lines = result.save(tmp_path / "x.fa").read_text().splitlines()
    assert lines[0] == (">generated bases 6-135; 1-5 are the prompt; Generated by the model toy, temperature 1, seed 0")
    assert "".join(lines[1:]) == result.whole_text and max(map(len, lines[1:])) == 60
    # A file is a prompt again.
    again = zoo.predictor(toy("hg38"))(str(tmp_path / "x.fa"), tokens=1)
    assert again.prompt.tolist() == DNATokenizer().encode(result.whole_text).tolist()
    assert again.path == tmp_path / "x.fa"


def test_results_of_chorales(music, tmp_path):
    result = music(None, tokens=34)
    assert result.pitches.shape == (8, 4)  # The last step is not complete.
    with np.load(result.save(tmp_path / "x.npz")) as archive:
        assert (archive["pitches"] == result.pitches).all() and archive["prompt_steps"] == 0
        assert archive["voices"].tolist() == [b"soprano", b"alto", b"tenor", b"bass"]
    assert json.loads(result.to_json())["pitches"] == result.pitches.tolist()
    assert result.rows()[5] == ("chorale", 5, *result.pitches[5].tolist()) and len(result.rows()) == 8
    longer = music(str(tmp_path / "x.npz"), tokens=4)
    assert longer.prompt.tolist() == [START, *result.tokens[:32].tolist()] and longer.prompt_steps == 8
    assert music(longer.pitches, tokens=4).prompt_steps == music(torch.from_numpy(longer.pitches)).prompt_steps == 9
    shown = str(music(None)).splitlines()
    assert shown[1].split() == ["soprano", "alto", "tenor", "bass"] and shown[-1].endswith("and 24 more quarter notes")
    middle = np.array([[60, -1, 58, 21]])
    assert music(middle, tokens=4).pitches[0].tolist() == middle[0].tolist()


def test_results_of_rolls(tmp_path):
    predict = zoo.predictor(toy("roll"))
    result = predict(None)
    assert isinstance(result, Roll) and result.roll.shape[1] == 88 and START not in result.tokens
    with np.load(result.save(tmp_path / "x.npz")) as archive:
        assert (archive["roll"] == result.roll).all()
    again = predict(tmp_path / "x.npz", tokens=1)
    assert (again.roll[: len(result.roll)] == result.roll).all()
    assert sum(map(len, result.to_dict()["frames"])) == len(result.rows()) == result.roll.sum()
    assert str(result).splitlines()[1].startswith(f"  {len(result.roll)} frames")


def test_bytes_that_are_no_text(tmp_path):
    predict = zoo.predictor(toy("bytes"))
    result = predict(b"\xff\x1b[31m", tokens=5)
    data = bytes([*b"\xff\x1b[31m", *result.tokens.tolist()])
    assert result.save(tmp_path / "x.txt").read_bytes() == data
    favour(predict.model, 0x1B)
    assert "\x1b" not in str(predict("a", tokens=3)) and predict("a", tokens=3).text == "\x1b" * 3
    assert predict("naïve", tokens=1).prompt_text == "naïve"


def test_files_of_text(text, tmp_path):
    def prompt(data: bytes, name: str = "my prompt.txt") -> str:
        (tmp_path / name).write_bytes(data)
        return text(str(tmp_path / name), tokens=1).prompt_text

    assert prompt(b"JULIET:\nO\n") == prompt(b"\xef\xbb\xbfJULIET:\r\nO\r\n") == "JULIET:\nO"
    assert text(tmp_path / "my prompt.txt", tokens=1).name == str(tmp_path / "my prompt.txt")
    # What is no file is a prompt, unless it can only be meant as one.
    assert text("see my notes.txt", tokens=1).prompt_text == "see my notes.txt"
    for bad, message in (
        ("notes.txt", "notes.txt: no such file"),
        (str(tmp_path / "x.mid"), "a text model goes on from a file .txt, or the text itself"),
        (tmp_path / "gone.txt", "no such file"),
        (tmp_path, "goes on from a file .txt"),
    ):
        with pytest.raises(DataError, match=message):
            text(bad)
    for data, message in (
        (b"", "empty"),
        (b"\xff\xfe", "not a text in UTF-8"),
        (b"a~b", "character '~' is not in the alphabet of 65"),
    ):
        with pytest.raises(DataError, match=rf"my prompt\.txt: .*{message}"):
            prompt(data)


def test_files_of_dna(tmp_path):
    predict = zoo.predictor(toy("hg38"))
    (tmp_path / "a.txt").write_text("ACG\nTT\n")
    assert predict(tmp_path / "a.txt", tokens=1).prompt_text == "ACGTT"
    (tmp_path / "b.fasta").write_text(">one\nAC\n>two\nGT\n")
    with pytest.raises(DataError, match="2 records; a prompt is one"):
        predict(tmp_path / "b.fasta")
    (tmp_path / "c.fa").write_text(">one\n")
    with pytest.raises(DataError, match=r"c\.fa: empty"):
        predict(tmp_path / "c.fa")


def test_files_of_music_that_are_none(music, tmp_path):
    good = np.full((2, 4), 60)
    (tmp_path / "text.npz").write_text("words")
    np.savez(tmp_path / "other.npz", notes=good)
    np.savez(tmp_path / "float.npz", pitches=good / 2)
    np.savez(tmp_path / "low.npz", pitches=good - 50)
    np.savez(tmp_path / "wide.npz", pitches=np.full((2, 5), 60))
    np.savez(tmp_path / "pickle.npz", pitches=np.array([{}], dtype=object))
    np.savez_compressed(tmp_path / "huge.npz", pitches=np.full((2**17, 4), 60))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "other.npz").read_bytes()[:100])
    for name, message in {
        "text": "not a MIDI file or an .npz",
        "other": "no array pitches; it has notes",
        "float": "whole numbers",
        "low": r"MIDI numbers 21\.\.108",
        "wide": r"\(2, 5\)",
        "pickle": "is a pickle",
        "huge": "tokens; at most 65536|524288 tokens",
        "cut": "damaged",
    }.items():
        with pytest.raises(DataError, match=rf"{name}\.npz: .*({message})"):
            music(tmp_path / f"{name}.npz", tokens=4)
    for value in ("ROMEO:", ""):
        with pytest.raises(DataError, match="goes on from a file .mid, .midi or .npz, or begins a piece .* not from"):
            music(value)


@pytest.mark.parametrize("value", ["", b"", b"\n"])
def test_empty_prompts(text, value):
    with pytest.raises(DataError, match="empty: a sequence begins with a token at least"):
        text(value)


def test_no_prompt_where_one_is_needed(text):
    with pytest.raises(DataError, match="needs a prompt"):
        text(None)
    with pytest.raises(DataError, match="expected text, not ndarray"):
        text(np.zeros(3))


def test_what_cannot_be_read_is_left_out(text, tmp_path):
    found = text(["ROMEO:", "é", tmp_path / "gone.txt", None, "a"], on_error="skip", tokens=2)
    assert [one.name for one in found] == ["ROMEO:", "a"]
    assert [failure.name for failure in text.failures] == ["é", str(tmp_path / "gone.txt"), "no prompt"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": 0}, "tokens must be a whole number from 1 to 65536, not 0"),
        ({"tokens": 10**9}, "tokens must be a whole number"),
        ({"tokens": 2.0}, "tokens must be"),
        ({"tokens": True}, "tokens must be"),
        ({"temperature": -1}, "temperature must be a number from 0"),
        ({"temperature": float("nan")}, "temperature must be"),
        ({"temperature": float("inf")}, "temperature must be"),
        ({"temperature": "hot"}, "temperature must be"),
        ({"seed": -1}, "seed must be a whole number"),
        ({"seed": 2**63}, "seed must be"),
        ({"seed": 0.5}, "seed must be"),
        ({"frame": 1}, "unknown option 'frame'; of decoders: progress, seed, temperature, tokens"),
        ({"errors": "keep"}, "is not for prompts"),
    ],
)
def test_bad_options(text, options, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        text("ROMEO:", **options)


def test_too_long_together(text):
    with pytest.raises(DataError, match="6 tokens and 65536 new ones are more than the 65536"):
        text("ROMEO:", tokens=MOST_TOKENS)
    with pytest.raises(DataError, match=r"\.\.\.: 65537 tokens; at most 65536 are read"):
        text("a" * (MOST_TOKENS + 1))


def test_extremes_of_what_may_be_asked(text):
    assert text("a", tokens=5, temperature=1e-30).text == text("a", tokens=5, temperature=0).text
    assert len(text("a", tokens=2, seed=2**63 - 1, temperature=1e6).text) == 2


def test_a_table_of_positions_ends():
    predict = zoo.predictor(toy("index", "learned"))
    assert len(predict(QUESTION, tokens=10).text) == 10
    with pytest.raises(DataError, match="a learned table of 64 positions has no others"):
        predict(QUESTION, tokens=60)


def test_models_that_cannot_be_used(text):
    with pytest.raises(ConfigError, match="toy has no tokenizer"):
        zoo.predictor(toy("none"))
    with pytest.raises(ConfigError, match="has 5 tokens, the model 7"):
        zoo.predictor(toy("hg38", vocabulary=7))
    with pytest.raises(ConfigError, match="positions on 2 axes, and what gives them is not known"):
        zoo.predictor(toy("hg38", "pope", coord_dim=2))
    with pytest.raises(ConfigError, match="size is not for decoders"):
        zoo.predictor(text.model, size=64)
    with pytest.raises(ConfigError, match="min_score is for detectors"):
        zoo.predictor(text.model, min_score=0.5)
    changed, made = toy_for("copy")
    other = {"kind": "characters", "characters": made.tokenizer.characters[::-1]}
    changed.data_config = changed.data_config.replace(tokenizer=other)
    with pytest.raises(ConfigError, match="its tokenizer is not that of its data set, copy"):
        zoo.predictor(changed)
    text.model.reset_classifier(9)
    with pytest.raises(ConfigError, match="no tokenizer"):
        zoo.predictor(text.model)
    with pytest.raises(WeightsError, match="pape-decoder-t-jsb has no published weights"):
        zoo.predictor("pape-decoder-t-jsb")


def test_text_with_positions_that_are_the_same_on_all_axes():
    data = {"length": 32, "tokenizer": {"kind": "dna"}, "dataset": {"name": "dna"}}
    assert len(zoo.predictor(toy("hg38", coord_dim=2, data=data))("ACG", tokens=3)) == 3


def test_damaged_weights(text):
    with torch.no_grad():
        text.model.head.weight[3] = torch.nan
    with pytest.raises(WeightsError, match="ROMEO:: the model's scores are not finite"):
        text("ROMEO:")


def test_progress(text):
    seen: list[float] = []
    text("ROMEO:", tokens=4, progress=seen.append)
    assert seen == [0.25, 0.5, 0.75, 1.0]


def test_a_path_of_a_prompt_is_told(text, tmp_path):
    path = tmp_path / "p.txt"
    path.write_text("ROMEO:")
    told = text(path, tokens=1).to_dict()
    assert Path(told["path"]) == path and told["prompt"] == "ROMEO:"
    assert text("ROMEO:", tokens=1).to_dict()["path"] is None
