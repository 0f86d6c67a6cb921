"""HDF5: arrays x, y, p, t as in DSEC and RVT, or one table of events."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Generator, Iterator
from typing import Any, BinaryIO

import numpy as np

from modalities.events.formats.base import BLOCK, Block, Options, Recording, to_block, to_us
from modalities.events.formats.columns import NAMES, polarity, unit_of
from zoo.errors import DataError, ZooError, require

__all__ = ["open_hdf5"]

_GROUPS = ("events", "CD", "/")


def open_hdf5(file: BinaryIO, name: str, options: Options) -> Recording:
    """Opens HDF5 with `events/{x,y,p,t}` (DSEC, RVT), the same names at the top, or a table `CD/events`.

    Times are microseconds unless `unit` says otherwise (floating-point times must have it). A scalar `t_offset` beside
    the events or at the top (DSEC) is added, so that recordings of one session share a clock. Width and height are
    taken from `events/width` and `events/height` (RVT) or from attributes. Links out of the file are not followed.
    """
    h5py = require("h5py", extra="events")
    with contextlib.suppress(ImportError):  # Registers the compression of DSEC (Blosc).
        importlib.import_module("hdf5plugin")
    with _damage(name, "no readable HDF5 file"):
        root = h5py.File(file, "r")
        group, columns = _find(h5py, root, name)
        counts = {key: len(column) for key, column in columns.items()}
        if len(set(counts.values())) > 1:
            raise DataError(f"{name}: x, y, p and t differ in length: {counts}")
        unit = unit_of(columns["t"].dtype, options.unit, name, default="us")
        found = [[_scalar(h5py, p, key, name) for p in (group, root)] for key in ("t_offset", "width", "height")]
    offset, *size = (next((value for value in values if value is not None), None) for values in found)
    shift = 0 if offset is None else int(to_us(np.asarray([offset]), unit, name)[0])
    width, height = (int(size[0]), int(size[1])) if size[0] and size[1] else (None, None)

    def blocks() -> Generator[Block, None, None]:
        for start in range(0, counts["t"], BLOCK):
            with _damage(name, f"cannot be read from event {start} on"):
                part = {key: np.asarray(column[start : start + BLOCK]) for key, column in columns.items()}
            t = to_us(part["t"], unit, name) + shift
            yield to_block(t, part["x"], part["y"], polarity(part["p"], name))

    return Recording("hdf5", width, height, blocks)


@contextlib.contextmanager
def _damage(name: str, what: str) -> Iterator[None]:
    """The library raises errors of many types on damaged files."""
    try:
        yield
    except ZooError:
        raise
    except Exception as error:
        hint = "; pip install 'pape-zoo[events]'" if "filter" in str(error) else ""
        raise DataError(f"{name}: {what}: truncated or damaged ({error}){hint}") from error


class _Field:
    """One field of a table as a column."""

    def __init__(self, table: Any, field: str) -> None:
        self._table, self._field = table, field
        self.dtype = table.dtype[field]

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, index: slice) -> Any:
        return self._table[index][self._field]


def _find(h5py: Any, root: Any, name: str) -> tuple[Any, dict[str, Any]]:
    """The group of the events, and its columns by the names t, x, y, p."""
    for place in _GROUPS:
        item = _get(h5py, root, place, name)
        if isinstance(item, h5py.Group) and isinstance(table := _get(h5py, item, "events", name), h5py.Dataset):
            item = table
        if isinstance(item, h5py.Dataset) and item.dtype.names:
            found = {NAMES[key.lower()]: _Field(item, key) for key in item.dtype.names if key.lower() in NAMES}
            group = item.parent
        elif isinstance(item, h5py.Group):
            found = {NAMES[key.lower()]: _get(h5py, item, key, name) for key in item if key.lower() in NAMES}
            group = item
        else:
            continue
        if set(found) == set("txyp"):
            for key, column in found.items():
                shape = () if isinstance(column, _Field) else getattr(column, "shape", None)
                if shape is None or len(shape) > 1 or column.dtype.kind not in ("iuf" if key == "t" else "iub"):
                    raise DataError(f"{name}: {key} is no array (N,) of {'' if key == 't' else 'whole '}numbers")
            return group, found
    keys = ", ".join(list(root)[:8]) or "nothing"
    raise DataError(f"{name}: no events: expected events/x, y, p and t, or a table CD/events; at the top are {keys}")


def _get(h5py: Any, group: Any, key: str, name: str) -> Any:
    """An object in the file itself, `None` if it is absent."""
    if key == "/":
        return group
    link = group.get(key, getlink=True)
    if link is None:
        return None
    if isinstance(link, h5py.ExternalLink):
        raise DataError(f"{name}: {key} is a link into another file, which is not followed")
    item = group.get(key)
    if isinstance(item, h5py.Dataset) and (item.external or item.is_virtual):
        raise DataError(f"{name}: {key} is stored in another file, which is not followed")
    return item


def _scalar(h5py: Any, group: Any, key: str, name: str) -> Any:
    """A number stored as an attribute or as an array of one value."""
    if key in group.attrs:
        value = group.attrs[key]
    else:
        item = _get(h5py, group, key, name)
        if not isinstance(item, h5py.Dataset) or item.size != 1:
            return None
        value = item[()]
    value = np.asarray(value)
    if value.size != 1 or value.dtype.kind not in "iuf":
        raise DataError(f"{name}: {key} is no number")
    return value.reshape(-1)[0]
