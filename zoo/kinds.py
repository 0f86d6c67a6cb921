"""Tells events from points in files whose suffix leaves both open: tables of text and NumPy files."""

from __future__ import annotations

from pathlib import Path

from zoo.errors import DataError

__all__ = ["BOTH", "kind_of_table"]

BOTH = frozenset((".csv", ".npy", ".npz", ".txt"))
"""Suffixes of files that may hold events or points."""

_TIMES = frozenset(("t", "ts", "t_us", "time", "times", "timestamp", "timestamps", "polarity", "p"))
_CLOUDS = frozenset(("xyz", "coord", "coords", "points", "pos", "vertices"))
_LINE = 4096
_LINES = 1000


def kind_of_table(path: Path, name: str) -> str:
    """Decides by the names in a file, and of text without names by the number of columns.

    Names with x, y and z, or an array such as `xyz`, are points; a time or polarity makes events of it. Lines of four
    numbers without names may be either.

    Raises:
        DataError: If it cannot be opened, or a text may be either.
    """
    try:
        names, columns = _text(path) if path.suffix.lower() in (".csv", ".txt") else (_arrays(path, name), None)
    except OSError as error:
        raise DataError(f"{name}: cannot be opened ({error.strerror or error})") from error
    if names & _TIMES:
        return "events"
    if {"x", "y", "z"} <= names or names & _CLOUDS:
        return "points"
    if names:
        return "events"
    if columns == 4:
        raise DataError(
            f"{name}: four columns without names may be points (x, y, z, value) or events (t, x, y, p); pass "
            'kind="points" or kind="events"'
        )
    return "points" if columns is None or columns >= 3 else "events"


def _text(path: Path) -> tuple[set[str], int]:
    """Names before the first numbers, lower case, and how many columns those have."""
    from zoo.tables import is_number

    names: set[str] = set()
    with path.open("rb") as file:
        for _ in range(_LINES):
            if not (raw := file.readline(_LINE)):
                break
            text = raw.decode("utf-8-sig", "replace").strip()
            bare = text.lstrip("#/%; ")
            separator = next((mark for mark in (",", ";", "\t") if mark in bare), None)
            cells = [cell.strip().strip('"').lower() for cell in bare.split(separator)]
            if text and bare == text and len(cells) > 1 and all(map(is_number, cells)):
                return names, len(cells)
            if len(cells) >= 3 and not any(map(is_number, cells)) and {"x", "y"} <= set(cells):
                names = set(cells)
    return names, 0


def _arrays(path: Path, name: str) -> set[str]:
    """Names of the arrays of an .npz and of the fields of structured arrays."""
    from zoo.npy import read_header, read_members

    with path.open("rb") as file:
        if file.read(2) == b"PK":
            file.seek(0)
            _, headers = read_members(file, name)
        else:
            file.seek(0)
            headers = {"": read_header(file, name, "the array")}
    found = {key for key in headers if key}
    for _, dtype in headers.values():
        found |= set(dtype.names or ())
    return {key.lower() for key in found}
