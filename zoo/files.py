"""Writing files and folders all or nothing, where files of our own are kept, and what identifies a data set's."""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from zoo.errors import ConfigError, DataError

__all__ = ["alone", "cache_folder", "files_sha256", "new_folder", "partial_of", "write_whole"]

_END = 1 << 16  # Bytes at either end of a file that identify it.


def cache_folder(kind: str) -> Path:
    """Folder for what can be made again from data, such as decoded pictures.

    Args:
        kind: Its name in `$ZOO_CACHE` or `~/.cache/pape-zoo`.
    """
    return Path(os.environ.get("ZOO_CACHE") or Path.home() / ".cache" / "pape-zoo") / kind


def partial_of(path: Path) -> Path:
    """Returns a name for what will become the file, to be renamed once it is complete."""
    # Beside the file, since a rename must not cross file systems; a short name, since that of the file may be longest.
    return path.with_name(f".{uuid.uuid4().hex[:12]}.tmp")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Gives a folder to write into; it gets its name once the body has run, and is deleted if that fails.

    Args:
        path: Its name; must not exist, or be an empty folder.

    Raises:
        ConfigError: If there is something.
        DataError: If it cannot be made, or the body raises `OSError`.
    """
    try:
        if path.is_symlink() or (path.exists() and not (path.is_dir() and not any(path.iterdir()))):
            raise ConfigError(f"{path} exists already: choose another folder or delete it")
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = partial_of(path)
        partial.mkdir()
    except OSError as error:
        raise DataError(f"cannot write to {path.parent} ({error})") from error
    try:
        yield partial
        os.replace(partial, path)
    except OSError as error:
        raise DataError(f"cannot write {path} ({error})") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Runs the body while no other thread or process that names the same file is in one; a kill leaves nothing locked.

    Where the system has no such locks (Windows), bodies may run at once.

    Args:
        path: An empty file of this purpose alone; it is made, and stays.
    """
    with path.open("ab") as file:
        if os.name == "posix":
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)  # Released when the file is closed, however that comes.
        yield


def write_whole(path: Path, data: bytes | str) -> None:
    """Writes a file that appears complete or not at all; an earlier one stays until then.

    Args:
        path: Where to; its folder must exist.
        data: Bytes, or text that becomes UTF-8.

    Raises:
        OSError: If it cannot be written; nothing is left behind.
        ValueError: If the path holds a null byte.
    """
    partial = partial_of(path)
    try:
        partial.write_bytes(data.encode() if isinstance(data, str) else data)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def files_sha256(root: Path, files: Iterable[Path]) -> str:
    """Identifies files by name, size and both ends: to hash all of a large data set would be to read it twice.

    Copies of the same files have the same value.

    Args:
        root: Names are relative to it.
        files: Files below it.

    Raises:
        DataError: If one cannot be read.
    """
    digest = hashlib.sha256()
    for path in files:
        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                ends = file.read(_END)
                file.seek(max(_END, size - _END))
                ends += file.read(_END)
        except OSError as error:
            raise DataError(f"cannot read {path} ({error})") from error
        digest.update(repr((path.relative_to(root).as_posix(), size)).encode() + hashlib.sha256(ends).digest())
    return digest.hexdigest()
