"""Byte-pair encoding of text, such as that of GPT-2, through the library `tokenizers` (extra `text`).

Its tables are a file of a megabyte or more, which neither a configuration nor this package holds: they are named by a
SHA-256 of what they say, which is the same whatever the form of the file, and whoever wants text in or out says where
it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from modalities.sequence.tokenizers import Tokenizer
from zoo.errors import ConfigError, DataError, require

__all__ = ["ENVIRONMENT", "BpeTokenizer", "read_bpe"]

ENVIRONMENT = "ZOO_TOKENIZER"
"""Environment variable with the path of the file."""

END = "<|endoftext|>"
"""What ends a document, as in GPT-2."""

_MOST_BYTES = 1 << 28
_WHERE = "the file of GPT-2 is tokenizer.json of huggingface.co/openai-community/gpt2"

# Of a tokenizer.json, what does not change the tokens of a text, or is told apart; settings of its model that are off.
_NO_MATTER = ("version", "model", "added_tokens", "post_processor", "pre_tokenizer", "decoder")
_TABLES = ("type", "vocab", "merges")
_OFF = (None, "", False)


class BpeTokenizer(Tokenizer):
    """One token per piece of a learned vocabulary; the file that holds it is read when it is needed.

    Args:
        sha256: Of vocabulary, merges and settings; see `read_bpe`.
        vocab_size: Number of tokens.
        end: Id of the token that ends a document.

    Raises:
        ConfigError: If a value cannot be used.
    """

    kind = "bpe"
    SETTINGS = frozenset({"sha256", "vocab_size", "end"})

    def __init__(self, sha256: str, vocab_size: int, end: int) -> None:
        if not isinstance(sha256, str) or not re.fullmatch(r"[0-9a-f]{64}", sha256):
            raise ConfigError(f"tokenizer bpe: sha256 must be 64 hexadecimal digits, got {sha256!r:.80}")
        if type(vocab_size) is not int or type(end) is not int or not 0 <= end < vocab_size <= 1 << 24:
            raise ConfigError(
                f"tokenizer bpe: end must be a token of vocab_size, got {end!r:.40} of {vocab_size!r:.40}"
            )
        self.sha256, self.vocab_size, self.end = sha256, vocab_size, end
        self._loaded: Any = None

    def encode(self, value: str) -> np.ndarray:
        """See `Tokenizer.encode`.

        Raises:
            ConfigError: If the file is not at hand.
        """
        return self._encode([value], ordinary=False)[0]

    def encode_many(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Token ids of documents, on all cores; see `encode`. Text that looks like their end is text here."""
        return self._encode(texts, ordinary=True)

    def _encode(self, texts: Sequence[str], ordinary: bool) -> list[np.ndarray]:
        for text in texts:
            if not isinstance(text, str):
                raise DataError(f"expected text, got a {type(text).__name__}")
            if not text.isascii():
                try:
                    text.encode()
                except UnicodeEncodeError as error:
                    raise DataError(f"text that is not Unicode ({error.reason}) has no tokens") from None
        backend = self._backend()
        backend.encode_special_tokens = ordinary
        encoded = backend.encode_batch(list(texts), add_special_tokens=False)
        return [np.asarray(one.ids, dtype=np.int64) for one in encoded]

    def decode(self, ids: Any) -> str:
        """See `Tokenizer.decode`; bytes that are no UTF-8 become the replacement character."""
        return str(self._backend().decode(self._checked(ids).tolist(), skip_special_tokens=False))

    def to_dict(self) -> dict[str, Any]:
        """With what names the file."""
        return {"kind": self.kind, "sha256": self.sha256, "vocab_size": self.vocab_size, "end": self.end}

    def _backend(self) -> Any:
        if self._loaded is None:
            stated = os.environ.get(ENVIRONMENT)
            if not stated:
                raise ConfigError(
                    f"the tokenizer is a file that is not part of the model: set {ENVIRONMENT} to its tokenizer.json, "
                    f"or the folder with its tables; their sha256 is {self.sha256[:12]}... ({_WHERE})"
                )
            text = _content(Path(stated).expanduser())
            self._loaded = _parsed(text, stated)
            if (found := _sha256(text)) != self.sha256:
                self._loaded = None
                raise ConfigError(
                    f"{stated}: not the tokenizer of this model: sha256 {found[:12]}..., needed {self.sha256[:12]}..."
                )
        return self._loaded


def read_bpe(path: str | os.PathLike[str]) -> tuple[BpeTokenizer, str]:
    """Reads a tokenizer.

    Its sha256 is of the vocabulary in the order of its ids, the merges, and settings that change tokens, where they
    are not those of GPT-2: the same for all forms of a file, such as with or without line breaks.

    Args:
        path: A `tokenizer.json`, or a folder with one or with `vocab.json` and `merges.txt`, as GPT-2 was published.

    Returns:
        The tokenizer, and the content of its `tokenizer.json`.

    Raises:
        ConfigError: If there is none, or it has no token that ends documents.
        MissingDependencyError: If the library is not installed.
    """
    path = Path(path).expanduser()
    text = _content(path)
    backend = _parsed(text, str(path))
    letters = require("tokenizers", "text").pre_tokenizers.ByteLevel.alphabet()
    end = backend.token_to_id(END)
    if end is None:
        raise ConfigError(f"{path}: no token {END}, which ends a document")
    if any(backend.token_to_id(letter) is None for letter in letters):
        raise ConfigError(f"{path}: not a token for each of the 256 bytes, as GPT-2 has: text would be lost")
    tokenizer = BpeTokenizer(_sha256(text), backend.get_vocab_size(with_added_tokens=True), end)
    tokenizer._loaded = backend
    return tokenizer, text


def _content(path: Path) -> str:
    """The `tokenizer.json` at a path, or made from the tables there."""
    if path.is_dir() and not (path / "tokenizer.json").exists() and (path / "vocab.json").exists():
        return _from_tables(path / "vocab.json", path / "merges.txt")
    return _read(path / "tokenizer.json" if path.is_dir() else path)


def _sha256(text: str) -> str:
    """Of a `tokenizer.json` that the library has read; see `read_bpe`."""
    stated = json.loads(text)
    model = stated["model"]
    vocabulary, added = model.get("vocab"), stated.get("added_tokens") or []
    if isinstance(vocabulary, Mapping):
        ids = {**{token["content"]: token["id"] for token in added}, **vocabulary}
        vocabulary = sorted(ids.items(), key=lambda item: (item[1], item[0]))
    merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in model.get("merges") or []]
    kept = json.dumps([vocabulary, merges, _settings(stated, added)], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(kept.encode()).hexdigest()


def _settings(stated: Mapping[str, Any], added: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Settings of a `tokenizer.json` that are not as GPT-2 has them; no entries for GPT-2."""
    model, split, decoder = (stated.get(part) or {} for part in ("model", "pre_tokenizer", "decoder"))
    found = {key: value for key, value in model.items() if key not in _TABLES and value not in _OFF}
    if model.get("type", "BPE") != "BPE":
        found["type"] = model["type"]
    found |= {key: value for key, value in stated.items() if key not in _NO_MATTER and value not in _OFF}
    if split.get("type") != "ByteLevel" or split.get("add_prefix_space") or split.get("use_regex") is False:
        found["pre_tokenizer"] = split
    if decoder.get("type") != "ByteLevel":
        found["decoder"] = decoder
    # Whether letters are changed before such a token is looked for does not matter where no letters are changed.
    options = ("special", "single_word", "lstrip", "rstrip")
    special = [[token["content"], *(bool(token.get(key)) for key in options)] for token in added]
    if special != [[END, True, False, False, False]]:
        found["added_tokens"] = sorted(special)
    return found


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigError(f"{path}: larger than {_MOST_BYTES >> 20} MiB, so no tokenizer")
        return path.read_bytes().decode()
    except FileNotFoundError:
        raise ConfigError(f"no tokenizer at {path}; {_WHERE}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a readable tokenizer ({error})") from error


def _parsed(text: str, where: str) -> Any:
    tokenizers = require("tokenizers", "text")
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # The library raises `Exception` itself.
        raise ConfigError(f"{where}: not a tokenizer ({' '.join(str(error).split()):.120})") from error


def _from_tables(vocabulary: Path, merges: Path) -> str:
    """The `tokenizer.json` of a vocabulary and its merges, split into pieces as GPT-2 does."""
    tokenizers = require("tokenizers", "text")
    for path in (vocabulary, merges):
        if not path.is_file():
            raise ConfigError(f"no {path.name} in {path.parent}")
    try:
        backend = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(str(vocabulary), str(merges)))
    except Exception as error:
        raise ConfigError(
            f"{vocabulary.parent}: no tables of a tokenizer ({' '.join(str(error).split()):.120})"
        ) from error
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    if backend.token_to_id(END) is not None:
        backend.add_special_tokens([END])
    return str(backend.to_str())
