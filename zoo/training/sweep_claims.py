"""Which process has taken which run of a sweep, so that several may share its folder.

A claim is a file that names host and process, locked for as long as that process lives: the system drops the lock
however the process ends, and the next one of the same machine takes the run over. A lock may not reach other machines
that share the folder, so a claim of theirs holds until they remove it.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from zoo.training.sweep_results import RESULT_SUFFIX

try:
    import fcntl
except ImportError:  # Windows, where claims of processes that were killed are deleted by hand.
    fcntl = None  # type: ignore[assignment]

__all__ = ["CLAIM_SUFFIX", "claim"]

CLAIM_SUFFIX = ".taken"


@contextmanager
def claim(folder: Path, stem: str, say: Callable[[str], None] = lambda text: None) -> Iterator[bool]:
    """Takes a run for this process, unless it is done or taken; gives whether it is ours.

    Args:
        folder: Of the sweep.
        stem: Of the run's files.
        say: Gets a line about a claim of which it is not known whether anybody holds it.
    """
    path, result = folder / f"{stem}{CLAIM_SUFFIX}", folder / f"{stem}{RESULT_SUFFIX}"
    held = None if result.exists() else _take(path, say)
    try:
        yield held is not None and not result.exists()  # Who held it a moment ago may have finished.
    finally:
        if held is not None and fcntl is None:
            os.close(held)  # Windows deletes no open file.
            path.unlink(missing_ok=True)
        elif held is not None:
            path.unlink(missing_ok=True)  # Before the lock is gone: afterwards it may be somebody else's.
            os.close(held)


def _take(path: Path, say: Callable[[str], None]) -> int | None:
    """The descriptor that holds the claim, or `None` if it is not ours."""
    try:
        opened = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        _lock(opened, wait=True)  # Somebody may look into the new file at this moment.
    except FileExistsError:
        found = _abandoned(path, say)
        if found is None:
            return None
        opened = found
    os.ftruncate(opened, 0)
    os.lseek(opened, 0, os.SEEK_SET)
    os.write(opened, json.dumps({"host": platform.node(), "pid": os.getpid()}).encode())
    return opened


def _abandoned(path: Path, say: Callable[[str], None]) -> int | None:
    """The locked descriptor of a claim whose process has ended, or `None`."""
    try:
        opened = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return None  # Its run has just ended.
    if not _lock(opened, wait=False) or not _is(path, opened):
        os.close(opened)
        return None
    try:
        host = json.loads(os.read(opened, 4096))["host"]
    except (ValueError, KeyError, TypeError):
        host = None
    if host == platform.node():
        return opened
    os.close(opened)
    say(f"{path.stem}: taken {f'on {host}' if host else 'by somebody'}; if no process is at it, delete {path}")
    return None


def _lock(opened: int, wait: bool) -> bool:
    """Locks a file for this process; whether that was possible."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:  # Somebody has the lock, or the file system has none.
        return False
    return True


def _is(path: Path, opened: int) -> bool:
    """Whether a path still leads to an open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(opened))
    except FileNotFoundError:
        return False
