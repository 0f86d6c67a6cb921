"""Packed tokens: every published form is packed, trained on and scored; damaged folders are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import zoo
from modalities.sequence.batch import IGNORED
from modalities.sequence.bpe import read_bpe
from modalities.sequence.datasets import open_sequences, splits
from modalities.sequence.datasets.documents import kind_of
from modalities.sequence.datasets.find import dataset_at
from modalities.sequence.datasets.packed import META, PackedTokens, TokenWriter
from modalities.sequence.evaluate import evaluate_sequences
from modalities.sequence.pack import pack_tokens
from modalities.sequence.presets import LARGE, LARGE_ENCODINGS
from modalities.sequence.tokenizers import ByteTokenizer, DNATokenizer
from tests.sequence_files import TEXT, write_books, write_genome, write_parquet, write_performances, write_tokenizer
from tests.sequence_training import tiny_settings
from zoo.cli.main import main
from zoo.errors import ConfigError, DataError
from zoo.training.loop import train
from zoo.training.recipe import load_recipe, recipe_from_dict

FACTS = {"name": "bytes", "source": "here", "licence": "none"}


def write(folder: Path, parts: list[bytes], shard: int = 64) -> Path:
    folder.mkdir()
    with TokenWriter(folder, ByteTokenizer(), FACTS, shard=shard) as writer:
        for part in parts:
            writer.append("train", np.frombuffer(part, dtype=np.uint8))
    return folder


def read_all(data: PackedTokens) -> bytes:
    return data._read(torch.tensor([0]), data.count)[0].to(torch.uint8).numpy().tobytes()


def packed_set(kind: str, root: Path) -> tuple[Path, Path | None]:
    """A set in its published form, and its tokenizer."""
    source = root / "published"
    source.mkdir()
    if kind == "openwebtext":
        texts = [TEXT * (1 + number % 3) for number in range(60)]
        return write_parquet(source, texts), write_tokenizer(root)
    if kind == "pg19":
        return write_books(source), write_tokenizer(root)
    return (write_genome(source) if kind == "genome" else write_performances(source)), None


@pytest.mark.parametrize("kind", ["openwebtext", "pg19", "genome", "maestro"])
def test_every_published_form_is_packed_trained_on_and_scored(kind: str, tmp_path: Path) -> None:
    source, tokenizer = packed_set(kind, tmp_path)
    out = tmp_path / "packed"
    counts = pack_tokens(kind, source, out, tokenizer=tokenizer, validation=0.2, seed=1)
    assert counts["train"] > 100 and counts["validation"] > 20
    meta = json.loads((out / META).read_text())
    assert meta["licence"] and meta["source"].startswith("https://") and meta["dtype"] == "uint16"
    assert sum(file["tokens"] for file in meta["splits"]["train"]) == counts["train"]
    assert dataset_at(out) == "tokens"

    run = tmp_path / "run"
    settings = tiny_settings(run, dataset="tokens", data=str(out), length=16, epochs=1, steps=3)
    train(recipe_from_dict(settings), quiet=True)
    model = zoo.load(f"local-dir:{run}")
    assert model.data_config.tokenizer == meta["tokenizer"] and model.config["data"]["dataset"]["name"] == "tokens"
    split = "validation" if "test" not in counts else "test"
    report = evaluate_sequences(model, out, split=split, sizes=[8, 16])
    assert [row["size"] for row in report["results"]] == [8, 16]
    for row in report["results"]:
        assert row["tokens"] <= counts[split] - 1 and 0 < row["nll"] < 8
        assert ("perplexity" in row) == (tokenizer is not None)


@pytest.mark.parametrize("name", ["openwebtext", "maestro", "genome"])
def test_recipes_of_large_data_run_on_made_up_files(name: str, tmp_path: Path) -> None:
    source, tokenizer = packed_set(name, tmp_path)
    out = tmp_path / "packed"
    pack_tokens(name, source, out, tokenizer=tokenizer, validation=0.2)
    small = {"steps": 1, "batch_size": 2, "length": 32, "precision": "float32", "compile": False, "device": "cpu"}
    small |= {"dev_limit": 1, "model_options": {"depth": 1, "dim": 32, "num_heads": 2, "head_dim": 16, "mlp_dim": 32}}
    recipe = load_recipe(name, {**small, "data": str(out), "output": str(tmp_path / "run")})
    whole = load_recipe(name)
    assert recipe.model == whole.model and whole.options.dataset == "tokens"
    train(recipe, quiet=True)
    record = json.loads((tmp_path / "run" / "train_record.json").read_text())
    assert record["steps"] == 1 and record["dev_nll"] > 0


def test_training_needs_no_validation_but_finds_a_bad_one_at_once(tmp_path: Path) -> None:
    source, tokenizer = packed_set("openwebtext", tmp_path)
    pack_tokens("openwebtext", source, tmp_path / "none", tokenizer=tokenizer, validation=0)
    assert splits("tokens", tmp_path / "none") == ("train",)
    settings = tiny_settings(tmp_path / "run", dataset="tokens", data=str(tmp_path / "none"), length=16, steps=1)
    train(recipe_from_dict(settings), quiet=True)
    assert "dev_nll" not in json.loads((tmp_path / "run" / "train_record.json").read_text())
    with TokenWriter(tmp_path / "none", read_bpe(tokenizer or "")[0], FACTS) as writer:
        writer.append("train", np.arange(200))
        writer.append("validation", np.arange(9))
    with pytest.raises(DataError, match="the split validation has 9 tokens"):
        train(recipe_from_dict({**settings, "output": str(tmp_path / "other")}), quiet=True)
    assert not (tmp_path / "other").exists()


def test_windows_may_lie_in_several_files(tmp_path: Path) -> None:
    text = bytes(range(32, 127)) * 3
    data = PackedTokens(write(tmp_path / "p", [text[:100], text[100:101], text[101:]]), "train", 200)
    assert [len(part) for part in data.parts] == [64, 64, 64, 64, len(text) - 256]
    assert data.count == len(text) and read_all(data) == text
    batch = data.batch(torch.arange(6), seed=3)
    assert batch.ids.shape == (6, 200) and torch.equal(batch.ids[:, 1:], batch.targets[:, :-1])
    for row in batch.ids.to(torch.uint8).numpy():
        assert row.tobytes() in text
    assert torch.equal(data.batch(torch.arange(6), seed=3).ids, batch.ids)


def test_every_token_but_the_first_is_scored_once(tmp_path: Path) -> None:
    data = PackedTokens(write(tmp_path / "p", [bytes(range(150))]), "train", 32)
    for size in (2, 31, 32, 149):
        asked = torch.cat([batch.targets.flatten() for batch in data.scored(size)])
        assert sorted(asked[asked != IGNORED].tolist()) == list(range(1, 150))


def test_a_split_that_is_not_there_and_other_identities(tmp_path: Path) -> None:
    one, two = write(tmp_path / "a", [b"abc" * 40]), write(tmp_path / "b", [b"abd" * 40])
    assert PackedTokens(one, "train", 8).sha256 != PackedTokens(two, "train", 8).sha256
    with pytest.raises(DataError, match="no split test; it has train"):
        open_sequences("tokens", one, "test", length=8)


def damage(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        meta = json.loads((folder / META).read_text())
        change(meta)
        (folder / META).write_text(json.dumps(meta))

    return apply


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / META).unlink(), "no meta.json"),
        (lambda folder: (folder / META).write_text("{"), "meta.json"),
        (damage(lambda meta: meta.update(format=2)), "format 2"),
        (damage(lambda meta: meta.update(dtype="float64")), "not the description"),
        (damage(lambda meta: meta.update(splits=[])), "not the description"),
        (damage(lambda meta: meta["splits"].update(train=[])), "not the description"),
        (damage(lambda meta: meta["splits"]["train"][0].update(file="../secret.bin")), "not the description"),
        (damage(lambda meta: meta["splits"]["train"][0].update(tokens=-1)), "not the description"),
        (damage(lambda meta: meta.update(tokenizer={"kind": "runes"})), "no tokenizer 'runes'"),
        (damage(lambda meta: meta.update(tokenizer=None)), "no tokenizer"),
        (lambda folder: (folder / "train-00000.bin").unlink(), "cannot be read"),
        (lambda folder: (folder / "train-00001.bin").write_bytes(b"abc"), "3 bytes, not the"),
        (lambda folder: (folder / "train-00000.bin").write_bytes(b""), "0 bytes, not the"),
    ],
)
def test_damaged_folders_are_refused(spoil: Callable[[Path], Any], message: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "p", [b"0123456789" * 20])
    spoil(folder)
    with pytest.raises(DataError, match=message):
        open_sequences("tokens", folder, "train", length=8)


def test_tokens_that_are_none_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "p", [b"0123456789" * 20])
    (folder / "train-00000.bin").write_bytes(b"\xff\xff" * 64)
    data = PackedTokens(folder, "train", 199)
    with pytest.raises(DataError, match="train-00000.bin: token 65535, of 256: damaged"):
        data.batch(torch.arange(1), seed=0)
    with pytest.raises(DataError, match="lie in 0..255"), TokenWriter(tmp_path, ByteTokenizer(), FACTS) as writer:
        writer.append("train", np.array([3, 256]))


def test_the_genome_is_its_chromosomes_with_an_n_for_every_gap(tmp_path: Path) -> None:
    counts = pack_tokens("genome", write_genome(tmp_path), tmp_path / "out")
    assert counts == {"train": 13 * 20, "validation": 241, "test": 241}
    data = open_sequences("tokens", tmp_path / "out", "train", length=16)
    assert isinstance(data, PackedTokens) and data.tokenizer == DNATokenizer()
    assert data.tokenizer.decode(data._read(torch.tensor([0]), 13 * 20)[0]) == "ACGTACGTACGTN" * 20


@pytest.mark.parametrize("chunk", [6, 7, 11, 1 << 20])
def test_bases_beside_a_gap_do_not_follow_each_other(
    chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the file is cut into parts; chromosomes do not follow each other either."""
    lines = [
        ">chr1",
        "NNNN",
        "",
        "nnAC",
        "GNNN",
        "NNN",
        "TTRYNKA",
        "C",
        ">chrM",
        "GG",
        ">chr2",
        "NN",
        ">chr3",
        "CC",
        "NN",
    ]
    path = tmp_path / "some.fa"
    path.write_text("\n".join(lines))
    monkeypatch.setattr("modalities.sequence.datasets.documents._CHUNK", chunk)
    own = DNATokenizer()
    found = "".join(own.decode(own.encode(document.content)) for document in kind_of("genome").documents(path, 0.0, 0))
    assert found == "ACGNTTNACNCCN"


def test_documents_are_held_out_by_seed_and_never_cut(tmp_path: Path) -> None:
    source, tokenizer = packed_set("openwebtext", tmp_path)
    found = {}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        pack_tokens("openwebtext", source, tmp_path / name, tokenizer=tokenizer, validation=0.3, seed=seed)
        found[name] = (tmp_path / name / "validation-00000.bin").read_bytes()
        assert (tmp_path / name / "tokenizer.json").read_text() == (tmp_path / "tokenizer.json").read_text()
    assert found["a"] == found["b"] != found["c"]
    data = open_sequences("tokens", tmp_path / "a", "validation", length=16)
    assert isinstance(data, PackedTokens)
    ids = data._read(torch.tensor([0]), data.count)[0].numpy()
    ends = np.flatnonzero(ids == data.tokenizer.end)  # type: ignore[attr-defined]
    starts = [0, *(ends[:-1] + 1)]
    assert ends[-1] == len(ids) - 1 and len(ends) > 5
    firsts = {tuple(ids[begin : begin + 10]) for begin in starts}
    assert len(firsts) == 1  # Every document begins with the same words.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["novels", "--data", "."], "no set 'novels' to pack"),
        (["genome", "--data", "gone.fa"], "no such file"),
        (["openwebtext", "--data", "."], "name the file of its tokenizer"),
        (["genome", "--data", ".", "--tokenizer", "t.json"], "has a tokenizer of its own"),
        (["pg19", "--data", ".", "--tokenizer", "gone.json"], "no tokenizer at gone.json"),
        (["genome", "--data", ".", "--validation", "1.5"], "validation must be at least 0"),
        (["maestro", "--data", "."], "expected one maestro"),
    ],
)
def test_what_cannot_be_packed_says_why(
    arguments: list[str], message: str, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["make-tokens", *arguments, "--out", "out"])
    assert stop.value.code == 2 and message in capsys.readouterr().err and list(tmp_path.iterdir()) == []


def test_damaged_sources_leave_nothing(tmp_path: Path) -> None:
    genome = write_genome(tmp_path)
    genome.write_bytes(genome.read_bytes()[:-20])
    music = write_performances(tmp_path / "music")
    table = music / "maestro-v3.0.0.csv"
    table.write_text(table.read_text().replace("2018/piece1.midi", "../hg38.fa.gz"))
    nul = write_performances(tmp_path / "nul")
    (nul / table.name).write_text((nul / table.name).read_text().replace("piece1.midi", "\0.midi"))
    with pytest.raises(DataError, match="leads out of the folder"):
        pack_tokens("maestro", nul, tmp_path / "out")
    with pytest.raises(DataError, match="not a readable file"):
        pack_tokens("genome", genome, tmp_path / "out")
    with pytest.raises(DataError, match="leads out of the folder"):
        pack_tokens("maestro", music, tmp_path / "out")
    tokenizer = write_tokenizer(tmp_path)
    texts = write_parquet(tmp_path / "texts", [TEXT] * 4)
    for path in texts.rglob("*.parquet"):
        path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="not a readable Parquet file"):
        pack_tokens("openwebtext", texts, tmp_path / "out", tokenizer=tokenizer)
    shutil.rmtree(texts)
    texts.mkdir()
    with pytest.raises(DataError, match="no .parquet or .txt files"):
        pack_tokens("openwebtext", texts, tmp_path / "out", tokenizer=tokenizer)
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".*.tmp"))
    with pytest.raises(ConfigError, match="exists already"):
        pack_tokens("genome", write_genome(tmp_path), music)


@pytest.mark.parametrize("size", LARGE["owt"][2])
@pytest.mark.parametrize("encoding", LARGE_ENCODINGS)
def test_sizes_have_the_parameters_of_their_names(encoding: str, size: str) -> None:
    """With the embedding, which is the head too; fifty parabolas add up to an eighth."""
    from modalities.sequence.presets import count_parameters

    config = zoo.registry.entry(f"{encoding}-decoder-{size}-owt").config
    named = float(size[:-1]) * 1e6
    assert 0.99 < count_parameters(config["model"]) / named < (1.125 if encoding == "pape" else 1.01)
