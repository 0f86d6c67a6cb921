"""Packed tokens: data that are too large to be encoded anew or to be held in memory, as `zoo make-tokens` writes them.

A folder holds `meta.json` and, of each split, files of token ids one after the other, little endian: `train-00000.bin`,
`train-00001.bin`, ..., `validation-00000.bin`. They are mapped into memory, of which a batch touches a few pages.

    {"format": 1, "name": "openwebtext", "tokenizer": {...}, "dtype": "uint16", "source": ..., "licence": ...,
     "splits": {"train": [{"file": "train-00000.bin", "tokens": 268435456, "sha256": ...}, ...]}}
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from modalities.sequence.datasets.stream import Windows
from modalities.sequence.tokenizers import Tokenizer, tokenizer_from_dict
from zoo.config_file import read_json
from zoo.errors import ConfigError, DataError

__all__ = ["META", "SPLITS", "PackedTokens", "TokenWriter", "packed", "packed_splits"]

META = "meta.json"
SPLITS = ("train", "validation", "test")
_FORMAT = 1
_SHARD = 1 << 28  # Tokens of a file.
_NAME = re.compile(r"(train|validation|test)-\d{5}\.bin")


def dtype_for(vocab_size: int) -> str:
    """The smallest type that holds all tokens: `"uint16"` or `"uint32"`."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


class TokenWriter:
    """Writes the files of a folder; a context manager. `meta.json` comes last, so that a folder that has it is whole.

    Args:
        folder: An empty folder.
        tokenizer: Of the tokens.
        facts: What `meta.json` says besides: `name`, `source`, `licence`.
        shard: Most tokens of a file.
    """

    def __init__(self, folder: Path, tokenizer: Tokenizer, facts: Mapping[str, Any], shard: int = _SHARD) -> None:
        self.folder, self.tokenizer, self.facts, self.shard = folder, tokenizer, dict(facts), shard
        self.dtype = dtype_for(tokenizer.vocab_size)
        self.splits: dict[str, list[dict[str, Any]]] = {}
        self._open: dict[str, tuple[BinaryIO, Any]] = {}

    def __enter__(self) -> TokenWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for split in list(self._open):
            self._close(split)
        if kind is None:
            meta = {"format": _FORMAT, **self.facts, "tokenizer": self.tokenizer.to_dict(), "dtype": self.dtype}
            text = json.dumps({**meta, "splits": self.splits}, indent=2)
            (self.folder / META).write_text(text + "\n", encoding="utf-8")

    def tokens(self, split: str) -> int:
        """Tokens of a split so far."""
        return sum(file["tokens"] for file in self.splits.get(split, []))

    def append(self, split: str, ids: np.ndarray) -> None:
        """Adds tokens (N,) to a split.

        Raises:
            DataError: If one is none of the tokenizer's.
        """
        if len(ids) and not 0 <= ids.min() <= ids.max() < self.tokenizer.vocab_size:
            raise DataError(f"token ids lie in 0..{self.tokenizer.vocab_size - 1}, got {ids.min()}..{ids.max()}")
        data = ids.astype(f"<{np.dtype(self.dtype).str[1:]}")
        while len(data):
            files = self.splits.setdefault(split, [])
            if not files or files[-1]["tokens"] == self.shard:
                self._close(split)
                name = f"{split}-{len(files):05d}.bin"
                files.append({"file": name, "tokens": 0, "sha256": ""})
                self._open[split] = ((self.folder / name).open("wb"), hashlib.sha256())
            part, data = np.split(data, [self.shard - files[-1]["tokens"]])
            stream, digest = self._open[split]
            stream.write(part.tobytes())
            digest.update(part.tobytes())
            files[-1]["tokens"] += len(part)

    def _close(self, split: str) -> None:
        if split in self._open:
            stream, digest = self._open.pop(split)
            stream.close()
            self.splits[split][-1]["sha256"] = digest.hexdigest()


class PackedTokens(Windows):
    """A split of a folder of packed tokens; see `Windows`.

    Args:
        folder: With `meta.json`.
        split: `"train"`, `"validation"` or `"test"`.
        length: Tokens of a window in training.

    Raises:
        DataError: If files are absent, damaged or too short.
    """

    def __init__(self, folder: Path, split: str, length: int) -> None:
        meta = _read_meta(folder)
        self.tokenizer = _tokenizer(folder, meta)
        self.name, self.split, self.length = str(meta["name"]), split, length
        dtype = np.dtype(f"<{np.dtype(meta['dtype']).str[1:]}")
        if split not in meta["splits"]:
            raise DataError(f"{folder} has no split {split}; it has {', '.join(sorted(meta['splits'])) or 'none'}")
        self.files = [folder / file["file"] for file in meta["splits"][split]]
        self.parts = [
            _mapped(path, file["tokens"], dtype) for path, file in zip(self.files, meta["splits"][split], strict=True)
        ]
        self.ends = np.cumsum([len(part) for part in self.parts])
        self.sha256 = hashlib.sha256(json.dumps(meta["splits"][split], sort_keys=True).encode()).hexdigest()
        self._measure(int(self.ends[-1]))
        self.start(torch.device("cpu"))

    def _read(self, first: Tensor, length: int) -> Tensor:
        windows = np.empty((len(first), length), dtype=np.int64)
        for row, begin in enumerate(first.tolist()):
            self._fill(windows[row], begin)
        found = torch.from_numpy(windows)
        if self.device.type == "cuda":
            return found.pin_memory().to(self.device, non_blocking=True)
        return found.to(self.device)

    def _fill(self, window: np.ndarray, begin: int) -> None:
        """Copies the tokens from a place on, which may lie in several files."""
        done = 0
        index = int(np.searchsorted(self.ends, begin, side="right"))
        while done < len(window):
            offset = begin + done - (int(self.ends[index - 1]) if index else 0)
            part = self.parts[index][offset : offset + len(window) - done]
            if part.max() >= self.tokenizer.vocab_size:
                raise DataError(f"{self.files[index]}: token {part.max()}, of {self.tokenizer.vocab_size}: damaged")
            window[done : done + len(part)] = part
            done, index = done + len(part), index + 1


def packed_splits(data: Path) -> tuple[str, ...]:
    """Names of the splits of such a folder.

    Raises:
        DataError: If it is none.
    """
    meta = _read_meta(data.parent if data.is_file() else data)
    return tuple(split for split in SPLITS if split in meta["splits"])


def packed(data: Path, split: str, length: int, tokenizer: Tokenizer | None = None) -> PackedTokens:
    """A folder that `zoo make-tokens` wrote.

    Args:
        data: The folder, or its `meta.json`.
        split: One that it has.
        length: Tokens of a window.
        tokenizer: Not needed.

    Raises:
        DataError: If files are absent or damaged.
    """
    return PackedTokens(data.parent if data.is_file() else data, split, length)


def _read_meta(folder: Path) -> dict[str, Any]:
    path = folder / META
    if not path.is_file():
        raise DataError(f"{folder}: no {META}: not a folder that `zoo make-tokens` wrote, or one that was not finished")
    try:
        meta = read_json(path)
    except ConfigError as error:
        raise DataError(str(error)) from error
    if meta.get("format") != _FORMAT:
        raise DataError(f"{path}: format {meta.get('format')!r:.40}; this version reads {_FORMAT}")
    splits = meta.get("splits")
    good = (
        isinstance(splits, dict)
        and meta.get("dtype") in ("uint16", "uint32")
        and isinstance(meta.get("name"), str)
        and all(isinstance(files, list) and files and all(map(_good_file, files)) for files in splits.values())
    )
    if not good:
        raise DataError(f"{path}: not the description of packed tokens")
    return meta


def _good_file(file: Any) -> bool:
    """Whether this describes a file; its name leads nowhere else."""
    if not isinstance(file, dict) or not isinstance(file.get("file"), str) or not _NAME.fullmatch(file["file"]):
        return False
    return type(file.get("tokens")) is int and file["tokens"] > 0 and isinstance(file.get("sha256"), str)


def _tokenizer(folder: Path, meta: Mapping[str, Any]) -> Tokenizer:
    try:
        return tokenizer_from_dict(meta.get("tokenizer") or {})
    except ConfigError as error:
        raise DataError(f"{folder / META}: {error}") from error


def _mapped(path: Path, tokens: int, dtype: np.dtype[Any]) -> np.ndarray:
    """A file in memory, read when it is touched."""
    try:
        size = path.stat().st_size
        if size != tokens * dtype.itemsize:
            raise DataError(f"{path}: {size} bytes, not the {tokens * dtype.itemsize} of its {tokens} tokens: damaged")
        return np.memmap(path, dtype=dtype, mode="r")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
