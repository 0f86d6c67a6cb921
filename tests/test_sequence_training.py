"""Training and scoring decoders: recipes run, resume bit for bit, learn what can be learnt, and scores are right."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

import zoo
from modalities.sequence.batch import IGNORED
from modalities.sequence.bpe import BpeTokenizer
from modalities.sequence.datasets import open_sequences
from modalities.sequence.datasets.base import batch_tokens
from modalities.sequence.datasets.stream import Stream
from modalities.sequence.evaluate import evaluate_sequences, score
from modalities.sequence.task import SequenceGeneration
from modalities.sequence.tokenizers import ByteTokenizer, RollTokenizer, tokenizer_from_dict
from tests.sequence_training import tiny_settings, write_chorales
from tests.training_toys import stop_after
from zoo.cli.main import main
from zoo.errors import ConfigError
from zoo.model_inputs import call_model
from zoo.training import train
from zoo.training.recipe import built_in_recipes, load_recipe, recipe_from_dict

RECIPES = ("index", "jsb", "shakespeare", "hg38", "text2d-copy", "text2d-column", "picture-questions")


class Fixed(nn.Module):
    """A stand-in for a decoder: after token t it gives t + 1 the probability p, and the rest to all others alike."""

    def __init__(self, vocabulary: int, probability: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.vocabulary, self.probability = vocabulary, probability

    def forward(self, ids: Tensor, positions: Any = None) -> Tensor:
        rest = (1 - self.probability) / (self.vocabulary - 1)
        odds = torch.full((*ids.shape, self.vocabulary), rest, dtype=torch.float64)
        odds.scatter_(2, ((ids + 1) % self.vocabulary)[:, :, None], self.probability)
        return odds.log()


def started(recipe: Any) -> SequenceGeneration:
    """The task of a recipe on the CPU, with a tiny network."""
    task = SequenceGeneration(recipe)
    model = zoo.load(recipe.model, pretrained=False, **recipe.model_options, **task.model_arguments())
    task.start(model, torch.device("cpu"), 0, 1)
    return task


def test_scores_are_those_of_the_probabilities() -> None:
    stream = Stream("toy", "test", [np.array([0, 1, 2, 5, 6, 7, 8, 8])], ByteTokenizer(), 4, "")
    found = score(Fixed(256, 0.6), stream, 4)
    right, wrong = -math.log(0.6), -math.log(0.4 / 255)
    assert found["tokens"] == 7 and found["accuracy"] == pytest.approx(500 / 7)
    assert found["nll"] == pytest.approx((5 * right + 2 * wrong) / 7, rel=1e-5)
    assert "exact" not in found and "nll_frame" not in found


def test_large_vocabularies_are_scored_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = BpeTokenizer("0" * 64, 300, 299)
    stream = Stream("toy", "test", [np.arange(40)], tokenizer, 8, "")
    model = Fixed(300, 0.5)
    whole = score(model, stream, 8)
    assert whole["perplexity"] == pytest.approx(math.exp(whole["nll"])) and whole["tokens"] == 39
    monkeypatch.setattr("modalities.sequence.evaluate._PART", 3 * 300)
    assert score(model, stream, 8) == whole
    assert batch_tokens("cuda", 66) == 131_072 and batch_tokens("cuda", 50_257) * 50_257 <= 1 << 30
    assert batch_tokens("cpu", 5) == 8192 and batch_tokens("cpu", 1 << 30) == 1
    model.forward = lambda ids: torch.eye(300, dtype=torch.float64)[0].expand(*ids.shape, 300) * 5e3  # type: ignore
    assert score(model, stream, 8)["perplexity"] == math.inf


def test_frames_are_scored_by_all_their_tokens() -> None:
    frames = np.zeros((5, 88), dtype=bool)
    frames[0, [86, 87]] = frames[2, 3] = True
    roll = RollTokenizer()
    stream = Stream("toy", "test", [roll.encode(frames)], roll, 4, "")
    stream.frame_end = roll.end
    found = score(Fixed(90, 0.5), stream, 8)
    assert found["tokens"] == 8 and found["nll_frame"] == pytest.approx(found["nll"] * 8 / 5)
    stream.frame_tokens, stream.frame_end = 4, None
    assert score(Fixed(90, 0.5), stream, 8)["nll_frame"] == pytest.approx(4 * found["nll"])


def test_a_sequence_without_a_fault_has_all_answers() -> None:
    class Knowing(nn.Module):
        """Knows all answers but one of the first sequence."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, ids: Tensor) -> Tensor:
            answers = targets.clamp(min=0)
            last = (targets[0] != IGNORED).nonzero().max()
            answers[0, last] = (answers[0, last] + 1) % 26
            return 9 * nn.functional.one_hot(answers, 30).double()

    data = open_sequences("copy", None, "test", length=0, options={"columns": [3, 3]})
    (batch,) = data.scored(3, limit=4)
    targets = batch.targets
    assert (targets != IGNORED).sum() == 12
    found = score(Knowing(), data, 3, limit=4)
    assert found["accuracy"] == pytest.approx(100 * 11 / 12) and found["exact"] == 75


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_make_batches_that_follow_from_the_seed(name: str, tmp_path: Path) -> None:
    assert name in built_in_recipes()
    data = None
    changes: dict[str, Any] = {"batch_size": 4}
    if name == "jsb":
        data, changes = str(write_chorales(tmp_path)), {"batch_size": 4, "length": 16}
    elif name in ("shakespeare", "hg38"):
        file = tmp_path / ("input.txt" if name == "shakespeare" else "a.fa")
        file.write_text("abcdefghij\n" * 90 if name == "shakespeare" else ">a\n" + "ACGGTTA" * 150)
        data, changes = str(file), {"batch_size": 4, "length": 32}
    elif name == "index":
        changes["dataset_options"] = {"train_samples": 64}
    small = {"dim": 32, "depth": 1, "num_heads": 2, "head_dim": 16, "mlp_dim": 32}
    recipe = load_recipe(name, {"data": data, "output": str(tmp_path / "out"), "model_options": small, **changes})
    tasks = [started(recipe), started(recipe), started(dataclasses.replace(recipe, seed=1))]
    (first, targets), (again, _), (other, _) = (task.batch(1, 0) for task in tasks)
    assert isinstance(first, tuple) == (name in ("text2d-copy", "text2d-column", "picture-questions"))
    ids, same, different = (one[0] if isinstance(one, tuple) else one for one in (first, again, other))
    assert torch.equal(ids, same) and not torch.equal(ids, different)
    assert ids.shape == targets.shape == (4, tasks[0].data.length) and int(ids.max()) < tasks[0].num_classes
    following = tasks[0].batch(1, 1)[0]
    assert not torch.equal(ids, following[0] if isinstance(following, tuple) else following)


def test_a_resumed_run_is_the_same_to_the_last_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    common: dict[str, Any] = {"dataset": "jsb", "data": str(write_chorales(tmp_path)), "length": 16, "transpose": 4}
    common |= {"drop_path": 0.2, "batch_size": 2, "ema": 0.9}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(recipe_from_dict(tiny_settings(whole, **common)))
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        assert not train(recipe_from_dict(tiny_settings(parts, **common))).finished
    assert train(recipe_from_dict(tiny_settings(parts, **common)), resume=True).finished
    assert (whole / "model.safetensors").read_bytes() == (parts / "model.safetensors").read_bytes()
    record = json.loads((whole / "train_record.json").read_text())
    assert record["dev_nll_frame"] == pytest.approx(4 * record["dev_nll"])
    model = zoo.load(f"local-dir:{whole}")
    assert tokenizer_from_dict(model.data_config.tokenizer).kind == "chorales"
    assert model.data_config.dataset == {"name": "jsb"} and model.data_config.length == 16
    report = evaluate_sequences(model, tmp_path, split="test", sizes=[16, 64])
    assert [row["tokens"] for row in report["results"]] == [132, 132]
    extended = evaluate_sequences(model, tmp_path, split="test", sizes=[16, 64], extend="pi")["results"]
    assert extended[0]["nll"] == pytest.approx(report["results"][0]["nll"], abs=1e-6)
    assert extended[1]["nll"] != pytest.approx(report["results"][1]["nll"], abs=1e-9)
    assert [row["factor"] for row in extended] == [[1.0], [4.0]]


def test_a_decoder_learns_to_copy_and_is_measured_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "run"
    options = {"columns": [1, 2], "positions": "rows", "train_samples": 20_000}
    keys = {"dataset": "copy", "dataset_options": options, "dev_limit": 64, "batch_size": 250, "lr": 1e-2}
    sizes = {"dim": 32, "depth": 1, "num_heads": 2, "head_dim": 16, "mlp_dim": 32}
    settings = tiny_settings(output, model="rope-decoder-n-index", model_options=sizes, warmup=0.1, **keys)
    train(recipe_from_dict(settings))
    record = json.loads((output / "train_record.json").read_text())
    assert record["dev_accuracy"] > 50  # Chance is 4 %.
    with pytest.raises(SystemExit, match="^0$"):
        main(["eval", f"local-dir:{output}", "--data", "copy", "--sizes", "2,5", "--limit", "20", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert [row["condition"] for row in report["results"]] == ["2 columns", "5 columns"]
    assert report["results"][0]["accuracy"] > 50 and report["task"] == "generation"
    with pytest.raises(SystemExit, match="^2$"):
        main(["eval", f"local-dir:{output}", "--data", "pictures", "--limit", "2"])
    assert "tokens" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="batched by their length"):
        evaluate_sequences(zoo.load(f"local-dir:{output}"), "copy", batch_size=3)


def test_two_processes_share_a_batch(tmp_path: Path) -> None:
    keys = {"dataset": "index", "dataset_options": {"train_samples": 32}}
    recipe = recipe_from_dict(tiny_settings(tmp_path, **keys))
    seen = []
    for rank, world in ((0, 1), (0, 2), (1, 2)):
        task = SequenceGeneration(recipe)
        model = zoo.load(recipe.model, pretrained=False, **recipe.model_options, **task.model_arguments())
        task.start(model, torch.device("cpu"), rank, world)
        seen.append(task.batch(0, 1)[0])
    assert torch.equal(seen[0], torch.cat(seen[1:]))


@pytest.mark.parametrize(
    ("encoding", "keys"),
    [
        ("pape", {"dataset": "copy", "dataset_options": {"positions": "rows"}}),
        ("pape", {"dataset": "pictures", "dataset_options": {"scheme": "v2pe"}}),
        ("pope", {"dataset": "index", "dataset_options": {"train_samples": 64}}),
    ],
)
def test_networks_are_compiled_as_a_whole(encoding: str, keys: dict[str, Any], tmp_path: Path) -> None:
    small = {"dim": 16, "depth": 1, "num_heads": 1, "head_dim": 16, "mlp_dim": 16}
    model_name = f"{encoding}-decoder-n-index"
    task = SequenceGeneration(recipe_from_dict(tiny_settings(tmp_path, model=model_name, **keys)))
    model = zoo.load(model_name, pretrained=False, **small, **task.model_arguments()).train()
    task.start(model, torch.device("cpu"), 0, 1)
    batches = [task.batch(0, index)[0] for index in (0, 1)]
    compiled = torch.compile(model, backend="eager", fullgraph=True)  # Which stops where a value is looked at.
    for inputs in batches:
        with torch.compiler.set_stance("default" if inputs is batches[0] else "fail_on_recompile"):
            assert torch.allclose(call_model(compiled, inputs), call_model(model, inputs), atol=1e-5)
    leaves = tree_leaves(batches[0])
    assert all(isinstance(leaf, Tensor) for leaf in leaves) and len(leaves) == 1 + isinstance(batches[0], tuple)
    if isinstance(batches[0], tuple):
        again = tree_unflatten(*tree_flatten(batches[0]))
        assert again[1].bounds == batches[0][1].bounds and torch.equal(again[1].values, batches[0][1].values)


@pytest.mark.parametrize(
    "changes",
    [
        {"dataset": "words"},
        {"dataset": "text", "dataset_options": {"columns": [1, 2]}},
        {"length": 1},
        {"transpose": 13},
        {"dev_limit": -1},
    ],
)
def test_recipes_out_of_range_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        recipe_from_dict(tiny_settings(tmp_path, **changes))
