"""Where tar shards lie: in folders, and at addresses from which they are fetched when they are needed."""

from __future__ import annotations

import hashlib
import re
import time
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError

from modalities.image.sources import split_names
from zoo.errors import DataError, require
from zoo.files import alone, cache_folder, write_whole

__all__ = ["SCHEMES", "UnreachableShardError", "base_name", "find_shards", "has_shards", "is_remote", "local_file"]

SCHEMES = ("http", "https", "s3", "gs", "hf")  # not pipe:, by which webdataset would run a command
_MOST_BYTES = 16 << 30  # of a shard that is fetched
_TOTAL_S = 3600.0  # for a shard
_WAITS_S = (1.0, 10.0)  # before a shard is asked for again


class UnreachableShardError(DataError):
    """A shard cannot be had now: no fault of its pictures, so `skip_bad` does not pass over it."""


def has_shards(data: str, split: str) -> bool:
    """Whether data are shards: named as tar files, or a folder with some of the split and no Parquet files of it."""
    if "{" in data or data.endswith(".tar"):
        return True
    folder = Path(data)
    names = split_names(split)
    return any(
        any(folder.glob(f"{name}-*.tar")) or (any(folder.glob(f"{name}/*.tar")) and not _class_folders(folder / name))
        for name in names
    )


def _class_folders(folder: Path) -> bool:
    return any(path.is_dir() for path in folder.iterdir())


def find_shards(data: str, split: str) -> list[str]:
    """Paths or URLs of the shards of a split, sorted.

    Args:
        data: A folder with `<split>-*.tar` or `<split>/*.tar`; or a path or URL of tar files, in which braces stand
            for several, such as `s3://bucket/train-{000000..000146}.tar`.
        split: Name of the split, of a folder.

    Raises:
        DataError: If there are none, or they lie where shards are not read from.
        MissingDependencyError: If webdataset is not installed.
    """
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):", data)
    if scheme and scheme[1].lower() not in SCHEMES:
        raise DataError(f"{data}: shards are read from files, {', '.join(SCHEMES)}, not from {scheme[1]}:")
    if scheme or "{" in data or data.endswith(".tar"):
        found = require("webdataset.shardlists", extra="scale").expand_urls(data)
        missing = [] if scheme else [name for name in found if not Path(name).is_file()]
        if missing:
            raise DataError(f"{missing[0]}: no such shard ({len(missing)} of {len(found)} are missing)")
        return sorted(found)
    folder = Path(data)
    if not folder.is_dir():
        raise DataError(f"no such data: {data}")
    for name in split_names(split):
        for pattern in (f"{name}-*.tar", f"{name}/*.tar"):
            if files := sorted(map(str, folder.glob(pattern))):
                return files
    raise DataError(f"{data}: no shards of split {split!r}; expected {split}-*.tar or {split}/*.tar in it")


def is_remote(name: str) -> bool:
    """Whether a shard lies elsewhere."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", name) is not None


def base_name(name: str) -> str:
    """The name of a shard without its folder or address."""
    return name.rpartition("/")[2]


def local_file(name: str) -> Path:
    """The file itself, or a copy in the cache of what lies elsewhere; fetched once, whoever else asks for it.

    Raises:
        UnreachableShardError: If it cannot be fetched, also not when it is asked for again.
    """
    if not is_remote(name):
        return Path(name)
    path = cache_folder("shards") / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}-{base_name(name)[-100:]}"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with alone(path.with_name(f"{path.name}.lock")):
            if not path.is_file():
                write_whole(path, _fetch_again(name))
    return path


def _fetch_again(url: str) -> bytes:
    for wait in (*_WAITS_S, None):
        try:
            return _fetch(url)
        except DataError as error:
            if wait is None or not _may_pass(error.__cause__):
                raise UnreachableShardError(str(error)) from error
            time.sleep(wait)
    raise AssertionError


def _may_pass(cause: BaseException | None) -> bool:
    """Whether asking again may help: not where a server says that there is no such file, or none for us."""
    if isinstance(cause, HTTPError):
        return cause.code >= 500 or cause.code == 429
    return isinstance(cause, (OSError, HTTPException))


def _fetch(url: str) -> bytes:
    from zoo.reading import fetch

    if url.lower().startswith(("http:", "https:")):
        return fetch(url, max_bytes=_MOST_BYTES, total_s=_TOTAL_S)
    if re.search(r"[\s'\"`$;&|<>\\]", url):  # webdataset hands these to a shell
        raise DataError(f"{url}: unusual characters in the address of a shard")
    try:
        with require("webdataset", extra="scale").gopen(url) as stream:
            data: bytes = stream.read()
    except (OSError, ValueError) as error:
        raise DataError(f"{url}: cannot be fetched ({error})") from error
    if not data:
        raise DataError(f"{url}: nothing came")
    return data
