"""Sets of sequences: what a sample says, that every token is scored once, and that damaged files are refused."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from modalities.sequence.augment import Transpose
from modalities.sequence.batch import IGNORED, TokenBatch
from modalities.sequence.datasets import DATASETS, open_sequences, settings, splits
from modalities.sequence.datasets.find import MADE_UP, dataset_at
from modalities.sequence.datasets.indexing import draw_questions
from modalities.sequence.datasets.stream import Stream
from modalities.sequence.presets import INDEX_CHARACTERS
from modalities.sequence.tokenizers import ByteTokenizer, ChoraleTokenizer, RollTokenizer
from tests.sequence_training import write_chorales
from zoo.errors import ConfigError, DataError

ROWS = torch.arange(4)


def made(name: str, split: str = "train", **options: Any) -> Any:
    return open_sequences(name, None, split, length=8, options=options)


def spelled(data: Any, batch: TokenBatch, row: int) -> tuple[str, str]:
    """What a sequence says, and which of it is asked for."""
    asked = batch.targets[row]
    ids = torch.cat([batch.ids[row], asked[-1:].clamp(min=0)]) if asked[-1] >= 0 else batch.ids[row]
    return data.tokenizer.decode(ids), data.tokenizer.decode(asked[asked >= 0])


def test_indirect_indexing_asks_for_the_letter_at_the_distance() -> None:
    tokens, places = draw_questions(3000, 1)
    shifts, lengths, sources = [], [], []
    for row, place in zip(tokens.tolist(), places.tolist(), strict=True):
        text = "".join(INDEX_CHARACTERS[number] for number in row)
        letters, letter, shift, target = text.rstrip().split(",")
        assert letters[letters.index(letter) + int(shift)] == target == text[place] and shift[0] in "+-"
        assert len(set(letters)) == len(letters) and letters.isalpha()
        shifts.append(int(shift))
        lengths.append(len(letters))
        sources.append(letters.index(letter) / (len(letters) - 1))
    assert set(lengths) == set(range(20, 41)) and set(shifts) == set(range(-15, 16))
    assert abs(np.mean(shifts)) < 0.5 and abs(np.mean(sources) - 0.5) < 0.03
    assert torch.equal(draw_questions(3000, 1)[0], tokens) and not torch.equal(draw_questions(3000, 2)[0], tokens)


def test_distances_are_uniform_among_those_that_stay_within_the_string() -> None:
    tokens, _ = draw_questions(20_000, 3, letters=(3, 3))
    found: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for row in tokens.tolist():
        letters, letter, shift, _ = "".join(INDEX_CHARACTERS[number] for number in row).rstrip().split(",")
        found[letters.index(letter)].append(int(shift))
    for place, shifts in found.items():
        values, counts = np.unique(shifts, return_counts=True)
        assert values.tolist() == [-place, 1 - place, 2 - place]
        assert len(shifts) == pytest.approx(20_000 / 3, rel=0.06) and counts.std() < 0.06 * counts.mean()


def test_a_split_of_indirect_indexing_is_drawn_once_and_only_answers_are_scored() -> None:
    data = made("index", train_samples=50)
    batch = data.batch(torch.tensor([3, 49]), seed=1)
    again = data.batch(torch.tensor([49, 3]), seed=2)
    assert torch.equal(batch.ids, again.ids.flip(0)) and batch.ids.shape == (2, 47)
    assert ((batch.targets != IGNORED).sum(1) == 1).all()
    assert data.sha256 != made("index", "test", train_samples=50).sha256 != made("index", "test").sha256


def test_a_line_is_copied() -> None:
    data = made("copy", columns=[2, 5], positions="rows")
    batch = data.batch(torch.arange(16), 0)
    lengths = set()
    for row in range(16):
        text, answer = spelled(data, batch, row)
        line, copy = text.rstrip(" ").rstrip("\n").split("\n")
        assert line == f">{answer}" and copy.startswith(f"={answer}"[: len(copy)])
        lengths.add(len(answer))
        expected = [[r, c] for r in (0, 1) for c in range(len(answer) + 2)]
        assert batch.positions is not None
        assert batch.positions.values[row].int().tolist()[: len(expected)] == expected[: len(batch.ids[row])]
    assert lengths == {2, 3, 4, 5}
    bounds, places = torch.tensor(batch.positions.bounds), batch.positions.values
    assert (places >= bounds[:, 0]).all() and (places <= bounds[:, 1]).all() and batch.positions.integral
    (scored,) = {batch.ids.shape for batch in data.scored(9, limit=2)}
    assert scored == (2, 2 * 11 - 1)


def test_columns_are_reduced_to_their_largest_digit() -> None:
    data = made("column", columns=[2, 5], rows=[1, 3])
    batch = data.batch(torch.arange(16), 1)
    assert batch.positions is None
    counts = set()
    for row in range(16):
        text, answer = spelled(data, batch, row)
        *lines, _ = text[: text.index("=")].split("\n")
        assert "".join(max(column) for column in zip(*(line[1:] for line in lines), strict=True)) == answer
        counts.add(len(lines))
    assert counts == {1, 2, 3}


@pytest.mark.parametrize(("scheme", "axes"), [("count", 1), ("v2pe", 1), ("mrope", 3), ("reset-mrope", 3)])
def test_questions_are_about_a_cell(scheme: str, axes: int) -> None:
    data = made("pictures", scheme=scheme, grid=3, questions=2)
    assert data.axes == axes
    for size, batch in ((2, data.batch(ROWS, 0)), (5, next(data.scored(5, limit=4)))):
        for row in range(4):
            text, answers = spelled(data, batch, row)
            shown, *questions = text.split("?")
            pictures = {shown[i]: shown[i + 1 : i + 10] for i in range(0, len(shown), 10)}
            assert len(pictures) == size
            for (name, r, c, equals, answer), right in zip(questions, answers, strict=True):
                assert equals == "=" and answer == right == pictures[name][3 * int(r) + int(c)]
        assert (batch.positions is None) == (scheme == "count")
        if batch.positions is not None:
            assert batch.positions.values.shape == (1, batch.ids.shape[1], axes)
            steps = {"v2pe": 1 + 9 / 4, "mrope": 4, "reset-mrope": None}[scheme]
            if scheme == "mrope":  # A picture takes as many ids as it has rows, and its name one.
                assert batch.positions.values[0, 10].tolist() == [steps] * 3
            elif scheme == "v2pe":
                places = batch.positions.values[0, :, 0].tolist()
                assert places[10] == np.ceil(9 / 4) + 1 and places[1] == 0.25


@pytest.mark.parametrize("name", MADE_UP)
def test_made_up_batches_follow_from_rows_and_seed(name: str) -> None:
    data = made(name, **({"train_samples": 60} if name == "index" else {}))
    one, same, other = data.batch(ROWS, 5), data.batch(ROWS, 5), data.batch(ROWS + 4, 6)
    assert torch.equal(one.ids, same.ids) and torch.equal(one.targets, same.targets)
    assert not torch.equal(one.ids, other.ids) and one.ids.shape == other.ids.shape == (4, data.length)
    size = data.default_sizes()[0]
    test, dev = (next(made(name, split).scored(size, limit=3)) for split in ("test", "validation"))
    assert len(test.ids) == 3 and not torch.equal(test.ids, dev.ids)
    assert torch.equal(test.ids, next(made(name, "test").scored(size, limit=3)).ids)


@pytest.mark.parametrize("size", [2, 5, 6, 19])
def test_every_token_of_a_stream_is_scored_once(size: int) -> None:
    tokens = np.arange(20)
    stream = Stream("toy", "test", [tokens], ByteTokenizer(), 6, "")
    found = [target for batch in stream.scored(size) for target in batch.targets.flatten().tolist() if target >= 0]
    assert found == list(range(1, 20))
    for batch in stream.scored(size):
        assert batch.ids.shape[1] == size
        asked = batch.targets != IGNORED
        assert torch.equal(batch.targets[asked], (batch.ids + 1)[asked])
        # All but the first window have read half a window before.
        assert all(asked[row, : size - size // 2].sum() == 0 for row in range(len(asked)) if batch.ids[row, 0] > 0)
    with pytest.raises(ConfigError, match="windows of 2 to 19"):
        next(stream.scored(20))


def test_pieces_begin_with_a_token_that_is_not_asked_for() -> None:
    pieces = [np.array([1, 2, 3]), np.array([4, 5])]
    stream = Stream("toy", "train", pieces, ChoraleTokenizer(), 4, "")
    assert stream.tokens.tolist() == [89, 1, 2, 3, 89, 4, 5]
    (batch,) = stream.scored(6)
    assert batch.targets.tolist() == [[1, 2, 3, IGNORED, 4, 5]]
    seen = {tuple(row) for seed in range(30) for row in stream.batch(torch.arange(2), seed).ids.tolist()}
    assert seen == {(89, 1, 2, 3), (1, 2, 3, 89), (2, 3, 89, 4)}


@pytest.mark.parametrize("tokenizer", [ChoraleTokenizer(), RollTokenizer()])
def test_music_is_transposed_as_a_whole(tokenizer: Any) -> None:
    ids = torch.tensor([[tokenizer.start, 40, 44, 40, 0]]).repeat(40, 1)
    ids[:, 4] = 88 if tokenizer.kind == "roll" else 0
    targets = ids.roll(-1, 1).masked_fill(ids.roll(-1, 1) == tokenizer.start, IGNORED)
    moved = Transpose(3, tokenizer)(TokenBatch(ids, targets), torch.Generator().manual_seed(0))
    steps = moved.ids[:, 1] - 40
    assert set(steps.tolist()) == set(range(-3, 4))
    assert torch.equal(moved.ids - ids, steps[:, None] * torch.tensor([0, 1, 1, 1, 0]))
    assert torch.equal(moved.targets[:, :3], moved.ids[:, 1:4]) and (moved.targets[:, 4] == IGNORED).all()
    high = ids.clone()
    high[:, 1] = 87  # Near the end of the piano: some stay.
    kept = Transpose(3, tokenizer)(TokenBatch(high, targets), torch.Generator().manual_seed(0))
    assert kept.ids.max() <= 89 and len(set((kept.ids[:, 2] - 44).tolist())) in (4, 5)
    with pytest.raises(ConfigError, match="have no pitch"):
        Transpose(1, ByteTokenizer())


def test_chorales_are_read_piece_by_piece(tmp_path: Path) -> None:
    path = write_chorales(tmp_path)
    data: Any = open_sequences("jsb", tmp_path, "valid", length=16)
    with np.load(path) as arrays:
        voices, packed = arrays["satb16_valid"], arrays["roll4_valid"]
    assert np.array_equal(data.tokenizer.decode(data.tokens.numpy()), voices)
    assert (data.tokens == data.tokenizer.start).nonzero().flatten().tolist() == [0, 81]
    roll: Any = open_sequences("jsb-roll", path, "test", length=16)
    with np.load(path) as arrays:
        packed = arrays["roll4_test"]
    assert np.array_equal(roll.tokenizer.decode(roll.tokens.numpy()), np.unpackbits(packed, axis=1)[:, :88])
    assert roll.split == "test" and roll.sha256 == data.sha256 and (data.frame_tokens, roll.frame_end) == (4, 88)


def test_a_text_is_split_and_dna_is_joined(tmp_path: Path) -> None:
    text = "0123456789" * 10
    (tmp_path / "input.txt").write_text(text)
    train: Any = open_sequences("text", tmp_path, "train", length=8)
    dev: Any = open_sequences("text", tmp_path, "val", length=8, tokenizer=train.tokenizer)
    assert train.tokenizer.decode(train.tokens.numpy()) + dev.tokenizer.decode(dev.tokens.numpy()) == text
    assert len(dev.tokens) == 10
    bases = "ACGTN" * 20
    fasta = f">one\n{bases[:30]}\n{bases[30:50].lower()}\n;note\n>two\n{bases[50:]}\n"
    (tmp_path / "x.fa.gz").write_bytes(gzip.compress(fasta.encode(), mtime=0))
    parts: list[Any] = [open_sequences("dna", tmp_path / "x.fa.gz", split, length=8) for split in ("train", "test")]
    assert [part.tokenizer.decode(part.tokens.numpy()) for part in parts] == [bases[:85], bases[86:]]
    assert [dataset_at(tmp_path / name) for name in ("input.txt", "x.fa.gz")] == ["text", "dna"]
    with pytest.raises(ConfigError, match="expected one of"):
        dataset_at(tmp_path)


@pytest.mark.parametrize(
    ("dataset", "name", "content"),
    [
        ("jsb", "jsb_chorales.npz", b""),
        ("jsb", "jsb_chorales.npz", b"PK\x03\x04 no archive"),
        ("jsb", "absent", b""),
        ("text", "input.txt", b""),
        ("text", "input.txt", b"\xff\xfe\xfa" * 20),
        ("text", "input.txt", b"too short"),
        ("dna", "a.fa", b"ACGT" * 50),
        ("dna", "a.fa", b">one\nACGT!" * 20),
        ("dna", "a.fa", b">one\n"),
        ("dna", "a.fa.gz", gzip.compress(b">one\n" + b"ACGT" * 50, mtime=0)[:-9]),
        ("dna", "a.fa.gz", b">one\nACGT"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, dataset: str, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError):
        open_sequences(dataset, tmp_path, "train", length=16)


@pytest.mark.parametrize("change", ["absent", "lengths", "columns", "float", "pickle", "truncated"])
def test_damaged_chorales_are_refused(tmp_path: Path, change: str) -> None:
    path = write_chorales(tmp_path)
    with np.load(path) as found:
        arrays = dict(found)
    key = "satb16_train"
    if change == "absent":
        del arrays[f"{key}_len"]
    elif change == "lengths":
        arrays[f"{key}_len"] = np.array([20, 14])
    elif change == "columns":
        arrays[key] = arrays[key][:, :3]
    elif change == "float":
        arrays[key] = arrays[key].astype(np.float32)
    elif change == "pickle":
        arrays[key] = np.array([object()] * 33)
    np.savez(path, **arrays)
    if change == "truncated":
        path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match="jsb_chorales|chorale"):
        open_sequences("jsb", path, "train", length=16)


@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        ("nothing", {}),
        ("text", {"columns": [1, 2]}),
        ("index", {"letters": [0, 4]}),
        ("index", {"letters": [20, 53]}),
        ("index", {"letter": [20, 40]}),
        ("copy", {"rows": [1, 2]}),
        ("copy", {"positions": "both"}),
        ("column", {"columns": [5, 4]}),
        ("pictures", {"pictures": 27}),
        ("pictures", {"scheme": "rope"}),
        ("pictures", {"stride": 3}),
    ],
)
def test_settings_out_of_range_are_refused(dataset: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        settings(dataset, options)


def test_splits_and_sizes_that_are_not_there_are_refused(tmp_path: Path) -> None:
    assert set(DATASETS) > set(MADE_UP)
    for dataset in DATASETS:
        absent = "validation" if dataset == "dna" else "test" if dataset == "text" else "dev"
        assert absent not in splits(dataset)
        with pytest.raises(ConfigError, match="splits of"):
            open_sequences(dataset, tmp_path, absent, length=8)
    with pytest.raises(ConfigError, match="--data"):
        open_sequences("text", None, "train", length=8)
    with pytest.raises(ConfigError, match="no such file"):
        open_sequences("text", tmp_path / "none", "train", length=8)
    for dataset, size in (("index", 48), ("copy", 0), ("pictures", 27)):
        with pytest.raises(ConfigError):
            next(made(dataset).scored(size))


@pytest.mark.parametrize(
    ("dataset", "folder", "split", "tokens", "first"),
    [
        ("jsb", "jsb_chorales", "test", 4 * 18_900 + 77, None),
        ("jsb-roll", "jsb_chorales", "validation", None, None),
        ("text", "tiny_shakespeare", "train", 1_003_854, "First Citizen:"),
        ("dna", "hg38_chr2_2p3mb", "test", 320_000, None),
    ],
)
def test_real_files(shared: Path, dataset: str, folder: str, split: str, tokens: int | None, first: str | None) -> None:
    data: Any = open_sequences(dataset, shared / "data" / folder, split, length=256)
    assert tokens is None or len(data.tokens) == tokens
    if dataset == "jsb-roll":
        assert (data.tokens == data.frame_end).sum() == 4602
    if first is not None:
        assert data.tokenizer.decode(data.tokens[:14].numpy()) == first
        from modalities.sequence.presets import SHAKESPEARE_CHARACTERS

        assert data.tokenizer.characters == SHAKESPEARE_CHARACTERS
