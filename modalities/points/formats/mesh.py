"""STL meshes through trimesh, and OBJ."""

from __future__ import annotations

import io
from typing import Any, BinaryIO

import numpy as np

from modalities.points.formats.base import Decoded, Options, remaining, triangles
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
    """Reads vertices (also their colours), and faces as fans of triangles; nothing that the file names is opened.

    trimesh would drop vertices that no face has, which here are points.
    """
    rows: list[list[float]] = []
    polygons: dict[int, list[list[int]]] = {}
    damage = None
    for number, raw in enumerate(io.BytesIO(_bounded(file, name)), start=1):
        words = raw.split()
        if not words or words[0] not in (b"v", b"f"):
            continue
        try:
            if words[0] == b"v":
                values = [float(word) for word in words[1:7]]
                if len(values) < 3:
                    raise ValueError("fewer than three numbers")
                rows.append(values)
                options.check_count(len(rows), name)
            elif len(words) > 3:
                # Counted from 1, negative ones from the latest vertex; behind a slash are texture and normal.
                corners = [int(word.partition(b"/")[0]) for word in words[1:]]
                corners = [corner - 1 if corner > 0 else len(rows) + corner for corner in corners]
                polygons.setdefault(len(corners), []).append(corners)
        except DataError:
            raise
        except ValueError as error:
            damage = f"{name}: line {number}: {raw[:60].decode('utf-8', 'replace').strip()!r} is damaged ({error})"
            break
    decoded = Decoded(np.array([row[:3] for row in rows], np.float64).reshape(-1, 3), damage=damage)
    if rows and all(len(row) == 6 for row in rows):
        decoded.fields["rgb"] = np.array([row[3:] for row in rows], np.float32)
    try:
        faces = [np.array(corners, np.int64) for _, corners in sorted(polygons.items())]
    except OverflowError as error:
        raise DataError(f"{name}: a face names a vertex that is not there ({error})") from error
    decoded.faces = triangles(faces, len(rows))
    return decoded


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
