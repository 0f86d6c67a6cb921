"""STL and OBJ meshes, through trimesh."""

from __future__ import annotations

import io
import re
from typing import Any, BinaryIO

import numpy as np

from modalities.points.formats.base import Decoded, Options, remaining
from zoo.errors import DataError, require

__all__ = ["decode_obj", "decode_stl"]

MAX_BYTES = 2**29
"""Most bytes of a mesh file; trimesh takes a few times that in memory."""


def decode_stl(file: BinaryIO, name: str, options: Options) -> Decoded:
    """Reads ascii and binary STL: equal corners are joined, so that the points are the vertices of the mesh."""
    size = remaining(file)
    head = file.read(84)
    file.seek(0)
    count = int.from_bytes(head[80:84], "little")
    text = head.lstrip()[:5].lower() == b"solid" and size != 84 + 50 * count
    if not text and (size < 84 or size < 84 + 50 * count):
        raise DataError(f"{name}: truncated: {max(0, size - 84) // 50} of the {count} triangles are there")
    mesh = _load(file, "stl_ascii" if text else "stl", name, options)
    corners, inverse = np.unique(np.asarray(mesh.vertices, np.float64), axis=0, return_inverse=True)
    faces = inverse.reshape(-1)[np.asarray(mesh.faces, np.int64)]
    return Decoded(corners, faces=faces)


def decode_obj(file: BinaryIO, name: str, options: Options) -> Decoded:
    """Reads the vertices and faces of an OBJ; files without faces are clouds. Materials are not opened."""
    data = _bounded(file, name)
    if not re.search(rb"^\s*f\s", data, re.MULTILINE):
        return _vertices(data, name, options)
    mesh = _load(io.BytesIO(data), "obj", name, options)
    return Decoded(np.array(mesh.vertices, np.float64), faces=np.array(mesh.faces, np.int64))


def _vertices(data: bytes, name: str, options: Options) -> Decoded:
    rows = [line.split()[1:] for line in data.decode("utf-8", "replace").splitlines() if line.startswith("v ")]
    options.check_count(len(rows), name)
    try:
        xyz = np.array([[float(word) for word in row[:3]] for row in rows], np.float64).reshape(len(rows), 3)
    except ValueError as error:
        raise DataError(f"{name}: a vertex is not three numbers ({error})") from error
    return Decoded(xyz)


def _bounded(file: BinaryIO, name: str) -> bytes:
    if remaining(file) > MAX_BYTES:
        raise DataError(f"{name}: {remaining(file)} bytes; meshes of at most {MAX_BYTES} are read")
    return file.read()


def _load(file: BinaryIO, kind: str, name: str, options: Options) -> Any:
    data = _bounded(file, name)
    trimesh = require("trimesh", "points")
    try:
        # Without a resolver nothing else is opened, whatever the file names.
        mesh = trimesh.load(io.BytesIO(data), file_type=kind, force="mesh", process=False, skip_materials=True)
    except Exception as error:  # Whatever NumPy and Python raise at text that is none.
        reason = " ".join(str(error).split())[:100] or type(error).__name__
        raise DataError(f"{name}: no readable mesh ({reason})") from error
    vertices = getattr(mesh, "vertices", None)
    if vertices is None or not len(vertices):
        raise DataError(f"{name}: holds no mesh")
    options.check_count(len(vertices), name)
    return mesh
