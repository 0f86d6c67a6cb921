"""NumPy files: arrays t, x, y, p in an .npz, or one structured array in an .npz or .npy; read in pieces."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import IO, BinaryIO

import numpy as np

from modalities.events.formats.base import Block, Options, Recording, to_block, to_us
from modalities.events.formats.columns import name_columns, polarity, unit_of
from zoo.errors import DataError
from zoo.npy import damage, read_header, read_members, read_pieces

__all__ = ["open_npy", "open_npz"]


def open_npz(file: BinaryIO, name: str, options: Options) -> Recording:
    """Opens an .npz with arrays t, x, y, p (usual variants of the names) or one structured array with these fields.

    Scalars `width` and `height` are the size of the sensor. Whole times are microseconds unless `unit` or the name
    (`t_us`) says otherwise, floating-point times must have a unit. Arrays of objects (pickles) are refused.
    """
    archive, headers = read_members(file, name)
    members = {key: f"{key}.npy" for key in headers}
    keys = list(members)
    columns, stated = name_columns(keys)
    size: dict[str, int] = {}
    for side in ("width", "height"):
        if side in members and headers[side][0] in ((), (1,)):
            with damage(name, side), archive.open(members[side]) as stream:
                shape, dtype = read_header(stream, name, side)
                size[side] = int(np.frombuffer(stream.read(dtype.itemsize), dtype)[0])
    tables = [key for key in keys if headers[key][1].names]
    if set(columns) == set("txyp"):
        chosen = {key: keys[index] for key, index in columns.items()}
        shapes = {label: headers[label][0] for label in chosen.values()}
        if len(set(shapes.values())) != 1 or len(next(iter(shapes.values()))) != 1:
            raise DataError(f"{name}: the arrays must have one axis and one length: {shapes}")

        def blocks() -> Generator[Block, None, None]:
            with contextlib.ExitStack() as stack:
                parts = {}
                for key, label in chosen.items():
                    stream = stack.enter_context(archive.open(members[label]))
                    parts[key] = read_pieces(stream, name, label)
                for together in zip(*parts.values(), strict=True):
                    yield _block(dict(zip(parts, together, strict=True)), name, options, stated)

        return Recording("npz", size.get("width"), size.get("height"), blocks)
    if len(tables) == 1:
        member = members[tables[0]]
        return _table("npz", lambda: archive.open(member), headers[tables[0]], name, options, size)
    raise DataError(f"{name}: expected arrays t, x, y and p or one structured array; it holds {', '.join(keys[:8])}")


def open_npy(file: BinaryIO, name: str, options: Options) -> Recording:
    """Opens an .npy with one structured array of fields t, x, y, p (usual variants of the names); as `open_npz`."""
    header = read_header(file, name, "the array")

    def opened() -> IO[bytes]:
        file.seek(0)
        return file

    return _table("npy", opened, header, name, options, {})


def _table(
    kind: str,
    opened: Callable[[], IO[bytes]],
    header: tuple[tuple[int, ...], np.dtype],
    name: str,
    options: Options,
    size: dict[str, int],
) -> Recording:
    shape, dtype = header
    fields = list(dtype.names or ())
    columns, stated = name_columns(fields)
    if set(columns) != set("txyp") or len(shape) != 1:
        raise DataError(f"{name}: expected a structured array (N,) with t, x, y, p, not {dtype} {shape}")

    def blocks() -> Generator[Block, None, None]:
        for part in read_pieces(opened(), name, "the array"):
            yield _block({key: part[fields[index]] for key, index in columns.items()}, name, options, stated)

    return Recording(kind, size.get("width"), size.get("height"), blocks)


def _block(part: dict[str, np.ndarray], name: str, options: Options, stated: str | None) -> Block:
    for key, values in part.items():
        if values.dtype.kind not in "iufb" or (key in "xy" and values.dtype.kind == "f" and (values % 1 != 0).any()):
            raise DataError(f"{name}: {key} must hold whole numbers, not {values.dtype}")
    t = to_us(part["t"], unit_of(part["t"].dtype, options.unit, name, stated=stated), name)
    return to_block(t, part["x"], part["y"], polarity(part["p"], name))
