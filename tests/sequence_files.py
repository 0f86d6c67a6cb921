"""Made-up files in the forms of large data sets, for tests."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

TEXT = "The quick brown fox jumps over the lazy dog. It naïvely said: “again, and again!”\n"


def write_tokenizer(folder: Path) -> Path:
    """A small tokenizer.json of the kind of GPT-2's."""
    tokenizers = pytest.importorskip("tokenizers")
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([TEXT * 5], trainer)
    path = folder / "tokenizer.json"
    path.write_text(backend.to_str(), encoding="utf-8")
    return path


def write_parquet(folder: Path, texts: list[str]) -> Path:
    """Two files in the form of OpenWebText."""
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    (folder / "plain_text").mkdir(parents=True)
    middle = len(texts) // 2
    for number, part in enumerate((texts[:middle], texts[middle:])):
        parquet.write_table(arrow.table({"text": part}), folder / "plain_text" / f"train-{number:05d}-of-00002.parquet")
    return folder


def write_books(folder: Path) -> Path:
    """Three splits of books in the form of PG-19."""
    for split, books in (("train", 3), ("validation", 1), ("test", 2)):
        (folder / split).mkdir(parents=True)
        for book in range(books):
            (folder / split / f"{book}.txt").write_text(TEXT * (8 + book), encoding="utf-8")
    return folder


def write_genome(folder: Path) -> Path:
    """A soft-masked FASTA with chromosomes and what is none."""
    path = folder / "hg38.fa.gz"
    records = {
        "chr1": "NNNNNACGTacgtACGTN" * 20,
        "chr1_KI270706v1_random": "CCCC" * 30,
        "chr20": "ACGTTGCA" * 30,
        "chr21 test": "ttttACGA" * 30,
        "chrUn_GL000220v1": "GGGG",
        "chrM": "AAAA" * 9,
    }
    lines = []
    for name, bases in records.items():
        lines += [f">{name}", *(bases[first : first + 50] for first in range(0, len(bases), 50))]
    path.write_bytes(gzip.compress("\n".join(lines).encode() + b"\n"))
    return path


def write_performances(folder: Path) -> Path:
    """MIDI files and their table in the form of MAESTRO."""
    from modalities.sequence.performance import Note, notes_to_midi

    pytest.importorskip("mido")
    rows = ["canonical_composer,canonical_title,split,year,midi_filename,audio_filename,duration"]
    for number, split in enumerate(("train", "validation", "test")):
        name = f"2018/piece{number}.midi"
        (folder / "2018").mkdir(parents=True, exist_ok=True)
        notes = [Note(0.25 * step, 0.25 * step + 0.2, 60 + step % 12, 40 + step) for step in range(40)]
        (folder / name).write_bytes(notes_to_midi(notes))
        rows.append(f'Somebody,"A piece, no. {number}",{split},2018,{name},2018/piece{number}.wav,10.0')
    (folder / "maestro-v3.0.0.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder
