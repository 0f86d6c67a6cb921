"""Sequences from files: JSB Chorales, a text file (tiny Shakespeare), a FASTA file (part of the human genome)."""

from __future__ import annotations

import gzip
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from modalities.sequence.datasets.stream import Stream
from modalities.sequence.tokenizers import CharTokenizer, ChoraleTokenizer, DNATokenizer, RollTokenizer, Tokenizer
from zoo.errors import DataError
from zoo.files import files_sha256

__all__ = ["CHORALES", "FASTA", "SPLITS", "chorales", "dna", "rolls", "text"]

SPLITS = ("train", "validation", "test")
CHORALES = "jsb_chorales.npz"
_MOST_BYTES = 2**32
FASTA = (".fa", ".fasta", ".fna", ".fa.gz", ".fasta.gz", ".fna.gz")

# Bases of hg38 chr2 for training and for testing: a gap keeps their contexts apart, and the first 10,000 are not known.
_HG38 = {"train": (10_000, 2_000_000), "test": (2_010_000, 2_330_000)}
_HG38_BASES = 2_333_275


def _file(data: Path, names: tuple[str, ...], what: str) -> Path:
    """The file `data` is, or the one of these names or suffixes in the folder."""
    if data.is_file():
        return data
    found = [path for path in sorted(data.glob("*")) if path.is_file() and path.name.endswith(names)]
    if len(found) != 1:
        raise DataError(f"{data}: expected {what}, found {len(found)} such files")
    return found[0]


def _pieces(data: Path, key: str, split: str, columns: int) -> tuple[Path, list[np.ndarray]]:
    """The pieces of a split of JSB Chorales as arrays (T, columns)."""
    path = _file(data, (CHORALES,), f"the file {CHORALES}")
    name = f"{key}_{'valid' if split == 'validation' else split}"
    try:
        with np.load(path, allow_pickle=False) as archive:
            rows, lengths = archive[name], archive[f"{name}_len"]
    except KeyError:
        raise DataError(f"{path}: no arrays {name} and {name}_len") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise DataError(f"{path}: not a readable archive of arrays ({error})") from error
    good = rows.ndim == 2 and rows.shape[1] == columns and lengths.ndim == 1 and lengths.dtype.kind in "iu"
    if not good or (lengths < 1).any() or lengths.sum() != len(rows):
        raise DataError(f"{path}: {name} {rows.shape} and {name}_len {lengths.shape} do not belong together")
    return path, np.split(rows, np.cumsum(lengths)[:-1])


def chorales(data: Path, split: str, length: int, tokenizer: Tokenizer | None = None) -> Stream:
    """JSB Chorales, four voices on every 16th note (`satb16`): soprano, alto, tenor, bass of a step, then the next.

    Args:
        data: The file `jsb_chorales.npz`, or its folder.
        split: `"train"`, `"validation"` or `"test"`, those of Boulanger-Lewandowski et al. (2012).
        length: Tokens of a window.
        tokenizer: Not needed.

    Raises:
        DataError: If the file is absent, damaged or another.
    """
    path, pieces = _pieces(data, "satb16", split, 4)
    own = ChoraleTokenizer()
    ids = [own.encode(piece) for piece in pieces]
    stream = Stream("jsb-chorales", split, ids, own, length, files_sha256(path.parent, [path]))
    stream.frame_tokens = 4
    return stream


def rolls(data: Path, split: str, length: int, tokenizer: Tokenizer | None = None) -> Stream:
    """JSB Chorales as the piano rolls of the original benchmark, one frame a quarter note (`roll4`); see `chorales`."""
    path, pieces = _pieces(data, "roll4", split, 11)
    own = RollTokenizer()
    if any(piece.dtype != np.uint8 for piece in pieces):
        raise DataError(f"{path}: a roll is packed bits, uint8, not {pieces[0].dtype}")
    ids = [own.encode(np.unpackbits(piece, axis=1)[:, :88]) for piece in pieces]
    stream = Stream("jsb-chorales-roll", split, ids, own, length, files_sha256(path.parent, [path]))
    stream.frame_end = own.end
    return stream


def text(data: Path, split: str, length: int, tokenizer: Tokenizer | None = None) -> Stream:
    """A text file by character, as tiny Shakespeare: the first 90 % are for training, the others for validation.

    Args:
        data: A text file in UTF-8, or a folder with one `input.txt`.
        split: `"train"` or `"validation"`.
        length: Tokens of a window.
        tokenizer: That of the network; `None` = the characters of the file.

    Raises:
        DataError: If the file is absent, no text, or has characters that the tokenizer does not know.
    """
    path = _file(data, ("input.txt",), "a text file input.txt")
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise DataError(f"{path}: larger than {_MOST_BYTES >> 30} GiB")
        content = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a readable text in UTF-8 ({error})") from error
    if not content:
        raise DataError(f"{path}: the file is empty")
    border = int(len(content) * 0.9)
    own = CharTokenizer.of(content) if tokenizer is None else tokenizer
    part = content[:border] if split == "train" else content[border:]
    name = "tiny-shakespeare" if path.name == "input.txt" else path.stem
    return Stream(name, split, [own.encode(part)], own, length, files_sha256(path.parent, [path]))


def dna(data: Path, split: str, length: int, tokenizer: Tokenizer | None = None) -> Stream:
    """The bases of a FASTA file, plain or gzip, records one after the other.

    Of the first 2,333,275 bases of chromosome 2 of hg38, bases 10,000 to 2,000,000 are for training and 2,010,000 to
    2,330,000 for testing; of other files the first 85 % and the last 14 %. There is no validation split: to choose
    settings by the test split would be to fit it.

    Args:
        data: The file, or a folder with one.
        split: `"train"` or `"test"`.
        length: Tokens of a window.
        tokenizer: Not needed.

    Raises:
        DataError: If the file is absent, damaged or no FASTA.
    """
    path = _file(data, FASTA, f"one FASTA file ({', '.join(FASTA)})")
    bases = _bases(path)
    own = DNATokenizer()
    ids = own.encode(bases)
    whole = len(ids) == _HG38_BASES
    percent = {"train": (0, 85), "test": (86, 100)}[split]
    begin, end = _HG38[split] if whole else [len(ids) * share // 100 for share in percent]
    name = "hg38-chr2-2p3mb" if whole else path.name.split(".")[0]
    return Stream(name, split, [ids[begin:end]], own, length, files_sha256(path.parent, [path]))


def _bases(path: Path) -> bytes:
    opened: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: not a readable file ({error})") from error
    if len(content) > _MOST_BYTES:
        raise DataError(f"{path}: larger than {_MOST_BYTES >> 30} GiB")
    if not content.startswith(b">"):
        raise DataError(f"{path}: no FASTA: the first line must begin with '>'")
    return b"".join(line.strip() for line in content.splitlines() if not line.startswith((b">", b";")))
