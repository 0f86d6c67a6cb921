"""NumPy files of strangers: headers read without data, data in pieces, pickles refused."""

from __future__ import annotations

import contextlib
import math
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

from zoo.errors import DataError

__all__ = ["PIECE", "damage", "read_array", "read_header", "read_members", "read_pieces"]

PIECE = 2**18
"""Rows read at a time."""

# NumPy parses the header as Python; compression that zipfile does not know is a RuntimeError of its own kind.
_BAD = (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, RuntimeError, KeyError)
_BAD_HEADER = (*_BAD, SyntaxError, TypeError, tokenize.TokenError)


def read_header(stream: IO[bytes], name: str, key: str) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and type of a stored array; leaves the stream at its data.

    Args:
        stream: At the start of an .npy.
        name: What errors call the file.
        key: What they call the array.

    Raises:
        DataError: If it is damaged or a pickle.
    """
    return _read_layout(stream, name, key)[:2]


def _read_layout(stream: IO[bytes], name: str, key: str) -> tuple[tuple[int, ...], np.dtype, bool]:
    with damage(name, key):
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, columns_first, dtype = read(stream)
    if dtype.hasobject:
        raise DataError(f"{name}: {key} is a pickle, which is not opened")
    if any(side < 0 for side in shape):
        raise DataError(f"{name}: {key} has the shape {shape}: damaged")
    return shape, dtype, columns_first and len(shape) > 1


def read_pieces(stream: IO[bytes], name: str, key: str) -> Iterator[np.ndarray]:
    """Yields the values of an array of one axis in pieces; memory follows the data, not the header.

    Raises:
        DataError: Where it ends early or is damaged, after the values before.
    """
    shape, dtype = read_header(stream, name, key)
    done = 0
    while done < shape[0]:
        count = min(PIECE, shape[0] - done)
        with damage(name, f"{key} from value {done} on"):
            data = stream.read(count * dtype.itemsize)
        whole = len(data) // dtype.itemsize
        if whole:
            yield np.frombuffer(data, dtype, whole)
        done += whole
        if whole < count:
            raise DataError(f"{name}: truncated: {key} has {done} of {shape[0]} values")


def read_array(stream: IO[bytes], name: str, key: str, *, max_bytes: int) -> np.ndarray:
    """Reads an array of any shape; memory follows the data, not the header.

    Args:
        stream: At the start of an .npy.
        name: What errors call the file.
        key: What they call the array.
        max_bytes: Refuses more than this before reading.

    Raises:
        DataError: If it is damaged, ends early, is a pickle or larger.
    """
    shape, dtype, columns_first = _read_layout(stream, name, key)
    wanted = math.prod(shape) * dtype.itemsize
    if wanted > max_bytes:
        raise DataError(f"{name}: {key} {shape} {dtype} is {wanted} bytes; at most {max_bytes} are read")
    data = bytearray()
    with damage(name, key):
        while len(data) < wanted and (part := stream.read(min(2**22, wanted - len(data)))):
            data += part
    if len(data) < wanted:
        raise DataError(f"{name}: truncated: {key} has {len(data)} of {wanted} bytes")
    with damage(name, key):
        return np.ndarray(shape, dtype, data, order="F" if columns_first else "C")


def read_members(file: IO[bytes], name: str) -> tuple[zipfile.ZipFile, dict[str, tuple[tuple[int, ...], np.dtype]]]:
    """Opens an .npz and reads the headers of its arrays.

    Returns:
        The archive, and shape and type of each array by its key; its member is `key + ".npy"`.

    Raises:
        DataError: If it is no archive, damaged, or an array is a pickle.
    """
    headers: dict[str, tuple[tuple[int, ...], np.dtype]] = {}
    with damage(name, "no readable .npz"):
        archive = zipfile.ZipFile(file)
        for member in archive.namelist():
            if member.endswith(".npy"):
                key = member.removesuffix(".npy")
                with archive.open(member) as stream:
                    headers[key] = read_header(stream, name, key)
    return archive, headers


@contextlib.contextmanager
def damage(name: str, what: str) -> Iterator[Any]:
    """Turns whatever a damaged file makes libraries raise into a `DataError` that names it and the part."""
    try:
        yield
    except DataError:
        raise
    except _BAD_HEADER as error:
        raise DataError(f"{name}: {what}: truncated or damaged ({error})") from error
