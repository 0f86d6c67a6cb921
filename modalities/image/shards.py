"""Labelled pictures in tar shards as webdataset has them: found, indexed and read one by one.

A sample is a picture and a file `.cls` with its class number under one key: `00017.jpg`, `00017.cls`. An index of where
each picture begins lets a run start at any sample of any epoch, and lets processes share a shard.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import tarfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from modalities.image.shard_files import UnreachableShardError, base_name, find_shards, is_remote, local_file
from modalities.image.sources import SUFFIXES
from zoo.errors import DataError, require
from zoo.files import cache_folder, write_whole

__all__ = ["ShardPictures", "Shards", "open_shards", "read_index", "read_picture", "scan", "write_index"]

_FORMAT = 1
_BLOCK = 512  # of a tar archive
_ARRAYS = ("offsets", "sizes", "labels")
Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Shards:
    """Pictures in shards, in the order of the shards.

    Attributes:
        names: Paths or URLs of the shards.
        shard: int32 (N,), the shard of each picture.
        offsets: int64 (N,), where its bytes begin.
        sizes: int64 (N,), how many they are.
        labels: int64 (N,).
        class_names: In the order of the labels, if known.
        sha256: Identifies the shards by their names and indices, wherever they lie.
        skipped: Samples that were left out because they are damaged.
    """

    names: Sequence[str]
    shard: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray
    labels: np.ndarray
    class_names: list[str] | None
    sha256: str
    skipped: int

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        """Number of classes: of the names, or one more than the largest label."""
        return len(self.class_names) if self.class_names else int(self.labels.max()) + 1

    @property
    def name(self) -> str:
        """Of the data set: its folder, or what comes before the shards in their address."""
        parts = self.names[0].split("/")
        return next((part for part in reversed(parts[:-1]) if part), "shards")

    def where(self, index: int) -> str:
        """Names a picture, for messages."""
        return f"{self.names[self.shard[index]]} at byte {self.offsets[index]}"

    def read(self, index: int) -> bytes:
        """The encoded picture.

        Raises:
            UnreachableShardError: If the shard cannot be read now.
            DataError: If it is not whole.
        """
        path, size = local_file(self.names[self.shard[index]]), int(self.sizes[index])
        try:
            with path.open("rb") as file:
                file.seek(int(self.offsets[index]))
                data = file.read(size)
        except OSError as error:
            raise UnreachableShardError(f"{self.where(index)}: cannot be read ({error})") from error
        if len(data) != size:
            raise DataError("the shard ends before the picture does: it is truncated, or not the one that was indexed")
        return data


class ShardPictures(Sequence[np.ndarray]):
    """Pictures of shards as uint8 (3, h, w), decoded when they are asked for.

    Args:
        shards: Where they are.
        rows: Which of them; `None` = all.
    """

    def __init__(self, shards: Shards, rows: np.ndarray | None = None) -> None:
        self.shards, self.rows = shards, np.arange(len(shards)) if rows is None else rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return ShardPictures(self.shards, self.rows[index])
        return read_picture(self.shards, int(self.rows[index]))


def read_picture(shards: Shards, index: int) -> np.ndarray:
    """A picture as uint8 (3, h, w), as it is stored.

    Raises:
        DataError: If it is damaged; says where it is.
    """
    from zoo.reading import read

    try:
        rgb = read(shards.read(index), kind="image").rgb
    except UnreachableShardError:
        raise
    except DataError as error:
        raise DataError(f"{shards.where(index)}: {error}; use skip_bad to leave out such pictures") from error
    return np.ascontiguousarray(rgb.transpose(2, 0, 1))


def open_shards(data: str, split: str, *, skip_bad: bool = False) -> Shards:
    """Finds and indexes the shards of a split; what `zoo make-shards` has indexed is not read for that.

    Args:
        data: See `find_shards`.
        split: See there.
        skip_bad: Leave out samples that are damaged, and what follows the point where a shard is, with a warning that
            counts them, instead of raising.

    Raises:
        DataError: If there are no shards, or one is damaged.
    """
    names = find_shards(data, split)
    listed, meta = _listed(names)
    parts, facts, skipped, damaged = [], [], 0, []
    for name in names:
        arrays, bad, problem = _arrays(name, listed.get(base_name(name)))
        if (problem or bad) and not skip_bad:
            raise DataError(f"{name}: {problem or f'{bad} damaged samples'}; use skip_bad to leave out what is damaged")
        skipped += bad
        damaged += [name] if problem else []
        parts.append(arrays)
        facts.append((base_name(name), *(hashlib.sha256(arrays[key].tobytes()).hexdigest() for key in _ARRAYS)))
    columns = {key: np.concatenate([part[key] for part in parts]) for key in _ARRAYS}
    count = len(columns["labels"])
    if not count:
        raise DataError(f"{data}: no usable sample in {len(names)} shards")
    if skipped or damaged:
        warnings.warn(f"{data}: left out {skipped} damaged samples; {len(damaged)} shards end early", stacklevel=2)
    class_names = meta.get("classes")
    if class_names and columns["labels"].max() >= len(class_names):
        raise DataError(f"{data}: label {columns['labels'].max()}, but there are {len(class_names)} class names")
    return Shards(
        names=names,
        shard=np.repeat(np.arange(len(names), dtype=np.int32), [len(part["labels"]) for part in parts]),
        **columns,
        class_names=class_names,
        sha256=hashlib.sha256(repr(facts).encode()).hexdigest(),
        skipped=skipped,
    )


def scan(path: Path) -> tuple[Arrays, int, str | None]:
    """Reads the headers of a shard.

    Returns:
        Where its pictures are: `offsets`, `sizes` and `labels`, int64; the number of samples without a picture or a
        good label; and why it ends early, if it does.
    """
    split_name = require("webdataset.tariterators", extra="scale").base_plus_ext
    samples: dict[str, dict[str, int]] = {}
    problem, end = None, 0
    try:
        with path.open("rb") as file:
            try:
                with tarfile.open(fileobj=file, mode="r:") as tar:
                    for member in tar:
                        end = member.offset_data + -(-member.size // _BLOCK) * _BLOCK
                        key, suffix = split_name(member.name)
                        if key is None or not member.isreg():
                            continue
                        sample = samples.setdefault(key, {})
                        if f".{suffix.lower()}" in SUFFIXES:
                            sample |= {"offset": member.offset_data, "size": member.size}
                        elif suffix == "cls":
                            sample["label"] = _label(file, member)
            except tarfile.TarError as error:
                problem = f"damaged or truncated tar file ({error})"
            size = file.seek(0, 2)
            file.seek(end)
            block = file.read(_BLOCK)
            if problem is None and (len(block) < _BLOCK or any(block)):
                problem = f"damaged or truncated tar file (its end is missing after byte {min(end, size)})"
    except OSError as error:
        return _columns([]), 0, f"cannot be read ({error})"
    whole = [
        (s["offset"], s["size"], s["label"])
        for s in samples.values()
        if {"offset", "label"} <= s.keys() and s["label"] >= 0 and s["offset"] + s["size"] <= size
    ]
    return _columns(whole), len(samples) - len(whole), problem


def _label(file: Any, member: tarfile.TarInfo) -> int:
    """The class number in a member, -1 if it is none; leaves the file where it was."""
    place = file.tell()
    file.seek(member.offset_data)
    text = file.read(min(member.size, 32)).decode("ascii", "replace").strip()
    file.seek(place)
    return int(text) if text.isascii() and text.isdigit() else -1


def _columns(rows: list[tuple[int, int, int]]) -> Arrays:
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return {key: np.ascontiguousarray(table[:, place]) for place, key in enumerate(_ARRAYS)}


def write_index(path: Path, shards: dict[str, Arrays], class_names: list[str] | None) -> None:
    """Writes where the pictures of shards are, as `PREFIX-index.json` beside `PREFIX-*.tar`.

    Args:
        path: The file.
        shards: Size in bytes is taken from the shards, which lie beside it; name -> what `scan` gives.
        class_names: In the order of the labels, if known.
    """
    table = {
        name: {"bytes": (path.parent / name).stat().st_size, **{key: arrays[key].tolist() for key in _ARRAYS}}
        for name, arrays in shards.items()
    }
    write_whole(path, json.dumps({"format": _FORMAT, "classes": class_names, "shards": table}) + "\n")


def read_index(data: bytes, where: str) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """The shards in an index by name, and its other facts.

    Raises:
        DataError: If it is none.
    """
    try:
        index = json.loads(data)
        if index["format"] != _FORMAT:
            raise ValueError(f"format {index['format']}, expected {_FORMAT}")
        classes = index["classes"]
        if classes is not None and not all(isinstance(name, str) for name in classes):
            raise ValueError("classes are no names")
        shards = {}
        for name, facts in index["shards"].items():
            arrays: dict[str, Any] = {key: np.array(facts[key], dtype=np.int64) for key in _ARRAYS}
            if len({a.shape for a in arrays.values()}) != 1 or any(
                a.ndim != 1 or (a < 0).any() for a in arrays.values()
            ):
                raise ValueError(f"the lists of {name} do not fit")
            shards[str(name)] = arrays | {"bytes": int(facts["bytes"])}
        return shards, {"classes": classes}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise DataError(f"{where}: not an index of shards ({error}); delete it, or make it anew") from error


def _listed(names: Sequence[str]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """What the indices beside the shards say."""
    shards: dict[str, dict[str, Any]] = {}
    meta: dict[str, Any] = {}
    for where in dict.fromkeys(f"{name.rpartition('-')[0]}-index.json" for name in names if "-" in base_name(name)):
        if is_remote(where):
            try:
                data = local_file(where).read_bytes()
            except DataError:
                continue
        elif Path(where).is_file():
            data = Path(where).read_bytes()
        else:
            continue
        more, facts = read_index(data, where)
        shards |= more
        meta |= facts
    return shards, meta


def _arrays(name: str, listed: dict[str, Any] | None) -> tuple[Arrays, int, str | None]:
    """As `scan`, from an index where there is one: beside the shards, or in the cache."""
    if listed is not None:
        arrays = {key: listed[key] for key in _ARRAYS}
        size = listed["bytes"] if is_remote(name) else Path(name).stat().st_size
        if size == listed["bytes"]:
            return arrays, 0, None
        whole = arrays["offsets"] + arrays["sizes"] <= size
        kept = {key: array[whole] for key, array in arrays.items()}
        return kept, int((~whole).sum()), f"has {size} bytes, its index says {listed['bytes']}: truncated or replaced"
    path = local_file(name)
    facts = path.stat()
    key = hashlib.sha256(repr((_FORMAT, str(path.resolve()), facts.st_size, facts.st_mtime_ns)).encode()).hexdigest()
    cached = cache_folder("shards") / f"{key[:32]}.npy"
    try:
        return _columns(np.load(cached, allow_pickle=False).tolist()), 0, None
    except (OSError, ValueError, EOFError):
        found, bad, problem = scan(path)
    if not bad and problem is None:
        cached.parent.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        np.save(buffer, np.stack([found[key] for key in _ARRAYS], axis=1))
        write_whole(cached, buffer.getvalue())
    return found, bad, problem
