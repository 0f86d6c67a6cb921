"""Continuing sequences: greedy, drawn, stopped, with positions of their own."""

from __future__ import annotations

import pytest
import torch
from sequence_models import VOCABULARY, decoder, ids_of

from modalities.sequence.generate import sample
from modalities.sequence.positions import following
from zoo import ConfigError, DataError
from zoo.coordinates import Coordinates
from zoo.position_ids import newline_rows


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", ["pape", "rope", "alibi", "rope-normalised", "learned"])
def test_greedy_is_what_a_loop_of_forwards_gives(name):
    model, ids = decoder(name), ids_of(4)
    tokens = ids
    with torch.no_grad():
        for _ in range(6):
            tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(model.generate(ids, 6, temperature=0), tokens)
    assert torch.equal(model.generate(ids, 6, top_k=1), tokens)
    assert torch.equal(model.generate(ids, 6, temperature=0, use_cache=False), tokens)
    assert name == "pape" or len(tokens[:, 4:].unique()) > 1  # Its drawn weights say one thing.


def test_same_seed_same_tokens():
    model, ids = decoder("pope"), ids_of(3)
    first = model.generate(ids, 12, generator=seeded())
    assert first.shape == (2, 15) and first.dtype == torch.int64 and torch.equal(first[:, :3], ids)
    assert torch.equal(model.generate(ids, 12, generator=seeded()), first)
    assert torch.equal(model.generate(ids, 12, generator=seeded(), use_cache=False), first)
    assert not torch.equal(model.generate(ids, 12, generator=seeded(1)), first)
    assert torch.equal(model.generate(ids, 0), ids)
    assert not first.requires_grad


def test_drawn_tokens_follow_the_probabilities():
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0, float("-inf")])
    many = logits.expand(20_000, -1)

    def shares(**options):
        return sample(many, generator=seeded(), **options).bincount(minlength=5) / len(many)

    for temperature in (1.0, 0.5):
        expected = (logits / temperature).softmax(-1)
        assert (shares(temperature=temperature) - expected).abs().max() < 0.015
    two = logits.masked_fill(torch.tensor([True, False, True, False, True]), float("-inf")).softmax(-1)
    assert (shares(top_k=2) - two).abs().max() < 0.015
    assert shares(top_k=2)[[0, 2, 4]].sum() == 0
    assert shares(temperature=1e-30)[3] == 1  # Nothing becomes infinite or NaN.
    assert torch.equal(shares(top_k=99), shares())


def test_the_last_drawn_number_is_no_impossible_token():
    logits = torch.tensor([[2.0, 1.0, float("-inf"), float("-inf")]]).expand(4096, -1)
    assert int(sample(logits, generator=seeded(5)).max()) <= 1
    assert int(sample(logits.flip(1), generator=seeded(5)).min()) >= 2


def test_sequences_stop():
    model, ids = decoder("rope"), ids_of(3, 4)
    free = model.generate(ids, 30, generator=seeded())
    stop = int(free[0, 5])
    found = model.generate(ids, 30, stop_token=stop, generator=seeded())
    for row, unstopped in zip(found, free, strict=True):
        new = row[3:]
        ends = (new == stop).nonzero().flatten()
        if len(ends):
            assert (new[int(ends[0]) :] == stop).all()
            assert torch.equal(row[: 3 + int(ends[0])], unstopped[: 3 + int(ends[0])])
    assert (found[0, 5:] == stop).all()
    alone = model.generate(ids[:1], 30, stop_token=int(model.generate(ids[:1], 1, temperature=0)[0, -1]), temperature=0)
    assert alone.shape == (1, 4)


def test_text_goes_on_after_given_positions():
    model, ids = decoder("rope", 3), ids_of(4)
    mixed, plain = [[0, 0, 0], [1, 1, 1], [1, 1, 2.5], [1, 2, 1]], [[i, i, i] for i in range(4)]
    prompt = torch.tensor([mixed, plain])
    found = model.generate(ids, 3, temperature=0, positions=prompt)
    rest = torch.tensor([[4.0, 5.0], [4.0, 5.0]]).unsqueeze(-1).expand(-1, -1, 3)  # ceil(2.5) + 1 and 3 + 1.
    tokens = ids
    with torch.no_grad():
        for count in range(3):
            positions = torch.cat([prompt, rest[:, :count]], dim=1)
            tokens = torch.cat([tokens, model(tokens, positions)[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(found, tokens)
    known = torch.zeros(2, 4, dtype=torch.bool)
    assert following(Coordinates(prompt, positioned=known), 2).values[:, :, 0].tolist() == [[0.0, 1.0]] * 2
    known[:, :2] = True
    assert following(Coordinates(prompt, positioned=known), 1).values[0, 0].tolist() == [2.0, 2.0, 2.0]


def test_rows_end_in_newlines():
    """Positions that follow from the tokens: (row, column) of text."""
    newline = 5
    model, ids = decoder("pape", 2), torch.cat([ids_of(4), torch.tensor([[newline], [1]])], dim=1)

    def positions(tokens):
        return newline_rows(tokens == newline)

    found = model.generate(ids, 8, temperature=0, positions=positions)
    tokens = ids
    with torch.no_grad():
        for _ in range(8):
            tokens = torch.cat([tokens, model(tokens, positions(tokens))[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(found, tokens)
    assert not torch.equal(found, model.generate(ids, 8, temperature=0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens"),
        ({"max_new_tokens": 2.0}, "max_new_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"stop_token": VOCABULARY}, "stop_token must be a token, 0..12"),
    ],
)
def test_settings_that_cannot_be(options, message):
    with pytest.raises(ConfigError, match=message):
        decoder("none").generate(ids_of(3), **{"max_new_tokens": 1, **options})


@pytest.mark.parametrize(
    ("ids", "positions", "message"),
    [
        (torch.zeros(1, 0, dtype=torch.int64), None, "start it with a token"),
        (torch.zeros(3, dtype=torch.int64), None, r"int64 tensor \(B, N\)"),
        (torch.zeros(1, 3), None, "int64 tensor"),
        ([[1, 2]], None, "got list"),
        (torch.tensor([[0, VOCABULARY]]), None, "must be 0..12, got 0..13"),
        (torch.tensor([[-1]]), None, "must be 0..12"),
        (torch.tensor([[1, 2]]), torch.zeros(1, 3), "2 tokens with 1 axes"),
        (torch.tensor([[1, 2]]), torch.zeros(1, 2, 2), "2 tokens with 1 axes"),
        (torch.tensor([[1, 2]]), torch.zeros(3, 2), r"for 1 \(or 1\) sequences"),
        (torch.tensor([[1, 2]]), torch.zeros(1, 2, dtype=torch.bool), "positions must be numbers"),
        (torch.tensor([[1, 2]]), [0, 1], "got list"),
    ],
)
def test_inputs_that_cannot_be(ids, positions, message):
    with pytest.raises(DataError, match=message):
        decoder("rope")(ids, positions)
