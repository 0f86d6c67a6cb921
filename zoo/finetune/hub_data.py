"""Data sets of the Hub: their Parquet files in the cache of huggingface_hub."""

from __future__ import annotations

import os
from pathlib import Path

from zoo.errors import ConfigError, DataError
from zoo.hub import split_repository
from zoo.hub_errors import failures, redact

__all__ = ["data_name", "fetched", "local_data"]

_PREFIX = "hf-hub:"
_PATTERNS = ["*.parquet", "data/*.parquet"]


def local_data(data: str | os.PathLike[str]) -> Path:
    """A folder or file as it is; of `hf-hub:ORG/NAME[@REVISION]` the folder with its Parquet files, fetched if need be.

    Raises:
        ConfigError: If the form of the name is wrong.
        DataError: If the data set cannot be fetched, or has no Parquet files.
    """
    if not isinstance(data, str) or not data.startswith(_PREFIX):
        return Path(data).expanduser()
    repo_id, revision = split_repository(data.removeprefix(_PREFIX))
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(repo_id, repo_type="dataset", revision=revision, allow_patterns=_PATTERNS))
    except failures() as error:
        if isinstance(error, ConfigError):
            raise
        reason = redact(str(error))[:300]
        raise DataError(f"{data}: the data set cannot be fetched ({type(error).__name__}: {reason})") from None
    if not any(True for pattern in _PATTERNS for _ in folder.glob(pattern)):
        raise DataError(f"{data}: has no Parquet files ({', '.join(_PATTERNS)}); download it and give its folder")
    return folder


def fetched(data: str) -> str:
    """As `local_data`, but what is no name of the Hub stays as it was written: it may be that of a made-up task."""
    return str(local_data(data)) if data.startswith(_PREFIX) else data


def data_name(folder: Path) -> str:
    """What the data in a folder are called: like the folder, or in the cache of huggingface_hub like the data set."""
    path = folder.resolve()
    owner = path.parent.parent.name
    if path.parent.name == "snapshots" and owner.startswith("datasets--"):
        return owner.split("--")[-1]
    return path.name
