"""Tokenizers: text by character or byte, DNA by base, chorales note by note, piano rolls frame by frame.

All are small, exact and reversible; a model's configuration holds its tokenizer as `to_dict` gives it.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from zoo.errors import ConfigError, DataError

__all__ = [
    "LOWEST_KEY",
    "SILENT",
    "TOKENIZERS",
    "VOICES",
    "ByteTokenizer",
    "CharTokenizer",
    "ChoraleTokenizer",
    "DNATokenizer",
    "RollTokenizer",
    "Tokenizer",
    "tokenizer_from_dict",
]

LOWEST, KEYS = 21, 88
"""MIDI number of the lowest key of a piano, and how many keys it has."""

VOICES = ("soprano", "alto", "tenor", "bass")
SILENT = -1
"""Pitch of a voice that does not sound."""

_MOST_CHARACTERS = 65_536


class Tokenizer(ABC):
    """Between what users have and token ids.

    Attributes:
        kind: Its name in `TOKENIZERS`.
        SETTINGS: Keys of `to_dict` besides the kind: arguments of the constructor.
        vocab_size: Number of tokens; ids are 0 .. vocab_size - 1.
        start: Id of the token that begins a piece, or `None` where there is none. It is read, never predicted.
    """

    kind: ClassVar[str]
    SETTINGS: ClassVar[frozenset[str]] = frozenset()
    vocab_size: int
    start: int | None = None

    @abstractmethod
    def encode(self, value: Any) -> np.ndarray:
        """Token ids, int64 (N,), without a start token.

        Raises:
            DataError: If there is something that has no token.
        """

    @abstractmethod
    def decode(self, ids: Any) -> Any:
        """What ids (N,) stand for; start tokens are left out.

        Raises:
            DataError: If they are no ids of this tokenizer.
        """

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, from which `tokenizer_from_dict` makes an equal one."""
        return {"kind": self.kind}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.kind, self.vocab_size))

    def _checked(self, ids: Any) -> np.ndarray:
        """Ids as int64 (N,), without start tokens."""
        found = np.asarray(ids.cpu() if hasattr(ids, "cpu") else ids)
        if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
            raise DataError(f"token ids are whole numbers (N,), got {found.dtype} {found.shape}")
        found = found.astype(np.int64)
        if found.size and not 0 <= found.min() <= found.max() < self.vocab_size:
            raise DataError(f"token ids lie in 0..{self.vocab_size - 1}, got {found.min()}..{found.max()}")
        return found if self.start is None else found[found != self.start]


class CharTokenizer(Tokenizer):
    """One token per character of a fixed alphabet.

    Args:
        characters: The alphabet; ids follow its order.

    Raises:
        ConfigError: If it is empty or a character comes twice.

    Example:
        >>> CharTokenizer("abc").encode("cab").tolist()
        [2, 0, 1]
    """

    kind = "characters"
    SETTINGS = frozenset({"characters"})

    def __init__(self, characters: str) -> None:
        if not isinstance(characters, str) or not 1 <= len(characters) <= _MOST_CHARACTERS:
            raise ConfigError(f"an alphabet is text of 1 to {_MOST_CHARACTERS} characters, got {characters!r:.60}")
        if len(set(characters)) != len(characters):
            raise ConfigError(f"a character comes twice in the alphabet {characters!r:.60}")
        self.characters, self.vocab_size = characters, len(characters)
        codes = np.array([ord(character) for character in characters], dtype=np.int64)
        self._order = np.argsort(codes)
        self._sorted = codes[self._order]

    @classmethod
    def of(cls, text: str) -> CharTokenizer:
        """The tokenizer of the characters of a text, in the order of their code points."""
        return cls("".join(sorted(set(text))))

    def encode(self, value: str) -> np.ndarray:
        """See `Tokenizer.encode`."""
        if not isinstance(value, str):
            raise DataError(f"expected text, got a {type(value).__name__}")
        # Surrogates are characters like others here: numpy would refuse to encode them.
        codes = np.frombuffer(value.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.int64)
        places = np.minimum(np.searchsorted(self._sorted, codes), self.vocab_size - 1)
        unknown = codes[self._sorted[places] != codes]
        if len(unknown):
            raise DataError(f"the character {chr(int(unknown[0]))!r} is not in the alphabet of {self.vocab_size}")
        return self._order[places]

    def decode(self, ids: Any) -> str:
        """See `Tokenizer.decode`."""
        return "".join(self.characters[number] for number in self._checked(ids))

    def to_dict(self) -> dict[str, Any]:
        """With the alphabet."""
        return {"kind": self.kind, "characters": self.characters}


class ByteTokenizer(Tokenizer):
    """One token per byte of UTF-8, 256 in all: for any text.

    Example:
        >>> ByteTokenizer().decode(ByteTokenizer().encode("naïve"))
        'naïve'
    """

    kind = "bytes"
    vocab_size = 256

    def encode(self, value: str | bytes) -> np.ndarray:
        """See `Tokenizer.encode`."""
        if not isinstance(value, (str, bytes)):
            raise DataError(f"expected text or bytes, got a {type(value).__name__}")
        try:
            data = value.encode() if isinstance(value, str) else value
        except UnicodeEncodeError as error:
            raise DataError(f"text that is not Unicode ({error.reason}) has no bytes in UTF-8") from None
        return np.frombuffer(data, dtype=np.uint8).astype(np.int64)

    def decode(self, ids: Any) -> str:
        """See `Tokenizer.decode`; bytes that are no UTF-8 become the replacement character."""
        return self._checked(ids).astype(np.uint8).tobytes().decode(errors="replace")


class DNATokenizer(Tokenizer):
    """One token per base: A, C, G, T, and N for what is not known.

    Lower case, which marks repeats, is read as upper case, and the ambiguity codes of IUPAC as N.

    Example:
        >>> DNATokenizer().encode("acGTN").tolist()
        [0, 1, 2, 3, 4]
    """

    kind = "dna"
    bases = "ACGTN"
    vocab_size = 5
    _table = np.full(256, -1, dtype=np.int64)
    for _number, _base in enumerate("ACGT"):
        _table[[ord(_base), ord(_base.lower())]] = _number
    _table[[ord(_code) for _code in "NRYSWKMBDHVnryswkmbdhv"]] = 4
    _table[[ord("U"), ord("u")]] = 3

    def encode(self, value: str | bytes) -> np.ndarray:
        """See `Tokenizer.encode`."""
        if not isinstance(value, (str, bytes)):
            raise DataError(f"expected bases as text or bytes, got a {type(value).__name__}")
        data = value.encode("latin-1", "replace") if isinstance(value, str) else value
        ids = self._table[np.frombuffer(data, dtype=np.uint8)]
        if (ids < 0).any():
            where = int(np.flatnonzero(ids < 0)[0])
            raise DataError(f"{chr(data[where])!r} at position {where} is no base (A, C, G, T, N)")
        return ids

    def decode(self, ids: Any) -> str:
        """See `Tokenizer.decode`; upper case."""
        return "".join(self.bases[number] for number in self._checked(ids))


class ChoraleTokenizer(Tokenizer):
    """Four voices a step: soprano, alto, tenor, bass of the first 16th note, then of the next, ...

    Tokens: 0 silence, 1 .. 88 the keys of a piano (MIDI 21 .. 108), 89 the start of a chorale.

    Example:
        >>> ChoraleTokenizer().encode([[72, 67, 64, -1]]).tolist()
        [52, 47, 44, 0]
    """

    kind = "chorales"
    start = KEYS + 1
    vocab_size = KEYS + 2

    def encode(self, value: Any) -> np.ndarray:
        """Ids (4 T,) of pitches (T, 4), MIDI numbers or `SILENT`; see `Tokenizer.encode`."""
        pitches = np.asarray(value)
        if pitches.ndim != 2 or pitches.shape[1] != len(VOICES) or pitches.dtype.kind not in "iu":
            raise DataError(f"a chorale is whole numbers (steps, 4), got {pitches.dtype} {pitches.shape}")
        pitches = pitches.astype(np.int64)
        sounding = pitches != SILENT
        if not ((pitches >= LOWEST) & (pitches < LOWEST + KEYS))[sounding].all():
            raise DataError(f"pitches are MIDI numbers {LOWEST}..{LOWEST + KEYS - 1}, or {SILENT} for silence")
        return np.where(sounding, pitches - LOWEST + 1, 0).reshape(-1)

    def decode(self, ids: Any) -> np.ndarray:
        """Pitches int64 (T, 4); a last step that is not complete is left out."""
        notes = self._checked(ids)
        notes = notes[: len(notes) // len(VOICES) * len(VOICES)].reshape(-1, len(VOICES))
        return np.where(notes == 0, SILENT, notes + LOWEST - 1)


class RollTokenizer(Tokenizer):
    """A piano roll: the keys of a frame from the lowest up, then the end of the frame.

    Every frame has one such spelling, so that the probabilities of its tokens multiply to one of the frame (a lower
    bound of it, since a model may spend some on other spellings). Tokens: 0 .. 87 the keys of a piano, 88 the end of a
    frame, 89 the start of a piece.

    Example:
        >>> roll = np.zeros((2, 88), dtype=bool)
        >>> roll[0, [3, 7]] = True
        >>> RollTokenizer().encode(roll).tolist()
        [3, 7, 88, 88]
    """

    kind = "roll"
    end = KEYS
    start = KEYS + 1
    vocab_size = KEYS + 2

    def encode(self, value: Any) -> np.ndarray:
        """Ids of frames (T, 88), 0 or 1; see `Tokenizer.encode`."""
        frames = np.asarray(value)
        if frames.ndim != 2 or frames.shape[1] != KEYS or not np.isin(frames, (0, 1)).all():
            raise DataError(f"a piano roll is zeros and ones (frames, {KEYS}), got {frames.dtype} {frames.shape}")
        ended = np.concatenate([frames.astype(bool), np.ones((len(frames), 1), dtype=bool)], axis=1)
        return np.nonzero(ended)[1].astype(np.int64)

    def decode(self, ids: Any) -> np.ndarray:
        """Frames bool (T, 88); keys after the last end of a frame are left out."""
        found = self._checked(ids)
        ends = found == self.end
        frame = np.cumsum(ends) - ends
        frames = np.zeros((int(ends.sum()), KEYS), dtype=bool)
        sounding = ~ends & (frame < len(frames))
        frames[frame[sounding], found[sounding]] = True
        return frames


# Of the tokenizers of music: the id of the lowest key, and how many keys follow.
LOWEST_KEY = {ChoraleTokenizer.kind: (1, KEYS), RollTokenizer.kind: (0, KEYS)}

TOKENIZERS: dict[str, type[Tokenizer]] = {
    cls.kind: cls for cls in (CharTokenizer, ByteTokenizer, DNATokenizer, ChoraleTokenizer, RollTokenizer)
}


# Kind -> "module:class" of those that need more.
_ELSEWHERE = {
    "bpe": "modalities.sequence.bpe:BpeTokenizer",
    "performance": "modalities.sequence.performance:PerformanceTokenizer",
}


def tokenizer_from_dict(values: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that `Tokenizer.to_dict` described.

    Raises:
        ConfigError: If it is not known, or its settings are not right.
    """
    kind = values.get("kind") if isinstance(values, Mapping) else None
    if not isinstance(kind, str) or kind not in (*TOKENIZERS, *_ELSEWHERE):
        raise ConfigError(f"no tokenizer {kind!r:.60}; there are {', '.join((*TOKENIZERS, *_ELSEWHERE))}")
    made = TOKENIZERS.get(kind)
    if made is None:
        module, name = _ELSEWHERE[kind].split(":")
        found: type[Tokenizer] = getattr(importlib.import_module(module), name)
        made = found
    settings = {key: value for key, value in values.items() if key != "kind"}
    if settings.keys() != made.SETTINGS:
        raise ConfigError(
            f"tokenizer {kind!r} has settings {sorted(made.SETTINGS)}, got {sorted(map(str, settings))!r:.80}"
        )
    return made(**settings)
