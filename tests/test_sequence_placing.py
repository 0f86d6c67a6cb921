"""Where the tokens of questions to decoders are that were trained on made-up tasks: where training has them."""

from __future__ import annotations

import pytest
import torch
from decoder_toys import favour, toy_for

import zoo
from modalities.sequence.batch import IGNORED
from zoo.errors import DataError

PLACED = [
    ("copy", {"positions": "rows"}),
    ("column", {"positions": "rows"}),
    ("pictures", {"scheme": "v2pe", "pictures": 2}),
    ("pictures", {"scheme": "mrope", "pictures": 2}),
    ("pictures", {"scheme": "reset-mrope", "pictures": 2, "grid": 3}),
]


@pytest.mark.parametrize(("dataset", "options"), PLACED)
def test_questions_are_placed_as_in_training(dataset, options):
    """A prompt that ends before an answer, and what follows, are where training has them."""
    model, made = toy_for(dataset, "pope", **options)
    batch = made.batch(torch.arange(16), 5)
    predict = zoo.predictor(model)
    counted = 0
    for row in range(16):
        ids = batch.ids[row : row + 1]
        first = int((batch.targets[row] != IGNORED).nonzero()[0]) + 1
        place = predict._inputs.task.placing(ids[:, :first])
        where = batch.positions.values[row if len(batch.positions.values) > 1 else 0]
        for stop in (first, first + 1, ids.shape[1]):
            assert torch.equal(place(ids[:, :stop]).values[0], where[:stop])
        # The first token that the predictor takes is the one which follows from these.
        with torch.no_grad():
            answer = int(model(ids[:, :first], place(ids[:, :first]))[0, -1].argmax())
            counted += int(model(ids[:, :first])[0, -1].argmax()) != answer
        prompt = made.tokenizer.decode(ids[0, :first])
        assert predict(prompt, tokens=1, temperature=0).tokens.tolist() == [answer]
    assert counted > 0  # Counted tokens would have told another somewhere.


def test_lines_end_an_answer():
    model, made = toy_for("copy", positions="rows")
    predict = zoo.predictor(model)
    newline = made.tokenizer.encode("\n")[0]
    favour(model, newline)
    seen: list[float] = []
    assert predict(">abc\n=", progress=seen.append).tokens.tolist() == [newline] and seen[-1] == 1


def test_pictures_that_are_not_whole():
    predict = zoo.predictor(toy_for("pictures", "pope", scheme="mrope", grid=2)[0])
    assert len(predict("Kabcd?K01=", tokens=1)) == len(predict("?K01=", tokens=1)) == 1
    for prompt in ("Kabc", "KabcdLab?K01=", "KabcK"):
        with pytest.raises(DataError, match=r"picture \d of the prompt is not a name A..Z and 4 colours"):
            predict(prompt)


def test_folders_hold_all_that_is_needed(tmp_path):
    model, _ = toy_for("copy", positions="rows")
    zoo.save(model, tmp_path / "model")
    assert zoo.predictor(f"local-dir:{tmp_path / 'model'}")(">abc\n=").text == zoo.predictor(model)(">abc\n=").text
