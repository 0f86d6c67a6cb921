"""Large sets in the form in which they are published, read document by document to be packed.

None of them was at hand when this was written: the forms are those that their publishers describe, and the readers were
tried on made-up files in these forms.
"""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.errors import ConfigError, DataError, require
from zoo.training.seeds import derive_seed

__all__ = ["KINDS", "Document", "Kind"]

_ROWS = 1024
_MOST_BYTES = 1 << 28  # Of one document.
_CHUNK = 1 << 22
# Of the human genome: whole chromosomes, which is ours.
_CHROMOSOME = re.compile(r"(?:chr)?(\d{1,2}|X|Y)")
_GENOME_SPLITS = {"20": "validation", "21": "test"}
_UNKNOWN = re.compile(rb"[NRYSWKMBDHV]+")  # With the ambiguity codes of IUPAC, of which the tokenizer makes N too.


@dataclass(frozen=True)
class Document:
    """A document, or the next part of one.

    Attributes:
        split: Of which it is.
        content: Text, or bytes of DNA or of a MIDI file.
        last: Whether the document ends with it.
    """

    split: str
    content: str | bytes
    last: bool = True


@dataclass(frozen=True)
class Kind:
    """A set.

    Attributes:
        name: Of the set.
        tokenizer: `"bpe"`, `"dna"` or `"performance"`.
        source: Where it is published.
        licence: Its terms.
        documents: Reads it: a folder or file, the share of documents that are held out where it has no splits, a seed.
    """

    name: str
    tokenizer: str
    source: str
    licence: str
    documents: Callable[[Path, float, int], Iterator[Document]]


def _openwebtext(data: Path, validation: float, seed: int) -> Iterator[Document]:
    """Parquet files with a column `text`, or text files; documents are held out by their number."""
    files = sorted(path for path in data.rglob("*") if path.suffix in (".parquet", ".txt")) if data.is_dir() else [data]
    if not files:
        raise DataError(f"{data}: no .parquet or .txt files")
    number = 0
    for path in files:
        for text in _parquet(path) if path.suffix == ".parquet" else [_text(path)]:
            drawn = derive_seed("packed tokens", seed, number) / 2**63
            yield Document("validation" if drawn < validation else "train", text)
            number += 1


def _pg19(data: Path, validation: float, seed: int) -> Iterator[Document]:
    """Folders `train`, `validation` and `test` of text files, one a book."""
    found = [split for split in ("train", "validation", "test") if (data / split).is_dir()]
    if not found:
        raise DataError(f"{data}: expected folders train, validation and test of .txt files, as PG-19 has")
    for split in found:
        paths = sorted((data / split).glob("*.txt"))
        if not paths:
            raise DataError(f"{data / split}: no .txt files")
        for path in paths:
            yield Document(split, _text(path))


def _maestro(data: Path, validation: float, seed: int) -> Iterator[Document]:
    """`maestro-v3.0.0.csv` (or another version) beside the folders of MIDI files that it names."""
    tables = sorted(data.glob("maestro-*.csv")) if data.is_dir() else []
    if len(tables) != 1:
        raise DataError(f"{data}: expected one maestro-*.csv beside folders of MIDI files, found {len(tables)}")
    root = data.resolve()
    try:
        with tables[0].open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{tables[0]}: not a readable table ({error})") from error
    for row in rows:
        split, name = row.get("split"), row.get("midi_filename")
        if split not in ("train", "validation", "test") or not name:
            raise DataError(f"{tables[0]}: a row without split or midi_filename: {row!r:.120}")
        path = data / name
        if "\0" in name or not path.resolve().is_relative_to(root):
            raise DataError(f"{tables[0]}: {name!r:.100} leads out of the folder")
        yield Document(split, _bytes(path))


def _genome(data: Path, validation: float, seed: int) -> Iterator[Document]:
    """A FASTA file, plain or gzip: chromosomes 1 to 22, X and Y, without other records.

    A run of unknown bases becomes one N, and every chromosome ends with an N, so that no two bases follow each other
    that do not in the genome. Chromosome 20 is for validation and 21 for testing.
    """
    opened: Any = gzip.open if data.suffix == ".gz" else open
    split: str | None = None
    waiting: list[bytes] = []
    size = chromosomes = 0
    unknown = True  # Whether what came last was an N, or nothing.

    def flush(last: bool) -> Iterator[Document]:
        nonlocal size, unknown
        if split is not None and (waiting or last):
            bases = _UNKNOWN.sub(b"N", b"".join(waiting).upper() + (b"N" if last else b""))
            bases = bases[1:] if unknown and bases.startswith(b"N") else bases
            unknown = last or bases.endswith(b"N") or (unknown and not bases)
            yield Document(split, bases, last)
        waiting.clear()
        size = 0

    try:
        with opened(data, "rb") as file:
            first = True
            while line := file.readline(_CHUNK):
                if first and not line.startswith(b">"):
                    raise DataError(f"{data}: no FASTA: the first line must begin with '>'")
                first = False
                if line.startswith(b">"):
                    yield from flush(last=True)
                    named = (line[1:].split() or [b""])[0].decode(errors="replace")
                    found = _CHROMOSOME.fullmatch(named)
                    split = None if found is None else _GENOME_SPLITS.get(found[1], "train")
                    chromosomes += found is not None
                elif split is not None:
                    waiting.append(line.strip())
                    size += len(line)
                    if size >= _CHUNK:
                        yield from flush(last=False)
            yield from flush(last=True)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{data}: not a readable file ({error})") from error
    if not chromosomes:
        raise DataError(f"{data}: no record is called chr1 to chr22, chrX or chrY")


KINDS: dict[str, Kind] = {
    "openwebtext": Kind(
        "openwebtext",
        "bpe",
        "https://huggingface.co/datasets/Skylion007/openwebtext",
        "CC0 for the collection; the texts are their authors'",
        _openwebtext,
    ),
    "pg19": Kind("pg19", "bpe", "https://github.com/google-deepmind/pg19", "Apache-2.0; books before 1919", _pg19),
    "genome": Kind(
        "hg38",
        "dna",
        "https://hgdownload.soe.ucsc.edu/goldenPath/hg38/bigZips/hg38.fa.gz",
        "free of restrictions (Genome Reference Consortium)",
        _genome,
    ),
    "maestro": Kind(
        "maestro",
        "performance",
        "https://magenta.tensorflow.org/datasets/maestro",
        "CC BY-NC-SA 4.0",
        _maestro,
    ),
}
"""Names for `zoo make-tokens` -> sets."""


def _bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise DataError(f"{path}: larger than {_MOST_BYTES >> 20} MiB")
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def _text(path: Path) -> str:
    try:
        return _bytes(path).decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a text in UTF-8 ({error})") from error


def _parquet(path: Path) -> Iterator[str]:
    """Values of the column `text`, some rows at a time."""
    parquet = require("pyarrow.parquet", "data")
    arrow = require("pyarrow", "data")
    try:
        with parquet.ParquetFile(path) as file:
            if "text" not in file.schema_arrow.names:
                raise DataError(f"{path}: no column 'text'; it has {', '.join(file.schema_arrow.names)[:100]}")
            for batch in file.iter_batches(_ROWS, columns=["text"]):
                yield from (text for text in batch.column(0).to_pylist() if text)
    except (arrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable Parquet file ({' '.join(str(error).split()):.120})") from error


def kind_of(name: str) -> Kind:
    """A set by its name.

    Raises:
        ConfigError: If there is none.
    """
    if name not in KINDS:
        raise ConfigError(f"no set {name!r:.60} to pack; there are {', '.join(KINDS)}")
    return KINDS[name]
