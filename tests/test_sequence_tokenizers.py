"""Tokenizers: what is encoded comes back, every token has one meaning, and what has none is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from modalities.sequence.tokenizers import (
    TOKENIZERS,
    ByteTokenizer,
    CharTokenizer,
    ChoraleTokenizer,
    DNATokenizer,
    RollTokenizer,
    tokenizer_from_dict,
)
from zoo.errors import ConfigError, DataError

ALL = [CharTokenizer("bca\n€"), ByteTokenizer(), DNATokenizer(), ChoraleTokenizer(), RollTokenizer()]


@pytest.mark.parametrize("tokenizer", ALL, ids=lambda one: one.kind)
def test_a_tokenizer_travels_as_plain_values(tokenizer: Any) -> None:
    assert tokenizer_from_dict(tokenizer.to_dict()) == tokenizer
    assert sum(one == tokenizer for one in ALL) == 1
    assert len(TOKENIZERS) == len(ALL)


@settings(max_examples=8, deadline=None)
@given(st.text())
def test_text_comes_back(text: str) -> None:
    assert ByteTokenizer().decode(ByteTokenizer().encode(text)) == text
    tokenizer = CharTokenizer.of(text + "x")
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int64 and tokenizer.decode(torch.from_numpy(ids)) == text
    assert sorted(tokenizer.characters) == list(tokenizer.characters)


def test_ids_of_characters_follow_the_alphabet() -> None:
    assert CharTokenizer("bca").encode("abc").tolist() == [2, 0, 1]
    with pytest.raises(DataError, match="'z' is not in the alphabet"):
        CharTokenizer("bca").encode("az")


def test_bases_are_read_in_either_case_and_unknown_ones_are_n() -> None:
    tokenizer = DNATokenizer()
    assert tokenizer.decode(tokenizer.encode("acgtACGTnRuy")) == "ACGTACGTNNTN"
    assert np.array_equal(tokenizer.encode(b"GATTACA"), tokenizer.encode("GATTACA"))
    with pytest.raises(DataError, match="'X' at position 2"):
        tokenizer.encode("AAXA")


@settings(max_examples=8, deadline=None)
@given(arrays.arrays(np.int8, st.tuples(st.integers(0, 6), st.just(4)), elements=st.sampled_from([-1, 21, 60, 108])))
def test_chorales_come_back(pitches: np.ndarray) -> None:
    tokenizer = ChoraleTokenizer()
    ids = tokenizer.encode(pitches)
    assert np.array_equal(tokenizer.decode(ids), pitches)
    assert np.array_equal(tokenizer.decode(np.append(tokenizer.start, ids)), pitches)
    assert tokenizer.start not in ids


def test_voices_of_a_step_follow_from_soprano_to_bass() -> None:
    ids = ChoraleTokenizer().encode(np.array([[108, 60, 21, -1], [60, 60, 60, 60]]))
    assert ids.tolist() == [88, 40, 1, 0, 40, 40, 40, 40]
    assert ChoraleTokenizer().decode(ids[:6]).tolist() == [[108, 60, 21, -1]]


@settings(max_examples=8, deadline=None)
@given(arrays.arrays(bool, st.tuples(st.integers(0, 5), st.just(88))))
def test_rolls_come_back_and_every_frame_ends_once(frames: np.ndarray) -> None:
    tokenizer = RollTokenizer()
    ids = tokenizer.encode(frames)
    assert (ids == tokenizer.end).sum() == len(frames) and len(ids) == len(frames) + frames.sum()
    assert np.array_equal(tokenizer.decode(ids), frames)
    assert np.array_equal(tokenizer.decode([*ids, 4]), frames)  # A frame that is not complete is left out.


@pytest.mark.parametrize(
    ("tokenizer", "value"),
    [
        (CharTokenizer("a"), b"a"),
        (ByteTokenizer(), 3),
        (ByteTokenizer(), "\ud800"),
        (DNATokenizer(), None),
        (ChoraleTokenizer(), [[60, 60, 60]]),
        (ChoraleTokenizer(), [[60, 60, 60, 20]]),
        (ChoraleTokenizer(), [[60.0, 60, 60, 60]]),
        (RollTokenizer(), np.zeros((2, 87))),
        (RollTokenizer(), np.full((2, 88), 2)),
    ],
)
def test_what_has_no_tokens_is_refused(tokenizer: Any, value: Any) -> None:
    with pytest.raises(DataError):
        tokenizer.encode(value)


@pytest.mark.parametrize("ids", [[5], [-1], [[0]], [0.0], ["0"]])
def test_ids_of_no_token_are_refused(ids: Any) -> None:
    with pytest.raises(DataError, match="token ids"):
        CharTokenizer("abcde").decode(ids)


@pytest.mark.parametrize(
    "values",
    [
        None,
        {},
        {"kind": "words"},
        {"kind": ["bytes"]},
        {"kind": "characters"},
        {"kind": "characters", "characters": ""},
        {"kind": "characters", "characters": "aa"},
        {"kind": "characters", "characters": 3},
        {"kind": "bytes", "size": 3},
    ],
)
def test_damaged_descriptions_are_refused(values: Any) -> None:
    with pytest.raises(ConfigError):
        tokenizer_from_dict(values)
