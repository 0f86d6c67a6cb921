"""Log-likelihoods for lm-evaluation-harness against direct computation; the library itself is stood in for."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from modalities.sequence.bpe import read_bpe
from modalities.sequence.harness import CBT_KINDS, Scorer, cbt_task, harness_model, windows
from modalities.sequence.presets import config
from tests.sequence_files import TEXT, write_tokenizer
from tests.sequence_models import VOCABULARY, decoder
from tests.sequence_training import SIZES
from zoo.errors import ConfigError, MissingDependencyError
from zoo.registry import architecture

END = 0


def nats(model: Any, ids: list[int], count: int) -> tuple[float, bool]:
    """Of the last `count` tokens, one forward pass for each."""
    total, greedy = 0.0, True
    for place in range(len(ids) - count, len(ids)):
        with torch.inference_mode():
            scores = F.log_softmax(model(torch.tensor([ids[:place]]))[0, -1].double(), dim=-1)
        total += float(scores[ids[place]])
        greedy &= int(scores.argmax()) == ids[place]
    return total, greedy


@pytest.mark.parametrize("encoding", ["rope", "pape", "alibi"])
def test_continuations_are_scored_as_one_by_one(encoding: str) -> None:
    model = decoder(encoding)
    pairs = [([1, 2, 3], [4, 5]), ([], [7]), ([9], [1, 2, 3, 4]), ([3, 1], [4, 5]), ([5, 5, 5], [2, 2])]
    found = Scorer(model, END, 32).continuations(pairs)
    for (context, continuation), (total, greedy) in zip(pairs, found, strict=True):
        wanted, likeliest = nats(model, [*(context or [END]), *continuation], len(continuation))
        assert total == pytest.approx(wanted, abs=1e-4) and greedy == likeliest
    best = decoder(encoding).generate(torch.tensor([[1, 2, 3]]), 3, temperature=0)[0, 3:].tolist()
    assert Scorer(model, END, 32).continuations([([1, 2, 3], best)])[0][1]


def test_others_in_a_batch_do_not_matter() -> None:
    """Also where positions are divided by the length of the sample."""
    scorer = Scorer(decoder("rope-normalised"), END, 32)
    pairs = [([1, 2, 3], [4, 5]), ([1], [2]), ([9, 8, 7, 6], [1, 2, 3, 4]), ([3, 1, 4], [4, 5])]
    for pair, (total, _) in zip(pairs, scorer.continuations(pairs), strict=True):
        assert total == pytest.approx(scorer.continuations([pair])[0][0], abs=1e-5)


def test_logits_are_those_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoder("rope")
    seen = []
    head = model.forward_head
    monkeypatch.setattr(model, "forward_head", lambda features: seen.append(features.shape[0]) or head(features))
    monkeypatch.setattr("modalities.sequence.harness.batch_tokens", lambda device, vocabulary: 2 * vocabulary)
    pairs = [([1] * 20, [2, 3]), ([4] * 20, [5, 6]), ([7], [8])]
    found = Scorer(model, END, 32).continuations(pairs)
    assert seen == [2, 2, 1] and found[1][0] == pytest.approx(nats(model, [4] * 20 + [5, 6], 2)[0], abs=1e-4)


def test_contexts_are_cut_from_the_left() -> None:
    model = decoder("rope")
    context = [number % VOCABULARY for number in range(40)]
    total, _ = Scorer(model, END, 8).continuations([(context, [3, 4])])[0]
    assert total == pytest.approx(nats(model, [*context[-7:], 3, 4], 2)[0], abs=1e-4)
    with pytest.raises(ConfigError, match="1 to 8 tokens, not 9"):
        Scorer(model, END, 8).continuations([([1], [1] * 9)])
    with pytest.raises(ConfigError, match="not 0"):
        Scorer(model, END, 8).continuations([([1], [])])
    with pytest.raises(ConfigError, match="max_length"):
        Scorer(model, END, 1)


@pytest.mark.parametrize("length", [1, 2, 5, 8, 9, 40])
@pytest.mark.parametrize("count", [1, 7, 8, 9, 17])
def test_rolling_windows_cover_every_token_once(count: int, length: int) -> None:
    text = list(range(1, count + 1))
    found = windows(text, END, length)
    assert [token for _, part in found for token in part] == text
    for before, part in found:
        assert before and len(before) + len(part) - 1 <= length
        assert before[-1] == part[0] - 1  # What stands before it, or the end of another document.
        assert before == list(range(before[0], part[0]))
    assert len(found[-1][0]) + len(found[-1][1]) - 1 == min(length, count)


def test_rolling_is_the_sum_of_its_windows() -> None:
    model = decoder("pope")
    text = [1 + number % 12 for number in range(11)]
    wanted = sum(nats(model, [*before, *part], len(part))[0] for before, part in windows(text, END, 4))
    assert Scorer(model, END, 4).rolling(text) == pytest.approx(wanted, abs=1e-4)
    assert Scorer(model, END, 4).rolling([]) == 0
    assert Scorer(model, END, 32).rolling(text) == pytest.approx(nats(model, [END, *text], 11)[0], abs=1e-4)


class Request:
    def __init__(self, *args: Any) -> None:
        self.args = args


def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, Any]:
    """The adapter on a stand-in of the library, its decoder and tokenizer."""
    path = write_tokenizer(tmp_path)
    tokenizer, _ = read_bpe(path)
    data = {"length": 64, "tokenizer": tokenizer.to_dict()}
    made = config("toy", encoding="rope", sizes=SIZES, vocabulary=tokenizer.vocab_size, data=data)
    torch.manual_seed(1)
    model = architecture(made).build(made).eval()
    for name in ("lm_eval", "lm_eval.api", "lm_eval.api.model"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["lm_eval.api.model"].LM = object  # type: ignore[attr-defined]
    return harness_model(model, path), model, tokenizer


def test_requests_of_the_harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter, model, tokenizer = harness(tmp_path, monkeypatch)
    spaced, plain = adapter.loglikelihood([Request("The quick ", "brown"), Request("The quick", " brown")])
    assert spaced == plain
    ids = tokenizer.encode("The quick brown").tolist()
    count = len(ids) - len(tokenizer.encode("The quick"))
    assert plain[0] == pytest.approx(nats(model, ids, count)[0], abs=1e-4)
    (whole,) = adapter.loglikelihood_rolling([Request(TEXT[:40])])
    ids = [tokenizer.end, *tokenizer.encode(TEXT[:40]).tolist()]
    assert whole == pytest.approx(nats(model, ids, len(ids) - 1)[0], abs=1e-3)

    (text,) = adapter.generate_until([Request("The quick", {"until": [], "max_gen_toks": 30})])
    wanted = model.generate(torch.tensor([tokenizer.encode("The quick").tolist()]), 30, temperature=0)
    assert text == tokenizer.decode(wanted[0, len(tokenizer.encode("The quick")) :]).split("<|endoftext|>")[0]
    stop = text[3:5]
    (cut,) = adapter.generate_until([Request("The quick", {"until": stop, "max_gen_toks": 30})])
    assert cut == text[: text.index(stop)]
    with pytest.raises(ConfigError, match="max_new_tokens must be 1 to 63"):
        adapter.generate_until([Request("The quick", {"max_gen_toks": 64})])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"top_p": 0.9},
            "unknown option 'top_p' of generate_until; there are do_sample, max_gen_toks, temperature, until",
        ),
        ({"num_beams": 4, "max_gen_toks": 2}, "unknown option 'num_beams'"),
        ({"until": 5}, "until must be a text or several, got 5"),
        ({"until": ["a", 5]}, "until must be a text or several"),
        ({"max_gen_toks": "9"}, "max_gen_toks must be a whole number, got '9'"),
        ({"max_gen_toks": 0}, "max_new_tokens must be 1 to 63"),
        ({"do_sample": "yes"}, "do_sample must be true or false"),
        ({"do_sample": True, "temperature": -1}, "temperature must be a number from 0 on, got -1"),
        ({"do_sample": True, "temperature": float("nan")}, "temperature must be a number from 0 on"),
    ],
)
def test_options_are_not_passed_over(
    options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter, _, _ = harness(tmp_path, monkeypatch)
    with pytest.raises(ConfigError, match=message):
        adapter.generate_until([Request("The quick", options)])


def test_known_options_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter, _, _ = harness(tmp_path, monkeypatch)
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(Scorer, "until", lambda self, *_, **given: seen.append(given) or "")
    options: list[dict[str, Any]] = [
        {},
        {"do_sample": False, "temperature": 0.7, "until": None},
        {"do_sample": True},
        {"do_sample": True, "temperature": 0.7, "until": ["a", "b"], "max_gen_toks": 5},
    ]
    adapter.generate_until([Request("The quick", given) for given in options])
    assert seen == [
        {"stops": [], "max_new_tokens": 63, "temperature": 0.0},
        {"stops": [], "max_new_tokens": 63, "temperature": 0.0},
        {"stops": [], "max_new_tokens": 63, "temperature": 1.0},
        {"stops": ["a", "b"], "max_new_tokens": 5, "temperature": 0.7},
    ]


def test_without_the_library_or_with_another_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, model, _ = harness(tmp_path, monkeypatch)
    (tmp_path / "other").mkdir()
    other = write_tokenizer(tmp_path / "other")
    other.write_text(other.read_text().replace('"add_prefix_space":false', '"add_prefix_space":true', 1))
    with pytest.raises(ConfigError, match="not the tokenizer of toy"):
        harness_model(model, other)
    monkeypatch.setitem(sys.modules, "lm_eval.api.model", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'pape-zoo\[harness\]'"):
        harness_model(model, tmp_path / "tokenizer.json")


def test_words_are_ranked_by_the_whole_sentence() -> None:
    task = cbt_task("CN")
    doc = {"sentences": ["A fox ran .", "It hid ."], "question": "The XXXXX slept .", "options": ["fox", "dog"]}
    assert task["doc_to_text"](doc) == "A fox ran . It hid ." and task["target_delimiter"] == " "
    assert task["doc_to_choice"](doc) == ["The fox slept .", "The dog slept ."]
    assert task["doc_to_target"]({**doc, "answer": "dog"}) == 1
    assert len({cbt_task(kind)["task"] for kind in CBT_KINDS}) == 4
    with pytest.raises(ConfigError, match="no kind 'cn'"):
        cbt_task("cn")
