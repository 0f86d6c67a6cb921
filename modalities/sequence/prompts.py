"""Prompts: what a sequence begins with, as users have it, to token ids."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from modalities.sequence.bpe import BpeTokenizer
from modalities.sequence.midi import from_midi
from modalities.sequence.performance import PerformanceTokenizer, notes_from_midi
from modalities.sequence.tokenizers import (
    ByteTokenizer,
    CharTokenizer,
    ChoraleTokenizer,
    DNATokenizer,
    RollTokenizer,
    Tokenizer,
)
from zoo.errors import DataError
from zoo.npy import read_arrays, read_members
from zoo.reading import Source, read_bounded

__all__ = ["MOST_TOKENS", "Prompt", "as_prompt", "encode_prompt"]

MOST_TOKENS = 65_536
"""Most tokens of a prompt and what follows it: each new one looks at all before."""
_MOST_BYTES = 2**22
# Kind of tokenizer -> suffixes of the files that may be its prompts, and what such a model is called.
_FILES = {
    CharTokenizer.kind: ((".txt",), "a text model"),
    ByteTokenizer.kind: ((".txt",), "a text model"),
    DNATokenizer.kind: ((".fa", ".fasta", ".fna", ".txt"), "a DNA model"),
    ChoraleTokenizer.kind: ((".mid", ".midi", ".npz"), "a chorale model"),
    RollTokenizer.kind: ((".npz",), "a model of piano rolls"),
    BpeTokenizer.kind: ((".txt",), "a text model"),
    PerformanceTokenizer.kind: ((".mid", ".midi"), "a model of performances"),
}
_SUFFIXES = frozenset(suffix for suffixes, _ in _FILES.values() for suffix in suffixes)
_MUSIC = {ChoraleTokenizer.kind: "pitches", RollTokenizer.kind: "roll", PerformanceTokenizer.kind: ""}
"""Kind of tokenizer -> the array of an .npz, of those that have one."""


@dataclass(frozen=True, eq=False)
class Prompt:
    """A prompt that has not been read.

    Attributes:
        value: Text, a `Path`, the bytes of a file, an array, or `None` for the start token alone.
    """

    value: Any


def as_prompt(value: Any, nothing: str) -> Source:
    """Takes a prompt as a user gives it.

    A string is the path of a file when it ends in a suffix of prompts (.txt, .fa, .fasta, .fna, .mid, .midi, .npz) and
    there is such a file, or it has no space; any other string is the prompt itself.

    Args:
        value: A string, a path, the bytes of a file, an array, `None`, or a `Source` of one of these.
        nothing: What `None` is called.
    """
    if isinstance(value, Source):
        return value if isinstance(value.value, Prompt) else Source(Prompt(value.value), value.name)
    if value is None:
        return Source(Prompt(None), nothing)
    if isinstance(value, str):
        path = Path(value)
        if path.suffix.lower() in _SUFFIXES and (os.path.isfile(value) or not any(map(str.isspace, value))):
            return Source(Prompt(path.expanduser()), value)
        return Source(Prompt(value), value if len(value) <= 60 else value[:57] + "...")
    if isinstance(value, os.PathLike):
        return Source(Prompt(Path(value).expanduser()), os.fspath(value))
    return Source(Prompt(value), "bytes" if isinstance(value, bytes | bytearray) else "array")


def encode_prompt(source: Source, tokenizer: Tokenizer, tidy: Callable[[str], str] | None = None) -> np.ndarray:
    """Token ids int64 (N,) of a prompt, after the start token where there is one.

    Text files are UTF-8; the line end of their last line is no part of the prompt. DNA may be FASTA with one record.
    Of chorales see `modalities.sequence.midi.from_midi`; an .npz has an array `pitches` (T, 4), of piano rolls `roll`
    (T, 88).

    Args:
        source: From `as_prompt`.
        tokenizer: That of the model.
        tidy: Changes text before it is encoded.

    Raises:
        DataError: If it cannot be read, holds what has no token, or there is no token to begin with.
    """
    name, value = source.name, source.value.value
    ids = np.array([] if tokenizer.start is None else [tokenizer.start], dtype=np.int64)
    if value is not None:
        try:
            read = _read(value, name, tokenizer)
            read = tidy(read) if tidy is not None and isinstance(read, str) else read
            ids = np.concatenate([ids, tokenizer.encode(read)])
        except DataError as error:
            raise error if str(error).startswith(name) else DataError(f"{name}: {error}") from error
    if not len(ids):
        known = "the model needs a prompt to go on from" if value is None else f"{name or 'the prompt'}: empty"
        raise DataError(f"{known}: a sequence begins with a token at least, and it has none that starts one")
    if len(ids) > MOST_TOKENS:
        raise DataError(f"{name}: {len(ids)} tokens; at most {MOST_TOKENS} are read")
    return ids


def _read(value: Any, name: str, tokenizer: Tokenizer) -> Any:
    """What the tokenizer encodes."""
    suffixes, what = _FILES[tokenizer.kind]
    music = tokenizer.kind in _MUSIC
    if isinstance(value, Path):
        if value.suffix.lower() not in suffixes:
            raise DataError(f"{name}: {what} goes on from {_listed(suffixes)}, or {_else(music)}")
        value = _file(value, name)
    if not music:
        return _text(value, name, tokenizer)
    if isinstance(value, bytes | bytearray):
        return _music(bytes(value), name, tokenizer)
    if isinstance(value, str):
        raise DataError(f"{name}: {what} goes on from {_listed(suffixes)}, or {_else(music)}; not from text")
    return value.cpu().numpy() if hasattr(value, "cpu") else value


def _listed(suffixes: tuple[str, ...]) -> str:
    return "a file " + " or ".join([", ".join(suffixes[:-1]), suffixes[-1]] if len(suffixes) > 1 else suffixes)


def _else(music: bool) -> str:
    return "begins a piece without a prompt" if music else "the text itself"


def _file(path: Path, name: str) -> bytes:
    try:
        if not path.is_file():
            raise DataError(f"{name}: {'is a folder' if path.is_dir() else 'no such file'}")
        with path.open("rb") as file:
            return read_bounded(file, name, max_bytes=_MOST_BYTES)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name.
        if isinstance(error, DataError):
            raise
        raise DataError(f"{name}: cannot be opened ({getattr(error, 'strerror', None) or error})") from error


def _text(value: Any, name: str, tokenizer: Tokenizer) -> str | bytes:
    if isinstance(value, str):
        return value
    if not isinstance(value, bytes | bytearray):
        raise DataError(f"{name}: expected text, not {type(value).__name__}")
    data = bytes(value)
    data = data[:-1] if data.endswith(b"\n") else data
    if isinstance(tokenizer, ByteTokenizer):
        return data
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise DataError(f"{name}: not a text in UTF-8 ({error})") from error
    return _bases(text, name) if isinstance(tokenizer, DNATokenizer) else text


def _bases(text: str, name: str) -> str:
    """The bases of a FASTA file, or of lines without a heading."""
    lines = [line.strip() for line in text.splitlines()]
    records = sum(line.startswith(">") for line in lines)
    if records > 1 or (records and not lines[0].startswith(">")):
        raise DataError(f"{name}: {records} records; a prompt is one")
    return "".join(lines[records:])


def _music(data: bytes, name: str, tokenizer: Tokenizer) -> Any:
    key = _MUSIC[tokenizer.kind]
    if isinstance(tokenizer, PerformanceTokenizer):
        return notes_from_midi(data, name)
    if data.startswith(b"MThd") and isinstance(tokenizer, ChoraleTokenizer):
        return from_midi(data, name, max_steps=MOST_TOKENS // 4)
    if not data.startswith(b"PK"):
        known = "a MIDI file or an .npz" if isinstance(tokenizer, ChoraleTokenizer) else "an .npz"
        raise DataError(f"{name}: not {known}")
    archive, headers = read_members(io.BytesIO(data), name)
    with archive:
        if key not in headers:
            raise DataError(f"{name}: no array {key}; it has {', '.join(sorted(headers))[:100] or 'none'}")
        return read_arrays(archive, headers, [key], name, max_bytes=64 * MOST_TOKENS)[key]
